"""Files of every format are read, also compressed or remote, and invalid files are refused."""

import bz2
import gzip
import json
import lzma
import os
import resource

import fsspec
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import json_lines
from refusals import refuses
from t5x_like import trust
from t5x_like.corpora.documents import Documents
from t5x_like.corpora.sources import Skip, _columns, _files, conllu

CONLLU = """# newdoc id = a
# sent_id = 1
# text = It's fine.
1-2\tIt's\t_\t_\t_\t_\t_\t_\t_\t_
1\tIt\tit\tPRON\t_\t_\t0\troot\t_\t_
2\t's\tbe\tAUX\t_\t_\t1\tcop\t_\t_
3\tfine\tfine\tADJ\t_\t_\t1\tx\t_\tSpaceAfter=No
4\t.\t.\tPUNCT\t_\t_\t1\tx\t_\t_

# newpar
1\tYes\tyes\tX\t_\t_\t0\troot\t_\tSpaceAfter=No
2\t!\t!\tX\t_\t_\t0\troot\t_\t_

# newdoc
1\tNew\tnew\tX\t_\t_\t0\troot\t_\t_
"""


def read_documents(source: str, **options) -> list[str]:
  return list(Documents(source, **options).usable("train"))


def write_parquet(path, column, name="text"):
  pyarrow.parquet.write_table(pyarrow.table({"id": list(range(len(column))), name: column}), path)
  return path


def compress_zstd(data: bytes) -> bytes:
  return pyarrow.compress(data, codec="zstd", asbytes=True)


def test_json_arrays_are_read(tmp_path):
  (tmp_path / "a.json").write_text(json.dumps(["one", {"text": "two", "n": 1}]))
  assert read_documents(f"json:{tmp_path}/a.json") == ["one", "two"]


@pytest.mark.parametrize(
  "text, name",
  [
    ("[1]", "element 0: found a JSON number"),
    ("{}", "found a JSON object, expected an array"),
    ('["a"', "found invalid JSON"),
    ('[{"txet": ""}]', "did you mean 'txet'"),
    ("[]", "found 0 doc"),
  ],
)
def test_json_other_than_an_array_of_documents_is_refused(text, name, tmp_path):
  (tmp_path / "a.json").write_text(text)
  with refuses(name):
    read_documents(f"json:{tmp_path}/a.json")


def test_parquet_files_are_read_and_errors_name_the_field(tmp_path, monkeypatch):
  path = write_parquet(tmp_path / "a.parquet", ["one", None, "two", ""])
  source = Documents(f"parquet:{path}")
  assert list(source.usable("train")) == ["one", "two"]
  assert source.skipped["train"] == {"null": 1, "empty": 1}
  monkeypatch.setattr(_columns, "LONGEST", 2)
  assert next(iter(source.read("train"))) == Skip("text of over 2 characters")
  with refuses("no field 'body' among id, text"):
    read_documents(f"parquet:{path}", text_field="body")
  with refuses("found number in field 'id', expected text"):
    read_documents(f"parquet:{path}", text_field="id")
  path.write_bytes(path.read_bytes()[:-50])
  with refuses(f"{path}: found damaged Parquet data"):
    read_documents(f"parquet:{path}")


def test_parquet_text_that_is_not_utf8_is_refused(tmp_path):
  offsets = pyarrow.py_buffer(np.array([0, 1], np.int32))
  buffers = [None, offsets, pyarrow.py_buffer(b"\xff")]
  column = pyarrow.Array.from_buffers(pyarrow.string(), 1, buffers)
  path = write_parquet(tmp_path / "a.parquet", column)
  with refuses("found damaged Parquet data"):
    read_documents(f"parquet:{path}")


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.parametrize(
  "field, texts, skipped",
  [("text", ["one"], {"null": 1, "empty": 1}), ("meta.body", ["1"], {"null": 2})],
)
def test_nulls_are_skipped_and_counted(form, field, texts, skipped, tmp_path):
  rows = [
    {"text": "one", "meta": {"body": "1"}},
    {"text": None, "meta": None},
    {"text": "", "meta": {"body": None}},
  ]
  json_lines.write(tmp_path / "a.jsonl", rows)
  pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
  source = Documents(f"{form}:{tmp_path}/a.{form}", text_field=field)
  assert list(source.usable("train")) == texts
  assert source.skipped["train"] == skipped


def test_conll_and_conllu_files_are_read_as_sentences(tmp_path):
  (tmp_path / "a").write_text("-DOCSTART- O\n\nEU B\nrejects O\n\nPeter B\n\n-DOCSTART- O\n\nx O\n")
  assert read_documents(f"conll:{tmp_path}/a") == ["EU rejects\nPeter", "x"]
  (tmp_path / "b").write_text("EU\tB\nrejects\tO\n\n\nPeter\tB")
  assert read_documents(f"conll:{tmp_path}/b") == ["EU rejects", "Peter"]
  assert read_documents(f"conll:{tmp_path}/b", text_field="1") == ["B O", "B"]
  with refuses("b:1: found 2 columns, expected 4"):
    read_documents(f"conll:{tmp_path}/b", text_field="3")
  (tmp_path / "c").write_text(CONLLU)
  assert read_documents(f"conllu:{tmp_path}/c") == ["It's fine.\nYes!", "New"]
  without_comments = [line for line in CONLLU.splitlines() if not line.startswith("#")]
  (tmp_path / "d").write_text("\n".join(without_comments))
  assert read_documents(f"conllu:{tmp_path}/d") == ["It's fine.", "Yes!", "New"]
  assert [len(rows) for _, rows in conllu.sentences(f"{tmp_path}/c")] == [5, 2, 1]
  (tmp_path / "d").write_text("1\tNew\n")
  with refuses("d:1: found 2 tab-separated columns, expected 10"):
    read_documents(f"conllu:{tmp_path}/d")


COMPRESSIONS = pytest.mark.parametrize(
  "kind, compress",
  [
    ("gzip", gzip.compress),
    ("bzip2", bz2.compress),
    ("xz", lzma.compress),
    ("zstd", compress_zstd),
  ],
)


@COMPRESSIONS
def test_compression_is_recognised_by_bytes_and_truncated_files_are_refused(
  kind, compress, tmp_path
):
  lines = [f"line {i * i * i}" for i in range(3000)]
  content = compress("\n".join(lines).encode())
  path = tmp_path / "a.any"
  path.write_bytes(content)
  assert read_documents(f"lines:{path}") == lines
  path.write_bytes(content[: len(content) * 2 // 3])
  with refuses(str(path), f"truncated or damaged {kind} data"):
    read_documents(f"lines:{path}")


def test_text_that_begins_like_bzip2_is_read_as_text(tmp_path):
  (tmp_path / "a.any").write_bytes(b"BZhello, plain text")
  assert read_documents(f"lines:{tmp_path}/a.any") == ["BZhello, plain text"]


@COMPRESSIONS
def test_concatenated_compressed_streams_are_read_as_one_text(kind, compress, tmp_path):
  first = compress(f"one {'x' * 300_000}\n".encode())
  second = compress(f"two {'x' * 300_000}\n".encode())
  path = tmp_path / "a.any"
  path.write_bytes(first + second)
  assert [line[:3] for line in read_documents(f"lines:{path}")] == ["one", "two"]
  for damaged in (b"garbage", b"?" + second[1:], second[: len(second) // 2], second[:3]):
    path.write_bytes(first + damaged)
    with refuses(f"truncated or damaged {kind} data"):
      read_documents(f"lines:{path}")


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_zeros_after_a_compressed_stream_are_padding(compress, tmp_path):
  (tmp_path / "a").write_bytes(compress(b"one\n") + bytes(512))
  assert read_documents(f"lines:{tmp_path}/a") == ["one"]


def test_circular_links_are_followed_only_once(tmp_path):
  for name in ("a.txt", "sub/b.txt", ".hidden/c.txt"):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(name)
  for number in range(6):  # following all of them would visit 6**40 paths
    (tmp_path / "sub" / f"up{number}").symlink_to("..")
  assert read_documents(f"lines:{tmp_path}/**/*.txt") == ["a.txt", "sub/b.txt"]
  assert read_documents(f"lines:{tmp_path}/**") == ["a.txt", "sub/b.txt"]
  assert read_documents(f"lines:{tmp_path}/*/?.txt") == ["sub/b.txt"]
  assert read_documents(f"lines:{tmp_path}/.hid*/*") == [".hidden/c.txt"]


@pytest.mark.parametrize(
  "source, name",
  [
    ("lines:https://", "found no bucket or host"),
    ("lines:{}/b.txt", "{}/b.txt: found a link to nothing"),
    ("lines:{}/*.txt", "{}/b.txt: found a link to nothing"),
    ("lines:{}/pipe", "found a pipe, expected a file"),
    ("lines:/dev/zero", "found a device, expected a file"),
    ("lines:{}/loop", "{}/loop: cannot be read"),
    ("lines:{}/a-{{00008..00012}}", "a-00012: found no file"),
    ("lines:{}/a-{{3..1}}", "found the range {{3..1}}"),
  ],
)
def test_paths_that_are_not_files_are_refused(source, name, tmp_path):
  (tmp_path / "a.txt").write_text("a document")
  (tmp_path / "b.txt").symlink_to("nowhere")
  (tmp_path / "loop").symlink_to("loop")
  os.mkfifo(tmp_path / "pipe")
  write_numbered_files(tmp_path)
  with refuses(name.format(tmp_path)):
    read_documents(source.format(tmp_path))


def write_numbered_files(folder):
  """Write the files a-00008 to a-00011."""
  for i in range(8, 12):
    (folder / f"a-{i:05d}").write_text(str(i))


def test_range_of_numbers_names_numbered_files(tmp_path):
  write_numbered_files(tmp_path)
  assert read_documents(f"lines:{tmp_path}/a-{{00008..00011}}") == ["8", "9", "10", "11"]


def test_directories_that_cannot_be_listed_are_refused(tmp_path, monkeypatch):
  (tmp_path / "a").mkdir()
  (tmp_path / "a" / "a.txt").write_text("a document")

  def listdir(path, listdir=os.listdir):
    if path.endswith("/a"):
      raise PermissionError(13, "Permission denied")
    return listdir(path)

  monkeypatch.setattr(os, "listdir", listdir)  # permissions do not stop the superuser
  for pattern in ("**/*.txt", "*/*.txt", "a/*"):
    with refuses(f"{tmp_path}/a: cannot be listed"):
      read_documents(f"lines:{tmp_path}/{pattern}")


def test_two_columns_of_the_same_name_are_refused(tmp_path):
  (tmp_path / "a.tsv").write_text("text\ttext\na\tb\n")
  with refuses("a.tsv:1: found 2 columns 'text', expected one"):
    read_documents(f"tsv:{tmp_path}/a.tsv")
  assert read_documents(f"tsv:{tmp_path}/a.tsv", text_field="1") == ["text", "b"]
  table = pyarrow.Table.from_arrays([pyarrow.array(["a"])] * 2, names=["text"] * 2)
  pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
  with refuses("found 2 columns 'text', expected one"):
    read_documents(f"parquet:{tmp_path}/a.parquet")


def test_blank_lines_of_tables_are_counted(tmp_path):
  (tmp_path / "a.tsv").write_text("\ntext\none\n\ntwo\n")
  source = Documents(f"tsv:{tmp_path}/a.tsv")
  assert list(source.usable("train")) == ["one", "two"]
  assert source.skipped["train"] == {"blank line": 2}


def test_line_ends_within_csv_cells_are_kept(tmp_path):
  for end in ("\n", "\r\n"):
    (tmp_path / "a.csv").write_bytes(f'text,n{end}"one\r\ntwo\nthree\r",1{end}plain,2'.encode())
    assert read_documents(f"csv:{tmp_path}/a.csv") == ["one\r\ntwo\nthree\r", "plain"]


def test_csv_cells_can_hold_long_documents(tmp_path):
  (tmp_path / "a.csv").write_text(f'text,label\n"{"long, " * 40_000}",1\n')
  (text,) = read_documents(f"csv:{tmp_path}/a.csv")
  assert len(text) == 240_000


def test_conll_words_can_contain_hashes_and_unusual_spaces(tmp_path):
  (tmp_path / "a").write_text("# id 5 of train\n# O\na\u00a0b O\nc\u2028 O\n\n# note\nx O\n\n# O\n")
  assert read_documents(f"conll:{tmp_path}/a") == ["# a\u00a0b c\u2028", "# x", "#"]
  (tmp_path / "a").write_text("# note\nx\tO\n\n# O\n")
  assert read_documents(f"conll:{tmp_path}/a") == ["x"]
  # The form of MultiCoNER.
  (tmp_path / "a").write_text("# id 7c15\tdomain=en\nx _ _ O\n\n# id 8\tdomain=en\n# _ _ O\n")
  assert read_documents(f"conll:{tmp_path}/a") == ["x", "#"]


@pytest.mark.parametrize("number", ["1-x", "3-", "x", "-1", "\u00b2", "9" * 5000])
def test_bad_ids_of_conllu_are_refused(number, tmp_path):
  (tmp_path / "a").write_text(f"1\ta{8 * chr(9)}\n{number}\tb{8 * chr(9)}\n")
  with refuses(f"{tmp_path}/a:2: found the id"):
    read_documents(f"conllu:{tmp_path}/a")


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_remote_files_are_read_like_local_files(scheme, tmp_path):
  root = f"{scheme}://{tmp_path}"
  for name, text in (("b.txt", "two"), ("a.txt", "one")):
    with fsspec.open(f"{root}/{name}", "wb") as file:
      file.write(gzip.compress(text.encode()))
  source = Documents(f"lines:{root}/*.txt")
  assert list(source.usable("train")) == ["one", "two"]
  facts = source.facts()["splits"]["train"]
  assert [entry["file"] for entry in facts] == ["a.txt", "b.txt"]
  assert str(tmp_path) not in json.dumps(facts)
  with refuses("found no file"):
    read_documents(f"lines:{root}/*.none")


def test_unknown_scheme_is_opened_only_if_the_command_names_it():
  trust.begin_command(())
  with refuses("found 'nosuch://x/y', which this command does not name"):
    read_documents("lines:nosuch://x/y")
  trust.admit("lines:nosuch://x/y")
  with refuses("nosuch://x/: cannot be opened"):
    read_documents("lines:nosuch://x/y")


def test_too_long_lines_are_skipped_in_bounded_memory(tmp_path, monkeypatch):
  """A compressed line has 300 MB; the limit is lowered to 1 MiB."""
  monkeypatch.setattr(_files, "LONGEST", 2**20)
  path = tmp_path / "a.gz"
  with gzip.open(path, "wb", compresslevel=1) as file:
    file.write(b"one\n")
    for _ in range(300):
      file.write(b"x" * 10**6)
    file.write(b"\r\ntwo\n" + b"y" * 2**20 + b"\n" + b"z" * (2**20 + 1))
  before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  source = Documents(f"lines:{path}")
  documents = list(source.usable("train"))
  assert [len(document) for document in documents] == [3, 3, 2**20]
  assert source.skipped["train"] == {"line of over 1 MiB": 2}
  assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024  # KiB
  skip = next(iter(Documents(f"text:{path}").read("train")))
  assert skip.reason == "file of over 1 MiB"


def test_parts_cover_the_split_in_order(tmp_path):
  for i in range(9):
    (tmp_path / f"{i}").write_text(f"{i}" * (i + 1))
  source = Documents(f"text:{tmp_path}/*")
  parts = source.source.parts("train", 10)
  assert len(parts) == 4
  assert parts == source.source.parts("train", 10)
  assert [d for part in parts for d in source.read("train", part)] == list(source.usable("train"))

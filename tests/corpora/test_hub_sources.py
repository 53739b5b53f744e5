"""Sources `arrow:`, `webdataset:` and `hf:` read their files and refuse hostile ones."""

import io
import json
import pathlib
import sys
import tarfile

import pyarrow
import pyarrow.feather
import pytest

import json_lines
from image_files import NOISE, encode
from preparations import decode_documents, prepare
from refusals import refuses
from t5x_like.corpora.sources import Skip, open_source, webdataset
from t5x_like.data import task
from t5x_like.store.tokens import TokenStore

ROWS = [{"text": f"document number {n}", "label": n % 2} for n in range(40)]
FEATURES = {
  "text": {"dtype": "string", "_type": "Value"},
  "label": {"names": ["bad", "good"], "_type": "ClassLabel"},
}


def read_records(source: str, split: str = "train", **options) -> list:
  return [record for _, record in open_source(source, **options).records(split)]


def write_arrow_stream(path, rows, features=None) -> pathlib.Path:
  """Write an Arrow file as `datasets` does."""
  table = pyarrow.Table.from_pylist(rows)
  if features:
    table = table.replace_schema_metadata(
      {"huggingface": json.dumps({"info": {"features": features}})}
    )
  path.parent.mkdir(parents=True, exist_ok=True)
  with (
    pyarrow.OSFile(str(path), "wb") as file,
    pyarrow.ipc.new_stream(file, table.schema) as writer,
  ):
    writer.write_table(table, max_chunksize=7)
  return path


def write_tar(path, files, format=tarfile.USTAR_FORMAT, mode="w") -> pathlib.Path:
  with tarfile.open(path, mode, format=format) as shard:
    for name, content in files:
      member = tarfile.TarInfo(name)
      member.size = len(content)
      shard.addfile(member, io.BytesIO(content))
  return path


def test_arrow_streams_and_feather_files_are_read(tmp_path):
  write_arrow_stream(tmp_path / "a/1.arrow", ROWS[:25])
  write_arrow_stream(tmp_path / "a/2.arrow", ROWS[25:])
  pyarrow.feather.write_feather(
    pyarrow.Table.from_pylist(ROWS), tmp_path / "all.feather", compression="zstd"
  )
  assert read_records(f"arrow:{tmp_path}/a/*.arrow") == ROWS
  assert read_records(f"arrow:{tmp_path}/all.feather") == ROWS
  texts = read_records(f"arrow:{tmp_path}/all.feather", fields=("text",))
  assert texts == [{"text": row["text"]} for row in ROWS]
  with refuses("found no field 'txt'"):
    read_records(f"arrow:{tmp_path}/all.feather", fields=("txt",))


def test_class_labels_and_images_of_datasets_become_names_and_bytes(tmp_path):
  rows = [{"label": 1, "image": {"bytes": b"\x89PNG", "path": None}}, {"label": -1, "image": None}]
  features = {"label": FEATURES["label"], "image": {"_type": "Image"}}
  path = write_arrow_stream(tmp_path / "1.arrow", rows, features)
  assert read_records(f"arrow:{path}") == [
    {"label": "good", "image": b"\x89PNG"},
    {"label": -1, "image": None},
  ]
  assert open_source(f"arrow:{path}").classes("label") == ("bad", "good")


def test_directory_of_save_to_disk_is_read_in_its_order(tmp_path):
  for split, rows in (("train", ROWS[:30]), ("test", ROWS[30:])):
    names = ["z.arrow", "a.arrow"]
    write_arrow_stream(tmp_path / split / names[0], rows[:5], FEATURES)
    write_arrow_stream(tmp_path / split / names[1], rows[5:], FEATURES)
    state = {"_data_files": [{"filename": name} for name in names], "_split": split}
    (tmp_path / split / "state.json").write_text(json.dumps(state))
  (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
  source = open_source(f"arrow:{tmp_path}")
  assert source.splits == ("train", "test")
  expected = [row | {"label": ("bad", "good")[row["label"]]} for row in ROWS]
  assert read_records(f"arrow:{tmp_path}") + read_records(f"arrow:{tmp_path}", "test") == expected
  state = {"_data_files": [{"filename": "../test/a.arrow"}]}
  (tmp_path / "train" / "state.json").write_text(json.dumps(state))
  with refuses("_data_files: found '../test/a.arrow', expected a name"):
    read_records(f"arrow:{tmp_path}")
  (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": [".."]}))
  with refuses("splits: found '..', expected a name"):
    read_records(f"arrow:{tmp_path}")


@pytest.mark.parametrize("cut", [3, 40, 300, -30])
def test_damaged_arrow_files_are_refused(cut, tmp_path):
  path = write_arrow_stream(tmp_path / "1.arrow", ROWS)
  data = path.read_bytes()
  path.write_bytes(data[:cut])
  with refuses("1.arrow: found damaged Arrow data"):
    read_records(f"arrow:{path}")


def test_samples_of_shards_are_read_with_all_parts(tmp_path):
  files = []
  for n in range(6):
    name = f"./d{n % 2}/{n:04d}"
    files += [
      (f"{name}.txt", f"text {n}".encode()),
      (f"{name}.cls", str(n % 2).encode()),
      (f"{name}.seg.png", b"\x89PNG"),
      (f"{name}.json", b'{"caption": {"en": "a"}}'),
    ]
  write_tar(tmp_path / "s-000.tar", files[:12])
  write_tar(
    tmp_path / "s-001.tar", [("README", b"no sample"), *files[12:]], tarfile.PAX_FORMAT, "w:gz"
  )
  samples = read_records(f"webdataset:{tmp_path}/s-{{000..001}}.tar")
  assert [record["txt"] for record in samples] == [f"text {n}" for n in range(6)]
  assert samples[3] == {
    "txt": "text 3",
    "cls": 1,
    "seg.png": b"\x89PNG",
    "json": {"caption": {"en": "a"}},
  }
  captions = open_source(f"webdataset:{tmp_path}/s-000.tar", fields=("json.caption.en",))
  assert list(captions.documents("train", "json.caption.en")) == ["a"] * 3
  assert [set(record) for _, record in captions.records("train")] == [{"json"}] * 3
  without_jpg = read_records(f"webdataset:{tmp_path}/s-000.tar", fields=("jpg",))
  assert without_jpg == [Skip("sample without jpg")] * 3


@pytest.mark.parametrize("prefix", ["", "./", "a.b/", "./a.b/"])
def test_hidden_files_are_not_parts_of_samples(tmp_path, prefix):
  """macOS's tar writes a file `._NAME` before each file."""
  files = []
  for n in range(2):
    for end, data in (("cls", b"%d" % n), ("txt", b"a")):
      files += [(f"{prefix}._{n}.{end}", b"\0\5\x16\7 not text \xff"), (f"{prefix}{n}.{end}", data)]
  files += [(f"{prefix}.DS_Store", b"\0"), (f"{prefix}.hidden.txt", b"x")]
  assert read_records(f"webdataset:{write_tar(tmp_path / 's.tar', files)}") == [
    {"cls": 0, "txt": "a"},
    {"cls": 1, "txt": "a"},
  ]


@pytest.mark.parametrize("size", ["octal", "binary", "pax"])
def test_member_longer_than_its_shard_is_refused(tmp_path, size):
  """Reading 2**33 or 2**60 bytes from empty blocks would take hours."""
  member = tarfile.TarInfo("0.bin")
  member.size = 2**33 - 1 if size == "octal" else 2**60
  form = tarfile.PAX_FORMAT if size == "pax" else tarfile.GNU_FORMAT
  (tmp_path / "s.tar").write_bytes(member.tobuf(form) + b"\0" * 4096)
  with refuses("s.tar: found a truncated or damaged shard"):
    read_records(f"webdataset:{tmp_path}/s.tar")


def test_shards_of_labelled_images_are_a_task(tmp_path):
  files = []
  for n, form in enumerate(("jpg", "png", "jpg")):
    files += [(f"{n}.{form}", encode(NOISE, "JPEG")), (f"{n}.cls", b"%d" % (2 * n))]
  unreadable = [("3.json", b'{"kind": "cat"}'), ("3.cls", b"0"), ("3.jpg", b"?")]
  path = write_tar(tmp_path / "s.tar", files + unreadable)
  arguments = {"source": f"webdataset:{path}", "cache": str(tmp_path / "cache"), "resolution": 8}
  for _ in range(2):  # the second time, the classes are read from the cache
    image_task = task.build("image_classification", "train", **arguments)
    assert image_task.labels.tolist() == [0, 2, 4]
    assert image_task.classes == tuple("01234")
  (classes_file,) = (tmp_path / "cache").glob(".*classes*")
  classes_file.write_text('["x"')
  with refuses("classes-", "expected class names; delete it"):
    task.build("image_classification", "train", **arguments)


def write_kinds(path, *values: bytes) -> str:
  """Write samples with these values of `kind` in their JSON; return their source."""
  files = [(f"{n}.json", b'{"kind": %s}' % value) for n, value in enumerate(values)]
  return f"webdataset:{write_tar(path, files)}"


def test_classes_of_shards_are_names_or_numbers(tmp_path):
  named = open_source(write_kinds(tmp_path / "named.tar", b'"dog"', b'"cat"'))
  assert named.classes("json.kind") == ("cat", "dog")
  mixed = open_source(write_kinds(tmp_path / "mixed.tar", b"10", b'"x"', b"2"))
  with refuses("found numbers and texts in field 'json.kind'", "and 'x'"):
    mixed.classes("json.kind")
  many = open_source(f"webdataset:{write_tar(tmp_path / 'many.tar', [('1.cls', b'123456789')])}")
  with refuses("found classes 123456789 to 123456789 in field 'cls', expected 0 to at most"):
    many.classes("cls")


def make_hostile_shard() -> bytes:
  """Return a shard of a link and of two texts whose paths are outside of its directory."""
  file = io.BytesIO()
  with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as shard:
    link = tarfile.TarInfo("0.txt")
    link.type = tarfile.SYMTYPE
    link.linkname = "/etc/passwd"
    shard.addfile(link)
    for name in ("../../1.txt", "/2.txt"):
      member = tarfile.TarInfo(name)
      member.size = 2
      shard.addfile(member, io.BytesIO(b"hi"))
  return file.getvalue()


def test_members_with_paths_outside_are_read_without_writing_files(tmp_path):
  (tmp_path / "a.tar").write_bytes(make_hostile_shard())
  # A link is not followed, and its sample is counted as skipped.
  link, *samples = read_records(f"webdataset:{tmp_path}/a.tar")
  assert link == Skip("part that is a link or no file")
  assert samples == [{"txt": "hi"}] * 2
  assert [path.name for path in tmp_path.rglob("*")] == ["a.tar"]


def test_concatenated_shards_are_read_as_one(tmp_path):
  (tmp_path / "joined.tar").write_bytes(make_hostile_shard() * 2)
  records = read_records(f"webdataset:{tmp_path}/joined.tar")
  assert [isinstance(record, Skip) for record in records] == [True, False, False] * 2


# All but the last could be mistaken for a shorter shard.
@pytest.mark.parametrize(
  "content",
  [
    make_hostile_shard()[:1_100],
    make_hostile_shard()[:1_536] + b"?" + make_hostile_shard()[1_537:],
    make_hostile_shard()[:1_536],
    make_hostile_shard()[:1_600],
    make_hostile_shard() + b"?" * 512,
    b"no tar file" * 200,
  ],
  ids=["in a member", "a changed header", "between members", "in a header", "longer", "text"],
)
def test_damaged_shards_are_refused(content, tmp_path):
  (tmp_path / "a.tar").write_bytes(content)
  with refuses("a.tar: found a truncated or damaged shard"):
    read_records(f"webdataset:{tmp_path}/a.tar")


@pytest.mark.parametrize(
  "files, name",
  [
    ([("1.cls", b"one")], "1.cls: found b'one', expected a whole number"),
    ([("1.txt", b"a"), ("1.txt", b"b")], "found a second part 'txt'"),
    ([("1.json", b"[" * 100_000)], "1.json: found invalid JSON"),
  ],
)
def test_invalid_samples_are_refused(files, name, tmp_path):
  with refuses(name):
    read_records(f"webdataset:{write_tar(tmp_path / 'a.tar', files)}")


def test_shard_from_a_shell_command_is_refused():
  with refuses("no command is executed"):
    read_records("webdataset:pipe:curl http://example.com/a.tar")


def test_samples_are_skipped_if_a_needed_member_is_too_long(tmp_path, monkeypatch):
  monkeypatch.setattr(webdataset, "LONGEST", 3)
  path = write_tar(tmp_path / "long.tar", [("1.txt", b"long"), ("2.txt", b"ok")])
  skipped, sample = read_records(f"webdataset:{path}")
  assert isinstance(skipped, Skip)
  assert sample == {"txt": "ok"}
  path = write_tar(tmp_path / "beside.tar", [("1.txt", b"ok"), ("1.mp4", b"long")])
  assert read_records(f"webdataset:{path}", fields=("txt",)) == [{"txt": "ok"}]


def test_prepare_data_writes_the_same_documents_from_shards_and_arrow_files(tmp_path):
  write_arrow_stream(tmp_path / "1.arrow", ROWS)
  write_tar(
    tmp_path / "1.tar", [(f"{n:03d}.txt", row["text"].encode()) for n, row in enumerate(ROWS)]
  )
  stores = []
  for form, file, field in (("arrow", "1.arrow", "text"), ("webdataset", "1.tar", "txt")):
    flags = [f"--text_field={field}", "--validation_fraction=0.2"]
    assert prepare(f"{form}:{tmp_path / file}", tmp_path / form, *flags) == 0
    stores.append(TokenStore.open(tmp_path / form / "train"))
  assert decode_documents(stores[0]) == decode_documents(stores[1])


def test_directory_in_the_hubs_form_is_read_with_its_splits(tmp_path, monkeypatch):
  pytest.importorskip("datasets")
  monkeypatch.setenv("HF_HUB_OFFLINE", "1")
  folder = tmp_path / "reviews"
  json_lines.write(folder / "train.jsonl", ROWS)
  json_lines.write(folder / "test.jsonl", ROWS[:1])
  cache = str(tmp_path / "cache")
  source = open_source(f"hf:{folder}", data_dir=cache)
  assert set(source.splits) == {"train", "test"}
  assert source.name == "reviews"
  assert [record for _, record in source.records("train")] == ROWS
  parts = source.parts("train", 400)
  assert len(parts) > 1
  assert [record for part in parts for _, record in source.records("train", part)] == ROWS
  assert str(tmp_path) not in json.dumps([source.facts("text"), source.split_facts("train")])
  assert open_source(f"hf:{folder}@test", data_dir=cache).splits == ("test",)
  with refuses("found no split 'tests'"):
    read_records(f"hf:{folder}@tests", data_dir=cache)
  with refuses("found no field 'txt'"):
    read_records(f"hf:{folder}", fields=("txt",), data_dir=cache)
  with refuses("cannot be loaded"):
    read_records("hf:nobody/no_such_data_set", data_dir=cache)
  with refuses("expected hf:NAME"):
    read_records("hf:a/b/c/d")


def test_missing_package_datasets_is_named_with_its_extra(monkeypatch):
  monkeypatch.setitem(sys.modules, "datasets", None)
  with refuses("source hf:owner/name: needs the package datasets; pip install 't5x-like[hf]'"):
    read_records("hf:owner/name")

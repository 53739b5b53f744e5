"""The command tools.prepare_data writes stores that do not depend on workers or interruptions."""

import csv
import re
import subprocess
import sys

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

import json_lines
import published
from preparations import decode_documents, fail_before_publishing, prepare, read_files
from refusals import refuses
from t5x_like.corpora import building, progress_bar, progress_files
from t5x_like.corpora.documents import Documents
from t5x_like.corpora.held_out import SplitPart
from t5x_like.corpora.job import Job
from t5x_like.corpora.tokens import TokenStoreKind
from t5x_like.files.paths import as_path
from t5x_like.store.tokens import TokenStore

pytestmark = pytest.mark.runs

SHARDS = "--shard_tokens=400000"


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
  """Return (the source of 2,000 documents in two files, the documents in order); 100 repeat."""
  folder = tmp_path_factory.mktemp("text")
  generator = np.random.default_rng(0)
  documents = []
  for length in generator.integers(1, 1_500, 1_900):
    letters = "".join(map(chr, generator.integers(97, 123, length)))
    documents.append(f"{letters} \u00e9\u00df\u4e2d")
  documents += documents[:100]
  parts = documents[0::2], documents[1::2]
  for number, part in enumerate(parts):
    json_lines.write(folder / f"part{number}.jsonl", [{"text": text} for text in part])
  return f"jsonl:{folder}/*.jsonl", parts[0] + parts[1]


@pytest.fixture(scope="module")
def stores(texts, tmp_path_factory):
  """Return the directory of the stores of both splits of `texts`."""
  output = tmp_path_factory.mktemp("stores")
  assert prepare(texts[0], output, SHARDS) == 0
  return output


@pytest.mark.parametrize("flags, is_special", [([], True), (["--split_special_tokens"], False)])
def test_special_pieces_in_a_text_can_be_encoded_as_text(flags, is_special, tmp_path):
  tokenizer = published.write(tmp_path / "gpt2", "gpt2")
  text = "the quick<|endoftext|>fox"
  json_lines.write(tmp_path / "text.jsonl", [{"text": text}])
  source = f"jsonl:{tmp_path}/text.jsonl"
  flags = [*flags, f"--vocabulary={tokenizer}", "--validation_fraction=0"]
  assert prepare(source, tmp_path / "out", *flags) == 0
  store = TokenStore.open(tmp_path / "out" / "train")
  (ids,) = store.windows([0], store.num_tokens)
  assert (store.vocabulary.eos_id in ids) == is_special
  assert is_special or store.vocabulary.decode(ids) == text
  # The second preparation recognises the store.
  assert prepare(source, tmp_path / "out", *flags) == 0


def test_every_document_is_in_one_split(texts, stores):
  train = decode_documents(TokenStore.open(stores / "train"))
  validation = decode_documents(TokenStore.open(stores / "validation"))
  assert sorted(train + validation) == sorted(texts[1])
  assert not set(train) & set(validation)
  assert 5 <= len(validation) <= 50
  assert train == [text for text in texts[1] if text in set(train)]
  assert TokenStore.open(stores / "train").manifest.num_shards > 1


def test_several_workers_write_the_same_files(texts, stores, tmp_path):
  command = [sys.executable, "-m", "tools.prepare_data", f"--source={texts[0]}", SHARDS]
  command += ["--vocabulary=bytes", f"--output={tmp_path}", "--workers=3"]
  process = subprocess.run(command, capture_output=True, text=True, check=True)
  assert "fingerprint" in process.stdout
  assert process.stderr == ""
  assert len(read_files(stores)) >= 12
  assert read_files(tmp_path) == read_files(stores)


def test_repeated_preparation_keeps_the_store_and_other_inputs_are_refused(texts, stores, capsys):
  before = {file: file.stat().st_mtime_ns for file in stores.rglob("*")}
  assert prepare(texts[0], stores, SHARDS, workers=2) == 0
  assert capsys.readouterr().out.count("exists already") == 2
  for flag, key in (
    ("--append_eos", "append_eos"),
    ("--name=other", "name"),
    ("--shard_tokens=7", "shard_tokens"),
    ("--validation_fraction=0.1", "part"),
  ):
    assert prepare(texts[0], stores, SHARDS, flag) == 2
    assert f"was made with {key}" in capsys.readouterr().err
  assert before == {file: file.stat().st_mtime_ns for file in stores.rglob("*")}


def test_changed_source_is_refused(tmp_path, capsys):
  def prepare_lines(lines):
    (tmp_path / "a.txt").write_text(lines)
    return prepare(f"lines:{tmp_path}/a.txt", tmp_path / "out", "--split=train")

  assert prepare_lines("one\n") == 0
  assert prepare_lines("two\n") == 0
  assert "1 of the source's files were written to since" in capsys.readouterr().out
  assert prepare_lines("one\ntwo\n") == 2
  assert "was made with documents" in capsys.readouterr().err


def test_unfinished_part_of_a_changed_file_is_prepared_again(tmp_path, capsys):
  source = f"lines:{tmp_path}/a.txt"
  (tmp_path / "a.txt").write_text("one\n")
  with fail_before_publishing():
    assert prepare(source, tmp_path / "out", "--split=train") == 2
  (tmp_path / "a.txt").write_text("two\n")
  assert prepare(source, tmp_path / "out", "--split=train") == 0
  assert "files have changed since; building the part again" in capsys.readouterr().out
  assert decode_documents(TokenStore.open(tmp_path / "out" / "train")) == ["two"]


@pytest.mark.parametrize("clean, num_rewritten_shards", [("", 4), ("exact", 8)])
def test_only_parts_of_changed_files_are_prepared_again(
  clean, num_rewritten_shards, tmp_path, monkeypatch
):
  """When duplicates are removed, each part depends on all files."""
  source = f"lines:{tmp_path}/*.txt"
  flags = ["--split=train", "--part_bytes=1", "--shard_tokens=5", f"--clean={clean}"]
  for number in range(5):
    (tmp_path / f"{number}.txt").write_text(f"{number} and more\n{number} and less\n")
  with fail_before_publishing():
    assert prepare(source, tmp_path / "out", *flags) == 2
  (tmp_path / "1.txt").write_text("1 only\n")  # one shard fewer
  (tmp_path / "3.txt").write_text("3 and more\n3 and less\n3 and last\n")
  (tmp_path / "4.txt").unlink()
  rewritten_shards = []
  write = building.writer.write_shard

  def record_and_write(root, name, *arrays):
    rewritten_shards.append(name)
    return write(root, name, *arrays)

  with monkeypatch.context() as patched:
    patched.setattr(building.writer, "write_shard", record_and_write)
    assert prepare(source, tmp_path / "out", *flags) == 0
  assert len(rewritten_shards) == num_rewritten_shards
  assert prepare(source, tmp_path / "whole", *flags) == 0
  assert read_files(tmp_path / "out") == read_files(tmp_path / "whole")


def test_flags_append_eos_split_and_name(texts, tmp_path):
  flags = ["--append_eos", "--split=everything=train", "--name=letters"]
  assert prepare(texts[0], tmp_path, *flags) == 0
  assert [child.name for child in tmp_path.iterdir()] == ["everything"]
  store = TokenStore.open(tmp_path / "everything")
  assert store.append_eos
  assert store.name == "letters"
  assert store.num_documents == len(texts[1])
  assert (store.windows(store.document_ends() - 1, 1) == 1).all()


@pytest.mark.parametrize(
  "flags, names",
  [
    (["--workers=0"], ["--workers=0", "at least 1"]),
    (["--validation_fraction=1"], ["--validation_fraction=1.0"]),
    (["--validation_fraction=0.0000000001"], ["raise the fraction"]),
    (["--split=train=training"], ["no split 'training'"]),
    (["--split=../x=train"], ["--split=../x=train"]),
    (["--split=a=train", "--split=a=train"], ["--split=a=train"]),
    (["--split=train", "--split=validation=train"], ["split 'train' in 'train' already"]),
    (["--source=nothing:x"], ["nothing"]),
    (["--vocabulary=/nowhere"], ["/nowhere"]),
    (["--output=nosuch://place"], ["--output=nosuch://place/", "nosuch"]),
    (["--clean=c5"], ["found 'c5'", "some of c4"]),
    (["--against=x.jsonl"], ["--clean with decontaminate"]),
    (["--clean=exact", "--bad_words=words"], ["--clean with c4", "--clean=exact"]),
    (["--clean=c4", "--language=de"], ["--language=de", "--language_id"]),
    (["--clean=decontaminate"], ["found no --against"]),
  ],
)
def test_bad_flags_are_refused_in_one_line(texts, tmp_path, monkeypatch, flags, names, capsys):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "words").write_text("bad")
  assert prepare(texts[0], tmp_path, *flags) == 2
  error = capsys.readouterr().err
  assert error.count("\n") == 1
  for name in names:
    assert name in error


@pytest.fixture
def pages(tmp_path):
  """Return (the source of three files, their pages): good pages, copies, near copies and junk."""
  pages = []
  for i in range(40):
    words = [f"w{(i * 37 + j * j) % 997}" for j in range(60)]
    sentences = [" ".join(words[j : j + 12]) for j in range(0, 60, 12)]
    pages.append(". ".join(sentences) + ".")
  pages += [
    pages[3].upper(),
    pages[4].replace("w", "w", 1) + " And this one ends here.",
    "Short page.",
    "Click here\nPlease enable javascript to see this page.\n" + pages[7].replace("w1", "v1"),
  ]
  for part in range(3):
    json_lines.write(tmp_path / "pages" / f"{part}.jsonl", [{"text": t} for t in pages[part::3]])
  return f"jsonl:{tmp_path}/pages/*.jsonl", pages


CLEANED = ("--split=train", "--part_bytes=1", "--clean=c4,exact,near,spans")


def test_cleaning_is_counted_and_does_not_depend_on_workers(pages, tmp_path, capsys):
  for workers in (1, 2):
    assert prepare(pages[0], tmp_path / str(workers), *CLEANED, workers=workers) == 0
  assert "exact duplicate" in capsys.readouterr().out
  assert read_files(tmp_path / "1") == read_files(tmp_path / "2")
  store = TokenStore.open(tmp_path / "1" / "train")
  skipped = store.manifest.skipped
  assert skipped["exact duplicate"] == 1
  assert skipped["under 3 sentences"] == 1
  removed = store.manifest.source["counts"]["removed_within_documents"]
  assert removed["line: no terminal punctuation"] == 1
  assert store.num_documents + sum(skipped.values()) == len(pages[1])
  assert prepare(pages[0], tmp_path / "1", *CLEANED, "--clean=exact") == 2
  assert "was made with cleaning" in capsys.readouterr().err


def test_damaged_files_of_an_interrupted_run_are_written_again(pages, tmp_path):
  assert prepare(pages[0], tmp_path / "whole", *CLEANED) == 0
  with fail_before_publishing():
    assert prepare(pages[0], tmp_path / "again", *CLEANED) == 2
  progress = tmp_path / "again" / ".train.progress"
  (progress / "signatures" / "000000").write_bytes(b"")
  (progress / "near" / "000001").unlink()
  record = progress / "parts" / "000002"
  record.write_bytes(record.read_bytes().replace(b'"near duplicate": 1', b'"near duplicate": 7'))
  assert progress_files.load(record) is None
  assert prepare(pages[0], tmp_path / "again", *CLEANED) == 0
  assert read_files(tmp_path / "whole") == read_files(tmp_path / "again")
  assert not progress.exists()


def test_store_that_another_process_still_writes_is_refused(texts, tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(progress_files, "_WAIT_SECONDS", 0)
  progress = tmp_path / ".train.progress"
  progress.mkdir()
  with progress_files.mark_writing(as_path(progress)):
    assert prepare(texts[0], tmp_path, "--split=train") == 2
  error = capsys.readouterr().err
  assert f"{progress}: a process of an interrupted run still writes this store" in error
  assert prepare(texts[0], tmp_path, "--split=train") == 0


def test_progress_is_printed_as_lines_without_a_terminal(texts, tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(progress_bar, "_LINE_SECONDS", 0)
  assert prepare(texts[0], tmp_path, "--split=train", "--part_bytes=1", "--clean=exact") == 0
  lines = capsys.readouterr().err.splitlines()
  signing = r"train, signatures: 100% of \S+B, 2\.00k documents, \S+/s, about 00:00 left"
  writing = r"train: 100% of 1\.\d+MB, 1\.\d+M tokens, \S+/s, about 00:00 left"
  assert any(re.fullmatch(signing, line) for line in lines)
  assert re.fullmatch(writing, lines[-1])


BLANK_TEXTS = ["", "   ", "\t\t", "\u3000", "\xa0 \u2003", "\x85\u2028"]


@pytest.mark.parametrize("form", ["lines", "jsonl", "csv", "parquet"])
def test_texts_of_white_space_alone_are_skipped_and_counted(form, tmp_path):
  texts = [*BLANK_TEXTS, "one text", *BLANK_TEXTS]
  path = tmp_path / f"a.{form}"
  if form == "lines":
    path.write_text("\n".join(texts))
  elif form == "jsonl":
    json_lines.write(path, [{"text": text} for text in texts])
  elif form == "csv":
    with path.open("w", newline="") as file:
      csv.writer(file).writerows([["text", "n"], *([text, 1] for text in texts)])
  else:
    parquet.write_table(pyarrow.table({"text": texts}), path)
  flags = ("--split=train", "--validation_fraction=0")
  assert prepare(f"{form}:{path}", tmp_path / "out", *flags) == 0
  store = TokenStore.open(tmp_path / "out" / "train")
  assert decode_documents(store) == ["one text"]
  assert store.manifest.skipped == {"empty": 2 * len(BLANK_TEXTS)}


def test_manifest_contains_skipped_counts_and_document_lengths(tmp_path):
  (tmp_path / "a.txt").write_text("one\n\nt\0wo\nthree three\n")
  assert prepare(f"lines:{tmp_path}/a.txt", tmp_path / "out", "--split=train") == 0
  manifest = TokenStore.open(tmp_path / "out" / "train").manifest
  assert manifest.skipped == {"NUL character": 1, "empty": 1}
  assert manifest.source["counts"] == {
    "removed_within_documents": {},
    "document_lengths": {"2-3": 1, "8-15": 1},
  }


@pytest.mark.parametrize(
  "flags, name",
  [
    ([], "bad.jsonl:2: found invalid JSON"),
    (["--clean=exact"], "bad.jsonl:2: found invalid"),
    (["--clen=c4"], "--clen: found a flag of neither"),
    (["--runner=NoRunner"], "NoRunner"),
    (["--runner=DaskRunner"], "pip install 'apache-beam[dask]'"),
  ],
)
def test_errors_of_beam_are_one_line(flags, name, tmp_path, capsys, caplog, monkeypatch):
  pytest.importorskip("apache_beam")
  monkeypatch.setitem(sys.modules, "dask", None)  # as if it were not installed
  (tmp_path / "bad.jsonl").write_text('{"text": "one"}\n{"text": \n')
  beam = ["--split=train", "--engine=beam", "--runner=FnApiRunner"]
  assert prepare(f"jsonl:{tmp_path}/bad.jsonl", tmp_path / "out", *beam, *flags) == 2
  assert name in capsys.readouterr().err.strip().splitlines()[-1]
  assert not any("Traceback" in record.getMessage() for record in caplog.records)


def test_part_may_be_empty_but_not_a_split(tmp_path, capsys):
  (tmp_path / "a.txt").write_text("\n \n")
  (tmp_path / "b.txt").write_text("some words of text\n")
  flags = ["--part_bytes=1", "--clean=exact,near,spans"]
  assert prepare(f"lines:{tmp_path}/*.txt", tmp_path / "out", *flags, "--split=train") == 0
  assert TokenStore.open(tmp_path / "out" / "train").num_documents == 1
  assert prepare(f"lines:{tmp_path}/a.txt", tmp_path / "out", *flags, "--split=none=train") == 2
  problem = "split 'none': found 0 documents, 2 records skipped (empty)"
  assert problem in capsys.readouterr().err


def test_source_that_changes_during_preparation_is_refused(tmp_path):
  (tmp_path / "a.txt").write_text("one\n")
  documents = Documents(f"lines:{tmp_path}/a.txt")
  tokens = TokenStoreKind.of(documents, SplitPart("train"), "bytes", append_eos=False)
  job = Job(tokens, f"{tmp_path}/train", "a", "train", {})
  (tmp_path / "a.txt").write_text("one more\n")
  with refuses("found other files than when the preparation began"):
    building.make_part(job, 0)


@pytest.mark.parametrize(
  "path, work, progress",
  [
    ("a/b/train", "a/b/.train.incomplete", "a/b/.train.progress"),
    ("train", ".train.incomplete", ".train.progress"),
    ("gs://b/train", "gs://b/train", "gs://b/.train.progress"),
  ],
)
def test_job_works_in_hidden_folders_next_to_its_store(path, work, progress):
  job = Job(None, path, "name", "train", {})
  assert str(job.work) == work
  assert str(job.progress) == progress

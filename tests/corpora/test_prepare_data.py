"""tools.prepare_data from text to stores, as a command."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

import published
from t5x_like.corpora import building, progress_bar, progress_files
from t5x_like.corpora.documents import Documents
from t5x_like.corpora.held_out import SplitPart
from t5x_like.corpora.job import Job
from t5x_like.corpora.tokens import TokenStoreKind
from t5x_like.errors import UserError
from t5x_like.files.paths import as_path
from t5x_like.store.tokens import TokenStore
from tools import prepare_data

pytestmark = pytest.mark.runs


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
  """2,000 documents in two files, some empty, some twice."""
  folder = tmp_path_factory.mktemp("text")
  generator = np.random.default_rng(0)
  texts = [
    "".join(map(chr, generator.integers(97, 123, n))) + " \u00e9\u00df\u4e2d"
    for n in generator.integers(1, 1_500, 1_900)
  ]
  texts += texts[:100]
  for part in range(2):
    with open(folder / f"part{part}.jsonl", "w") as file:
      for text in texts[part::2]:
        file.write(json.dumps({"text": text}) + "\n")
  return folder, texts[0::2] + texts[1::2]


def prepare(corpus, output, *flags):
  return prepare_data.main(
    [
      "--source",
      f"jsonl:{corpus[0]}/*.jsonl",
      "--vocabulary=bytes",
      f"--output={output}",
      "--shard_tokens=400000",
      *flags,
    ]
  )


def texts_of(store):
  stream = store.windows([0], store.num_tokens)[0]
  return [store.vocabulary.decode(part) for part in np.split(stream, store.document_ends()[:-1])]


def test_special_pieces_in_a_text_can_stay_text(tmp_path):
  tokenizer = published.write(tmp_path / "gpt2", "gpt2")
  text = "the quick<|endoftext|>fox"
  (tmp_path / "text.jsonl").write_text(json.dumps({"text": text}) + "\n")
  flags = [
    f"--source=jsonl:{tmp_path}/text.jsonl",
    f"--vocabulary={tokenizer}",
    "--validation_fraction=0",
  ]
  for output, split_flags, special in (
    ("usual", [], True),
    ("split", ["--split_special_tokens"], False),
  ):
    assert prepare_data.main([*flags, *split_flags, f"--output={tmp_path}/{output}"]) == 0
    store = TokenStore.open(f"{tmp_path}/{output}/train")
    (ids,) = store.windows([0], store.num_tokens)
    assert (store.vocabulary.eos_id in ids) is special
    assert special or store.vocabulary.decode(ids) == text
    # made from the same
    assert prepare_data.main([*flags, *split_flags, f"--output={tmp_path}/{output}"]) == 0


@pytest.fixture(scope="module")
def prepared(corpus, tmp_path_factory):
  output = tmp_path_factory.mktemp("prepared")
  assert prepare(corpus, output, "--workers=1") == 0
  return output


def test_every_document_is_in_one_split(corpus, prepared):
  parts = {split: texts_of(TokenStore.open(prepared / split)) for split in ("train", "validation")}
  assert sorted(parts["train"] + parts["validation"]) == sorted(corpus[1])
  assert not set(parts["train"]) & set(parts["validation"])
  assert 5 <= len(parts["validation"]) <= 50
  assert parts["train"] == [text for text in corpus[1] if text in set(parts["train"])]
  assert TokenStore.open(prepared / "train").manifest.num_shards > 1


def test_workers_make_the_same_bytes(corpus, prepared, tmp_path):
  command = [
    sys.executable,
    "-m",
    "tools.prepare_data",
    "--source",
    f"jsonl:{corpus[0]}/*.jsonl",
    "--vocabulary=bytes",
    f"--output={tmp_path}",
    "--shard_tokens=400000",
    "--workers=3",
  ]
  done = subprocess.run(command, capture_output=True, text=True, check=True)
  assert "fingerprint" in done.stdout
  assert done.stderr == ""
  for split in ("train", "validation"):
    files = [file for file in (prepared / split).rglob("*") if file.is_file()]
    assert len(files) >= 6
    for file in files:
      assert (
        file.read_bytes() == (tmp_path / split / file.relative_to(prepared / split)).read_bytes()
      ), file


def test_again_is_kept_and_other_inputs_are_refused(corpus, prepared, capsys):
  before = {file: file.stat().st_mtime_ns for file in prepared.rglob("*")}
  assert prepare(corpus, prepared, "--workers=2") == 0
  assert capsys.readouterr().out.count("exists already") == 2
  for flag, key in (
    ("--append_eos", "append_eos"),
    ("--name=other", "name"),
    ("--shard_tokens=7", "shard_tokens"),
    ("--validation_fraction=0.1", "part"),
  ):
    assert prepare(corpus, prepared, flag) == 2
    assert f"was made with {key}" in capsys.readouterr().err
  assert before == {file: file.stat().st_mtime_ns for file in prepared.rglob("*")}


def test_changed_source_is_noticed(tmp_path, capsys):
  file = tmp_path / "a.jsonl"
  flags = [
    "--source",
    f"jsonl:{file}",
    "--vocabulary=bytes",
    f"--output={tmp_path / 'out'}",
    "--split=train",
  ]
  file.write_text('{"text": "one"}\n')
  assert prepare_data.main(flags) == 0
  assert prepare_data.main(flags) == 0
  assert "warning" not in capsys.readouterr().out
  file.write_text('{"text": "two"}\n')
  assert prepare_data.main(flags) == 0
  assert "1 of the source's files were written to since" in capsys.readouterr().out
  file.write_text('{"text": "one"}\n{"text": "two"}\n')
  assert prepare_data.main(flags) == 2
  assert "was made with documents" in capsys.readouterr().err


def test_parts_of_a_file_changed_since_are_made_again(tmp_path, monkeypatch, capsys):
  file = tmp_path / "a.jsonl"
  flags = ["--vocabulary=bytes", f"--output={tmp_path / 'out'}", "--split=train"]
  flags.append(f"--source=jsonl:{file}")
  file.write_text('{"text": "one"}\n')
  with monkeypatch.context() as patched:
    patched.setattr(
      building, "publish", lambda *_: (_ for _ in ()).throw(UserError("stopped here"))
    )
    assert prepare_data.main(flags) == 2
  file.write_text('{"text": "two"}\n')
  assert prepare_data.main(flags) == 0
  assert "000000: of files that changed since; made anew" in capsys.readouterr().out
  assert texts_of(TokenStore.open(tmp_path / "out" / "train")) == ["two"]


@pytest.mark.parametrize("clean, remade_parts", [("", 4), ("exact", 8)])
def test_only_the_parts_of_changed_files_are_made_again(clean, remade_parts, tmp_path, monkeypatch):
  """With duplicates to remove, a part depends on all files."""
  flags = [
    "--vocabulary=bytes",
    "--split=train",
    "--workers=1",
    "--part_bytes=1",
    "--shard_tokens=5",
  ]
  flags += [f"--source=lines:{tmp_path}/*.txt", f"--clean={clean}"]
  for number in range(5):
    (tmp_path / f"{number}.txt").write_text(f"{number} and more\n{number} and less\n")
  with monkeypatch.context() as patched:
    patched.setattr(
      building, "publish", lambda *_: (_ for _ in ()).throw(UserError("stopped here"))
    )
    assert prepare_data.main([*flags, f"--output={tmp_path}/out"]) == 2
  (tmp_path / "1.txt").write_text("1 only\n")  # one shard fewer
  (tmp_path / "3.txt").write_text("3 and more\n3 and less\n3 and last\n")
  (tmp_path / "4.txt").unlink()
  with monkeypatch.context() as patched:
    names = []
    write = building.writer.write_shard
    patched.setattr(
      building.writer, "write_shard", lambda *given: names.append(given[1]) or write(*given)
    )
    assert prepare_data.main([*flags, f"--output={tmp_path}/out"]) == 0
  assert len(names) == remade_parts
  assert prepare_data.main([*flags, f"--output={tmp_path}/whole"]) == 0
  assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def test_append_eos_and_chosen_splits(corpus, tmp_path):
  assert (
    prepare(
      corpus, tmp_path, "--append_eos", "--split=everything=train", "--name=letters", "--workers=1"
    )
    == 0
  )
  store = TokenStore.open(tmp_path / "everything")
  assert [child.name for child in tmp_path.iterdir()] == ["everything"]
  assert store.append_eos
  assert store.name == "letters"
  assert store.num_documents == len(corpus[1])
  ends = store.document_ends()
  assert (store.windows(ends - 1, 1) == 1).all()


@pytest.mark.parametrize(
  "flags, message",
  [
    (["--workers=0"], "--workers=0: expected at least 1"),
    (["--validation_fraction=1"], "--validation_fraction=1.0"),
    (["--split=train=training"], "no split 'training'"),
    (["--split=../x=train"], "--split=../x=train"),
    (["--split=a=train", "--split=a=train"], "--split=a=train"),
    (["--split=train", "--split=validation=train"], "found the split 'train' in 'train' already"),
    (["--source=nothing:x"], "nothing"),
    (["--vocabulary=/nowhere"], "/nowhere"),
    (["--validation_fraction=0.0000000001", "--workers=1"], "raise the fraction"),
  ],
)
def test_bad_flags_are_one_line(corpus, tmp_path, flags, message, capsys):
  assert prepare(corpus, tmp_path, *flags) == 2
  error = capsys.readouterr().err
  assert message in error
  assert error.count("\n") == 1


def files_of(root):
  return {
    str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()
  }


def test_files_that_an_interrupted_run_damaged_are_written_again(tmp_path, monkeypatch):
  web_pages(tmp_path)
  flags = [
    f"--source=jsonl:{tmp_path}/*.jsonl",
    "--vocabulary=bytes",
    "--split=train",
    "--part_bytes=1",
    "--workers=1",
    "--clean=c4,exact,near,spans",
  ]
  assert prepare_data.main([*flags, f"--output={tmp_path}/whole"]) == 0
  with monkeypatch.context() as patched:
    patched.setattr(
      building, "publish", lambda *_: (_ for _ in ()).throw(UserError("stopped here"))
    )
    assert prepare_data.main([*flags, f"--output={tmp_path}/again"]) == 2
  progress = tmp_path / "again" / ".train.progress"
  (progress / "signatures" / "000000").write_bytes(b"")
  (progress / "near" / "000001").unlink()
  record = progress / "parts" / "000002"
  record.write_bytes(record.read_bytes().replace(b'"near duplicate": 1', b'"near duplicate": 7'))
  assert progress_files.load(record) is None
  assert prepare_data.main([*flags, f"--output={tmp_path}/again"]) == 0
  assert files_of(tmp_path / "whole") == files_of(tmp_path / "again")
  assert not progress.exists()


def test_a_store_that_something_still_writes_is_left_alone(corpus, tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(progress_files, "_PATIENCE_SECONDS", 0)
  progress = tmp_path / ".train.progress"
  progress.mkdir()
  with progress_files.mark_writing(as_path(progress)):
    assert prepare(corpus, tmp_path, "--workers=1", "--split=train") == 2
  assert (
    f"{progress}: a process of an interrupted run still writes this store"
    in capsys.readouterr().err
  )
  assert prepare(corpus, tmp_path, "--workers=1", "--split=train") == 0
  assert prepare(corpus, "nosuch://place", "--workers=1") == 2
  assert (
    "--output=nosuch://place/: cannot be opened (Protocol not known: nosuch)"
    in capsys.readouterr().err
  )


def test_progress_is_lines_where_there_is_no_terminal(corpus, tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(progress_bar, "_LINE_SECONDS", 0)
  assert (
    prepare(corpus, tmp_path, "--workers=1", "--split=train", "--part_bytes=1", "--clean=exact")
    == 0
  )
  lines = capsys.readouterr().err.splitlines()
  size = sum(file.stat().st_size for file in corpus[0].iterdir())
  assert any(
    re.fullmatch(
      r"train, signatures: 100% of \S+B, 2\.00k documents, \S+/s, about 00:00 left", line
    )
    for line in lines
  )
  assert re.fullmatch(
    rf"train: 100% of {size / 1e6:.2f}MB, 1\.\d+M tokens, \S+/s, about 00:00 "
    r"left",
    lines[-1],
  )


def test_the_manifest_holds_skipped_counts_and_document_lengths(tmp_path):
  (tmp_path / "a.txt").write_text("one\n\nt\0wo\nthree three\n")
  flags = [
    f"--source=lines:{tmp_path}/a.txt",
    "--vocabulary=bytes",
    f"--output={tmp_path}/out",
    "--split=train",
  ]
  assert prepare_data.main([*flags, "--workers=1"]) == 0
  manifest = TokenStore.open(tmp_path / "out" / "train").manifest
  assert manifest.skipped == {"NUL character": 1, "empty": 1}
  assert manifest.source["counts"] == {
    "removed_within_documents": {},
    "document_lengths": {"2-3": 1, "8-15": 1},
  }


def web_pages(folder):
  """Pages over three parts: good ones, copies, near copies, junk."""
  pages = []
  for i in range(40):
    words = [f"w{(i * 37 + j * j) % 997}" for j in range(60)]
    pages.append(". ".join(" ".join(words[j : j + 12]) for j in range(0, 60, 12)) + ".")
  pages += [
    pages[3].upper(),
    pages[4].replace("w", "w", 1) + " And this one ends here.",
    "Short page.",
    "Click here\nPlease enable javascript to see this page.\n" + pages[7].replace("w1", "v1"),
  ]
  for part in range(3):
    (folder / f"{part}.jsonl").write_text(
      "".join(json.dumps({"text": t}) + "\n" for t in pages[part::3])
    )
  return pages


def test_cleaning_is_counted_and_the_same_with_any_workers(tmp_path, capsys):
  pages = web_pages(tmp_path)
  flags = [
    f"--source=jsonl:{tmp_path}/*.jsonl",
    "--vocabulary=bytes",
    "--split=train",
    "--part_bytes=1",
    "--clean=c4,exact,near,spans",
  ]
  for workers in (1, 2):
    assert (
      prepare_data.main([*flags, f"--output={tmp_path}/{workers}", f"--workers={workers}"]) == 0
    )
  assert "exact duplicate" in capsys.readouterr().out
  assert files_of(tmp_path / "1") == files_of(tmp_path / "2")
  store = TokenStore.open(tmp_path / "1" / "train")
  counts = store.manifest.source["counts"]
  skipped = store.manifest.skipped
  assert skipped["exact duplicate"] == 1
  assert skipped["under 3 sentences"] == 1
  assert counts["removed_within_documents"]["line: no terminal punctuation"] == 1
  assert store.num_documents + sum(skipped.values()) == len(pages)
  assert prepare_data.main([*flags[:4], f"--output={tmp_path}/1", "--clean=exact"]) == 2
  assert "was made with cleaning" in capsys.readouterr().err


def test_errors_of_beam_are_one_line(tmp_path, capsys, caplog, monkeypatch):
  pytest.importorskip("apache_beam")
  monkeypatch.setitem(sys.modules, "dask", None)  # as if it were not installed
  bad = tmp_path / "bad.jsonl"
  bad.write_text('{"text": "one"}\n{"text": \n')
  flags = [
    f"--source=jsonl:{bad}",
    "--vocabulary=bytes",
    f"--output={tmp_path}/x",
    "--split=train",
    "--engine=beam",
  ]
  for beam_flags, message in (
    ([], f"error: {bad}:2: found invalid JSON"),
    (["--clean=exact"], f"error: {bad}:2: found invalid"),
    (["--clen=c4"], "--clen: found a flag of neither"),
    (["--runner=NoRunner"], "NoRunner"),
    (["--runner=DaskRunner"], "pip install 'apache-beam[dask]'"),
  ):
    caplog.clear()
    assert prepare_data.main([*flags, "--runner=FnApiRunner", *beam_flags]) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert message in error[-1]
    assert not any("Traceback" in record.getMessage() for record in caplog.records)
  bad.write_text('{"text": "one"}\n{"text": "two"}\n')
  assert prepare_data.main([*flags, "--runner=FnApiRunner"]) == 0


def test_parts_and_splits_without_documents(tmp_path, capsys):
  """A part may be empty; a split may not, and says what became of its documents."""
  (tmp_path / "a.txt").write_text("\n \n")
  (tmp_path / "b.txt").write_text("some words of text\n")
  flags = [
    "--vocabulary=bytes",
    f"--output={tmp_path}/out",
    "--part_bytes=1",
    "--workers=1",
    "--clean=exact,near,spans",
  ]
  assert prepare_data.main([*flags, f"--source=lines:{tmp_path}/*.txt", "--split=train"]) == 0
  assert TokenStore.open(tmp_path / "out" / "train").num_documents == 1
  assert prepare_data.main([*flags, f"--source=lines:{tmp_path}/a.txt", "--split=none=train"]) == 2
  assert (
    "split 'none': found 0 documents, 2 records skipped (empty), expected at least one"
    in capsys.readouterr().err
  )
  assert prepare_data.main([*flags, f"--source=lines:{tmp_path}/b.txt", "--clean=c5"]) == 2
  assert "found 'c5', expected some of c4" in capsys.readouterr().err


def test_a_source_that_changes_meanwhile_is_refused(tmp_path):
  (tmp_path / "a.txt").write_text("one\n")
  documents = Documents(f"lines:{tmp_path}/a.txt")
  tokens = TokenStoreKind.of(documents, SplitPart("train"), "bytes", append_eos=False)
  job = Job(tokens, f"{tmp_path}/train", "a", "train", {})
  (tmp_path / "a.txt").write_text("one more\n")
  with pytest.raises(UserError, match="found other files than when the preparation began"):
    building.make_part(job, 0)


def test_a_job_works_beside_its_store():
  for path, work, progress in (
    ("a/b/train", "a/b/.train.incomplete", "a/b/.train.progress"),
    ("train", ".train.incomplete", ".train.progress"),
    ("gs://b/train", "gs://b/train", "gs://b/.train.progress"),
  ):
    job = Job(None, path, "name", "train", {})
    assert str(job.work) == work
    assert str(job.progress) == progress

"""A preparation publishes the records of its writers, without reading the shards again."""

import errno
import fcntl
import os
import pathlib
import subprocess
import sys

import pytest

import json_lines
from preparations import fail_before_publishing, prepare
from t5x_like.corpora import building
from t5x_like.files import local_ranges
from t5x_like.files.paths import as_path
from t5x_like.store.tokens import TokenStore

FLAGS = ["--split=train", "--part_bytes=1", "--shard_tokens=300"]


@pytest.fixture
def source(tmp_path):
  """Write three files of 50 documents; return their source."""
  for part in range(3):
    rows = [{"text": f"document {i} of part {part}"} for i in range(50)]
    json_lines.write(tmp_path / f"{part}.jsonl", rows)
  return f"jsonl:{tmp_path}/*.jsonl"


def refuse_to_read(*_):
  raise AssertionError("a shard was read again")


def test_uninterrupted_preparation_reads_no_shard_again(source, tmp_path, monkeypatch, capsys):
  with monkeypatch.context() as patched:
    patched.setattr(building, "_sha256", refuse_to_read)
    patched.setattr(local_ranges.LocalShardFiles, "sha256", refuse_to_read)
    patched.setattr(local_ranges.LocalShardFiles, "fill", refuse_to_read)
    assert prepare(source, tmp_path / "out", *FLAGS) == 0
  assert "checked file sizes" in capsys.readouterr().out
  store = TokenStore.open(tmp_path / "out" / "train", verify="full")
  assert store.manifest.num_shards > 6
  assert store.num_documents == 150


def test_full_verification_reads_the_shards_again(source, tmp_path, monkeypatch, capsys):
  write = building.writer.write_shard

  def write_with_damage(root, name, *arrays):
    shard = write(root, name, *arrays)
    if name == "000001000002":
      (root / "tokens" / name).write_bytes(bytes((root / "tokens" / name).stat().st_size))
    return shard

  monkeypatch.setattr(building.writer, "write_shard", write_with_damage)
  assert prepare(source, tmp_path / "out", *FLAGS, "--verify=full") == 4
  assert "tokens/000001000002: found SHA-256" in capsys.readouterr().err


def test_preparation_resumed_before_publishing_checks_its_files(source, tmp_path):
  with fail_before_publishing():
    assert prepare(source, tmp_path / "out", *FLAGS) == 2
  damaged = tmp_path / "out" / ".train.incomplete" / "tokens" / "000001000002"
  content = damaged.read_bytes()
  damaged.write_bytes(bytes(len(content)))
  assert prepare(source, tmp_path / "out", *FLAGS) == 0
  assert (tmp_path / "out" / "train" / "tokens" / "000001000002").read_bytes() == content
  TokenStore.open(tmp_path / "out" / "train", verify="full")


@pytest.mark.parametrize("copies, documents", [(2, 200), (1, 150), (0, 100)])
def test_files_that_change_while_they_are_read_are_refused(
  copies, documents, source, tmp_path, monkeypatch, capsys
):
  make_part = building.make_part
  last = tmp_path / "2.jsonl"

  def make_and_change(job, number, *spread):
    make_part(job, number, *spread)
    if number == 2:  # after all parts were read
      content = last.read_text()
      last.unlink()
      if copies:
        last.write_text(content * copies)

  with monkeypatch.context() as patched:
    patched.setattr(building, "make_part", make_and_change)
    assert prepare(source, tmp_path / "out", *FLAGS) == 2
  assert "the source's files changed while they were read" in capsys.readouterr().err
  assert not (tmp_path / "out" / "train").exists()
  assert prepare(source, tmp_path / "out", *FLAGS) == 0
  assert TokenStore.open(tmp_path / "out" / "train").num_documents == documents


def test_size_of_the_manifest_does_not_depend_on_the_number_of_files(tmp_path, capsys):
  (tmp_path / "in").mkdir()
  for i in range(300):
    (tmp_path / "in" / f"{i:04d}.txt").write_text("words\n")
  source = f"lines:{tmp_path}/in/*.txt"
  assert prepare(source, tmp_path / "out", "--split=train") == 0
  assert (tmp_path / "out" / "train" / "manifest.json").stat().st_size < 3_000
  assert prepare(source, tmp_path / "out", "--split=train") == 0
  assert "exists already" in capsys.readouterr().out
  (tmp_path / "in" / "0007.txt").write_text("other words\n")
  assert prepare(source, tmp_path / "out", "--split=train") == 2
  assert "was made with documents" in capsys.readouterr().err


def test_foreign_files_in_the_output_are_refused_and_kept(source, capsys):
  raw = as_path("memory://publishing/corpus/train/raw.jsonl")
  raw.write_text("{}")
  assert prepare(source, "memory://publishing/corpus", *FLAGS) == 2
  error = capsys.readouterr().err
  assert "corpus/train: found 1 files that no preparation has left there, such as raw" in error
  assert raw.read_text() == "{}"
  assert prepare(source, "memory://publishing/store", *FLAGS) == 0


def test_lease_replaces_a_lock_on_file_systems_without_locks(source, tmp_path, monkeypatch):
  def flock(file, how):
    raise OSError(errno.ENOSYS, "Function not implemented")

  monkeypatch.setattr(fcntl, "flock", flock)
  assert prepare(source, tmp_path / "out", *FLAGS) == 0
  assert [path.name for path in (tmp_path / "out").iterdir()] == ["train"]


@pytest.mark.more
def test_script_without_a_main_guard_can_use_several_processes(source, tmp_path):
  flags = [f"--source={source}", "--vocabulary=bytes", f"--output={tmp_path}/out", *FLAGS]
  (tmp_path / "script.py").write_text(
    f"from tools import prepare_data\nassert prepare_data.main({[*flags, '--workers=2']}) == 0\n"
  )
  environment = os.environ | {"PYTHONPATH": str(pathlib.Path(__file__).resolve().parents[2])}
  subprocess.run([sys.executable, tmp_path / "script.py"], env=environment, check=True, timeout=300)
  assert TokenStore.open(tmp_path / "out" / "train").num_documents == 150

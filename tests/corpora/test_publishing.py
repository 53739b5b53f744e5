"""A preparation publishes what its writers recorded, without reading the shards again."""

import errno
import fcntl
import json
import os
import pathlib
import subprocess
import sys

import pytest

from t5x_like.corpora import building
from t5x_like.files import local_ranges
from t5x_like.files.paths import as_path
from t5x_like.store.tokens import TokenStore
from tools import prepare_data


@pytest.fixture
def flags(tmp_path):
  for part in range(3):
    lines = (json.dumps({"text": f"document {i} of part {part}"}) for i in range(50))
    (tmp_path / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
  return [
    f"--source=jsonl:{tmp_path}/*.jsonl",
    "--vocabulary=bytes",
    f"--output={tmp_path}/out",
    "--split=train",
    "--workers=1",
    "--part_bytes=1",
    "--shard_tokens=300",
  ]


def refuse(*_):
  raise AssertionError("read again")


def test_an_uninterrupted_preparation_reads_no_shard_again(flags, tmp_path, monkeypatch, capsys):
  with monkeypatch.context() as patched:
    patched.setattr(building, "_sha256", refuse)
    patched.setattr(local_ranges.LocalShardFiles, "sha256", refuse)
    patched.setattr(local_ranges.LocalShardFiles, "fill", refuse)
    assert prepare_data.main(flags) == 0
  assert "checked file sizes" in capsys.readouterr().out
  store = TokenStore.open(tmp_path / "out" / "train", verify="full")
  assert store.manifest.num_shards > 6
  assert store.num_documents == 150


def test_the_careful_have_it_read_again(flags, monkeypatch, capsys):
  write = building.writer.write_shard

  def bad_disk(root, name, *arrays):
    shard = write(root, name, *arrays)
    if name == "000001000002":
      (root / "tokens" / name).write_bytes(bytes((root / "tokens" / name).stat().st_size))
    return shard

  monkeypatch.setattr(building.writer, "write_shard", bad_disk)
  assert prepare_data.main([*flags, "--verify=full"]) == 4
  assert "tokens/000001000002: found SHA-256" in capsys.readouterr().err


def test_a_run_killed_before_publishing_checks_its_files(flags, tmp_path, monkeypatch):
  with monkeypatch.context() as patched:
    patched.setattr(building, "publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
      prepare_data.main(flags)
  damaged = tmp_path / "out" / ".train.incomplete" / "tokens" / "000001000002"
  content = damaged.read_bytes()
  damaged.write_bytes(bytes(len(content)))
  assert prepare_data.main(flags) == 0
  assert (tmp_path / "out" / "train" / "tokens" / "000001000002").read_bytes() == content
  TokenStore.open(tmp_path / "out" / "train", verify="full")


@pytest.mark.parametrize("change", ["append", "rewrite", "delete"])
def test_files_that_change_while_they_are_read_make_no_store(
  change, flags, tmp_path, monkeypatch, capsys
):
  make = building.make_part
  last = tmp_path / "2.jsonl"

  def changing(job, number, *spread):
    make(job, number, *spread)
    if number == 2:  # the others are read
      last.unlink() if change == "delete" else last.write_text(
        last.read_text() * (2 if change == "append" else 1)
      )

  with monkeypatch.context() as patched:
    patched.setattr(building, "make_part", changing)
    assert prepare_data.main(flags) == 2
  assert "the source's files changed while they were read" in capsys.readouterr().err
  assert not (tmp_path / "out" / "train").exists()
  assert prepare_data.main(flags) == 0
  documents = 100 if change == "delete" else 200 if change == "append" else 150
  assert TokenStore.open(tmp_path / "out" / "train").num_documents == documents


def test_the_manifest_does_not_grow_with_the_files_of_the_source(tmp_path, capsys):
  (tmp_path / "in").mkdir()
  for i in range(300):
    (tmp_path / "in" / f"{i:04d}.txt").write_text("words\n")
  flags = [
    f"--source=lines:{tmp_path}/in/*.txt",
    "--vocabulary=bytes",
    f"--output={tmp_path}/out",
    "--split=train",
  ]
  assert prepare_data.main([*flags, "--workers=1"]) == 0
  assert (tmp_path / "out" / "train" / "manifest.json").stat().st_size < 3_000
  assert prepare_data.main(flags) == 0
  assert "exists already" in capsys.readouterr().out
  (tmp_path / "in" / "0007.txt").write_text("other words\n")
  assert prepare_data.main(flags) == 2
  assert "was made with documents" in capsys.readouterr().err


def test_files_of_others_where_the_store_would_be_stay_there(flags, capsys):
  raw = as_path("memory://publishing/corpus/train/raw.jsonl")
  raw.write_text("{}")
  flags = [flag for flag in flags if not flag.startswith("--output")]
  assert prepare_data.main([*flags, "--output=memory://publishing/corpus"]) == 2
  assert (
    "corpus/train: found 1 files that no preparation has left there, such as raw.jsonl"
    in capsys.readouterr().err
  )
  assert raw.read_text() == "{}"
  assert prepare_data.main([*flags, "--output=memory://publishing/store"]) == 0


def test_a_file_system_without_locks_gets_a_lease(flags, tmp_path, monkeypatch):
  def flock(file, how):
    raise OSError(errno.ENOSYS, "Function not implemented")

  monkeypatch.setattr(fcntl, "flock", flock)
  assert prepare_data.main(flags) == 0
  assert [path.name for path in (tmp_path / "out").iterdir()] == ["train"]


@pytest.mark.more
def test_a_script_without_a_main_guard_prepares_in_several_processes(flags, tmp_path):
  script_flags = [flag for flag in flags if not flag.startswith("--workers")] + ["--workers=2"]
  (tmp_path / "script.py").write_text(
    f"from tools import prepare_data\nassert prepare_data.main({script_flags}) == 0\n"
  )
  environment = os.environ | {"PYTHONPATH": str(pathlib.Path(__file__).resolve().parents[2])}
  subprocess.run([sys.executable, tmp_path / "script.py"], env=environment, check=True, timeout=300)
  assert TokenStore.open(tmp_path / "out" / "train").num_documents == 150

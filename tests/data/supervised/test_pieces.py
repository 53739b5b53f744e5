"""Prepared examples do not depend on the number of processes or on interruptions."""

import json
import subprocess
import sys
import time

import numpy as np
import pytest

import json_lines
from preparations import read_files
from t5x_like.corpora import building, job
from t5x_like.corpora.engines import batches
from t5x_like.data import task
from t5x_like.data.supervised import example_store, packing
from t5x_like.errors import UserError


@pytest.fixture(scope="module")
def source(tmp_path_factory):
  """Write 3,000 records, some without a target and one with a NUL; return their source."""
  file = tmp_path_factory.mktemp("records") / "a.jsonl"
  rows = []
  for i, (n, m) in enumerate(np.random.default_rng(0).integers(0, 12, (3_000, 2)).tolist()):
    rows.append({"a": f"question {i} " + "word " * n, "b": "yes " * m + "\0" * (i == 77)})
  json_lines.write(file, rows)
  return f"jsonl:{file}"


def build_task(source, cache, **arguments):
  return task.build(
    "text_to_text",
    "train",
    source=source,
    inputs="{a}",
    targets="{b}",
    inputs_length=128,
    cache=str(cache),
    **arguments,
  )


@pytest.fixture(scope="module", autouse=True)
def small_batches():
  """Make preparations use batches of about 250 records, and write each as a shard."""
  with pytest.MonkeyPatch.context() as patched:
    patched.setattr(job, "BATCH_CHARACTERS", 2**15)
    patched.setattr(example_store.PreparedExamples, "shard_values", 1)
    yield


@pytest.fixture(scope="module")
def expected_files(source, small_batches, tmp_path_factory):
  """Return the files of a cache that one process prepared without interruption."""
  cache = tmp_path_factory.mktemp("uninterrupted")
  with pytest.MonkeyPatch.context() as patched:
    patched.setattr(batches, "_MAX_BATCHES_ALONE", 1_000)
    build_task(source, cache)
  return read_files(cache)


def test_several_processes_write_the_same_files(source, expected_files, tmp_path):
  build_task(source, tmp_path)
  assert read_files(tmp_path) == expected_files
  (manifest,) = [name for name in expected_files if name.endswith("manifest.json")]
  record = json.loads(expected_files[manifest])
  assert record["skipped"] == {"NUL character": 1, "empty targets": 3_000 - 1 - record["num_items"]}
  assert record["num_shards"] > 10


def test_interrupted_preparation_resumes(source, expected_files, tmp_path, monkeypatch):
  write = building._write_shard
  written_shards = []

  def write_seven_shards(*arguments):
    if len(written_shards) == 7:
      raise KeyboardInterrupt
    written_shards.append(write(*arguments))

  monkeypatch.setattr(batches, "_MAX_BATCHES_ALONE", 1_000)
  with monkeypatch.context() as patched:
    patched.setattr(building, "_write_shard", write_seven_shards)
    with pytest.raises(KeyboardInterrupt):
      build_task(source, tmp_path)
  (shards,) = tmp_path.glob(".*.incomplete/inputs")
  sorted(shards.iterdir())[3].write_bytes(b"damaged")
  resumed_shards = []
  monkeypatch.setattr(
    building, "_write_shard", lambda *arguments: resumed_shards.append(write(*arguments))
  )
  build_task(source, tmp_path)
  assert read_files(tmp_path) == expected_files
  assert not list(tmp_path.glob(".*.progress"))
  # Three shards are reused; the damaged fourth and all later ones are written again.
  assert len(resumed_shards) == len([name for name in expected_files if "/inputs/" in name]) - 3


@pytest.mark.heavy
@pytest.mark.parametrize("count", [1, 4, 8, 12])
def test_killed_preparation_resumes(count, source, expected_files, tmp_path):
  program = """
import sys
from t5x_like.corpora import job
from t5x_like.data import task
from t5x_like.data.supervised import example_store
job.BATCH_CHARACTERS, example_store.PreparedExamples.shard_values = 2**15, 1
about = dict(source=sys.argv[1], inputs="{a}", targets="{b}", inputs_length=128, cache=sys.argv[2])
task.build("text_to_text", "train", **about)
"""  # without `if __name__ == "__main__"`, as in a notebook
  command = [sys.executable, "-c", program, source, str(tmp_path)]
  run = subprocess.Popen(command)
  while run.poll() is None and len(list(tmp_path.glob(".*.incomplete/inputs/0*"))) < count:
    time.sleep(0.001)
  run.kill()
  assert run.wait() == -9
  assert subprocess.run(command).returncode == 0
  assert read_files(tmp_path) == expected_files


def test_unfinished_preparation_of_a_changed_source_is_discarded(tmp_path, monkeypatch):
  def stop(*_):
    raise UserError("stopped here")

  file = tmp_path / "a.jsonl"
  monkeypatch.setattr(building, "publish", stop)
  file.write_text('{"a": "one", "b": "two"}\n')
  with pytest.raises(UserError, match="stopped here"):
    build_task(f"jsonl:{file}", tmp_path / "cache")
  monkeypatch.undo()
  file.write_text('{"a": "one", "b": "three"}\n')
  text_task = build_task(f"jsonl:{file}", tmp_path / "cache")
  assert text_task.num_examples == 1


def test_plans_are_cached_by_lengths_limits_seed_and_edition(tmp_path, monkeypatch):
  lengths = np.random.default_rng(0).integers(0, 60, (500, 2))
  expected = packing.plan(lengths, (64, 64), 3)

  def assert_is_expected(actual):
    for name in ("examples", "row_starts", "offsets"):
      np.testing.assert_array_equal(getattr(actual, name), getattr(expected, name), strict=True)
    assert actual.tokens == expected.tokens
    assert actual.limits == expected.limits

  assert_is_expected(packing.load_or_plan(lengths, (64, 64), 3, str(tmp_path)))
  (file,) = tmp_path.iterdir()
  calls = []
  plan = packing.plan

  def record_and_plan(*arguments):
    calls.append(arguments)
    return plan(*arguments)

  monkeypatch.setattr(packing, "plan", record_and_plan)
  assert_is_expected(packing.load_or_plan(lengths, (64, 64), 3, str(tmp_path)))
  assert not calls
  file.write_bytes(file.read_bytes()[:-1])
  assert_is_expected(packing.load_or_plan(lengths, (64, 64), 3, str(tmp_path)))
  assert len(calls) == 1
  packing.load_or_plan(lengths, (64, 65), 3, str(tmp_path))
  packing.load_or_plan(lengths, (64, 64), 4, str(tmp_path))
  packing.load_or_plan(lengths[::-1], (64, 64), 3, str(tmp_path))
  monkeypatch.setattr(packing, "EDITION", 0)
  packing.load_or_plan(lengths, (64, 64), 3, str(tmp_path))
  assert len(calls) == 5
  assert len(list(tmp_path.iterdir())) == 5


def test_plans_are_computed_if_they_cannot_be_cached(tmp_path):
  lengths = np.random.default_rng(0).integers(0, 60, (500, 2))
  (tmp_path / "file").write_text("")
  plan = packing.load_or_plan(lengths, (64, 64), 3, str(tmp_path / "file"))  # not a folder
  assert plan.num_rows == packing.plan(lengths, (64, 64), 3).num_rows
  assert packing.load_or_plan(lengths[:0], (64, 64), 3, str(tmp_path)).num_rows == 0


def test_training_reads_a_cached_plan(source, tmp_path, monkeypatch):
  first = build_task(source, tmp_path)
  assert len(list(tmp_path.glob("*/plans/*"))) == 1
  monkeypatch.setattr(packing, "plan", None)
  assert build_task(source, tmp_path).num_examples == first.num_examples

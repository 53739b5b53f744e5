"""Supervised preparation in pieces, by several processes or one, killed or not: the same bytes.
Plans are made once."""

import json
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest

from t5x_like.corpora import building, job
from t5x_like.corpora.engines import batches
from t5x_like.data import task
from t5x_like.data.supervised import example_store, packing
from t5x_like.errors import UserError


@pytest.fixture(scope="module")
def source(tmp_path_factory):
  """3,000 records, some without a target, one with a NUL."""
  file = tmp_path_factory.mktemp("records") / "a.jsonl"
  generator = np.random.default_rng(0)
  lines = []
  for i, (n, m) in enumerate(generator.integers(0, 12, (3_000, 2)).tolist()):
    lines.append(
      json.dumps({"a": f"question {i} " + "word " * n, "b": "yes " * m + "\0" * (i == 77)})
    )
  file.write_text("\n".join(lines) + "\n")
  return f"jsonl:{file}"


def build(source, cache, **more):
  return task.build(
    "text_to_text",
    "train",
    source=source,
    inputs="{a}",
    targets="{b}",
    inputs_length=128,
    cache=str(cache),
    **more,
  )


def files_of(root):
  return {
    str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()
  }


@pytest.fixture(scope="module", autouse=True)
def small():
  """Batches of about 250 records, and as many shards."""
  with pytest.MonkeyPatch.context() as patched:
    patched.setattr(job, "BATCH_CHARACTERS", 2**15)
    patched.setattr(example_store.PreparedExamples, "shard_values", 1)
    yield


@pytest.fixture(scope="module")
def whole(source, small, tmp_path_factory):
  cache = tmp_path_factory.mktemp("whole")
  with pytest.MonkeyPatch.context() as patched:
    patched.setattr(batches, "_MAX_BATCHES_ALONE", 1_000)
    build(source, cache)
  return files_of(cache)


def test_processes_make_the_same_bytes(source, whole, tmp_path):
  build(source, tmp_path)
  assert files_of(tmp_path) == whole
  record = next(
    json.loads(content) for name, content in whole.items() if name.endswith("manifest.json")
  )
  assert record["skipped"] == {"NUL character": 1, "empty targets": 3_000 - 1 - record["num_items"]}
  assert record["num_shards"] > 10


def test_one_that_was_stopped_goes_on(source, whole, tmp_path, monkeypatch):
  write = building._write_shard
  written = []

  def stopping(*arguments):
    if len(written) == 7:
      raise KeyboardInterrupt
    written.append(write(*arguments))

  monkeypatch.setattr(batches, "_MAX_BATCHES_ALONE", 1_000)
  with monkeypatch.context() as patched:
    patched.setattr(building, "_write_shard", stopping)
    with pytest.raises(KeyboardInterrupt):
      build(source, tmp_path)
  (shards,) = tmp_path.glob(".*.incomplete/inputs")
  sorted(shards.iterdir())[3].write_bytes(b"damaged")
  more = []
  monkeypatch.setattr(building, "_write_shard", lambda *arguments: more.append(write(*arguments)))
  build(source, tmp_path)
  assert files_of(tmp_path) == whole and not list(tmp_path.glob(".*.progress"))
  assert len(more) == len([name for name in whole if "/inputs/" in name]) - 3


@pytest.mark.heavy
@pytest.mark.parametrize("count", [1, 4, 8, 12])
def test_one_that_was_killed_goes_on(count, source, whole, tmp_path):
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
  assert files_of(tmp_path) == whole


def test_a_source_that_changed_since_is_prepared_anew(tmp_path, monkeypatch):
  file = tmp_path / "a.jsonl"
  monkeypatch.setattr(
    building, "publish", lambda *_: (_ for _ in ()).throw(UserError("stopped here"))
  )
  file.write_text('{"a": "one", "b": "two"}\n')
  with pytest.raises(UserError, match="stopped here"):
    build(f"jsonl:{file}", tmp_path / "cache")
  monkeypatch.undo()
  file.write_text('{"a": "one", "b": "three"}\n')
  built_task = build(f"jsonl:{file}", tmp_path / "cache")
  assert built_task.num_examples == 1


def test_a_plan_is_made_once_and_only_used_for_what_it_was_made_of(tmp_path, monkeypatch):
  lengths = np.random.default_rng(0).integers(0, 60, (500, 2))
  expected = packing.plan(lengths, (64, 64), 3)

  def same(found):
    for name in ("examples", "row_starts", "offsets"):
      np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), strict=True)
    assert (found.tokens, found.limits) == (expected.tokens, expected.limits)

  same(packing.load_or_plan(lengths, (64, 64), 3, str(tmp_path)))
  (file,) = tmp_path.iterdir()
  calls = []
  plan = packing.plan
  monkeypatch.setattr(
    packing, "plan", lambda *arguments: calls.append(arguments) or plan(*arguments)
  )
  same(packing.load_or_plan(lengths, (64, 64), 3, str(tmp_path)))
  assert not calls
  file.write_bytes(file.read_bytes()[:-1])
  same(packing.load_or_plan(lengths, (64, 64), 3, str(tmp_path)))
  assert len(calls) == 1
  packing.load_or_plan(lengths, (64, 65), 3, str(tmp_path))
  packing.load_or_plan(lengths, (64, 64), 4, str(tmp_path))
  packing.load_or_plan(lengths[::-1], (64, 64), 3, str(tmp_path))
  monkeypatch.setattr(packing, "EDITION", 0)
  packing.load_or_plan(lengths, (64, 64), 3, str(tmp_path))
  assert len(calls) == 5 and len(list(tmp_path.iterdir())) == 5
  (tmp_path / "file").write_text("")
  monkeypatch.setattr(packing, "EDITION", 1)
  same(packing.load_or_plan(lengths, (64, 64), 3, str(tmp_path / "file")))  # not a folder
  assert packing.load_or_plan(lengths[:0], (64, 64), 3, str(tmp_path)).num_rows == 0


def test_training_opens_a_plan_from_its_file(source, tmp_path, monkeypatch):
  first = build(source, tmp_path)
  assert len(list(pathlib.Path(tmp_path).glob("*/plans/*"))) == 1
  monkeypatch.setattr(packing, "plan", None)
  assert build(source, tmp_path).num_examples == first.num_examples

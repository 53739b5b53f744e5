"""A store that is prepared in an unreliable bucket equals a local one."""

import itertools
import json
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import json_lines
from object_server import Server, environment
from preparations import fail_before_publishing, prepare, read_files
from refusals import refuses
from t5x_like.corpora import building
from t5x_like.corpora.sources import open_source
from t5x_like.data import loader, task
from t5x_like.files import exclusive, leases, remote
from t5x_like.files.leases import Lease
from t5x_like.files.paths import as_path
from t5x_like.store.tokens import TokenStore

pytestmark = pytest.mark.runs

pytest.importorskip("gcsfs")  # imported here: it takes longer than the leases of these tests

BUCKET = "gs://bucket/stores"
FLAGS = [
  "--split=train",
  "--part_bytes=1",
  "--shard_tokens=8000",
  "--clean=c4,exact,near,spans",
  "--min_sentences=1",
]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
  folder = tmp_path_factory.mktemp("pages")
  for part in range(2):
    rows = []
    for i in range(400):
      sentences = [f"Page {i} of {part} says {n} in the end." for n in range(2 + i % 9)]
      rows.append({"text": " ".join(sentences)})
    rows += rows[::10]  # duplicates
    json_lines.write(folder / f"{part}.jsonl", rows)
  return f"jsonl:{folder}/*.jsonl"


@pytest.fixture(scope="module")
def local(source, tmp_path_factory):
  """Return the directory of a local store of the source."""
  output = tmp_path_factory.mktemp("local")
  assert prepare(source, output, *FLAGS) == 0
  return output


@pytest.fixture
def server(tmp_path, monkeypatch):
  with Server(tmp_path / "bucket").running() as server:
    remote.reset()  # drop connections to the server of another test
    for name, value in environment(server).items():
      monkeypatch.setenv(name, value)
    yield server


def is_shard(path: str) -> bool:
  """Return whether the path of a request reads a file of tokens."""
  return "/train/tokens/" in path or "/train/tokens.ends/" in path


def test_store_in_a_bucket_equals_a_local_store_and_can_be_trained_on(source, local, server):
  server.unavailable = 0.1  # the share of requests that fail
  server.delay = 0.001
  assert prepare(source, BUCKET, *FLAGS) == 0
  assert read_files(server.root / "stores") == read_files(local)
  assert not [path for path, _ in server.requests if is_shard(path)]
  # A second preparation keeps the existing store.
  assert prepare(source, BUCKET, *FLAGS) == 0

  def read_batches(store):
    span_task = task.build("span_corruption", "train", store=store, inputs_length=64, verify="size")
    return list(itertools.islice(loader.train_batches(span_task, batch_size=8, seed=0), 4))

  local_batches = read_batches(str(local))
  bucket_batches = read_batches(BUCKET)
  for local_batch, bucket_batch in zip(local_batches, bucket_batches, strict=True):
    for name in local_batch:
      np.testing.assert_array_equal(local_batch[name], bucket_batch[name])


def test_source_in_a_bucket_is_opened_by_listing_it(server):
  """A request for each of 100,000 files would take too long."""
  (server.root / "pages").mkdir(parents=True)
  for number in range(30):
    (server.root / "pages" / f"{number:02d}.txt").write_text(f"page {number}\n")
  for pattern in ("*.txt", "{00..29}.txt"):
    before = len(server.requests)
    source = open_source(f"lines:gs://bucket/pages/{pattern}")
    sizes = [file["bytes"] for file in source.facts("text")["splits"]["train"]]
    assert sizes == [len("page 1\n")] * 10 + [len("page 11\n")] * 20
    assert len(source.parts("train", 1)) == 30
    assert len(server.requests) - before < 12
  assert source.matches_listing()
  (server.root / "pages" / "99.txt").write_text("added, and not a file of this source")
  assert source.matches_listing()
  (server.root / "pages" / "07.txt").write_text("page seven")
  assert not source.matches_listing()
  with refuses("30.txt: found no file of that name"):
    open_source("lines:gs://bucket/pages/{00..30}.txt")
  server.fault = lambda operation, name: "forbidden" if operation == "list" else None
  named_source = open_source("lines:gs://bucket/pages/{00..29}.txt")
  assert len(named_source.facts("text")["splits"]["train"]) == 30
  with refuses("cannot be listed"):
    open_source("lines:gs://bucket/pages/*.txt")


def test_resumed_preparation_uploads_only_missing_shards(source, local, server):
  server.unavailable = 0.05
  command = [sys.executable, "-m", "tools.prepare_data", f"--source={source}", *FLAGS]
  command += ["--vocabulary=bytes", f"--output={BUCKET}", "--workers=2"]
  run = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ)
  while run.poll() is None and sum("/train/tokens/" in name for name in server.uploads) < 6:
    time.sleep(0.002)
  run.kill()
  assert run.wait() == -9
  time.sleep(0.5)  # until its workers have ended
  records = [as_path(f"{BUCKET}/.train.progress/parts/{part:06d}") for part in range(2)]
  recorded_shards = []
  for record in records:
    if record.exists():
      _, _, content_json = record.read_bytes().partition(b"\n")  # after the checksum
      content = json.loads(content_json)
      recorded_shards += [shard["name"] for shard in content["shards"]]
  server.uploads.clear()
  server.requests.clear()
  assert len(recorded_shards) > 3
  assert prepare(source, BUCKET, *FLAGS) == 0
  assert read_files(server.root / "stores") == read_files(local)
  assert not {f"stores/train/tokens/{name}" for name in recorded_shards} & set(server.uploads)
  assert not [path for path, _ in server.requests if "/train/tokens/" in path]


def test_lost_shard_is_written_again(source, local, server):
  with fail_before_publishing():
    assert prepare(source, BUCKET, *FLAGS) == 2
  sorted((server.root / "stores" / "train" / "tokens").iterdir())[2].unlink()
  assert prepare(source, BUCKET, *FLAGS) == 0
  assert read_files(server.root / "stores") == read_files(local)


def test_second_preparation_at_the_same_time_is_refused(source, server, monkeypatch, capsys):
  monkeypatch.setattr(leases, "SECONDS", 1.2)
  with Lease(as_path(BUCKET), ".train.progress.lease", exclusive.WRITING):
    assert prepare(source, BUCKET, *FLAGS) == 2
  error = capsys.readouterr().err.strip().splitlines()[-1]
  assert f"{BUCKET}: another process is writing this store (process" in error
  assert not (server.root / "stores" / "train").exists()


def test_preparation_that_has_lost_its_lease_does_not_publish(
  source, local, server, monkeypatch, capsys
):
  monkeypatch.setattr(leases, "SECONDS", 1.2)
  load_record = building.load_record

  def lose_lease_and_load(*arguments):
    as_path(f"{BUCKET}/.train.progress.lease").write_text('{"holder": "another"}')
    return load_record(*arguments)

  with monkeypatch.context() as patched:
    patched.setattr(building, "load_record", lose_lease_and_load)
    assert prepare(source, BUCKET, *FLAGS) == 69  # a transient error
  assert "another process has taken it over" in capsys.readouterr().err
  assert not as_path(f"{BUCKET}/train/manifest.json").exists()
  # The other holder does not renew its lease, so it is taken over.
  assert prepare(source, BUCKET, *FLAGS) == 0
  assert read_files(server.root / "stores") == read_files(local)


def test_two_runs_that_need_the_same_store_prepare_it_once(source, server, monkeypatch):
  monkeypatch.setattr(leases, "SECONDS", 1.2)
  monkeypatch.setenv("T5X_LIKE_CACHE", "gs://bucket/cache")
  written_shards = []
  write = building._write_shard
  tasks = []

  def write_slowly(*arguments):
    written_shards.append(arguments[1])
    time.sleep(0.3)
    write(*arguments)

  monkeypatch.setattr(building, "_write_shard", write_slowly)

  def build():
    arguments = {"source": source, "vocabulary": "bytes", "inputs_length": 64}
    tasks.append(task.build("span_corruption", "train", **arguments))

  runs = [threading.Thread(target=build) for _ in range(2)]
  for run in runs:
    run.start()
  for run in runs:
    run.join()
  assert len(tasks) == 2
  assert len({span_task.fingerprint for span_task in tasks}) == 1
  assert len(written_shards) == 1
  assert not [name for name in server.names() if "lease" in name or "progress" in name]


def test_store_can_be_prepared_at_any_scheme_of_fsspec(source, local):
  assert prepare(source, "memory://there/stores", *FLAGS) == 0
  store = TokenStore.open("memory://there/stores/train", verify="full")
  expected = TokenStore.open(local / "train")
  assert store.fingerprint == expected.fingerprint
  assert store.vocabulary.fingerprint == expected.vocabulary.fingerprint
  starts = np.arange(0, store.num_tokens - 100, 777)
  np.testing.assert_array_equal(store.windows(starts, 100), expected.windows(starts, 100))
  assert set(as_path("memory://there/stores").sizes()) == {
    f"train/{name}" for name in read_files(local / "train")
  }


@pytest.mark.parametrize("output", [BUCKET, "{server}/stores"])
def test_output_that_cannot_be_written_is_refused_in_one_line(output, source, server, capsys):
  server.readonly = True
  assert prepare(source, output.format(server=server.url), *FLAGS) == 2
  error = capsys.readouterr().err
  assert "cannot be written" in error
  assert error.count("\n") == 1

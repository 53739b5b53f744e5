"""Preparing into a bucket that fails and dawdles: the bytes are those of a local store, no shard is
read again."""

import itertools
import json
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from object_server import Server, environment
from t5x_like.corpora import building
from t5x_like.corpora.sources import open_source
from t5x_like.data import loader, task
from t5x_like.errors import UserError
from t5x_like.files import exclusive, leases, remote
from t5x_like.files.leases import Lease
from t5x_like.files.paths import as_path
from t5x_like.store.tokens import TokenStore
from tools import prepare_data

pytestmark = pytest.mark.runs

pytest.importorskip("gcsfs")  # imported before the clock of a lease of 1.2 s runs


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
  folder = tmp_path_factory.mktemp("pages")
  for part in range(2):
    texts = [
      " ".join(f"Page {i} of {part} says {n} in the end." for n in range(2 + i % 9))
      for i in range(400)
    ]
    texts += texts[::10]
    (folder / f"{part}.jsonl").write_text(
      "".join(json.dumps({"text": text}) + "\n" for text in texts)
    )
  flags = [
    f"--source=jsonl:{folder}/*.jsonl",
    "--vocabulary=bytes",
    "--split=train",
    "--part_bytes=1",
  ]
  return [*flags, "--shard_tokens=8000", "--clean=c4,exact,near,spans", "--min_sentences=1"]


@pytest.fixture(scope="module")
def local(flags, tmp_path_factory):
  output = tmp_path_factory.mktemp("local")
  assert prepare_data.main([*flags, f"--output={output}", "--workers=1"]) == 0
  return output


@pytest.fixture
def server(tmp_path, monkeypatch):
  with Server(tmp_path / "bucket").running() as server:
    remote.reset()  # of another test's server
    for name, value in environment(server).items():
      monkeypatch.setenv(name, value)
    yield server


def files_of(root):
  return {
    str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()
  }


def test_a_bucket_gets_the_bytes_of_a_local_store_and_training_reads_them(flags, local, server):
  server.unavailable = 0.1
  server.delay = 0.001
  assert prepare_data.main([*flags, "--output=gs://bucket/stores", "--workers=1"]) == 0
  assert files_of(server.root / "stores") == files_of(local)
  assert not [
    path for path, _ in server.requests if "/train/tokens/" in path or "/train/tokens.ends/" in path
  ]
  # there already
  assert prepare_data.main([*flags, "--output=gs://bucket/stores", "--workers=1"]) == 0
  about = dict(inputs_length=64, verify="size")
  tasks = (
    task.build("span_corruption", "train", store=str(store), **about)
    for store in (local, "gs://bucket/stores")
  )
  batches = (itertools.islice(loader.train_batches(one, batch_size=8, seed=0), 4) for one in tasks)
  for one, other in zip(*batches, strict=True):
    for name in one:
      np.testing.assert_array_equal(one[name], other[name])


def test_a_source_in_a_bucket_is_opened_with_a_listing(server):
  """Not with requests for each of its files, of which there may be a hundred thousand."""
  (server.root / "pages").mkdir(parents=True)
  for number in range(30):
    (server.root / "pages" / f"{number:02d}.txt").write_text(f"page {number}\n")
  for pattern in ("*.txt", "{00..29}.txt"):
    before = len(server.requests)
    source = open_source(f"lines:gs://bucket/pages/{pattern}")
    assert [file["bytes"] for file in source.facts("text")["splits"]["train"]] == [7] * 10 + [
      8
    ] * 20
    assert len(source.parts("train", 1)) == 30 and len(server.requests) - before < 12
  assert source.matches_listing()
  (server.root / "pages" / "99.txt").write_text("added, and not a file of this source")
  assert source.matches_listing()
  (server.root / "pages" / "07.txt").write_text("page seven")
  assert not source.matches_listing()
  with pytest.raises(UserError, match="30.txt: found no file of that name"):
    open_source("lines:gs://bucket/pages/{00..30}.txt")
  server.fault = lambda operation, name: "forbidden" if operation == "list" else None
  assert (
    len(open_source("lines:gs://bucket/pages/{00..29}.txt").facts("text")["splits"]["train"]) == 30
  )
  with pytest.raises(UserError, match="cannot be listed"):
    open_source("lines:gs://bucket/pages/*.txt")


def test_killed_and_repeated_uploads_only_what_is_missing(flags, local, server):
  server.unavailable = 0.05
  command = [
    sys.executable,
    "-m",
    "tools.prepare_data",
    *flags,
    "--output=gs://bucket/stores",
    "--workers=2",
  ]
  run = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ)
  while (
    run.poll() is None and len([name for name in server.uploads if "/train/tokens/" in name]) < 6
  ):
    time.sleep(0.002)
  run.kill()
  assert run.wait() == -9
  time.sleep(0.5)  # its processes end
  recorded = [as_path(f"gs://bucket/stores/.train.progress/parts/{part:06d}") for part in range(2)]
  kept = [
    shard["name"]
    for record in recorded
    if record.exists()
    for shard in json.loads(record.read_bytes().partition(b"\n")[2])["shards"]
  ]
  server.uploads.clear()
  server.requests.clear()
  assert len(kept) > 3 and prepare_data.main([*command[3:-1], "--workers=1"]) == 0
  assert files_of(server.root / "stores") == files_of(local)
  assert not {f"stores/train/tokens/{name}" for name in kept} & set(server.uploads)
  assert not [path for path, _ in server.requests if "/train/tokens/" in path]


def test_a_lost_shard_is_made_again(flags, local, server, monkeypatch):
  with monkeypatch.context() as patched:
    patched.setattr(building, "publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
      prepare_data.main([*flags, "--output=gs://bucket/stores", "--workers=1"])
  sorted((server.root / "stores" / "train" / "tokens").iterdir())[2].unlink()
  assert prepare_data.main([*flags, "--output=gs://bucket/stores", "--workers=1"]) == 0
  assert files_of(server.root / "stores") == files_of(local)


def test_one_command_prepares_at_a_time(flags, server, monkeypatch, capsys):
  monkeypatch.setattr(leases, "SECONDS", 1.2)
  command = [*flags, "--output=gs://bucket/stores", "--workers=1"]
  with Lease(as_path("gs://bucket/stores"), ".train.progress.lease", exclusive.WRITING):
    assert prepare_data.main(command) == 2
  told = capsys.readouterr().err.strip().splitlines()[-1]
  assert (
    "gs://bucket/stores: another process is writing this store (process" in told
    and not (server.root / "stores" / "train").exists()
  )


def test_who_has_lost_the_lease_does_not_publish(flags, local, server, monkeypatch, capsys):
  monkeypatch.setattr(leases, "SECONDS", 1.2)
  command = [*flags, "--output=gs://bucket/stores", "--workers=1"]
  record = building.load_record

  def taken(*arguments):
    as_path("gs://bucket/stores/.train.progress.lease").write_text('{"holder": "another"}')
    return record(*arguments)

  with monkeypatch.context() as patched:
    patched.setattr(building, "load_record", taken)
    assert prepare_data.main(command) == 69
  assert "another process has taken it over" in capsys.readouterr().err
  assert not as_path("gs://bucket/stores/train/manifest.json").exists()
  assert prepare_data.main(command) == 0  # the other one gave no sign of life
  assert files_of(server.root / "stores") == files_of(local)


def test_two_runs_that_need_the_same_store_share_one(flags, server, monkeypatch):
  monkeypatch.setattr(leases, "SECONDS", 1.2)
  monkeypatch.setenv("T5X_LIKE_CACHE", "gs://bucket/cache")
  made = []
  write = building._write_shard
  found = []

  def slowly(*arguments):
    made.append(arguments[1])
    time.sleep(0.3)
    write(*arguments)

  monkeypatch.setattr(building, "_write_shard", slowly)
  source = flags[0].removeprefix("--source=")

  def build():
    found.append(
      task.build("span_corruption", "train", source=source, vocabulary="bytes", inputs_length=64)
    )

  runs = [threading.Thread(target=build) for _ in range(2)]
  for run in runs:
    run.start()
  for run in runs:
    run.join()
  assert len({one.fingerprint for one in found}) == 1 == len(made) and len(found) == 2
  assert not [name for name in server.names() if "lease" in name or "progress" in name]


def test_any_scheme_of_fsspec_will_do(flags, local):
  assert prepare_data.main([*flags, "--output=memory://there/stores", "--workers=1"]) == 0
  store = TokenStore.open("memory://there/stores/train", verify="full")
  expected = TokenStore.open(local / "train")
  assert (
    store.fingerprint == expected.fingerprint
    and store.vocabulary.fingerprint == expected.vocabulary.fingerprint
  )
  starts = np.arange(0, store.num_tokens - 100, 777)
  np.testing.assert_array_equal(store.windows(starts, 100), expected.windows(starts, 100))
  assert set(as_path("memory://there/stores").sizes()) == {
    f"train/{name}" for name in files_of(local / "train")
  }


def test_what_cannot_be_written_is_one_line(flags, server, capsys):
  server.readonly = True
  for output, said in (
    ("gs://bucket/stores", "cannot be written"),
    (f"{server.url}/stores", "cannot be written"),
    ("nosuch://place", "cannot be"),
  ):
    assert prepare_data.main([*flags, f"--output={output}", "--workers=1"]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1, error

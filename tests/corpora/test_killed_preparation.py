"""A data preparation that is killed and run again writes the same store as an uninterrupted one."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import psutil
import pytest

import json_lines
import more
from preparations import prepare, read_files
from t5x_like.corpora import progress_files
from t5x_like.corpora.engines import processes
from t5x_like.errors import UserError
from t5x_like.store.tokens import TokenStore

pytestmark = pytest.mark.runs


def load_recorded_shards(record):
  return json.loads(progress_files.load(record) or '{"shards": []}')["shards"]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
  """Write two files of pages, and return their source.

  C4's rules remove only the first line of a page. Every tenth page has a copy, some have a near
  copy, and every seventh contains the same passage.
  """
  folder = tmp_path_factory.mktemp("pages")
  texts = []
  for i in range(1_500):
    sentences = [f"Page {i} says {n} in words." for n in range(10 + i % 40)]
    if i % 7 == 0:
      sentences.append("All of them say so. Nobody is sure of it. It goes on and on.")
    texts.append(f"A menu of page {i}\n" + " ".join(sentences))
  texts += texts[::10] + [text.replace(" 5 ", " five ") for text in texts[35::40]]
  for part in range(2):
    json_lines.write(folder / f"{part}.jsonl", [{"text": text} for text in texts[part::2]])
  return f"jsonl:{folder}/*.jsonl"


def start_preparation(source, output, *flags) -> subprocess.Popen:
  """Start the command of a preparation."""
  command = [sys.executable, "-m", "tools.prepare_data", f"--source={source}"]
  command += ["--vocabulary=bytes", f"--output={output}", *flags]
  return subprocess.Popen(command, stdout=subprocess.DEVNULL)


FLAGS = ["--shard_tokens=50000", "--split=train", "--part_bytes=1"]
BEAM = ["--workers=1", "--engine=beam", "--runner=FnApiRunner"]
CLEANING = "c4,exact,near,spans"


@pytest.mark.parametrize(
  "engine, cleaning",
  more.beyond(
    2, [(["--workers=2"], ""), (BEAM, CLEANING), (["--workers=2"], CLEANING), (BEAM, "")]
  ),
  ids=["processes", "beam, cleaned", "processes, cleaned", "beam"],
)
def test_preparation_after_a_kill_writes_the_same_files(engine, cleaning, pages, tmp_path):
  """A finished shard is damaged after the kill. The second run reuses the intact shards."""
  if "--engine=beam" in engine:
    pytest.importorskip("apache_beam")
  flags = [*FLAGS, f"--clean={cleaning}"]
  uninterrupted = tmp_path / "whole"
  again = tmp_path / "again"
  assert prepare(pages, uninterrupted, *flags) == 0
  run = start_preparation(pages, again, *flags, *engine)
  shards = again / ".train.incomplete" / "tokens"
  record = again / ".train.progress" / "parts" / "000000"
  while run.poll() is None and len(load_recorded_shards(record)) < 5:
    time.sleep(0.002)
  workers = psutil.Process(run.pid).children(recursive=True)
  run.kill()
  assert run.wait() == -9, "the run was over before it could be killed"
  assert not psutil.wait_procs(workers, timeout=600)[1], "the run's workers outlived it"
  recorded_shards = load_recorded_shards(record)
  (shards / recorded_shards[3]["name"]).write_bytes(b"damaged")
  first = (shards / recorded_shards[0]["name"]).stat().st_mtime_ns
  assert prepare(pages, again, *flags, *engine) == 0
  assert read_files(uninterrupted) == read_files(again)
  assert (again / "train" / "tokens" / recorded_shards[0]["name"]).stat().st_mtime_ns == first
  manifest = TokenStore.open(again / "train").manifest
  assert manifest.num_shards > 10
  if cleaning:
    counts = manifest.source["counts"]
    assert manifest.skipped == {"exact duplicate": 150, "near duplicate": 37}
    assert counts["removed_within_documents"] == {
      "line: no terminal punctuation": 1_687,
      "span: repeated": 214,
    }
    assert manifest.num_items == 1_500


def kill_while_sending() -> None:
  """Kill this process of a pool while it sends a result and holds the lock of the pipe."""
  frame = sys._getframe()
  while "result_queue" not in frame.f_locals:
    frame = frame.f_back
  results = frame.f_locals["result_queue"]
  results._wlock.acquire()
  os.write(results._writer.fileno(), (1_000).to_bytes(4, "big") + b"the first bytes")
  os.kill(os.getpid(), signal.SIGKILL)


def test_process_killed_while_it_sends_a_result_does_not_block_the_pool():
  start = time.monotonic()
  with (
    pytest.raises(UserError, match="a tokenising process was killed"),
    processes._pool(2) as pool,
  ):
    futures = [pool.submit(time.sleep, 0.1) for _ in range(20)]
    pool.submit(kill_while_sending).result()
  assert time.monotonic() - start < 60
  assert all(future.done() for future in futures)


@pytest.mark.heavy
@pytest.mark.parametrize("engine", [["--workers=2"], BEAM])
def test_preparation_killed_in_every_phase_writes_the_same_files(engine, pages, tmp_path):
  """It is killed while it computes signatures, in each comparison and while it writes parts."""
  flags = [*FLAGS, f"--clean={CLEANING}"]
  assert prepare(pages, tmp_path / "whole", *flags) == 0
  progress = tmp_path / "again" / ".train.progress"
  moments = [
    "signatures/000000",
    "signatures/000001",
    "exact/000001",
    "bands/done",
    "near/000000",
    "spans/000000",
    "spans/done",
    "parts/000000",
    "parts/000001",
  ]
  for moment in moments:
    run = start_preparation(pages, tmp_path / "again", *flags, *engine)
    while run.poll() is None and not (progress / moment).exists():
      time.sleep(0.001)
    time.sleep(random.random() / 10)
    workers = []
    if run.poll() is None:
      workers = psutil.Process(run.pid).children(recursive=True)
    run.kill()
    run.wait()
    assert not psutil.wait_procs(workers, timeout=600)[1], "the run's workers outlived it"
  assert prepare(pages, tmp_path / "again", *flags, *engine) == 0
  assert read_files(tmp_path / "whole") == read_files(tmp_path / "again")

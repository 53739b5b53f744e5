"""A chain is read as one history, and the first record that does not fit is named."""

import os
import pathlib
import random

import pytest

from t5x_like.certificate import chain
from t5x_like.certificate.chain import ChainWriter
from t5x_like.certificate.history import Break
from tests.certificate import chains
from tests.certificate.chains import digest_of, rollback, save, start, step

NAN = "7fc00000"  # the bits of a float32
SAVE_EVERY = 4


def run_of(last: int, first: int = 1) -> list[dict]:
  """Return the records of steps `first` to `last`, with a save at every fourth step."""
  records = []
  for number in range(first, last + 1):
    records.append(step(number))
    if number % SAVE_EVERY == 0:
      records.append(save(number))
  return records


def assert_break(records: list[dict], at: int, aspect: str, *words: str) -> None:
  """Assert that records are refused at a step, for an aspect and with words in the reason."""
  with pytest.raises(Break) as error:
    chains.read(records)
  assert error.value.step == at, error.value
  assert error.value.aspect == aspect, error.value
  for word in words:
    assert word in error.value.reason, error.value


def test_random_kills_leave_one_history():
  """A run is killed after any record and continues from its last save."""
  generator = random.Random(0)
  for _ in range(50):
    records = [start()]
    position = 0
    repeated = 0
    reached = 0
    while position < 40:
      last = position + generator.randint(0, 12)
      records += run_of(last, position + 1)
      repeated += max(0, min(last, reached) - position)
      reached = max(reached, last)
      position = last - last % SAVE_EVERY
      records.append(start(position))
    history = chains.read(records)
    assert history.repeated == repeated
    assert list(history.steps) == list(range(1, position + 1))
    assert history.last_step == position
    assert len(history.starts) == sum(record["kind"] == chain.START for record in records)


def test_a_rollback_and_a_kill_in_the_middle_of_it():
  refused = step(7, loss=NAN, refused="train/loss is nan")
  first = [start(), *run_of(6), refused]
  after = [step(n, passed=3) for n in range(5, 10)]
  back_to_4 = rollback(refused_step=7, target=4, passed=3)
  history = chains.read([*first, back_to_4, *after])
  assert history.last_step == 9
  assert [step.batch_index for step in history.steps.values()] == [0, 1, 2, 3, 7, 8, 9, 10, 11]
  # Killed after the rollback was recorded and before the next save.
  again = [*first, back_to_4, *after[:2], start(4), *run_of(6, first=5), refused]
  history = chains.read([*again, back_to_4, *after])
  assert history.repeated == 5
  assert len(history.rollbacks) == 2
  assert_break([start(), *run_of(7), back_to_4], 7, "chain", "which no record before it refuses")
  too_few = rollback(refused_step=7, target=4, passed=2)
  assert_break([*first, too_few], 4, "data", "passes over 2 batches, expected 3")
  unsaved = rollback(refused_step=7, target=5, passed=2)
  assert_break([*first, unsaved], 5, "state", "never saved")
  assert_break([*first, back_to_4, step(5)], 5, "data", "of batch 4, expected 7")


def test_an_update_left_out_by_one_start_alone_breaks_nothing():
  """Faulty memory makes a loss NaN once; later steps of the two starts have different states."""
  refusals = {
    "batch": {"batch": digest_of("poisoned"), "loss": NAN, "metrics": "0" * 32},
    "loss": {"loss": NAN, "metrics": "1" * 32},
  }
  others = [step(n, loss=f"{0x41000000 + n:08x}", metrics="2" * 32) for n in (6, 7)]
  for changes in refusals.values():
    refused = step(5, refused="train/loss is nan", **changes)
    history = chains.read([start(), *run_of(4), refused, *others, start(4), *run_of(9, 5)])
    assert history.refused_once == [5]
    assert history.skipped == []
    assert (history.repeated, history.last_step) == (0, 9)
    history = chains.read([start(), *run_of(7), start(4), refused, *others])
    assert history.refused_once == [5]
    assert history.skipped == [5]
    # the same refusal twice, and the same steps after it
    twice = [start(), *run_of(4), refused, *others, start(4), refused, *others]
    assert chains.read(twice).repeated == 3
    assert_break([*twice[:-1], step(7)], 7, "code", "a fork: it was made twice")
  swapped = step(6, batch=digest_of("swapped"))
  records = [start(), *run_of(4), refused, others[0], start(4), step(5), swapped]
  assert_break(records, 6, "data", "a fork: it was made twice, from the batches")


@pytest.mark.parametrize(
  ("records", "at", "aspect", "words"),
  [
    ([], 0, "chain", "no record"),
    ([step(1)], 1, "chain", "before any start"),
    ([start(), step(1), step(3)], 2, "chain", "a gap"),
    ([start(), step(1), step(2), step(2)], 2, "chain", "a fork"),
    ([start(), *run_of(8), start(12)], 9, "chain", "a gap"),
    ([start(), *run_of(8), start(6)], 6, "state", "no record says that it was saved"),
    ([start(), *run_of(8), start(8, state="other")], 8, "state", "continues from the state"),
    ([start(), *run_of(8), start(8, passed=2)], 8, "data", "passed over 2 batches"),
    (
      [start(), *run_of(6), start(4), step(5), step(6, loss="40000000")],
      6,
      "code",
      "a fork: it was made twice, with loss",
    ),
    (
      [start(), *run_of(6), start(4), step(5, batch=digest_of("other"))],
      5,
      "data",
      "a fork: it was made twice, from the batches",
    ),
    (
      [start(), *run_of(6), start(4), step(5), step(6, metrics="0" * 32)],
      6,
      "code",
      "equal losses and other metrics",
    ),
    (
      [start(), *run_of(8), start(4), *run_of(7, 5), step(8), save(8, state=digest_of("other"))],
      8,
      "state",
      "saved twice",
    ),
    (
      [start(), step(1), start(0, fingerprints=chains.FINGERPRINTS | {"data": "f" * 64})],
      0,
      "data",
      "other data",
    ),
    ([start(), *run_of(3), save(2)], 2, "chain", "the last step before it is 3"),
    ([start(total_steps=2), *run_of(3)], 3, "chain", "after the run's last one, 2"),
    ([start(), step(1, loss="x")], 0, "chain", "line 2 is no record"),
    ([start(), step(1), {"kind": "other", "step": 2}], 1, "chain", "line 3 is no record"),
    ([start(), step(1), step(2) | {"step": True}], 1, "chain", "line 3 is no record"),
  ],
  ids=lambda value: value if isinstance(value, str) else "",
)
def test_first_record_that_does_not_fit_is_named(records, at, aspect, words):
  assert_break(records, at, aspect, words)


def test_another_layout_may_round_and_another_config_may_differ():
  two_devices = chains.EXACT | {"devices": 2}
  first = [start(), *run_of(6)]
  rounded = step(5, loss="40000005", metrics="0" * 32)
  history = chains.read([*first, start(4, environment=two_devices), rounded])
  assert history.repeated == 0
  assert history.rounded == 1
  different = step(5, loss="40100000", metrics="0" * 32)
  assert_break(
    [*first, start(4, environment=two_devices), different], 5, "code", "differ by more than"
  )
  assert chains.read([*first, start(4, config="f" * 64), different]).last_step == 5
  # The first layout again, from a state of the second.
  second = [start(4, environment=two_devices), rounded, *run_of(8, first=6)]
  assert chains.read([*first, *second, start(8), step(9)]).last_step == 9


def test_gpus_round_differently_at_each_start_unless_deterministic():
  gpu = {"environment": chains.EXACT | {"platform": "gpu"}}
  rounded = step(5, loss="40000005", metrics="0" * 32)
  assert chains.read([start(**gpu), *run_of(6), start(4, **gpu), rounded]).rounded == 1
  gpu["environment"]["xla_flags"] = "--xla_gpu_deterministic_ops=true"
  assert_break([start(**gpu), *run_of(6), start(4, **gpu), rounded], 5, "code", "a fork")


def test_a_chain_may_begin_late():
  history = chains.read([start(20), step(21), step(22)])
  assert history.begins == 20
  assert history.last_step == 22
  history = chains.read([start(20), step(21), start(10), step(11)])
  assert history.begins == 10
  assert list(history.steps) == [11]


@pytest.mark.parametrize("change", ["edit", "remove", "insert", "swap"])
def test_a_line_that_is_changed_breaks_the_hash_of_the_next(change):
  lines = chains.link([start(), *[step(n) for n in range(1, 10)]])
  if change == "edit":
    lines[3] = lines[3].replace(b"40000002", b"40000003")
  elif change == "remove":
    del lines[3]
  elif change == "insert":
    lines.insert(3, lines[2])
  else:
    lines[3], lines[4] = lines[4], lines[3]
  with pytest.raises(Break, match="edited, removed or inserted") as error:
    chains.HistoryReader(1e-3).read(lines)
  assert error.value.aspect == "chain"


def append(workdir: pathlib.Path, numbers) -> None:
  writer = ChainWriter(workdir, lambda: None)
  for number in numbers:
    writer.append(chain.STEP, number, value=number)
  writer.flush()
  writer.close()


def test_a_line_cut_short_by_a_kill_is_no_record(tmp_path):
  append(tmp_path, range(1, 4))
  path = tmp_path / chain.FILE
  whole = path.read_bytes()
  complete = list(chain.read_lines(tmp_path, ""))
  for size in range(0, len(whole), 5):
    path.write_bytes(whole[:size])
    kept = list(chain.read_lines(tmp_path, ""))
    assert kept == complete[: whole[:size].count(b"\n")]
    append(tmp_path, range(len(kept) + 1, 4))
    assert path.read_bytes() == whole


def test_a_writer_reads_only_the_end_of_a_long_chain(tmp_path):
  append(tmp_path, [1])
  path = tmp_path / chain.FILE
  with open(path, "ab") as file:
    file.truncate(2**33)  # 8 GiB of zeros, which take no space on the disk
    file.write(b"\n" + b'{"step": 7}\n')
  writer = ChainWriter(tmp_path, lambda: None)
  assert writer.last_step == 7
  writer.close()
  assert os.path.getsize(path) == 2**33 + len(b'\n{"step": 7}\n')


def test_a_removed_file_is_reported_and_the_run_goes_on(tmp_path, caplog):
  checks = []
  writer = ChainWriter(tmp_path, lambda: checks.append("checked"))
  writer.append(chain.STEP, 1)
  (tmp_path / chain.FILE).unlink()
  writer.flush()
  writer.append(chain.STEP, 2)
  writer.close()
  assert checks == ["checked"]
  assert "was removed or replaced" in caplog.text
  (line,) = chain.read_lines(tmp_path, "")
  with pytest.raises(Break, match="edited, removed or inserted"):
    chains.HistoryReader(1e-3).read([line])

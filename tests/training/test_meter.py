"""The meter measures the share of padding, and times of steps without waits."""

import time
import types

import jax
import numpy as np
import pytest

from t5x_like.training.meter import Goodput, StepMeter
from t5x_like.training.session import Session

TOKENS = np.array([[5, 0, 7, 1], [0, 6, 1, 1]])
SEGMENTS = np.array([[1, 1, 2, 0], [1, 1, 1, 1]])


@pytest.mark.parametrize(
  "batch, pad_id, share",
  [
    ({"decoder_input_tokens": TOKENS, "decoder_target_tokens": TOKENS}, None, 0.0),
    ({"decoder_input_tokens": TOKENS, "decoder_target_tokens": TOKENS}, 0, 2 / 8),
    ({"encoder_input_tokens": TOKENS, "encoder_target_tokens": np.zeros((2, 4), int)}, 1, 3 / 8),
    ({"encoder_input_tokens": TOKENS, "encoder_segment_ids": SEGMENTS}, 0, 1 / 8),
    (
      {
        "encoder_input_tokens": TOKENS,
        "encoder_segment_ids": SEGMENTS,
        "decoder_target_tokens": TOKENS,
      },
      1,
      4 / 16,
    ),
    ({"image": np.zeros((2, 3))}, 0, 0.0),
  ],
)
def test_padding_is_counted_by_segments_or_by_the_padding_id(batch, pad_id, share):
  meter = StepMeter(iter([batch]), lambda batch: Cost(), Goodput(0.0, 0.0), pad_id)
  assert meter.next_batch() is batch
  assert meter.finish_step()["padding_fraction"] == share


def test_goodput_of_a_resumed_run_excludes_earlier_waits():
  """Of sixteen seconds, four steps of two seconds waited for data half of the time."""
  rows = [
    {"step": step, "train/seconds_per_step": 2.0, "train/data_wait_fraction": 0.5}
    for step in range(1, 5)
  ]
  earlier_start = types.SimpleNamespace(start_time=time.time() - 16)
  resumed = Session.goodput(types.SimpleNamespace(metrics=lambda: rows, past=earlier_start), 4)
  assert resumed.add(0.0) == pytest.approx(0.25, rel=0.01)


class Cost:
  positions = 8
  flops = 1.0
  peak = 1.0
  unit = "tokens"


def test_utilisation_above_the_peak_or_without_one_is_not_reported():
  for peak, has_utilisation in ((1.0, False), (0.0, False), (1e30, True)):
    cost = Cost()
    cost.flops = 1e20
    cost.peak = peak
    meter = StepMeter(
      iter([{"image": np.zeros((2, 3))}]), lambda batch, cost=cost: cost, Goodput(0.0, 0.0), 0
    )
    meter.next_batch()
    rates = meter.finish_step()
    assert ("mfu" in rates) == has_utilisation
    assert rates.get("mfu", 0.0) <= 1


@pytest.mark.parametrize("synchronous", [True, False])
def test_last_step_before_a_wait_takes_as_long_as_the_others(synchronous, monkeypatch):
  """Metrics are read one step late. A CPU may compute a step synchronously in its dispatch."""
  now = [0.0]
  monkeypatch.setattr("time.perf_counter", lambda: now[0])
  monkeypatch.setattr(
    jax.config, "read", lambda name: {"jax_cpu_enable_async_dispatch": not synchronous}[name]
  )
  meter = StepMeter(iter([{}] * 3), lambda batch: Cost(), Goodput(0.0, 0.0), None)
  durations = []
  for step in range(3):
    meter.next_batch()
    since = now[0]
    now[0] += 2.0 * synchronous
    meter.record_dispatch(since)
    if step:  # the metrics of the step before
      now[0] += 2.0 * (not synchronous)
      durations.append(meter.finish_step()["seconds_per_step"])
  now[0] += 2.0 * (not synchronous)
  durations.append(meter.finish_step()["seconds_per_step"])
  assert durations == [2.0, 2.0, 2.0]

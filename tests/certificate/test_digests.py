"""The digest of a batch depends on its rows and their order, not on the hosts that have them."""

import math

import numpy as np
import pytest

from t5x_like.certificate import digests

FEATURES = {
  "decoder_target_tokens": ((16,), np.int32),
  "decoder_loss_weights": ((16,), np.float32),
  "image": ((4, 4, 3), np.float32),
  "label": ((), np.int32),
  "decoder_causal_attention": ((16,), np.bool_),
}


@pytest.fixture
def batch():
  generator = np.random.default_rng(0)
  return {
    name: generator.integers(0, 2, (12, *shape)).astype(dtype)
    for name, (shape, dtype) in FEATURES.items()
  }


@pytest.mark.parametrize(
  "rows_of_hosts", [[range(12)], [range(6), range(6, 12)], [[0, 5], [*range(1, 5), *range(6, 12)]]]
)
def test_any_hosts_give_one_digest(batch, rows_of_hosts):
  sums = []
  for rows in rows_of_hosts:
    part = {name: x[list(rows)] for name, x in batch.items()}
    sums.append(digests.sum_row_digests(part, rows))
  assert digests.combine_sums(sums) == digests.digest_batch(batch)


def test_every_bit_name_type_and_place_of_a_row_counts(batch):
  digest = digests.digest_batch(batch)
  changed = []
  for name, x in batch.items():
    other_bit = x.copy()
    other_bit.reshape(-1)[-1] = 1 - other_bit.reshape(-1)[-1]
    changed.append(batch | {name: other_bit})
  tokens = batch["decoder_target_tokens"]
  swapped = tokens[[1, 0, *range(2, 12)]]
  assert (swapped != tokens).any()
  changed.append(batch | {"decoder_target_tokens": swapped})
  changed.append(batch | {"label": batch["label"].astype(np.uint32)})
  changed.append({name.replace("label", "labels"): x for name, x in batch.items()})
  changed.append({name: x[:11] for name, x in batch.items()})
  changed_digests = [digests.digest_batch(other) for other in changed]
  assert len({digest, *changed_digests}) == len(changed) + 1


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-40, 6.65517902, math.inf, -math.inf])
def test_bits_keep_every_float32(value):
  number = float(np.float32(value))
  assert digests.float_value(digests.float_bits(number)) == number
  assert math.copysign(1, digests.float_value(digests.float_bits(number))) == math.copysign(
    1, value
  )


def test_metrics_count_but_for_measured_times():
  metrics = {"loss": 1.5, "accuracy": 0.25}
  digest = digests.digest_metrics(metrics)
  measured = {
    "seconds_per_step": 0.1,
    "tokens_per_second": 9.0,
    "goodput": 0.5,
    "eval/a/seconds": 3.0,
  }
  assert digests.digest_metrics(metrics | measured) == digest
  assert digests.digest_metrics(metrics | {"accuracy": 0.25 + 2**-54}) != digest
  assert digests.digest_metrics({"loss": 1.5}) != digest
  assert digests.digest_metrics({"loss": math.nan}) == digests.digest_metrics({"loss": None})

"""Encoder objectives equal plain numpy, for separate and for packed rows."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import more
from chances import assert_fits
from t5x_like.models import bert, deberta_rtd, electra, xlnet
from t5x_like.nn import params
from t5x_like.nn.dims import Dims
from t5x_like.objectives import denominator, mlm, permutation_lm, span_boundary
from t5x_like.objectives import electra as electra_objective
from tests import tiny
from tests.refusals import refuses

V = 64
B = 8
S = 12
DIMS = Dims(embed=16, heads=2, kv_heads=2, head_dim=8, mlp=32, layers=2)
SIZE = dataclasses.replace(bert.VARIANTS["bert-tiny"], dims=DIMS, vocab_size=V)
DEBERTA = dataclasses.replace(deberta_rtd.VARIANTS["deberta-v3-tiny"], dims=DIMS, vocab_size=V)
XLNET = dataclasses.replace(xlnet.VARIANTS["xlnet-tiny"], dims=DIMS, vocab_size=V)


def make_batch(seed=0):
  """Return rows of different lengths with spans of one or two predicted tokens."""
  generator = np.random.default_rng(seed)
  tokens = generator.integers(3, V, (B, S)).astype(np.int32)
  real = np.arange(S) < generator.integers(8, S + 1, (B, 1))
  weights = np.zeros((B, S), np.float32)
  starts = np.zeros((B, S), np.int32)
  ends = np.zeros((B, S), np.int32)
  for row in range(B):
    for a in (1, 4)[: 1 + row % 2]:
      b = a + 1 + row % 2
      weights[row, a:b], starts[row, a:b], ends[row, a:b] = 1, a - 1, b
  return {
    "encoder_input_tokens": np.where(weights > 0, 2, tokens * real),
    "encoder_target_tokens": np.where(weights > 0, tokens, 0).astype(np.int32),
    "encoder_loss_weights": weights,
    "encoder_segment_ids": real.astype(np.int32),
    "encoder_token_types": generator.integers(0, 2, (B, S)).astype(np.int32),
    "encoder_order": (np.cumsum(weights, axis=1) * (weights > 0)).astype(np.int32),
    "encoder_span_starts": starts,
    "encoder_span_ends": ends,
    "next_sentence_label": generator.integers(0, 2, B).astype(np.int32),
  }


def mean_over_tokens(logits, targets, weights):
  """Return (mean loss, accuracy) over the tokens with a weight."""
  positions = np.nonzero(weights)
  log_p = special.log_softmax(np.asarray(logits, np.float64)[positions], axis=-1)
  correct = log_p.argmax(-1) == targets[positions]
  return -log_p[np.arange(len(log_p)), targets[positions]].mean(), correct.mean()


def compute_means(sums) -> dict[str, float]:
  return {name: float(total / sums[denominator(name, sums)]) for name, total in sums.items()}


def test_masked_tokens_and_next_sentences_equal_numpy():
  model = tiny.model(SIZE, family=bert)
  data = make_batch()
  loss, sums = jax.jit(mlm.Objective())(model, data)
  assert set(sums) == {*mlm.Objective.reported_sums, "weights", "next_sentence_weights"}
  outputs = jax.jit(model.__class__.__call__)(model, data)
  count = data["encoder_loss_weights"].sum()
  masked, accuracy = mean_over_tokens(
    outputs["logits"], data["encoder_target_tokens"], data["encoder_loss_weights"]
  )
  label = data["next_sentence_label"]
  following, following_accuracy = mean_over_tokens(
    outputs["next_sentence_logits"], label, np.ones_like(label)
  )
  assert float(loss / count) == pytest.approx(masked + following, rel=1e-5)
  means = compute_means(sums)
  assert means["loss"] == pytest.approx(masked, rel=1e-5)
  assert means["correct"] == pytest.approx(accuracy)
  assert means["next_sentence_loss"] == pytest.approx(following, rel=1e-5)
  assert means["next_sentence_accuracy"] == pytest.approx(following_accuracy)
  assert float(sums["weights"]) == count


# Near temperature zero ELECTRA samples the same tokens in any order of the rows.
DETERMINISTIC_ELECTRA = electra_objective.Objective(temperature=1e-4)
OBJECTIVES = [
  (mlm.Objective(), bert, SIZE),
  (DETERMINISTIC_ELECTRA, deberta_rtd, DEBERTA),
  (permutation_lm.Objective(), xlnet, XLNET),
]
NAMES = ["mlm", "replaced_tokens", "permutation"]


def pack_pairs(rows):
  """Pack two rows into each; return the packed rows and where the two start, zero-padded to 3."""
  names = [name for name, x in rows.items() if x.ndim == 2]
  packed = {name: np.zeros((B // 2, 2 * S), rows[name].dtype) for name in names}
  packed["encoder_positions"] = np.zeros((B // 2, 2 * S), np.int32)
  row_starts = np.zeros((B // 2, 3), np.int32)
  for row in range(B // 2):
    start = 0
    for number in range(2):
      length = int(rows["encoder_segment_ids"][2 * row + number].sum())
      end = start + length
      for name in names:
        packed[name][row, start:end] = rows[name][2 * row + number, :length]
      packed["encoder_segment_ids"][row, start:end] = number + 1
      packed["encoder_positions"][row, start:end] = np.arange(length)
      row_starts[row, number] = start
      start = end
  return packed, row_starts


@pytest.mark.parametrize(("objective", "family", "size"), more.beyond(1, OBJECTIVES), ids=NAMES)
def test_packed_pairs_have_the_loss_of_separate_rows(objective, family, size):
  model = tiny.model(size, family=family)
  data = make_batch()
  packed, row_starts = pack_pairs(data)
  if family is bert:
    labels = np.pad(data["next_sentence_label"].reshape(-1, 2), ((0, 0), (0, 1)))
    packed |= {"encoder_cls_positions": row_starts, "next_sentence_label": labels}
  run = jax.jit(objective)
  loss, sums = jax.tree.map(float, run(model, packed))
  expected, expected_sums = jax.tree.map(float, run(model, data))
  assert loss == pytest.approx(expected, rel=1e-5)
  assert sums == pytest.approx(expected_sums, rel=1e-5)


def test_span_boundary_loss_equals_numpy():
  model = tiny.model(SIZE, family=bert, head="span_boundary")
  data = make_batch()
  loss, sums = jax.jit(span_boundary.Objective())(model, data)
  assert set(sums) == {*span_boundary.Objective.reported_sums, "weights"}
  targets = data["encoder_target_tokens"]
  weights = data["encoder_loss_weights"]
  x = np.asarray(model.encode(data)[0], np.float64)
  head = params.arrays(model.head)
  p = {name: np.asarray(array, np.float64) for name, array in head.items()}

  def layer(h, dense, norm):
    h = h @ p[f"{dense}/kernel"] + p[f"{dense}/bias"]
    h = 0.5 * h * (1 + special.erf(h / math.sqrt(2)))
    h = (h - h.mean()) / np.sqrt(h.var() + 1e-12)
    return h * p[f"{norm}/scale"] + p[f"{norm}/bias"]

  losses = []
  table = np.asarray(model.embed.table[...], np.float64)
  for row, position in zip(*np.nonzero(weights)):
    start = data["encoder_span_starts"][row, position]
    end = data["encoder_span_ends"][row, position]
    h = np.concatenate([x[row, start], x[row, end], p["places"][position - start - 1]])
    h = layer(layer(h, "dense", "norm"), "dense_2", "norm_2")
    losses.append(-special.log_softmax(table @ h + p["lm/bias"])[targets[row, position]])
  logits = model.head(jnp.asarray(x, jnp.float32), model.embed)["logits"].dense()
  masked, _ = mean_over_tokens(logits, targets, weights)
  count = weights.sum()
  assert float(sums["span_boundary_loss"] / count) == pytest.approx(np.mean(losses), rel=1e-4)
  assert float(loss / count) == pytest.approx(masked + np.mean(losses), rel=1e-4)
  with refuses("head=span_boundary"):
    span_boundary.Objective()(tiny.model(SIZE, family=bert), data)


ELECTRA = dataclasses.replace(SIZE, head="discriminator", embed=8)


def test_electra_losses_equal_numpy():
  model = tiny.model(ELECTRA, family=electra)
  data = make_batch()
  loss, sums = jax.jit(electra_objective.Objective())(model, data)
  weight_sums = {"weights", "discriminator_weights", "replaced_weights"}
  assert set(sums) == {*electra_objective.Objective.reported_sums, *weight_sums}
  targets = data["encoder_target_tokens"]
  weights = data["encoder_loss_weights"]
  real = data["encoder_segment_ids"]
  generated = model.generate(data)["logits"].dense()
  masked, _ = mean_over_tokens(generated, targets, weights)
  sampled = np.asarray(electra_objective.sample_tokens(generated, jax.random.key(0), 1.0))
  corrupted = np.where(weights > 0, sampled, data["encoder_input_tokens"])
  discriminator_logits = np.asarray(
    model.discriminate(data | {"encoder_input_tokens": corrupted})["logits"], np.float64
  )
  replaced = (weights > 0) & (sampled != targets)
  signed_logits = np.where(replaced, -discriminator_logits, discriminator_logits)
  token_losses = np.logaddexp(0, signed_logits)[real > 0]
  assert float(loss / weights.sum()) == pytest.approx(masked + 50 * token_losses.mean(), rel=1e-4)
  means = compute_means(sums)
  assert means["loss"] == pytest.approx(masked, rel=1e-4)
  assert means["discriminator_loss"] == pytest.approx(token_losses.mean(), rel=1e-4)
  assert means["discriminator_accuracy"] == pytest.approx(
    ((discriminator_logits > 0) == replaced)[real > 0].mean()
  )
  assert means["replaced"] == pytest.approx(replaced.sum() / real.sum())


@pytest.mark.parametrize("pad", [0, 1, None])
def test_electra_recognises_padding_by_segments_or_by_the_padding_id(pad):
  class Model:
    variant = dataclasses.replace(ELECTRA, tokens=dataclasses.replace(ELECTRA.tokens, pad=pad))

  data = make_batch()
  real = data["encoder_segment_ids"] > 0
  all_weights = electra_objective.Objective().prepare(data, Model)["discriminator_weights"]
  np.testing.assert_array_equal(all_weights > 0, real)
  del data["encoder_segment_ids"]
  data["encoder_input_tokens"] = np.where(
    real, data["encoder_input_tokens"], 5 if pad is None else pad
  )
  data["encoder_input_tokens"][:, 0] = (
    0 if pad == 1 else 3
  )  # a real token, whose id another family may pad with
  weights = electra_objective.Objective().prepare(data, Model)["discriminator_weights"]
  np.testing.assert_array_equal(weights > 0, np.ones_like(real) if pad is None else real)


def test_generated_samples_follow_the_distribution_and_pass_no_gradient():
  shares = np.array([0.5, 0.3, 0.15, 0.05])
  logits = jnp.tile(jnp.log(shares), (1, 60_000, 1))
  for temperature in (1.0, 2.0):
    samples = electra_objective.sample_tokens(logits, jax.random.key(1), temperature)
    assert_fits(np.bincount(np.asarray(samples)[0], minlength=4), shares ** (1 / temperature))
  model = tiny.model(ELECTRA, family=electra)
  data = make_batch()
  arrays = params.arrays(model)

  def discriminator_loss(arrays):
    _, sums = electra_objective.Objective()(params.with_arrays(model, arrays), data)
    return sums["discriminator_loss"]

  gradients = jax.jit(jax.grad(discriminator_loss))(arrays)
  generator_names = [
    name for name in gradients if name.startswith(("generator/head", "generator/encoder"))
  ]
  assert generator_names
  assert all(not np.asarray(gradients[name]).any() for name in generator_names)
  assert any(np.asarray(gradients[name]).any() for name in gradients if name.startswith("head"))


@pytest.mark.parametrize(
  ("objective", "family", "size", "head"),
  [
    (mlm.Objective(z_loss=0.1), bert, SIZE, {}),
    (span_boundary.Objective(), bert, SIZE, {"head": "span_boundary"}),
    pytest.param(DETERMINISTIC_ELECTRA, electra, ELECTRA, {}, marks=pytest.mark.more),
  ],
  ids=["mlm", "span_boundary", "electra"],
)
def test_logits_at_masked_positions_only_give_the_same_loss(objective, family, size, head):
  model = tiny.model(size, family=family, **head)
  all_positions = make_batch()
  positions = np.zeros((B, 5), np.int32)  # one more than any row needs
  for row, weights in enumerate(all_positions["encoder_loss_weights"]):
    positions[row, : np.count_nonzero(weights)] = np.flatnonzero(weights)
  masked_positions = all_positions | {"encoder_masked_positions": positions}

  @jax.jit
  def run(arrays, data):

    def loss(arrays):
      return objective(params.with_arrays(model, arrays), data)

    return jax.value_and_grad(loss, has_aux=True)(arrays)

  arrays = params.arrays(model)
  (loss, sums), gradients = run(arrays, all_positions)
  (masked_loss, masked_sums), masked_gradients = run(arrays, masked_positions)
  assert float(masked_loss) == pytest.approx(float(loss), rel=1e-5)
  assert jax.tree.map(float, masked_sums) == pytest.approx(jax.tree.map(float, sums), rel=1e-5)
  largest = max(float(jnp.max(jnp.abs(g))) for g in gradients.values())
  for name, g in gradients.items():
    assert np.allclose(masked_gradients[name], g, rtol=1e-4, atol=1e-6 * largest)

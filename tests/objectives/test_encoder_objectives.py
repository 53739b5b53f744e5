"""Encoder objectives equal plain numpy, in a batch and in its parts."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import more
from chances import assert_fits
from t5x_like.errors import UserError
from t5x_like.models import bert, deberta_rtd, electra, xlnet
from t5x_like.nn import params
from t5x_like.nn.dims import Dims
from t5x_like.objectives import denominator, mlm, permutation_lm, span_boundary
from t5x_like.objectives import electra as electra_objective
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from t5x_like.training.optimizer import build_optimizer
from t5x_like.training.schedule import SCHEDULES
from t5x_like.training.state import abstract_state, init_state
from t5x_like.training.step import make_step
from tests import tiny

V = 64
B = 8
S = 12
DIMS = Dims(embed=16, heads=2, kv_heads=2, head_dim=8, mlp=32, layers=2)
SIZE = dataclasses.replace(bert.VARIANTS["bert-tiny"], dims=DIMS, vocab_size=V)
DEBERTA = dataclasses.replace(deberta_rtd.VARIANTS["deberta-v3-tiny"], dims=DIMS, vocab_size=V)
XLNET = dataclasses.replace(xlnet.VARIANTS["xlnet-tiny"], dims=DIMS, vocab_size=V)


def batch(seed=0):
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


def log_softmax(x):
  x = np.asarray(x, np.float64)
  return (
    x
    - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True))
    - x.max(-1, keepdims=True)
  )


def mean_over_tokens(logits, targets, weights):
  """Return (mean loss, accuracy) over the weighted tokens."""
  positions = np.nonzero(weights)
  log_p = log_softmax(np.asarray(logits)[positions])
  return -log_p[np.arange(len(log_p)), targets[positions]].mean(), (
    log_p.argmax(-1) == targets[positions]
  ).mean()


def test_masked_tokens_and_next_sentences_equal_numpy():
  model = tiny.model(SIZE, family=bert)
  data = batch()
  loss, sums = jax.jit(mlm.Objective())(model, data)
  assert set(sums) == {*mlm.Objective.reported_sums, "weights", "next_sentence_weights"}
  outputs = jax.jit(model.__class__.__call__)(model, data)
  count = data["encoder_loss_weights"].sum()
  masked, accuracy = mean_over_tokens(
    outputs["logits"], data["encoder_target_tokens"], data["encoder_loss_weights"]
  )
  log_p = log_softmax(outputs["next_sentence_logits"])
  label = data["next_sentence_label"]
  following = -log_p[np.arange(B), label].mean()
  assert float(loss / count) == pytest.approx(masked + following, rel=1e-5)
  means = {name: float(value / sums[denominator(name, sums)]) for name, value in sums.items()}
  assert means["loss"] == pytest.approx(masked, rel=1e-5)
  assert means["correct"] == pytest.approx(accuracy)
  assert means["next_sentence_loss"] == pytest.approx(following, rel=1e-5)
  assert means["next_sentence_accuracy"] == pytest.approx((log_p.argmax(-1) == label).mean())
  assert float(sums["weights"]) == count


# near zero it samples alike in any order of rows
ALIKE = electra_objective.Objective(temperature=1e-4)
OBJECTIVES = [
  (mlm.Objective(), bert, SIZE),
  (ALIKE, deberta_rtd, DEBERTA),
  (permutation_lm.Objective(), xlnet, XLNET),
]
NAMES = ["mlm", "replaced_tokens", "permutation"]


@pytest.mark.parametrize(("objective", "family", "size"), more.beyond(1, OBJECTIVES), ids=NAMES)
def test_packed_pairs_have_the_losses_of_separate_rows(objective, family, size):
  """Pairs of rows packed into one, with their own [CLS], segment and positions."""
  model = tiny.model(size, family=family)
  data = batch()
  names = [name for name, x in data.items() if x.ndim == 2]
  packed = {name: np.zeros((B // 2, 2 * S), data[name].dtype) for name in names}
  packed["encoder_positions"] = np.zeros((B // 2, 2 * S), np.int32)
  firsts = np.zeros((B // 2, 3), np.int32)  # room for one more
  for row in range(B // 2):
    begin = 0
    for number in range(2):
      pair_batch = {name: data[name][2 * row + number] for name in names}
      size = int(pair_batch["encoder_segment_ids"].sum())
      pair_batch |= {
        "encoder_segment_ids": np.full(size, number + 1),
        "encoder_positions": np.arange(size),
      }
      for name, x in pair_batch.items():
        packed[name][row, begin : begin + size] = x[:size]
      firsts[row, number] = begin
      begin = begin + size
  labels = np.pad(data["next_sentence_label"].reshape(-1, 2), ((0, 0), (0, 1)))
  if family is bert:
    packed |= {"encoder_cls_positions": firsts, "next_sentence_label": labels}
  objective = jax.jit(objective)
  loss, sums = objective(model, packed)
  expected, expected_sums = objective(model, data)
  assert float(loss) == pytest.approx(float(expected), rel=1e-5)
  assert {n: float(x) for n, x in sums.items()} == pytest.approx(
    {n: float(x) for n, x in expected_sums.items()}, rel=1e-5
  )


def test_the_span_boundary_objective_equals_numpy():
  model = tiny.model(SIZE, family=bert, head="span_boundary")
  data = batch()
  loss, sums = jax.jit(span_boundary.Objective())(model, data)
  assert set(sums) == {*span_boundary.Objective.reported_sums, "weights"}
  targets = data["encoder_target_tokens"]
  weights = data["encoder_loss_weights"]
  x = np.asarray(model.encode(data)[0], np.float64)
  head = model.head

  def gelu(h):
    return 0.5 * h * (1 + np.vectorize(math.erf)(h / math.sqrt(2)))

  named = {name: np.asarray(value, np.float64) for name, value in params.arrays(head).items()}

  def layer(h, dense, norm):
    weight = named[f"{dense}/kernel"]
    bias = named[f"{dense}/bias"]
    h = gelu(h @ weight + bias)
    h = (h - h.mean()) / np.sqrt(h.var() + 1e-12)
    return h * named[f"{norm}/scale"] + named[f"{norm}/bias"]

  losses = []
  table = np.asarray(model.embed.table[...], np.float64)
  for row, position in zip(*np.nonzero(weights)):
    start = data["encoder_span_starts"][row, position]
    end = data["encoder_span_ends"][row, position]
    h = np.concatenate([x[row, start], x[row, end], named["places"][position - start - 1]])
    h = layer(layer(h, "dense", "norm"), "dense_2", "norm_2")
    losses.append(-log_softmax(table @ h + named["lm/bias"])[targets[row, position]])
  masked, _ = mean_over_tokens(
    head(jnp.asarray(x, jnp.float32), model.embed)["logits"].dense(), targets, weights
  )
  count = weights.sum()
  assert float(sums["span_boundary_loss"] / count) == pytest.approx(np.mean(losses), rel=1e-4)
  assert float(loss / count) == pytest.approx(masked + np.mean(losses), rel=1e-4)
  with pytest.raises(UserError, match="head=span_boundary"):
    span_boundary.Objective()(tiny.model(SIZE, family=bert), data)


ELECTRA = dataclasses.replace(SIZE, head="discriminator", embed=8)


def test_electras_losses_equal_numpy():
  model = tiny.model(ELECTRA, family=electra)
  data = batch()
  loss, sums = jax.jit(electra_objective.Objective())(model, data)
  weights_of = {"weights", "discriminator_weights", "replaced_weights"}
  assert set(sums) == {*electra_objective.Objective.reported_sums, *weights_of}
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
  token_losses = np.log1p(np.exp(np.where(replaced, -discriminator_logits, discriminator_logits)))[
    real > 0
  ]
  assert float(loss / weights.sum()) == pytest.approx(masked + 50 * token_losses.mean(), rel=1e-4)
  means = {name: float(value / sums[denominator(name, sums)]) for name, value in sums.items()}
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

  data = batch()
  real = data["encoder_segment_ids"] > 0
  all_weights = electra_objective.Objective().prepare(data, Model)["discriminator_weights"]
  np.testing.assert_array_equal(all_weights > 0, real)
  del data["encoder_segment_ids"]
  data["encoder_input_tokens"] = np.where(
    real, data["encoder_input_tokens"], 5 if pad is None else pad
  )
  data["encoder_input_tokens"][:, 0] = 0 if pad == 1 else 3  # a token like any other
  weights = electra_objective.Objective().prepare(data, Model)["discriminator_weights"]
  np.testing.assert_array_equal(weights > 0, np.ones_like(real) if pad is None else real)


def test_generated_samples_follow_the_distribution_and_pass_no_gradient():
  shares = np.array([0.5, 0.3, 0.15, 0.05])
  logits = jnp.tile(jnp.log(shares), (1, 60_000, 1))
  for temperature in (1.0, 2.0):
    samples = electra_objective.sample_tokens(logits, jax.random.key(1), temperature)
    assert_fits(np.bincount(np.asarray(samples)[0], minlength=4), shares ** (1 / temperature))
  model = tiny.model(ELECTRA, family=electra)
  data = batch()
  arrays = params.arrays(model)

  def discriminator_logits(arrays):
    _, sums = electra_objective.Objective()(params.with_arrays(model, arrays), data)
    return sums["discriminator_loss"]

  gradients = jax.jit(jax.grad(discriminator_logits))(arrays)
  generator_names = [
    name for name in gradients if name.startswith(("generator/head", "generator/encoder"))
  ]
  assert generator_names
  assert all(not np.asarray(gradients[name]).any() for name in generator_names)
  assert any(np.asarray(gradients[name]).any() for name in gradients if name.startswith("head"))


@pytest.mark.parametrize(
  ("objective", "family", "size", "head"),
  [
    (mlm.Objective(z_loss=0.1), bert, SIZE, "pretraining"),
    (span_boundary.Objective(), bert, SIZE, "span_boundary"),
    pytest.param(
      electra_objective.Objective(temperature=1e-4), electra, ELECTRA, None, marks=pytest.mark.more
    ),  # near zero samples do not depend on shapes
  ],
  ids=["mlm", "span_boundary", "electra"],
)
def test_logits_at_masked_positions_alone_change_no_loss(objective, family, size, head):
  model = tiny.model(size, family=family, **({"head": head} if head else {}))
  everywhere = batch()
  positions = np.zeros((B, 5), np.int32)  # one more than any row needs
  for row, weights in enumerate(everywhere["encoder_loss_weights"]):
    positions[row, : np.count_nonzero(weights)] = np.flatnonzero(weights)
  chosen = everywhere | {"encoder_masked_positions": positions}

  @jax.jit
  def run(arrays, data):

    def loss(arrays):
      return objective(params.with_arrays(model, arrays), data)

    return jax.value_and_grad(loss, has_aux=True)(arrays)

  arrays = params.arrays(model)
  (loss, sums), gradients = run(arrays, everywhere)
  (loss_2, sums_2), gradients_2 = run(arrays, chosen)
  assert float(loss_2) == pytest.approx(float(loss), rel=1e-5)
  assert jax.tree.map(float, sums_2) == pytest.approx(jax.tree.map(float, sums), rel=1e-5)
  largest = max(float(jnp.max(jnp.abs(g))) for g in gradients.values())
  for name, g in gradients.items():
    assert np.allclose(gradients_2[name], g, rtol=1e-4, atol=1e-6 * largest)


@pytest.mark.parametrize(
  ("objective", "family", "size"),
  more.beyond(1, [*OBJECTIVES, (ALIKE, electra, ELECTRA)]),
  ids=[*NAMES, "electra"],
)
def test_parts_of_a_batch_and_devices_change_no_loss(objective, family, size):
  make = tiny.maker(size, family=family)
  losses = []
  for devices, parts in ((1, 1), (4, 2)):
    rules = Rules.make(make_mesh({"data": -1}, jax.devices()[:devices]), {})
    model = jax.eval_shape(make, jax.random.key(0))
    schedule = SCHEDULES["constant"](learning_rate=1.0)
    optimizer = build_optimizer("sgd", schedule)
    abstract = abstract_state(model, optimizer, rules)
    state = init_state(make, optimizer, abstract, 0)
    step = make_step(model, objective, optimizer, schedule, rules, seed=0, accumulation_steps=parts)
    data = {name: jax.device_put(x, rules.batch()) for name, x in batch().items()}
    state, metrics = jax.jit(step)(state, data)
    losses.append(
      (
        {n: np.asarray(x) for n, x in state.params.items()},
        {n: float(x) for n, x in metrics.items()},
      )
    )
  for arrays, metrics in losses[1:]:
    assert metrics == pytest.approx(losses[0][1], rel=2e-4, abs=1e-5)
    for name, x in arrays.items():
      assert np.allclose(x, losses[0][0][name], atol=2e-4), name


@pytest.mark.parametrize(
  ("objective", "family", "size"),
  [(mlm.Objective(), bert, SIZE), (ALIKE, electra, ELECTRA)],
  ids=["mlm", "electra"],
)
def test_means_over_an_evaluation_set_do_not_depend_on_the_batch_size(objective, family, size):
  """Means of batches would depend on how rows of different lengths are batched."""
  model = tiny.model(size, family=family)
  data = batch()
  run = jax.jit(objective)
  means = []
  shares = []
  for cuts in ([0, 8], [0, 4, 8], [0, 1, 8]):
    parts = [run(model, {n: x[a:b] for n, x in data.items()})[1] for a, b in zip(cuts, cuts[1:])]
    sums = {name: sum(float(part[name]) for part in parts) for name in parts[0]}
    means.append({name: total / sums[denominator(name, sums)] for name, total in sums.items()})
    shares += [float(part["weights"]) / (b - a) for part, a, b in zip(parts, cuts, cuts[1:])]
  assert max(shares) > 1.2 * min(shares)
  assert means[1] == pytest.approx(means[0], rel=1e-5)
  assert means[2] == pytest.approx(means[0], rel=1e-5)

"""DeepSeek-V3 caches latents, balances experts by biases, and predicts the second next token."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import more
from t5x_like.architectures.design import Variant
from t5x_like.errors import UserError
from t5x_like.models import deepseek
from t5x_like.nn import params
from t5x_like.nn.dims import Dims
from t5x_like.nn.feed_forward.moe import Moe
from t5x_like.nn.layer import Context
from t5x_like.nn.mask import Mask, positions
from t5x_like.objectives import decoder
from t5x_like.objectives.multi_token import Objective
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from t5x_like.training.optimizer import with_sign_steps
from t5x_like.training.schedule import SCHEDULES
from t5x_like.training.state import TrainState
from t5x_like.training.step import make_step
from tests.models import families

LATENT = dict(rank=6, query_rank=4, rope=2, value=3)
ROUTING = deepseek.make_experts(experts=8, top_k=2, mlp=12, groups=4, top_groups=2, bias_rate=0.125)
SMALL = Variant(
  Dims(16, 4, 4, 8, 24, 3), deepseek.make_design(LATENT, ROUTING, 1), 64, deepseek.TOKENS
)
BALANCE = "decoder/rest/blocks/moe/layer/router/balance"


@functools.cache
def build_model(depth=0, **changes):
  variant = dataclasses.replace(
    SMALL, design=dataclasses.replace(SMALL.design, init_stddev=0.3, **changes)
  )

  def make(key):
    return deepseek.Model(nnx.Rngs(params=key), variant=variant, mtp_depth=depth)

  return jax.jit(make)(jax.random.key(0))


def make_batch(num_rows=4, length=9):
  """Return random rows whose last two tokens have weight 0."""
  tokens = np.random.default_rng(0).integers(2, 64, (num_rows, length + 1)).astype(np.int32)
  weights = np.ones((num_rows, length), np.float32)
  weights[:, -2:] = 0.0
  return {
    "decoder_input_tokens": tokens[:, :-1],
    "decoder_target_tokens": tokens[:, 1:],
    "decoder_loss_weights": weights,
  }


def test_cache_contains_a_latent_and_one_key_per_token():
  model = build_model()
  cache = jax.eval_shape(lambda: model.start_decoding(make_batch(), 9)).cache
  shapes = {x.shape for x in jax.tree.leaves(cache)}
  assert shapes == {(1, 4, 9, 6 + 2), (2, 4, 9, 6 + 2)}  # layers, rows, slots, rank + rope


def take_step(rules, accumulation_steps):
  """Return the parameters before and after a step with clipped gradients, and its metrics."""
  model = build_model()
  schedule = SCHEDULES["constant"](learning_rate=0.0)
  named_params = params.named_params(model)
  sign_steps = {name: p.step for name, p in named_params.items() if hasattr(p, "step")}
  clipping = optax.with_extra_args_support(optax.clip_by_global_norm(1.0))
  optimizer = with_sign_steps(clipping, sign_steps)
  step = make_step(
    model,
    decoder.Objective(),
    optimizer,
    schedule,
    rules,
    seed=0,
    accumulation_steps=accumulation_steps,
  )
  arrays = params.arrays(model)
  if rules.mesh.size > 1:
    arrays = jax.device_put(arrays, rules.param_shardings(named_params))
  before = jax.tree.map(np.asarray, arrays)
  state = TrainState(jnp.int32(0), arrays, optimizer.init(arrays))
  new_state, metrics = jax.jit(step)(state, make_batch())
  return before, new_state.params, metrics


def count_expert_loads():
  """Return the number of tokens of each expert, [2, 8], in the two layers with experts."""
  model = params.with_arrays(build_model(), params.arrays(build_model()))
  loads = []
  original_call = Moe.__call__

  def counting_call(self, x_BTD, context, cache, key):
    routing = self.router(x_BTD, None)
    loads.append(np.bincount(np.asarray(routing.experts_BTk).ravel(), minlength=8))
    return original_call(self, x_BTD, context, cache, key)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(Moe, "__call__", counting_call)
    model.decoder.rest.layers = "loop"
    model.outputs(make_batch())
  return np.stack(loads)


@pytest.mark.parametrize("division", more.beyond(1, ["accumulated", "whole", "sharded"]))
def test_step_changes_biases_against_the_load_of_the_global_batch(division):
  """The load does not depend on accumulation or sharding."""
  if division == "sharded":
    mesh = make_mesh({"data": 2, "expert": 2, "fsdp": 2})
  else:
    mesh = make_mesh({"data": 1}, jax.devices()[:1])
  accumulation_steps = 2 if division == "accumulated" else 1
  before, after, metrics = take_step(Rules.make(mesh), accumulation_steps)
  loads = count_expert_loads()
  assert loads.sum() == 2 * 4 * 9 * 2  # layers, rows, tokens, experts of a token
  assert len(np.unique(loads)) > 3
  excess = loads - loads.mean(1, keepdims=True)
  np.testing.assert_array_equal(after[BALANCE], -0.125 * np.sign(excess))
  assert not before[BALANCE].any()
  assert float(metrics["gradient_norm"]) < 100


def test_biases_balance_a_skewed_layer():
  """Tokens that prefer two of eight experts are distributed over all, without an auxiliary loss."""
  experts = dataclasses.replace(ROUTING, groups=1, top_groups=1, bias_rate=0.01, shared=0)
  layer = Moe(16, 12, nnx.Rngs(params=0), experts, activation=jax.nn.silu, gated=True)
  x = jax.random.normal(jax.random.key(0), (8, 16, 16)) + 1.0
  context = Context(Mask(positions(16), positions(16)))
  initial_arrays = params.arrays(layer)
  skewed_kernel = initial_arrays["router/kernel"].at[:, :2].add(0.1)
  initial_arrays["router/kernel"] = skewed_kernel

  def loss(arrays):
    y, aux, _ = params.with_arrays(layer, arrays)(x, context, None, None)
    return jnp.sum(y**2), aux["load"].scalars()["moe_violation"]

  def step(arrays, _):
    gradients, violation = jax.grad(loss, has_aux=True)(arrays)
    balance = arrays["router/balance"] - 0.01 * jnp.sign(gradients["router/balance"])
    return arrays | {"router/balance": balance}, violation

  run_steps = jax.jit(lambda arrays: jax.lax.scan(step, arrays, length=100))
  _, violations = run_steps(initial_arrays)
  assert violations[0] > 2.0
  assert violations[-10:].mean() < 0.2


def test_experts_are_chosen_from_the_best_groups():
  router = build_model().decoder.rest.blocks.moe.layer.router
  logits = jnp.asarray(np.random.default_rng(1).standard_normal((2, 5, 8)), jnp.float32)
  router = jax.tree.map(lambda x: x[0], router)
  router.balance = nnx.Param(jnp.linspace(-0.2, 0.2, 8), axes=(None,), unit=(1,))
  routing = router.choose(logits)
  for position in np.ndindex(2, 5):
    scores = 1 / (1 + np.exp(-np.asarray(logits[position])))
    biased_scores = scores + np.linspace(-0.2, 0.2, 8)
    group_scores = biased_scores.reshape(4, 2).sum(1)
    candidates = []
    for group in np.argsort(-group_scores)[:2]:
      candidates += [2 * group, 2 * group + 1]
    chosen = sorted(candidates, key=lambda expert: -biased_scores[expert])[:2]
    assert list(routing.experts_BTk[position]) == chosen
    expected_gates = 2.5 * scores[chosen] / scores[chosen].sum()
    np.testing.assert_allclose(routing.gates_BTk[position], expected_gates, rtol=1e-5)


def test_additional_block_predicts_the_second_next_token():
  """It sees the next token too, and shares the embedding and the head of the model."""
  model = build_model(depth=1)
  batch = make_batch()
  block_params = [name for name in params.named_params(model) if name.startswith("mtp")]
  assert not any("table" in name or "head" in name for name in block_params)
  objective = Objective(next_weight=0.3)
  loss, sums = jax.jit(lambda model, batch: objective(model, batch))(model, batch)
  next_logits = jax.jit(lambda model, batch: model(batch)["next_logits"])
  log_p = np.asarray(jax.nn.log_softmax(next_logits(model, batch)))
  targets = batch["decoder_target_tokens"][:, 1:]
  weights = batch["decoder_loss_weights"][:, 1:]
  target_log_p = np.take_along_axis(log_p[:, :-1], targets[..., None], -1)[..., 0]
  expected_next_loss = -np.sum(target_log_p * weights)
  np.testing.assert_allclose(sums["next_loss"], expected_next_loss, rtol=1e-5)
  assert float(sums["next_weights"]) == weights.sum()
  expected_loss = sums["loss"] + 0.3 * expected_next_loss + sums["moe_balance_loss"]
  np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
  nudged_tokens = batch["decoder_input_tokens"].copy()
  nudged_tokens[:, 5] = 63
  nudged_batch = batch | {"decoder_input_tokens": nudged_tokens}
  difference = np.abs(next_logits(model, nudged_batch) - next_logits(model, batch))
  is_changed = difference.max((0, 2)) > 1e-6
  assert list(is_changed) == [False] * 4 + [True] * 5
  with pytest.raises(UserError, match="config.model.mtp_depth=1"):
    Objective.check(build_model(), {})


def test_additional_predictions_stay_within_packed_sequences():
  model = build_model(depth=1)
  batch = make_batch(num_rows=1)
  batch["decoder_loss_weights"] = np.ones((1, 9), np.float32)
  segments = np.array([[1] * 4 + [2] * 5], np.int32)
  positions = np.concatenate([np.arange(4), np.arange(5)])[None].astype(np.int32)
  packed_batch = batch | {"decoder_segment_ids": segments, "decoder_positions": positions}

  @jax.jit
  def compute_sums(model, batch):
    _, sums = Objective()(model, batch)
    return sums

  sums = compute_sums(model, packed_batch)
  separate_loss = 0.0
  for part in (slice(0, 4), slice(4, 9)):
    sequence = {name: x[:, part] for name, x in batch.items()}
    separate_loss += compute_sums(model, sequence)["next_loss"]
  np.testing.assert_allclose(sums["next_loss"], separate_loss, rtol=1e-5)
  assert float(sums["next_weights"]) == 3 + 4


def test_dense_layers_come_first():
  case = families.Case("deepseek:v3", "deepseek", families.shrink(deepseek.VARIANTS["v3"]))
  names = params.named_params(families.abstract(case))
  assert any(n.startswith("decoder/first/blocks/mlp") for n in names)
  assert not any("first/blocks/moe" in n or "rest/blocks/mlp" in n for n in names)
  with pytest.raises(UserError, match="dense_layers: found 3, expected fewer than the 3 layers"):
    build_model(dense_layers=3)

"""DeepSeek-V3 caches latents, balances loads by biases, and predicts the token after the next."""

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
ROUTING = deepseek.routing(experts=8, top_k=2, mlp=12, groups=4, top_groups=2, bias_rate=0.125)
SMALL = Variant(Dims(16, 4, 4, 8, 24, 3), deepseek.design(LATENT, ROUTING, 1), 64, deepseek.TOKENS)
BALANCE = "decoder/rest/blocks/moe/layer/router/balance"


@functools.cache
def build_model(depth=0, **changes):
  variant = dataclasses.replace(
    SMALL, design=dataclasses.replace(SMALL.design, init_stddev=0.3, **changes)
  )

  def make(key):
    return deepseek.Model(nnx.Rngs(params=key), variant=variant, mtp_depth=depth)

  return jax.jit(make)(jax.random.key(0))


def batch(rows=4, length=9):
  tokens = np.random.default_rng(0).integers(2, 64, (rows, length + 1)).astype(np.int32)
  weights = np.ones((rows, length), np.float32)
  weights[:, -2:] = 0.0
  named = dict(input_tokens=tokens[:, :-1], target_tokens=tokens[:, 1:], loss_weights=weights)
  return {f"decoder_{name}": x for name, x in named.items()}


def test_the_cache_holds_the_latent_and_one_key():
  model = build_model()
  cache = jax.eval_shape(lambda: model.start_decoding(batch(), 9)).cache
  shapes = {x.shape for x in jax.tree.leaves(cache)}
  assert shapes == {(1, 4, 9, 6 + 2), (2, 4, 9, 6 + 2)}  # layers, rows, slots, rank + rope


def take_step(rules=None, parts=1):
  """Return the parameters before and after a step of plain descent, and its metrics."""
  model = build_model()
  schedule = SCHEDULES["constant"](learning_rate=0.0)
  named = params.named_params(model)
  clipped = optax.with_extra_args_support(optax.clip_by_global_norm(1.0))
  optimizer = with_sign_steps(clipped, {n: p.step for n, p in named.items() if hasattr(p, "step")})
  rules = rules or Rules.make(make_mesh({"data": 1}, jax.devices()[:1]))
  step = make_step(
    model, decoder.Objective(), optimizer, schedule, rules, seed=0, accumulation_steps=parts
  )
  arrays = params.arrays(model)
  if rules.mesh.size > 1:
    arrays = jax.device_put(arrays, rules.param_shardings(named))
  before = jax.tree.map(np.asarray, arrays)
  state, metrics = jax.jit(step)(TrainState(jnp.int32(0), arrays, optimizer.init(arrays)), batch())
  return before, state.params, metrics


def loads():
  """Count the choices of each expert of the two layers with experts."""
  model = params.with_arrays(build_model(), params.arrays(build_model()))
  counted = []
  original = Moe.__call__

  def spy(self, x_BTD, context, cache, key):
    routing = self.router(x_BTD, None)
    counted.append(np.bincount(np.asarray(routing.experts_BTk).ravel(), minlength=8))
    return original(self, x_BTD, context, cache, key)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(Moe, "__call__", spy)
    model.decoder.rest.layers = "loop"
    model.outputs(batch())
  return np.stack(counted)


@pytest.mark.parametrize("way", more.beyond(1, ["accumulated", "whole", "sharded"]))
def test_a_step_moves_biases_against_the_load(way):
  """Each moves by its step, by the load of the global batch, however it is cut."""
  rules = Rules.make(make_mesh({"data": 2, "expert": 2, "fsdp": 2})) if way == "sharded" else None
  before, after, metrics = take_step(rules, parts=2 if way == "accumulated" else 1)
  loads_after = loads()
  assert loads_after.sum() == 2 * 4 * 9 * 2
  assert len(np.unique(loads_after)) > 3
  np.testing.assert_array_equal(
    after[BALANCE], -0.125 * np.sign(loads_after - loads_after.mean(1, keepdims=True))
  )
  assert not before[BALANCE].any()
  assert float(metrics["gradient_norm"]) < 100


def test_biases_balance_a_skewed_layer():
  """Tokens that prefer two experts of eight end up on all, without a loss that asks for it."""
  experts = dataclasses.replace(ROUTING, groups=1, top_groups=1, bias_rate=0.01, shared=0)
  layer = Moe(16, 12, nnx.Rngs(params=0), experts, activation=jax.nn.silu, gated=True)
  x = jax.random.normal(jax.random.key(0), (8, 16, 16)) + 1.0
  context = Context(Mask(positions(16), positions(16)))
  start = params.arrays(layer)
  start["router/kernel"] = start["router/kernel"].at[:, :2].add(0.1)

  def loss(arrays):
    y, aux, _ = params.with_arrays(layer, arrays)(x, context, None, None)
    return jnp.sum(y**2), aux["load"].scalars()["moe_violation"]

  def step(arrays, _):
    gradients, violation = jax.grad(loss, has_aux=True)(arrays)
    balance = arrays["router/balance"] - 0.01 * jnp.sign(gradients["router/balance"])
    return arrays | {"router/balance": balance}, violation

  _, violations = jax.jit(lambda a: jax.lax.scan(step, a, length=100))(start)
  assert violations[0] > 2.0
  assert violations[-10:].mean() < 0.2


def test_a_token_chooses_experts_of_its_best_groups():
  router = build_model().decoder.rest.blocks.moe.layer.router
  logits = jnp.asarray(np.random.default_rng(1).standard_normal((2, 5, 8)), jnp.float32)
  router = jax.tree.map(lambda x: x[0], router)
  router.balance = nnx.Param(jnp.linspace(-0.2, 0.2, 8), axes=(None,), unit=(1,))
  routing = router.choose(logits)
  for position in np.ndindex(2, 5):
    scores = 1 / (1 + np.exp(-np.asarray(logits[position])))
    biased = (scores + np.linspace(-0.2, 0.2, 8)).reshape(4, 2)
    groups = np.argsort(-biased.sum(1))[:2]
    allowed = sorted(
      (e for g in groups for e in (2 * g, 2 * g + 1)), key=lambda e: -biased.ravel()[e]
    )[:2]
    assert list(routing.experts_BTk[position]) == allowed
    np.testing.assert_allclose(
      routing.gates_BTk[position], 2.5 * scores[allowed] / scores[allowed].sum(), rtol=1e-5
    )


def test_the_second_block_predicts_the_token_after_the_next():
  """Targets lie two ahead; the block sees the next token only; table and head are shared."""
  model = build_model(depth=1)
  data = batch()
  assert not [
    n for n in params.named_params(model) if n.startswith("mtp") and ("table" in n or "head" in n)
  ]
  loss, sums = jax.jit(lambda m, b: Objective(next_weight=0.3)(m, b))(model, data)
  run = jax.jit(lambda m, b: m(b)["next_logits"])
  logits = np.asarray(jax.nn.log_softmax(run(model, data)))
  targets = data["decoder_target_tokens"][:, 1:]
  weights = data["decoder_loss_weights"][:, 1:]
  expected = -np.sum(np.take_along_axis(logits[:, :-1], targets[..., None], -1)[..., 0] * weights)
  np.testing.assert_allclose(sums["next_loss"], expected, rtol=1e-5)
  assert float(sums["next_weights"]) == weights.sum()
  np.testing.assert_allclose(
    loss, sums["loss"] + 0.3 * expected + sums["moe_balance_loss"], rtol=1e-5
  )
  nudged = data | {"decoder_input_tokens": data["decoder_input_tokens"].copy()}
  nudged["decoder_input_tokens"][:, 5] = 63
  changed = np.abs(run(model, nudged) - run(model, data)).max((0, 2)) > 1e-6
  assert list(changed) == [False] * 4 + [True] * 5
  with pytest.raises(UserError, match="config.model.mtp_depth=1"):
    Objective.check(build_model(), {})


def test_packed_rows_predict_within_their_sequence():
  model = build_model(depth=1)
  data = batch(rows=1)
  segments = np.array([[1] * 4 + [2] * 5], np.int32)
  positions = np.concatenate([np.arange(4), np.arange(5)])[None].astype(np.int32)
  packed = data | {"decoder_segment_ids": segments, "decoder_positions": positions}
  packed["decoder_loss_weights"] = np.ones((1, 9), np.float32)
  run = jax.jit(lambda m, b: Objective()(m, b)[1])
  sums = run(model, packed)
  separate_loss = 0.0
  for part in (slice(0, 4), slice(4, 9)):
    alone = run(model, {n: x[:, part] for n, x in packed.items() if n in data})
    separate_loss += alone["next_loss"]
  np.testing.assert_allclose(sums["next_loss"], separate_loss, rtol=1e-5)
  assert float(sums["next_weights"]) == 3 + 4


def test_dense_layers_come_first():
  case = families.Case("deepseek:v3", "deepseek", families.shrunk(deepseek.VARIANTS["v3"]))
  names = params.named_params(families.abstract(case))
  assert any(n.startswith("decoder/first/blocks/mlp") for n in names)
  assert not any("first/blocks/moe" in n or "rest/blocks/mlp" in n for n in names)
  with pytest.raises(UserError, match="dense_layers: found 3, expected fewer than the 3 layers"):
    build_model(dense_layers=3)

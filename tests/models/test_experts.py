"""Switch Transformers and Mixtral have their published sizes, and train, shard and decode."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import tiny
from t5x_like.architectures.design import Variant
from t5x_like.models import mixtral, switch
from t5x_like.nn import params
from t5x_like.nn.dims import Dims
from t5x_like.objectives import denominator
from t5x_like.objectives.encoder_decoder import Objective
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from t5x_like.training import flops, jaxpr_flops
from t5x_like.training.optimizer import build_optimizer, update_layerwise
from t5x_like.training.schedule import SCHEDULES
from t5x_like.training.state import TrainState
from t5x_like.training.step import make_step

# the paper's for 1.1B (16 experts) to 14.7B, large, xxl and c, to about its digits; the rest by the
# formula
COUNTS = {
  (switch, "switch-base-8"): (619.3e6, 0.1e6),
  (switch, "switch-base-16"): (1.07e9, 0.01e9),
  (switch, "switch-base-32"): (1.98e9, 0.01e9),
  (switch, "switch-base-64"): (3.79e9, 0.01e9),
  (switch, "switch-base-128"): (7.4e9, 0.05e9),
  (switch, "switch-base-256"): (14.7e9, 0.05e9),
  (switch, "switch-large-128"): (26.3e9, 0.05e9),
  (switch, "switch-xxl-128"): (395e9, 0.5e9),
  (switch, "switch-c-2048"): (1571e9, 0.5e9),
  (mixtral, "8x7b"): (46.7e9, 0.05e9),
  (mixtral, "8x22b"): (140.6e9, 0.05e9),
}


def abstract(family, variant, **arguments):
  return jax.eval_shape(
    lambda key: family.Model(nnx.Rngs(params=key), variant=variant, **arguments), jax.random.key(0)
  )


@pytest.mark.parametrize("family, name", COUNTS, ids=[name for _, name in COUNTS])
def test_published_sizes(family, name):
  count, digits = COUNTS[family, name]
  assert abs(params.count(abstract(family, name)) - count) < digits


@pytest.mark.parametrize(
  "family, name, active", [(mixtral, "8x7b", 12.9e9), (mixtral, "8x22b", 39.1e9)]
)
def test_published_active_sizes(family, name, active):
  """A token meets all parameters but those of experts that it is not sent to."""
  named = params.named_params(abstract(family, name))
  size = sum(np.prod(p.shape) * (2 / 8 if "expert" in p.axes else 1) for p in named.values())
  assert abs(size - active) < 0.1e9


def test_experts_are_in_the_layers_of_the_checkpoints():
  """Layers 1, 3, 5, … from 0, as transformers places them; all of c."""
  for name, layers in (("switch-base-8", ["mlp_0", "moe_1"]), ("switch-c-2048", ["moe"])):
    model = abstract(switch, name)
    for stack in (model.encoder, model.decoder):
      assert [n for n in stack.blocks.names if n[:3] in ("mlp", "moe")] == layers
      assert stack.repeats == model.variant.dims.layers // len(layers)


# Tiny ones


SWITCH = Variant(Dims(16, 4, 4, 4, 32, 2), switch.VARIANTS["switch-base-8"].design, tiny.VOCAB)
MIXTRAL = Variant(Dims(16, 4, 2, 4, 32, 2), mixtral.DESIGN, tiny.VOCAB, mixtral.TOKENS)
EXPERTS = {**dataclasses.asdict(switch.ROUTING), "experts": 4}


@functools.cache
def tiny_switch(**arguments):
  make = tiny.maker(
    SWITCH, family=switch, design={"experts": {**EXPERTS, "z_loss": 0.01}}, **arguments
  )
  return make, jax.jit(make)(jax.random.key(1))


def mixtral_with(**experts):
  changes = {
    "experts": {**dataclasses.asdict(mixtral.DESIGN.experts), "experts": 4, **experts},
    "init_stddev": 0.3,
  }
  return jax.jit(tiny.maker(MIXTRAL, family=mixtral, design=changes))(jax.random.key(2))


@pytest.mark.parametrize(
  "experts", [{}, {"dispatch": "capacity", "capacity_factor": 0.5}], ids=["dropless", "capacity"]
)
def test_decoding_a_mixtral_is_its_forward_pass(experts):
  """Prefill of five, then one at a time; capacities must not bind while decoding, so both equal the
  dropless pass."""
  tokens = jnp.asarray(np.random.default_rng(0).integers(3, tiny.VOCAB, (3, 9)), jnp.int32)
  expected = jax.jit(lambda model: model({"decoder_input_tokens": tokens})["logits"])(
    mixtral_with()
  )
  model = mixtral_with(**experts)
  decode = jax.jit(lambda model, tokens, state: model.decode(tokens, state))
  state = model.start_decoding({"decoder_input_tokens": tokens}, 9)
  pieces = []
  for start, end in [(0, 5), *((t, t + 1) for t in range(5, 9))]:
    logits, state = decode(model, tokens[:, start:end], state)
    pieces.append(logits)
  np.testing.assert_allclose(
    np.concatenate(pieces, axis=1), expected, atol=1e-5 * np.abs(expected).max()
  )
  assert np.abs(expected).max() > 1


@pytest.mark.more
def test_scan_and_remat_change_nothing():
  batch = tiny.batch(4, 8, 6)
  results = []
  for form in ({"layers": "loop"}, {"layers": "scan", "remat": "full"}):
    _, model = tiny_switch(**form)

    def loss(arrays, model=model):
      return Objective()(params.with_arrays(model, arrays), batch, jax.random.key(0))

    results.append(jax.jit(jax.value_and_grad(loss, has_aux=True))(params.arrays(model)))
  (first, sums), gradients = results[0]
  for (value, other_sums), other_gradients in results[1:]:
    np.testing.assert_allclose(value, first, rtol=1e-5)
    np.testing.assert_allclose(
      [other_sums[n] for n in sums], [sums[n] for n in sums], rtol=1e-5, atol=1e-6
    )
    assert tiny.relative_error(other_gradients, gradients) < 1e-4


def test_padding_changes_no_router_loss_and_no_logit():
  """More padding is added on both sides."""
  _, model = tiny_switch()
  batch = {n: x for n, x in tiny.batch(3, 8, 6).items() if "input" in n}
  longer = {n: np.pad(x, ((0, 0), (0, 4))) for n, x in batch.items()}
  run = jax.jit(lambda model, batch: model(batch))
  short = run(model, batch)
  long = run(model, longer)
  valid = (batch["decoder_input_tokens"] != 0) | (np.arange(6) == 0)
  np.testing.assert_allclose(long["logits"][:, :6][valid], short["logits"][valid], atol=1e-5)
  for name in ("moe_balance_loss", "moe_z_loss"):
    np.testing.assert_allclose(long[name], short[name], rtol=1e-5, err_msg=name)


@pytest.mark.more
def test_a_switch_on_a_mesh_is_one_on_one_device():
  rules = Rules.make(make_mesh({"expert": 2, "data": 2, "tensor": 2}))
  experts = {**EXPERTS, "dispatch": "capacity", "z_loss": 0.01}
  model = jax.jit(tiny.maker(SWITCH, family=switch, design={"experts": experts}))(jax.random.key(1))
  arrays = params.arrays(model)
  batch = tiny.batch(8, 8, 6)

  def loss(arrays, batch):
    return Objective()(params.with_arrays(model, arrays), batch)

  def on_mesh(arrays, batch):
    with rules.activate():
      return jax.value_and_grad(loss, has_aux=True)(arrays, batch)

  (expected, sums), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(arrays, batch)
  shardings = rules.param_shardings(params.named_params(model))
  step = jax.jit(on_mesh, in_shardings=(shardings, rules.batch()), out_shardings=(None, shardings))
  (value, sharded_sums), sharded = step(
    jax.device_put(arrays, shardings), jax.device_put(batch, rules.batch())
  )
  np.testing.assert_allclose(value, expected, rtol=1e-5)
  np.testing.assert_allclose([sharded_sums[n] for n in sums], list(sums.values()), rtol=1e-5)
  assert tiny.relative_error(sharded, gradients) < 1e-5
  assert float(sums["moe_dropped"]) > 0


def test_the_objective_adds_the_losses_of_the_routers():
  _, model = tiny_switch()
  batch = tiny.batch(4, 8, 6)
  outputs = jax.jit(lambda model: model(batch))(model)
  loss, sums = jax.jit(lambda model: Objective(z_loss=1e-3)(model, batch))(model)
  weights = batch["decoder_loss_weights"].sum()
  for name in ("moe_balance_loss", "moe_z_loss", "moe_dropped"):
    np.testing.assert_allclose(sums[name], outputs[name] * weights, rtol=1e-6)
  for name in ("moe_dropped", "moe_violation"):  # means over both layers
    assert float(sums[denominator(name, sums)]) == 2 * weights
    assert denominator("moe_z_loss", sums) == "weights"
  # one layer with experts in each of two stacks
  assert float(outputs["moe_balance_loss"]) >= 2 * 0.01 * 0.99
  added = sums["loss"] + sums["z_loss"] + sums["moe_balance_loss"] + sums["moe_z_loss"]
  np.testing.assert_allclose(loss, added, rtol=1e-6)


@pytest.mark.more
def test_accumulated_steps_show_and_lower_the_losses():
  """Each part of the batch is balanced by itself, and counts by its target tokens; every parameter
  moves."""
  rules = Rules.make(make_mesh({"data": 1}, jax.devices()[:1]))
  make = tiny.maker(
    SWITCH, family=switch, design={"experts": {**EXPERTS, "z_loss": 0.01, "jitter": 0.0}}
  )
  model = jax.jit(make)(jax.random.key(1))
  schedule = SCHEDULES["constant"](learning_rate=0.01)
  axes = {n: p.axes for n, p in params.named_params(model).items()}
  optimizer = update_layerwise(build_optimizer("adamw", schedule), axes)
  batch = tiny.batch(8, 8, 6)
  evaluate = jax.jit(lambda model, batch: Objective()(model, batch)[1])
  halves = [evaluate(model, {n: x[i::2] for n, x in batch.items()}) for i in (0, 1)]
  abstract_model = jax.eval_shape(make, jax.random.key(0))
  step = jax.jit(
    make_step(abstract_model, Objective(), optimizer, schedule, rules, seed=0, accumulation_steps=2)
  )
  arrays = params.arrays(model)
  state = TrainState(jnp.int32(0), arrays, optimizer.init(arrays))
  history = []
  for _ in range(8):
    state, metrics = step(state, batch)
    history.append({name: float(value) for name, value in metrics.items()})
  for name in ("loss", "z_loss", "moe_balance_loss", "moe_z_loss", "moe_dropped"):
    weight = sum(h[denominator(name, h)] for h in halves)
    np.testing.assert_allclose(
      history[0][name], sum(h[name] for h in halves) / weight, rtol=1e-5, err_msg=name
    )
  assert history[-1]["loss"] < history[0]["loss"] - 0.5
  for name, before in arrays.items():
    assert float(jnp.abs(state.params[name] - before).max()) > 1e-3, name


def test_flops_of_mixtral_are_those_of_two_experts():
  B = 2
  T = 128
  model = abstract(mixtral, "8x7b")
  batch = {"decoder_input_tokens": jax.ShapeDtypeStruct((B, T), jnp.int32)}
  count = jaxpr_flops.forward_flops(lambda model, batch: model(batch)["logits"], model, batch)
  D = 4096
  F = 14336
  L = 32
  layer = 2 * (2 * D * D + 2 * D * 1024) + 2 * 2 * 3 * D * F + 2 * D * 8 + 4 * T * D // 2  # causal
  assert count == B * T * (L * layer + 2 * D * 32000)
  experts = dataclasses.replace(
    mixtral.VARIANTS["8x7b"].design.experts, dispatch="capacity", capacity_factor=1.5
  )
  model = flops.with_dense_cores(
    abstract(mixtral, "8x7b", design={"experts": dataclasses.asdict(experts)})
  )
  assert count == jaxpr_flops.forward_flops(
    lambda model, batch: model(batch)["logits"], model, batch
  )

"""Switch Transformers and Mixtral have their published experts, router losses and FLOPs."""

import dataclasses

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


def abstract(family, variant, **arguments):
  return jax.eval_shape(
    lambda key: family.Model(nnx.Rngs(params=key), variant=variant, **arguments), jax.random.key(0)
  )


@pytest.mark.parametrize("name, active", [("8x7b", 12.9e9), ("8x22b", 39.1e9)])
def test_active_parameters_of_a_token_equal_the_published_number(name, active):
  """These are all parameters except for those of experts that are not chosen."""
  named = params.named_params(abstract(mixtral, name))
  size = sum(np.prod(p.shape) * (2 / 8 if "expert" in p.axes else 1) for p in named.values())
  assert abs(size - active) < 0.1e9


def test_experts_are_in_the_same_layers_as_in_the_checkpoints():
  """In layers 1, 3, 5, … counted from 0, as in transformers; in all layers of switch-c."""
  for name, layers in (("switch-base-8", ["mlp_0", "moe_1"]), ("switch-c-2048", ["moe"])):
    model = abstract(switch, name)
    for stack in (model.encoder, model.decoder):
      assert [n for n in stack.blocks.names if n[:3] in ("mlp", "moe")] == layers
      assert stack.repeats == model.variant.dims.layers // len(layers)


# Small models


SWITCH = Variant(Dims(16, 4, 4, 4, 32, 2), switch.VARIANTS["switch-base-8"].design, tiny.VOCAB)
EXPERTS = {**dataclasses.asdict(switch.ROUTING), "experts": 4, "z_loss": 0.01}


def build_switch(**routing):
  """Return (a function from a key to a small Switch Transformer, the model of key 1)."""
  make = tiny.maker(SWITCH, family=switch, design={"experts": EXPERTS | routing})
  return make, jax.jit(make)(jax.random.key(1))


def test_objective_adds_the_losses_of_the_routers():
  _, model = build_switch()
  batch = tiny.batch(4, 8, 6)
  outputs = jax.jit(lambda model: model(batch))(model)
  loss, sums = jax.jit(lambda model: Objective(z_loss=1e-3)(model, batch))(model)
  weights = batch["decoder_loss_weights"].sum()
  for name in ("moe_balance_loss", "moe_z_loss", "moe_dropped"):
    np.testing.assert_allclose(sums[name], outputs[name] * weights, rtol=1e-6)
  for name in ("moe_dropped", "moe_violation"):  # means over both layers
    assert float(sums[denominator(name, sums)]) == 2 * weights
    assert denominator("moe_z_loss", sums) == "weights"
  # Each of the two stacks has one layer with experts.
  assert float(outputs["moe_balance_loss"]) >= 2 * 0.01 * 0.99
  added = sums["loss"] + sums["z_loss"] + sums["moe_balance_loss"] + sums["moe_z_loss"]
  np.testing.assert_allclose(loss, added, rtol=1e-6)


@pytest.mark.more
def test_accumulated_steps_report_and_lower_the_losses():
  """Each part of the batch is balanced separately and weighted by its target tokens.

  Every parameter changes.
  """
  rules = Rules.make(make_mesh({"data": 1}, jax.devices()[:1]))
  make, model = build_switch(jitter=0.0)
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


def test_flops_of_mixtral_count_two_experts():
  B = 2
  T = 128
  D = 4096
  F = 14336
  L = 32
  batch = {"decoder_input_tokens": jax.ShapeDtypeStruct((B, T), jnp.int32)}

  def count_flops(model):
    return jaxpr_flops.forward_flops(lambda model, batch: model(batch)["logits"], model, batch)

  projections = 2 * (2 * D * D + 2 * D * 1024)
  attention = 4 * T * D // 2  # causal
  layer = projections + attention + 2 * 2 * 3 * D * F + 2 * D * 8
  expected = B * T * (L * layer + 2 * D * 32000)
  assert count_flops(abstract(mixtral, "8x7b")) == expected
  published = mixtral.VARIANTS["8x7b"].design.experts
  experts = dataclasses.replace(published, dispatch="capacity", capacity_factor=1.5)
  model = abstract(mixtral, "8x7b", design={"experts": dataclasses.asdict(experts)})
  assert count_flops(flops.with_dense_cores(model)) == expected

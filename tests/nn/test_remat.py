"""Remat recomputes layers one at a time, and "minimal" saves the activations of experts."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.extend.core import jaxprs_in_params

from t5x_like.models import albert, gemma3, mixtral

GEMMA3_PERIOD = 6  # five local layers and a global one


def find_equations(jaxpr, primitive: str) -> list:
  """Return the equations of a program that apply a primitive."""
  return [equation for equation in jaxpr.eqns if equation.primitive.name == primitive]


@pytest.mark.parametrize("layers, is_loop", [(12, True), (6, False)])
def test_each_layer_of_a_period_is_recomputed_separately(layers, is_loop):
  tiny = gemma3.VARIANTS["tiny"]
  variant = dataclasses.replace(tiny, dims=dataclasses.replace(tiny.dims, layers=layers))
  model = jax.eval_shape(lambda: gemma3.Model(nnx.Rngs(0), variant=variant, remat="full"))
  ids_BT = jnp.zeros((2, 8), jnp.int32)
  names = ("decoder_input_tokens", "decoder_positions", "decoder_segment_ids")
  traced = jax.make_jaxpr(lambda model: model.outputs(dict.fromkeys(names, ids_BT)))(model)
  [scan] = find_equations(traced.jaxpr, "scan")
  regions = find_equations(scan.params["jaxpr"].jaxpr, "remat2")
  assert len(regions) == GEMMA3_PERIOD
  # The compiler unrolls a scan of one period, and would then merge recomputation with the forward
  # pass unless `prevent_cse` forbids it.
  for region in regions:
    assert region.params["prevent_cse"] is not is_loop


@pytest.mark.parametrize("layers, is_loop", [(3, True), (1, False)])
def test_scan_of_one_shared_layer_prevents_cse(layers, is_loop):
  tiny = albert.VARIANTS["albert-tiny"]
  variant = dataclasses.replace(tiny, dims=dataclasses.replace(tiny.dims, layers=layers))
  model = jax.eval_shape(lambda: albert.Model(nnx.Rngs(0), variant=variant, remat="full"))
  batch = {"encoder_input_tokens": jnp.zeros((2, 8), jnp.int32)}
  traced = jax.make_jaxpr(lambda model: model.outputs(batch)["next_sentence_logits"])(model)
  [scan] = find_equations(traced.jaxpr, "scan")
  [region] = find_equations(scan.params["jaxpr"].jaxpr, "remat2")
  assert region.params["prevent_cse"] is not is_loop


def count_grouped_products(jaxpr) -> int:
  """Count the grouped matrix products of a program and of its inner programs."""
  count = 0
  for equation in jaxpr.eqns:
    if equation.primitive.name.startswith("ragged_dot"):
      count += 1
    for inner in jaxprs_in_params(equation.params):
      count += count_grouped_products(inner)
  return count


# Each of the three kernels of an expert has a forward product and two products of gradients.
@pytest.mark.parametrize("remat, products", [("none", 9), ("minimal", 9), ("full", 9 + 3)])
def test_experts_with_saved_activations_are_not_recomputed(remat, products):
  model = jax.eval_shape(
    lambda: mixtral.Model(nnx.Rngs(0), variant=mixtral.VARIANTS["tiny"], remat=remat)
  )
  ids_BT = jnp.zeros((2, 8), jnp.int32)
  names = ("decoder_input_tokens", "decoder_positions", "decoder_segment_ids")
  graph, state = nnx.split(model)

  def loss(state):
    return nnx.merge(graph, state).outputs(dict.fromkeys(names, ids_BT))["logits"].dense().sum()

  assert count_grouped_products(jax.make_jaxpr(jax.grad(loss))(state).jaxpr) == products

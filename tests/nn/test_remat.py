"""Different layers of a period are recomputed one at a time, to keep few activations at once."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from t5x_like.models import albert, gemma3, mixtral


@pytest.mark.parametrize("layers, joined", [(12, True), (6, False)])
def test_each_layer_of_a_period_is_a_region_of_its_own(layers, joined):
  tiny = gemma3.VARIANTS["tiny"]
  variant = dataclasses.replace(tiny, dims=dataclasses.replace(tiny.dims, layers=layers))
  model = jax.eval_shape(lambda: gemma3.Model(nnx.Rngs(0), variant=variant, remat="full"))
  ids_BT = jnp.zeros((2, 8), jnp.int32)
  names = ("decoder_input_tokens", "decoder_positions", "decoder_segment_ids")
  traced = jax.make_jaxpr(lambda model: model.outputs(dict.fromkeys(names, ids_BT)))(model)
  (scan,) = (equation for equation in traced.jaxpr.eqns if equation.primitive.name == "scan")
  regions = [
    equation for equation in scan.params["jaxpr"].jaxpr.eqns if equation.primitive.name == "remat2"
  ]
  # A scan of one block is no loop once it is compiled: recomputing would be joined with the forward
  # pass.
  assert [not equation.params["prevent_cse"] for equation in regions] == [joined] * 6


@pytest.mark.parametrize("layers, joined", [(3, True), (1, False)])
def test_a_scan_of_one_shared_layer_is_guarded_too(layers, joined):
  tiny = albert.VARIANTS["albert-tiny"]
  variant = dataclasses.replace(tiny, dims=dataclasses.replace(tiny.dims, layers=layers))
  model = jax.eval_shape(lambda: albert.Model(nnx.Rngs(0), variant=variant, remat="full"))
  batch = {"encoder_input_tokens": jnp.zeros((2, 8), jnp.int32)}
  traced = jax.make_jaxpr(lambda model: model.outputs(batch)["next_sentence_logits"])(model)
  (scan,) = (equation for equation in traced.jaxpr.eqns if equation.primitive.name == "scan")
  (region,) = (
    equation for equation in scan.params["jaxpr"].jaxpr.eqns if equation.primitive.name == "remat2"
  )
  assert region.params["prevent_cse"] is not joined


def _products(jaxpr) -> int:
  """Count the grouped products of a program and of its inner programs."""
  inner = sum(
    _products(inner)
    for equation in jaxpr.eqns
    for inner in jax.core.jaxprs_in_params(equation.params)
  )
  return inner + sum(equation.primitive.name.startswith("ragged_dot") for equation in jaxpr.eqns)


@pytest.mark.parametrize("remat, again", [("none", 0), ("minimal", 0), ("full", 3)])
def test_experts_whose_activations_are_kept_are_not_applied_again(remat, again):
  model = jax.eval_shape(
    lambda: mixtral.Model(nnx.Rngs(0), variant=mixtral.VARIANTS["tiny"], remat=remat)
  )
  ids_BT = jnp.zeros((2, 8), jnp.int32)
  names = ("decoder_input_tokens", "decoder_positions", "decoder_segment_ids")
  graph, state = nnx.split(model)

  def loss(state):
    return nnx.merge(graph, state).outputs(dict.fromkeys(names, ids_BT))["logits"].dense().sum()

  assert _products(jax.make_jaxpr(jax.grad(loss))(state).jaxpr) == 9 + again

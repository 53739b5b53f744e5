"""Attention sinks: a softmax over one more logit, whichever way it is computed."""

import dataclasses

import core_cases as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.nn import params
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules

KINDS = [("packed_causal", "table"), ("causal_w5", "alibi_layer")]


def make_sinks(short=2**19):
  core = cases.make({"name": "sinks", "stddev": 2.0})
  core.max_dense_logits = short
  return core


def value_and_gradients(core, kind, bias, rules=None):
  """(output, gradients of sinks, queries, keys and values)."""
  mask, (stack, layer) = dataclasses.replace(cases.mask(kind), aligned=True), cases.bias(bias)
  rows = cases.sees_a_key(mask)

  def loss(arrays, q, k, v):
    out = params.with_arrays(core, arrays)(q, k, v, mask, stack, layer, scale=0.4)
    out = jnp.where(rows[:, :, None, None], out, 0.0)
    return jnp.sum(jnp.sin(out)), out

  def run(*args):
    if rules is None:
      return jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True)(*args)
    with rules.activate():
      return jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True)(*args)

  (_, out), gradients = jax.jit(run)(params.arrays(core), *cases.qkv())
  return out, gradients


def test_a_sink_is_a_logit_without_a_value():
  core, (q, k, v), mask = make_sinks(), cases.qkv(), cases.mask("causal")
  out = core(q, k, v, mask, scale=0.4)
  logits = np.einsum("BTKGH,BSKH->BKGTS", np.reshape(q, (2, 37, 2, 2, 8)) * 0.4, k).reshape(
    2, 4, 37, 37
  )
  weights = np.where(mask.dense(), np.exp(logits), 0.0)
  weights /= weights.sum(-1, keepdims=True) + np.exp(core.sinks[...])[:, None, None]
  expected = np.einsum("BKGTS,BSKH->BTKGH", weights.reshape(2, 2, 2, 37, 37), v).reshape(q.shape)
  np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind, bias", KINDS)
def test_blocks_are_the_whole(kind, bias):
  expected = value_and_gradients(make_sinks(), kind, bias)
  assert np.abs(expected[1][0]["sinks"]).min() > 1e-3
  # each device has sinks of its own heads
  rules = Rules.make(make_mesh({"data": 2, "tensor": 2, "fsdp": 2}))
  for actual in (
    value_and_gradients(make_sinks(0), kind, bias),
    value_and_gradients(make_sinks(0), kind, bias, rules),
  ):
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
      np.testing.assert_allclose(a, e, rtol=2e-4, atol=3e-5)

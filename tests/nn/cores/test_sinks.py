"""Attention sinks add a logit without a value to each head, also in chunked and sharded cores."""

import contextlib
import dataclasses

import core_cases as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from arrays import assert_trees_close
from t5x_like.nn import params
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules

KINDS = [("packed_causal", "table"), ("causal_w5", "alibi_layer")]


def make_core(max_dense_logits=2**19):
  """Return a core that computes block by block above `max_dense_logits`."""
  core = cases.make({"name": "sinks", "stddev": 2.0})
  core.max_dense_logits = max_dense_logits
  return core


def compute_with_gradients(core, kind, bias, rules=None):
  """Return (output, gradients of sinks, queries, keys and values); optionally sharded by rules."""
  mask = dataclasses.replace(cases.mask(kind), aligned=True)
  stack_position, layer_position = cases.bias(bias)
  has_key_BT = cases.sees_a_key(mask)

  def loss(arrays, q, k, v):
    call = params.with_arrays(core, arrays)
    out = call(q, k, v, mask, stack_position, layer_position, scale=0.4)
    out = jnp.where(has_key_BT[:, :, None, None], out, 0.0)
    return jnp.sum(jnp.sin(out)), out

  def run(*arguments):
    context = contextlib.nullcontext() if rules is None else rules.activate()
    with context:
      return jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True)(*arguments)

  (_, out), gradients = jax.jit(run)(params.arrays(core), *cases.qkv())
  return out, gradients


def test_sink_is_a_logit_without_a_value():
  core = make_core()
  q, k, v = cases.qkv()
  mask = cases.mask("causal")
  out = core(q, k, v, mask, scale=0.4)
  grouped_q = np.reshape(q, (2, 37, 2, 2, 8)) * 0.4
  logits = np.einsum("BTKGH,BSKH->BKGTS", grouped_q, k).reshape(2, 4, 37, 37)
  weights = np.where(mask.dense(), np.exp(logits), 0.0)
  weights /= weights.sum(-1, keepdims=True) + np.exp(core.sinks[...])[:, None, None]
  expected = np.einsum("BKGTS,BSKH->BTKGH", weights.reshape(2, 2, 2, 37, 37), v).reshape(q.shape)
  np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind, bias", KINDS)
def test_chunked_and_sharded_sinks_equal_the_dense_ones(kind, bias):
  expected = compute_with_gradients(make_core(), kind, bias)
  sinks_gradient = expected[1][0]["sinks"]
  assert np.abs(sinks_gradient).min() > 1e-3
  blocks = make_core(max_dense_logits=0)
  # On this mesh each device has only the sinks of its heads.
  rules = Rules.make(make_mesh({"data": 2, "tensor": 2, "fsdp": 2}))
  for layout in (None, rules):
    actual = compute_with_gradients(blocks, kind, bias, layout)
    assert_trees_close(actual, expected, rtol=2e-4, atol=3e-5)

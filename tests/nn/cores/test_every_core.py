"""Every core, with its default arguments, computes the dense core's attention or refuses a rule."""

import core_cases as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_like import slots
from t5x_like.errors import UserError
from t5x_like.nn import cores
from t5x_like.nn.mask import Mask, positions

# long enough for BigBird's blocks, short enough for Linformer's projections, for `short`
LENGTHS = (720, 480, 60)
PADDING = 11  # keys at the end
RULES = {
  "bidirectional": {},
  "bidirectional window": {"window": 9},
  "causal": {"causal": True},
  "causal window": {"causal": True, "window": 9},
}


def attention(name, rule, T):
  """A function (q, k, v) -> out that the core computes under a rule; None where it refuses to."""
  pos = positions(T)
  mask = Mask(pos, pos, k_valid=jnp.arange(T)[None] < T - PADDING, **RULES[rule])
  core = slots.make(
    "core", name, cores, "make", rngs=cases.rngs(), dims=cases.DIMS, causal=mask.causal
  )
  run = jax.jit(lambda q, k, v: core(q, k, v, mask, scale=0.3))
  try:
    jax.eval_shape(run, *cases.qkv(B=1, T=T))
  except UserError:
    return None
  return run


@pytest.mark.parametrize("name", slots.names(cores))
def test_core(name):
  if name == "cudnn" and jax.default_backend() != "gpu":
    pytest.skip("runs on GPUs only")
  tried = ((T, {rule: run for rule in RULES if (run := attention(name, rule, T))}) for T in LENGTHS)
  T, accepted = next((one for one in tried if one[1]), (0, {}))
  assert accepted, "it refuses every mask there is"
  q, k, v = cases.qkv(B=1, T=T)
  REAL = T - PADDING
  PRESENT = 5 * T // 12
  for rule, run in accepted.items():
    out = run(q, k, v)
    assert out.shape == q.shape
    assert np.isfinite(out).all()
    garbage = run(q, k.at[:, REAL:].set(1e3), v.at[:, REAL:].set(-1e3))
    np.testing.assert_allclose(
      garbage[:, :REAL], out[:, :REAL], atol=1e-5, err_msg=f"{rule}: padding is seen"
    )
    if RULES[rule].get("causal"):
      changed = run(q, k.at[:, PRESENT:].add(1.0), v.at[:, PRESENT:].add(1.0))
      np.testing.assert_allclose(
        changed[:, :PRESENT], out[:, :PRESENT], atol=1e-5, err_msg=f"{rule}: the future is seen"
      )
    gradient = jax.grad(lambda v, run=run: jnp.sum(run(q, k, v)[:, :REAL] ** 2))(v)
    assert np.isfinite(gradient).all(), rule
    assert np.abs(gradient).max() > 0, rule


def test_cores_are_modules():
  for name in slots.names(cores):
    core = slots.make("core", name, cores, "make", rngs=cases.rngs(), dims=cases.DIMS, causal=False)
    assert isinstance(core, nnx.Module)
    assert core.name == name

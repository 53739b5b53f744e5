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

# long enough for sparse blocks, short enough for projections of 512 keys, for `short`
LENGTHS = (720, 480, 60)
PADDING = 11  # keys at the end
RULES = {
  "bidirectional": {},
  "bidirectional window": {"window": 9},
  "causal": {"causal": True},
  "causal window": {"causal": True, "window": 9},
}


def attention(name, rule, T):
  """Return the core's function (q, k, v) -> out under a rule, or None if it refuses the rule."""
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
def test_a_core_hides_padding_and_the_future_and_has_gradients(name):
  if name == "cudnn" and jax.default_backend() != "gpu":
    pytest.skip("runs on GPUs only")
  for T in LENGTHS:
    functions = {rule: attention(name, rule, T) for rule in RULES}
    accepted = {rule: run for rule, run in functions.items() if run is not None}
    if accepted:
      break
  assert accepted, "the core refuses every mask at every length"
  q, k, v = cases.qkv(B=1, T=T)
  real = T - PADDING
  present = 5 * T // 12
  for rule, run in accepted.items():
    out = run(q, k, v)
    assert out.shape == q.shape
    assert np.isfinite(out).all()
    garbage = run(q, k.at[:, real:].set(1e3), v.at[:, real:].set(-1e3))
    np.testing.assert_allclose(
      garbage[:, :real], out[:, :real], atol=1e-5, err_msg=f"{rule}: padding is seen"
    )
    if RULES[rule].get("causal"):
      changed = run(q, k.at[:, present:].add(1.0), v.at[:, present:].add(1.0))
      np.testing.assert_allclose(
        changed[:, :present], out[:, :present], atol=1e-5, err_msg=f"{rule}: the future is seen"
      )
    gradient = jax.grad(lambda v, run=run: jnp.sum(run(q, k, v)[:, :real] ** 2))(v)
    assert np.isfinite(gradient).all(), rule
    assert np.abs(gradient).max() > 0, rule


def test_cores_are_modules():
  for name in slots.names(cores):
    core = slots.make("core", name, cores, "make", rngs=cases.rngs(), dims=cases.DIMS, causal=False)
    assert isinstance(core, nnx.Module)
    assert core.name == name

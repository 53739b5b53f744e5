"""Every core, with its default arguments, applies a mask correctly or refuses it."""

import core_cases as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import more
from t5x_like import slots
from t5x_like.errors import UserError
from t5x_like.nn import cores
from t5x_like.nn.mask import Mask, positions

# Long enough for sparse blocks; short enough for projections of 512 keys; short enough for `short`.
LENGTHS = (720, 480, 60)
PADDING = 11  # keys at the end
RULES = {
  "bidirectional": {},
  "bidirectional window": {"window": 9},
  "causal": {"causal": True},
  "causal window": {"causal": True, "window": 9},
}


def compile_attention(name, rule, T):
  """Return the core's function (q, k, v) -> (out, gradient of v) under a rule.

  It is None if the core refuses the rule at this length.
  """
  pos = positions(T)
  mask = Mask(pos, pos, k_valid=jnp.arange(T)[None] < T - PADDING, **RULES[rule])
  core = cases.make(name, causal=mask.causal)

  def loss(v, q, k):
    out = core(q, k, v, mask, scale=0.3)
    return jnp.sum(out[:, : T - PADDING] ** 2), out

  @jax.jit
  def run(q, k, v):
    gradient, out = jax.grad(loss, has_aux=True)(v, q, k)
    return out, gradient

  try:
    jax.eval_shape(run, *cases.qkv(B=1, T=T))
  except UserError:
    return None
  return run


# Other tests compare these with the dense core, so their cases run in `make test-more` only.
COMPARED_WITH_DENSE = ("chunked", "fused", "ring", "short", "splash")
NAMES = [more.later(n) if n in COMPARED_WITH_DENSE else n for n in slots.names(cores)]


@pytest.mark.parametrize("name", NAMES)
def test_core_hides_padding_and_the_future_and_has_gradients(name):
  if name == "cudnn" and jax.default_backend() != "gpu":
    pytest.skip("runs on GPUs only")
  for T in LENGTHS:
    functions = {rule: compile_attention(name, rule, T) for rule in RULES}
    accepted = {rule: run for rule, run in functions.items() if run is not None}
    if accepted:
      break
  assert accepted, "the core refuses every mask at every length"
  q, k, v = cases.qkv(B=1, T=T)
  real = T - PADDING
  present = 5 * T // 12
  for rule, run in accepted.items():
    out, gradient = run(q, k, v)
    assert out.shape == q.shape
    assert np.isfinite(out).all()
    assert np.isfinite(gradient).all(), rule
    assert np.abs(gradient).max() > 0, rule
    garbage, _ = run(q, k.at[:, real:].set(1e3), v.at[:, real:].set(-1e3))
    padding_is_seen = np.abs(garbage[:, :real] - out[:, :real]).max() > 1e-5
    assert not padding_is_seen, rule
    if RULES[rule].get("causal"):
      changed, _ = run(q, k.at[:, present:].add(1.0), v.at[:, present:].add(1.0))
      future_is_seen = np.abs(changed[:, :present] - out[:, :present]).max() > 1e-5
      assert not future_is_seen, rule


def test_cores_are_modules():
  for name in slots.names(cores):
    core = cases.make(name)
    assert isinstance(core, nnx.Module)
    assert core.name == name

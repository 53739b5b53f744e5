"""An LSTM ignores padding and carries its state on where a sequence continues."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t5x_like.contrib.recurrent.lstm import BiLstm, Lstm
from t5x_like.nn import params

B = 2
T = 6
D = 5
H = 4


def draw_lstm(*shape: int) -> jnp.ndarray:
  return jnp.asarray(np.random.default_rng(shape).standard_normal(shape), jnp.float32)


def test_padding_changes_nothing_in_either_direction():
  """Padding of any length and content gives zeros and has no gradient."""
  lstm = BiLstm(D, H, 2, nnx.Rngs(params=jax.random.key(0)))
  x_BTD = draw_lstm(B, T, D)
  padded = jnp.concatenate([draw_lstm(B, 3, D), x_BTD, draw_lstm(B, 2, D)], axis=1)
  valid = jnp.broadcast_to((jnp.arange(T + 5) >= 3) & (jnp.arange(T + 5) < T + 3), (B, T + 5))
  run = jax.jit(lambda x, valid: lstm(x, valid))
  actual = run(padded, valid)
  alone = lstm(x_BTD, None)
  np.testing.assert_allclose(actual[:, 3 : T + 3], alone, atol=1e-6)
  assert alone.shape == (B, T, 2 * H)
  assert (np.where(valid[..., None], 0, actual) == 0).all()
  gradient = jax.grad(lambda x: jnp.sum(lstm(x, valid) ** 2))(padded)
  assert (np.abs(gradient).max(-1) > 0).tolist() == valid.tolist()


def test_a_state_is_carried_on_and_reset_where_a_sequence_starts():
  lstm = Lstm(D, H, nnx.Rngs(params=jax.random.key(1)))
  x_BTD = draw_lstm(B, T, D)
  full_states, last = lstm(x_BTD)
  first, state = lstm(x_BTD[:, :2])
  continued, end = lstm(x_BTD[:, 2:], state)
  np.testing.assert_allclose(jnp.concatenate([first, continued], axis=1), full_states, atol=1e-6)
  np.testing.assert_allclose(end[1], last[1], atol=1e-6)
  starts = jnp.broadcast_to(jnp.arange(T) == 2, (B, T))
  np.testing.assert_allclose(
    lstm(x_BTD, starts_BT=starts)[0][:, 2:], lstm(x_BTD[:, 2:])[0], atol=1e-6
  )


def test_in_bfloat16_the_cell_stays_float32():
  lstm = Lstm(D, H, nnx.Rngs(params=jax.random.key(2)))
  h_BTH, (h, c) = lstm(draw_lstm(B, T, D).astype(jnp.bfloat16))
  assert h_BTH.dtype == jnp.bfloat16
  assert h.dtype == jnp.bfloat16
  assert c.dtype == jnp.float32
  assert all(x.dtype == jnp.float32 for x in params.arrays(lstm).values())
  back = jax.eval_shape(
    lambda x: jax.vjp(lambda x: lstm(x)[0], x)[1], draw_lstm(B, T, D).astype(jnp.bfloat16)
  )
  wide = [x.shape for x in jax.tree.leaves(back) if x.dtype == jnp.float32 and x.ndim > 2]
  assert wide == [(T, B, H)]  # the cells alone, no gates

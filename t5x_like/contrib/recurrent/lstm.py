"""Long short-term memory (Hochreiter and Schmidhuber 1997), with a forget gate (Gers et al. 2000).

These are the recurrent baselines of two papers: `Recurrence` is a layer of a decoder (Radford et
al. 2018, section 5), and `BiLstm` reads an encoder's output in both directions (Devlin et al. 2019,
sections 5.1 and 5.3). Initial kernels have PyTorch's standard deviation, 1/sqrt(3H).
"""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.nn.dims import NO_DROPOUT, Dropout, subkey
from t5x_like.nn.layer import CacheStart, Context, Layer
from t5x_like.nn.linear import Linear

# the output h in the compute dtype and the cell c in float32, each [B, H]
State = tuple[jax.Array, jax.Array]


class Lstm(nnx.Module):
  """A layer of H units that reads in one direction.

  `c = sigmoid(f) * c + sigmoid(i) * tanh(g)` and `h = sigmoid(o) * tanh(c)`, where i, f, g and o
  are the quarters of a vector of width 4H, the projected input plus the projected previous h.
  """

  def __init__(self, width: int, hidden: int, rngs: nnx.Rngs):
    init = params.fan_in_normal(3 * hidden)
    self.inputs = Linear((width, 4 * hidden), ("embed", None), init, rngs, bias=True)
    self.states = Linear((hidden, 4 * hidden), (None, None), init, rngs)

  def __call__(
    self,
    x_BTD: jax.Array,
    state: State | None = None,
    *,
    valid_BT: jax.Array | None = None,
    starts_BT: jax.Array | None = None,
    reverse: bool = False,
  ) -> tuple[jax.Array, State]:
    """Read the tokens in order, or from the last to the first with `reverse`.

    Args:
      state: the state before the first token read; None for zeros.
      valid_BT: bool, False for padding, which leaves the state unchanged and has zeros as output.
      starts_BT: bool, True for tokens before which the state is reset to zeros.
    Returns:
      ([B, T, H], the state after the last token read)
    """
    B, T, _ = x_BTD.shape
    H = self.states.kernel.shape[-2]
    state = state or zero_state(B, H, x_BTD.dtype)
    valid_BT = jnp.ones((B, T), bool) if valid_BT is None else valid_BT
    starts_BT = jnp.zeros((B, T), bool) if starts_BT is None else starts_BT

    # Only products are saved for the backward pass; it recomputes the gates, which are float32.
    @partial(jax.checkpoint, prevent_cse=False, policy=jax.checkpoint_policies.checkpoint_dots)
    def step(state: State, token):
      gates_BX, valid_B1, starts_B1 = token
      h_BH, c_BH = state
      h_BH = jnp.where(starts_B1, jnp.zeros_like(h_BH), h_BH)
      c_BH = jnp.where(starts_B1, jnp.zeros_like(c_BH), c_BH)
      i, f, g, o = jnp.split((gates_BX + self.states(h_BH)).astype(jnp.float32), 4, axis=-1)
      c = jax.nn.sigmoid(f) * c_BH + jax.nn.sigmoid(i) * jnp.tanh(g)
      h = (jax.nn.sigmoid(o) * jnp.tanh(c)).astype(h_BH.dtype)
      state = jnp.where(valid_B1, h, h_BH), jnp.where(valid_B1, c, c_BH)
      return state, jnp.where(valid_B1, h, jnp.zeros_like(h))

    tokens = (self.inputs(x_BTD), valid_BT[..., None], starts_BT[..., None])
    tokens = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), tokens)
    state, h_TBH = jax.lax.scan(step, state, tokens, reverse=reverse)
    return jnp.swapaxes(h_TBH, 0, 1), state


def zero_state(B: int, H: int, dtype: jnp.dtype) -> State:
  """Return the state before the first token."""
  return jnp.zeros((B, H), dtype), jnp.zeros((B, H), jnp.float32)


class BiLstm(nnx.Module):
  """Layers that read in both directions, with H units in each direction."""

  def __init__(self, width: int, hidden: int, layers: int, rngs: nnx.Rngs):
    widths = [width, *[2 * hidden] * (layers - 1)]
    self.forward = nnx.List([Lstm(in_width, hidden, rngs) for in_width in widths])
    self.backward = nnx.List([Lstm(in_width, hidden, rngs) for in_width in widths])

  def __call__(
    self,
    x_BTD: jax.Array,
    valid_BT: jax.Array | None,
    dropout: Dropout = NO_DROPOUT,
    key: jax.Array | None = None,
  ) -> jax.Array:
    """Return [B, T, 2H], zero at padding; `dropout` applies to the input of every layer."""
    for index, (forward, backward) in enumerate(zip(self.forward, self.backward, strict=True)):
      x_BTD = dropout(x_BTD, subkey(key, index))
      forward_BTH, _ = forward(x_BTD, valid_BT=valid_BT)
      backward_BTH, _ = backward(x_BTD, valid_BT=valid_BT, reverse=True)
      x_BTD = jnp.concatenate([forward_BTH, backward_BTH], axis=-1)
    return x_BTD


class Recurrence(Layer):
  """An LSTM and a projection to the stack's width, in place of a block's attention and MLP."""

  def __init__(self, embed: int, hidden: int, rngs: nnx.Rngs, dropout: Dropout):
    self.lstm = Lstm(embed, hidden, rngs)
    self.out = Linear(
      (hidden, embed), (None, "embed"), params.fan_in_normal(hidden), rngs, bias=True
    )
    self.dropout = dropout

  def __call__(self, x_BTD: jax.Array, context: Context, cache: dict | None, key: jax.Array | None):
    """Return ([B, T, D], {}, cache). A cache is {"h", "c"}: [B, H], the state after the last token.

    Raises:
      UserError: the batch has a bidirectional prefix.
    """
    mask = context.mask
    state = None
    valid_BT = None
    starts_BT = None
    if mask.k_prefix is not None:
      raise UserError(
        "config.task: found a prefix that is read in both directions, but an LSTM reads from left "
        "to right; use a causal task, such as causal_lm"
      )
    if mask.q_segments is not None:
      previous_segments_BT = jnp.pad(mask.q_segments[:, :-1], ((0, 0), (1, 0)))
      starts_BT = mask.q_segments != previous_segments_BT
    if cache is not None:
      state = cache["h"], cache["c"]
      valid_BT = jax.lax.dynamic_slice_in_dim(mask.k_valid, context.slot, x_BTD.shape[1], axis=1)
    h_BTH, (h, c) = self.lstm(x_BTD, state, valid_BT=valid_BT, starts_BT=starts_BT)
    if cache is not None:
      cache = {"h": h, "c": c}
    return self.dropout(self.out(h_BTH), key), {}, cache

  def start_cache(self, start: CacheStart) -> dict[str, jax.Array]:
    h, c = zero_state(start.batch, self.lstm.states.kernel.shape[-2], start.dtype)
    return {"h": h, "c": c}

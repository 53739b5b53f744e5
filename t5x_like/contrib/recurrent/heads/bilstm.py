"""A head that reads hidden states through a bidirectional LSTM.

It follows Devlin et al. 2019, sections 5.1 and 5.3.
"""

from dataclasses import replace
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like import slots
from t5x_like.architectures import heads
from t5x_like.architectures.design import Variant
from t5x_like.contrib.recurrent.lstm import BiLstm
from t5x_like.nn import params
from t5x_like.nn.dims import Dropout, subkey
from t5x_like.nn.embed import Embed
from t5x_like.nn.hidden_states import LAST_STATE
from t5x_like.slots import PositiveInt, Rate


class BiLstmHead(nnx.Module):
  """A BiLSTM over hidden states of the encoder, without padding, and another head on its output.

  Args:
    head: the head on the BiLSTM: one of `architectures.heads`, a name or {"name": …} with its
      arguments.
    states: numbers of the hidden states to read: 0 is the embeddings, -1 the last layer's output.
    combine: whether several states are concatenated, or added with learned weights that sum to one
      (Peters et al. 2018, equation 1, without its scale).
    layers: number of layers of the LSTM.
    hidden: units of the LSTM in each direction; None for the encoder's width.
    dropout: rate at the input of every layer of the LSTM, and in `head`; `config.model.dropout` is
      the rate in the encoder.
  """

  def __init__(
    self,
    rngs: nnx.Rngs,
    variant: Variant,
    *,
    head: str | dict = "tokens",
    states: tuple[int, ...] = LAST_STATE,
    combine: Literal["concatenate", "weighted_sum"] = "concatenate",
    layers: PositiveInt = 2,
    hidden: PositiveInt | None = None,
    dropout: Rate = 0.0,
  ):
    dims = variant.dims
    count = len(states)
    is_weighted = combine == "weighted_sum"
    self.states = states
    hidden = hidden or dims.embed
    self.weights = params.param(rngs, params.zeros, (count,), (None,)) if is_weighted else None
    width = dims.embed if is_weighted else dims.embed * count
    self.lstm = BiLstm(width, hidden, layers, rngs)
    lstm_variant = replace(variant, dims=replace(dims, embed=2 * hidden))
    self.head = slots.make(
      "config.model.head.head",
      head,
      heads,
      "make",
      rngs=rngs,
      variant=lstm_variant,
      dropout_rate=dropout,
    )
    self.choices = getattr(self.head, "choices", None)  # of `multiple_choice`
    self.dropout = Dropout(dropout)

  def __call__(
    self, x_BTX: jax.Array, embed: Embed, valid_BT=None, key=None, **token_positions
  ) -> dict[str, jax.Array]:
    """Return the outputs of `head`."""
    if self.weights is not None:
      states = jnp.stack(jnp.split(x_BTX, len(self.states), axis=-1))
      weights = jax.nn.softmax(self.weights[...]).astype(x_BTX.dtype)
      x_BTX = jnp.tensordot(weights, states, axes=1)
    x_BTX = self.lstm(x_BTX, valid_BT, self.dropout, subkey(key, 0))
    return self.head(x_BTX, embed, valid_BT, subkey(key, 1), **token_positions)


make = BiLstmHead

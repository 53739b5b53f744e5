"""The position-wise feed-forward layer."""

from collections.abc import Callable

import jax
from flax import nnx

from t5x_like.nn import params
from t5x_like.nn.dims import NO_DROPOUT, Dropout, subkey
from t5x_like.nn.layer import Layer
from t5x_like.nn.linear import Linear, apply_jointly
from t5x_like.nn.remat import name_activation
from t5x_like.parallel.constrain import constrain


def identity(x: jax.Array) -> jax.Array:
  """Return `x`, the factor of a plain gate."""
  return x


class Mlp(Layer):
  """`wo(dropout(activation(wi(x))))`, or `wo(dropout(activation(gate(x)) * wi(x)))` if gated.

  The gate follows Shazeer 2020, section 2.

  Args:
    gated: whether there is a gate; a function f means a gate that multiplies f(wi(x)) instead.
  """

  # Layers with the same input, which `decoding.cpu` fuses.
  SHARED_INPUT = ("wi", "gate")

  def __init__(
    self,
    embed: int,
    mlp: int,
    rngs: nnx.Rngs,
    *,
    activation: Callable,
    gated: bool | Callable,
    bias: bool = False,
    init: Callable | None = None,
    out_init: Callable | None = None,
    dropout: Dropout = NO_DROPOUT,
  ):
    init = init or params.fan_in_normal(embed)
    out_init = out_init or params.fan_in_normal(mlp)
    axes = ("embed", "mlp")
    self.gate = Linear((embed, mlp), axes, init, rngs, bias=bias) if gated else None
    self.wi = Linear((embed, mlp), axes, init, rngs, bias=bias)
    self.wo = Linear((mlp, embed), ("mlp", "embed"), out_init, rngs, bias=bias)
    self.activation = activation
    self.gated_function = gated if callable(gated) else identity
    self.dropout = dropout

  def __call__(
    self, x_BTD: jax.Array, context, cache, key: jax.Array | None
  ) -> tuple[jax.Array, dict, None]:
    layers = [self.wi]
    if self.gate is not None:
      layers.append(self.gate)
    hidden = []
    for y_BTF in apply_jointly(layers, x_BTD):
      y_BTF = constrain(y_BTF, "batch", "length", "activation_mlp")
      hidden.append(name_activation(y_BTF, "mlp_hidden"))
    if self.gate is None:
      h_BTF = self.activation(hidden[0])
    else:
      h_BTF = self.activation(hidden[1]) * self.gated_function(hidden[0])
    h_BTF = self.dropout(h_BTF, subkey(key, 0))
    y_BTD = name_activation(self.wo(h_BTF), "mlp_out")
    return y_BTD, {}, None


make = Mlp

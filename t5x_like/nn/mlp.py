"""The position-wise feed-forward layer."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.nn import params
from t5x_like.nn.dims import dropout, subkey
from t5x_like.nn.layer import Layer
from t5x_like.nn.linear import Linear, together
from t5x_like.nn.remat import named
from t5x_like.parallel.constrain import constrain

_gelu, _gelu_tanh = partial(jax.nn.gelu, approximate=False), partial(jax.nn.gelu, approximate=True)


def _quick_gelu(x: jax.Array) -> jax.Array:
  """`x sigmoid(1.702 x)`, the approximation of GELU in CLIP's code (Hendrycks & Gimpel 2016, section 2)."""
  return x * jax.nn.sigmoid(1.702 * x)


ACTIVATIONS = {  # (function, gated)
  "relu": (jax.nn.relu, False),
  "gelu": (_gelu, False),
  "gelu_tanh": (_gelu_tanh, False),
  "quick_gelu": (_quick_gelu, False),
  "silu": (jax.nn.silu, False),
  "tanh": (jnp.tanh, False),
  "reglu": (jax.nn.relu, True),
  "geglu": (_gelu, True),
  "geglu_tanh": (_gelu_tanh, True),
  "swiglu": (jax.nn.silu, True),
}


class Mlp(Layer):
  """`wo(dropout(activation(wi(x))))`; gated, `wo(dropout(activation(gate(x)) * wi(x)))` (Shazeer 2020, section 2)."""

  TOGETHER = ("wi", "gate")  # see `nn.linear.decoding`

  def __init__(
    self,
    embed: int,
    mlp: int,
    rngs: nnx.Rngs,
    *,
    activation: Callable,
    gated: bool,
    bias: bool = False,
    init: Callable | None = None,
    out_init: Callable | None = None,
    dropout_rate: float = 0.0,
  ):
    init = init or params.fan_in_normal(embed)
    self.gate = Linear((embed, mlp), ("embed", "mlp"), init, rngs, bias=bias) if gated else None
    self.wi = Linear((embed, mlp), ("embed", "mlp"), init, rngs, bias=bias)
    self.wo = Linear((mlp, embed), ("mlp", "embed"), out_init or params.fan_in_normal(mlp), rngs, bias=bias)
    self.activation = activation
    self.dropout_rate = dropout_rate

  def __call__(self, x_BTD: jax.Array, context, cache, key: jax.Array | None) -> tuple[jax.Array, dict, None]:
    layers = [self.wi] if self.gate is None else [self.wi, self.gate]
    hidden = [constrain(y_BTF, "batch", "length", "activation_mlp") for y_BTF in together(layers, x_BTD)]
    h_BTF, *gate_BTF = (named(y_BTF, "mlp_hidden") for y_BTF in hidden)
    h_BTF = self.activation(gate_BTF[0]) * h_BTF if gate_BTF else self.activation(h_BTF)
    h_BTF = dropout(h_BTF, self.dropout_rate, subkey(key, 0))
    return named(self.wo(h_BTF), "mlp_out"), {}, None

"""Activation functions of feed-forward layers, by the names that designs use."""

from functools import partial

import jax
import jax.numpy as jnp

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

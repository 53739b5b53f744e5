"""Feed-forward sublayers, one file each; a stack imports only the kinds that its design has.

A file's `make` builds the layer from the widths of the residual stream and the hidden layer, and
takes the builder's options that its signature names.
"""

import dataclasses
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

from t5x_like.errors import UserError
from t5x_like.slots import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Rate

_gelu_tanh = jax.checkpoint(partial(jax.nn.gelu, approximate=True), prevent_cse=False)


@partial(jax.checkpoint, prevent_cse=False)  # or the backward pass would keep three float32 arrays
def gelu(x: jax.Array) -> jax.Array:
  """Compute GELU, `x Phi(x)`, with the normal distribution function Phi (Hendrycks & Gimpel 2016).

  It is computed in float32. `jax.nn.gelu` computes erfc in the dtype of `x`, which XLA for TPU
  packs bit by bit.
  """
  x32 = x.astype(jnp.float32)
  y32 = 0.5 * x32 * (1.0 + jax.lax.erf(x32 * 0.5**0.5))
  return y32.astype(x.dtype)


def _quick_gelu(x: jax.Array) -> jax.Array:
  """Compute `x sigmoid(1.702 x)`, CLIP's approximation of GELU (Hendrycks & Gimpel 2016)."""
  return x * jax.nn.sigmoid(1.702 * x)


def _clamp_gate(gate: jax.Array) -> jax.Array:
  """Compute gpt-oss's gate, at most 7 (OpenAI 2025, gpt-oss model card, section 2.3)."""
  return _quick_gelu(jnp.minimum(gate, 7.0))


def _clamp_and_add_one(x: jax.Array) -> jax.Array:
  """Compute the factor that gpt-oss's gate multiplies."""
  return jnp.clip(x, -7.0, 7.0) + 1.0


# For each name: the function, and whether it is gated, or the function of the factor that it gates.
ACTIVATIONS = {
  "relu": (jax.nn.relu, False),
  "gelu": (gelu, False),
  "gelu_tanh": (_gelu_tanh, False),
  "quick_gelu": (_quick_gelu, False),
  "silu": (jax.nn.silu, False),
  "tanh": (jnp.tanh, False),
  "reglu": (jax.nn.relu, True),
  "geglu": (gelu, True),
  "geglu_tanh": (_gelu_tanh, True),
  "swiglu": (jax.nn.silu, True),
  "swiglu_clamped": (_clamp_gate, _clamp_and_add_one),
}


@dataclasses.dataclass(frozen=True)
class Experts:
  """A design's mixture of experts (`design.experts`).

  Attributes:
    experts, top_k: number of experts, and number of experts that each token uses.
    mlp: width of an expert; None for the MLP's.
    shared: additional experts that every token uses, as one MLP of `shared * mlp`, without a gate
      (DeepSeekMoE).
    normalise: whether a token's gates are scaled to sum to one (Mixtral) or remain probabilities
      (Switch); None is True if `top_k` is above 1. A single normalised gate would be the constant
      1, without a gradient for the router.
    router: "softmax"; "noisy_top_k" of Shazeer et al. 2017, see `nn.feed_forward._noisy_top_k`; or
      "sigmoid" of DeepSeek-V3, see `nn.feed_forward._sigmoid`.
    groups, top_groups, scale, bias_rate: of "sigmoid": number of groups of experts, and of those
      that a token's experts come from; factor of the gates; and the step of the biases that balance
      the loads.
    dispatch: "dropless" or "capacity"; see `nn.feed_forward.moe`.
    capacity_factor: slots per choice of "capacity"; rows per choice in a round of "dropless" over
      devices.
    eval_capacity_factor: slots in evaluations; None is the same.
    balance_loss, z_loss: weights of the two losses of "softmax", which are summed over layers
      (`transformers` weighs about `top_k` times the mean of the first); `balance_loss` also weighs
      the loss of "sigmoid".
    importance_loss, load_loss: weights of the two losses of "noisy_top_k".
    jitter: training multiplies the router's input by uniform numbers in [1 - jitter, 1 + jitter]
      (Switch: 0.01).
  """

  experts: PositiveInt = 8
  top_k: PositiveInt = 2
  mlp: PositiveInt | None = None
  shared: NonNegativeInt = 0
  normalise: bool | None = None
  router: Literal["softmax", "noisy_top_k", "sigmoid"] = "softmax"
  groups: PositiveInt = 1
  top_groups: PositiveInt = 1
  scale: PositiveFloat = 1.0
  bias_rate: NonNegativeFloat = 0.001
  dispatch: Literal["dropless", "capacity"] = "dropless"
  capacity_factor: PositiveFloat = 1.25
  eval_capacity_factor: PositiveFloat | None = None
  balance_loss: NonNegativeFloat = 0.01
  z_loss: NonNegativeFloat = 0.001
  importance_loss: NonNegativeFloat = 0.1
  load_loss: NonNegativeFloat = 0.1
  jitter: Rate = 0.0

  def __post_init__(self):
    if self.top_k > self.experts:
      expected = f"1 to {self.experts}, the number of experts"
      raise UserError(f"config.model.design.experts.top_k: found {self.top_k}, expected {expected}")
    if self.top_k == 1 and self.normalise:
      expected = "False with top_k=1: a gate of 1 has no gradient"
      raise UserError(f"config.model.design.experts.normalise: found True, expected {expected}")

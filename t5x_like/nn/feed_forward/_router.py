"""Routers, which choose experts for each token, and the losses that keep experts evenly loaded."""

import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.nn import params
from t5x_like.nn.dims import hash_bits, subkey
from t5x_like.nn.feed_forward import Experts
from t5x_like.nn.layer import Statistics


@dataclasses.dataclass(frozen=True)
class Routing:
  """The choices of a router; floats are float32 for any compute dtype.

  Attributes:
    logits_BTE: router logits, noise included.
    probs_BTE: their softmax.
    experts_BTk: int32, the chosen experts of each token, best first.
    gates_BTk: the factor of each chosen expert's output.
  """

  logits_BTE: jax.Array
  probs_BTE: jax.Array
  experts_BTk: jax.Array
  gates_BTk: jax.Array


jax.tree_util.register_dataclass(Routing)


class Router(nnx.Module):
  """Top-k of a softmax over experts.

  Switch is top-1 (Fedus et al. 2022). Mixtral is renormalised top-2, which equals a softmax over
  the chosen logits alone (Jiang et al. 2024).
  """

  def __init__(
    self, embed: int, experts: Experts, rngs: nnx.Rngs, *, init: Callable, bias: bool = False
  ):
    self.kernel = params.param(rngs, init, (embed, experts.experts), ("embed", None))
    self.bias = params.param(rngs, params.zeros, (experts.experts,), (None,)) if bias else None
    self.top_k = experts.top_k
    self.normalise = experts.normalise
    if self.normalise is None:
      self.normalise = experts.top_k > 1
    self.jitter = experts.jitter

  def __call__(self, x_BTD: jax.Array, key: jax.Array | None) -> Routing:
    """Route every token; randomness applies only with a key."""
    seeds = None
    if key is not None and self.jitter:
      seeds = jax.random.bits(subkey(key, 0), (2,)).astype(jnp.int32)

    def product(kernel_DE: jax.Array) -> jax.Array:
      return float32_product(x_BTD, kernel_DE, seeds, self.jitter)

    return self.route(product, key)

  def route(self, product: Callable, key: jax.Array | None) -> Routing:
    """Route the tokens that `product` multiplies by a kernel [D, E]."""
    return self.choose(self.logits(product))

  def logits(self, product: Callable) -> jax.Array:
    """Return float32 [B, T, E]."""
    logits_BTE = product(self.kernel[...])
    if self.bias is None:
      return logits_BTE
    return logits_BTE + self.bias[...]

  def choose(self, logits_BTE: jax.Array) -> Routing:
    """Choose the experts of the largest logits."""
    probs_BTE = jax.nn.softmax(logits_BTE, axis=-1)
    gates_BTk, experts_BTk = jax.lax.top_k(probs_BTE, self.top_k)
    if self.normalise:
      gates_BTk = gates_BTk / jnp.sum(gates_BTk, axis=-1, keepdims=True)
    return Routing(logits_BTE, probs_BTE, experts_BTk, gates_BTk)

  def count_load(self, routing: Routing, valid_BT: jax.Array | None) -> Routing:
    """Return the routing; a router with load-balancing biases attaches the load to it."""
    return routing

  def statistics(
    self, routing: Routing, valid_BT: jax.Array | None, dropped: jax.Array, experts: Experts
  ) -> dict[str, Statistics]:
    """Return the sums over valid tokens from which the router's losses are made."""
    return {"load": Load.from_routing(routing, valid_BT, dropped, experts)}


@dataclasses.dataclass(frozen=True)
class Load(Statistics):
  """The load of a layer's experts: float32 sums over valid tokens, which add up over microbatches.

  Attributes:
    tokens: number of valid tokens.
    chosen_E, probs_E: sums of the share of a token's choices that fell on each expert, and of its
      probabilities.
    z: sum of `logsumexp(logits)^2`.
    choices, dropped: number of choices, and of choices without a slot.
    balance_loss, z_loss: factors of the losses.
  """

  tokens: jax.Array
  chosen_E: jax.Array
  probs_E: jax.Array
  z: jax.Array
  choices: jax.Array
  dropped: jax.Array
  balance_loss: float = dataclasses.field(metadata={"static": True})
  z_loss: float = dataclasses.field(metadata={"static": True})

  @classmethod
  def from_routing(
    cls, routing: Routing, valid_BT: jax.Array | None, dropped: jax.Array, experts: Experts
  ) -> "Load":
    """Sum the choices, probabilities and z of a layer's experts over valid tokens."""
    B, T, k = routing.experts_BTk.shape
    one_hot_BTkE = jax.nn.one_hot(routing.experts_BTk, experts.experts, dtype=jnp.float32)
    z_BT = jnp.square(jax.nn.logsumexp(routing.logits_BTE, axis=-1))
    tokens = sum_valid(jnp.ones((B, T), jnp.float32), valid_BT)
    chosen_BTE = jnp.sum(one_hot_BTkE, axis=2) / k
    return cls(
      tokens=tokens,
      chosen_E=sum_valid(chosen_BTE, valid_BT),
      probs_E=sum_valid(routing.probs_BTE, valid_BT),
      z=sum_valid(z_BT, valid_BT),
      choices=k * tokens,
      dropped=dropped,
      balance_loss=experts.balance_loss,
      z_loss=experts.z_loss,
    )

  def scalars(self) -> dict[str, jax.Array]:
    """Return the losses, times their factors, and the metrics of `load_metrics`.

    The balance loss is `E * sum_e f_e P_e` of fractions of choices f and mean probabilities P
    (Fedus et al. 2022, equations 4 to 6), 1 if experts are loaded evenly. The z loss is the mean of
    z (Zoph et al. 2022, equation 5).
    """
    tokens = jnp.maximum(self.tokens, 1.0)
    fractions_E = self.chosen_E / tokens
    mean_probs_E = self.probs_E / tokens
    balance = self.chosen_E.size * jnp.sum(fractions_E * mean_probs_E)
    balance_loss = self.balance_loss * balance
    z_loss = self.z_loss * self.z / tokens
    dropped = self.dropped / jnp.maximum(self.choices, 1.0)
    metrics = load_metrics(self.chosen_E, tokens, dropped)
    return {"moe_balance_loss": balance_loss, "moe_z_loss": z_loss, **metrics}


jax.tree_util.register_dataclass(Load)


def load_metrics(load_E: jax.Array, choices: jax.Array, dropped: jax.Array) -> dict[str, jax.Array]:
  """Return the excess of the largest load over the mean, as a fraction of the mean, and `dropped`.

  The excess is 0 without choices. Each has a weight of 1: the sums over layers that a `Stack`
  returns then give means over layers, see `objectives.denominator`.
  """
  excess = jnp.max(load_E) * load_E.size / choices - 1.0
  return {
    "moe_violation": jnp.maximum(excess, 0.0),
    "moe_dropped": dropped,
    "moe_violation_weights": jnp.float32(1.0),
    "moe_dropped_weights": jnp.float32(1.0),
  }


def sum_valid(x: jax.Array, valid_BT: jax.Array | None) -> jax.Array:
  """Sum `x` [B, T, …] over the valid tokens, or over all."""
  if valid_BT is not None:
    is_valid = valid_BT.reshape(*valid_BT.shape, *[1] * (x.ndim - 2))
    x = jnp.where(is_valid, x, 0.0)
  return jnp.sum(x, axis=(0, 1))


@partial(
  jax.checkpoint,
  prevent_cse=False,
  policy=jax.checkpoint_policies.checkpoint_dots,
  static_argnums=3,
)
def float32_product(
  x_BTD: jax.Array, kernel_DE: jax.Array, seeds: jax.Array | None, jitter: float
) -> jax.Array:
  """Multiply in full float32 (by default, accelerators round the factors to fewer bits).

  The backward pass keeps `x` in its own dtype.

  Args:
    seeds: two int32 numbers, from which each entry's factor in [1 - `jitter`, 1 + `jitter`] is
      drawn; None for none.
  """
  x_BTD = x_BTD.astype(jnp.float32)
  if seeds is not None:
    B, T, D = x_BTD.shape
    row_B11 = jnp.arange(B, dtype=jnp.int32)[:, None, None]
    bits_BTD = hash_bits(seeds, [row_B11], (1, T, D))
    factor_BTD = 1.0 + jitter * 2.0**-31 * bits_BTD.astype(jnp.float32)
    x_BTD = x_BTD * factor_BTD
  return jnp.einsum("BTD,DE->BTE", x_BTD, kernel_DE, precision=jax.lax.Precision.HIGHEST)

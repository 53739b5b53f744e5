"""The noisy top-k gate of Shazeer et al. 2017 and its two losses.

The paper is https://arxiv.org/abs/1701.06538. In training, logits are `x W_gate + normal noise *
softplus(x W_noise)` (section 2.1, equation 4). Both kernels start at zero, so that every expert is
chosen equally often at first (appendix A). `importance_loss` and `load_loss` weigh the losses; both
are 0.1 in the paper's language models (appendix C.1).
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.nn.dims import subkey
from t5x_like.nn.feed_forward import Experts
from t5x_like.nn.feed_forward._router import Router, Routing, load_metrics, sum_valid
from t5x_like.nn.layer import Statistics


@dataclasses.dataclass(frozen=True)
class NoisyRouting(Routing):
  """A `Routing`, and for each expert the probability that it is chosen.

  Attributes:
    chances_BTE: float32 probabilities over fresh noise of this expert, given the noise of the
      others; without noise, 1 for the chosen experts and 0 for the others.
  """

  chances_BTE: jax.Array


jax.tree_util.register_dataclass(NoisyRouting)


class NoisyRouter(Router):
  """Top-k of noisy logits; the gates are their softmax over the chosen experts (equations 3 to 5).

  Raises:
    UserError: `top_k` is 1, or gates are not normalised; the paper's gate needs two experts or more
      for a gradient.
  """

  def __init__(
    self, embed: int, experts: Experts, rngs: nnx.Rngs, *, init: Callable, bias: bool = False
  ):
    super().__init__(embed, experts, rngs, init=params.zeros, bias=bias)
    noise_shape = (embed, experts.experts)
    self.noise = params.param(rngs, params.zeros, noise_shape, ("embed", None))
    if not self.normalise:
      raise UserError(
        f"config.model.design.experts.router: found 'noisy_top_k' with top_k={experts.top_k} and "
        f"normalise={experts.normalise}, expected top_k above 1 and normalised gates"
      )

  def route(self, product: Callable, key: jax.Array | None) -> NoisyRouting:
    clean_BTE = self.logits(product)
    if key is None:
      routing = self.choose(clean_BTE)
      E = clean_BTE.shape[-1]
      one_hot_BTkE = jax.nn.one_hot(routing.experts_BTk, E, dtype=jnp.float32)
      chances_BTE = jnp.sum(one_hot_BTkE, axis=2)
      return NoisyRouting(**vars(routing), chances_BTE=chances_BTE)
    deviation_BTE = jax.nn.softplus(product(self.noise[...]))
    noise_BTE = jax.random.normal(subkey(key, 1), clean_BTE.shape, jnp.float32)
    noisy_BTE = clean_BTE + deviation_BTE * noise_BTE
    chances_BTE = _chances(clean_BTE, noisy_BTE, deviation_BTE, self.top_k)
    routing = self.choose(noisy_BTE)
    return NoisyRouting(**vars(routing), chances_BTE=chances_BTE)

  def statistics(self, routing, valid_BT, dropped, experts) -> dict[str, Statistics]:
    return {"load": GateLoad.from_routing(routing, valid_BT, dropped, experts)}


def _chances(
  clean_BTE: jax.Array, noisy_BTE: jax.Array, deviation_BTE: jax.Array, k: int
) -> jax.Array:
  """Return the smooth estimator of the load: `P(x, i)` of appendix A, equations 8 and 9."""
  if k == clean_BTE.shape[-1]:
    return jnp.ones_like(clean_BTE)
  highest = jax.lax.top_k(noisy_BTE, k + 1)[0]
  kth_BT1 = highest[..., k - 1 : k]
  next_BT1 = highest[..., k:]
  # The k-th largest of the other experts: the next one for an expert that is among the k itself.
  threshold_BTE = jnp.where(noisy_BTE > next_BT1, next_BT1, kth_BT1)
  standardised_BTE = (clean_BTE - threshold_BTE) / deviation_BTE
  return jax.scipy.stats.norm.cdf(standardised_BTE)


@dataclasses.dataclass(frozen=True)
class GateLoad(Statistics):
  """The importance and the load of a layer's experts: float32 sums over valid tokens.

  Attributes:
    importance_E, load_E: sums of the gates of each expert, and of the probabilities that it is
      chosen.
    chosen_E: number of choices of each expert.
    dropped: number of choices without a slot.
    importance_loss, load_loss: factors of the losses.
  """

  importance_E: jax.Array
  load_E: jax.Array
  chosen_E: jax.Array
  dropped: jax.Array
  importance_loss: float = dataclasses.field(metadata={"static": True})
  load_loss: float = dataclasses.field(metadata={"static": True})

  @classmethod
  def from_routing(
    cls, routing: NoisyRouting, valid_BT: jax.Array | None, dropped: jax.Array, experts: Experts
  ) -> "GateLoad":
    """Sum the gates, choices and probabilities of a layer's experts over valid tokens."""
    one_hot_BTkE = jax.nn.one_hot(routing.experts_BTk, experts.experts, dtype=jnp.float32)
    importance_BTE = jnp.einsum("BTkE,BTk->BTE", one_hot_BTkE, routing.gates_BTk)
    importance_E = sum_valid(importance_BTE, valid_BT)
    chosen_BTE = jnp.sum(one_hot_BTkE, axis=2)
    chosen_E = sum_valid(chosen_BTE, valid_BT)
    return cls(
      importance_E=importance_E,
      load_E=sum_valid(routing.chances_BTE, valid_BT),
      chosen_E=chosen_E,
      dropped=dropped,
      importance_loss=experts.importance_loss,
      load_loss=experts.load_loss,
    )

  def scalars(self) -> dict[str, jax.Array]:
    """Return the losses, times their factors, and the metrics of `load_metrics`.

    Each loss is the square of the coefficient of variation over experts (section 4, equation 7;
    appendix A, equation 11), 0 if all experts matter equally.
    """
    choices = jnp.maximum(jnp.sum(self.chosen_E), 1.0)
    importance_loss = self.importance_loss * _relative_variance(self.importance_E)
    load_loss = self.load_loss * _relative_variance(self.load_E)
    metrics = load_metrics(self.chosen_E, choices, self.dropped / choices)
    return {"moe_importance_loss": importance_loss, "moe_load_loss": load_loss, **metrics}


jax.tree_util.register_dataclass(GateLoad)


def _relative_variance(sums_E: jax.Array) -> jax.Array:
  """Return variance / mean^2, 0 for a batch of padding."""
  variance = jnp.var(sums_E)
  squared_mean = jnp.square(jnp.mean(sums_E))
  return variance / jnp.maximum(squared_mean, 1e-10)

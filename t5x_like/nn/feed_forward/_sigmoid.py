"""DeepSeek-V3's router: sigmoid affinities, groups of experts, and biases that balance loads.

It follows DeepSeek-AI 2024 (https://arxiv.org/abs/2412.19437, section 2.1.2) and Wang et al. 2024
(https://arxiv.org/abs/2408.15664). A bias is added to an expert's affinity when experts are chosen,
not to its gate. After every step it goes down by `bias_rate` if the expert had more than the mean
load in the global batch, and up if it had less.

The bias is a parameter, so it is saved, resumed, sharded and converted like the others. Its
"gradient" is the load above the mean, and `training/optimizer.py` moves it against the sign of
that gradient. The load is therefore summed over microbatches, devices and stages together with the
gradients, and a rejected step moves no bias. The load is scaled by 2^-70, which keeps its sign and
makes it too small to change the global norm by which gradients are clipped.

In shapes, E is the experts, k the experts of a token, G the groups, g the best groups, and X the
experts of a group.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.nn.feed_forward import Experts
from t5x_like.nn.feed_forward._router import Router, Routing, load_metrics, sum_valid
from t5x_like.nn.layer import Statistics

_LOAD_SCALE = 2.0**-70


class SigmoidRouter(Router):
  """Top-k of sigmoid affinities, within the best groups (equations 12 to 16).

  A group's score is the sum of its two best biased affinities; experts of the `top_groups` best
  groups can be chosen. Gates are the affinities of the chosen experts, normalised unless
  `normalise` is False, times `scale`.

  Raises:
    UserError: the number of groups does not divide the experts, a group has fewer than two
      experts, or the best groups together have fewer than `top_k`.
  """

  def __init__(
    self, embed: int, experts: Experts, rngs: nnx.Rngs, *, init: Callable, bias: bool = False
  ):
    super().__init__(embed, experts, rngs, init=init, bias=bias)
    E = experts.experts
    groups = experts.groups
    top_groups = experts.top_groups
    if E % groups or (groups > 1 and E // groups < 2):
      raise UserError(
        f"config.model.design.experts.groups: found {groups}, expected a number that divides the "
        f"{E} experts, two or more in each group"
      )
    if top_groups > groups or top_groups * (E // groups) < experts.top_k:
      raise UserError(
        f"config.model.design.experts.top_groups: found {top_groups}, expected at most {groups} "
        f"groups, with at least {experts.top_k} experts in them (top_k)"
      )
    self.balance = params.param(rngs, params.zeros, (E,), (None,))
    self.balance.set_metadata(step=experts.bias_rate)  # see `training/optimizer.py`
    self.groups = groups
    self.top_groups = top_groups
    self.scale = experts.scale

  def choose(self, logits_BTE: jax.Array) -> Routing:
    """Choose the experts of the largest biased affinities; gates are affinities without bias."""
    scores_BTE = jax.nn.sigmoid(logits_BTE)
    biased_BTE = self._limit_to_groups(scores_BTE + self.balance[...])
    _, experts_BTk = jax.lax.top_k(biased_BTE, self.top_k)
    gates_BTk = jnp.take_along_axis(scores_BTE, experts_BTk, axis=-1)
    if self.normalise:
      gates_BTk = _divide_by_sum(gates_BTk)
    shares_BTE = _divide_by_sum(scores_BTE)
    return Routing(logits_BTE, shares_BTE, experts_BTk, self.scale * gates_BTk)

  def _limit_to_groups(self, biased_BTE: jax.Array) -> jax.Array:
    """Replace the affinities outside of a token's best groups by -inf."""
    if self.groups == 1:
      return biased_BTE
    biased_BTGX = biased_BTE.reshape(*biased_BTE.shape[:-1], self.groups, -1)
    best_two_BTG2, _ = jax.lax.top_k(biased_BTGX, 2)
    scores_BTG = jnp.sum(best_two_BTG2, axis=-1)
    _, best_BTg = jax.lax.top_k(scores_BTG, self.top_groups)
    one_hot_BTgG = jax.nn.one_hot(best_BTg, self.groups, dtype=jnp.int32)
    is_allowed_BTG = jnp.sum(one_hot_BTgG, axis=-2) > 0
    limited_BTGX = jnp.where(is_allowed_BTG[..., None], biased_BTGX, -jnp.inf)
    return limited_BTGX.reshape(biased_BTE.shape)

  def count_load(self, routing: Routing, valid_BT: jax.Array | None) -> Routing:
    choices_BTE = _choices(routing.experts_BTk, self.balance[...].size)
    load_E = sum_valid(choices_BTE, valid_BT)
    gates_BTk = _attach_load(routing.gates_BTk, self.balance[...], load_E - jnp.mean(load_E))
    return dataclasses.replace(routing, gates_BTk=gates_BTk)

  def statistics(self, routing, valid_BT, dropped, experts) -> dict[str, Statistics]:
    return {"load": RowLoad.from_routing(routing, valid_BT, dropped, experts)}


def _divide_by_sum(x: jax.Array) -> jax.Array:
  """Scale the last axis to a sum of 1; zeros stay zeros."""
  return x / (jnp.sum(x, axis=-1, keepdims=True) + 1e-20)


def _choices(experts_BTk: jax.Array, experts: int) -> jax.Array:
  """Return float32 [B, T, E]: 1 where a token uses an expert."""
  one_hot_BTkE = jax.nn.one_hot(experts_BTk, experts, dtype=jnp.float32)
  return jnp.sum(one_hot_BTkE, axis=2)


@jax.custom_vjp
def _attach_load(gates_BTk: jax.Array, balance_E: jax.Array, excess_E: jax.Array) -> jax.Array:
  """Return the gates; in the backward pass, `excess_E` is the gradient of `balance_E`."""
  return gates_BTk


def _attach_load_forward(gates_BTk, balance_E, excess_E):
  return gates_BTk, excess_E


def _attach_load_backward(excess_E, g_BTk):
  # An idle pipeline stage routes tokens that no output depends on; these must not count as load.
  is_used = jnp.any(g_BTk != 0)
  return g_BTk, jnp.where(is_used, _LOAD_SCALE * excess_E, 0.0), None


_attach_load.defvjp(_attach_load_forward, _attach_load_backward)


@dataclasses.dataclass(frozen=True)
class RowLoad(Statistics):
  """The load of a layer's experts: float32 sums over valid tokens.

  Attributes:
    tokens: number of valid tokens.
    balance: sum over rows of the row's balance times its number of tokens.
    load_E: number of choices of each expert.
    dropped: number of choices that exceed an expert's capacity.
    balance_loss: weight of the balance loss.
  """

  tokens: jax.Array
  balance: jax.Array
  load_E: jax.Array
  dropped: jax.Array
  balance_loss: float = dataclasses.field(metadata={"static": True})

  @classmethod
  def from_routing(
    cls, routing: Routing, valid_BT: jax.Array | None, dropped: jax.Array, experts: Experts
  ) -> "RowLoad":
    """Compute the balance of each row, and sum the choices of experts over valid tokens."""
    chosen_BTE = _choices(routing.experts_BTk, experts.experts)
    if valid_BT is None:
      weights_BT = jnp.ones(chosen_BTE.shape[:2])
    else:
      weights_BT = valid_BT.astype(jnp.float32)
    tokens_B = jnp.sum(weights_BT, axis=1)
    shares_BE = jnp.einsum("BT,BTE->BE", weights_BT, routing.probs_BTE)
    load_BE = jnp.einsum("BT,BTE->BE", weights_BT, chosen_BTE)
    even_load_B = jnp.maximum(experts.top_k * tokens_B, 1.0) / experts.experts
    # The sum over experts of f P (equation 17), times the number of tokens.
    balance_B = jnp.sum(load_BE * shares_BE, axis=-1) / even_load_B
    return cls(
      tokens=jnp.sum(tokens_B),
      balance=jnp.sum(balance_B),
      load_E=jnp.sum(load_BE, axis=0),
      dropped=dropped,
      balance_loss=experts.balance_loss,
    )

  def scalars(self) -> dict[str, jax.Array]:
    """Return the weighted balance loss, and the metrics of `load_metrics`.

    Before it is weighted, the sequence-wise balance loss (equations 17 to 20) is 1 if each row
    loads experts evenly.
    """
    choices = jnp.maximum(jnp.sum(self.load_E), 1.0)
    balance_loss = self.balance_loss * self.balance / jnp.maximum(self.tokens, 1.0)
    metrics = load_metrics(self.load_E, choices, self.dropped / choices)
    return {"moe_balance_loss": balance_loss, **metrics}


jax.tree_util.register_dataclass(RowLoad)

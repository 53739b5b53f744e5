"""Attention cores: implementations of `softmax(q k^T + bias) v`, one file each.

A file is named after its core. Its `make` takes the arguments that recipes give and, if its
signature names them, `rngs`, the `dims` of the stack and whether it is `causal`. A core computes
exactly the attention that the call describes, or raises a `UserError`.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.errors import UserError
from t5x_like.nn.dims import NO_DROPOUT, Dropout
from t5x_like.nn.mask import Mask
from t5x_like.nn.positions import Position

# core labels by log name, while a `record_cores` block is open
_recorded: contextvars.ContextVar[dict[str, set[str]] | None] = contextvars.ContextVar(
  "recorded", default=None
)


@contextlib.contextmanager
def record_cores() -> Iterator[dict[str, set[str]]]:
  """Collect the labels of the cores in calls traced within the block, by their log name."""
  labels: dict[str, set[str]] = {}
  token = _recorded.set(labels)
  try:
    yield labels
  finally:
    _recorded.reset(token)


def describe_cores(labels: dict[str, set[str]]) -> dict[str, str]:
  """Return recorded cores as {"attention_core": "dense", …}; "+" joins the cores of layers."""
  return {log_name: "+".join(sorted(names)) for log_name, names in sorted(labels.items())}


@dataclasses.dataclass(frozen=True)
class Softmax:
  """The settings that turn logits into weights, except the mask.

  Attributes:
    bias: the stack's bias: an array [B or 1, N, T, S], or a `Position` that computes pieces of it.
    position: the layer's own position scheme.
    softcap: logits become `softcap * tanh(logits / softcap)`.
    dropout, key: dropout of the weights; none if the key is None.
    device_slice: the device's part of the arrays, a `_devices.DeviceSlice`; set in cores that each
      device runs by itself.
  """

  bias: jax.Array | Position | None = None
  position: Position = dataclasses.field(default_factory=Position)
  softcap: float | None = None
  dropout: Dropout = NO_DROPOUT
  key: jax.Array | None = None
  device_slice: Any = None

  @property
  def drops_whole_keys(self) -> bool:
    """Whether all queries drop the same keys, which is dropout of whole values."""
    return -2 in self.dropout.shared

  @property
  def has_bias(self) -> bool:
    """Whether the stack or the layer adds a position bias."""
    return self.bias is not None or self.position.biased

  def cap(self, logits: jax.Array) -> jax.Array:
    if self.softcap is None:
      return logits
    return self.softcap * jnp.tanh(logits / self.softcap)

  def total_bias(self, q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array | None:
    """Return the sum of the stack's and the layer's bias: float32 [B or 1, N, T, S], or None."""
    stack_bias = self.bias
    if isinstance(stack_bias, Position):
      stack_bias = stack_bias.bias(q_pos_BT, k_pos_BS)
    layer_bias = self.position.bias(q_pos_BT, k_pos_BS)
    if stack_bias is None:
      return layer_bias
    return stack_bias if layer_bias is None else stack_bias + layer_bias


class Core(nnx.Module):
  """The base of all cores, which define `attend`. Unsupported calls are refused before it runs.

  Attributes:
    refuses: unsupported features, of `causal window segments padding prefix bias query_bias softcap
      dropout lengths`.
    piecewise_bias_above: number of logits per head above which the core computes the bias piece by
      piece, so that no [T, S] array is ever made; None for never.
    exact: whether it computes the same function as the dense core, whose FLOPs then count as the
      model's.
  """

  refuses: tuple[str, ...] = ()
  piecewise_bias_above: int | None = None
  exact = False

  @property
  def name(self) -> str:
    """The name of the core's file."""
    return type(self).__module__.rpartition(".")[2]

  def __call__(
    self,
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKH: jax.Array,
    mask: Mask,
    bias: jax.Array | Position | None = None,
    position: Position | None = None,
    *,
    scale: float,
    softcap: float | None = None,
    dropout: Dropout = NO_DROPOUT,
    key: jax.Array | None = None,
    log_name: str = "attention",
  ) -> jax.Array:
    """Compute attention with grouped key/value heads.

    Args:
      scale: factor of the logits.
      bias, position, softcap, dropout, key: see `Softmax`.
      log_name: the name under which `record_cores` records the core.
    Returns:
      [B, T, N, H] in the dtype of `q`. Logits and softmax are float32 for any dtype of the
      inputs.
    Raises:
      UserError: the core does not support the call.
    """
    softmax = Softmax(bias, position or Position(), softcap, dropout, key)
    core = self.select(q_BTNH, k_BSKH, mask, softmax)
    feature = core.unsupported(q_BTNH, k_BSKH, mask, softmax)
    if feature:
      raise core.refusal(feature)
    recorded = _recorded.get()
    if recorded is not None:
      recorded.setdefault(log_name, set()).add(core.label(q_BTNH))
    return core.run_sharded(q_BTNH * scale, k_BSKH, v_BSKH, mask, softmax)

  def label(self, q_BTNH: jax.Array) -> str:
    """Return the name that logs and records use for the core on these queries."""
    return self.name

  def select(self, q: jax.Array, k: jax.Array, mask: Mask, softmax: Softmax) -> "Core":
    """Return the core that computes a call: this one, unless the core chooses among others."""
    return self

  @classmethod
  def unsupported(cls, q: jax.Array, k: jax.Array, mask: Mask, softmax: Softmax) -> str | None:
    """Describe the first feature of the call that this class does not support; None if none."""
    T = q.shape[1]
    S = k.shape[1]
    drops_pairs = softmax.dropout.rate > 0 and not softmax.drops_whole_keys
    features = {
      "causal": (mask.causal, "causal attention"),
      "window": (mask.window is not None, "a sliding window"),
      "segments": (mask.q_segments is not None, "packed sequences (segment ids)"),
      "padding": (mask.k_valid is not None, "keys that are padding"),
      "prefix": (mask.k_prefix is not None, "a bidirectional prefix"),
      "bias": (softmax.has_bias, "a position bias on the logits"),
      "query_bias": (softmax.position.query_dependent, "positions that depend on the query (Shaw)"),
      "softcap": (softmax.softcap is not None, "a cap on the logits"),
      "dropout": (drops_pairs, "dropout of attention probabilities by pairs"),
      "lengths": (T != S, f"attention from {T} queries to {S} keys, which must be as many"),
    }
    for name, (is_present, description) in features.items():
      if is_present and name in cls.refuses:
        return description
    return None

  def run_sharded(
    self, q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask, softmax: Softmax
  ) -> jax.Array:
    """Compute a call on the whole arrays.

    A core that each device runs by itself does so here; see `_devices.PerDevice`.
    """
    return self.attend(q, k, v, mask, softmax)

  def attend(
    self, q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask, softmax: Softmax
  ) -> jax.Array:
    """Attend from scaled queries to keys and values.

    Args:
      q, k, v: [B, T, N, H] queries, [B, S, K, H] keys and values.
    Returns:
      [B, T, N, H]
    """
    raise TypeError(f"{type(self).__name__} must define `attend`")

  def wrap_stack(self, stack: nnx.Module, rngs: nnx.Rngs) -> nnx.Module:
    """Return the stack of layers with this core; wrapped if layers share the core's parameters."""
    return stack

  def for_decoding(self) -> "Core":
    """Return the core for steps against a cache."""
    raise self.refusal("decoding from a cache")

  def refusal(self, feature: str) -> UserError:
    return UserError(
      f"attention core {self.name!r} does not support {feature}; choose another, such as "
      "core='dense'"
    )

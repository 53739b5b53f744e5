"""Attention cores: how `softmax(q k^T + bias) v` is computed. One file each; the file's name is the core's.

A file's `make` is called with what a recipe says of the core and, of the following, with what it names: `rngs`, the
`dims` of the stack and whether it is `causal`. A core computes exactly what its arguments say or raises a `UserError`
that names it; it never computes something else.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.errors import UserError
from t5x_like.nn.dims import dropout
from t5x_like.nn.mask import Mask
from t5x_like.nn.positions import Position


@dataclasses.dataclass(frozen=True)
class Softmax:
  """What happens to logits on their way to weights, besides the mask.

  Attributes:
    bias: the stack's, an array [B or 1, N, T, S] or a `Position` to be asked for pieces of it.
    position: the layer's own.
    softcap: logits become `softcap * tanh(logits / softcap)`.
    dropout_rate, key: of the weights; no dropout where the key is None.
  """

  bias: jax.Array | Position | None = None
  position: Position = dataclasses.field(default_factory=Position)
  softcap: float | None = None
  dropout_rate: float = 0.0
  key: jax.Array | None = None

  def capped(self, logits: jax.Array) -> jax.Array:
    return logits if self.softcap is None else self.softcap * jnp.tanh(logits / self.softcap)

  def biases(self, q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array | None:
    """The stack's bias and the layer's, added: float32 [B or 1, N, T, S], or None."""
    shared = self.bias.bias(q_pos_BT, k_pos_BS) if isinstance(self.bias, Position) else self.bias
    own = self.position.bias(q_pos_BT, k_pos_BS)
    if shared is None or own is None:
      return own if shared is None else shared
    return shared + own

  def dropped(self, weights_BNTS: jax.Array) -> jax.Array:
    return dropout(weights_BNTS, self.dropout_rate, self.key)


class Core(nnx.Module):
  """What all cores have. Each is its `attend`; what it cannot do is checked before that is called.

  Attributes:
    refuses: of `causal window segments prefix bias query_bias softcap dropout lengths`, what the core cannot do.
    pieces: whether it asks for the bias piece by piece, so that no [T, S] array is ever made.
  """

  refuses: tuple[str, ...] = ()
  pieces = False

  @property
  def name(self) -> str:
    """As recipes, the log and the run's record call it: the name of its file."""
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
    dropout_rate: float = 0.0,
    key: jax.Array | None = None,
  ) -> jax.Array:
    """Attention with grouped key/value heads.

    Args:
      scale: of the logits.
      others: see `Softmax`.
    Returns:
      [B, T, N, H] in the dtype of `q`. Logits and softmax are float32 whatever the dtype of the inputs.
    Raises:
      UserError: the core cannot do this.
    """
    softmax = Softmax(bias, position or Position(), softcap, dropout_rate, key)
    T, S = q_BTNH.shape[1], k_BSKH.shape[1]
    asked = {
      "causal": (mask.causal, "causal attention"),
      "window": (mask.window is not None, "a sliding window"),
      "segments": (mask.q_segments is not None, "packed sequences (segment ids)"),
      "prefix": (mask.k_prefix is not None, "a bidirectional prefix"),
      "bias": (bias is not None or softmax.position.biased, "a position bias on the logits"),
      "query_bias": (softmax.position.query_dependent, "positions that depend on the query (Shaw)"),
      "softcap": (softcap is not None, "a cap on the logits"),
      "dropout": (dropout_rate > 0, "dropout of attention probabilities"),
      "lengths": (T != S, f"attention from {T} queries to {S} keys, which must be as many"),
    }
    for name, (wanted, words) in asked.items():
      if wanted and name in self.refuses:
        raise self.refusal(words)
    return self.attend(q_BTNH * scale, k_BSKH, v_BSKH, mask, softmax)

  def attend(self, q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask, softmax: Softmax) -> jax.Array:
    """[B, T, N, H] from scaled queries [B, T, N, H], keys and values [B, S, K, H]."""
    raise TypeError(f"{type(self).__name__} is no attention core: it has no `attend`")

  def decoding(self) -> "Core":
    """The core for steps against a cache: the plain one, where the rule of this one is the mask's alone."""
    raise self.refusal("decoding from a cache")

  def refusal(self, what: str) -> UserError:
    return UserError(f"attention core {self.name!r} cannot do {what}; choose another, such as core='dense'")

"""Attention cores: how `softmax(q k^T + bias) v` is computed. One file each; the file's name is the core's.

A core is an `nnx.Module` (most have no parameters), called as

  core(q_BTNH, k_BSKH, v_BSKH, mask, bias, position, scale=, softcap=, dropout_rate=, key=) -> out_BTNH

with the symbolic `Mask`, the stack's shared bias (an array [B or 1, N, T, S], or a `Position` to be asked for pieces of
it) and the layer's own `Position`. It computes exactly what these say or raises a `UserError` naming itself; it never
computes something else.
"""

import importlib

import jax
from flax import nnx

from t5x_like.errors import UserError, did_you_mean

NAMES = ("dense", "chunked", "local", "bigbird", "linformer", "memory_compressed")


class Core(nnx.Module):
  """What all cores have.

  Attributes:
    name: as recipes, the log and the run's record call it.
    pieces: whether it asks for the bias piece by piece, so that no [T, S] array is ever made.
  """

  name = "core"
  pieces = False

  def decoding(self) -> "Core":
    """The core for steps against a cache: the plain one, where the rule of this one is the mask's alone."""
    raise self.refusal("decoding from a cache")

  def refusal(self, what: str) -> UserError:
    return UserError(f"attention core {self.name!r} cannot do {what}; choose another, such as core='dense'")

  def check(self, *, mask=None, bias=None, position=None, softcap=None, dropout_rate=0.0, refuses=()) -> None:
    """Raises for each of `refuses` (`causal`, `segments`, `prefix`, …) that the arguments ask for."""
    asked = {
      "causal": mask is not None and mask.causal,
      "window": mask is not None and mask.window is not None,
      "segments": mask is not None and mask.q_segments is not None,
      "prefix": mask is not None and mask.k_prefix is not None,
      "bias": bias is not None or (position is not None and position.biased),
      "query_bias": position is not None and position.query_dependent,
      "softcap": softcap is not None,
      "dropout": dropout_rate > 0,
    }
    words = {
      "causal": "causal attention",
      "window": "a sliding window",
      "segments": "packed sequences (segment ids)",
      "prefix": "a bidirectional prefix",
      "bias": "a position bias on the logits",
      "query_bias": "positions that depend on the query (Shaw)",
      "softcap": "a cap on the logits",
      "dropout": "dropout of attention probabilities",
    }
    for name in refuses:
      if asked[name]:
        raise self.refusal(words[name])


def make(spec: str | dict, rngs: nnx.Rngs, **sizes) -> Core:
  """The core of a recipe: a name, or `{"name": …}` with its arguments.

  Args:
    sizes: what cores with parameters may read: `heads`, `kv_heads`, `head_dim`, `causal`.
  Raises:
    UserError: no such core, or arguments it does not take.
  """
  values = {"name": spec} if isinstance(spec, str) else dict(spec)
  name = values.pop("name", None)
  if name not in NAMES:
    raise UserError(f"core: found {name!r}, expected one of {', '.join(NAMES)}{did_you_mean(str(name), NAMES)}")
  core = importlib.import_module(f"t5x_like.nn.cores.{name}").make
  try:
    return core(rngs, sizes, **values)
  except TypeError as error:
    raise UserError(f"core {name!r}: {error}") from error


def position_bias(bias, position, q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array | None:
  """The stack's bias and the layer's own, added: float32 [B or 1, N, T, S], or None."""
  shared = bias if bias is None or isinstance(bias, jax.Array) else bias.bias(q_pos_BT, k_pos_BS)
  own = None if position is None else position.bias(q_pos_BT, k_pos_BS)
  if shared is None or own is None:
    return own if shared is None else shared
  return shared + own

"""Beam search: keep the few likeliest sequences at every step.

Finished sequences are ranked by `log probability / penalty(length)`; the length counts new tokens,
including the end token. Two rules decide which sequences are finished and when to stop:
`AttainableScore` (T5X) and `TransformersRule` (the transformers library).
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal, Protocol

import jax
import jax.numpy as jnp

from t5x_like.decoding.generate import Batch, is_encoder_memory, prefill, split_state
from t5x_like.decoding.sampling import DecodingStep, Transform, apply_transforms, is_in, row_maximum
from t5x_like.decoding.stops import StopStrings
from t5x_like.errors import UserError
from t5x_like.parallel.constrain import constrain


class Penalty(Protocol):
  """A function from a length (a number or float32 scalar) to the divisor of the log-probability."""

  def __call__(self, length): ...


@dataclasses.dataclass(frozen=True)
class GnmtPenalty:
  """`((5 + length) / 6)^alpha` (Wu et al. 2016, equation 14), as in T5X."""

  alpha: float = 0.6

  def __call__(self, length):
    return ((5.0 + length) / 6.0) ** self.alpha


@dataclasses.dataclass(frozen=True)
class PowerPenalty:
  """`length^power`, as in transformers; at 1 the score is the mean log-probability per token."""

  power: float = 1.0

  def __call__(self, length):
    return length**self.power


class NoPenalty:
  """A penalty of 1: the log-probability is unchanged."""

  def __call__(self, length):
    return 1.0


@dataclasses.dataclass(frozen=True)
class AttainableScore:
  """T5X's rule: exact for any penalty that is monotone in the length.

  Every candidate that ends may finish. A row is done when its worst finished sequence beats the
  best score that a running sequence could still reach. A sequence cut off at `max_length` is
  unfinished; it is returned only if no sequence has finished.
  """

  def finishing_candidates(self, ended_BC: jax.Array, beams: int, last: jax.Array) -> jax.Array:
    """Return bool [B, C], True for candidates (best first) that finish. `last` tells whether this
    is the last step."""
    return ended_BC

  def continuing_rows(
    self, best_B: jax.Array, done_BK: jax.Array, length, max_length: int, penalty: Penalty
  ) -> jax.Array:
    """Return which rows continue, bool [B], from their best running log-probability and finished
    scores."""
    return best_B / jnp.maximum(penalty(length), penalty(max_length)) > jnp.min(done_BK, axis=1)


@dataclasses.dataclass(frozen=True)
class TransformersRule(AttainableScore):
  """The rule of `transformers.generate(num_beams=…)`, release 5: the same sequences, token for
  token.

  A candidate finishes only if it is among the best `beams` of its step; at `max_length`, all
  running sequences finish.

  Args:
    early_stopping: `False` assumes that no score improves with length, `"never"` bounds the
      improvement as T5X does, `True` also stops once `beams` sequences have finished.
  """

  early_stopping: bool | Literal["never"] = False

  def finishing_candidates(self, ended_BC: jax.Array, beams: int, last: jax.Array) -> jax.Array:
    return (ended_BC | last) & (jnp.arange(ended_BC.shape[1]) < beams)

  def continuing_rows(
    self, best_B: jax.Array, done_BK: jax.Array, length, max_length: int, penalty: Penalty
  ) -> jax.Array:
    if self.early_stopping == "never":
      return super().continuing_rows(best_B, done_BK, length, max_length, penalty)
    worst_B = jnp.min(done_BK, axis=1)
    hopeful_B = best_B / penalty(length) > worst_B
    return hopeful_B & jnp.isneginf(worst_B) if self.early_stopping else hopeful_B


def beam_search(
  model,
  batch: Batch,
  *,
  max_length: int,
  beams: int,
  length_penalty: Penalty | None = GnmtPenalty(0.6),
  rule: AttainableScore = AttainableScore(),
  transforms: Sequence[Transform] = (),
  eos: Sequence[int] | None = None,
  stop: StopStrings | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Search for the best `beams` sequences; return them best first.

  The prompt is read once for all beams of a row. The encoder's keys and values are copied to every
  beam once; a step reorders only the decoder's own cache.

  Args:
    model, batch, max_length, eos, stop: as for `generate.generate`.
    beams: K, the number of sequences kept at every step and returned.
    length_penalty: `GnmtPenalty(alpha)`, `PowerPenalty(power)` or None.
    rule: `AttainableScore()` or `TransformersRule(early_stopping)`.
    transforms: applied to the log-probabilities of the next token; see `sampling`.
  Returns:
    (int32 [B, K, max_length] new tokens as from `greedy`, float32 [B, K] scores: their penalised
    log-probabilities). Missing sequences, and rows without input, are padding with a score of -inf.
  Raises:
    UserError: `beams` is not positive, or as `greedy`.
  """
  if beams < 1:
    raise UserError(f"beams: found {beams}, expected at least 1")
  K = beams
  L = max_length
  V = model.variant.vocab_size
  penalty = NoPenalty() if length_penalty is None else length_penalty
  start = prefill(model, batch, max_length, eos)
  changing, join = split_state(
    jax.tree_util.tree_map_with_path(lambda path, x: _spread(path, x, K), start.state)
  )
  B = start.last_B1.shape[0]
  ends = len(start.eos) or int(stop is not None)
  C = min((1 + ends) * K, K * V)  # enough to include K that do not end; with `stop`, usually enough

  def more(carry):
    *_, open_B, index = carry
    return (index < L) & jnp.any(open_B)

  def step(carry):
    changing, last_BK, running, running_BK, done, done_BK, open_B, index = carry
    logits_MV, state = start.next_logits(last_BK.reshape(B * K, 1), join(changing), index)
    progress = DecodingStep(index, L, start.eos, start.prompt_BP, running)
    scores_MV = apply_transforms(transforms, jax.nn.log_softmax(logits_MV, axis=-1), progress)
    scores_BKV = running_BK[..., None] + scores_MV.reshape(B, K, V)
    best_BC, at_BC = _best(constrain(scores_BKV.reshape(B, K * V), "batch", None), C)
    parent_BC = at_BC // V
    token_BC = at_BC % V
    candidates = jax.lax.dynamic_update_slice(
      _pick(running, parent_BC), token_BC[..., None], (0, 0, index)
    )
    ended_BC = is_in(token_BC, start.eos)
    length = (index + 1).astype(jnp.float32)
    if stop is not None:
      ended_BC |= stop(candidates.reshape(B * C, L), index).reshape(B, C)

    finishing_BC = rule.finishing_candidates(ended_BC, K, index == L - 1) & open_B[:, None]
    finished_BC = jnp.where(finishing_BC, best_BC / penalty(length), -jnp.inf)
    done_BK, kept_BK = _best(jnp.concatenate([done_BK, finished_BC], axis=1), K)
    done = _pick(jnp.concatenate([done, candidates], axis=1), kept_BK)

    running_BK, kept_BK = _best(jnp.where(ended_BC, -jnp.inf, best_BC), K)
    running, last_BK, parent_BK = (_pick(x, kept_BK) for x in (candidates, token_BC, parent_BC))
    state = jax.tree_util.tree_map_with_path(lambda path, x: _follow(path, x, parent_BK), state)
    open_B = open_B & rule.continuing_rows(running_BK[:, 0], done_BK, length, L, penalty)
    return split_state(state)[0], last_BK, running, running_BK, done, done_BK, open_B, index + 1

  empty = constrain(jnp.full((B, K, L), start.pad, jnp.int32), "batch", None, None)
  nothing_BK = constrain(jnp.full((B, K), -jnp.inf, jnp.float32), "batch", None)
  running_BK = nothing_BK.at[:, 0].set(0.0)  # all beams are equal at first, so only one counts
  last_BK = jnp.broadcast_to(start.last_B1, (B, K))
  carry = changing, last_BK, empty, running_BK, empty, nothing_BK, start.alive_B, jnp.int32(0)
  _, _, running, running_BK, done, done_BK, _, _ = jax.lax.while_loop(more, step, carry)

  unfinished_B1 = jnp.isneginf(done_BK[:, :1])
  scores_BK = jnp.where(unfinished_B1, running_BK / penalty(float(L)), done_BK)
  scores_BK = jnp.where(start.alive_B[:, None], scores_BK, -jnp.inf)
  tokens = jnp.where(unfinished_B1[..., None], running, done)
  return jnp.where(jnp.isneginf(scores_BK)[..., None], start.pad, tokens), scores_BK


def _best(scores_BC: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
  """Return the values and indices of the greatest scores, as `jax.lax.top_k`: [B, count].

  It takes `count` passes of `row_maximum`.

  The passes stay sharded by rows; the operand of a top-k would be gathered on every device.
  """

  def take(scores_BC, _):
    value_B, at_B = row_maximum(scores_BC)
    taken_BC = jnp.arange(scores_BC.shape[1]) == at_B[:, None]
    return jnp.where(taken_BC, -jnp.inf, scores_BC), (value_B, at_B)

  _, (values_KB, at_KB) = jax.lax.scan(take, scores_BC, length=count)
  return values_KB.T, at_KB.T


def _pick(x: jax.Array, at_BK: jax.Array) -> jax.Array:
  """Select K of each row's C entries: [B, C, …] -> [B, K, …]. Works row by row: no device needs
  another's rows."""
  return jax.vmap(lambda x_C, at_K: jnp.take(x_C, at_K, axis=0, mode="clip"))(x, at_BK)


def _batch_axis(path) -> int:
  """Return the batch axis of a leaf: 1 in a stacked cache, after the layers axis; else 0, as in a
  list of caches."""
  return int(path[0].name == "cache" and not isinstance(path[1], jax.tree_util.SequenceKey))


def _spread(path, x: jax.Array, beams: int) -> jax.Array:
  """Repeat every row of a `DecodeState`'s leaf `beams` times."""
  if x.ndim == 0:
    return x
  axis = _batch_axis(path)
  x = jnp.expand_dims(x, axis + 1)
  shape = (*x.shape[: axis + 1], beams, *x.shape[axis + 2 :])
  return jnp.broadcast_to(x, shape).reshape(*shape[:axis], -1, *shape[axis + 2 :])


def _follow(path, x: jax.Array, parent_BK: jax.Array) -> jax.Array:
  """Replace each beam of a `DecodeState`'s leaf by its parent; beams differ only in the decoder's
  own cache."""
  if path[0].name != "cache" or is_encoder_memory(path):
    return x
  axis = _batch_axis(path)
  shape = x.shape
  x = x.reshape(*shape[:axis], *parent_BK.shape, *shape[axis + 1 :])
  pick = jax.vmap(_pick, in_axes=(0, None)) if axis else _pick
  return pick(x, parent_BK).reshape(shape)

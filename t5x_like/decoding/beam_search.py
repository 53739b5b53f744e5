"""Beam search: keep the few likeliest sequences at every step.

Finished sequences are ranked by `log probability / penalty(length)`; the length counts new tokens,
including the end token. Two rules decide which sequences are finished and when to stop:
`AttainableScore` (T5X) and `TransformersRule` (the transformers library).
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from t5x_like.decoding.generate import (
  Batch,
  PrefilledModel,
  is_encoder_memory,
  prefill,
  split_state,
)
from t5x_like.decoding.sampling import DecodingStep, Transform, apply_transforms, is_in, row_maximum
from t5x_like.decoding.stops import StopStrings
from t5x_like.errors import UserError
from t5x_like.nn.decode import DecodeState
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
    """Return bool [B, C], True for candidates (best first) that finish.

    Args:
      last: whether this is the last step.
    """
    return ended_BC

  def continuing_rows(
    self, best_B: jax.Array, done_BK: jax.Array, length, max_length: int, penalty: Penalty
  ) -> jax.Array:
    """Return bool [B], True for rows that continue.

    Args:
      best_B: the best log-probability of a running sequence.
      done_BK: the scores of finished sequences.
    """
    largest_penalty = jnp.maximum(penalty(length), penalty(max_length))
    attainable_B = best_B / largest_penalty
    return attainable_B > jnp.min(done_BK, axis=1)


@dataclasses.dataclass(frozen=True)
class TransformersRule(AttainableScore):
  """The rule of `transformers.generate(num_beams=…)`, release 5, with the same results.

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
    if not self.early_stopping:
      return hopeful_B
    return hopeful_B & jnp.isneginf(worst_B)


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
  start = prefill(model, batch, max_length, eos)
  spread_state = jax.tree_util.tree_map_with_path(partial(_spread, beams=beams), start.state)
  changing, join = split_state(spread_state)
  search = _Search(
    start=start,
    join=join,
    beams=beams,
    max_length=max_length,
    vocab=model.variant.vocab_size,
    penalty=NoPenalty() if length_penalty is None else length_penalty,
    rule=rule,
    transforms=transforms,
    stop=stop,
  )
  result = jax.lax.while_loop(search.is_unfinished, search.advance, search.first_beams(changing))
  return search.choose_best(result)


@dataclasses.dataclass(frozen=True)
class _Beams:
  """The state of a search between two steps; a pytree.

  Attributes:
    changing: the leaves of the `DecodeState` that steps change, with a row for each beam.
    last_BK: int32, the last token of each running sequence.
    running_BKL, running_scores_BK: the new tokens of the running sequences, best first, and their
      log-probabilities.
    done_BKL, done_scores_BK: the new tokens of the best finished sequences and their penalised
      log-probabilities, -inf where there are fewer.
    open_B: bool, the rows whose search continues.
    index: int32 scalar, the number of steps.
  """

  changing: list[jax.Array]
  last_BK: jax.Array
  running_BKL: jax.Array
  running_scores_BK: jax.Array
  done_BKL: jax.Array
  done_scores_BK: jax.Array
  open_B: jax.Array
  index: jax.Array


jax.tree_util.register_dataclass(_Beams)


class _Candidates(NamedTuple):
  """The C best continuations of a row's running sequences, best first.

  Attributes:
    scores_BC: float32, their log-probabilities.
    parent_BC, token_BC: int32, the sequence that each continues, and its new token.
    tokens_BCL: int32, all new tokens.
  """

  scores_BC: jax.Array
  parent_BC: jax.Array
  token_BC: jax.Array
  tokens_BCL: jax.Array


@dataclasses.dataclass(frozen=True)
class _Search:
  """The constants of a search; see `beam_search`.

  Attributes:
    join: the function of `split_state` that rejoins a `DecodeState`.
    vocab: the number of ids.
  """

  start: PrefilledModel
  join: Callable[[list[jax.Array]], DecodeState]
  beams: int
  max_length: int
  vocab: int
  penalty: Penalty
  rule: AttainableScore
  transforms: Sequence[Transform]
  stop: StopStrings | None

  @property
  def candidates(self) -> int:
    """The number of candidates of a row, so many that `beams` of them do not end.

    With `stop`, fewer may remain, as several tokens can complete its strings.
    """
    ends = len(self.start.eos) or int(self.stop is not None)
    return min((1 + ends) * self.beams, self.beams * self.vocab)

  def first_beams(self, changing: list[jax.Array]) -> _Beams:
    """Return the state before the first step."""
    B = self.start.last_B1.shape[0]
    K = self.beams
    empty_BKL = jnp.full((B, K, self.max_length), self.start.pad, jnp.int32)
    empty_BKL = constrain(empty_BKL, "batch", None, None)
    missing_BK = constrain(jnp.full((B, K), -jnp.inf, jnp.float32), "batch", None)
    return _Beams(
      changing=changing,
      running_scores_BK=missing_BK.at[:, 0].set(0.0),  # beams are equal at first; only one counts
      last_BK=jnp.broadcast_to(self.start.last_B1, (B, K)),
      running_BKL=empty_BKL,
      done_BKL=empty_BKL,
      done_scores_BK=missing_BK,
      open_B=self.start.alive_B,
      index=jnp.int32(0),
    )

  def is_unfinished(self, beams: _Beams) -> jax.Array:
    return (beams.index < self.max_length) & jnp.any(beams.open_B)

  def advance(self, beams: _Beams) -> _Beams:
    """Run one step: continue every running sequence by one token, or finish it."""
    K = self.beams
    L = self.max_length
    candidates, state = self.find_candidates(beams)
    ended_BC = is_in(candidates.token_BC, self.start.eos)
    length = (beams.index + 1).astype(jnp.float32)
    if self.stop is not None:
      B, C = ended_BC.shape
      stopped_M = self.stop(candidates.tokens_BCL.reshape(B * C, L), beams.index)
      ended_BC |= stopped_M.reshape(B, C)

    is_last = beams.index == L - 1
    finishing_BC = self.rule.finishing_candidates(ended_BC, K, is_last) & beams.open_B[:, None]
    penalised_BC = candidates.scores_BC / self.penalty(length)
    finished_scores_BC = jnp.where(finishing_BC, penalised_BC, -jnp.inf)
    all_scores = jnp.concatenate([beams.done_scores_BK, finished_scores_BC], axis=1)
    done_scores_BK, kept_BK = _best(all_scores, K)
    all_tokens = jnp.concatenate([beams.done_BKL, candidates.tokens_BCL], axis=1)
    done_BKL = _pick(all_tokens, kept_BK)

    running_scores_BC = jnp.where(ended_BC, -jnp.inf, candidates.scores_BC)
    running_scores_BK, kept_BK = _best(running_scores_BC, K)
    running_BKL = _pick(candidates.tokens_BCL, kept_BK)
    last_BK = _pick(candidates.token_BC, kept_BK)
    parent_BK = _pick(candidates.parent_BC, kept_BK)
    state = jax.tree_util.tree_map_with_path(partial(_follow, parent_BK=parent_BK), state)
    continuing_B = self.rule.continuing_rows(
      running_scores_BK[:, 0], done_scores_BK, length, L, self.penalty
    )
    changing, _ = split_state(state)
    return _Beams(
      changing=changing,
      last_BK=last_BK,
      running_BKL=running_BKL,
      running_scores_BK=running_scores_BK,
      done_BKL=done_BKL,
      done_scores_BK=done_scores_BK,
      open_B=beams.open_B & continuing_B,
      index=beams.index + 1,
    )

  def find_candidates(self, beams: _Beams) -> tuple[_Candidates, DecodeState]:
    """Return the best continuations of the running sequences, and the cache with their tokens."""
    B, K = beams.last_BK.shape
    V = self.vocab
    last_M1 = beams.last_BK.reshape(B * K, 1)
    logits_MV, state = self.start.next_logits(last_M1, self.join(beams.changing), beams.index)
    step = DecodingStep(
      beams.index, self.max_length, self.start.eos, self.start.prompt_BP, beams.running_BKL
    )
    log_p_MV = jax.nn.log_softmax(logits_MV, axis=-1)
    scores_MV = apply_transforms(self.transforms, log_p_MV, step)
    scores_BKV = beams.running_scores_BK[..., None] + scores_MV.reshape(B, K, V)
    scores_BX = constrain(scores_BKV.reshape(B, K * V), "batch", None)
    scores_BC, index_BC = _best(scores_BX, self.candidates)
    parent_BC = index_BC // V
    token_BC = index_BC % V
    tokens_BCL = jax.lax.dynamic_update_slice(
      _pick(beams.running_BKL, parent_BC), token_BC[..., None], (0, 0, beams.index)
    )
    return _Candidates(scores_BC, parent_BC, token_BC, tokens_BCL), state

  def choose_best(self, beams: _Beams) -> tuple[jax.Array, jax.Array]:
    """Return the tokens and scores of the finished sequences, or else of running ones."""
    unfinished_B1 = jnp.isneginf(beams.done_scores_BK[:, :1])
    unfinished_scores_BK = beams.running_scores_BK / self.penalty(float(self.max_length))
    scores_BK = jnp.where(unfinished_B1, unfinished_scores_BK, beams.done_scores_BK)
    alive_B1 = self.start.alive_B[:, None]
    scores_BK = jnp.where(alive_B1, scores_BK, -jnp.inf)
    tokens_BKL = jnp.where(unfinished_B1[..., None], beams.running_BKL, beams.done_BKL)
    is_missing_BK1 = jnp.isneginf(scores_BK)[..., None]
    return jnp.where(is_missing_BK1, self.start.pad, tokens_BKL), scores_BK


def _best(scores_BC: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
  """Return the values and indices of the greatest scores, as `jax.lax.top_k`: [B, count].

  It makes `count` passes of `row_maximum`, which stay sharded by rows. The operand of a top-k would
  be gathered on every device.
  """

  def take(scores_BC, _):
    value_B, index_B = row_maximum(scores_BC)
    is_taken_BC = jnp.arange(scores_BC.shape[1]) == index_B[:, None]
    return jnp.where(is_taken_BC, -jnp.inf, scores_BC), (value_B, index_B)

  _, (values_KB, index_KB) = jax.lax.scan(take, scores_BC, length=count)
  return values_KB.T, index_KB.T


def _pick(x: jax.Array, index_BK: jax.Array) -> jax.Array:
  """Select K of each row's C entries: [B, C, …] -> [B, K, …].

  It works row by row, so that no device needs another's rows.
  """
  pick_in_row = jax.vmap(lambda x_C, index_K: jnp.take(x_C, index_K, axis=0, mode="clip"))
  return pick_in_row(x, index_BK)


def _batch_axis(path) -> int:
  """Return the batch axis of a leaf of a `DecodeState`: 1 in a stacked cache, otherwise 0.

  In a stacked cache, the first axis is of layers; a list of caches has no such axis.
  """
  is_cache = path[0].name == "cache"
  is_listed = is_cache and isinstance(path[1], jax.tree_util.SequenceKey)
  return 1 if is_cache and not is_listed else 0


def _spread(path, x: jax.Array, beams: int) -> jax.Array:
  """Repeat every row of a `DecodeState`'s leaf `beams` times."""
  if x.ndim == 0:
    return x
  axis = _batch_axis(path)
  x = jnp.expand_dims(x, axis + 1)
  leading = x.shape[:axis]
  trailing = x.shape[axis + 2 :]
  repeated = jnp.broadcast_to(x, (*leading, x.shape[axis], beams, *trailing))
  return repeated.reshape(*leading, -1, *trailing)


def _follow(path, x: jax.Array, parent_BK: jax.Array) -> jax.Array:
  """Replace each beam of a `DecodeState`'s leaf by its parent.

  Beams differ only in the decoder's own cache.
  """
  if path[0].name != "cache" or is_encoder_memory(path):
    return x
  axis = _batch_axis(path)
  by_beam = x.reshape(*x.shape[:axis], *parent_BK.shape, *x.shape[axis + 1 :])
  pick = jax.vmap(_pick, in_axes=(0, None)) if axis else _pick
  return pick(by_beam, parent_BK).reshape(x.shape)

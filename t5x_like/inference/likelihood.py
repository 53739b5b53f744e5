"""Compute the log-probabilities of given continuations of a context, and of whole texts."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like.errors import UserError
from t5x_like.nn.positions.learned import LearnedPosition
from t5x_like.rows import Runner, padded_length

Ids = Sequence[int]


@dataclasses.dataclass(frozen=True)
class ContinuationScore:
  """A scored continuation.

  Attributes:
    log_probability: the log-probability of the continuation, in nats, summed over its tokens.
    greedy: whether each of its tokens is the likeliest.
    truncated: whether the context lost its beginning.
  """

  log_probability: float
  greedy: bool
  truncated: bool = False


class Likelihood:
  """A scorer of continuations by a decoder or an encoder-decoder.

  Contexts that are too long lose their beginning. An encoder-decoder reads the context in its
  encoder; a prefix LM sees it in both directions.

  Args:
    run: applies the model to rows.
    features: names and shapes of the model's training features.
    longest: the most tokens that the model reads: context and continuation without its last token,
      or the context alone for an encoder-decoder. None is the number of its positions or, if these
      are unlimited, its training length.

  Attributes:
    longest: the most tokens that the model reads, as in the argument.
    longest_answer: the most tokens of a continuation; None for an encoder-decoder with unlimited
      positions.

  Raises:
    UserError: the model is an encoder.
  """

  def __init__(self, run: Runner, features: dict[str, list[int]], longest: int | None = None):
    if "decoder_target_tokens" not in features:
      raise UserError(
        "--workdir: the model is an encoder, which gives texts no probability; give a decoder"
      )
    self._run = run
    self._features = features
    self._is_encoder_decoder = "encoder_input_tokens" in features
    if self._is_encoder_decoder:
      (trained_length,) = features["encoder_input_tokens"]
      self.longest = longest or position_count(run.model.encoder_inputs) or trained_length
      self.longest_answer = position_count(run.model.decoder_inputs)
    else:
      (trained_length,) = features["decoder_target_tokens"]
      self.longest = longest or position_count(run.model.inputs) or trained_length
      self.longest_answer = self.longest

  def padded_length(self, context: Ids, continuation: Ids) -> int:
    """Return the padded length of the row that scores a continuation."""
    length = len(context)
    if not self._is_encoder_decoder:
      length += len(continuation) - 1
    return self._pad_length(min(length, self.longest))

  def __call__(
    self, pairs: Sequence[tuple[Ids, Ids]], row_length: int | None = None
  ) -> list[ContinuationScore]:
    """Score each (context, continuation), both ids; a decoder needs at least one token of context.

    Args:
      pairs: the contexts and continuations.
      row_length: the length to which all rows are padded; None is the `padded_length` of each.

    Raises:
      UserError: a continuation is empty or longer than the model accepts.
    """
    for context, continuation in pairs:
      if not len(continuation) or not (len(context) or self._is_encoder_decoder):
        raise UserError(
          "found an empty context or continuation, expected at least one token of each"
        )
      if self.longest_answer is not None and len(continuation) > self.longest_answer:
        raise UserError(
          f"found a continuation of {len(continuation)} tokens, expected at most "
          f"{self.longest_answer}"
        )
    if not pairs:
      return []
    pad = self._pad_length if row_length is None else lambda length: row_length
    score = self._score_targets if self._is_encoder_decoder else self._score_rows
    return score(pairs, pad)

  def rolling_log_probability(self, ids: Ids, start: int, stride: int | None = None) -> float:
    """Return the log-probability of a whole text after `start`; see `windows`."""
    return sum(score.log_probability for score in self(self.windows(ids, start, stride)))

  def windows(self, ids: Ids, start: int, stride: int | None = None) -> list[tuple[Ids, Ids]]:
    """Return (context, continuation) pairs that score every token of a text after `start` once.

    Each window but the first has `longest + 1 - stride` tokens of context. A stride of None is
    `longest`, which leaves one token of context.
    """
    size = self.longest
    stride = min(stride or size, size)
    text = [start, *ids]
    pairs = []
    first = 1  # the first token that the next window scores
    while first < len(text):
      end = min(len(text), first + (size if first == 1 else stride))
      context_start = min(max(0, end - size - 1), first - 1)
      pairs.append((text[context_start:first], text[first:end]))
      first = end
    return pairs

  def _score_rows(self, pairs, pad) -> list[ContinuationScore]:
    """Score continuations with a decoder, which reads all tokens of a row but the last."""
    ids = []
    last_ids = []
    counts = []
    is_truncated = []
    for context, continuation in pairs:
      row = [*context, *continuation][-self.longest - 1 :]
      ids.append(row[:-1])
      last_ids.append([row[-1]])
      counts.append([len(continuation), len(row) - 1])
      is_truncated.append(len(context) + len(continuation) > self.longest + 1)
    extras = {"last": np.array(last_ids, np.int32), "counts": np.array(counts, np.int32)}
    outputs = self._run(self._row_sums, ids, extras, pad)
    return _scores(outputs, is_truncated)

  def _pad_length(self, length: int) -> int:
    """Return the padded length, one of few, so that contexts of any length share programs."""
    return padded_length(length, self.longest)

  def _row_sums(self, model, batch) -> tuple[jax.Array, jax.Array]:
    tokens_BT = batch["tokens"]
    valid_BT = batch["valid"]
    scored_B1, read_B1 = jnp.split(batch["counts"], 2, 1)
    positions_T = jnp.arange(tokens_BT.shape[1])
    features = {"decoder_input_tokens": tokens_BT, "decoder_segment_ids": valid_BT}
    if "decoder_causal_attention" in self._features:
      is_context_BT = positions_T <= read_B1 - scored_B1
      features["decoder_causal_attention"] = is_context_BT & (valid_BT > 0)
    shifted_BT = jnp.roll(tokens_BT, -1, axis=1)
    targets_BT = jnp.where(positions_T == read_B1 - 1, batch["last"], shifted_BT)
    scored_BT = (positions_T >= read_B1 - scored_B1) & (positions_T < read_B1)
    return _sums(model(features)["logits"].astype(jnp.float32), targets_BT, scored_BT)

  def _score_targets(self, pairs, pad) -> list[ContinuationScore]:
    """Score continuations as the targets of an encoder-decoder."""
    width = padded_length(max(len(continuation) for _, continuation in pairs), self.longest_answer)
    targets = np.zeros((len(pairs), width), np.int32)
    for row, (_, continuation) in enumerate(pairs):
      targets[row, : len(continuation)] = continuation
    counts = np.array([[len(continuation)] for _, continuation in pairs], np.int32)

    contexts = [list(context)[-self.longest :] for context, _ in pairs]
    extras = {"targets": targets, "counts": counts}
    outputs = self._run(self._target_sums, contexts, extras, pad)
    return _scores(outputs, [len(context) > self.longest for context, _ in pairs])

  def _target_sums(self, model, batch) -> tuple[jax.Array, jax.Array]:
    targets_BT = batch["targets"]
    start = jnp.full_like(targets_BT[:, :1], model.variant.tokens.start)
    features = {
      "encoder_input_tokens": batch["tokens"],
      "decoder_input_tokens": jnp.concatenate([start, targets_BT[:, :-1]], axis=1),
    }
    scored_BT = jnp.arange(targets_BT.shape[1]) < batch["counts"]
    if "encoder_segment_ids" in self._features:
      features["encoder_segment_ids"] = batch["valid"]
      features["decoder_segment_ids"] = jnp.ones_like(targets_BT)
    return _sums(model(features)["logits"].astype(jnp.float32), targets_BT, scored_BT)


def position_count(inputs) -> int | None:
  """Return a stack's number of positions; None if unlimited."""
  return inputs.position.length if isinstance(inputs.position, LearnedPosition) else None


def _scores(outputs, is_truncated: Sequence[bool]) -> list[ContinuationScore]:
  scores = []
  for (log_probability, greedy), truncated in zip(outputs, is_truncated):
    scores.append(ContinuationScore(float(log_probability), bool(greedy), truncated))
  return scores


def _sums(
  logits_BTV: jax.Array, targets_BT: jax.Array, scored_BT: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Return (log-probability, whether all are likeliest), both [B], of the scored targets."""
  log_p_BTV = jax.nn.log_softmax(logits_BTV)
  log_p_BT = jnp.take_along_axis(log_p_BTV, targets_BT[..., None], axis=-1)[..., 0]
  is_likeliest_BT = jnp.argmax(logits_BTV, axis=-1) == targets_BT
  log_p_B = jnp.sum(jnp.where(scored_BT, log_p_BT, 0.0), axis=1)
  return log_p_B, jnp.all(is_likeliest_BT | ~scored_BT, axis=1)

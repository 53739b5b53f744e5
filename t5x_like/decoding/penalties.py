"""Transforms that read the tokens so far: penalties and bans of repetitions and of words.

The history of a row is the decoder's prompt and the new tokens. So the text that a decoder reads is
part of it, and the text that an encoder reads is not, as in `transformers`. Padding is ignored.
Each hypothesis of a beam search has its own history. `RepetitionPenalty(1.2), NoRepeatNgrams(3),
BannedWords(((7, 5), (9,)))` suit every kind of generation.
"""

import collections
import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like.decoding.sampling import DecodingStep
from t5x_like.errors import UserError


@dataclasses.dataclass(frozen=True)
class RepetitionPenalty:
  """Division of the scores of tokens in the history by `value` (CTRL).

  It follows Keskar et al. 2019, section 4.1, but multiplies negative scores, as `transformers`
  does. A value above 1 discourages repetitions.
  """

  value: float

  def __post_init__(self):
    if not 0 < self.value < math.inf:
      raise UserError(
        f"RepetitionPenalty: found {self.value}, expected a number above 0; 1 changes nothing"
      )

  def __call__(self, scores_BV: jax.Array, step: DecodingStep) -> jax.Array:
    penalised_BV = jnp.where(scores_BV < 0, scores_BV * self.value, scores_BV / self.value)
    is_used_BV = _mark_ids(step.history(), scores_BV.shape[-1])
    return jnp.where(is_used_BV, penalised_BV, scores_BV)


@dataclasses.dataclass(frozen=True)
class NoRepeatNgrams:
  """A ban of tokens that would repeat an n-gram of the history.

  It follows Paulus et al. 2018, section 2.5.
  """

  n: int

  def __post_init__(self):
    if not isinstance(self.n, int) or self.n < 1:
      raise UserError(
        f"NoRepeatNgrams: found {self.n}, expected a whole number from 1; leave it out to allow all"
      )

  def __call__(self, scores_BV: jax.Array, step: DecodingStep) -> jax.Array:
    history_BH = step.history()
    H = history_BH.shape[1]
    m = self.n - 1
    padded_BX = jnp.pad(history_BH, ((0, 0), (m, 0)), constant_values=-1)
    last_Bm = step.last_tokens(m)
    # True if the m tokens before a position equal the last m, so that its token would repeat.
    completes_BH = jnp.ones_like(history_BH, bool)
    for i in range(m):
      token_B1 = last_Bm[:, i : i + 1]
      is_equal_BH = padded_BX[:, i : i + H] == token_B1
      completes_BH &= is_equal_BH & (token_B1 >= 0)
    banned_BH = jnp.where(completes_BH, history_BH, -1)
    is_banned_BV = _mark_ids(banned_BH, scores_BV.shape[-1])
    return jnp.where(is_banned_BV, -jnp.inf, scores_BV)


@dataclasses.dataclass(frozen=True)
class BannedWords:
  """A ban of sequences of ids: the last id of each never follows the others.

  An id that ends a row is not banned.
  """

  sequences: tuple[tuple[int, ...], ...]

  def __post_init__(self):
    if not all(self.sequences):
      raise UserError("BannedWords: found an empty sequence, expected ids in each")

  def __call__(self, scores_BV: jax.Array, step: DecodingStep) -> jax.Array:
    by_length = collections.defaultdict(list)
    banned = []
    for sequence in self.sequences:
      if len(sequence) > 1 or sequence[0] not in step.eos:
        by_length[len(sequence)].append(sequence)
    for length, sequences in by_length.items():
      words_NL = np.asarray(sequences, np.int32)
      last_B1m = step.last_tokens(length - 1)[:, None]
      is_begun_BN = jnp.all(last_B1m == words_NL[:, :-1], axis=-1)
      banned.append(jnp.where(is_begun_BN, words_NL[:, -1], -1))
    if not banned:
      return scores_BV
    banned_BN = jnp.concatenate(banned, axis=1)
    is_banned_BV = _mark_ids(banned_BN, scores_BV.shape[-1])
    return jnp.where(is_banned_BV, -jnp.inf, scores_BV)


def _mark_ids(ids_BN: jax.Array, size: int) -> jax.Array:
  """Return bool [B, size], True for the ids of each row.

  Ids that are negative or beyond the size are ignored. It works row by row, so that no device needs
  another's rows.
  """

  def mark_row(ids_N: jax.Array) -> jax.Array:
    return jnp.zeros(size, bool).at[ids_N].set(True, mode="drop")

  return jax.vmap(mark_row)(jnp.where(ids_BN < 0, size, ids_BN))

"""Masked language modelling: the choice of positions to predict, and their replacement.

BERT (Devlin et al. 2019, section 3.1) chooses 15% of the tokens: 80% of these become the mask, 10%
a random token, and 10% stay. Only chosen tokens count in the loss. The budget of a row is exactly
`round(rate * n)` for its n ordinary tokens (ties to even, and at least 1), so 76 of 510. BERT's
code takes 15% of all tokens, including [CLS] and [SEP] (77 of 512), and at most
`max_predictions_per_seq` (by default 20, for length 128); here the rate applies to the ordinary
tokens, in short rows too, without a limit. Special tokens are never chosen. Random tokens are
uniform over the ordinary ids, where BERT's code draws from the whole vocabulary. Words are found in
the text of the ids, in any script, by `boundaries`. The modes choose, within the budget:

- `tokens`: a uniformly random subset of exactly that size.
- `words`: whole words in a uniformly random order, each if it still fits (BERT's whole-word
  masking; as in its code, long words are therefore chosen slightly less often). The budget is never
  exceeded, and is not used up only if no remaining word fits. In a row where no word fits, words
  are cut between letters.
- `spans`: SpanBERT (Joshi et al. 2020, section 3.1): spans of a geometric number of words (p = 0.2,
  at most 10, so 3.8 on average) that start at uniformly random words, until the budget is spent. A
  span ends before the next special token, and the last one is cut to the whole words that fit the
  budget (their code cuts it within a word). Spans neither overlap nor touch, so each has a
  neighbour on both sides for the span-boundary objective (the paper does not discuss this; their
  code joins spans that meet, and leaves those at the ends of the text out of that objective). All
  tokens of a span are masked, replaced or kept together.
- `ngrams`: ALBERT (Lan et al. 2020, section 4.1): the same with n-grams of up to three words, P(n)
  proportional to 1/n. They may touch, and each token is masked, replaced or kept by itself.
- `token_spans`: XLNet (Yang et al. 2019, section 3.1): the same with up to five tokens instead of
  words. The paper does not give P(l), which is proportional to 1/l in `_sample_mask` of its code,
  where spans begin with a word.

Worked example, budget 2, mask 9: [101, 5, 6, 7, 102] with 6 and 7 chosen, 6 masked and 7 kept gives
inputs [101, 5, 9, 7, 102], targets [0, 0, 6, 7, 0], weights [0, 0, 1, 1, 0].
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np

from t5x_like.data import random
from t5x_like.data.preprocessors.boundaries import Boundaries
from t5x_like.data.preprocessors.span_corruption import scatter
from t5x_like.errors import UserError
from t5x_like.quiet_tensorflow import tf
from t5x_like.vocabularies import Vocabulary, special_id

Mode = Literal["tokens", "words", "spans", "ngrams", "token_spans"]
GEOMETRIC_P = 0.2
MAX_SPAN_WORDS = 10
# By mode: the shares of spans of 1, 2, … words (in `token_spans`, tokens).
LENGTH_SHARES = {
  "spans": GEOMETRIC_P * (1 - GEOMETRIC_P) ** np.arange(MAX_SPAN_WORDS),
  "ngrams": 1.0 / np.arange(1, 4),
  "token_spans": 1.0 / np.arange(1, 6),
}


@dataclasses.dataclass(frozen=True)
class Masking:
  """Chooses the positions to predict, and replaces their tokens.

  Attributes:
    vocabulary: the vocabulary of the ids.
    length: the length of every row.
    mode: the unit of choice; the module's docstring describes each mode.
    rate: fraction of the ordinary tokens to choose.
    mask_share: fraction of the chosen tokens that become the mask.
    random_share: fraction of the chosen tokens that become a random token; the others stay.

  Raises:
    UserError: on construction, if the rate or the shares are impossible.
  """

  vocabulary: Vocabulary
  length: int
  mode: Mode = "tokens"
  rate: float = 0.15
  mask_share: float = 0.8
  random_share: float = 0.1

  def __post_init__(self):
    if not 0 < self.rate < 1:
      raise UserError(f"rate: found {self.rate}, expected a fraction between 0 and 1")
    if min(self.mask_share, self.random_share) < 0 or self.mask_share + self.random_share > 1:
      raise UserError(
        f"mask_share, random_share: found {self.mask_share} and {self.random_share}, expected "
        "fractions that add up to at most 1"
      )
    budgets = [max(1, round(self.rate * n)) if n else 0 for n in range(self.length + 1)]
    ordinary = ordinary_ids(self.vocabulary)
    maskable = np.zeros(self.vocabulary.size, bool)
    maskable[ordinary] = True
    self._set("_budgets", np.array(budgets, np.int32))
    self._set("_ordinary", ordinary)
    self._set("_maskable", maskable)
    self._set("_mask_id", special_id(self.vocabulary, "mask"))
    if self.mode in ("words", "spans", "ngrams"):
      self._set("_boundaries", Boundaries(self.vocabulary))

  def _set(self, name: str, value: Any) -> None:
    """Set an attribute of the frozen instance."""
    object.__setattr__(self, name, value)

  @property
  def max_chosen(self) -> int:
    """The maximum number of tokens chosen in a row."""
    return int(self._budgets.max())

  def __call__(self, tokens_BL: tf.Tensor, key_B: tf.Tensor) -> dict[str, tf.Tensor]:
    """Mask a batch.

    Args:
      tokens_BL: int32 [B, length].
      key_B: uint64 [B], one random key per row (`random.row_keys`).

    Returns:
      `inputs`, `targets` (0 where nothing is predicted) int32 [B, length], `weights` float32 [B,
      length]; in mode `spans` also `span_starts` and `span_ends` int32 [B, length], the
      positions of the tokens just before and after the span of each chosen token.
    """
    maskable_BL = tf.gather(tf.constant(self._maskable), tokens_BL)
    count_B = tf.reduce_sum(tf.cast(maskable_BL, tf.int32), axis=1)
    budget_B = tf.gather(tf.constant(self._budgets), count_B)
    span_features = {}
    # These random bits decide whether a token is masked, replaced or kept.
    fate_BL = tf.cast(random.bits(random.row_keys(1, key_B), self.length), tf.int64)
    if self.mode == "tokens":
      chosen_BL = self._choose_tokens(maskable_BL, budget_B, key_B)
    elif self.mode == "words":
      starts_BL = self._word_starts(tokens_BL, maskable_BL, budget_B)
      chosen_BL = self._choose_words(starts_BL, maskable_BL, budget_B, key_B)
    else:
      starts_BL = tf.ones_like(maskable_BL)
      if self.mode != "token_spans":
        starts_BL = self._word_starts(tokens_BL, maskable_BL, budget_B)
      chosen_BL, before_BL, after_BL = self._choose_spans(starts_BL, maskable_BL, budget_B, key_B)
      if self.mode == "spans":
        span_features = {"span_starts": before_BL, "span_ends": after_BL}
        fate_BL = tf.gather(fate_BL, before_BL, batch_dims=1)  # one draw for the whole span
    corrupted_BL = self._corrupt(tokens_BL, fate_BL, key_B)
    return {
      "inputs": tf.where(chosen_BL, corrupted_BL, tokens_BL),
      "targets": tf.where(chosen_BL, tokens_BL, 0),
      "weights": tf.cast(chosen_BL, tf.float32),
      **span_features,
    }

  def _corrupt(self, tokens_BL: tf.Tensor, fate_BL: tf.Tensor, key_B: tf.Tensor) -> tf.Tensor:
    """Replace tokens with the mask or a random token, or keep them.

    Args:
      fate_BL: 32 random bits of each token; the lowest numbers mean the mask, the next ones a
        random token, the others none.
    """
    random_bits = random.bits(random.row_keys(2, key_B), self.length)
    ordinary_index_BL = random.integers(random_bits, len(self._ordinary))
    random_BL = tf.gather(tf.constant(self._ordinary), ordinary_index_BL)
    mask_limit = round(self.mask_share * 2**32)
    random_limit = mask_limit + round(self.random_share * 2**32)
    unmasked_BL = tf.where(fate_BL < random_limit, random_BL, tokens_BL)
    return tf.where(fate_BL < mask_limit, self._mask_id, unmasked_BL)

  def _choose_tokens(self, maskable_BL, budget_B, key_B):
    """Choose the `budget` maskable positions of highest random score."""
    score_BL = tf.where(maskable_BL, self._scores(key_B, tf.range(self.length)[None]), -1)
    best_BK = tf.math.top_k(score_BL, k=max(1, self.max_chosen), sorted=True).values
    lowest_B = tf.gather(best_BK, tf.maximum(budget_B - 1, 0), batch_dims=1)
    return (score_BL >= lowest_B[:, None]) & maskable_BL & (budget_B > 0)[:, None]

  def _scores(self, key_B, number_BL):
    """Draw distinct scores 0..2^31-1 for the items of every row; low bits are items' numbers."""
    number_bits = max(1, (self.length - 1).bit_length())
    bits_BL = tf.bitwise.right_shift(random.bits(key_B, self.length), tf.constant(1, tf.uint32))
    high_BL = tf.bitwise.right_shift(tf.cast(bits_BL, tf.int32), number_bits)
    return tf.bitwise.left_shift(high_BL, number_bits) + number_BL

  def _word_starts(self, tokens_BL, maskable_BL, budget_B):
    """Mark the tokens that begin a word, and the special tokens.

    In a row where no word fits the budget, such as a long address, words are cut between letters,
    so that something is predicted.
    """
    after_special = tf.pad(~maskable_BL[:, :-1], [[0, 0], [1, 0]], constant_values=True)
    starts_BL = self._boundaries.word_starts(tokens_BL) | ~maskable_BL | after_special
    word_BL = tf.cumsum(tf.cast(starts_BL, tf.int32), axis=1) - 1
    size_BW = scatter(word_BL, tf.cast(maskable_BL, tf.int32), self.length)
    fits_B = tf.reduce_any((size_BW > 0) & (size_BW <= budget_B[:, None]), axis=1)
    return starts_BL | (self._boundaries.letter_starts(tokens_BL) & ~fits_B[:, None])

  def _choose_words(self, starts_BL, maskable_BL, budget_B, key_B):
    """Choose whole words in a random order, each if it still fits the budget."""
    word_BL = tf.cumsum(tf.cast(starts_BL, tf.int32), axis=1) - 1
    size_BW = scatter(word_BL, tf.cast(maskable_BL, tf.int32), self.length)
    score_BW = self._scores(key_B, tf.range(self.length)[None])
    order_BW = tf.argsort(score_BW, axis=1, direction="DESCENDING")
    sorted_BW = tf.gather(size_BW, order_BW, batch_dims=1)

    def has_progress(chosen_BW, budget_left_B, progress):
      return progress

    def step(chosen_BW, budget_left_B, progress):
      # Equivalent to choosing words one by one if they fit: the budget only shrinks, so a misfit
      # never fits later.
      fits_BW = ~chosen_BW & (sorted_BW > 0) & (sorted_BW <= budget_left_B[:, None])
      sum_BW = tf.cumsum(tf.where(fits_BW, sorted_BW, 0), axis=1)
      new_BW = fits_BW & (sum_BW <= budget_left_B[:, None])
      budget_left_B -= tf.reduce_sum(tf.where(new_BW, sorted_BW, 0), axis=1)
      return chosen_BW | new_BW, budget_left_B, tf.reduce_any(new_BW)

    chosen_BW, _, _ = tf.while_loop(
      has_progress, step, (tf.zeros_like(sorted_BW, tf.bool), budget_B, tf.constant(True))
    )
    chosen_BW = scatter(order_BW, tf.cast(chosen_BW, tf.int32), self.length) > 0
    return tf.gather(chosen_BW, word_BL, batch_dims=1) & maskable_BL

  def _choose_spans(self, starts_BL, maskable_BL, budget_B, key_B):
    """Choose spans until the budget is spent.

    Returns:
      (chosen tokens, bool [B, L]; the position before the span of each chosen token, int32 [B, L];
      the position after it, int32 [B, L]); positions are 0 for other tokens.
    """
    start_BS, stop_BS = self._draw_spans(starts_BL, maskable_BL, budget_B, key_B)
    is_used_BS = stop_BS > 0

    def spread(value_BS: tf.Tensor) -> tf.Tensor:
      """Return the value of the span around each position, 0 outside all spans."""
      begin_BL = scatter(start_BS, value_BS, self.length)
      end_BL = scatter(stop_BS, value_BS, self.length)
      return tf.cumsum(begin_BL - end_BL, axis=1)

    chosen_BL = spread(tf.cast(is_used_BS, tf.int32)) > 0
    return chosen_BL, spread(tf.where(is_used_BS, start_BS - 1, 0)), spread(stop_BS)

  def _draw_spans(self, starts_BL, maskable_BL, budget_B, key_B):
    """Draw spans that begin at random words, and keep the free ones, until the budget is spent.

    Returns:
      The first positions of the spans and the positions after them, both int32 [B, S]; both are 0
      for unused entries.
    """
    L = self.length
    max_spans = self.max_chosen
    tries = 4 * max_spans + 32
    # The number of words that begin up to each position.
    word_count_BL = tf.cumsum(tf.cast(starts_BL, tf.int32), axis=1)
    # The number of words up to the last token that may be chosen.
    num_words_B = tf.reduce_max(tf.where(maskable_BL, word_count_BL, 0), axis=1)
    # The number of special tokens before each position.
    special_count_BL = tf.cumsum(tf.cast(~maskable_BL, tf.int32), axis=1, exclusive=True)
    # The positions of the special tokens, each of which ends a text.
    text_end_BS = L - scatter(special_count_BL, tf.where(maskable_BL, 0, L - tf.range(L)), L)
    # The positions where words begin; after the last word, the end of the row.
    word_start_BW = tf.where(starts_BL, tf.range(L), L)
    paddings = [[0, 0], [0, MAX_SPAN_WORDS]]
    word_start_BW = tf.sort(tf.pad(word_start_BW, paddings, constant_values=L), axis=1)
    start_word_BT = tf.cast(random.bits(random.row_keys(3, key_B), tries), tf.int64)
    length_bits_BT = random.bits(random.row_keys(4, key_B), tries)
    length_BT = draw_lengths(length_bits_BT, LENGTH_SHARES[self.mode])
    gap = 1 if self.mode == "spans" else 0  # positions between two spans

    def pick(values_BN: tf.Tensor, index_B: tf.Tensor) -> tf.Tensor:
      return tf.gather(values_BN, index_B, batch_dims=1)

    def has_budget(t, budget_left_B, *_):
      return (t < tries) & tf.reduce_any(budget_left_B > 0)

    def step(t, budget_left_B, num_spans_B, start_BS, stop_BS):
      """Draw a span in each row, and add it to the spans so far if it is free."""
      scaled_B = start_word_BT[:, t] * tf.cast(num_words_B, tf.int64)
      first_word_B = tf.cast(tf.bitwise.right_shift(scaled_B, 32), tf.int32)
      start_B = pick(word_start_BW, first_word_B)
      text_end_B = pick(text_end_BS, pick(special_count_BL, start_B))
      last_position_B = tf.minimum(tf.minimum(start_B + budget_left_B, text_end_B), L - 1)
      # The number of words that fit the budget and the text.
      num_fitting_B = tf.maximum(pick(word_count_BL, last_position_B) - 1 - first_word_B, 0)
      num_words_of_span_B = tf.minimum(pick(length_BT, num_spans_B), num_fitting_B)
      stop_B = pick(word_start_BW, first_word_B + num_words_of_span_B)
      touches_BS = (start_B[:, None] < stop_BS + gap) & (start_BS < stop_B[:, None] + gap)
      is_inside_B = (start_B > 0) & (stop_B > start_B) & (stop_B < L)
      is_free_B = is_inside_B & ~tf.reduce_any(touches_BS, axis=1)
      is_new_BS = (tf.range(max_spans) == num_spans_B[:, None]) & is_free_B[:, None]
      return (
        t + 1,
        budget_left_B - tf.where(is_free_B, stop_B - start_B, 0),
        num_spans_B + tf.cast(is_free_B, tf.int32),
        tf.where(is_new_BS, start_B[:, None], start_BS),
        tf.where(is_new_BS, stop_B[:, None], stop_BS),
      )

    # Unused entries begin past the row and end before they begin, so they touch no span.
    unused_BS = tf.fill([tf.shape(budget_B)[0], max_spans], L + 1)
    zero_B = tf.zeros_like(budget_B)
    _, _, num_spans_B, start_BS, stop_BS = tf.while_loop(
      has_budget, step, (tf.constant(0), budget_B, zero_B, unused_BS, unused_BS - L - 3)
    )
    is_used_BS = tf.range(max_spans) < num_spans_B[:, None]
    return tf.where(is_used_BS, start_BS, 0), tf.where(is_used_BS, stop_BS, 0)


def predicted_positions(weights_BL: tf.Tensor, max_chosen: int) -> tf.Tensor:
  """Return the predicted positions in order, int32 [B, max_chosen].

  Unused entries are 0, the position of [CLS].
  """
  chosen_BL = weights_BL > 0
  row_n, position_n = tf.unstack(tf.cast(tf.where(chosen_BL), tf.int32), axis=1)
  count_B = tf.reduce_sum(tf.cast(chosen_BL, tf.int32), axis=1)
  number_n = tf.range(tf.size(row_n)) - tf.gather(tf.cumsum(count_B, exclusive=True), row_n)
  shape = [tf.size(count_B), max_chosen]
  positions_BK = tf.scatter_nd(tf.stack([row_n, number_n], axis=1), position_n, shape)
  return tf.ensure_shape(positions_BK, [weights_BL.shape[0], max_chosen])


def ordinary_ids(vocabulary: Vocabulary) -> np.ndarray:
  """Return the ids of text, ascending, int32 [N].

  Special ids are left out, and so are sentinels that serve as special pieces.
  """
  ordinary = np.ones(vocabulary.size, bool)
  ordinary[list(vocabulary.special_ids)] = False
  return np.flatnonzero(ordinary).astype(np.int32)


def draw_lengths(bits_BN: tf.Tensor, shares: np.ndarray) -> tf.Tensor:
  """Draw lengths 1, 2, … with probabilities proportional to the shares.

  Args:
    bits_BN: random bits, uint32 [B, N].

  Returns:
    int32 [B, N].
  """
  limits = np.round(np.cumsum(shares / shares.sum())[:-1] * 2**32).astype(np.int64)
  is_longer = tf.cast(bits_BN, tf.int64)[..., None] >= tf.constant(limits)
  return 1 + tf.reduce_sum(tf.cast(is_longer, tf.int32), axis=-1)

"""Texts as rows of a decoder: start, text, extract, or start, text, delimiter, second text, extract (Radford et al.
2018, section 3.3).

The start token is every decoder's. The delimiter and the extract token are the vocabulary's SEP and CLS, or sentinels
if it has none, see `vocabularies.special`. Worked example, texts [5, 6] and [7]:

    decoder_input_tokens   start 5 6 delimiter 7 extract 0     decoder_segment_ids    1 1 1 1 1 1 0
    decoder_target_tokens  5 6 delimiter 7 extract 0 0         decoder_loss_weights   1 1 1 1 0 0 0
"""

import numpy as np

from t5x_like import vocabularies
from t5x_like.data.supervised.example_store import ExampleStore


class Delimited:
  """Rows of one or two streams of a store.

  Args:
    store: the store of the streams, without EOS.
    streams: one or two names, in the order of the row.
    length: length of a row.

  Attributes:
    extra: the number of special tokens in a row.
  """

  def __init__(self, store: ExampleStore, streams: tuple[str, ...], length: int):
    vocabulary = store.vocabulary
    self._store, self._streams, self._length = store, streams, length
    self._start = vocabularies.start_id(vocabulary)
    ends = [vocabularies.special(vocabulary, "sep")] * (len(streams) - 1)
    self._after = [*ends, vocabularies.special(vocabulary, "cls")]
    self.extra = 1 + len(streams)

  def __call__(self, example_B: np.ndarray, lengths_BD: np.ndarray, skip_B=0) -> dict[str, np.ndarray]:
    """Make rows of the first `lengths` tokens of each stream, after `skip` tokens in the last stream of a pair.

    Returns:
      The features of a decoder, [B, length].
    """
    tokens_BS = np.zeros((example_B.size, self._length + 1), np.int32)
    rows, place_B = np.arange(example_B.size), np.ones(example_B.size, np.int64)
    tokens_BS[:, 0] = self._start
    for number, (stream, after) in enumerate(zip(self._streams, self._after)):
      length_B = lengths_BD[:, number]
      part_BL, valid_BL = self._store.read(stream, example_B, length_B, skip_B if stream == "options" else 0)
      at_BL = place_B[:, None] + np.arange(part_BL.shape[1])
      row_BL = np.broadcast_to(rows[:, None], at_BL.shape)
      tokens_BS[row_BL[valid_BL], at_BL[valid_BL]] = part_BL[valid_BL]
      tokens_BS[rows, place_B + length_B] = after
      place_B = place_B + length_B + 1
    places = np.arange(self._length)
    return {
      "decoder_input_tokens": tokens_BS[:, :-1],
      "decoder_target_tokens": tokens_BS[:, 1:],
      "decoder_loss_weights": (places < place_B[:, None] - 2).astype(np.float32),
      "decoder_segment_ids": (places < place_B[:, None]).astype(np.int32),
    }


def stacked(rows: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
  """Stack the features of several rows of each example: [B, R, length]."""
  return {name: np.stack([row[name] for row in rows], axis=1) for name in rows[0]}

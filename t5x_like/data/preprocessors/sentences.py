"""Sentence boundaries in a stream of tokens, by a rule on stored ids, so that a store needs no second index.

The rule: a sentence ends with a token whose text ends in `.`, `!` or `?` (or their full-width forms), possibly followed
by closing quotes and brackets, if the next token begins a word (`vocabulary.starts_word`; so not inside `3.14`). The
beginning of a document also begins a sentence. Like other simple splitters, the rule is wrong after abbreviations ("Dr.
Smith"). Any function `(vocabulary) -> bool [size]` that marks the ids that may end a sentence can replace it, named
`module:function`.
"""

from __future__ import annotations

import hashlib
import re

import numpy as np

from t5x_like import trust
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.errors import UserError
from t5x_like.vocabularies import Vocabulary

DEFAULT_RULE = "t5x_like.data.preprocessors.sentences:punctuation"
_END = re.compile("[.!?\u3002\uff01\uff1f\u2026][\"')\\]}\u2019\u201d\u00bb]*$")


def punctuation(vocabulary: Vocabulary) -> np.ndarray:
  """Mark the ids whose spelling ends in sentence-final punctuation: bool [size]."""
  ends = np.fromiter((bool(_END.search(piece)) for piece in vocabulary.pieces_of(range(vocabulary.size))), bool)
  ends[list(vocabulary.special_ids)] = False
  ends[vocabulary.unk_id] = False
  return ends


class Sentences:
  """The rule as an operation on batches.

  Args:
    vocabulary: vocabulary of the ids.
    rule: `module:function`, see above.

  Attributes:
    fact: the part of a fingerprint: the name of the rule and, unless it is the default, a hash of its ids.

  Raises:
    UserError: the function cannot be imported or does not return bool [size].
  """

  def __init__(self, vocabulary: Vocabulary, rule: str = DEFAULT_RULE):
    ends = np.asarray(trust.function("config.task.sentence_rule", rule)(vocabulary))
    if ends.shape != (vocabulary.size,) or ends.dtype != np.bool_:
      raise UserError(
        f"sentence_rule={rule}: returned {ends.dtype} {list(ends.shape)}, expected bool "
        f"[{vocabulary.size}], one for each id of the vocabulary"
      )
    self.fact = rule if rule == DEFAULT_RULE else f"{rule} {hashlib.sha256(ends.tobytes()).hexdigest()}"
    begins = np.array(vocabulary.starts_word)
    begins[list(vocabulary.special_ids)] = False  # an EOS belongs to the sentence before it
    ends = ends.copy()
    ends[vocabulary.eos_id] = True
    # Two bits per id: 1 if it may end a sentence, 2 if it may begin one.
    self._table = tf.constant(ends.astype(np.int32) + 2 * begins.astype(np.int32))

  def starts(self, tokens_BT: tf.Tensor) -> tf.Tensor:
    """Mark the tokens after the first at which a sentence begins: int32 [B, T] -> bool [B, T - 1]."""
    marks_BT = tf.gather(self._table, tokens_BT)
    return tf.logical_and(marks_BT[:, :-1] % 2 == 1, marks_BT[:, 1:] >= 2)

"""Sentence boundaries in a stream of tokens, by a rule on the ids, so that no store has them.

The rule is the one of `segmentation` on the text of the ids: a
sentence ends with `.`, `!`, `?` or an ellipsis, possibly followed by closing quotes and brackets,
if the next token begins a word (so not inside `3.14`), and with any other terminator (`。`, `！`,
`؟`, `।`, ...), even if its bytes are several ids. The beginning of a document also begins a
sentence. Like other simple splitters, the rule is wrong after abbreviations ("Dr. Smith"). Any
function `(vocabulary) -> bool [size]` that marks the ids that may end a sentence can replace it,
named `module:function`.
"""

from __future__ import annotations

import hashlib

import numpy as np

from t5x_like import segmentation, trust
from t5x_like.data.preprocessors.boundaries import Boundaries
from t5x_like.errors import UserError
from t5x_like.quiet_tensorflow import tf
from t5x_like.vocabularies import Vocabulary

DEFAULT_RULE = "t5x_like.data.preprocessors.sentences:punctuation"


def punctuation(vocabulary: Vocabulary) -> np.ndarray:
  """Mark the ids whose text ends in sentence-final punctuation: bool [size].

  Each id counts by itself here; `Sentences` also looks at the ids before it for the default rule.
  """
  ends = np.zeros(vocabulary.size, bool)
  for i, data in enumerate(vocabulary.bytes_of(range(vocabulary.size))):
    ends[i] = segmentation.ends_sentence(data.decode(errors="replace"))
  ends[list(vocabulary.special_ids)] = False
  ends[vocabulary.unk_id] = False
  return ends


class Sentences:
  """The rule as an operation on batches.

  Args:
    vocabulary: vocabulary of the ids.
    rule: `module:function`, see above.

  Attributes:
    fact: the part of a fingerprint: the name of the rule and, unless it is the default, a hash of
      its ids.

  Raises:
    UserError: the function cannot be imported or does not return bool [size].
  """

  def __init__(self, vocabulary: Vocabulary, rule: str = DEFAULT_RULE):
    self.fact = rule
    ends = None
    if rule != DEFAULT_RULE:
      ends = np.asarray(trust.import_function("config.task.sentence_rule", rule)(vocabulary))
      if ends.shape != (vocabulary.size,) or ends.dtype != np.bool_:
        raise UserError(
          f"sentence_rule={rule}: returned {ends.dtype} {list(ends.shape)}, expected bool "
          f"[{vocabulary.size}], one for each id of the vocabulary"
        )
      self.fact = f"{rule} {hashlib.sha256(ends.tobytes()).hexdigest()}"
    self._boundaries = Boundaries(vocabulary, ends)

  def starts(self, tokens_BT: tf.Tensor) -> tf.Tensor:
    """Mark the tokens after the first at which a sentence begins.

    int32 [B, T] -> bool [B, T - 1].
    """
    return self._boundaries.sentence_starts(tokens_BT)[:, 1:]

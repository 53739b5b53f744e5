"""Corpus BLEU and chrF, computed by sacrebleu, with its signature."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from t5x_like.errors import UserError, one_line
from t5x_like.metrics.metric import Metric


class _SacreBleu(Metric):
  """The base of sacrebleu's metrics.

  Rows are the statistics of sentences that `sacrebleu.significance` resamples. They and the score
  of their sum come from private methods of sacrebleu, which has no public ones for them.

  A reference is a sequence of translations, whose number may differ from sentence to sentence.
  """

  def __init__(self, name: str, metric):
    self._name = name
    self.names = (name,)
    self._metric = metric

  def rows(self, references: Sequence[Sequence[str]], predictions: Sequence[str]) -> np.ndarray:
    # sacrebleu takes the first translations of all sentences, then the second ones, and so on.
    streams = []
    for i in range(max(map(len, references))):
      streams.append([texts[i] if i < len(texts) else None for texts in references])
    return np.array(self._metric._extract_corpus_statistics(predictions, streams))

  def scores(self, rows_NC: np.ndarray) -> dict[str, float]:
    return {
      self._name: float(self._metric._compute_score_from_stats(rows_NC.sum(0).tolist()).score)
    }

  def details(self, rows_NC: np.ndarray, references, predictions) -> dict[str, Any]:
    return {"signature": str(self._metric.get_signature())}


class Bleu(_SacreBleu):
  """Corpus BLEU.

  Args:
    tokenize: sacrebleu's tokenizer: 13a (WMT's), intl, zh, char, none, …
    lowercase: ignore case.

  Raises:
    UserError: there is no such tokenizer, or its package or model cannot be loaded.
  """

  def __init__(self, tokenize: str = "13a", lowercase: bool = False):
    from sacrebleu.metrics import BLEU

    if tokenize not in BLEU.TOKENIZERS:
      raise UserError(f"bleu: tokenize={tokenize}: expected one of {', '.join(BLEU.TOKENIZERS)}")
    try:
      metric = BLEU(tokenize=tokenize, lowercase=lowercase)
    except Exception as error:  # a package that is not installed, or a model that cannot be fetched
      raise UserError(
        f"bleu: tokenize={tokenize}: not available ({one_line(error)}); install what it needs, or "
        "fetch its model where there is a network, or choose another tokenizer"
      ) from error
    super().__init__("bleu", metric)

  def details(self, rows_NC: np.ndarray, references, predictions) -> dict[str, Any]:
    score = self._metric._compute_score_from_stats(rows_NC.sum(0).tolist())
    return {
      **super().details(rows_NC, references, predictions),
      "precisions": score.precisions,
      "brevity_penalty": score.bp,
      "predicted_length": score.sys_len,
      "reference_length": score.ref_len,
    }


class Chrf(_SacreBleu):
  """Corpus chrF, or chrF++ with `word_order=2`.

  Args:
    char_order: the longest n-grams of characters.
    word_order: the longest n-grams of words; 0 for none.
    beta: the weight of recall relative to precision.
    lowercase: ignore case.
  """

  def __init__(
    self, char_order: int = 6, word_order: int = 0, beta: int = 2, lowercase: bool = False
  ):
    from sacrebleu.metrics import CHRF

    super().__init__(
      "chrf", CHRF(char_order=char_order, word_order=word_order, beta=beta, lowercase=lowercase)
    )

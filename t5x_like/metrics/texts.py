"""Metrics of generated texts by name: `{"name": "answers", "normalization": "triviaqa"}`.

Each entry of `METRICS` is a function of its options that returns a `TextMetric`: a metric, and how it reads the texts.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

from t5x_like.metrics.answers import normalize_squad, normalize_trivia_qa
from t5x_like.metrics.classification import Classification, Matches
from t5x_like.metrics.correlation import Correlation
from t5x_like.metrics.metric import Metric
from t5x_like.metrics.numbers import final_number
from t5x_like.metrics.squad import Answers
from t5x_like.metrics.summarization import Rouge
from t5x_like.metrics.tagging import EntityF1, TagAccuracy
from t5x_like.metrics.translation import Bleu, Chrf

_SENTINEL = re.compile(r"<extra_id_([0-9]{1,3})>")


@dataclasses.dataclass(frozen=True)
class TextMetric:
  """Attributes:
  metric: its scores.
  reference: from the right texts of an example, at least one, to what the metric takes; a ValueError says what was
    expected.
  prediction: from a generated text to what the metric takes; None counts as wrong.
  """

  metric: Metric
  reference: Callable[[list[str]], Any] = lambda texts: texts
  prediction: Callable[[str], Any] = lambda text: text


def labels(*, classes: tuple[str, ...], scores: tuple[str, ...] = ("accuracy",)) -> TextMetric:
  """Class names; any other text is wrong, as in T5 (`f1_score_with_invalid`)."""
  index = {name: number for number, name in enumerate(classes)}

  def reference(texts: list[str]) -> int:
    if texts[0].strip() not in index:
      raise ValueError(f"found the label {texts[0][:40]!r}, expected one of {', '.join(classes)}")
    return index[texts[0].strip()]

  return TextMetric(Classification(len(classes), scores), reference, lambda text: index.get(text.strip()))


def number(*, invalid: float = -1.0) -> TextMetric:
  """Correlations of numbers; a text that is none counts as `invalid`, as in T5's STS-B."""

  def prediction(text: str) -> float:
    try:
      return float(text)
    except ValueError:
      return invalid

  def reference(texts: list[str]) -> float:
    try:
      return float(texts[0])
    except ValueError:
      raise ValueError(f"found {texts[0][:40]!r}, expected a number") from None

  return TextMetric(Correlation(), reference, prediction)


def answers(*, normalization: Literal["squad", "triviaqa"] = "squad") -> TextMetric:
  """Exact match and F1, the best over the right answers; closed-book QA and SQuAD as text."""
  return TextMetric(Answers({"squad": normalize_squad, "triviaqa": normalize_trivia_qa}[normalization]))


def exact() -> TextMetric:
  """Whether the text is one of the right ones, white space at its ends aside."""
  clean = lambda texts: [text.strip() for text in texts]  # noqa: E731
  return TextMetric(Matches(lambda gold, given: given in gold, "exact_match"), clean, str.strip)


def final(*, invalid: str = "") -> TextMetric:
  """Whether the last number is the right one (GSM8K, SVAMP)."""
  return TextMetric(
    Matches(name="exact_match"), lambda texts: final_number(texts[0]), lambda text: final_number(text) or invalid
  )


def bleu(*, tokenize: str = "13a", lowercase: bool = False) -> TextMetric:
  return TextMetric(Bleu(tokenize, lowercase))


def chrf(*, word_order: int = 0) -> TextMetric:
  return TextMetric(Chrf(word_order=word_order))


def rouge(*, use_stemmer: bool = True) -> TextMetric:
  return TextMetric(Rouge(use_stemmer))


def tags() -> TextMetric:
  """The share of words whose tag is right; a word without a tag counts as wrong.

  Tags are between spaces; one behind `<extra_id_N>` is word N's, and one without that of the next word.
  """
  return TextMetric(TagAccuracy(), lambda texts: _in_order(texts[0]), _in_order)


def entities() -> TextMetric:
  """Precision, recall and F1 of the entities that `tags` say; a word without a tag is in none."""
  return TextMetric(EntityF1(), lambda texts: _in_order(texts[0], "O"), lambda text: _in_order(text, "O"))


def _in_order(text: str, missing: str = "") -> list[str]:
  """The tag of each word, of several the last."""
  place, found = 0, {}
  for number, part in enumerate(_SENTINEL.split(text)):
    if number % 2:
      place = int(part)
      continue
    for tag in part.split():
      found[place], place = tag, place + 1
  return [found.get(place, missing) for place in range(max(found, default=-1) + 1)]


METRICS: dict[str, Callable[..., TextMetric]] = {
  "labels": labels,
  "number": number,
  "answers": answers,
  "exact": exact,
  "final_number": final,
  "bleu": bleu,
  "chrf": chrf,
  "rouge": rouge,
  "tags": tags,
  "entities": entities,
}


def texts_of(found: Any) -> Sequence[str]:
  """The right texts in a record's field: a text, a list, or SQuAD's and TFDS's answers."""
  if isinstance(found, dict):
    found = found.get("text", found.get("aliases", found.get("value", ())))
  several = found if isinstance(found, list) else [found]
  return [one.get("text", "") if isinstance(one, dict) else str(one) for one in several if one is not None]

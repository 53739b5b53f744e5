"""Metrics of generated texts by name: `{"name": "answers", "normalization": "triviaqa"}`.

Each entry of `METRICS` is a function of the metric's options that returns a `TextMetric`: a metric,
and the conversion of texts to its references and predictions.
"""

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any, Literal

from t5x_like.metrics.answers import (
  final_number,
  names_referent,
  normalize_squad,
  normalize_trivia_qa,
)
from t5x_like.metrics.classification import Accuracy, Classification, Correlation
from t5x_like.metrics.metric import Metric
from t5x_like.metrics.squad import SquadV1
from t5x_like.metrics.summarization import Rouge
from t5x_like.metrics.tagging import EntityF1, TagAccuracy
from t5x_like.metrics.translation import Bleu, Chrf

# The keys of TriviaQA's answers, in the spellings of its processed and of its original files.
_ANSWER_KEYS = (
  "value",
  "aliases",
  "normalized_aliases",
  "Value",
  "Aliases",
  "NormalizedAliases",
  "HumanAnswers",
)
_SENTINEL = re.compile(r"<extra_id_([0-9]{1,3})>")


@dataclasses.dataclass(frozen=True)
class TextMetric:
  """A metric of texts.

  Attributes:
    metric: the metric that scores the converted texts.
    reference: `(an example's correct texts, at least one) -> the metric's reference`, None if there
      is no label; raises ValueError for texts that it cannot convert.
    prediction: `(a generated text) -> the metric's prediction`; None counts as wrong.
  """

  metric: Metric
  reference: Callable[[list[str]], Any] = lambda texts: texts
  prediction: Callable[[str], Any] = lambda text: text


def labels(*, classes: tuple[str, ...], scores: tuple[str, ...] = ("accuracy",)) -> TextMetric:
  """Score class names; a text that is no class is wrong, as in T5 (`f1_score_with_invalid`)."""
  index = {name: number for number, name in enumerate(classes)}

  def reference(texts: list[str]) -> int:
    if texts[0].strip() not in index:
      raise ValueError(f"found the label {texts[0][:40]!r}, expected one of {', '.join(classes)}")
    return index[texts[0].strip()]

  def prediction(text: str) -> int | None:
    return index.get(text.strip())

  return TextMetric(Classification(len(classes), scores), reference, prediction)


def number(*, invalid: float = -1.0) -> TextMetric:
  """Correlate numbers; a text without a finite number counts as `invalid`, as in T5's STS-B."""

  def prediction(text: str) -> float:
    try:
      predicted = float(text)
    except ValueError:
      return invalid
    return predicted if math.isfinite(predicted) else invalid

  def reference(texts: list[str]) -> float:
    try:
      return float(texts[0])
    except ValueError:
      raise ValueError(f"found {texts[0][:40]!r}, expected a number") from None

  return TextMetric(Correlation(), reference, prediction)


def answers(*, normalization: Literal["squad", "triviaqa"] = "squad") -> TextMetric:
  """Score exact match and F1 against the correct answer that agrees best.

  Use it for closed-book question answering, and for SQuAD as text.
  """
  normalizations = {"squad": normalize_squad, "triviaqa": normalize_trivia_qa}
  return TextMetric(SquadV1(normalizations[normalization]))


def referent() -> TextMetric:
  """Score WSC: a text is right if it names the candidate referent exactly when the label is True.

  An empty text is wrong, as in T5. The correct texts of an example are two: the candidate, and the
  label (False, True, or -1 if it is unknown).
  """

  def reference(texts: list[str]) -> tuple[str, bool] | None:
    if len(texts) != 2 or texts[1] not in ("False", "True", "-1"):
      raise ValueError(f"found {texts}, expected a referent, and False, True or -1")
    if texts[1] == "-1":
      return None
    return texts[0], texts[1] == "True"

  def matches(gold: tuple[str, bool], text: str) -> bool:
    candidate, is_referent = gold
    return names_referent(text, candidate) is is_referent

  return TextMetric(Accuracy(matches), reference)


def exact() -> TextMetric:
  """Score whether the text equals a right text, ignoring white space at its ends."""

  def reference(texts: list[str]) -> list[str]:
    return [text.strip() for text in texts]

  def matches(golds: list[str], text: str) -> bool:
    return text in golds

  return TextMetric(Accuracy(matches, "exact_match"), reference, str.strip)


def last_number_in_text(*, invalid: str = "") -> TextMetric:
  """Score whether the last number in the text is right (GSM8K, SVAMP)."""
  return TextMetric(
    Accuracy(name="exact_match"),
    lambda texts: final_number(texts[0]),
    lambda text: final_number(text) or invalid,
  )


def last_word() -> TextMetric:
  """Score whether the text is the last word of the right text (LAMBADA)."""

  def reference(texts: list[str]) -> str:
    if not texts[0].split():
      raise ValueError("found a text without words, expected a last word")
    return texts[0].split()[-1]

  return TextMetric(Accuracy(), reference, str.strip)


def bleu(*, tokenize: str = "13a", lowercase: bool = False) -> TextMetric:
  """Score BLEU with sacrebleu's options."""
  return TextMetric(Bleu(tokenize, lowercase))


def chrf(
  *, char_order: int = 6, word_order: int = 0, beta: int = 2, lowercase: bool = False
) -> TextMetric:
  """Score chrF with sacrebleu's options."""
  return TextMetric(Chrf(char_order, word_order, beta, lowercase))


def rouge(
  *,
  use_stemmer: bool = True,
  one_reference: bool = False,
  tokenize: Literal["ascii", "unicode"] = "ascii",
) -> TextMetric:
  """Score ROUGE; see `Rouge` for the options."""
  return TextMetric(Rouge(use_stemmer, one_reference, tokenize))


def tags() -> TextMetric:
  """Score the share of words whose tag is right; a word without a tag counts as wrong.

  Tags are separated by spaces. A tag after `<extra_id_N>` belongs to word N, any other to the next
  word.
  """
  return TextMetric(TagAccuracy(), lambda texts: _tags_of_words(texts[0]), _tags_of_words)


def entities() -> TextMetric:
  """Score precision, recall and F1 of the entities that the tags mark.

  A word without a tag is outside all entities.
  """
  return TextMetric(
    EntityF1(),
    lambda texts: _tags_of_words(texts[0], "O"),
    lambda text: _tags_of_words(text, "O"),
  )


def _tags_of_words(text: str, missing: str = "") -> list[str]:
  """Return the tag of each word; the last of several tags counts."""
  word_index = 0
  tags = {}
  for index, part in enumerate(_SENTINEL.split(text)):
    is_sentinel = index % 2 == 1  # `split` returns the captured numbers between the texts
    if is_sentinel:
      word_index = int(part)
      continue
    for tag in part.split():
      tags[word_index] = tag
      word_index += 1
  num_words = max(tags, default=-1) + 1
  return [tags.get(index, missing) for index in range(num_words)]


METRICS: dict[str, Callable[..., TextMetric]] = {
  "labels": labels,
  "number": number,
  "answers": answers,
  "referent": referent,
  "exact": exact,
  "final_number": last_number_in_text,
  "last_word": last_word,
  "bleu": bleu,
  "chrf": chrf,
  "rouge": rouge,
  "tags": tags,
  "entities": entities,
}


def reference_texts(value: Any) -> list[str]:
  """Return the correct texts in a record's field.

  The field is a text, a number, a list of them, or SQuAD's or TriviaQA's answers, of which
  TriviaQA's value and all its aliases are right. Null gives no texts.

  Raises:
    ValueError: the field holds a Boolean, a number that is not finite, null in a list, or an object
      of another form.
  """
  if value is None:
    return []
  if isinstance(value, str):
    return [value]
  if isinstance(value, float) and value.is_integer():
    return [str(int(value))]
  if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
    return [str(value)]
  if isinstance(value, list | tuple):
    if None in value:
      raise ValueError("found a list with null in it, expected texts or numbers; remove it")
    return [text for element in value for text in reference_texts(element)]
  if isinstance(value, dict):
    return _answer_texts(value)
  raise ValueError(f"found {str(value)[:40]}, expected a text, a number or a list of them")


def _answer_texts(answer: dict[str, Any]) -> list[str]:
  """Return the correct texts in SQuAD's or TriviaQA's answers."""
  if "text" in answer:
    return reference_texts(answer["text"])
  texts = []
  names = [name for name in _ANSWER_KEYS if name in answer]
  for name in names:
    texts += reference_texts(answer[name])
  if not names:
    raise ValueError(
      f"found an object of {', '.join(map(str, answer)) or 'nothing'}, expected one "
      "with text or value"
    )
  return list(dict.fromkeys(texts))

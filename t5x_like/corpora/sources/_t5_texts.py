"""Convert single records into T5's texts, equal in every character to `t5/data/preprocessors.py`.

Each function takes a record, its location and whether it is for training, and yields records with
`inputs`, `targets` and the fields that metrics need. Targets of records without a label are -1, as
in TensorFlow datasets.
"""

import re
import string
from collections.abc import Iterator

import numpy as np

from t5x_like.corpora.sources import Record, Skip, field_value
from t5x_like.errors import UserError
from t5x_like.files.checked_json import json_type_name

UNLABELLED = "-1"
_PUNCTUATION = re.compile(f"([{re.escape(string.punctuation)}])")
_SPACE = re.compile(r"[ \t\n\f\r]+")
_PRONOUNS = frozenset("he she they it her his their them him".split())
_END = ".,?!"


def stsb(record: Record, where: str, training: bool) -> Iterator[Record]:
  """Yield a pair of STS-B; the target is its score, rounded to the nearest 0.2, such as "3.4".

  It is rounded in single precision, as in the published code.
  """
  del training
  label = str(record["label"])
  try:
    number = np.round(np.float32(label) * np.float32(5)) / np.float32(5)
  except ValueError:
    number = np.float32(np.nan)
  if not np.isfinite(number):
    raise UserError(f"{where}: found the score {label[:40]!r}, expected a number")
  texts = f"stsb sentence1: {record['sentence1']} sentence2: {record['sentence2']}"
  yield {
    "inputs": texts,
    "targets": UNLABELLED if number < 0 else f"{number:.1f}",
    "idx": record.get("idx"),
  }


def multirc(record: Record, where: str, training: bool) -> Iterator[Record]:
  """Yield an answer option of MultiRC, without the marks of HTML; its label is False or True."""
  del where, training
  text = (
    f"multirc question: {record['question']} answer: {record['answer']} paragraph: "
    f"{record['paragraph']}"
  )
  text = re.sub("</?b>", "", text.replace("<br>", " "))
  yield {"inputs": text, "targets": _truth(record["label"]), "idx": record["idx"]}


def record(record: Record, where: str, training: bool) -> Iterator[Record]:
  """Yield a query of ReCoRD: once, with all `answers`, or for training once for each answer."""
  del where
  passage = re.sub(r"([.?!\"'])\n@highlight\n", r"\1 ", record["passage"])
  passage = passage.replace("\n@highlight\n", ". ")
  entities = ", ".join(record["entities"])
  query = {"inputs": f"record query: {record['query']} entities: {entities} passage: {passage}"}
  query |= {"answers": record["answers"], "idx": record["idx"]}
  targets = record["answers"]
  if not training:
    targets = record["answers"][:1] or [UNLABELLED]
  for target in targets:
    yield query | {"targets": target}


def squad(record: Record, where: str, training: bool, context: bool = True) -> Iterator[Record]:
  """Yield a question with its context, punctuation between spaces; `answers` are the right ones."""
  del training
  answers = []
  if record["answers"]:
    answers = [_space_punctuation(text) for text in field_value(record, "answers.text", where)]
  question = _space_punctuation(record["question"])
  texts = ["squad trivia question:", question]
  if context:
    texts = ["question:", question, "context:", _space_punctuation(record["context"])]
  example = {
    "inputs": _SPACE.sub(" ", " ".join(texts)),
    "targets": answers[0] if answers else UNLABELLED,
  }
  yield example | {"answers": answers, "id": record["id"]}


def squad_context_free(record: Record, where: str, training: bool) -> Iterator[Record]:
  """Yield a question without its context."""
  yield from squad(record, where, training, context=False)


def wsc(record: Record, where: str, training: bool) -> Iterator[Record]:
  """Yield the sentence with its pronoun between asterisks.

  The target is the referent, right or not. `judged` is the referent and whether it is right: False,
  True or, if unknown, -1.
  """
  label = _truth(record["label"])
  if not training or label == "True":
    text = _mark_pronoun(record["text"], record["span2_text"], int(record["span2_index"]), where)
    referent = record["span1_text"]
    yield {
      "inputs": f"wsc: {text}",
      "targets": referent,
      "judged": [referent, label],
      "idx": record.get("idx"),
    }


def _mark_pronoun(text: str, pronoun: str, position: int, where: str) -> str:
  """Put asterisks around the word at a position.

  Two sentences of WSC have a wrong position; there, the nearest equal word is marked.
  """
  words = text.split(" ")
  if position < len(words) and words[position] == pronoun:
    words[position] = f"*{pronoun}*"
    return " ".join(words)
  pronoun_pattern = re.compile(rf"({re.escape(pronoun)})([^\w]*)")
  numbers = [number for number, word in enumerate(words) if pronoun_pattern.fullmatch(word)]
  if not numbers:
    raise UserError(
      f"{where}: found no word {pronoun!r} in {text[:60]!r}, expected the pronoun of span2_text"
    )
  number = min(numbers, key=lambda candidate: abs(candidate - position))
  _, after = pronoun_pattern.fullmatch(words[number]).groups()
  words[number] = f"*{pronoun}*" + (f" {after}" if after else "")
  return " ".join(words).strip()


def dpr(record: Record, where: str, training: bool) -> Iterator[Record]:
  """Yield the sentence with its first pronoun between asterisks.

  The target is the right candidate.
  """
  del training
  pattern = rf" ({re.escape(record['pronoun'])})( |\.|,)"
  try:
    target = record["candidates"][int(record["label"])]
  except (ValueError, IndexError):
    raise UserError(
      f"{where}: found the label {record['label']!r}, expected the number of a candidate"
    ) from None
  yield {
    "inputs": "wsc: " + re.sub(pattern, r" *\1*\2", record["sentence"], count=1),
    "targets": target,
  }


def wnli(record: Record, where: str, training: bool) -> Iterator[Record | Skip]:
  """Yield the premise with the pronoun that the hypothesis replaces between asterisks.

  The target is the pronoun's replacement. `judged` is as in `wsc`: whether the premise entails the
  hypothesis. A few hypotheses repeat nothing of the premise: their referent is empty, so any answer
  is False, and their target is -1, because a target cannot be empty.
  """
  del where, training
  premise = record["sentence1"]
  hypothesis = record["sentence2"]
  pronoun_and_candidate = _best_pronoun(_plain_words(premise), _plain_words(hypothesis))
  if not pronoun_and_candidate:
    yield Skip("no pronoun")
    return
  position, candidate = pronoun_and_candidate
  referent = _spell_as_in(candidate, hypothesis)
  words = premise.split(" ")
  pronoun = words[position]
  if pronoun[-1:] in tuple(_END):
    words[position] = f"*{pronoun[:-1]}* {pronoun[-1]}"
  else:
    words[position] = f"*{pronoun}*"
  label = record["label"]
  if label in ("entailment", "not_entailment"):
    label = label == "entailment"
  yield {
    "inputs": "wsc: " + " ".join(words),
    "targets": referent or UNLABELLED,
    "judged": [referent, _truth(label)],
    "idx": record.get("idx"),
  }


def _best_pronoun(premise: list[str], hypothesis: list[str]) -> tuple[int, str] | None:
  """Find the pronoun whose neighbours the hypothesis repeats most.

  Returns:
    Its position, and the words of the hypothesis between the repeated ones; None without a pronoun.
  """
  best = None
  best_count = -1
  for position, word in enumerate(premise):
    if word not in _PRONOUNS:
      continue
    words_before = premise[:position]
    words_after = premise[position + 1 :]
    num_before = _count_repeated(words_before[::-1], hypothesis[::-1])
    num_after = _count_repeated(words_after, hypothesis)
    if num_before + num_after > best_count:
      best_count = num_before + num_after
      repeated_before = words_before[len(words_before) - num_before :]
      best = position, _between(repeated_before, words_after[:num_after], hypothesis)
  return best


def _between(before: list[str], after: list[str], hypothesis: list[str]) -> str:
  """Return the words of the hypothesis between `before` and `after`.

  If one of the two is not next to them, they reach to the beginning or the end of the hypothesis.
  """
  if not before and not after:
    return ""
  text = " ".join(hypothesis)
  # The published code uses the words as a pattern; if it is invalid, there is no referent there.
  try:
    re.compile(" ".join([*before, *after]))
  except (re.error, OverflowError, RecursionError):
    return ""
  before = [re.escape(word) for word in before]
  after = [re.escape(word) for word in after]
  for pattern in ([*before, "(.+)", *after], ["^(.+)", *after], [*before, "(.+)$"]):
    match = re.search(" ".join(pattern), text)
    if match:
      return match[1]
  return ""


def _count_repeated(words: list[str], text: list[str]) -> int:
  """Return how many first words of a list occur one after the other in a text."""
  joined_text = " ".join(text)
  for count in range(len(words)):
    if " ".join(words[: count + 1]) not in joined_text:
      return count
  return len(words)


def _plain_words(text: str) -> list[str]:
  """Return the words of a text in lower case, without a punctuation mark at their ends."""
  words = [re.sub(r"[.,?!]$", "", word) for word in text.strip().lower().split(" ")]
  return [word for word in words if word]


def _spell_as_in(candidate: str, hypothesis: str) -> str:
  """Return a candidate from its last article on, as the hypothesis spells it.

  Punctuation and genitive are left out.
  """
  words = candidate.split(" ")
  article_positions = [words.index(article) for article in ("a", "an", "the") if article in words]
  words = words[max(article_positions, default=0) :]
  pattern = " ".join(rf"{re.escape(word)}(?:\.|,|\?|\!)?" for word in words)
  match = re.search(pattern, hypothesis, re.IGNORECASE)
  text = match[0] if match else ""
  if text and text[-1] in _END:
    text = text[:-1]
  return text[:-1] if text.endswith("'") else text.removesuffix("'s")


def _space_punctuation(text: str) -> str:
  """Put every punctuation mark between spaces and collapse white space."""
  return _SPACE.sub(" ", _PUNCTUATION.sub(r" \1 ", text))


def _truth(label: object) -> str:
  """Return False, True or, for any other label, -1."""
  names = {"0": "False", "1": "True", "False": "False", "True": "True"}
  return names.get(str(label), UNLABELLED)


# The type of fields whose value must have one.
_KINDS = {
  **dict.fromkeys(
    ("sentence1", "sentence2", "question", "answer", "paragraph", "passage", "query", "context"),
    str,
  ),
  **dict.fromkeys(("text", "span1_text", "span2_text", "sentence", "pronoun"), str),
  **dict.fromkeys(("entities", "candidates"), list),
  "answers": list | dict,
}


def check(form: str, record: Record, where: str) -> None:
  """Raise UserError if a record lacks a field of a form, or has null or another type there."""
  fields, _ = FORMS[form]
  for field in fields:
    if field == "idx" and form != "multirc":  # it is only copied, where there is one
      continue
    if field not in record:
      raise UserError(
        f"{where}: found no field {field!r} among {', '.join(map(str, record))[:99] or 'none'}; "
        f"t5:{form} needs {', '.join(fields)}"
      )
    kind = _KINDS.get(field)
    if kind is not None and not isinstance(record[field], kind):
      expected = {str: "text", list: "a list of texts"}.get(kind, "a list or an object of texts")
      raise UserError(
        f"{where}: found {json_type_name(record[field])} in field {field!r}, expected {expected}"
      )
    if isinstance(record[field], list) and form != "squad" and form != "squad_context_free":
      if not all(isinstance(text, str) for text in record[field]):
        raise UserError(
          f"{where}: found other values than texts in field {field!r}, expected a list of texts"
        )


# For each form: the fields of the records that it reads, and its function.
FORMS = {
  "stsb": (("sentence1", "sentence2", "label", "idx"), stsb),
  "multirc": (("question", "answer", "paragraph", "label", "idx"), multirc),
  "record": (("passage", "query", "entities", "answers", "idx"), record),
  "squad": (("id", "question", "context", "answers"), squad),
  "squad_context_free": (("id", "question", "context", "answers"), squad_context_free),
  "wsc": (("text", "span1_text", "span2_text", "span2_index", "label", "idx"), wsc),
  "wnli": (("sentence1", "sentence2", "label", "idx"), wnli),
  "dpr": (("sentence", "pronoun", "candidates", "label"), dpr),
}

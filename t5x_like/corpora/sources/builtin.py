"""`builtin`: lines of the tiny corpus of `corpora/builtin.py`, with fields for every task.

It needs no files, so that any recipe can be tried.
"""

from collections.abc import Iterator
from typing import Any

from t5x_like.corpora import builtin
from t5x_like.corpora.sources import Record, check_split
from t5x_like.corpora.sources import Source as Base


class Source(Base):
  """Lines of 3 to 12 words.

  The fields are text, reversed, label, tokens, tags, question, context and answers, options,
  messages, prompt, chosen and rejected.
  """

  splits = ("train", "validation")
  name = "builtin"

  def __init__(self, spec: str, *, fields: tuple[str, ...] = (), data_dir: str | None = None):
    del spec, fields, data_dir

  def records(
    self, split: str, part: tuple[int, int] | None = None
  ) -> Iterator[tuple[str, Record]]:
    check_split(self, split)
    for number, line in enumerate("\n".join(builtin.texts(split)).splitlines(), 1):
      words = line.split()
      if 3 <= len(words) <= 12:
        yield f"built-in corpus, line {number}", _record(words)

  def facts(self, field: str) -> dict[str, Any]:
    return self.split_facts("train") | {"text_field": field}  # all splits have the same facts

  def split_facts(self, split: str) -> dict[str, Any]:
    return {"form": "builtin.v2"}


def _record(words: list[str]) -> Record:
  """Return the record of a line: fields that a model can learn from its words."""
  text = " ".join(words)
  longest = max(words, key=len)
  label = "long" if len(words) > 7 else "short"
  opposite = "short" if label == "long" else "long"
  return {
    "text": text,
    "reversed": " ".join(reversed(words)),
    "label": label,
    "tokens": words,
    "tags": ["long" if len(token) > 4 else "short" for token in words],
    "question": "Which word is the longest?",
    "context": text,
    "answers": [{"text": longest, "answer_start": text.index(longest)}],
    "options": ["short", "long"],
    "messages": [{"role": "user", "content": text}, {"role": "assistant", "content": label}],
    "prompt": text,
    "chosen": label,
    "rejected": opposite,
  }

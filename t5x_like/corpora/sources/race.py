"""`race:PATTERN`: RACE (Lai et al. 2017), an article in a file or a line, one record per question.

A line may also be a question by itself, as on the Hugging Face hub.
"""

from collections.abc import Iterator

from t5x_like.corpora.sources import Record
from t5x_like.corpora.sources._nested import Nested


class Source(Nested):
  """Fields example_id (the article's), article, question, options, answer (a letter) and name,
  `high1.txt-0`."""

  expected = "id, article, and lists of as many questions, options and answers"

  def nested_records(self, found: Record) -> Iterator[Record]:
    if "answer" in found:
      yield found
      return
    if not isinstance(found["answers"], list):
      raise TypeError(f"answers: found {found['answers']!r}")
    shared = {"example_id": found["id"], "article": found.get("article", "")}
    asked = zip(found["questions"], found["options"], found["answers"], strict=True)
    for number, (question, options, answer) in enumerate(asked):
      own = {
        "question": question,
        "options": options,
        "answer": answer,
        "name": f"{found['id']}-{number}",
      }
      yield shared | own

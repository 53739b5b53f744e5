"""`squad:PATTERN`: SQuAD's JSON (Rajpurkar et al. 2016, 2018), one record per question."""

from collections.abc import Iterator

from t5x_like.corpora.sources import Record
from t5x_like.corpora.sources._files import FileSource
from t5x_like.corpora.sources.json import parse_file
from t5x_like.errors import UserError, one_line

_EXPECTED_LAYOUT = "data > paragraphs > context, qas > id, question, answers"


class Source(FileSource):
  """One record per question.

  The fields are id, title, context, question, is_impossible, answers and plausible_answers, lists
  of {text, answer_start}.

  `answers` is empty where the question is impossible (SQuAD 2.0).
  """

  def read(self, path: str) -> Iterator[tuple[str, Record]]:
    try:
      for article in parse_file(path, dict, f"an object: {_EXPECTED_LAYOUT}")["data"]:
        for paragraph in article["paragraphs"]:
          for question in paragraph["qas"]:
            is_impossible = bool(question.get("is_impossible"))
            record = {
              "id": question["id"],
              "title": article.get("title", ""),
              "context": paragraph["context"],
              "question": question["question"],
              "is_impossible": is_impossible,
              "answers": [] if is_impossible else question["answers"],
              "plausible_answers": question.get("plausible_answers", []),
            }
            yield f"{path}, question {question['id']}", record
    except (AttributeError, KeyError, TypeError) as error:
      raise UserError(
        f"{path}: found no SQuAD data ({one_line(error)}), expected {_EXPECTED_LAYOUT}"
      ) from None

"""`multirc:PATTERN`: MultiRC, one record per answer option (Khashabi et al. 2018).

Files are SuperGLUE's JSON lines.
"""

from collections.abc import Iterator

from t5x_like.corpora.sources import Record
from t5x_like.corpora.sources._nested import Nested


class Source(Nested):
  """One record per answer option.

  The fields are paragraph, question, answer, label (0, 1, or null in a test set) and idx
  {paragraph, question, answer}.
  """

  expected = "idx and passage with questions[] of idx, question and answers[] of idx, text, label"

  def nested_records(self, content: Record) -> Iterator[Record]:
    for question in content["passage"]["questions"]:
      for answer in question["answers"]:
        yield {
          "paragraph": content["passage"].get("text", ""),
          "question": question.get("question", ""),
          "answer": answer.get("text", ""),
          "label": answer.get("label"),
          "idx": {
            "paragraph": content["idx"],
            "question": question["idx"],
            "answer": answer["idx"],
          },
        }

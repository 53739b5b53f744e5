"""`race:PATTERN`: RACE (Lai et al. 2017), one record per question.

A file or a line is an article. A line may also be a single question, as on the Hugging Face Hub.
"""

from collections.abc import Iterator

from t5x_like.corpora.sources import Record
from t5x_like.corpora.sources._nested import Nested


class Source(Nested):
  """One record per question.

  The fields are example_id (the id of the article), article, question, options, answer (a letter)
  and name (the id of the article and the number of the question, such as `high1.txt-0`).
  """

  expected = "id, article, and lists of as many questions, options and answers"

  def nested_records(self, content: Record) -> Iterator[Record]:
    if "answer" in content:
      yield content
      return
    if not isinstance(content["answers"], list):
      raise TypeError(f"answers: found {content['answers']!r}")
    article_fields = {"example_id": content["id"], "article": content.get("article", "")}
    questions = zip(content["questions"], content["options"], content["answers"], strict=True)
    for number, (question, options, answer) in enumerate(questions):
      question_fields = {
        "question": question,
        "options": options,
        "answer": answer,
        "name": f"{content['id']}-{number}",
      }
      yield article_fields | question_fields

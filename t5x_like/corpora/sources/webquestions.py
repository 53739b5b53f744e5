"""`webquestions:PATTERN`: WebQuestions (Berant et al. 2013), one record per question.

The files are Stanford's JSON or brmson's.
"""

import re
from collections.abc import Iterator

from t5x_like.corpora.sources import Record, json
from t5x_like.errors import UserError

# An answer in Stanford's files, such as (description "New York") or (description Paris).
_DESCRIPTION = re.compile(r'\(description (?:"((?:[^"\\]|\\.)*)"|([^()"]+))\)')


class Source(json.Source):
  """One record per question: the fields id (brmson's qId, or null), question and answers."""

  def read(self, path: str) -> Iterator[tuple[str, Record]]:
    for where, content in super().read(path):
      question = content.get("qText", content.get("utterance"))
      answers = content.get("answers")
      if answers is None and isinstance(content.get("targetValue"), str):
        descriptions = _DESCRIPTION.findall(content["targetValue"])
        answers = [quoted.replace('\\"', '"') or bare for quoted, bare in descriptions]
      if question is None or not answers:
        raise UserError(
          f"{where}: found {', '.join(content)}, expected qText and answers, or "
          "utterance and targetValue"
        )
      yield where, {"id": content.get("qId"), "question": question, "answers": answers}

"""`webquestions:PATTERN`: WebQuestions (Berant et al. 2013), one record per question.

The files are Stanford's JSON or brmson's.
"""

import re
from collections.abc import Iterator

from t5x_like.corpora.sources import Record, json
from t5x_like.errors import UserError

_DESCRIPTION = re.compile(r'\(description (?:"((?:[^"\\]|\\.)*)"|([^()"]+))\)')


class Source(json.Source):
  """Fields id (brmson's qId, or null), question and answers."""

  def read(self, path: str) -> Iterator[tuple[str, Record]]:
    for where, content in super().read(path):
      question = content.get("qText", content.get("utterance"))
      answers = content.get("answers")
      if answers is None and isinstance(content.get("targetValue"), str):
        answers = [
          quoted.replace('\\"', '"') or bare
          for quoted, bare in _DESCRIPTION.findall(content["targetValue"])
        ]
      if question is None or not answers:
        raise UserError(
          f"{where}: found {', '.join(content)}, expected qText and answers, or "
          "utterance and targetValue"
        )
      yield where, {"id": content.get("qId"), "question": question, "answers": answers}

"""`record:PATTERN`: ReCoRD, one record per query (Zhang et al. 2018).

Files are SuperGLUE's JSON lines, or ReCoRD's own JSON.
"""

from collections.abc import Iterator

from t5x_like.corpora.sources import Record
from t5x_like.corpora.sources._nested import Nested


class Source(Nested):
  """One record per query.

  The fields are passage, query, entities, answers (distinct texts, sorted) and idx {passage,
  query}.
  """

  expected = (
    "passage with text and entities[] of start, end, and qas[] of query, idx and answers[] of text"
  )

  def nested_records(self, content: Record) -> Iterator[Record]:
    for article in content.get("data", [content]):  # ReCoRD's own file is one object
      passage = article.get("passage", {})
      text = passage.get("text", "")
      spans = passage.get("entities", ())
      entities = sorted({text[span["start"] : span["end"] + 1] for span in spans})
      for query in article["qas"]:
        answers = {answer["text"] for answer in query.get("answers", ())}
        invalid_answers = [answer for answer in answers if not isinstance(answer, str)]
        if invalid_answers:
          raise TypeError(f"found {str(invalid_answers[0])!r}, expected a text")
        ids = {
          "passage": article.get("idx", article.get("id")),
          "query": query.get("idx", query.get("id")),
        }
        yield {
          "passage": text,
          "query": query.get("query", ""),
          "entities": entities,
          "answers": sorted(answers),
          "idx": ids,
        }

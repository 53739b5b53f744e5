"""`wsc:PATTERN`: WSC in SuperGLUE's JSON lines (Levesque et al. 2012)."""

from collections.abc import Iterator

from t5x_like.corpora.sources import Record
from t5x_like.corpora.sources._nested import Nested


class Source(Nested):
  """Reads one record per pair of spans.

  The fields are text, span1_text, span2_text, span1_index, span2_index (numbers of the first word
  in the text), label (true, false, or null in a test set) and idx.

  Some spans of the files differ from the text in case, spaces or a full stop. The records have them
  as the text does, like TFDS's `super_glue/wsc.fixed`.
  """

  expected = "text, and target with span1_text, span1_index, span2_text and span2_index"

  def nested_records(self, content: Record) -> Iterator[Record]:
    target = content["target"]
    text = content["text"]
    yield {
      "text": text,
      "span1_text": _spell_as_in(target["span1_text"], text),
      "span2_text": _spell_as_in(target["span2_text"], text),
      "span1_index": target["span1_index"],
      "span2_index": target["span2_index"],
      "label": content.get("label"),
      "idx": content.get("idx"),
    }


def _spell_as_in(span: str, text: str) -> str:
  """Return a span as the text spells it; the span itself if the text has no such words."""
  if span in text:
    return span
  words = " ".join(span.split()).rstrip(".")
  start = text.lower().find(words.lower())
  return span if start < 0 else text[start : start + len(words)]

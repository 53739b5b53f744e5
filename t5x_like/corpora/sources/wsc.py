"""`wsc:PATTERN`: WSC in SuperGLUE's JSON lines (Levesque et al. 2012).

There is one record per pair of spans.
"""

from collections.abc import Iterator

from t5x_like.corpora.sources import Record
from t5x_like.corpora.sources._nested import Nested


class Source(Nested):
  """One record per pair of spans.

  The fields are text, span1_text, span2_text, their indices among the words of the text, label
  (true, false, or null in a test set) and idx.

  Spans are spelled as in the text, as in TFDS's `super_glue/wsc.fixed`: some differ in case, spaces
  or a full stop.
  """

  expected = "text, and target with span1_text, span1_index, span2_text and span2_index"

  def nested_records(self, content: Record) -> Iterator[Record]:
    target = content["target"]
    spans = {
      name: _spell_as_in(target[name], content["text"]) for name in ("span1_text", "span2_text")
    }
    indices = {name: target[name] for name in ("span1_index", "span2_index")}
    yield {
      "text": content["text"],
      **spans,
      **indices,
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

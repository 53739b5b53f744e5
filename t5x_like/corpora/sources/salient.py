"""`salient:SOURCE` and `salient:FINDER@SOURCE`: an example for each salient span of each sentence.

Guu et al. 2020 (REALM, section 3.4) mask dates and named entities, located by a tagger and an
expression; Roberts et al. 2020 (section 3.3) continue the pretraining of T5 this way, with the
texts of their published code:

    inputs   nem: The tower was built in _X_ by his company.     targets   1889

A sentence without a span gives no example. The records of SOURCE have a field `text`; an example
has all fields of its record. The spans come from one of:

    salient:jsonl:tagged.jsonl
        the records: sentences whose spans a tagger marked, under `spans`, `entities` or `ents`, as
        spaCy and `transformers` write them
    salient:tfds:salient_span_wikipedia/sentences
        the spans of the paper
    salient:text:books/*.txt
        an expression of dates, numbers and names, if records have no such field
    salient:names.jsonl@text:books/*.txt
        a file of names from a tagger, matched everywhere; see `_named_spans.py`
    salient:my_module:find@text:books/*.txt
        a function, `(sentence) -> list of (start, end)` in characters

Texts are cut into sentences (`_salient_rules.py`), unless the record has spans.
"""

import re
from collections.abc import Iterator

from t5x_like.corpora.sources import Record, _named_spans, _salient_rules, formats, open_source
from t5x_like.corpora.sources._derived import Derived
from t5x_like.errors import UserError

VERSION = 2  # the version of the texts and the expression; raise it when they change
_FINDER = re.compile(rf"([^@]+)@((?:{'|'.join(formats())})\b.*)", re.DOTALL)


class Source(Derived):
  """One record per salient span, with the fields `inputs` and `targets`."""

  def __init__(self, spec: str, *, fields: tuple[str, ...] = (), data_dir: str | None = None):
    del fields  # they are names of results, not of the other source's fields
    name = None
    inner = spec
    match = _FINDER.fullmatch(spec)
    if match:
      name, inner = match.groups()
    if not inner:
      raise UserError(
        "source salient: expected salient:SOURCE or salient:FINDER@SOURCE, such as "
        "salient:text:*.txt"
      )
    self._find = None
    finder = ""
    if name:
      self._find, finder = _named_spans.load_finder("source salient", name)
    self._inner = open_source(inner, data_dir=data_dir)
    self._derivation = {"form": "salient", "version": VERSION, "finder": finder}
    self.name = self._inner.name
    self.splits = self._inner.splits

  def _derive(self, record: Record, where: str, split: str) -> Iterator[tuple[str, Record]]:
    for sentence, spans in self._spans(record, where):
      for start, end in spans:
        inputs = f"nem: {sentence[:start]}_X_{sentence[end:]}"
        yield where, record | {"inputs": inputs, "targets": sentence[start:end]}

  def _spans(self, record: Record, where: str) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Yield the sentences of a record with their spans."""
    key = next((key for key in _named_spans.KEYS if key in record), None)
    if self._find is None and key:
      spans = _named_spans.record_spans(record, where)
      yield record["text"], spans
      return
    text = record.get("text")
    if not isinstance(text, str):
      raise UserError(f"{where}: found keys {', '.join(record)}, expected 'text'")
    find = self._find or _salient_rules.dates_numbers_and_names
    for sentence in _salient_rules.sentences(text):
      yield sentence, find(sentence)

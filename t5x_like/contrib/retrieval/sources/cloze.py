"""`cloze:SOURCE`: a record for each sentence, with the other sentences of its text as passage.

The inverse cloze task of Lee et al. 2019 (section 4) uses a sentence as the query for its own
context. In nine of ten examples, by a hash of the sentence, the sentence is taken out of the
passage; in the others it stays, so that a retriever learns to use common words, too. A text of one
sentence gives no record.
"""

import hashlib
from collections.abc import Iterator

from t5x_like.corpora.sources import Record, Skip, _salient_rules, field_text, open_source
from t5x_like.corpora.sources._derived import Derived
from t5x_like.errors import UserError

VERSION = 2  # raise it when the records change
_KEEP_ONE_IN = 10  # sentences, of which one stays in its passage


class Source(Derived):
  """Fields inputs, a sentence, and passage; SOURCE's records have a `text`."""

  def __init__(self, spec: str, *, fields: tuple[str, ...] = (), data_dir: str | None = None):
    del fields  # they name fields of the results, which are always the same
    if not spec:
      raise UserError(
        "source cloze: expected cloze:SOURCE, such as cloze:jsonl:wikipedia/*.jsonl.gz"
      )
    self._inner = open_source(spec, data_dir=data_dir)
    self._derivation = {"form": "cloze", "version": VERSION}
    self.name = self._inner.name
    self.splits = self._inner.splits

  def _derive(self, record: Record, where: str, split: str) -> Iterator[tuple[str, Record | Skip]]:
    text = field_text(record, "text", where)
    if isinstance(text, Skip):
      yield where, text
      return
    sentences = _salient_rules.sentences(text)
    if len(sentences) < 2:
      return
    for index, sentence in enumerate(sentences):
      is_kept = hashlib.sha256(sentence.encode()).digest()[0] % _KEEP_ONE_IN == 0
      passage = sentences if is_kept else sentences[:index] + sentences[index + 1 :]
      yield where, {"inputs": sentence, "passage": " ".join(passage)}

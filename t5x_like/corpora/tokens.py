"""The tokens of documents: the kind of store that pretraining reads. Splits, cleans and
tokenises."""

import dataclasses
import functools
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from t5x_like import vocabularies
from t5x_like.corpora import cleaning
from t5x_like.corpora.documents import Documents, skip_reason
from t5x_like.corpora.held_out import SplitPart
from t5x_like.corpora.job import ItemBatch, StoredBatch, StoreKind
from t5x_like.corpora.sources import Skip
from t5x_like.errors import UserError
from t5x_like.files import checked_json
from t5x_like.store import ids
from t5x_like.store.tokens import TOKENS
from t5x_like.store.writer import SHARD_VALUES

PART_BYTES = 2**26
_LONGEST_FACTS = 4096  # characters of JSON
_OTHER_SIDE = ""  # the reason of documents that belong to another split; not counted


def summarize_facts(facts: Any) -> Any:
  """Return a source's facts for a manifest: the facts themselves or, if too long, their SHA-256."""
  if len(json.dumps(facts, sort_keys=True)) <= _LONGEST_FACTS:
    return facts
  return {"form": facts.get("form"), "facts_sha256": checked_json.digest(facts)}


@dataclasses.dataclass(frozen=True)
class TokenStoreKind(StoreKind):
  """The tokens of a part of a split.

  Attributes:
    source, data_dir, text_field: the documents, see `Documents`; `documents_sha256` is checked when
      they are opened.
    changed: last modification times of the source's files; parts of files that have changed are
      rebuilt.
    part: the part of the source's split.
    vocabulary_path: path of the vocabulary; `vocabulary_fingerprint` is checked when it is opened.
    append_eos: whether documents end with EOS.
    steps: the cleaning steps.
    shard_values: a shard closes at the first document end at or after this many tokens.
    part_bytes: source bytes that are built together.
  """

  source: str
  data_dir: str | None
  text_field: str
  documents_sha256: str
  changed: tuple[int | None, ...]
  part: SplitPart
  vocabulary_path: str
  vocabulary_fingerprint: str
  append_eos: bool
  steps: tuple[cleaning.Step, ...] = ()
  shard_values: int = SHARD_VALUES
  part_bytes: int = PART_BYTES

  unit = TOKENS
  items = "documents"
  advice = "check the source, or for a split by validation_fraction raise the fraction"
  counted = True

  @classmethod
  def of(
    cls, documents: Documents, part: SplitPart, vocabulary: str, **more: Any
  ) -> "TokenStoreKind":
    """Return the tokens of open documents, with the vocabulary at a path; `more` are further
    attributes."""
    return cls(
      source=documents.spec,
      data_dir=documents.data_dir,
      text_field=documents.text_field,
      documents_sha256=checked_json.digest(documents.facts()),
      changed=tuple(documents.source.modification_times(part.split)),
      part=part,
      vocabulary_path=vocabulary,
      vocabulary_fingerprint=vocabularies.load(vocabulary).fingerprint,
      **more,
    )

  @property
  def facts(self) -> dict[str, Any]:
    left = {"source", "data_dir", "vocabulary_path"} | (
      set() if self._compares else {"documents_sha256", "changed"}
    )
    facts = {key: value for key, value in dataclasses.asdict(self).items() if key not in left}
    return facts | {"steps": {step.name: dataclasses.asdict(step) for step in self.steps}}

  def part_facts(self, number: int) -> Any:
    if self._compares:  # a part depends on all files, which are among the facts
      return None
    known = _documents(self).source.part_facts(
      self.part.split, self.text_field, _parts(self)[number]
    )
    return known or [self.documents_sha256, self.changed]

  @property
  def _compares(self) -> bool:
    return any(isinstance(step, cleaning.Duplicates) for step in self.steps)

  @property
  def vocabulary(self) -> vocabularies.Vocabulary:
    return _vocabulary(self)

  @property
  def store_facts(self) -> dict[str, Any]:
    return ids.facts(self.vocabulary, self.append_eos)

  @property
  def num_parts(self) -> int:
    return len(_parts(self))

  def is_current(self) -> bool:
    documents = _documents(self)
    now = (
      checked_json.digest(documents.facts()),
      tuple(documents.source.modification_times(self.part.split)),
    )
    return now == (self.documents_sha256, self.changed) and documents.source.matches_listing()

  def part_size(self, number: int) -> int:
    return _documents(self).source.part_size(self.part.split, _parts(self)[number])

  def read(self, number: int) -> Iterator[str | Skip]:
    return _documents(self).read(self.part.split, _parts(self)[number])

  def characters(self, item: str | Skip) -> int:
    return len(item) if isinstance(item, str) else 1

  def clean(self, document: str | Skip) -> cleaning.CleanResult:
    """Clean a document by itself."""
    removed: Counter[str] = Counter()
    if reason := skip_reason(document):
      return None, reason, removed
    if not (document := self.part.of(document)):
      return None, _OTHER_SIDE, removed
    for step in self._filters:
      document, reason, amounts = step.clean(document)
      removed += amounts
      if document is None:
        return None, reason, removed
    return document, None, removed

  @property
  def _filters(self) -> list[cleaning.Filter]:
    return [step for step in self.steps if isinstance(step, cleaning.Filter)]

  def _without_duplicates(self, text: str, marks: dict[str, np.ndarray]) -> cleaning.CleanResult:
    removed: Counter[str] = Counter()
    for step in self.steps:
      if step.name in marks and marks[step.name].any():
        text, reason, amounts = step.remove_marked(text, marks[step.name])
        removed += amounts
        if text is not None and not (
          text and all(one.is_long_enough(text) for one in self._filters)
        ):
          text = None
          reason = f"too short without repeated {step.name}"
        if text is None:
          return None, reason, removed
    return text, None, removed

  def make(self, batch: ItemBatch) -> StoredBatch:
    texts = []
    reasons = []
    removed = []
    for number, document in enumerate(batch.items):
      text, reason, gone = self.clean(document)
      if text is not None:
        text, reason, more = self._without_duplicates(
          text, {step: each[number] for step, each in batch.marks.items()}
        )
        gone += more
      texts.append(text or "")
      reasons.append(reason)
      removed.append(gone or None)
    encoded = self.vocabulary.encode_batch(texts)
    for number, document in enumerate(encoded):
      if texts[number] and not document.size:
        reasons[number] = "no tokens"
    lengths_D = np.array([document.size for document in encoded], np.int64)
    stored = ids.prepare(
      self.vocabulary, self.append_eos, np.concatenate(encoded), lengths_D, "vocabulary"
    )
    return StoredBatch({TOKENS: stored}, reasons, removed)


@functools.lru_cache(16)  # splits
def _documents(tokens: TokenStoreKind) -> Documents:
  documents = Documents(tokens.source, data_dir=tokens.data_dir, text_field=tokens.text_field)
  if checked_json.digest(documents.facts()) != tokens.documents_sha256:
    raise UserError(
      f"source {tokens.source}: found other files than when the preparation began; run the same "
      "command again"
    )
  return documents


@functools.lru_cache(16)
def _parts(tokens: TokenStoreKind) -> list[tuple[int, int]]:
  return _documents(tokens).source.parts(tokens.part.split, tokens.part_bytes)


@functools.lru_cache(2)
def _vocabulary(tokens: TokenStoreKind) -> vocabularies.Vocabulary:
  vocabulary = vocabularies.load(tokens.vocabulary_path)
  if vocabulary.fingerprint != tokens.vocabulary_fingerprint:
    raise UserError(
      f"vocabulary {tokens.vocabulary_path}: found another one than when the preparation began; "
      "run the same command again"
    )
  return vocabulary

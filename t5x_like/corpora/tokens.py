"""Define token stores, which pretraining reads: select, clean and tokenise documents."""

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
_MAX_FACTS_LENGTH = 4096  # characters of JSON
_OTHER_SPLIT = ""  # reason of documents that belong to another split, which are not counted


def summarize_facts(facts: Any) -> Any:
  """Return a source's facts for a manifest: the facts themselves or, if too long, their SHA-256."""
  if len(json.dumps(facts, sort_keys=True)) <= _MAX_FACTS_LENGTH:
    return facts
  return {"form": facts.get("form"), "facts_sha256": checked_json.digest(facts)}


@dataclasses.dataclass(frozen=True)
class TokenStoreKind(StoreKind):
  """The tokens of a part of a split.

  Attributes:
    source, data_dir, text_field: arguments of `Documents`.
    documents_sha256: hash of the documents' facts, which is checked when they are opened.
    changed: last modification times of the source's files; parts of changed files are rebuilt.
    part: part of the source's split.
    vocabulary_path: path of the vocabulary.
    vocabulary_fingerprint: fingerprint, which is checked when the vocabulary is opened.
    append_eos: end documents with EOS.
    steps: cleaning steps.
    shard_values: a shard closes at the first document end at or after this many tokens.
    part_bytes: bytes of source files that are built together as a part.
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
    cls, documents: Documents, part: SplitPart, vocabulary: str, **attributes: Any
  ) -> "TokenStoreKind":
    """Return the kind for open documents.

    Args:
      documents: documents of the source.
      part: part of the source's split.
      vocabulary: path of the vocabulary.
      attributes: further attributes of the kind.
    """
    return cls(
      source=documents.spec,
      data_dir=documents.data_dir,
      text_field=documents.text_field,
      documents_sha256=checked_json.digest(documents.facts()),
      changed=tuple(documents.source.modification_times(part.split)),
      part=part,
      vocabulary_path=vocabulary,
      vocabulary_fingerprint=vocabularies.load(vocabulary).fingerprint,
      **attributes,
    )

  @property
  def facts(self) -> dict[str, Any]:
    omitted = {"source", "data_dir", "vocabulary_path"}
    if not self._compares_pages:
      omitted |= {"documents_sha256", "changed"}
    facts = {key: value for key, value in dataclasses.asdict(self).items() if key not in omitted}
    facts["steps"] = {step.name: dataclasses.asdict(step) for step in self.steps}
    return facts

  def part_facts(self, number: int) -> Any:
    if self._compares_pages:  # a part depends on all files, which are among the facts
      return None
    source = _open_documents(self).source
    part_facts = source.part_facts(self.part.split, self.text_field, _list_parts(self)[number])
    return part_facts or [self.documents_sha256, self.changed]

  @property
  def _compares_pages(self) -> bool:
    return any(isinstance(step, cleaning.Duplicates) for step in self.steps)

  @property
  def vocabulary(self) -> vocabularies.Vocabulary:
    return _load_vocabulary(self)

  @property
  def store_facts(self) -> dict[str, Any]:
    return ids.facts(self.vocabulary, self.append_eos)

  @property
  def num_parts(self) -> int:
    return len(_list_parts(self))

  def is_current(self) -> bool:
    documents = _open_documents(self)
    digest = checked_json.digest(documents.facts())
    times = tuple(documents.source.modification_times(self.part.split))
    is_unchanged = digest == self.documents_sha256 and times == self.changed
    return is_unchanged and documents.source.matches_listing()

  def part_size(self, number: int) -> int:
    return _open_documents(self).source.part_size(self.part.split, _list_parts(self)[number])

  def read(self, number: int) -> Iterator[str | Skip]:
    return _open_documents(self).read(self.part.split, _list_parts(self)[number])

  def characters(self, item: str | Skip) -> int:
    return len(item) if isinstance(item, str) else 1

  def clean(self, document: str | Skip) -> cleaning.CleanResult:
    """Apply the filters to a document, without comparing it with others."""
    removed: Counter[str] = Counter()
    reason = skip_reason(document)
    if reason:
      return None, reason, removed
    text = self.part.share(document)
    if not text:
      return None, _OTHER_SPLIT, removed
    for step in self._filters:
      text, reason, amounts = step.clean(text)
      removed += amounts
      if text is None:
        return None, reason, removed
    return text, None, removed

  @property
  def _filters(self) -> list[cleaning.Filter]:
    return [step for step in self.steps if isinstance(step, cleaning.Filter)]

  def _remove_duplicates(self, text: str, marks: dict[str, np.ndarray]) -> cleaning.CleanResult:
    removed: Counter[str] = Counter()
    for step in self.steps:
      if step.name not in marks or not marks[step.name].any():
        continue
      text, reason, amounts = step.remove_marked(text, marks[step.name])
      removed += amounts
      if text is None:
        return None, reason, removed
      if not text or not all(step_filter.is_long_enough(text) for step_filter in self._filters):
        return None, f"too short without repeated {step.name}", removed
    return text, None, removed

  def make(self, batch: ItemBatch) -> StoredBatch:
    texts = []
    reasons = []
    removed = []
    for number, document in enumerate(batch.items):
      text, reason, amounts = self.clean(document)
      if text is not None:
        marks = {step: step_marks[number] for step, step_marks in batch.marks.items()}
        text, reason, duplicate_amounts = self._remove_duplicates(text, marks)
        amounts += duplicate_amounts
      texts.append(text or "")
      reasons.append(reason)
      removed.append(amounts or None)
    documents_ids = self.vocabulary.encode_batch(texts)
    for number, document_ids in enumerate(documents_ids):
      if texts[number] and not document_ids.size:
        reasons[number] = "no tokens"
    lengths_D = np.array([document_ids.size for document_ids in documents_ids], np.int64)
    tokens = ids.prepare(
      self.vocabulary, self.append_eos, np.concatenate(documents_ids), lengths_D, "vocabulary"
    )
    return StoredBatch({TOKENS: tokens}, reasons, removed)


@functools.lru_cache(16)  # splits
def _open_documents(kind: TokenStoreKind) -> Documents:
  """Open the documents of a split; UserError if they changed since the preparation began."""
  documents = Documents(kind.source, data_dir=kind.data_dir, text_field=kind.text_field)
  if checked_json.digest(documents.facts()) != kind.documents_sha256:
    raise UserError(
      f"source {kind.source}: found other files than when the preparation began; run the same "
      "command again"
    )
  return documents


@functools.lru_cache(16)
def _list_parts(kind: TokenStoreKind) -> list[tuple[int, int]]:
  return _open_documents(kind).source.parts(kind.part.split, kind.part_bytes)


@functools.lru_cache(2)
def _load_vocabulary(kind: TokenStoreKind) -> vocabularies.Vocabulary:
  """Load the vocabulary; UserError if it changed since the preparation began."""
  vocabulary = vocabularies.load(kind.vocabulary_path)
  if vocabulary.fingerprint != kind.vocabulary_fingerprint:
    raise UserError(
      f"vocabulary {kind.vocabulary_path}: found another one than when the preparation began; "
      "run the same command again"
    )
  return vocabulary

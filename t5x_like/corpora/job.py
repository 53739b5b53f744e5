"""A job that prepares a token store, and its operations on documents: splitting, cleaning, tokenising."""

import dataclasses
import functools
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from t5x_like import vocabularies
from t5x_like.corpora import cleaning
from t5x_like.corpora.documents import Documents, unwanted
from t5x_like.corpora.sources import Skip, Source
from t5x_like.errors import UserError

_LONGEST_FACTS = 4096  # characters of JSON
_BATCH_CHARACTERS = 2**19  # text cleaned and tokenised at once
_DROPPED = {1: "exact duplicate", 2: "near duplicate"}
_VERSION = 5  # of parts and signatures; other versions are rebuilt
_OTHER_SIDE = ""  # the reason of documents that belong to another split; not counted

Marks = tuple[np.ndarray, list[np.ndarray]]  # of a part's documents: uint8 [documents], and bool [spans] for each


@dataclasses.dataclass(frozen=True)
class Part:
  """The documents of a source's split whose hash, as a fraction of all hashes, lies in [low, high)."""

  split: str
  low: float = 0.0
  high: float = 1.0


def whole_plan(source: Source, fraction: float) -> dict[str, Part]:
  """Return the part of each split; without a validation split, train lends it `fraction` of its documents."""
  plan = {split: Part(split) for split in source.splits}
  if "train" in plan and "validation" not in plan and fraction:
    plan |= {"train": Part("train", low=fraction), "validation": Part("train", high=fraction)}
  return plan


@dataclasses.dataclass(frozen=True)
class Job:
  """Everything that determines a store's bytes, and its directories; pickled to other processes and machines.

  Attributes:
    source, data_dir, text_field: the source to open; `facts` is the SHA-256 of its facts, checked on opening.
    changed: last modification times of the source's files; parts built from older contents are rebuilt.
    split, low, high: the documents of the source's split whose hash, as a fraction of all, lies in [low, high).
    vocabulary: path of the vocabulary; `vocabulary_fingerprint` is checked on opening.
    steps: steps of `cleaning.STEPS`; c4: the filters, if among the steps.
    work, progress: the directory that becomes the store, and the directory for progress; local or remote.
  """

  source: str
  data_dir: str | None
  text_field: str
  facts: str
  changed: tuple[int | None, ...]
  split: str
  low: float
  high: float
  vocabulary: str
  vocabulary_fingerprint: str
  append_eos: bool
  shard_tokens: int
  part_bytes: int
  steps: tuple[str, ...]
  c4: cleaning.C4
  work: str
  progress: str

  @functools.cached_property
  def key(self) -> str:
    """The SHA-256 of everything that determines the bytes."""
    places = ("source", "data_dir", "vocabulary", "work", "progress")
    content = {key: value for key, value in dataclasses.asdict(self).items() if key not in places}
    content["version"] = _VERSION
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class Batch:
  """Consecutive documents of a part: texts or skips, the marks of duplicates, and the spans to remove."""

  documents: list[str | Skip]
  dropped: np.ndarray | None = None
  spans: list[np.ndarray] | None = None


@dataclasses.dataclass(frozen=True)
class Tokenised:
  """Concatenated ids, each document's length (0 if skipped), the reason for skipping it, and the amounts removed."""

  tokens_N: np.ndarray
  lengths_D: np.ndarray
  reasons: list[str | None]
  removed: list[Counter | None]


def summary(facts: Any) -> Any:
  """Return a source's facts for a manifest: the facts themselves or, if too long, their SHA-256."""
  text = json.dumps(facts, sort_keys=True)
  if len(text) <= _LONGEST_FACTS:
    return facts
  return {"form": facts.get("form"), "facts_sha256": hashlib.sha256(text.encode()).hexdigest()}


def facts_hash(documents: Documents) -> str:
  return hashlib.sha256(json.dumps(documents.facts(), sort_keys=True).encode()).hexdigest()


@functools.lru_cache(2)
def _opened_documents(source: str, data_dir: str | None, text_field: str, facts: str) -> Documents:
  documents = Documents(source, data_dir=data_dir, text_field=text_field)
  if facts_hash(documents) != facts:
    raise UserError(f"source {source}: found other files than when the preparation began; run the same command again")
  return documents


@functools.lru_cache(2)
def _opened_vocabulary(path: str, fingerprint: str) -> vocabularies.Vocabulary:
  vocabulary = vocabularies.load(path)
  if vocabulary.fingerprint != fingerprint:
    raise UserError(f"vocabulary {path}: found another one than when the preparation began; run the same command again")
  return vocabulary


def vocabulary_of(job: Job) -> vocabularies.Vocabulary:
  return _opened_vocabulary(job.vocabulary, job.vocabulary_fingerprint)


def documents_of(job: Job) -> Documents:
  return _opened_documents(job.source, job.data_dir, job.text_field, job.facts)


@functools.lru_cache(2)
def parts_of(job: Job) -> list[tuple[int, int]]:
  return documents_of(job).source.parts(job.split, job.part_bytes)


def is_inside(job: Job, text: str) -> bool:
  """Return whether a document is on this job's side of the split."""
  if (job.low, job.high) == (0, 1):
    return True
  # A hash of the text decides, so copies of a text are on the same side in any order.
  digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
  return job.low * 2**64 <= int.from_bytes(digest, "big") < job.high * 2**64


def cleaned(job: Job, document: str | Skip) -> tuple[str | None, str | None, Counter]:
  """Clean a document: (text, None, amounts removed by reason), or (None, reason for skipping, amounts removed)."""
  if reason := unwanted(document):
    return None, reason, Counter()
  if not is_inside(job, document):
    return None, _OTHER_SIDE, Counter()
  if "c4" not in job.steps:
    return document, None, Counter()
  return job.c4.clean(document)


def tokenise(job: Job, batch: Batch) -> Tokenised:
  """Clean and tokenise a batch."""
  vocabulary = vocabulary_of(job)
  texts, reasons, removed = [], [], []
  for number, document in enumerate(batch.documents):
    text, reason, gone = cleaned(job, document)
    if text is not None and batch.dropped is not None:
      if reason := _DROPPED.get(int(batch.dropped[number])):
        text = None
      elif batch.spans[number].any():
        text = cleaning.without_spans(text, batch.spans[number])
        gone["span: repeated"] += int(batch.spans[number].sum())
        if not text or ("c4" in job.steps and not job.c4.long_enough(text)):
          text, reason = None, "too short without repeated spans"
    texts.append(text or "")
    reasons.append(reason)
    removed.append(gone or None)
  ids = vocabulary.encode_batch(texts)
  for number, document in enumerate(ids):
    if texts[number] and not document.size:
      reasons[number] = "no tokens"
  lengths_D = np.array([document.size for document in ids], np.int64)
  return Tokenised(np.concatenate(ids), lengths_D, reasons, removed)


def batches(documents: Iterable[str | Skip], marks: Marks | None, start: int) -> Iterator[Batch]:
  """Group documents into batches of about 512 K characters; the first is number `start` of its part."""
  held, characters, first = [], 0, start

  def batch() -> Batch:
    past = first + len(held)
    return Batch(held) if marks is None else Batch(held, marks[0][first:past], marks[1][first:past])

  for document in documents:
    held.append(document)
    characters += len(document) if isinstance(document, str) else 1
    if characters >= _BATCH_CHARACTERS or len(held) >= 2**16:
      yield batch()
      first, held, characters = first + len(held), [], 0
  if held:
    yield batch()

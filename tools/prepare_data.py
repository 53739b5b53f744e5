"""Tokenises a corpus into a token store per split, which training reads.

Example:
  python -m tools.prepare_data --source='jsonl:corpus/*.jsonl.gz' --vocabulary=vocabulary --output=data/corpus

The store is the same, byte for byte, whatever the number of workers. What exists already for the same inputs is kept,
so the command may be repeated after an interruption; what exists for other inputs is refused.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import hashlib
import itertools
import multiprocessing
import os
import pathlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from tqdm import tqdm

from t5x_like.data import sources, token_store, vocabularies
from t5x_like.data.token_store_writer import SHARD_TOKENS, TokenStoreWriter
from t5x_like.errors import UserError, door

_BATCH_CHARACTERS = 2**19  # text handed to a worker at once
_BATCHES_AHEAD = 3  # per worker, so that a slow consumer holds memory bounded

Tokenised = tuple[np.ndarray, np.ndarray]  # ids of several documents one after the other, and their lengths

_vocabulary: vocabularies.Vocabulary | None = None  # each worker's own


def _load_vocabulary(path: str) -> None:
  global _vocabulary
  _vocabulary = vocabularies.load(path)


def _tokenise(texts: list[str]) -> Tokenised:
  documents = _vocabulary.encode_batch(texts)
  return np.concatenate(documents), np.array([document.size for document in documents], np.int64)


def _tokenised(documents: Iterable[str], vocabulary: str, workers: int) -> Iterator[Tokenised]:
  """Ids of documents, in their order, made by `workers` processes (in this one if 1)."""
  batches = _batches(documents)
  if workers == 1:
    _load_vocabulary(vocabulary)
    yield from map(_tokenise, batches)
    return
  with concurrent.futures.ProcessPoolExecutor(
      workers, multiprocessing.get_context("spawn"), _load_vocabulary, (vocabulary,)) as pool:
    ahead = collections.deque(pool.submit(_tokenise, b) for b in itertools.islice(batches, workers * _BATCHES_AHEAD))
    try:
      while ahead:
        yield ahead.popleft().result()
        ahead.extend(pool.submit(_tokenise, batch) for batch in itertools.islice(batches, 1))
    except concurrent.futures.process.BrokenProcessPool as error:
      raise UserError("a tokenising process was killed, by the system if memory ran out: lower --workers and run the "
                      "same command again") from error
    finally:
      pool.shutdown(cancel_futures=True)


def _batches(documents: Iterable[str]) -> Iterator[list[str]]:
  batch, characters = [], 0
  for document in documents:
    batch.append(document)
    characters += len(document)
    if characters >= _BATCH_CHARACTERS:
      yield batch
      batch, characters = [], 0
  if batch:
    yield batch


@dataclasses.dataclass(frozen=True)
class _Part:
  """The documents of a source's split whose hash, as a fraction of all hashes, lies in [low, high)."""

  split: str
  low: float = 0.0
  high: float = 1.0

  def __contains__(self, document: str) -> bool:
    if (self.low, self.high) == (0, 1):
      return True
    # A hash of the text, so copies of one text are on one side, and the sides do not depend on the order.
    digest = hashlib.blake2b(document.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return self.low * 2**64 <= int.from_bytes(digest, "big") < self.high * 2**64


def _plan(source: sources.Source, pairs: list[str], fraction: float) -> dict[str, _Part]:
  """The splits to make and the part of the source that each is."""
  if pairs:
    plan = {}
    for pair in pairs:
      output, _, split = pair.partition("=")
      if not output.replace("_", "").isalnum() or output in plan:
        raise UserError(f"--split={pair}: expected OUTPUT=SOURCE with a new name of letters, digits and _ for OUTPUT")
      sources.check_split(source, split or output)
      plan[output] = _Part(split or output)
    return plan
  plan = {split: _Part(split) for split in source.splits}
  if "train" in plan and "validation" not in plan and fraction:
    plan |= {"train": _Part("train", low=fraction), "validation": _Part("train", high=fraction)}
  return plan


def _exists(path: pathlib.Path, vocabulary: vocabularies.Vocabulary, expected: dict[str, Any]) -> bool:
  """Whether the store is there, made from the same inputs; UserError if made from others."""
  if not path.exists():
    return False
  manifest = token_store.TokenStore.open(path, verify="size").manifest
  found = {**manifest.source, "vocabulary": manifest.vocabulary.fingerprint, "name": manifest.name,
           "append_eos": manifest.append_eos}
  expected = {**expected, "vocabulary": vocabulary.fingerprint}
  for key, value in expected.items():
    if found.get(key) != value:
      raise UserError(f"{path}: exists and was made with {key} {_short(found.get(key))}, but now it is "
                      f"{_short(value)}: remove it or choose another --output")
  return True


def _short(value: Any) -> str:
  text = repr(value)
  return text if len(text) <= 120 else f"{text[:100]}... (sha256 {hashlib.sha256(text.encode()).hexdigest()[:12]})"


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog="python -m tools.prepare_data", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--source", required=True, help="where documents come from, FORM:REST; forms: "
                      f"{', '.join(sources.forms())} (t5x_like/data/sources)")
  parser.add_argument("--vocabulary", required=True, help="a vocabulary directory, a SentencePiece .model, or bytes")
  parser.add_argument("--output", required=True, help="directory to make; each split is a token store inside it")
  parser.add_argument("--split", action="append", default=[], metavar="OUTPUT=SOURCE",
                      help="a split to make from a split of the source, repeatable (default: every split)")
  parser.add_argument("--validation_fraction", type=float, default=0.01,
                      help="of documents held out of train by a hash of their text when the source has no validation "
                      "split and --split is not given; 0 holds out none (default: %(default)s)")
  parser.add_argument("--name", help="the corpus in metric names (default: the source's)")
  parser.add_argument("--append_eos", action="store_true", help="end documents with EOS (T5 joins them without)")
  parser.add_argument("--text_field", default="text", help="key, feature or column of the text (default: text)")
  parser.add_argument("--data_dir", help="where TensorFlow datasets are prepared")
  parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes (default: one a core)")
  parser.add_argument("--shard_tokens", type=int, default=SHARD_TOKENS,
                      help="a shard closes at the first document end at or after so many tokens (default: %(default)s)")
  return parser


@door
def main(argv: list[str] | None = None) -> None:
  args = _parser().parse_args(argv)
  if args.workers < 1:
    raise UserError(f"--workers={args.workers}: expected at least 1")
  if args.shard_tokens < 1:
    raise UserError(f"--shard_tokens={args.shard_tokens}: expected at least 1")
  if not 0 <= args.validation_fraction < 1:
    raise UserError(f"--validation_fraction={args.validation_fraction}: expected a fraction from 0 to below 1")
  vocabulary = vocabularies.load(args.vocabulary)
  source = sources.open_source(args.source, data_dir=args.data_dir, text_field=args.text_field)
  for output, part in _plan(source, args.split, args.validation_fraction).items():
    path = pathlib.Path(args.output) / output
    record = {"documents": source.fingerprint_facts(), "part": dataclasses.asdict(part),
              "shard_tokens": args.shard_tokens}
    name = args.name or source.name
    if _exists(path, vocabulary, {**record, "name": name, "append_eos": args.append_eos}):
      print(f"{path}: exists already, made from the same inputs; nothing to do", flush=True)
      continue
    with (TokenStoreWriter(path, name=name, split=output, vocabulary=vocabulary, append_eos=args.append_eos,
                           source=record, shard_tokens=args.shard_tokens) as writer,
          tqdm(desc=output, unit=" tokens", unit_scale=True, disable=None) as bar):
      documents = filter(part.__contains__, source.documents(part.split))
      for tokens_N, lengths_D in _tokenised(documents, args.vocabulary, args.workers):
        writer.add(tokens_N, lengths_D)
        bar.update(tokens_N.size)
    store = token_store.TokenStore.open(path, verify="full")
    skipped = "".join(f", {count} skipped ({reason})" for reason, count in sorted(source.skipped[part.split].items()))
    print(f"{path}: {store.num_tokens:,} tokens in {store.num_documents:,} documents{skipped}; fingerprint "
          f"{store.fingerprint[:12]}; {store.verification}", flush=True)


if __name__ == "__main__":
  sys.exit(main())

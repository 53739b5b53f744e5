"""Ids, sentinels and files that all kinds of vocabularies have in common."""

import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from t5x_like.errors import UserError, one_line
from t5x_like.files.file_names import quote_name
from t5x_like.files.paths import AnyPath, as_path
from t5x_like.vocabularies import CONFIG, FORMAT, MANIFEST, TOKENIZER_FILES, read_file
from t5x_like.vocabularies.protocol import SPECIAL_NAMES, Vocabulary

T5_EXTRA_IDS = 100
BYT5_EXTRA_IDS = 125
MAX_EXTRA_IDS = 2**18
# The prefix that original files have in a directory written here.
ORIGINAL_PREFIX = "huggingface."
# The files of published tokenizers.
PUBLISHED_FILES = (
  *TOKENIZER_FILES,
  CONFIG,
  "special_tokens_map.json",
  "added_tokens.json",
  "merges.txt",
  "source.spm",
  "target.spm",
  "generation_config.json",
  "chat_template.jinja",
)
SPELLINGS = {
  "mask": ("[MASK]", "<mask>"),
  "cls": ("[CLS]", "<cls>"),
  "sep": ("[SEP]", "<sep>"),
  "bos": ("[BOS]", "<s>", "<bos>", "<|startoftext|>"),
}


def look_up_special_pieces(piece_id: Callable[[str], int | None]) -> dict[str, int | None]:
  """Look up the ids of mask, cls, sep and bos by their usual spellings.

  Args:
    piece_id: `(piece) -> its id`, None for an unknown piece.
  """
  special_pieces = {}
  for name, spellings in SPELLINGS.items():
    ids = (piece_id(spelling) for spelling in spellings)
    special_pieces[name] = next((i for i in ids if i is not None), None)
  return special_pieces


def special_ids(vocabulary: Vocabulary) -> frozenset[int]:
  """Return the ids of a vocabulary that never stand for text."""
  pieces = [getattr(vocabulary, f"{name}_id") for name in ("pad", "eos", *SPECIAL_NAMES)]
  return frozenset([*(i for i in pieces if i is not None), *vocabulary.sentinels])


def split_at_sentinels(ids: Sequence[int], vocabulary: Vocabulary) -> Iterator[list[int] | str]:
  """Yield runs of text ids as lists and sentinels as their spelling.

  Padding, EOS, BOS, CLS and SEP are dropped.
  """
  run = []
  dropped = {
    vocabulary.pad_id,
    vocabulary.eos_id,
    vocabulary.bos_id,
    vocabulary.cls_id,
    vocabulary.sep_id,
  }
  for i in map(int, ids):
    if i < 0:
      raise UserError(
        f"decode: found id {i}, expected ids in 0..{vocabulary.size - 1} (the vocabulary's size "
        f"is {vocabulary.size})"
      )
    number = _sentinel_number(vocabulary, i)
    if number is not None or i == vocabulary.mask_id:
      if run:
        yield run
      run = []
      yield vocabulary.pieces_of([i])[0] if number is None else f"<extra_id_{number}>"
    elif i not in dropped:
      run.append(i)
  if run:
    yield run


def sentinel_piece(vocabulary: Vocabulary, i: int) -> str | None:
  """Return the spelling of a sentinel or of an id beyond the vocabulary; None for other ids."""
  if i >= vocabulary.size:
    return f"<{i}?>"
  number = _sentinel_number(vocabulary, i)
  return None if number is None else f"<extra_id_{number}>"


def _sentinel_number(vocabulary: Vocabulary, i: int) -> int | None:
  """Return the number of the sentinel with this id, or None."""
  return _sentinel_numbers(vocabulary).get(i)


@functools.lru_cache(4)  # few vocabularies are in use at once
def _sentinel_numbers(vocabulary: Vocabulary) -> dict[int, int]:
  """Return the number of each sentinel by its id."""
  return {i: number for number, i in enumerate(vocabulary.sentinels)}


def top_ids(size: int, extra_ids: int) -> tuple[int, ...]:
  """Return sentinels that count down from the highest id."""
  return tuple(range(size - 1, size - 1 - extra_ids, -1))


def check_extra_ids(extra_ids: Any, origin: str) -> int:
  """Return `extra_ids`; raise UserError if it is not a number of sentinels.

  Args:
    extra_ids: the value to check.
    origin: the file or object that has it, for the message.
  """
  is_whole = isinstance(extra_ids, int) and not isinstance(extra_ids, bool)
  if not is_whole or not 0 <= extra_ids <= MAX_EXTRA_IDS:
    raise UserError(
      f"{origin}: found extra_ids {quote_name(extra_ids)}, expected a whole number of sentinels, 0 "
      f"or more and at most {MAX_EXTRA_IDS}"
    )
  return extra_ids


def fingerprint(kind: str, model: bytes, extra_ids: int) -> str:
  """Return the SHA-256, in hexadecimal, of everything that determines a vocabulary's ids."""
  return hashlib.sha256(f"{kind}\n{extra_ids}\n".encode() + model).hexdigest()


def well_formed(text: str) -> str:
  """Replace lone surrogates, which UTF-8 cannot encode, with U+FFFD, and join surrogate pairs."""
  try:
    text.encode()
    return text
  except UnicodeEncodeError:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def save(
  directory, kind: str, vocabulary: Vocabulary, files: dict[str, bytes], **facts: Any
) -> None:
  """Write the files and the manifest, which includes `facts`; raise UserError on failure.

  Each file replaces its predecessor atomically, because runs save their vocabulary at every start
  while others read it.
  """
  directory = as_path(directory)
  pieces = {name: getattr(vocabulary, name) for name in ("mask_id", "cls_id", "sep_id", "bos_id")}
  manifest = {
    "format": FORMAT,
    "kind": kind,
    "files": {name: {"bytes": len(data)} for name, data in files.items()},
    "size": vocabulary.size,
    "extra_ids": vocabulary.extra_ids,
    "pad_id": vocabulary.pad_id,
    "eos_id": vocabulary.eos_id,
    "unk_id": vocabulary.unk_id,
    **{name: i for name, i in pieces.items() if i is not None},
    **facts,
    "fingerprint": vocabulary.fingerprint,
  }
  try:
    for name, data in files.items():
      (directory / name).write_bytes(data)
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
  except OSError as error:
    raise UserError(f"vocabulary {directory}: cannot be written ({one_line(error)})") from error


def tokenizer_config(vocabulary: Vocabulary, fields: dict[str, Any]) -> bytes:
  """Return a `tokenizer_config.json` with the special pieces of a vocabulary and other fields."""
  names = {
    name: getattr(vocabulary, f"{name}_id")
    for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
  }
  pieces = {
    f"{name}_token": vocabulary.pieces_of([i])[0] for name, i in names.items() if i is not None
  }
  return (json.dumps(pieces | fields, indent=2, sort_keys=True) + "\n").encode()


def read_model(path: AnyPath, manifest: dict) -> tuple[bytes, int]:
  """Return (the model file of a directory, checked against its manifest; number of sentinels)."""
  where = str(path.parent / MANIFEST)
  data = read_file(path)
  extra_ids = check_extra_ids(manifest["extra_ids"], where)
  actual = fingerprint(manifest["kind"], data, extra_ids)
  stated = str(manifest["fingerprint"])
  if actual != stated:
    raise UserError(
      f"{path}: found a model of {len(data)} bytes with fingerprint {actual[:12]}, expected "
      f"{stated[:12]} as {MANIFEST} states; the directory is damaged, copy or train it again"
    )
  return data, extra_ids

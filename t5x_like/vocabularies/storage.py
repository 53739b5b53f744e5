"""A vocabulary's directory: `vocabulary.json` and the model file of its kind."""

import json
import pathlib
from typing import Any

from t5x_like.errors import UserError, one_line
from t5x_like.files import checked_json
from t5x_like.files.places import Place, place
from t5x_like.vocabularies.protocol import Vocabulary, checked_extra_ids, fingerprint

MANIFEST = "vocabulary.json"
FORMAT = "t5x_like.vocabulary.v1"
TOKENIZER, CONFIG = "tokenizer.json", "tokenizer_config.json"
SENTENCE_PIECE = ("spiece.model", "tokenizer.model", "sentencepiece.bpe.model")
MAIN = (TOKENIZER, *SENTENCE_PIECE, "vocab.json", "vocab.txt")  # a directory with one of these has a tokenizer
FILES = (  # of published tokenizers
  *MAIN,
  CONFIG,
  "special_tokens_map.json",
  "added_tokens.json",
  "merges.txt",
  "source.spm",
  "target.spm",
  "generation_config.json",
  "chat_template.jinja",
)


def has_tokenizer(directory: Place | pathlib.Path) -> bool:
  """Return whether a Hugging Face directory has a tokenizer."""
  return any((directory / name).exists() for name in MAIN)


def save(directory, kind: str, vocabulary: Vocabulary, files: dict[str, bytes], **more: Any) -> None:
  """Write the files and the manifest, which includes `more`; raise UserError on failure.

  Each file replaces its predecessor atomically, because runs save their vocabulary at every start while others read it.
  """
  directory = place(directory)
  own = {name: getattr(vocabulary, name) for name in ("mask_id", "cls_id", "sep_id", "bos_id")}
  manifest = {
    "format": FORMAT,
    "kind": kind,
    "files": {name: {"bytes": len(data)} for name, data in files.items()},
    "size": vocabulary.size,
    "extra_ids": vocabulary.extra_ids,
    "pad_id": vocabulary.pad_id,
    "eos_id": vocabulary.eos_id,
    "unk_id": vocabulary.unk_id,
    **{name: i for name, i in own.items() if i is not None},
    **more,
    "fingerprint": vocabulary.fingerprint,
  }
  try:
    for name, data in files.items():
      (directory / name).write_bytes(data)
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
  except OSError as error:
    raise UserError(f"vocabulary {directory}: cannot be written ({one_line(error)})") from error


def config(vocabulary: Vocabulary, more: dict[str, Any]) -> bytes:
  """Return a `tokenizer_config.json` with the special pieces of a vocabulary."""
  names = {name: getattr(vocabulary, f"{name}_id") for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")}
  pieces = {f"{name}_token": vocabulary.pieces_of([i])[0] for name, i in names.items() if i is not None}
  return (json.dumps(pieces | more, indent=2, sort_keys=True) + "\n").encode()


def manifest(path: Place) -> dict:
  """Read the manifest at a path; raise UserError if it is damaged or lacks a key."""
  found = checked_json.parsed(read(path), dict, str(path), "the manifest of a vocabulary; copy its directory again")
  if found.get("format") != FORMAT:
    raise UserError(f"{path}: found format {str(found.get('format'))[:80]!r}, expected {FORMAT!r}")
  missing = [key for key in ("kind", "size", "extra_ids", "fingerprint") if key not in found]
  if missing:
    raise UserError(f"{path}: found no key {missing[0]!r}, expected the file save wrote")
  return found


def model(path: Place, manifest: dict) -> tuple[bytes, int]:
  """Read the model file of a directory, checked against its manifest; return it and the number of sentinels."""
  where, data = str(path.parent / MANIFEST), read(path)
  extra_ids = checked_extra_ids(manifest["extra_ids"], where)
  found, stated = fingerprint(manifest["kind"], data, extra_ids), str(manifest["fingerprint"])
  if found != stated:
    raise UserError(
      f"{path}: found a model of {len(data)} bytes with fingerprint {found[:12]}, expected {stated[:12]} as {MANIFEST}"
      " states; the directory is damaged, copy or train it again"
    )
  return data, extra_ids


def read(path: Place) -> bytes:
  """Read a file; raise UserError if it cannot be read."""
  try:
    data = path.read()
    return path.read_bytes() if data is None else data
  except OSError as error:
    raise UserError(f"{path}: cannot be read ({one_line(error)})") from error

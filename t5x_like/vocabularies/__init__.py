"""Vocabularies: text to ids and back, by one protocol, with T5's special ids and sentinels.

In vocabularies made here pad is 0, eos 1, unk 2, and the top `extra_ids` ids are sentinels:
sentinel i is id `size - 1 - i`, spelled `<extra_id_i>`. Published vocabularies keep their own ids
and may lack some. The kinds, each a file of `kinds/`, imported when a vocabulary of the kind is
opened:

- `sentencepiece`: a SentencePiece model (Kudo and Richardson 2018); the sentinels are added on top
  of its pieces, so T5's model of 32,000 pieces has size 32,100 and sentinel 0 is id 32,099 (Raffel
  et al. 2020). A model that has sentinels among its pieces, such as T5X's `cc_all.32000.100extra`,
  keeps their ids instead. `decode` does not restore text that the model's normaliser folds: NFKC
  forms, runs of spaces, line ends and, without byte fallback, characters that are in no piece. Text
  after a sentinel starts a new word.
- `tokenizer`: a `tokenizer.json` made here with the tokenizers library: WordPiece or byte-level
  BPE.
- `published`: the tokenizer of a Hugging Face directory, with the ids of `transformers`, or of a
  GGUF file.
- `marian`: the tokenizer of a Marian directory, which has a model for source and one for target
  texts.
- `bytes`: UTF-8 bytes (ByT5, Xue et al. 2022), id = byte + 3; `decode(encode(text)) == text` for
  any Unicode text. 125 sentinels by default, so 384 ids as in the released models' embedding
  tables. Released models use the ids of the last bytes, 258, 257, ..., as sentinels instead, and so
  does the vocabulary that is opened from the directory of such a model.
- `labels`: the classes of a task on images.

Nothing here imports TensorFlow: prediction works on a machine without it.
"""

import pathlib
from types import ModuleType

from t5x_like import slots, trust
from t5x_like.errors import UserError, one_line, unreadable_file_error
from t5x_like.files import checked_json
from t5x_like.files.gguf_file import is_gguf
from t5x_like.files.local import LocalPath, check_link
from t5x_like.files.paths import AnyPath, as_path
from t5x_like.vocabularies.protocol import (
  Vocabulary,
  describe_invalid_id,
  encode_sentinels,
  encode_sentinels_batch,
  opening_ids,
  padding_id,
  special_id,
  start_id,
)

__all__ = [
  "Vocabulary",
  "encode_sentinels",
  "encode_sentinels_batch",
  "load",
  "opening_ids",
  "describe_invalid_id",
  "padding_id",
  "special_id",
  "start_id",
]

_KINDS = "t5x_like.vocabularies.kinds"
MANIFEST = "vocabulary.json"
FORMAT = "t5x_like.vocabulary.v1"
TOKENIZER = "tokenizer.json"
CONFIG = "tokenizer_config.json"
SENTENCE_PIECE = ("spiece.model", "tokenizer.model", "sentencepiece.bpe.model")
# The main files of tokenizers: a directory with one of them has a tokenizer.
TOKENIZER_FILES = (TOKENIZER, *SENTENCE_PIECE, "spm.model", "vocab.json", "vocab.txt")


def load(path_or_name: str, sentinels: str | None = None) -> Vocabulary:
  """Open a vocabulary.

  Args:
    path_or_name: a directory written by `save`, a Hugging Face directory or its `tokenizer.json`, a
      GGUF file, a SentencePiece `*.model` file (100 sentinels, as in T5, unless the model has its
      own), or `bytes`.
    sentinels: for a Hugging Face directory, the pattern of the pieces to use as sentinels, such as
      `<unused{}>`.

  Raises:
    UserError: the file is missing or damaged, or the contents disagree with the manifest.
  """
  if str(path_or_name) == "bytes":
    return _kind("bytes").ByteVocabulary()
  trust.check_location("vocabulary", path_or_name)
  try:
    path = as_path(path_or_name)
    is_directory = (path / MANIFEST).is_file() or path.is_dir()
    exists = is_directory or path.exists()
  except Exception as error:  # each scheme's library raises its own types
    raise UserError(
      f"vocabulary {path_or_name}: cannot be reached ({type(error).__name__}: {one_line(error)}), "
      "expected a local path or a gs:// or s3:// address that this machine may read"
    ) from error
  if not exists:
    raise UserError(
      f"vocabulary {path}: found nothing there, expected a directory with {MANIFEST}, a Hugging "
      "Face directory, a SentencePiece .model file or the name 'bytes' (python -m "
      "tools.train_vocabulary makes a vocabulary)"
    )
  if path.name == TOKENIZER:
    path = path.parent
    is_directory = True
  if is_gguf(path) and not is_directory:
    return _kind("published").read(path, sentinels)
  return _load_directory(path, sentinels) if is_directory else _kind("sentencepiece").read(path)


def _load_directory(directory: AnyPath, sentinels: str | None) -> Vocabulary:
  """Load a directory that `save` wrote, or a Hugging Face directory."""
  path = directory / MANIFEST
  if not path.exists():
    if has_tokenizer(directory):
      return _kind("published").read(directory, sentinels)
    raise UserError(
      f"vocabulary {directory}: found no {MANIFEST} there and no {', '.join(TOKENIZER_FILES)}, "
      "expected a directory written by python -m tools.train_vocabulary, or a Hugging Face "
      "directory"
    )
  manifest = _read_manifest(path)
  kind = _kind(manifest["kind"])
  if kind is None:
    kinds = ", ".join(slots.names(_KINDS))
    raise UserError(
      f"{path}: found kind {slots.format_value(manifest['kind'])}, expected one of {kinds}"
    )
  vocabulary = kind.load(directory, manifest)
  for key in ("size", "fingerprint"):
    actual = getattr(vocabulary, key)
    if actual != manifest[key]:
      raise UserError(
        f"{path}: found {key} {manifest[key]!r}, expected {actual!r}; the file is damaged"
      )
  return vocabulary


def _kind(name: str) -> ModuleType | None:
  """Return the module of a kind of vocabularies, or None if there is no such kind."""
  return slots.module(name, _KINDS) if name in slots.names(_KINDS) else None


def has_tokenizer(directory: AnyPath | pathlib.Path) -> bool:
  """Return whether a Hugging Face directory has a tokenizer.

  It has the tokenizer's main file or, for bytes, the name of its class. A GGUF file always has one.
  """
  if is_gguf(directory):
    return True
  if any((directory / name).exists() for name in TOKENIZER_FILES):
    return True
  configs = (directory / name for name in (CONFIG, "config.json"))
  return any(path.exists() and b'"ByT5Tokenizer"' in path.read_bytes() for path in configs)


def _read_manifest(path: AnyPath) -> dict:
  """Read the manifest at a path; raise UserError if it is damaged or lacks a key."""
  manifest = checked_json.parse_json(
    read_file(path), dict, str(path), "the manifest of a vocabulary; copy its directory again"
  )
  if manifest.get("format") != FORMAT:
    raise UserError(
      f"{path}: found format {str(manifest.get('format'))[:80]!r}, expected {FORMAT!r}"
    )
  missing = [key for key in ("kind", "size", "extra_ids", "fingerprint") if key not in manifest]
  if missing:
    raise UserError(f"{path}: found no key {missing[0]!r}, expected the file save wrote")
  return manifest


def read_file(path: AnyPath) -> bytes:
  """Read a file; raise UserError if it cannot be read, or is a link out of its directory."""
  try:
    if isinstance(path, LocalPath):
      check_link(path)
    data = path.read()
    return path.read_bytes() if data is None else data
  except OSError as error:
    raise unreadable_file_error(str(path), error) from error

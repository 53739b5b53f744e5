"""Vocabularies: text to ids and back, behind one protocol, with T5's special ids and sentinels.

In vocabularies made here pad is 0, eos 1, unk 2, and the top `extra_ids` ids are sentinels: sentinel i is id
`size - 1 - i`, spelled `<extra_id_i>`. Published vocabularies keep their own ids and may lack some. The kinds:

- `SentencePieceVocabulary`: a SentencePiece model (Kudo and Richardson 2018); the sentinels are added on top of its
  pieces, so T5's model of 32,000 pieces has size 32,100 and sentinel 0 is id 32,099 (Raffel et al. 2020). `decode` does
  not restore text that the model's normaliser folds: NFKC forms, runs of spaces, line ends and, without byte fallback,
  characters that are in no piece. Text after a sentinel starts a new word.
- `TokenizerVocabulary`: a `tokenizer.json` made here with the tokenizers library: WordPiece or byte-level BPE.
- `PublishedVocabulary`: the tokenizer of a Hugging Face directory, with the ids of `transformers`.
- `ByteVocabulary`: UTF-8 bytes (ByT5, Xue et al. 2022), id = byte + 3; `decode(encode(text)) == text` for any Unicode
  text. 125 sentinels by default, so 384 ids as in the released models' embedding tables. (Those models were pretrained
  with the last bytes, ids 258, 257, ..., as sentinels; here the sentinels' ids are separate from the bytes.)
- `LabelVocabulary`: the classes of a task on images.

Nothing here imports TensorFlow: prediction works on a machine without it.
"""

from t5x_like.errors import UserError, one_line
from t5x_like.files.objects import Place, place
from t5x_like.vocabularies import (
  hugging_face,
  labels,
  protocol,
  published,
  sentence_piece,
  storage,
  tokenizer_json,
  utf8_bytes,
)
from t5x_like.vocabularies.labels import LabelVocabulary
from t5x_like.vocabularies.protocol import (
  BYT5_EXTRA_IDS,
  EOS_ID,
  PAD_ID,
  T5_EXTRA_IDS,
  UNK_ID,
  Vocabulary,
  encode_sentinels,
  encode_sentinels_batch,
  opening,
  outside,
  padding,
  special,
  start_id,
)
from t5x_like.vocabularies.published import PublishedVocabulary
from t5x_like.vocabularies.sentence_piece import MODEL_FILE, SentencePieceVocabulary
from t5x_like.vocabularies.storage import FORMAT, MANIFEST
from t5x_like.vocabularies.tokenizer_json import MASK_TOKENS, TokenizerVocabulary
from t5x_like.vocabularies.utf8_bytes import ByteVocabulary

__all__ = [
  "BYT5_EXTRA_IDS",
  "EOS_ID",
  "FORMAT",
  "MANIFEST",
  "MASK_TOKENS",
  "MODEL_FILE",
  "PAD_ID",
  "PublishedVocabulary",
  "T5_EXTRA_IDS",
  "UNK_ID",
  "ByteVocabulary",
  "LabelVocabulary",
  "SentencePieceVocabulary",
  "TokenizerVocabulary",
  "Vocabulary",
  "encode_sentinels",
  "encode_sentinels_batch",
  "load",
  "opening",
  "outside",
  "padding",
  "special",
  "start_id",
]


def load(path_or_name: str, sentinels: str | None = None) -> Vocabulary:
  """Open a vocabulary.

  Args:
    path_or_name: a directory written by `save`, a Hugging Face directory or its `tokenizer.json`, a SentencePiece
      `*.model` file (100 sentinels, as in T5), or `bytes`.
    sentinels: for a Hugging Face directory, the pattern of the pieces to use as sentinels, such as `<unused{}>`.

  Raises:
    UserError: the file is missing or damaged, or the contents disagree with the manifest.
  """
  if str(path_or_name) == "bytes":
    return ByteVocabulary()
  try:
    path = place(path_or_name)
    is_directory = path.is_dir()
    found = is_directory or path.exists()
  except Exception as error:  # each scheme's library raises its own types
    raise UserError(
      f"vocabulary {path_or_name}: cannot be reached ({type(error).__name__}: {one_line(error)}), "
      "expected a local path or a gs:// or s3:// address that this machine may read"
    ) from error
  if not found:
    raise UserError(
      f"vocabulary {path}: found nothing there, expected a directory with {MANIFEST}, a Hugging Face directory, a "
      "SentencePiece .model file or the name 'bytes' (python -m tools.train_vocabulary makes a vocabulary)"
    )
  if path.name == tokenizer_json.MODEL_FILE:
    path, is_directory = path.parent, True
  if is_directory:
    return _load_directory(path, sentinels)
  return SentencePieceVocabulary(storage.read(path), T5_EXTRA_IDS, origin=f"vocabulary {path}")


def _load_directory(directory: Place, sentinels: str | None) -> Vocabulary:
  path = directory / MANIFEST
  if not path.exists():
    if hugging_face.has_tokenizer(directory):
      return hugging_face.load(directory, sentinels)
    raise UserError(
      f"vocabulary {directory}: found no {MANIFEST} there and no {', '.join(hugging_face.MAIN)}, expected a directory "
      "written by python -m tools.train_vocabulary, or a Hugging Face directory"
    )
  manifest = storage.manifest(path)
  kind, extra_ids = manifest["kind"], protocol.checked_extra_ids(manifest["extra_ids"], str(path))
  if kind == sentence_piece.KIND:
    model = _model(directory / MODEL_FILE, kind, extra_ids, manifest)
    vocabulary = SentencePieceVocabulary(model, extra_ids, origin=str(directory / MODEL_FILE))
  elif kind == tokenizer_json.KIND:
    path_of_model = directory / tokenizer_json.MODEL_FILE
    vocabulary = TokenizerVocabulary(_model(path_of_model, kind, extra_ids, manifest), origin=str(path_of_model))
  elif kind == utf8_bytes.KIND:
    vocabulary = ByteVocabulary(extra_ids)
  elif kind == published.KIND:
    vocabulary = published.load(directory, manifest)
  elif kind == labels.KIND:
    vocabulary = labels.load(storage.read(directory / labels.FILE), str(directory / labels.FILE))
  else:
    known = "'sentencepiece', 'tokenizer', 'published', 'bytes' or 'labels'"
    raise UserError(f"{path}: found kind {kind!r}, expected {known}")
  for key in ("size", "fingerprint"):
    if getattr(vocabulary, key) != manifest[key]:
      found, expected = manifest[key], getattr(vocabulary, key)
      raise UserError(f"{path}: found {key} {found!r}, expected {expected!r}; the file is damaged")
  return vocabulary


def _model(path: Place, kind: str, extra_ids: int, manifest: dict) -> bytes:
  """Read the model file of a directory and check it against the manifest's fingerprint."""
  model = storage.read(path)
  expected = protocol.fingerprint(kind, model, extra_ids)
  if expected != manifest["fingerprint"]:
    raise UserError(
      f"{path}: found a model of {len(model)} bytes with fingerprint {expected[:12]}, expected "
      f"{str(manifest['fingerprint'])[:12]} as {MANIFEST} states; the directory is damaged, copy or train it again"
    )
  return model

"""SentencePiece models (Kudo and Richardson 2018), with T5's sentinels or their own."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import sentencepiece

import t5x_like.vocabularies.kinds._shared as shared
from t5x_like import vocabularies
from t5x_like.errors import UserError, one_line
from t5x_like.files.paths import AnyPath
from t5x_like.vocabularies.kinds import _growth as growth
from t5x_like.vocabularies.kinds import _sentencepiece_json as sentencepiece_json
from t5x_like.vocabularies.kinds._pipelines import CONTROL, model_proto, read_charsmaps
from t5x_like.vocabularies.kinds._shared import T5_EXTRA_IDS
from t5x_like.vocabularies.protocol import EOS_ID, PAD_ID, UNK_ID, Vocabulary

KIND = "sentencepiece"
MODEL_FILE = "sentencepiece.model"

_WORD_START = "\u2581"


class SentencePieceVocabulary(Vocabulary):
  """A SentencePiece model with sentinels on top; `size` = pieces + extra_ids.

  A model may have sentinels of its own, `<extra_id_0>`, `<extra_id_1>`, ..., with or without the
  word mark, as T5X's `cc_all.32000.100extra` and `mc4.250000.100extra` have them. They keep their
  ids and none are added. Text spelled like a sentinel is text. (In T5X, where they are user-defined
  pieces, it becomes the sentinel after a space.)

  `mask_id`, `cls_id` and `sep_id` are the control pieces `[MASK]`, `[CLS]` and `[SEP]` (or
  `<mask>`, ...); `bos_id` is the model's bos.

  Args:
    model: the serialised model (the bytes of a `.model` file).
    extra_ids: the number of sentinels to add to a model that has none.
    origin: the name of the model in messages.

  Attributes:
    model: the serialised model without its last pieces that are sentinels.
    pieces: the number of pieces of `model`.

  Raises:
    UserError: the bytes are not a SentencePiece model, or its pad, eos and unk ids are not 0, 1 and
      2.
  """

  def __init__(
    self, model: bytes, extra_ids: int = T5_EXTRA_IDS, origin: str = "SentencePiece model"
  ):
    self.model, self.sentinels = _separate_sentinels(model, origin)
    self._processor = _open_checked_processor(self.model, origin)
    self.pieces = self._processor.vocab_size()
    if not self.sentinels:
      size = self.pieces + shared.check_extra_ids(extra_ids, origin)
      self.sentinels = shared.top_ids(size, extra_ids)
    self.extra_ids = len(self.sentinels)
    self.size = self.pieces + sum(i >= self.pieces for i in self.sentinels)
    special_pieces = shared.look_up_special_pieces(self._control_id)
    self.mask_id = special_pieces["mask"]
    self.cls_id = special_pieces["cls"]
    self.sep_id = special_pieces["sep"]
    self.bos_id = self._processor.bos_id()
    if self.bos_id < 0:
      self.bos_id = special_pieces["bos"]
    self.special_ids = shared.special_ids(self)
    self.fingerprint = shared.fingerprint(KIND, self.model, self.extra_ids)

  def encode(self, text: str) -> list[int]:
    return self._processor.encode(shared.well_formed(text))

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    # One thread, because tools that tokenise much text run one process per core.
    batch = self._processor.encode([shared.well_formed(text) for text in texts], num_threads=1)
    return [np.asarray(ids, np.int32) for ids in batch]

  def decode(self, ids: Sequence[int]) -> str:
    text = ""
    for part in shared.split_at_sentinels(ids, self):
      if isinstance(part, str):
        text += f" {part}" if text else part
        continue
      part = [i if i < self.pieces else UNK_ID for i in part]
      decoded = self._processor.decode(part)
      starts_word = self._processor.id_to_piece(part[0]).startswith(_WORD_START)
      if text and starts_word and not decoded.startswith(" "):
        text += " "
      text += decoded
    return text

  def pieces_of(self, ids: Sequence[int]) -> list[str]:
    return [shared.sentinel_piece(self, i) or self._processor.id_to_piece(i) for i in map(int, ids)]

  def _text_bytes(self, i: int) -> bytes:
    if i >= self.pieces or self._processor.is_control(i):
      return b""
    if i == UNK_ID:
      return "\ufffd".encode()
    piece = self._processor.id_to_piece(i)
    if self._processor.is_byte(i):
      return bytes([int(piece[3:5], 16)])
    return piece.replace(_WORD_START, " ").encode()

  def save(self, directory) -> None:
    shared.save(directory, KIND, self, {MODEL_FILE: self.model})

  def export_files(self) -> dict[str, bytes]:
    """Return a `tokenizer.json` with the ids of training.

    For a model of T5's form with user-defined pieces, return the files of `T5Tokenizer`.

    Raises:
      UserError: the tokenizers library has no such model.
    """
    proto = model_proto(self.model, KIND)
    if sentencepiece_json.needs_t5_tokenizer(proto):
      fields = {"tokenizer_class": "T5Tokenizer", "extra_ids": self.size - self.pieces}
      config = shared.tokenizer_config(self, fields)
      return {vocabularies.SENTENCE_PIECE[0]: self.model, vocabularies.CONFIG: config}
    special = sorted({*self.special_ids, UNK_ID})
    spellings = dict(zip(special, self.pieces_of(special)))
    tokenizer = sentencepiece_json.build_tokenizer_json(proto, spellings, "vocabulary")
    tokenizer_text = json.dumps(tokenizer, ensure_ascii=False, indent=1) + "\n"
    config = shared.tokenizer_config(self, {"tokenizer_class": "PreTrainedTokenizerFast"})
    return {vocabularies.TOKENIZER: tokenizer_text.encode(), vocabularies.CONFIG: config}

  def _control_id(self, spelling: str) -> int | None:
    """Return the id of a control piece, which encoding never produces; None for other pieces."""
    i = self._processor.piece_to_id(spelling)
    return i if i != UNK_ID and self._processor.is_control(i) else None


def load(directory: AnyPath, manifest: dict[str, Any]) -> SentencePieceVocabulary:
  """Open a directory written by `save`."""
  model, extra_ids = shared.read_model(directory / MODEL_FILE, manifest)
  return SentencePieceVocabulary(model, extra_ids, origin=str(directory / MODEL_FILE))


def read(path: AnyPath) -> SentencePieceVocabulary:
  """Read a model file made elsewhere; T5's sentinels are added to a model that has none."""
  return SentencePieceVocabulary(
    vocabularies.read_file(path), T5_EXTRA_IDS, origin=f"vocabulary {path}"
  )


def open_processor(model: bytes, origin: str) -> sentencepiece.SentencePieceProcessor:
  """Open a SentencePiece model.

  Raises:
    UserError: the bytes are not a model, or its normalisation makes texts too long.
  """
  processor = sentencepiece.SentencePieceProcessor()
  try:
    processor.LoadFromSerializedProto(model)
    tables = read_charsmaps(model)
  except Exception as error:  # RuntimeError, or protobuf's own
    raise UserError(
      f"{origin}: found {len(model)} bytes that are not a SentencePiece model, expected a "
      f"complete .model file ({one_line(error)})"
    ) from None
  for charsmap in tables:
    growth.check_charsmap(charsmap, origin)
  return processor


def _open_checked_processor(model: bytes, origin: str) -> sentencepiece.SentencePieceProcessor:
  """Open a model without sentinels; raise UserError unless pad, eos and unk are 0, 1 and 2."""
  processor = open_processor(model, origin)
  actual = {"pad": processor.pad_id(), "eos": processor.eos_id(), "unk": processor.unk_id()}
  expected = {"pad": PAD_ID, "eos": EOS_ID, "unk": UNK_ID}
  for name, expected_id in expected.items():
    if actual[name] != expected_id:
      raise UserError(
        f"{origin}: found {name} id {actual[name]}, expected {expected_id}; train the model with "
        "pad_id=0, eos_id=1, unk_id=2, bos_id=-1 (python -m tools.train_vocabulary does)"
      )
  return processor


def _separate_sentinels(model: bytes, origin: str) -> tuple[bytes, tuple[int, ...]]:
  """Return a model that encodes no text as a sentinel, and the ids of its sentinels.

  Sentinels that are the last pieces, the first one last, as T5 orders them, are taken from the
  model, so that the vocabulary is the same as the one of the model without them. Others become
  control pieces.
  """
  proto = model_proto(model, origin)
  ids = {piece.piece.removeprefix(_WORD_START): i for i, piece in enumerate(proto.pieces)}
  sentinels = []
  while f"<extra_id_{len(sentinels)}>" in ids:
    sentinels.append(ids[f"<extra_id_{len(sentinels)}>"])
  if not sentinels:
    return model, ()
  if tuple(sentinels) == shared.top_ids(len(proto.pieces), len(sentinels)):
    del proto.pieces[-len(sentinels) :]
  else:
    for i in sentinels:
      proto.pieces[i].type = CONTROL
  return proto.SerializeToString(deterministic=True), tuple(sentinels)

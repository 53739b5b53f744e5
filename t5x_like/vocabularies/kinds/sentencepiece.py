"""SentencePiece models (Kudo and Richardson 2018) with T5's sentinels on top."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import sentencepiece

import t5x_like.vocabularies.kinds._shared as shared
from t5x_like import vocabularies
from t5x_like.errors import UserError, one_line
from t5x_like.files.places import Place
from t5x_like.vocabularies.kinds import _growth as growth
from t5x_like.vocabularies.kinds._pipelines import charsmaps, is_unigram
from t5x_like.vocabularies.kinds._shared import T5_EXTRA_IDS
from t5x_like.vocabularies.protocol import EOS_ID, PAD_ID, UNK_ID, Vocabulary

KIND = "sentencepiece"
MODEL_FILE = "sentencepiece.model"

_WORD_START = "\u2581"


class SentencePieceVocabulary(Vocabulary):
  """A SentencePiece model with sentinels on top; `size` = pieces + extra_ids.

  A piece that begins with the word mark U+2581 starts a word. `mask_id`, `cls_id` and `sep_id` are the control pieces
  `[MASK]`, `[CLS]` and `[SEP]` (or `<mask>`, ...); `bos_id` is the model's bos.

  Args:
    model: the serialised model (the bytes of a `.model` file).
    extra_ids: the number of sentinels.
    origin: the name of the model in messages.

  Raises:
    UserError: the bytes are not a SentencePiece model, its pad, eos and unk ids are not 0, 1 and 2, or it already
      has sentinels among its pieces.
  """

  def __init__(self, model: bytes, extra_ids: int = T5_EXTRA_IDS, origin: str = "SentencePiece model"):
    self._processor = _processor(model, origin)
    self.model = model
    self.extra_ids = shared.checked_extra_ids(extra_ids, origin)
    self.pieces = self._processor.vocab_size()
    self.size = self.pieces + self.extra_ids
    self.sentinels = shared.top(self.size, self.extra_ids)
    found = shared.find_specials(self._special)
    self.mask_id, self.cls_id, self.sep_id = found["mask"], found["cls"], found["sep"]
    self.bos_id = self._processor.bos_id() if self._processor.bos_id() >= 0 else found["bos"]
    self.special_ids = shared.special_ids(self)
    spelled = (self._processor.id_to_piece(i) for i in range(self.pieces))
    self.starts_word = shared.words(self, (piece.startswith(_WORD_START) for piece in spelled))
    self.fingerprint = shared.fingerprint(KIND, model, self.extra_ids)

  def encode(self, text: str) -> list[int]:
    return self._processor.encode(shared.well_formed(text))

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    # One thread, because tools that tokenise much text run one process per core.
    batch = self._processor.encode([shared.well_formed(text) for text in texts], num_threads=1)
    return [np.asarray(ids, np.int32) for ids in batch]

  def decode(self, ids: Sequence[int]) -> str:
    text = ""
    for part in shared.parts(ids, self):
      if isinstance(part, str):
        text += f" {part}" if text else part
        continue
      part = [i if i < self.pieces else UNK_ID for i in part]
      decoded = self._processor.decode(part)
      starts_word = self._processor.id_to_piece(part[0]).startswith(_WORD_START)
      text += f" {decoded}" if text and starts_word and not decoded.startswith(" ") else decoded
    return text

  def pieces_of(self, ids: Sequence[int]) -> list[str]:
    return [shared.sentinel_piece(self, i) or self._processor.id_to_piece(i) for i in map(int, ids)]

  def save(self, directory) -> None:
    shared.save(directory, KIND, self, {MODEL_FILE: self.model})

  def exported(self) -> dict[str, bytes]:
    files = {vocabularies.SENTENCE_PIECE[0]: self.model}
    if is_unigram(self.model):  # `T5Tokenizer` assumes this of every model
      config = {"tokenizer_class": "T5Tokenizer", "extra_ids": self.extra_ids}
      files[vocabularies.CONFIG] = shared.config(self, config)
    return files

  def _special(self, spelling: str) -> int | None:
    """Return the id of a control piece, which encoding never produces; None for other pieces."""
    i = self._processor.piece_to_id(spelling)
    return i if i != UNK_ID and self._processor.is_control(i) else None


def load(directory: Place, manifest: dict[str, Any]) -> SentencePieceVocabulary:
  model, extra_ids = shared.model(directory / MODEL_FILE, manifest)
  return SentencePieceVocabulary(model, extra_ids, origin=str(directory / MODEL_FILE))


def read(path: Place) -> SentencePieceVocabulary:
  """Read a model file made elsewhere; T5's sentinels are added."""
  return SentencePieceVocabulary(vocabularies.read(path), T5_EXTRA_IDS, origin=f"vocabulary {path}")


def _processor(model: bytes, origin: str) -> sentencepiece.SentencePieceProcessor:
  processor = sentencepiece.SentencePieceProcessor()
  try:
    processor.LoadFromSerializedProto(model)
    tables = charsmaps(model)
  except Exception as error:  # RuntimeError, or protobuf's own
    raise UserError(
      f"{origin}: found {len(model)} bytes that are not a SentencePiece model, expected a complete .model file "
      f"({one_line(error)})"
    ) from None
  for charsmap in tables:
    growth.check_charsmap(charsmap, origin)
  found = {"pad": processor.pad_id(), "eos": processor.eos_id(), "unk": processor.unk_id()}
  expected = {"pad": PAD_ID, "eos": EOS_ID, "unk": UNK_ID}
  for name, expected_id in expected.items():
    if found[name] != expected_id:
      raise UserError(
        f"{origin}: found {name} id {found[name]}, expected {expected_id}; train the model with pad_id=0, eos_id=1, "
        "unk_id=2, bos_id=-1 (python -m tools.train_vocabulary does)"
      )
  for spelling in ("<extra_id_0>", f"{_WORD_START}<extra_id_0>"):
    piece_id = processor.piece_to_id(spelling)
    if piece_id != UNK_ID:
      raise UserError(
        f"{origin}: found the sentinel {spelling!r} among its pieces (id {piece_id}), expected a model without "
        "sentinels, since they are added here"
      )
  return processor

"""A SentencePiece model as a `tokenizer.json`, with the ids that the sentencepiece library gives.

`transformers` has classes for some models (`T5Tokenizer` for T5's), which fix the normaliser, know
no byte fallback and take every model for a unigram model. A `tokenizer.json` says all of this
itself.
"""

import base64
from typing import Any

from t5x_like.errors import UserError
from t5x_like.vocabularies.kinds._pipelines import (
  BYTE,
  NORMAL,
  UNKNOWN,
  USER_DEFINED,
  WORD,
  derive_merges,
  is_unigram,
)

# types of models
UNIGRAM = 1
BPE = 2
_BYTE_SPELLING = 6  # characters of a byte's piece, `<0x41>`
_BYTE_CHARACTERS = "<0123456789ABCDEFx>"
_NFKC = ("nmt_nfkc", "nfkc")  # names of normalisers


def needs_t5_tokenizer(proto) -> bool:
  """Return whether a model has user-defined pieces and is otherwise as `T5Tokenizer` expects."""
  if not is_unigram(proto) or has_byte_pieces(proto) or not _has_user_defined(proto):
    return False
  if proto.trainer_spec.treat_whitespace_as_suffix:
    return False
  spec = proto.normalizer_spec
  return spec.add_dummy_prefix and spec.remove_extra_whitespaces and spec.escape_whitespaces


def _has_user_defined(proto) -> bool:
  return any(piece.type == USER_DEFINED for piece in proto.pieces)


def has_byte_pieces(proto) -> bool:
  """Return whether a model spells a character that is in no piece as bytes."""
  return any(piece.type == BYTE for piece in proto.pieces)


def build_tokenizer_json(proto, special: dict[int, str], where: str) -> dict[str, Any]:
  """Return the content of a `tokenizer.json`.

  Args:
    special: the spellings of special ids, among them those beyond the pieces.
    where: the name of the vocabulary in messages.

  Raises:
    UserError: the tokenizers library has no such model.
  """
  kind = proto.trainer_spec.model_type or UNIGRAM
  reasons = {
    "words or characters as pieces": kind not in (UNIGRAM, BPE),
    "spaces at the end of words": proto.trainer_spec.treat_whitespace_as_suffix,
    "user-defined pieces": _has_user_defined(proto),
  }
  for reason, applies in reasons.items():
    if applies:
      raise UserError(
        f"{where}: found a SentencePiece model with {reason}, which has no equal tokenizer.json, "
        "expected a unigram or BPE model without; train on a store with another vocabulary to "
        "export a model with its tokenizer"
      )
  model = _unigram(proto) if kind == UNIGRAM else _bpe(proto)
  vocab = model["vocab"]
  flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
  added_tokens = []
  for i, spelling in sorted(special.items()):
    added_tokens.append({"id": i, "content": spelling, **flags})
    if i >= len(proto.pieces):
      if kind == UNIGRAM:
        # the score of padding, with which text never yields it
        vocab.append([spelling, model["vocab"][0][1]])
      else:
        vocab[spelling] = i
  decoders = [_replace(WORD, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
  if proto.normalizer_spec.add_dummy_prefix:
    decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
  return {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": added_tokens,
    "normalizer": {"type": "Sequence", "normalizers": _normalizers(proto.normalizer_spec)},
    "pre_tokenizer": _words(proto) if kind == UNIGRAM else None,
    "post_processor": None,
    "decoder": {"type": "Sequence", "decoders": decoders},
    "model": model,
  }


def _normalizers(spec) -> list[dict[str, Any]]:
  steps = []
  if spec.precompiled_charsmap:
    charsmap = base64.b64encode(spec.precompiled_charsmap).decode()
    if spec.name in _NFKC:
      # The tokenizers library applies a charsmap to single characters and to short clusters, of
      # which it drops a part. After NFKC none of these is left in ordinary text, decomposed Korean
      # included.
      steps.append({"type": "NFKC"})
    steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
  if spec.remove_extra_whitespaces:
    steps.append({"type": "Replace", "pattern": {"Regex": "^ +| +$"}, "content": ""})
    steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
  if spec.add_dummy_prefix:
    steps.append({"type": "Prepend", "prepend": " "})
  if spec.escape_whitespaces:
    steps.append(_replace(" ", WORD))
  return steps


def _replace(old: str, new: str) -> dict[str, Any]:
  return {"type": "Replace", "pattern": {"String": old}, "content": new}


def _words(proto) -> dict[str, Any] | None:
  """Return a split that keeps text spelled `<0x41>` from becoming a byte of a unigram model.

  If all characters of the text are pieces, they have a better score; where one is in no piece, a
  split at it changes nothing.
  """
  characters = set()
  for piece in proto.pieces:
    if piece.type == NORMAL:
      characters.update(piece.piece)
  missing = "".join(character for character in _BYTE_CHARACTERS if character not in characters)
  if not has_byte_pieces(proto) or not missing:
    return None
  return {
    "type": "Split",
    "pattern": {"Regex": f"[{missing}]"},
    "behavior": "Isolated",
    "invert": False,
  }


def _unigram(proto) -> dict[str, Any]:
  """Return a unigram model in which text never yields the pieces of bytes and control pieces.

  In the file they have the score 0.
  """
  lowest = min((piece.score for piece in proto.pieces if piece.type == NORMAL), default=0.0)
  unreachable = _BYTE_SPELLING * lowest - 100.0  # less than any spelling by other pieces
  vocab = []
  for piece in proto.pieces:
    score = piece.score if piece.type == NORMAL else unreachable
    vocab.append([piece.piece, score])
  return {"type": "Unigram", "unk_id": 2, "vocab": vocab, "byte_fallback": has_byte_pieces(proto)}


def _bpe(proto) -> dict[str, Any]:
  vocab = {piece.piece: i for i, piece in enumerate(proto.pieces)}
  normal = [piece for piece in proto.pieces if piece.type == NORMAL]
  ranked = sorted(normal, key=lambda piece: -piece.score)
  merges = derive_merges({piece.piece: rank for rank, piece in enumerate(ranked)})
  options = {
    "dropout": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "ignore_merges": False,
  }
  unknown = next(piece.piece for piece in proto.pieces if piece.type == UNKNOWN)
  options |= {"unk_token": unknown, "fuse_unk": True, "byte_fallback": has_byte_pieces(proto)}
  return {"type": "BPE", **options, "vocab": vocab, "merges": merges}

"""A SentencePiece model as a `tokenizer.json`, with the ids that the sentencepiece library gives.

`transformers` has classes for some models (`T5Tokenizer` for T5's), which fix the normaliser, know
no byte fallback and take every model for a unigram model. A `tokenizer.json` says all of this
itself.
"""

import base64
import collections
import functools
import sys
import unicodedata
from collections.abc import Iterable
from typing import Any

import numpy as np

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
_NFKC = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf")  # names of normalisers
# The characters that stand for a barrier and for the fullwidth tilde between the steps: control
# characters where the charsmap removes them from texts, else two of Unicode's noncharacters.
_REMOVED_CHARACTERS = ("\x01", "\x02")
_NONCHARACTERS = ("\ufdd0", "\ufdd1")
_FULLWIDTH_TILDE = "\uff5e"  # SentencePiece keeps it; NFKC turns it into a tilde
_LAST_MARK = "\u0345"  # the mark that canonical order puts after all others
# characters besides marks that belong to the cluster of the character before them
_ZERO_WIDTH_JOINERS = "\u200c\u200d"
_SKIN_TONES = "".join(map(chr, range(0x1F3FB, 0x1F400)))
_TAGS = "".join(map(chr, range(0xE0020, 0xE0080)))
# a Korean syllable without a final consonant, and final consonants: no rule joins them
_OPEN_SYLLABLES = "".join(map(chr, range(0xAC00, 0xD7A4, 28)))
_FINALS = "\u11a8-\u11c2\u3133\u3135\u3136\u313a-\u3140\uffa3\uffa5\uffa6\uffaa-\uffb0"
# the bits of a unit of a charsmap's trie that hold its byte, and the bit of a complete rule
_LABEL = 0x800000FF
_COMPLETE = 0x100
# bounds for damaged tries: characters of a rule, and bytes of a character
_MAX_RULE = 6
_MAX_UTF8 = 4


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
  """Return the steps by which a model normalises texts."""
  steps = []
  charsmap = spec.precompiled_charsmap
  if charsmap:
    barrier, placeholder = _NONCHARACTERS
    if spec.name.startswith("nmt_"):
      barrier, placeholder = _REMOVED_CHARACTERS
    if spec.name in _NFKC:
      steps += _nfkc(charsmap, barrier, placeholder)
    encoded = base64.b64encode(charsmap).decode()
    steps.append({"type": "Precompiled", "precompiled_charsmap": encoded})
    if spec.name in _NFKC:
      steps.append(_replace(barrier, ""))
  if spec.remove_extra_whitespaces:
    steps.append(_replace_all(r"(?<![\s\S]) +| +(?![\s\S])", ""))
    steps.append(_replace_all(" {2,}", " "))
  if spec.add_dummy_prefix:
    steps.append({"type": "Prepend", "prepend": " "})
  if spec.escape_whitespaces:
    steps.append(_replace(" ", WORD))
    if spec.remove_extra_whitespaces:  # the library removes the marks that a text ends with, too
      steps.append(_replace_all(rf"{WORD}+(?![\s\S])", ""))
  return steps


def _nfkc(charsmap: bytes, barrier: str, placeholder: str) -> list[dict[str, Any]]:
  """Return the steps that compose characters as the rules of a charsmap do.

  The tokenizers library applies a charsmap to single characters and to short clusters, of which it
  drops a part; after NFKC, the rules of single characters suffice. NFKC by itself would reorder the
  marks of a letter and compose it with any of them, whereas SentencePiece applies the longest rule
  from the left. A barrier therefore stands before each mark that no rule joins to the characters
  before it. Ids may differ for marks on letters that Unicode added since 2017, which the library's
  NFKC does not know and, under `nfkc` and `nfkc_cf`, for the noncharacters U+FDD0 and U+FDD1.
  """
  marks = _combining_marks()
  letters = collections.defaultdict(set)
  for rule in _rules_with_marks(charsmap, marks):
    letters[rule[1:]].add(rule[0])
  joined = []
  for suffix, characters in sorted(letters.items()):
    joined.append(f"{suffix[-1]}(?<={_character_class(characters)}{suffix})")
  before_mark = rf"(?<=[\s\S])(?={_character_class(marks)})(?!{'|'.join(joined)})"
  pattern = f"{before_mark}|(?<=[{_OPEN_SYLLABLES}])(?=[{_FINALS}])"
  return [
    _replace(placeholder, barrier),
    _replace(_FULLWIDTH_TILDE, placeholder),
    _replace_all(pattern, barrier),
    {"type": "NFKC"},
    _replace(placeholder, _FULLWIDTH_TILDE),
  ]


@functools.cache
def _combining_marks() -> frozenset[str]:
  """Return the characters that belong to the cluster of the character before them.

  The tokenizers library's NFKC may move them or join them to others.
  """
  from tokenizers import normalizers

  normalizer = normalizers.NFKC()
  marks = {chr(i) for i in range(sys.maxunicode + 1) if unicodedata.category(chr(i))[0] == "M"}
  marks.update(_ZERO_WIDTH_JOINERS, _SKIN_TONES, _TAGS)
  for start in range(0x80, 0x20000, 0x80):
    characters = [chr(i) for i in range(start, start + 0x80) if not 0xD800 <= i < 0xE000]
    text = "\n".join(_LAST_MARK + character for character in characters)
    for character, moved in zip(characters, normalizer.normalize_str(text).split("\n")):
      if not moved.startswith(_LAST_MARK):
        marks.add(character)
  return frozenset(marks)


def _rules_with_marks(charsmap: bytes, marks: frozenset[str]) -> list[str]:
  """Return the texts that a charsmap replaces and that are a character and marks.

  The table begins with the number of bytes of its trie, a double array as darts-clone writes it.
  """
  size = int.from_bytes(charsmap[:4], "little")
  units = np.frombuffer(charsmap, "<u4", count=size // 4, offset=4).tolist()
  following = collections.defaultdict(set)
  for mark in marks:
    spelling = mark.encode()
    for i, byte in enumerate(spelling):
      following[spelling[:i]].add(byte)
  rules = []
  pending = [(_children(units, 0), "", b"")]
  while pending:
    children, text, begun = pending.pop()
    if len(text) == _MAX_RULE or len(begun) == _MAX_UTF8:
      continue
    next_bytes = following[begun] if text else range(1, 256)
    for byte in next_bytes:
      i = children ^ byte
      if i >= len(units) or units[i] & _LABEL != byte:
        continue
      spelling = begun + bytes([byte])
      character = spelling.decode(errors="ignore")
      if not character:
        pending.append((_children(units, i), text, spelling))
        continue
      if text and units[i] & _COMPLETE:
        rules.append(text + character)
      pending.append((_children(units, i), text + character, b""))
  return rules


def _children(units: list[int], i: int) -> int:
  """Return the number whose exclusive or with a byte is the index of that child of a unit."""
  offset = (units[i] >> 10) << ((units[i] & 0x200) >> 6)
  return i ^ offset


def _character_class(characters: Iterable[str]) -> str:
  """Return the expression of any of these characters."""
  ranges = []
  for code in sorted(map(ord, characters)):
    if ranges and ranges[-1][-1] == code - 1:
      ranges[-1] = (ranges[-1][0], code)
    else:
      ranges.append((code, code))
  parts = []
  for first, last in ranges:
    parts.append(chr(first) if first == last else f"{chr(first)}-{chr(last)}")
  return f"[{''.join(parts)}]"


def _replace(old: str, new: str) -> dict[str, Any]:
  return {"type": "Replace", "pattern": {"String": old}, "content": new}


def _replace_all(expression: str, new: str) -> dict[str, Any]:
  return {"type": "Replace", "pattern": {"Regex": expression}, "content": new}


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

  Their score in the SentencePiece model is 0.
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

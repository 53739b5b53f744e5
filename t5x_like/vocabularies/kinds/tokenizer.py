"""Tokenizers of Hugging Face's tokenizers library, each a `tokenizer.json`."""

import contextlib
import functools
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import t5x_like.vocabularies.kinds._shared as shared
from t5x_like import vocabularies
from t5x_like.errors import UserError, one_line
from t5x_like.files.paths import AnyPath
from t5x_like.vocabularies.kinds import _growth as growth
from t5x_like.vocabularies.kinds._pipelines import WORD
from t5x_like.vocabularies.protocol import PAD_ID, Vocabulary

KIND = "tokenizer"
MODEL_FILE = vocabularies.TOKENIZER
SPELLINGS = {
  "pad": ("[PAD]", "<pad>"),
  "unk": ("[UNK]", "<unk>"),
  "eos": ("</s>", "[EOS]", "<eos>", "<|endoftext|>", "<|end_of_text|>", "[SEP]"),
}
SPECIAL_TOKENS = ("[PAD]", "</s>", "[UNK]")  # ids 0, 1 and 2 of tokenizers trained here
MASK_TOKENS = ("[CLS]", "[SEP]", "[MASK]")  # ids 3, 4 and 5, if the flag for them is set

_MAX_ENCODED = 2**18  # characters of a text that the tokenizers library encodes at once
_BETWEEN_WORDS = re.compile(r"(?<=\w) (?=\w)")
_BYTE = re.compile("<0x([0-9A-F]{2})>")


class TokenizerVocabulary(Vocabulary):
  """A `tokenizer.json` with the ids of the file, so `size` is the highest id plus one.

  Sentinels are the special tokens `<extra_id_i>` at the ids `size - 1 - i`, as trained here; a file
  from elsewhere may have none. Text never produces special tokens: `[MASK]` in a text is not the
  mask. `decode` restores neither text that the normaliser folds (case and accents in BERT's) nor
  runs of spaces; with byte-level BPE it restores every text. Lone surrogates, which UTF-8 cannot
  encode, become U+FFFD. The post-processor's templates ([CLS] ... [SEP]), truncation and padding
  are ignored: the data system adds the tokens that an objective needs.

  In WordPiece a word begins at a piece without the `##` mark, so punctuation is a word. EOS is the
  first existing piece of `</s>`, `[EOS]`, `<eos>`, `<|endoftext|>`, `<|end_of_text|>` and `[SEP]`.

  Args:
    model: the bytes of the file.
    origin: the name of the vocabulary in messages.

  Raises:
    UserError: the bytes are not a tokenizer, the padding token is not id 0, or there is no end
      token.
  """

  def __init__(self, model: bytes, origin: str = "tokenizer.json"):
    ids, special_pieces = self._open(model, origin)
    extra_ids = 0
    while ids.get(f"<extra_id_{extra_ids}>") == self.size - 1 - extra_ids:
      extra_ids += 1
    self.sentinels = shared.top_ids(self.size, extra_ids)
    _check_pad(ids, origin)
    self.eos_id = _find_id(ids, "eos")
    if self.eos_id is None:
      raise UserError(
        f"{origin}: found no end token, expected one of {', '.join(SPELLINGS['eos'])}; add one"
      )
    self.unk_id = _find_id(ids, "unk")
    if self.unk_id is None:  # a byte-level model encodes every text
      self.unk_id = self.eos_id
    usual_ids = shared.look_up_special_pieces(special_pieces.get)
    self.mask_id = usual_ids["mask"]
    self.cls_id = usual_ids["cls"]
    self.sep_id = usual_ids["sep"]
    self.bos_id = usual_ids["bos"]
    self._finish(special_pieces)
    self.fingerprint = shared.fingerprint(KIND, model, self.extra_ids)

  def _open(self, model: bytes, origin: str) -> tuple[dict[str, int], dict[str, int]]:
    """Read the file and return (the ids of all pieces, the ids of special pieces)."""
    self._tokenizer = _open_tokenizer(model, origin)
    self.model = model
    self._origin = origin
    # The library's option is to encode the spelling of a special token as any other text.
    self._tokenizer.encode_special_tokens = not self.specials_in_text
    ids = self._tokenizer.get_vocab(with_added_tokens=True)
    self.size = max(ids.values()) + 1
    # A piece takes several bytes of the file, so most ids below such a size have no piece.
    if self.size > len(model):
      raise UserError(
        f"{origin}: found id {self.size - 1} in a file of {len(model)} bytes and {len(ids)} "
        "pieces, expected ids below the number of its bytes; it is damaged, copy it again"
      )
    self._spellings = [""] * self.size
    for piece, i in ids.items():
      self._spellings[i] = piece
    special_pieces = {}
    self._added_text_ids = set()
    for i, token in self._tokenizer.get_added_tokens_decoder().items():
      if token.special:
        special_pieces[token.content] = i
      else:
        self._added_text_ids.add(i)
    return ids, special_pieces

  def _finish(self, special_pieces: dict[str, int]) -> None:
    """Build the tables, once special ids and sentinels are known."""
    self.extra_ids = len(self.sentinels)
    special_ids = frozenset(special_pieces.values()) - {self.unk_id}
    self._is_special = np.zeros(self.size, bool)  # special tokens that text must not produce
    if not self.specials_in_text:
      self._is_special[list(special_ids)] = True
    self.special_ids = shared.special_ids(self) | special_ids
    tokenizer_json = json.loads(self.model)
    self._byte_level = '"ByteLevel"' in json.dumps(
      [tokenizer_json.get("decoder"), tokenizer_json.get("pre_tokenizer")]
    )
    self._mark = ""
    if not self._byte_level:
      self._mark = tokenizer_json["model"].get("continuing_subword_prefix") or ""
    self._suffix = tokenizer_json["model"].get("end_of_word_suffix") or ""
    self._falls_back = '"ByteFallback"' in json.dumps(tokenizer_json.get("decoder"))
    self._can_cut = _can_cut_before_spaces(tokenizer_json)

  def encode(self, text: str) -> list[int]:
    text = shared.well_formed(text)
    if self._is_long(text):
      return self._encode_long(text).tolist()
    with convert_errors(self._origin, "the text cannot be encoded"):
      encoding = self._tokenizer.encode(text, add_special_tokens=False)
      return self._replace_special(encoding.ids).tolist()

  def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the ids of a text and the (begin, end) of each id's characters in the text."""
    encoding = self._tokenizer.encode(shared.well_formed(text), add_special_tokens=False)
    return self._replace_special(encoding.ids).tolist(), encoding.offsets

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    # The library uses all cores, unless TOKENIZERS_PARALLELISM=false, as in the tools that start a
    # process for each core.
    texts = [shared.well_formed(text) for text in texts]
    short_ids = iter(self._encode_short([text for text in texts if not self._is_long(text)]))
    return [self._encode_long(text) if self._is_long(text) else next(short_ids) for text in texts]

  def _encode_short(self, texts: Sequence[str]) -> list[np.ndarray]:
    if not texts:
      return []
    with convert_errors(self._origin, "a text cannot be encoded"):
      encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [self._replace_special(encoding.ids) for encoding in encodings]

  def _is_long(self, text: str) -> bool:
    return self._can_cut and len(text) > _MAX_ENCODED

  def _encode_long(self, text: str) -> np.ndarray:
    """Encode a long text in parts.

    The tokenizers library needs about 200 bytes of memory per character of a text.
    """
    ids = []
    start = 0
    while start < len(text):
      cut = _BETWEEN_WORDS.search(text, start + _MAX_ENCODED)
      end = cut.start() if cut else len(text)
      ids += self._encode_short([text[start:end]])
      start = end
    return np.concatenate(ids)

  def decode(self, ids: Sequence[int]) -> str:
    text = ""
    for part in shared.split_at_sentinels(ids, self):
      if isinstance(part, str):
        decoded = part
        starts_word = True
      else:
        part = [i if i < self.size and self._spellings[i] else self.unk_id for i in part]
        with convert_errors(self._origin, "ids cannot be decoded"):
          decoded = self._tokenizer.decode(part, skip_special_tokens=False)
        starts_word = part[0] in self.special_ids or self._text_bytes(part[0])[:1].isspace()
        # Most decoders drop the space before the first word; where it is kept, none is added.
        starts_word = starts_word and not decoded.startswith(" ")
      if text and starts_word and not self._byte_level:
        text += " "
      text += decoded
    return text

  def pieces_of(self, ids: Sequence[int]) -> list[str]:
    return [
      shared.sentinel_piece(self, i) or self._spellings[i] or f"<{i}?>" for i in map(int, ids)
    ]

  def save(self, directory) -> None:
    shared.save(directory, KIND, self, {MODEL_FILE: self.model})

  def export_files(self) -> dict[str, bytes]:
    config = shared.tokenizer_config(self, {"tokenizer_class": "PreTrainedTokenizerFast"})
    return {MODEL_FILE: self.model, vocabularies.CONFIG: config}

  def _replace_special(self, ids: list[int]) -> np.ndarray:
    """Convert ids to int32, and make words that are spelled like special tokens unknown."""
    ids = np.asarray(ids, np.int32)
    is_special = self._is_special[ids]
    if not is_special.any():
      return ids
    return np.where(is_special, np.int32(self.unk_id), ids)

  def _text_bytes(self, i: int) -> bytes:
    """Return the text of a piece in UTF-8, with the space before or after a word."""
    piece = self._spellings[i]
    if i == self.unk_id:
      return " \ufffd".encode() if self._mark else "\ufffd".encode()
    if i in self._added_text_ids:
      return piece.encode()
    if self._byte_level:
      byte_of_character = _bytes_of_characters()
      return b"".join(byte_of_character.get(letter) or letter.encode() for letter in piece)
    byte = _BYTE.fullmatch(piece) if self._falls_back else None
    if byte:
      return bytes([int(byte[1], 16)])
    if self._mark:
      if piece.startswith(self._mark):
        return piece.removeprefix(self._mark).encode()
      return f" {piece}".encode()
    if self._suffix and piece.endswith(self._suffix):
      return f"{piece.removesuffix(self._suffix)} ".encode()
    return piece.replace(WORD, " ").encode()


def load(directory: AnyPath, manifest: dict[str, Any]) -> TokenizerVocabulary:
  """Open a directory written by `save`."""
  model, _ = shared.read_model(directory / MODEL_FILE, manifest)
  return TokenizerVocabulary(model, origin=str(directory / MODEL_FILE))


def _can_cut_before_spaces(tokenizer_json: dict) -> bool:
  """Return whether cutting a text before a space between two words leaves its ids unchanged."""
  normaliser = tokenizer_json.get("normalizer") or {}
  if normaliser.get("type") not in (None, "BertNormalizer"):
    return False
  for token in tokenizer_json["added_tokens"]:
    if " " in token["content"] or token["rstrip"] or token["single_word"]:
      return False
  words = tokenizer_json.get("pre_tokenizer") or {}
  if words.get("type") == "ByteLevel":
    return words.get("use_regex", True) and not words.get("add_prefix_space")
  return words.get("type") == "BertPreTokenizer"


@functools.cache
def _bytes_of_characters() -> dict[str, bytes]:
  """Map each printable stand-in of byte-level BPE to its byte."""
  printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
  characters = {}
  num_shifted = 0
  for byte in range(256):
    if byte in printable:
      characters[chr(byte)] = bytes([byte])
    else:
      characters[chr(256 + num_shifted)] = bytes([byte])
      num_shifted += 1
  return characters


@contextlib.contextmanager
def convert_errors(where: str, problem: str) -> Iterator[None]:
  """Turn the tokenizers library's errors into a `UserError`.

  They are plain `Exception` or, if its Rust code stops at a broken invariant of a damaged file,
  `PanicException`, which is not an `Exception`.

  Args:
    where: the tokenizer, for messages.
    problem: what failed, for messages.
  """
  try:
    yield
  except UserError:
    raise
  except BaseException as error:
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
      raise
    raise UserError(
      f"{where}: {problem} ({one_line(error)[:300]}), expected the complete files of a tokenizer; "
      "copy them again"
    ) from None


def parse_tokenizer_json(model: bytes) -> dict[str, Any]:
  """Return the content of a `tokenizer.json`; {} for a file that the tokenizers library refuses."""
  try:
    tokenizer_json = json.loads(model)
  except (ValueError, RecursionError):
    return {}
  return tokenizer_json if isinstance(tokenizer_json, dict) else {}


def _open_tokenizer(model: bytes, origin: str):
  """Return a tokenizer of the tokenizers library, without truncation and padding."""
  import tokenizers

  growth.check_normalizers(parse_tokenizer_json(model), origin)
  problem = f"found {len(model)} bytes that are not a tokenizer of the tokenizers library"
  with convert_errors(origin, problem):
    tokenizer = tokenizers.Tokenizer.from_buffer(model)
  tokenizer.no_truncation()
  tokenizer.no_padding()
  if not tokenizer.get_vocab_size(with_added_tokens=True):
    raise UserError(f"{origin}: found a tokenizer without any pieces, expected a trained one")
  return tokenizer


def _check_pad(ids: dict[str, int], origin: str) -> None:
  """Raise UserError unless the padding token has id 0."""
  pad = _find_id(ids, "pad")
  if pad != PAD_ID:
    first_piece = next((piece for piece, i in ids.items() if i == PAD_ID), None)
    padding = "no padding token" if pad is None else f"padding at id {pad}"
    raise UserError(
      f"{origin}: found {padding} and {first_piece!r} at id 0, expected [PAD] or <pad> at id 0, "
      "since 0 is padding everywhere here; train one with python -m tools.train_vocabulary"
    )


def _find_id(ids: dict[str, int], name: str) -> int | None:
  """Return the id of the first usual spelling of a special piece; None if none is a piece."""
  for spelling in SPELLINGS[name]:
    if spelling in ids:
      return ids[spelling]
  return None

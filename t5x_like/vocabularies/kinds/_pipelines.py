"""Build the pipeline of each tokenizer class of `transformers` around pieces and merges.

A pipeline is the normaliser, the split into words, the model and the decoder: the parts of a
`tokenizer.json` that the class sets, overriding the file (version 5 of `transformers`).
"""

import base64
import dataclasses
import functools
import json
from collections.abc import Callable, Iterable
from typing import Any

from t5x_like.errors import UserError, one_line

WORD = "\u2581"  # SentencePiece's mark of a space
# The sentencepiece library opens no model with a piece of this length or more.
MAX_PIECE_BYTES = 8000
# Types of a SentencePiece model's pieces.
NORMAL = 1
UNKNOWN = 2
CONTROL = 3
USER_DEFINED = 4
BYTE = 6


@dataclasses.dataclass(frozen=True)
class Pieces:
  """The pieces of a model.

  Attributes:
    vocab: ids by piece or, in a unigram model, (piece, score) pairs.
    merges: pairs of pieces, in order.
    charsmap: a SentencePiece model's normalisation, as base64.
    added: pieces that text is never cut into, and whether they are special.
  """

  vocab: dict[str, int] | list[tuple[str, float]]
  merges: list[list[str]] = dataclasses.field(default_factory=list)
  charsmap: str | None = None
  added: list[dict[str, Any]] = dataclasses.field(default_factory=list)

  @classmethod
  def of(cls, file: dict[str, Any]) -> "Pieces":
    """Return the pieces of a parsed `tokenizer.json`."""
    model = file.get("model") or {}
    merges = []
    for merge in model.get("merges") or []:
      merges.append(merge.split(" ") if isinstance(merge, str) else merge)
    return cls(model.get("vocab") or {}, merges, _charsmap(file.get("normalizer")))

  @classmethod
  def of_sentence_piece(cls, data: bytes, name: str, extra_ids: int, where: str) -> "Pieces":
    """Return the pieces of a SentencePiece model, for a class of `FROM_SENTENCE_PIECE`."""
    proto = model_proto(data, where)
    added = []
    for piece in proto.pieces:
      if piece.type in (CONTROL, USER_DEFINED):
        is_special = piece.type == CONTROL
        added.append({"content": piece.piece, "normalized": False, "special": is_special})
    charsmap = base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode() or None
    if name == "T5Tokenizer":
      sentinels = [(f"<extra_id_{i}>", 0.0) for i in reversed(range(extra_ids))]
      pieces = [(piece.piece, piece.score) for piece in proto.pieces]
      return cls([*pieces, *sentinels], [], charsmap, added)
    vocab = {piece.piece: i for i, piece in enumerate(proto.pieces)}
    return cls(vocab, derive_merges(vocab), charsmap, added)


@functools.cache
def _model_proto() -> type:
  """Build the protobuf message of a SentencePiece model with the fields used here.

  The sentencepiece wheel's message needs another version of protobuf than TensorFlow.
  """
  from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

  proto = descriptor_pb2.FieldDescriptorProto
  optional = proto.LABEL_OPTIONAL
  repeated = proto.LABEL_REPEATED
  # By message: the name, number, label and type of each field, and the name of a message type.
  messages = {
    "Piece": [
      ("piece", 1, optional, proto.TYPE_STRING),
      ("score", 2, optional, proto.TYPE_FLOAT),
      ("type", 3, optional, proto.TYPE_INT32),
    ],
    "Normalizer": [
      ("name", 1, optional, proto.TYPE_STRING),
      ("precompiled_charsmap", 2, optional, proto.TYPE_BYTES),
      ("add_dummy_prefix", 3, optional, proto.TYPE_BOOL),
      ("remove_extra_whitespaces", 4, optional, proto.TYPE_BOOL),
      ("escape_whitespaces", 5, optional, proto.TYPE_BOOL),
    ],
    "Trainer": [
      ("model_type", 3, optional, proto.TYPE_INT32),
      ("treat_whitespace_as_suffix", 24, optional, proto.TYPE_BOOL),
      ("byte_fallback", 35, optional, proto.TYPE_BOOL),
    ],
    "Model": [
      ("pieces", 1, repeated, proto.TYPE_MESSAGE, ".spm.Piece"),
      ("trainer_spec", 2, optional, proto.TYPE_MESSAGE, ".spm.Trainer"),
      ("normalizer_spec", 3, optional, proto.TYPE_MESSAGE, ".spm.Normalizer"),
      ("denormalizer_spec", 5, optional, proto.TYPE_MESSAGE, ".spm.Normalizer"),
    ],
  }
  file = descriptor_pb2.FileDescriptorProto(
    name="t5x_like/sentencepiece.proto", package="spm", syntax="proto2"
  )
  defaults = dict.fromkeys(
    ("add_dummy_prefix", "remove_extra_whitespaces", "escape_whitespaces"), "true"
  )
  defaults |= {"type": "1", "model_type": "1"}  # a normal piece, a unigram model
  for name, fields in messages.items():
    message = file.message_type.add(name=name)
    for field_name, tag, label, field_type, *type_name in fields:
      field = message.field.add(name=field_name, number=tag, label=label, type=field_type)
      if type_name:
        field.type_name = type_name[0]
      if field_name in defaults:
        field.default_value = defaults[field_name]
  pool = descriptor_pool.DescriptorPool()
  pool.Add(file)
  return message_factory.GetMessageClass(pool.FindMessageTypeByName("spm.Model"))


def model_proto(data: bytes, where: str):
  """Parse a SentencePiece model.

  Raises:
    UserError: the bytes are no model, or a piece is longer than the sentencepiece library takes.
      The tokenizers library would accept it, and then need time quadratic in its length.
  """
  try:
    proto = _model_proto().FromString(data)
  except Exception as error:  # protobuf's own
    raise UserError(
      f"{where}: found {len(data)} bytes that are not a SentencePiece model, expected a complete "
      f".model file ({one_line(error)})"
    ) from None
  check_lengths((piece.piece for piece in proto.pieces), where)
  return proto


def check_lengths(pieces: Iterable[str], where: str) -> None:
  """Raise UserError if one of the pieces of a SentencePiece model is too long."""
  longest = max((len(piece.encode()) for piece in pieces), default=0)
  if longest >= MAX_PIECE_BYTES:
    raise UserError(
      f"{where}: found a piece of {longest} bytes, expected pieces of fewer than "
      f"{MAX_PIECE_BYTES}, the limit of the sentencepiece library; the model is damaged, copy it "
      "again"
    )


def is_unigram(proto) -> bool:
  """Return whether a SentencePiece model is a unigram model, which is the format's default."""
  return proto.trainer_spec.model_type in (0, 1)


def read_charsmaps(model: bytes) -> list[bytes]:
  """Return the tables of replacements of a SentencePiece model, of texts and of pieces."""
  proto = _model_proto().FromString(model)
  return [spec.precompiled_charsmap for spec in (proto.normalizer_spec, proto.denormalizer_spec)]


def derive_merges(vocab: dict[str, int]) -> list[list[str]]:
  """Derive the merges of a SentencePiece BPE model: all pairs that make a piece, piece by piece."""
  lengths = set(map(len, vocab))
  merges = []
  for piece, i in vocab.items():
    # Cut only at lengths that pieces have: each cut copies the piece, so trying all of them would
    # take time quadratic in its length.
    pairs = []
    for length in lengths:
      first = piece[:length]
      second = piece[length:]
      if len(piece) - length in lengths and first in vocab and second in vocab:
        pairs.append((first, second))
    pairs.sort(key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
    for first, second in pairs:
      merges.append((i, len(first), len(second), first, second))
  merges.sort(key=lambda merge: merge[:3])
  return [[first, second] for _, _, _, first, second in merges]


def _charsmap(normalizer: dict[str, Any] | None) -> str | None:
  """Return SentencePiece's normalisation in a normaliser, None if there is none."""
  for step in (normalizer or {}).get("normalizers", [normalizer]):
    if step and step.get("type") == "Precompiled":
      return step["precompiled_charsmap"]
  return None


def check_charsmap(tokenizer: dict[str, Any], where: str) -> None:
  """Refuse a damaged SentencePiece normalisation.

  The tokenizers library would stop at it with a Rust panic.

  Raises:
    UserError: the normalisation does not consist of a table's length, the table, and UTF-8 text.
  """
  try:
    charsmap = _charsmap(tokenizer.get("normalizer"))
    if charsmap is not None:
      data = base64.b64decode(charsmap, validate=True)
      length = int.from_bytes(data[:4], "little")
      if len(data) < 4 + length or length % 4:
        raise ValueError(f"{len(data)} bytes with a table of {length}")
      data[4 + length :].decode()
  except (AttributeError, LookupError, TypeError, ValueError) as error:
    raise UserError(
      f"{where}: the normaliser is damaged ({one_line(error)}); copy the directory again"
    ) from None


def text_of(token) -> str:
  """Return the text of a token: text, an object of a file, or a `tokenizers.AddedToken`."""
  return token["content"] if isinstance(token, dict) else getattr(token, "content", token)


def _sequence(kind: str, *parts: dict[str, Any]) -> dict[str, Any]:
  return {"type": "Sequence", kind: list(parts)}


def _replace(old: str, new: str) -> dict[str, Any]:
  return {"type": "Replace", "pattern": {"String": old}, "content": new}


def _metaspace(scheme: str, split: bool) -> dict[str, Any]:
  return {"type": "Metaspace", "replacement": WORD, "prepend_scheme": scheme, "split": split}


def _bpe(pieces: Pieces, **options) -> dict[str, Any]:
  """Return a BPE model, with the options that differ from the usual ones."""
  model = dict(
    dropout=None,
    unk_token=None,
    continuing_subword_prefix=None,
    end_of_word_suffix=None,
    fuse_unk=False,
  )
  model |= dict(byte_fallback=False, ignore_merges=False) | options
  return {"type": "BPE", **model, "vocab": pieces.vocab, "merges": pieces.merges}


def _build_tokenizer(model, normalizer, words, decoder) -> dict[str, Any]:
  """Return a `tokenizer.json` of these parts; `words` splits a text into words."""
  parts = {"normalizer": normalizer, "pre_tokenizer": words, "decoder": decoder, "model": model}
  return {"version": "1.0", "added_tokens": [], **parts}


def _byte_level(pieces: Pieces, config: dict[str, Any]) -> dict[str, Any]:
  level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
  words = level | {"add_prefix_space": bool(config.get("add_prefix_space", False))}
  model = _bpe(pieces, continuing_subword_prefix="", end_of_word_suffix="")
  return _build_tokenizer(model, None, words, level)


def _llama(pieces: Pieces, config: dict[str, Any]) -> dict[str, Any]:
  adds_prefix = config.get("add_prefix_space")
  if adds_prefix is None:
    adds_prefix = True
  decoder = [_replace(WORD, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
  scheme = "never"
  if adds_prefix:
    scheme = "always" if config.get("legacy", False) else "first"
    decoder.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
  model = _bpe(pieces, fuse_unk=True, byte_fallback=True)
  return _build_tokenizer(model, None, _metaspace(scheme, False), _sequence("decoders", *decoder))


def _gemma(pieces: Pieces, config: dict[str, Any]) -> dict[str, Any]:
  words = {
    "type": "Split",
    "pattern": {"String": " "},
    "behavior": "MergedWithPrevious",
    "invert": False,
  }
  decoder = _sequence("decoders", _replace(WORD, " "), {"type": "ByteFallback"}, {"type": "Fuse"})
  model = _bpe(
    pieces, unk_token=text_of(config.get("unk_token", "<unk>")), fuse_unk=True, byte_fallback=True
  )
  return _build_tokenizer(model, _replace(" ", WORD), words, decoder)


def _t5(pieces: Pieces, config: dict[str, Any]) -> dict[str, Any]:
  words = _sequence("pretokenizers", {"type": "WhitespaceSplit"}, _metaspace("always", True))
  normalizer = None
  if pieces.charsmap:
    normalizer = {"type": "Precompiled", "precompiled_charsmap": pieces.charsmap}
  model = {"type": "Unigram", "unk_id": 2, "vocab": pieces.vocab, "byte_fallback": False}
  return _build_tokenizer(model, normalizer, words, _metaspace("always", True))


def _bert(pieces: Pieces, config: dict[str, Any]) -> dict[str, Any]:
  normalizer = {
    "type": "BertNormalizer",
    "clean_text": True,
    "strip_accents": config.get("strip_accents"),
    "lowercase": config.get("do_lower_case", True),
    "handle_chinese_chars": config.get("tokenize_chinese_chars", True),
  }
  model = {
    "type": "WordPiece",
    "unk_token": text_of(config.get("unk_token", "[UNK]")),
    "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 100,
    "vocab": pieces.vocab,
  }
  return _build_tokenizer(
    model,
    normalizer,
    {"type": "BertPreTokenizer"},
    {"type": "WordPiece", "prefix": "##", "cleanup": True},
  )


_BART = {
  "bos": "<s>",
  "eos": "</s>",
  "unk": "<unk>",
  "sep": "</s>",
  "pad": "<pad>",
  "cls": "<s>",
  "mask": "<mask>",
}
# the special pieces of a class, where no file names them
DEFAULTS: dict[str, dict[str, str]] = {
  "GPT2Tokenizer": dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>"),
  "RobertaTokenizer": _BART,
  "LlamaTokenizer": {"bos": "<s>", "eos": "</s>", "unk": "<unk>"},
  "GemmaTokenizer": {
    "bos": "<bos>",
    "eos": "<eos>",
    "unk": "<unk>",
    "pad": "<pad>",
    "mask": "<mask>",
  },
  "T5Tokenizer": {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"},
  "BertTokenizer": {
    "unk": "[UNK]",
    "sep": "[SEP]",
    "pad": "[PAD]",
    "cls": "[CLS]",
    "mask": "[MASK]",
  },
}
# special pieces of a `tokenizer.json` used whole, where no file names them
DEFAULTS_BY_MODEL_TYPE = {"xlm-roberta": _BART}
PIPELINES: dict[str, Callable[[Pieces, dict[str, Any]], dict[str, Any]]] = {
  "GPT2Tokenizer": _byte_level,
  "RobertaTokenizer": _byte_level,
  "LlamaTokenizer": _llama,
  "GemmaTokenizer": _gemma,
  "T5Tokenizer": _t5,
  "BertTokenizer": _bert,
}
# Classes that `transformers` runs as Python, with rules that are not read here. XLM cuts words by
# Moses and others.
PYTHON_CLASSES = ("XLMTokenizer",)
SENTENCE_PIECE_CLASSES = ("LlamaTokenizer", "GemmaTokenizer", "T5Tokenizer")
CLASS_ALIASES = {
  "BartTokenizer": "RobertaTokenizer",
  "ElectraTokenizer": "BertTokenizer",
  "MT5Tokenizer": "T5Tokenizer",
}
CLASSES_BY_MODEL_TYPE = {
  "gpt2": "GPT2Tokenizer",
  "roberta": "RobertaTokenizer",
  "bart": "RobertaTokenizer",
  "gemma": "GemmaTokenizer",
  "gemma2": "GemmaTokenizer",
  "gemma3": "GemmaTokenizer",
  "gemma3_text": "GemmaTokenizer",
  "opt": "GPT2Tokenizer",
  "t5": "T5Tokenizer",
  "mt5": "T5Tokenizer",
  "switch_transformers": "T5Tokenizer",
  "bert": "BertTokenizer",
  "electra": "BertTokenizer",
  "marian": "MarianTokenizer",
  "xlm": "XLMTokenizer",
}
# model types whose `tokenizer.json` is used whole; the class is for directories without that file
WHOLE_FILE_MODEL_TYPES = {
  "llama": "LlamaTokenizer",
  "mistral": "LlamaTokenizer",
  "mixtral": "LlamaTokenizer",
  "umt5": "T5Tokenizer",
  "olmo2": "GPT2Tokenizer",
  "olmo3": "GPT2Tokenizer",
  "modernbert": None,
  "qwen2": None,
}


def choose_class(
  config: dict[str, Any], model_config: dict[str, Any], file: dict[str, Any] | None
) -> str | None:
  """Choose the tokenizer's class as `transformers` does: as named, else by the model type.

  Args:
    file: the content of `tokenizer.json`, if there is one.

  Returns:
    None if the file is used whole.
  """
  name = config.get("tokenizer_class") or model_config.get("tokenizer_class")
  name = str(name).removesuffix("Fast") if name else None
  model_type = model_config.get("model_type")
  if file is None:
    name = name or CLASSES_BY_MODEL_TYPE.get(model_type) or WHOLE_FILE_MODEL_TYPES.get(model_type)
  elif model_type in WHOLE_FILE_MODEL_TYPES and model_type != "llama":
    name = None
  elif name == "LlamaTokenizer" and '"ByteLevel"' in json.dumps(
    [file.get("pre_tokenizer"), file.get("decoder")]
  ):
    name = None  # Llama 3's pieces under the class of Llama 2
  else:
    name = name or CLASSES_BY_MODEL_TYPE.get(model_type)
  return CLASS_ALIASES.get(name, name)

"""The tokenizer in the metadata of a GGUF file as a `tokenizer.json`, and back.

The file has a piece for each id, with a type. Two of llama.cpp's kinds of models are read: `gpt2`,
byte-level BPE with its merges, and `llama`, SentencePiece's BPE with a score for each piece.
`tokenizer.ggml.pre` names the code of llama.cpp that cuts a text into words before byte-level BPE;
`_WORDS` has the equal steps of a `tokenizer.json`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_like import slots
from t5x_like.errors import UserError
from t5x_like.files.file_names import quote_name
from t5x_like.vocabularies.kinds import _pipelines as pipelines
from t5x_like.vocabularies.kinds._pipelines import (
  BYTE,
  CONTROL,
  NORMAL,
  UNKNOWN,
  USER_DEFINED,
  WORD,
)
from t5x_like.vocabularies.protocol import Vocabulary

PREFIX = "tokenizer.ggml."
TEMPLATE = "tokenizer.chat_template"
UNUSED = 5  # a type of pieces, beside those of `_pipelines`

_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
# Name in the file -> the steps that cut a text: a regular expression, or one of the two below.
_DIGITS = "each digit"
_GPT2_WORDS = "GPT-2's words"
_WORDS = {
  "gpt-2": (_GPT2_WORDS,),
  "smollm": (_DIGITS, _GPT2_WORDS),
  "llama-bpe": (rf"{_ENDINGS}|{_LETTERS}|\p{{N}}{{1,3}}|{_OTHERS}",),
  "qwen2": (rf"{_ENDINGS}|{_LETTERS}|\p{{N}}|{_OTHERS}",),
}
# Names whose words are those of another.
_ALIASES = {
  "llama3": "llama-bpe",
  "llama-v3": "llama-bpe",
  "falcon3": "llama-bpe",
  "deepseek-r1-qwen": "qwen2",
}
_WHOLE_WORDS = ("llama-bpe",)  # a word that is a piece gets its id without merges
_COMPOSED = ("qwen2",)  # characters are composed (NFC) before the cut, as in `transformers`
_BOS_FIRST = ("llama-bpe",)  # a text begins with BOS unless the file says otherwise
# Name of a special piece -> key of its id.
_SPECIAL = {
  "bos": f"{PREFIX}bos_token_id",
  "eos": f"{PREFIX}eos_token_id",
  "unk": f"{PREFIX}unknown_token_id",
  "pad": f"{PREFIX}padding_token_id",
}


def read_tokenizer(metadata: Mapping[str, Any], where: str) -> tuple[dict[str, Any], dict]:
  """Return a GGUF file's tokenizer as the contents of (`tokenizer.json`, `tokenizer_config.json`).

  Args:
    metadata: the values of a GGUF file by key.
    where: the file, for messages.
  Raises:
    UserError: there is no tokenizer, its kind is not read, or a value is damaged.
  """
  kind = metadata.get(f"{PREFIX}model")
  if kind not in ("gpt2", "llama"):
    raise UserError(
      f"{where}: {PREFIX}model is {quote_name(kind)}, expected 'gpt2' or 'llama'; convert the "
      "original Hugging Face model instead"
    )
  pieces = _take_list(metadata, "tokens", str, where)
  pipelines.check_lengths(pieces, where)
  types = _take_list(metadata, "token_type", int, where, [NORMAL] * len(pieces))
  if len(types) != len(pieces):
    raise UserError(
      f"{where}: {PREFIX}token_type has {len(types)} values, expected {len(pieces)}, one for each "
      "piece; copy the file again"
    )
  vocab = _number_pieces(pieces, types, where)
  config = _read_config(metadata, pieces, where)
  if kind == "gpt2":
    words = _read_words(metadata, where)
    merges = _take_list(metadata, "merges", str, where)
    tokenizer = _byte_level(vocab, [merge.split(" ", 1) for merge in merges], words)
    starts_with_bos = words in _BOS_FIRST
  else:
    scores = _take_list(metadata, "scores", float, where)
    if len(scores) != len(pieces):
      raise UserError(
        f"{where}: {PREFIX}scores has {len(scores)} values, expected {len(pieces)}, one for each "
        "piece; copy the file again"
      )
    tokenizer = _sentence_piece(vocab, types, scores, metadata)
    starts_with_bos = True
  config["add_bos_token"] = _take_flag(metadata, "add_bos_token", starts_with_bos, where)
  config["add_eos_token"] = _take_flag(metadata, "add_eos_token", False, where)
  tokenizer["added_tokens"] = _list_added_tokens(pieces, types)
  tokenizer |= {"truncation": None, "padding": None}
  tokenizer["post_processor"] = _post_processor(config, metadata)
  return tokenizer, config


def _take_list(
  metadata: Mapping[str, Any], name: str, kind: type, where: str, default: Any = None
) -> list[Any]:
  """Return the list of a metadata key after checking the type of its values."""
  values = metadata.get(PREFIX + name, default)
  if not slots.fits(values, list[kind]) or (kind is str and not values):
    raise UserError(
      f"{where}: {PREFIX}{name} is {quote_name(str(values)[:80])}, expected a list of "
      f"{slots.describe_type(kind)}; copy the file again"
    )
  return values


def _take_flag(metadata: Mapping[str, Any], name: str, default: bool, where: str) -> bool:
  """Return the boolean of a metadata key."""
  value = metadata.get(PREFIX + name, default)
  if not isinstance(value, bool):
    raise UserError(f"{where}: {PREFIX}{name} is {quote_name(value)}, expected true or false")
  return value


def _number_pieces(pieces: list[str], types: list[int], where: str) -> dict[str, int]:
  """Return the ids of the pieces, without unused ones."""
  vocab = {}
  for i, piece in enumerate(pieces):
    if piece in vocab:
      raise UserError(
        f"{where}: {PREFIX}tokens has the piece {quote_name(piece)} at {vocab[piece]} and at {i}, "
        "expected each once; copy the file again"
      )
    if types[i] != UNUSED:
      vocab[piece] = i
  return vocab


def _read_words(metadata: Mapping[str, Any], where: str) -> str:
  """Return the name of a file's words in `_WORDS`."""
  name = metadata.get(f"{PREFIX}pre")
  words = _ALIASES.get(name, name) if isinstance(name, str) else None
  if words not in _WORDS:
    raise UserError(
      f"{where}: {PREFIX}pre is {quote_name(name)}, expected one of "
      f"{', '.join(sorted({*_WORDS, *_ALIASES}))}; convert the original Hugging Face model instead"
    )
  return words


def _byte_level(vocab: dict[str, int], merges: list[list[str]], words: str) -> dict[str, Any]:
  """Return a `tokenizer.json` of byte-level BPE, without added tokens."""
  level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
  steps: list[dict[str, Any]] = []
  for step in _WORDS[words]:
    if step == _DIGITS:
      steps.append({"type": "Digits", "individual_digits": True})
    elif step == _GPT2_WORDS:
      steps.append(level | {"use_regex": True})
    else:
      pattern = {"Regex": step}
      steps.append({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False})
      steps.append(level | {"use_regex": False})
  model = {
    "type": "BPE",
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": words in _WHOLE_WORDS,
    "vocab": vocab,
    "merges": merges,
  }
  return {
    "version": "1.0",
    "normalizer": {"type": "NFC"} if words in _COMPOSED else None,
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
    "decoder": level | {"use_regex": True},
    "model": model,
  }


def _sentence_piece(
  vocab: dict[str, int], types: list[int], scores: list[float], metadata: Mapping[str, Any]
) -> dict[str, Any]:
  """Return a `tokenizer.json` of SentencePiece's BPE, without added tokens.

  The pair with the best score is merged first. A space is put before a text and after each special
  piece, as llama.cpp does and `transformers` with `legacy`.
  """
  normal = [piece for piece, i in vocab.items() if types[i] == NORMAL]
  normal.sort(key=lambda piece: -scores[vocab[piece]])
  merges = pipelines.derive_merges({piece: rank for rank, piece in enumerate(normal)})
  adds_space = bool(metadata.get(f"{PREFIX}add_space_prefix", True))
  options = {"add_prefix_space": adds_space}
  tokenizer = pipelines.PIPELINES["LlamaTokenizer"](pipelines.Pieces(vocab, merges), options)
  steps: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": " "}, "content": WORD}]
  if adds_space:  # also before a space, unlike Metaspace
    steps.insert(0, {"type": "Prepend", "prepend": WORD})
  tokenizer["normalizer"] = {"type": "Sequence", "normalizers": steps}
  tokenizer["pre_tokenizer"] = None
  return tokenizer


def _read_config(metadata: Mapping[str, Any], pieces: list[str], where: str) -> dict[str, Any]:
  """Return a `tokenizer_config.json` with the special pieces and the chat template."""
  config: dict[str, Any] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "clean_up_tokenization_spaces": False,
  }
  for name, key in _SPECIAL.items():
    i = metadata.get(key)
    if i is None:
      continue
    if not isinstance(i, int) or not 0 <= i < len(pieces):
      raise UserError(
        f"{where}: {key} is {quote_name(i)}, expected an id from 0 to {len(pieces) - 1}; copy the "
        "file again"
      )
    config[f"{name}_token"] = pieces[i]
  template = metadata.get(TEMPLATE)
  if isinstance(template, str):
    config["chat_template"] = template
  return config


def _list_added_tokens(pieces: list[str], types: list[int]) -> list[dict[str, Any]]:
  """Return the pieces into which no text is cut; control pieces and the unknown are special."""
  added_tokens = []
  for i, (piece, piece_type) in enumerate(zip(pieces, types, strict=True)):
    if piece_type not in (CONTROL, UNKNOWN, USER_DEFINED):
      continue
    flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=False)
    is_special = piece_type != USER_DEFINED
    added_tokens.append({"id": i, "content": piece, **flags, "special": is_special})
  return added_tokens


def _post_processor(config: dict[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any] | None:
  """Return the step that puts BOS before and EOS after a text, each if the file says so."""
  first = config.get("bos_token") if config["add_bos_token"] else None
  last = config.get("eos_token") if config["add_eos_token"] else None
  ids = {}
  template = [{"Sequence": {"id": "A", "type_id": 0}}]
  if first is not None:
    template.insert(0, {"SpecialToken": {"id": first, "type_id": 0}})
    ids[first] = metadata[_SPECIAL["bos"]]
  if last is not None:
    template.append({"SpecialToken": {"id": last, "type_id": 0}})
    ids[last] = metadata[_SPECIAL["eos"]]
  if not ids:
    return None
  special = {}
  for piece, i in ids.items():
    special[piece] = {"id": piece, "ids": [i], "tokens": [piece]}
  second = [{"Sequence": {"id": "B", "type_id": 1}}]
  return {
    "type": "TemplateProcessing",
    "single": template,
    "pair": template + second,
    "special_tokens": special,
  }


def write_tokenizer(
  model: bytes | None, vocabulary: Vocabulary, enclosing: tuple[list[int], list[int]], size: int
) -> dict[str, Any]:
  """Return the metadata of a vocabulary.

  Args:
    model: its `tokenizer.json`, complete with added tokens; None if it has none.
    vocabulary: the vocabulary, for its special ids.
    enclosing: the ids before and after a text.
    size: the number of the model's token vectors; ids without a piece are unused.
  Raises:
    UserError: GGUF has no equal tokenizer.
  """
  tokenizer = json.loads(model or b"{}")
  kind = (tokenizer.get("model") or {}).get("type")
  if kind != "BPE" or tokenizer["model"].get("continuing_subword_prefix"):
    raise UserError(
      f"the vocabulary is of kind {kind or type(vocabulary).__name__}, expected BPE, byte-level or "
      "SentencePiece's, which GGUF has; export to a Hugging Face directory instead"
    )
  special_ids = _special_ids(vocabulary, enclosing)
  pieces, types = _list_pieces(tokenizer, special_ids["unk"], size)
  merges = pipelines.Pieces.of(tokenizer).merges
  metadata: dict[str, Any] = {
    f"{PREFIX}tokens": pieces,
    f"{PREFIX}add_bos_token": bool(enclosing[0]),
    f"{PREFIX}add_eos_token": bool(enclosing[1]),
  }
  if tokenizer["model"].get("byte_fallback"):
    metadata |= {
      f"{PREFIX}model": "llama",
      f"{PREFIX}pre": "default",
      f"{PREFIX}scores": [-float(i) for i in range(size)],
      f"{PREFIX}add_space_prefix": _adds_space(tokenizer),
    }
    for i, piece in enumerate(pieces):
      if types[i] == NORMAL and piece.startswith("<0x") and len(piece) == 6:
        types[i] = BYTE
  else:
    metadata |= {
      f"{PREFIX}model": "gpt2",
      f"{PREFIX}pre": _name_words(tokenizer),
      f"{PREFIX}merges": [" ".join(merge) for merge in merges],
    }
  metadata[f"{PREFIX}token_type"] = types
  for name, key in _SPECIAL.items():
    if special_ids[name] is not None:
      metadata[key] = special_ids[name]
  _require_equal_merges(metadata, merges, types)
  return metadata


def _special_ids(
  vocabulary: Vocabulary, enclosing: tuple[list[int], list[int]]
) -> dict[str, int | None]:
  """Return the ids of `_SPECIAL`; BOS is the piece with which texts begin, if they do."""
  before, after = enclosing
  if len(before) > 1 or after not in ([], [vocabulary.eos_id]):
    raise UserError(
      f"texts begin with the ids {before} and end with {after}, expected at most BOS and EOS, "
      "which GGUF has; export to a Hugging Face directory instead"
    )
  return {
    "bos": before[0] if before else vocabulary.bos_id,
    "eos": vocabulary.eos_id,
    "unk": None if vocabulary.unk_id == vocabulary.eos_id else vocabulary.unk_id,
    "pad": vocabulary.pad_id,
  }


def _list_pieces(
  tokenizer: dict[str, Any], unknown: int | None, size: int
) -> tuple[list[str], list[int]]:
  """Return the pieces and their types, by id."""
  pieces = [f"[PAD{i}]" for i in range(size)]
  types = [UNUSED] * size
  for piece, i in tokenizer["model"]["vocab"].items():
    pieces[i] = piece
    types[i] = NORMAL
  for token in tokenizer.get("added_tokens") or ():
    i = token["id"]
    if i < size:
      pieces[i] = token["content"]
      types[i] = CONTROL if token.get("special") else USER_DEFINED
      if i == unknown and token.get("special"):
        types[i] = UNKNOWN if tokenizer["model"].get("byte_fallback") else CONTROL
  return pieces, types


def _adds_space(tokenizer: dict[str, Any]) -> bool:
  """Return whether a SentencePiece tokenizer puts a space before a text."""
  text = json.dumps([tokenizer.get("normalizer"), tokenizer.get("pre_tokenizer")])
  return '"Prepend"' in text or '"always"' in text or '"first"' in text


def _name_words(tokenizer: dict[str, Any]) -> str:
  """Return the name of a byte-level tokenizer's words; raise UserError if there is none."""
  steps = []
  for step in _flatten(tokenizer.get("pre_tokenizer"), "pretokenizers"):
    if step["type"] == "Digits" and step.get("individual_digits"):
      steps.append(_DIGITS)
    elif step["type"] == "Split" and step.get("behavior") == "Isolated":
      steps.append(_normalise_expression(step["pattern"].get("Regex", "")))
    elif step["type"] == "ByteLevel" and not step.get("add_prefix_space"):
      steps += [_GPT2_WORDS] if step.get("use_regex", True) else []
    else:
      steps.append(json.dumps(step))
  normalizers = [step["type"] for step in _flatten(tokenizer.get("normalizer"), "normalizers")]
  for name, expected in _WORDS.items():
    is_whole = bool(tokenizer["model"].get("ignore_merges")) == (name in _WHOLE_WORDS)
    composition = ["NFC"] if name in _COMPOSED else []
    if steps == list(expected) and is_whole and normalizers == composition:
      return name
  raise UserError(
    "found a cut of texts into words that has no name in GGUF, expected that of "
    f"{', '.join(_WORDS)}; export to a Hugging Face directory instead"
  )


def _flatten(step: dict[str, Any] | None, key: str) -> Sequence[dict[str, Any]]:
  """Return the steps of a normaliser or pre-tokenizer that may be a sequence."""
  if not step:
    return ()
  return step[key] if step["type"] == "Sequence" else (step,)


def _normalise_expression(expression: str) -> str:
  """Return a regular expression in the spelling of `_WORDS`."""
  spelled_out = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
  return expression.replace(spelled_out, _ENDINGS)


def _require_equal_merges(
  metadata: Mapping[str, Any], merges: list[list[str]], types: list[int]
) -> None:
  """Refuse a SentencePiece model whose merges do not follow from the order of its pieces."""
  if metadata[f"{PREFIX}model"] != "llama":
    return
  pieces = metadata[f"{PREFIX}tokens"]
  normal = [piece for i, piece in enumerate(pieces) if types[i] == NORMAL]
  derived = pipelines.derive_merges({piece: rank for rank, piece in enumerate(normal)})
  if {tuple(merge) for merge in merges} != {tuple(merge) for merge in derived}:
    raise UserError(
      "found merges that do not follow from the order of the pieces, as GGUF's do; export to a "
      "Hugging Face directory instead"
    )

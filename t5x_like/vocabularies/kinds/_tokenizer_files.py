"""Read the JSON files of a published tokenizer, and check the type of every value in use."""

import re
from collections.abc import Callable
from typing import Any

from t5x_like import vocabularies
from t5x_like.errors import UserError
from t5x_like.files import checked_json
from t5x_like.files.file_names import quote_name
from t5x_like.files.paths import AnyPath
from t5x_like.vocabularies import CONFIG, TOKENIZER

MODEL_CONFIG = "config.json"
SPECIAL = "special_tokens_map.json"
ADDED = "added_tokens.json"
VOCABULARY = "vocab.json"
# in the order in which `transformers` adds them
NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")

_MAX_ID = 2**31 - 1


def _is(*kinds: type) -> Callable[[Any], bool]:
  return lambda value: isinstance(value, kinds)


def _is_id(value: Any) -> bool:
  return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_ID


def _are_ids(value: Any) -> bool:
  return all(map(_is_id, value if isinstance(value, list) else [value]))


def _is_object(value: Any) -> bool:
  if not isinstance(value, dict) or not isinstance(value.get("content"), str):
    return False
  return all(isinstance(value.get(flag, False), bool) for flag in FLAGS)


def _is_token(value: Any) -> bool:
  return value is None or isinstance(value, str) or _is_object(value)


def _are_tokens(value: Any) -> bool:
  if isinstance(value, dict):
    value = list(value.values())
  return isinstance(value, list) and all(map(_is_token, value))


def _are_listed(value: Any) -> bool:
  if not isinstance(value, list):
    return False
  return all(_is_object(token) and _is_id(token.get("id")) for token in value)


def _are_added(value: Any) -> bool:
  if not isinstance(value, dict):
    return False
  return all(re.fullmatch("[0-9]{1,9}", i) and _is_object(token) for i, token in value.items())


# Each is (the expected value in words, its test). The tokenizers library checks the inside of a
# `tokenizer.json`.
_OBJECT = ("an object", _is(dict))
_TEXT = ("text", _is(str))
_BOOL = ("true or false", _is(bool))
_ID = (f"an id from 0 to {_MAX_ID}", _is_id)
_IDS = ("an id or a list of ids", _are_ids)
_TOKEN = ("a token: text, or an object with 'content' and flags", _is_token)
_TOKENS = ("a list of tokens", _are_tokens)
_ADDED = ("an object from ids to tokens, objects with 'content' and flags", _are_added)
_LISTED_TOKENS = ("a list of tokens, objects with 'id', 'content' and flags", _are_listed)
_SPECIAL_TOKENS = {
  **{f"{name}_token": _TOKEN for name in NAMES},
  "additional_special_tokens": _TOKENS,
  "extra_special_tokens": _TOKENS,
}
_VALUES: dict[str, dict[str, tuple[str, Callable[[Any], bool]]]] = {
  TOKENIZER: {
    "model": _OBJECT,
    "normalizer": _OBJECT,
    "pre_tokenizer": _OBJECT,
    "decoder": _OBJECT,
    "post_processor": _OBJECT,
    "added_tokens": _LISTED_TOKENS,
  },
  CONFIG: {
    **_SPECIAL_TOKENS,
    "tokenizer_class": _TEXT,
    "extra_ids": _ID,
    "added_tokens_decoder": _ADDED,
    "add_bos_token": _BOOL,
    "add_eos_token": _BOOL,
    "add_prefix_space": _BOOL,
    "do_lower_case": _BOOL,
    "legacy": _BOOL,
    "split_special_tokens": _BOOL,
    "strip_accents": _BOOL,
    "tokenize_chinese_chars": _BOOL,
    "separate_vocabs": _BOOL,
  },
  SPECIAL: _SPECIAL_TOKENS,
  MODEL_CONFIG: {
    "model_type": _TEXT,
    "tokenizer_class": _TEXT,
    "decoder_start_token_id": _ID,
    **{f"{name}_token_id": _IDS for name in NAMES},
  },
}
_UNIFORM_FILES = {ADDED: _ID, VOCABULARY: _ID}  # files with one kind of values


def read_file(directory: AnyPath, name: str) -> dict[str, Any] | None:
  """Read the JSON object in a file of a directory; return None if the file does not exist.

  Raises:
    UserError: the file is not JSON, or a value in use has the wrong type.
  """
  path = directory / name
  if not path.exists():
    return None
  return parse_file(vocabularies.read_file(path), str(path), name)


def parse_file(data: bytes, path: str, name: str) -> dict[str, Any]:
  """Return the JSON object in the content of the file `name` of a tokenizer.

  Raises:
    UserError: see `read_file`; the message names `path`.
  """
  content = checked_json.parse_json(data, dict, path, "the file of a tokenizer; copy it again")
  for key, value in content.items():
    check = _UNIFORM_FILES.get(name) or _VALUES.get(name, {}).get(key)
    is_none = value is None or (name == MODEL_CONFIG and value == -1)
    if check is None or is_none:
      continue
    expected, is_valid = check
    if not is_valid(value):
      raise UserError(
        f"{path}: found {quote_name(value)} for {key[:80]!r}, expected {expected}; copy the file "
        "again"
      )
  return content

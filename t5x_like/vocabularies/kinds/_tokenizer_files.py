"""The JSON files of a published tokenizer, with type checks for every value in use."""

import re
from typing import Annotated, Any

import t5x_like.vocabularies.storage as storage
from t5x_like import slots
from t5x_like.errors import UserError
from t5x_like.files import checked_json
from t5x_like.files.file_names import shown
from t5x_like.files.objects import Place
from t5x_like.slots import Condition
from t5x_like.vocabularies.storage import CONFIG, TOKENIZER

MODEL_CONFIG = "config.json"
SPECIAL, ADDED, VOCABULARY = "special_tokens_map.json", "added_tokens.json", "vocab.json"
NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")  # in the order in which the library adds them
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")

_MOST = 2**31 - 1


def _is_id(found: Any) -> bool:
  return isinstance(found, int) and not isinstance(found, bool) and 0 <= found <= _MOST


def _is_object(found: Any) -> bool:
  flags = isinstance(found, dict) and all(isinstance(found.get(flag, False), bool) for flag in FLAGS)
  return flags and isinstance(found.get("content"), str)


def _is_token(found: Any) -> bool:
  return found is None or isinstance(found, str) or _is_object(found)


def _are_tokens(found: list | dict) -> bool:
  return all(map(_is_token, found.values() if isinstance(found, dict) else found))


def _is_pair(found: Any) -> bool:
  return isinstance(found, str) or (
    isinstance(found, list) and len(found) == 2 and all(slots.fits(x, str) for x in found)
  )


def _is_piece(found: Any) -> bool:
  return isinstance(found, list) and len(found) == 2 and slots.fits(found[0], str) and slots.fits(found[1], float)


def _is_vocabulary(found: Any) -> bool:
  if isinstance(found, list):
    return all(map(_is_piece, found))
  return isinstance(found, dict) and all(map(_is_id, found.values()))


def _is_model(found: dict) -> bool:
  merges = found.get("merges")
  return _is_vocabulary(found.get("vocab") or {}) and (
    merges is None or (isinstance(merges, list) and all(map(_is_pair, merges)))
  )


_Id = Annotated[object, Condition(f"an id from 0 to {_MOST}", _is_id)]
_Ids = Annotated[
  object, Condition("an id or a list of ids", lambda x: all(map(_is_id, x if isinstance(x, list) else [x])))
]
_Token = Annotated[object, Condition("a token: text, or an object with 'content' and flags", _is_token)]
_Tokens = Annotated[list | dict, Condition("a list of tokens", _are_tokens)]
_Added = Annotated[
  dict,
  Condition(
    "an object from ids to tokens, objects with 'content' and flags",
    lambda found: all(re.fullmatch("[0-9]{1,9}", i) and _is_object(one) for i, one in found.items()),
  ),
]
_Listed = Annotated[
  list,
  Condition(
    "a list of tokens, objects with 'id', 'content' and flags",
    lambda found: all(_is_object(one) and _is_id(one.get("id")) for one in found),
  ),
]
_Model = Annotated[
  dict, Condition("an object with 'vocab', ids by piece or scored pieces, and 'merges', pairs", _is_model)
]

_TOKENS = {f"{name}_token": _Token for name in NAMES} | {
  "additional_special_tokens": _Tokens,
  "extra_special_tokens": _Tokens,
}
_BOOLS = (
  "add_bos_token add_eos_token add_prefix_space do_lower_case legacy split_special_tokens strip_accents "
  "tokenize_chinese_chars"
)
_KINDS: dict[str, dict[str, Any]] = {
  TOKENIZER: {
    "model": _Model,
    "added_tokens": _Listed,
    "normalizer": dict,
    "pre_tokenizer": dict,
    "decoder": dict,
    "post_processor": dict,
  },
  CONFIG: {
    **_TOKENS,
    **dict.fromkeys(_BOOLS.split(), bool),
    "tokenizer_class": str,
    "extra_ids": _Id,
    "added_tokens_decoder": _Added,
  },
  SPECIAL: _TOKENS,
  MODEL_CONFIG: {
    "model_type": str,
    "tokenizer_class": str,
    "decoder_start_token_id": _Id,
    **{f"{name}_token_id": _Ids for name in NAMES},
  },
}
_EVERY = {ADDED: _Id, VOCABULARY: _Id}  # files whose values are all alike


def read(directory: Place, name: str) -> dict[str, Any] | None:
  """Read the JSON object in a file of a directory; return None if the file does not exist.

  Raises:
    UserError: the file is not JSON, or a value in use has the wrong type.
  """
  path = directory / name
  if not path.exists():
    return None
  found = checked_json.parsed(storage.read(path), dict, str(path), "the file of a tokenizer; copy it again")
  for key, value in found.items():
    kind = _EVERY.get(name) or _KINDS.get(name, {}).get(key)
    negative = name == MODEL_CONFIG and value == -1  # which means none
    if kind is not None and value is not None and not negative and not slots.fits(value, kind):
      raise UserError(
        f"{path}: found {shown(value)} for {key[:80]!r}, expected {slots.words(kind)}; copy the file again"
      )
  return found

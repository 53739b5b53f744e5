"""Read the generation settings of a published model as options of `predict`, and write them.

Settings of sampling (`do_sample`, `temperature`, `top_k`, …) are not read: a prediction is the same
every time unless the user chooses to sample.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from t5x_like import slots
from t5x_like.errors import UserError
from t5x_like.files.file_names import quote_name
from t5x_like.interop.field_types import Count, Counts, Factor
from t5x_like.slots import Condition

FILE = "generation_config.json"
_SAMPLING_OPTIONS = {"samples", "seed", "temperature", "top_k", "top_p", "min_p", "typical_p"}
_Sequences = Annotated[
  list,
  Condition("lists of ids", lambda lists: all(ids and slots.fits(ids, Counts) for ids in lists)),
]
_TYPES = {
  "repetition_penalty": Factor,
  **dict.fromkeys(("no_repeat_ngram_size", "num_beams", "min_length", "max_length"), Count),
  **dict.fromkeys(("min_new_tokens", "max_new_tokens"), Count),
  "length_penalty": float,
  "early_stopping": bool | Literal["never"],
  "bad_words_ids": _Sequences,
  "suppress_tokens": Counts,
}


def predict_options(
  settings: Mapping[str, Any], is_encoder_decoder: bool, origin: str
) -> dict[str, Any]:
  """Return the options of `predict` in settings, and `early_stopping` if there are beams.

  Lengths that count a decoder's prompt are left out.

  Args:
    settings: the content of the file.
    is_encoder_decoder: whether the model is an encoder-decoder; its start token counts in
      `min_length` and `max_length`.
    origin: the file, for messages.
  Raises:
    UserError: a setting has the wrong type.
  """
  settings = {name: settings[name] for name in _TYPES if settings.get(name) is not None}
  for name, value in settings.items():
    if not slots.fits(value, _TYPES[name]):
      raise UserError(
        f"{origin}: field {name!r} is {quote_name(value)}, expected "
        f"{slots.describe_type(_TYPES[name])}; correct it"
      )
  options = {}
  options["no_repeat_ngram_size"] = settings.get("no_repeat_ngram_size", 0)
  for bound in ("min", "max"):
    new_tokens = settings.get(f"{bound}_new_tokens", 0)
    if is_encoder_decoder and not new_tokens:
      new_tokens = max(settings.get(f"{bound}_length", 0) - 1, 0)
    options[f"{bound}_new_tokens"] = new_tokens
  options = {name: value for name, value in options.items() if value}
  penalty = settings.get("repetition_penalty", 1.0)
  if penalty != 1.0:
    options["repetition_penalty"] = penalty
  beams = settings.get("num_beams", 1)
  if beams > 1:
    options["beams"] = beams
    options["length_power"] = settings.get("length_penalty", 1.0)
    options["early_stopping"] = settings.get("early_stopping", False)
  return options


def banned_sequences(settings: Mapping[str, Any], size: int) -> list[list[int]]:
  """Return the sequences of ids that checked settings ban, without ids from `size` on."""
  words = settings.get("bad_words_ids") or []
  tokens = [[i] for i in settings.get("suppress_tokens") or []]
  return [ids for ids in [*words, *tokens] if max(ids) < size]


def export_settings(
  evals: Mapping[str, Mapping[str, Any]], config: Mapping[str, Any], content: bytes = b"{}"
) -> bytes | None:
  """Return the file by which `transformers` searches as the first evaluator `generation` of a run.

  T5X's length penalty has no counterpart there, so beams ranked by it get the default of
  `transformers`.

  Args:
    evals: the run's evaluators.
    config: the `config.json` in the file's directory; its special ids are in the file too.
    content: the file so far.
  Returns:
    None if the evaluator decodes greedily.
  """
  search = _first_generation(evals)
  beams = search.get("beams", 1)
  settings = dict(search.get("penalties") or {})
  if beams > 1:
    settings["num_beams"] = beams
    settings["length_penalty"] = search.get("length_power")
    settings["early_stopping"] = "never"
  if not settings:
    return None
  settings["max_new_tokens"] = search.get("max_new_tokens")
  settings = {name: value for name, value in settings.items() if value is not None}
  ids = {name: value for name, value in config.items() if name.endswith("_token_id")}
  return (json.dumps(ids | json.loads(content) | settings, indent=2) + "\n").encode()


def _first_generation(evals: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
  """Return the first evaluator `generation` of a run, {} if there is none."""
  for name, evaluator in evals.items():
    if evaluator.get("name", name) == "generation":
      return evaluator
  return {}


def merge_options(settings: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
  """Return the user's options, completed by a model's settings that do not contradict them.

  The model's beams are left out if the options sample or have one beam, and the settings of its
  beams if the options have a length penalty.

  Args:
    settings: the options in a model's settings.
    options: the user's options.
  """
  defaults = {name: value for name, value in settings.items() if name not in options}
  if _SAMPLING_OPTIONS & options.keys() or options.get("beams") == 1:
    defaults.pop("beams", None)
  if "length_penalty" in options or (defaults | dict(options)).get("beams", 1) == 1:
    defaults.pop("length_power", None)
    defaults.pop("early_stopping", None)
  if "min_new_tokens" in defaults and "max_new_tokens" in options:
    defaults["min_new_tokens"] = min(defaults["min_new_tokens"], options["max_new_tokens"])
  if "max_new_tokens" in defaults and "min_new_tokens" in options:
    defaults["max_new_tokens"] = max(defaults["max_new_tokens"], options["min_new_tokens"])
  return defaults | dict(options)

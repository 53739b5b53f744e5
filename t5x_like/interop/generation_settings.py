"""Settings of generation beside a published model: read as options of `predict`, and written for
`transformers`.

How tokens are drawn (`do_sample`, `temperature`, `top_k`, …) is the reader's choice and not read: a
prediction is the same every time unless draws are asked for.
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
_Sequences = Annotated[
  list, Condition("lists of ids", lambda some: all(one and slots.fits(one, Counts) for one in some))
]
_KINDS = {
  "repetition_penalty": Factor,
  **dict.fromkeys(("no_repeat_ngram_size", "num_beams", "min_length", "max_length"), Count),
  **dict.fromkeys(("min_new_tokens", "max_new_tokens"), Count),
  "length_penalty": float,
  "early_stopping": bool | Literal["never"],
  "bad_words_ids": _Sequences,
  "suppress_tokens": Counts,
}


def predict_options(own: Mapping[str, Any], both: bool, origin: str) -> dict[str, Any]:
  """Return the options of `predict` that settings ask for, and `early_stopping` beside beams.

  Lengths that count a decoder's prompt are left out.

  Args:
    own: the settings.
    both: whether the model is an encoder-decoder; its start token counts in their `min_length` and
      `max_length`.
    origin: the file, for messages.
  Raises:
    UserError: a setting has the wrong type.
  """
  given = {name: own.get(name) for name in _KINDS if own.get(name) is not None}
  for name, value in given.items():
    if not slots.fits(value, _KINDS[name]):
      raise UserError(
        f"{origin}: field {name!r} is {quote_name(value)}, expected "
        f"{slots.describe_type(_KINDS[name])}; correct it"
      )
  found = {
    name: given.get(name, 0)
    for name in ("no_repeat_ngram_size", "min_new_tokens", "max_new_tokens")
  }
  for end in ("min", "max"):
    if both and not found[f"{end}_new_tokens"]:
      found[f"{end}_new_tokens"] = max(given.get(f"{end}_length", 0) - 1, 0)
  if (penalty := given.get("repetition_penalty", 1.0)) != 1.0:
    found["repetition_penalty"] = penalty
  if (beams := given.get("num_beams", 1)) > 1:
    power = given.get("length_penalty", 1.0)
    stopping = given.get("early_stopping", False)
    found |= {"beams": beams, "length_power": power, "early_stopping": stopping}
  return {
    name: value
    for name, value in found.items()
    if value or name in ("length_power", "early_stopping")
  }


def banned_sequences(own: Mapping[str, Any], size: int) -> list[list[int]]:
  """Return the sequences of ids that checked settings ban, without those that have ids from `size`
  on."""
  some = [*(own.get("bad_words_ids") or ()), *([i] for i in own.get("suppress_tokens") or ())]
  return [ids for ids in some if max(ids) < size]


def export_settings(
  evals: Mapping[str, Mapping[str, Any]], config: Mapping[str, Any], own: bytes = b"{}"
) -> bytes | None:
  """Return the file by which `transformers` searches as the first evaluator `generation` of a run;
  None if greedily.

  T5X's length penalty has no counterpart there, so beams ranked by it get the default of
  `transformers`.

  Args:
    evals: the run's evaluators.
    config: the `config.json` beside the file; its special ids are in the file too.
    own: the file so far.
  """
  search = next((one for name, one in evals.items() if one.get("name", name) == "generation"), {})
  beams = search.get("beams", 1)
  found = dict(search.get("penalties") or {})
  if beams > 1:
    found |= {
      "num_beams": beams,
      "length_penalty": search.get("length_power"),
      "early_stopping": "never",
    }
  if not found:
    return None
  found["max_new_tokens"] = search.get("max_new_tokens")
  ids = {name: value for name, value in config.items() if name.endswith("_token_id")}
  whole = (
    ids | json.loads(own) | {name: value for name, value in found.items() if value is not None}
  )
  return (json.dumps(whole, indent=2) + "\n").encode()


def merge_options(settings: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
  """Return the options given, completed with a model's settings where these do not contradict them.

  A model's beams give way to draws, and to beams, samples or a penalty that are asked for.
  """
  own = {name: value for name, value in settings.items() if name not in given}
  drawn = {"samples", "seed", "temperature", "top_k", "top_p", "min_p", "typical_p"} & given.keys()
  if drawn or given.get("beams") == 1:
    own.pop("beams", None)
  if "length_penalty" in given or {**own, **given}.get("beams", 1) == 1:
    own = {
      name: value for name, value in own.items() if name not in ("length_power", "early_stopping")
    }
  if "min_new_tokens" in own and "max_new_tokens" in given:
    own["min_new_tokens"] = min(own["min_new_tokens"], given["max_new_tokens"])
  if "max_new_tokens" in own and "min_new_tokens" in given:
    own["max_new_tokens"] = max(own["max_new_tokens"], given["min_new_tokens"])
  return own | dict(given)

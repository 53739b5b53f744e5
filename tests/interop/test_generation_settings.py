"""Settings of generation: read as options, written for `transformers`, and replaced by what a call
asks for."""

import json

import pytest

from t5x_like.errors import UserError
from t5x_like.interop.generation_settings import (
  banned_sequences,
  export_settings,
  merge_options,
  predict_options,
)

BART_CNN = {  # the published ones
  "eos_token_id": 2,
  "early_stopping": True,
  "length_penalty": 2.0,
  "max_length": 142,
  "min_length": 56,
  "no_repeat_ngram_size": 3,
  "num_beams": 4,
}
OWN = {
  "beams": 4,
  "length_power": 2.0,
  "early_stopping": True,
  "no_repeat_ngram_size": 3,
  "min_new_tokens": 55,
  "max_new_tokens": 141,
}


def test_published_settings_are_options():
  assert predict_options(BART_CNN, True, "file") == OWN
  assert predict_options(BART_CNN, False, "file") == {k: OWN[k] for k in OWN if "new" not in k}
  drawn = {
    "do_sample": True,
    "temperature": 0.6,
    "top_p": 0.9,
    "repetition_penalty": 1.05,
    "min_new_tokens": None,
  }
  assert predict_options(drawn, False, "file") == {"repetition_penalty": 1.05}
  assert (
    predict_options(
      {"repetition_penalty": 1.0, "num_beams": 1, "no_repeat_ngram_size": 0}, True, "file"
    )
    == {}
  )
  assert (
    banned_sequences({"bad_words_ids": [[7], [8, 99]], "suppress_tokens": [3]}, 50) == [[7], [3]]
    and banned_sequences({}, 50) == []
  )


@pytest.mark.parametrize(
  "settings",
  [
    {"num_beams": "4"},
    {"no_repeat_ngram_size": -1},
    {"bad_words_ids": [7]},
    {"repetition_penalty": 0},
  ],
)
def test_a_setting_of_the_wrong_type_is_named(settings):
  with pytest.raises(UserError, match=f"file: field '{next(iter(settings))}' is .*; correct it"):
    predict_options(settings, True, "file")


def test_what_is_asked_for_replaces_settings():
  assert merge_options(OWN, {"beams": 2, "max_new_tokens": 20}) == OWN | {
    "beams": 2,
    "max_new_tokens": 20,
    "min_new_tokens": 20,
  }
  lengths = {
    name: OWN[name] for name in ("no_repeat_ngram_size", "min_new_tokens", "max_new_tokens")
  }
  assert merge_options(OWN, {"top_p": 0.9}) == lengths | {"top_p": 0.9} and merge_options(
    OWN, {"beams": 1}
  ) == lengths | {"beams": 1}
  assert merge_options(OWN, {"length_penalty": 1.0}) == lengths | {
    "beams": 4,
    "length_penalty": 1.0,
  }
  assert merge_options({}, {"top_k": 4}) == {"top_k": 4}


def test_a_run_exports_the_search_of_its_evaluator():
  penalties = {name: OWN[name] for name in ("no_repeat_ngram_size", "min_new_tokens")}
  evaluator = {"name": "generation", "penalties": penalties}
  evaluator |= {name: OWN[name] for name in ("beams", "length_power", "max_new_tokens")}
  ids = {"eos_token_id": 2, "pad_token_id": 1}
  settings = json.loads(
    export_settings(
      {"loss": {}, "dev": evaluator}, {**ids, "d_model": 8}, b'{"eos_token_id": [2, 5]}'
    )
  )
  assert (
    settings["eos_token_id"] == [2, 5]
    and settings["pad_token_id"] == 1
    and "d_model" not in settings
  )
  # T5X's rule is the nearest to it
  assert predict_options(settings, True, "file") == OWN | {"early_stopping": "never"}
  assert (
    export_settings({"loss": {}}, ids)
    is export_settings({"dev": {"name": "generation", "max_new_tokens": 9}}, ids)
    is None
  )

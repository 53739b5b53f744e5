"""Generation settings are read as options, exported for `transformers`, and overridden by calls."""

import json

import pytest

from t5x_like.errors import UserError
from t5x_like.interop.generation_settings import (
  banned_sequences,
  export_settings,
  merge_options,
  predict_options,
)

BART_CNN = {  # the published settings
  "eos_token_id": 2,
  "early_stopping": True,
  "length_penalty": 2.0,
  "max_length": 142,
  "min_length": 56,
  "no_repeat_ngram_size": 3,
  "num_beams": 4,
}
OPTIONS = {
  "beams": 4,
  "length_power": 2.0,
  "early_stopping": True,
  "no_repeat_ngram_size": 3,
  "min_new_tokens": 55,
  "max_new_tokens": 141,
}


def test_published_settings_are_options():
  assert predict_options(BART_CNN, True, "file") == OPTIONS
  without_lengths = dict(OPTIONS)
  del without_lengths["min_new_tokens"], without_lengths["max_new_tokens"]
  assert predict_options(BART_CNN, False, "file") == without_lengths
  sampling = {
    "do_sample": True,
    "temperature": 0.6,
    "top_p": 0.9,
    "repetition_penalty": 1.05,
    "min_new_tokens": None,
  }
  assert predict_options(sampling, False, "file") == {"repetition_penalty": 1.05}
  neutral = {"repetition_penalty": 1.0, "num_beams": 1, "no_repeat_ngram_size": 0}
  assert predict_options(neutral, True, "file") == {}


def test_banned_sequences_are_read_within_the_vocabulary():
  settings = {"bad_words_ids": [[7], [8, 99]], "suppress_tokens": [3]}
  assert banned_sequences(settings, 50) == [[7], [3]]
  assert banned_sequences({}, 50) == []


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


def test_options_of_a_call_replace_settings():
  shorter = {"beams": 2, "max_new_tokens": 20, "min_new_tokens": 20}
  assert merge_options(OPTIONS, {"beams": 2, "max_new_tokens": 20}) == OPTIONS | shorter
  search_independent = {
    name: OPTIONS[name] for name in ("no_repeat_ngram_size", "min_new_tokens", "max_new_tokens")
  }
  for options in ({"top_p": 0.9}, {"beams": 1}):
    assert merge_options(OPTIONS, options) == search_independent | options
  expected = search_independent | {"beams": 4, "length_penalty": 1.0}
  assert merge_options(OPTIONS, {"length_penalty": 1.0}) == expected
  assert merge_options({}, {"top_k": 4}) == {"top_k": 4}


def test_a_run_exports_the_search_of_its_evaluator():
  penalties = {name: OPTIONS[name] for name in ("no_repeat_ngram_size", "min_new_tokens")}
  evaluator = {"name": "generation", "penalties": penalties}
  evaluator |= {name: OPTIONS[name] for name in ("beams", "length_power", "max_new_tokens")}
  ids = {"eos_token_id": 2, "pad_token_id": 1}
  evals = {"loss": {}, "dev": evaluator}
  exported = export_settings(evals, {**ids, "d_model": 8}, b'{"eos_token_id": [2, 5]}')
  settings = json.loads(exported)
  assert settings["eos_token_id"] == [2, 5]
  assert settings["pad_token_id"] == 1
  assert "d_model" not in settings
  # "never" is the value of `transformers` nearest to T5X's rule, by which the evaluator stops.
  assert predict_options(settings, True, "file") == OPTIONS | {"early_stopping": "never"}
  assert export_settings({"loss": {}}, ids) is None
  greedy = {"name": "generation", "max_new_tokens": 9}
  assert export_settings({"dev": greedy}, ids) is None

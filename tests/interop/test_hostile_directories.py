"""Sizes and types that a directory states falsely: one line through the command, before anything is
allocated."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import published
from interop.test_golden import write
from t5x_like.errors import UserError
from t5x_like.interop import hf
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary
from tests.fuzz.harness import Sandbox
from tools import convert_hf, prepare_data

pytestmark = pytest.mark.runs

CONFIGS = {
  "a list": ("t5", lambda config: [], "found a JSON array, expected"),
  "null": ("t5", lambda config: None, "found a JSON null, expected"),
  "nested": (
    "bert-mlm",
    lambda config: config | {"hidden_size": {"a": 1}},
    "'hidden_size' is {'a': 1}, expected",
  ),
  "a list for a type": (
    "t5",
    lambda config: config | {"model_type": ["t5"]},
    "model_type is ['t5'], expected one of",
  ),
  "no heads": (
    "gpt2",
    lambda config: config | {"n_head": 0},
    "'n_head' is 0, expected a whole number from 1",
  ),
  "a negative size": (
    "t5",
    lambda config: config | {"vocab_size": -1},
    "'vocab_size' is -1, expected",
  ),
  "half a size": ("t5", lambda config: config | {"d_ff": 32.5}, "'d_ff' is 32.5, expected"),
  "no number": (
    "llama",
    lambda config: config | {"rms_norm_eps": float("nan")},
    "'rms_norm_eps' is nan, expected",
  ),
  "layers": ("llama", lambda config: config | {"num_hidden_layers": 10**9}, "no more than the"),
  "a width": ("mixtral", lambda config: config | {"intermediate_size": 10**9}, "no more than the"),
  "experts": ("mixtral", lambda config: config | {"num_local_experts": 10**8}, "no more than the"),
  "uneven heads": ("gpt2", lambda config: config | {"n_head": 3}, "cannot share a width"),
}


def convert(tmp_path, directory, message):
  sandbox = Sandbox(tmp_path / "sandbox", seconds=20, memory=2**30)
  flags = [f"--input={directory}", "--config=tests/recipes/nano.py"]
  outcome = sandbox.run(message, lambda inside: convert_hf.main([*flags, f"--output={inside}/run"]))
  sandbox.check()
  assert outcome.end == "refusal" and message in outcome.message, outcome


@pytest.mark.parametrize("case", CONFIGS)
def test_a_config_of_other_types_or_sizes_is_refused(case, tmp_path):
  name, change, message = CONFIGS[case]
  write(name, tmp_path / "model")
  file = tmp_path / "model" / "config.json"
  file.write_text(json.dumps(change(json.loads(file.read_text()))))
  if case == "uneven heads":  # refused before the recipe is compared
    with pytest.raises(UserError, match=message):
      hf.load(str(tmp_path / "model"))
    return
  convert(tmp_path, tmp_path / "model", message)


@pytest.mark.parametrize("weight_map", [[], ["a"], "a", {"a": 1}, {"a": ["b"]}, {"a": {}}, None])
def test_an_index_that_maps_nothing_to_files_is_refused(weight_map, tmp_path):
  write("t5", tmp_path / "model")
  (tmp_path / "model" / "model.safetensors").unlink()
  (tmp_path / "model" / "model.safetensors.index.json").write_text(
    json.dumps({"weight_map": weight_map})
  )
  convert(tmp_path, tmp_path / "model", "found no 'weight_map' from tensors to files")


def test_extra_ids_of_a_billion_are_refused_at_once(tmp_path):
  ByteVocabulary().save(tmp_path / "vocabulary")
  file = tmp_path / "vocabulary" / "vocabulary.json"
  file.write_text(
    json.dumps(json.loads(file.read_text()) | {"extra_ids": 10**9, "size": 10**9 + 259})
  )
  refused(tmp_path, "found extra_ids 1000000000, expected a whole number of sentinels")


def test_an_id_of_400_million_is_refused_at_once(tmp_path):
  described = json.loads(published.byte_level(["[PAD]", "</s>", "[UNK]"]).to_str())
  described["model"]["vocab"]["zzz"] = 400_000_000
  (tmp_path / "vocabulary").mkdir()
  (tmp_path / "vocabulary" / "tokenizer.json").write_text(json.dumps(described))
  refused(tmp_path, "found id 400000000 in a file of")


def refused(tmp_path, message):
  (tmp_path / "a.txt").write_text("the quick fox")
  sandbox = Sandbox(tmp_path / "sandbox", seconds=20, memory=2**30)
  flags = [f"--source=lines:{tmp_path}/a.txt", f"--vocabulary={tmp_path}/vocabulary", "--workers=1"]
  outcome = sandbox.run(
    message, lambda inside: prepare_data.main([*flags, f"--output={inside}/data"])
  )
  sandbox.check()
  assert outcome.end == "refusal" and message in outcome.message, outcome


def test_integers_are_no_weights(tmp_path):
  write("t5", tmp_path / "model")
  tensors = load_file(tmp_path / "model" / "model.safetensors")
  name = sorted(tensors)[0]
  tensors[name] = tensors[name].astype(np.int32)
  save_file(tensors, tmp_path / "model" / "model.safetensors")
  with pytest.raises(UserError, match=f"tensor {name!r} is of dtype I32"):
    hf.load(str(tmp_path / "model"))

"""Directories that state false sizes, types or tensors are refused before anything is allocated."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import published
from interop import test_golden
from t5x_like.interop import hf
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary
from tests.fuzz.harness import Sandbox
from tests.interop.encoder_files import rewrite
from tests.refusals import refuses
from tools import convert_hf, prepare_data

pytestmark = pytest.mark.runs

QUERY = "encoder.block.1.layer.0.SelfAttention.q.weight"
# (case of `interop.cases`, changed fields of config.json, part of the error message)
CONFIGS = [
  ("bert-mlm", {"hidden_size": {"a": 1}}, "'hidden_size' is {'a': 1}"),
  ("t5", {"model_type": ["t5"]}, "model_type is ['t5']"),
  ("t5", {"model_type": "t6"}, "model_type is 't6'"),
  ("t5", {"vocab_size": -1}, "'vocab_size' is -1"),
  ("t5", {"d_ff": 32.5}, "'d_ff' is 32.5"),
  ("t5", {"d_model": None}, "'d_model' is missing"),
  ("t5", {"novelty": 3}, "'novelty' is 3"),
  ("t5", {"is_decoder": True}, "'is_decoder' is True"),
  ("gpt2", {"n_head": 0}, "'n_head' is 0"),
  ("llama", {"rms_norm_eps": float("nan")}, "'rms_norm_eps' is nan"),
  ("llama", {"num_hidden_layers": 10**9}, "no more than the"),
  ("mixtral", {"intermediate_size": 10**9}, "no more than the"),
  ("mixtral", {"num_local_experts": 10**8}, "no more than the"),
]


def check_refusal(folder, command, flags, output: str, message: str):
  """Run a command in a sandbox, and check that it fails with an error that has `message` in it."""
  sandbox = Sandbox(folder / "sandbox", seconds=20, memory=2**30)
  outcome = sandbox.run(
    message, lambda inside: command.main([*flags, f"--output={inside}/{output}"])
  )
  sandbox.check()
  assert outcome.end == "refusal", outcome
  assert message in outcome.message


def check_model_refusal(folder, message: str):
  flags = [f"--input={folder}/model", "--config=tests/recipes/nano.py"]
  check_refusal(folder, convert_hf, flags, "run", message)


def check_vocabulary_refusal(folder, message: str):
  (folder / "a.txt").write_text("the quick fox")
  flags = [f"--source=lines:{folder}/a.txt", f"--vocabulary={folder}/vocabulary", "--workers=1"]
  check_refusal(folder, prepare_data, flags, "data", message)


@pytest.mark.parametrize(("case", "fields", "message"), CONFIGS, ids=str)
def test_a_config_with_false_types_or_sizes_is_refused(case, fields, message, tmp_path):
  test_golden.write(case, tmp_path / "model")
  rewrite(tmp_path / "model", **fields)
  check_model_refusal(tmp_path, message)


@pytest.mark.parametrize(("text", "kind"), [("[]", "array"), ("null", "null")])
def test_a_config_that_is_no_object_is_refused(text, kind, tmp_path):
  test_golden.write("t5", tmp_path / "model")
  (tmp_path / "model" / "config.json").write_text(text)
  check_model_refusal(tmp_path, f"found a JSON {kind}")


@pytest.mark.parametrize("weight_map", [[], ["a"], "a", {"a": 1}, {"a": ["b"]}, {"a": {}}, None])
def test_an_index_that_maps_nothing_to_files_is_refused(weight_map, tmp_path):
  test_golden.write("t5", tmp_path / "model")
  (tmp_path / "model" / hf.WEIGHTS).unlink()
  (tmp_path / "model" / hf.INDEX).write_text(json.dumps({"weight_map": weight_map}))
  check_model_refusal(tmp_path, "found no 'weight_map' from tensors to files")


def test_extra_ids_of_a_billion_are_refused_at_once(tmp_path):
  ByteVocabulary().save(tmp_path / "vocabulary")
  file = tmp_path / "vocabulary" / "vocabulary.json"
  sizes = {"extra_ids": 10**9, "size": 10**9 + 259}
  file.write_text(json.dumps(json.loads(file.read_text()) | sizes))
  check_vocabulary_refusal(tmp_path, "found extra_ids 1000000000")


def test_an_id_of_400_million_is_refused_at_once(tmp_path):
  tokenizer = json.loads(published.byte_level(["[PAD]", "</s>", "[UNK]"]).to_str())
  tokenizer["model"]["vocab"]["zzz"] = 400_000_000
  (tmp_path / "vocabulary").mkdir()
  (tmp_path / "vocabulary" / "tokenizer.json").write_text(json.dumps(tokenizer))
  check_vocabulary_refusal(tmp_path, "found id 400000000")


@pytest.mark.parametrize(
  ("tensor", "array", "message_parts"),
  [
    (QUERY, None, (QUERY, "missing")),
    (QUERY, np.zeros((3, 16), np.float32), (QUERY, "[3, 16]")),
    (QUERY, np.zeros((16, 16), np.int32), (QUERY, "I32")),
    ("extra", np.zeros(3, np.float32), ("'extra'", "unknown")),
  ],
)
def test_a_missing_unknown_or_ill_shaped_tensor_is_refused(tensor, array, message_parts, tmp_path):
  test_golden.write("t5", tmp_path / "model")
  file = tmp_path / "model" / hf.WEIGHTS
  tensors = load_file(file)
  tensors.pop(tensor, None)
  if array is not None:
    tensors[tensor] = array
  save_file(tensors, file)
  with refuses(*message_parts):
    hf.load(str(tmp_path / "model"))


def test_files_of_weights_that_cannot_be_read_are_refused(tmp_path):
  test_golden.write("t5", tmp_path / "model")
  file = tmp_path / "model" / hf.WEIGHTS
  file.write_bytes(b"\0" * 50)
  with refuses(hf.WEIGHTS, "cannot be read"):
    hf.load(str(tmp_path / "model"))
  file.rename(tmp_path / "model" / "pytorch_model.bin")
  with refuses(hf.WEIGHTS, "pytorch_model.bin is a pickle"):
    hf.load(str(tmp_path / "model"))

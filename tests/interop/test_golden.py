"""Every family against logits that `transformers` gave once (`tests/golden`, written by
parity/write_golden.py)."""

import json
import pathlib

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from parity import cases
from t5x_like.interop import hf

# Fields that transformers 4 reads in place of `rope_parameters`, and version 5 does not write.
OLDER = (
  "rope_theta",
  "rope_local_base_freq",
  "rope_scaling",
  "rotary_emb_base",
  "rotary_pct",
  "num_experts",
)
OLDER += ("max_position_embeddings",)
GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"


def write(name, directory) -> dict:
  """The Hugging Face directory of a case; returns what the golden file says."""
  golden = dict(np.load(GOLDEN / f"{name}.npz", allow_pickle=False))
  directory.mkdir()
  (directory / "config.json").write_text(str(golden["config"]))
  tensors = {
    n: cases.tensor(n, tuple(shape)) for n, shape in json.loads(str(golden["shapes"])).items()
  }
  save_file(tensors, directory / "model.safetensors")
  return golden


def test_every_case_has_its_file():
  assert sorted(path.stem for path in GOLDEN.glob("*.npz")) == sorted(cases.CASES)


@pytest.mark.parametrize("name", cases.CASES)
def test_same_logits_and_the_same_files_back(name, tmp_path):
  golden = write(name, tmp_path / "theirs")
  case = cases.CASES[name]
  batch = {n.removeprefix("batch/"): x for n, x in golden.items() if n.startswith("batch/")}
  mask = cases.valid_positions(case, batch, int(golden["pad"]))
  model = hf.load(str(tmp_path / "theirs"))
  outputs = jax.jit(lambda model, batch: model(batch))(model, batch)
  for output, values in golden.items():
    if output.startswith("outputs/"):
      array = np.asarray(outputs[output.removeprefix("outputs/")])
      assert (
        np.abs(cases.select_valid(array, mask) - cases.select_valid(values, mask)).max() <= 1e-4
      )
  hf.save(model, str(tmp_path / "back"))
  before, after = (load_file(tmp_path / side / "model.safetensors") for side in ("theirs", "back"))
  # which nothing reads
  before = {n: x for n, x in before.items() if not n.endswith("num_batches_tracked")}
  assert before.keys() == after.keys() and all(np.array_equal(before[n], after[n]) for n in before)
  config = json.loads((tmp_path / "back" / "config.json").read_text())
  original_config = json.loads(str(golden["config"])) | {"dtype": "float32"}
  config = {
    key: value for key, value in config.items() if key in original_config or key not in OLDER
  }
  assert jax.tree.map(str, config) == jax.tree.map(str, original_config)


@pytest.mark.parametrize(
  "name", ["llama-3.1", "qwen3-yarn", "gemma3", "neox", "falcon", "cohere", "deepseek-v3-yarn"]
)
def test_the_older_fields_alone_tell_the_same_positions(name, tmp_path):
  write(name, tmp_path / "theirs")
  hf.save(hf.load(str(tmp_path / "theirs")), str(tmp_path / "back"))
  file = tmp_path / "back" / "config.json"
  config = json.loads(file.read_text())
  del config["rope_parameters"]
  file.write_text(json.dumps(config))
  assert hf.load(str(tmp_path / "back")).variant == hf.load(str(tmp_path / "theirs")).variant

"""Every family has the logits of `transformers` in tests/golden, by parity/write_golden.py."""

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
  "max_position_embeddings",
  "num_experts",
  "rope_local_base_freq",
  "rope_scaling",
  "rope_theta",
  "rotary_emb_base",
  "rotary_pct",
)
GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
REMEDY = "with torch and transformers: PYTHONPATH=tests:. python -m parity.write_golden"


def write(name, directory) -> dict:
  """Write the Hugging Face directory of a case; return the arrays of its golden file."""
  path = GOLDEN / f"{name}.npz"
  assert path.exists(), f"no {path.name} in tests/golden; {REMEDY} {name}"
  golden = dict(np.load(path, allow_pickle=False))
  directory.mkdir()
  (directory / "config.json").write_text(str(golden["config"]))
  shapes = json.loads(str(golden["shapes"]))
  tensors = {tensor: cases.tensor(tensor, tuple(shape)) for tensor, shape in shapes.items()}
  save_file(tensors, directory / "model.safetensors")
  return golden


def test_every_case_has_its_file():
  files = {path.stem for path in GOLDEN.glob("*.npz")}
  missing = sorted(cases.CASES.keys() - files)
  without_case = sorted(files - cases.CASES.keys())
  assert not missing, f"no files in tests/golden; {REMEDY} {' '.join(missing)}"
  assert not without_case, f"delete tests/golden/NAME.npz, or add a case, of {without_case}"


@pytest.mark.parametrize("name", cases.CASES)
def test_same_logits_and_the_same_files_back(name, tmp_path):
  golden = write(name, tmp_path / "theirs")
  batch = {key.removeprefix("batch/"): x for key, x in golden.items() if key.startswith("batch/")}
  mask = cases.valid_positions(cases.CASES[name], batch, int(golden["pad"]))
  model = hf.load(str(tmp_path / "theirs"))
  outputs = jax.jit(lambda model, batch: model(batch))(model, batch)
  for key, expected in golden.items():
    if key.startswith("outputs/"):
      output = np.asarray(outputs[key.removeprefix("outputs/")])
      difference = cases.select_valid(output, mask) - cases.select_valid(expected, mask)
      assert np.abs(difference).max() <= 1e-4
  hf.save(model, str(tmp_path / "back"))
  before = load_file(tmp_path / "theirs" / "model.safetensors")
  after = load_file(tmp_path / "back" / "model.safetensors")
  read = {tensor for tensor in before if not tensor.endswith("num_batches_tracked")}
  assert after.keys() == read
  for tensor in read:
    assert np.array_equal(after[tensor], before[tensor]), tensor
  config = json.loads((tmp_path / "back" / "config.json").read_text())
  expected = json.loads(str(golden["config"])) | {"dtype": "float32"}
  for key in OLDER:
    if key not in expected:
      config.pop(key, None)
  assert jax.tree.map(str, config) == jax.tree.map(str, expected)

"""Every family has the outputs of `transformers` and writes the tensors that it read."""

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from parity import cases, reference
from t5x_like.interop import hf

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("name", cases.CASES)
def test_same_logits_and_the_same_files_back(name, tmp_path):
  case = cases.CASES[name]
  original = tmp_path / "original"
  exported = tmp_path / "exported"
  hf_model = reference.make(case, original)
  pad, start = reference.ids(hf_model)
  batch = cases.inputs(case, pad, start)
  mask = cases.valid_positions(case, batch, pad)
  expected = reference.run(case, hf_model, batch)

  model = hf.load(str(original))
  outputs = jax.jit(lambda model, batch: model(batch))(model, batch)
  assert expected.keys() <= outputs.keys()
  for output, hf_values in expected.items():
    values = np.asarray(outputs[output])
    assert values.shape == hf_values.shape
    difference = cases.select_valid(values, mask) - cases.select_valid(hf_values, mask)
    distance = np.abs(difference).max()
    print(f"{name} {output}: {distance:.2e} of {np.abs(hf_values).max():.3g}")
    assert distance <= 1e-4

  hf.save(model, str(exported))
  before = load_file(original / "model.safetensors")
  after = load_file(exported / "model.safetensors")
  for tensor in list(before):
    if tensor.endswith("num_batches_tracked"):  # no model reads it, so it is not written
      del before[tensor]
  assert before.keys() == after.keys()
  for tensor, array in before.items():
    assert np.array_equal(array, after[tensor]), tensor
  exported_outputs = reference.run(case, reference.read(case, exported), batch)
  for output, hf_values in expected.items():
    values = cases.select_valid(exported_outputs[output], mask)
    assert np.array_equal(values, cases.select_valid(hf_values, mask))


@pytest.mark.parametrize("name", cases.CASES)
def test_transformers_reads_a_model_that_was_not_converted_from_a_file(name, tmp_path):
  """Without `origin` the config is written from the design alone."""
  case = cases.CASES[name]
  pad, start = reference.ids(reference.make(case, tmp_path / "original"))
  model = hf.load(str(tmp_path / "original"))
  del model.origin
  hf.save(model, str(tmp_path / "exported"))
  batch = cases.inputs(case, pad, start)
  mask = cases.valid_positions(case, batch, pad)
  outputs = model(batch)
  expected = reference.run(case, reference.read(case, tmp_path / "exported"), batch)
  for output, hf_values in expected.items():
    values = cases.select_valid(np.asarray(outputs[output]), mask)
    assert np.abs(values - cases.select_valid(hf_values, mask)).max() <= 1e-4

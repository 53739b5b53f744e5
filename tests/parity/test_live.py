"""Every family against `transformers`, live: same logits, same tensors back (`make parity`)."""

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
  theirs = reference.make(case, tmp_path / "theirs")
  pad, start = reference.ids(theirs)
  batch = cases.inputs(case, pad, start)
  mask = cases.valid(case, batch, pad)
  expected = reference.run(case, theirs, batch)

  model = hf.load(str(tmp_path / "theirs"))
  got = jax.jit(lambda model, batch: model(batch))(model, batch)
  assert expected.keys() <= got.keys()
  for output, values in expected.items():
    assert got[output].shape == values.shape
    distance = np.abs(
      cases.compared(np.asarray(got[output]), mask) - cases.compared(values, mask)
    ).max()
    print(f"{name} {output}: {distance:.2e} of {np.abs(values).max():.3g}")
    assert distance <= 1e-4

  hf.save(model, str(tmp_path / "back"))
  before, after = (load_file(tmp_path / side / "model.safetensors") for side in ("theirs", "back"))
  # which nothing reads
  before = {n: x for n, x in before.items() if not n.endswith("num_batches_tracked")}
  assert before.keys() == after.keys()
  assert all(np.array_equal(before[n], after[n]) for n in before)
  again = reference.run(case, reference.read(case, tmp_path / "back"), batch)
  for output, values in expected.items():
    assert np.array_equal(cases.compared(again[output], mask), cases.compared(values, mask))


@pytest.mark.parametrize("name", cases.CASES)
def test_a_model_of_ours_without_a_past_is_read_by_transformers(name, tmp_path):
  """What is written from the design alone, without the config of a file, makes the same model
  there."""
  case = cases.CASES[name]
  pad, start = reference.ids(reference.make(case, tmp_path / "theirs"))
  model = hf.load(str(tmp_path / "theirs"))
  del model.origin
  hf.save(model, str(tmp_path / "ours"))
  batch = cases.inputs(case, pad, start)
  mask = cases.valid(case, batch, pad)
  got = model(batch)
  expected = reference.run(case, reference.read(case, tmp_path / "ours"), batch)
  for output, values in expected.items():
    assert (
      np.abs(cases.compared(np.asarray(got[output]), mask) - cases.compared(values, mask)).max()
      <= 1e-4
    )

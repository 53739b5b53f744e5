"""A head trained above a frozen model leaves the parameters that it reads unchanged."""

import json

import numpy as np
import pytest

import more
import tests.recipes.nano_decoder
import tests.recipes.nano_encoder  # noqa: F401 -- registers the variants of the recipes
from fine_tuning import fine_tuning
from t5x_like import train
from tests import topics
from tests.benchmarks.small_suites import SHORT_RUN
from tests.runs import hide_other_devices, load_tensors

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled", "one_device")]
TOKENS = {"name": "tokens", "labels": 2}
HEADS = {"tokens": TOKENS} | topics.cases("HEADS_ABOVE")


@pytest.fixture(scope="module", params=["encoder", more.later("decoder")])
def pretrained(request, tmp_path_factory, compiled):
  """Return (the stack's name, the workdir of a run of two steps)."""
  stack = request.param
  workdir = tmp_path_factory.mktemp("pretrained")
  recipe = f"--config=tests/recipes/nano_{stack}.py"
  length = '--config.model.design.position={"name": "learned", "length": 64}'
  with hide_other_devices():
    assert train.main([recipe, f"--workdir={workdir}", *SHORT_RUN, length]) == 0
  return stack, workdir


@pytest.mark.parametrize("head", map(more.later, HEADS.values()), ids=list(HEADS))
def test_a_head_changes_no_parameter_that_it_reads_and_layers_not_loaded_are_new(
  head, pretrained, tmp_path, capsys
):
  """Trains BERT's feature-based tagger on the first layer, and its left-to-right one (table 5)."""
  stack, workdir = pretrained
  data_flags = [f"--config.{word}" for word in fine_tuning("tagging", tmp_path)]
  flags = [
    f"--config.init.workdir={workdir}",
    "--config.init.layers=1",
    "--config.tuning.name=head",
    "--config.seed=1",
    f"--config.model.head={json.dumps(head)}",
    "--config=tests/recipes/nano_encoder.py",
  ]
  status = train.main([f"--workdir={tmp_path}/run", *SHORT_RUN, *data_flags, *flags])
  output = capsys.readouterr()
  assert status == 0, output.err
  assert "layers: the first 1 alone" in output.out
  before = load_tensors(workdir, 2)
  after = load_tensors(tmp_path / "run", 2)
  parameters = [name for name in after if name.startswith("params/")]
  frozen = [name for name in parameters if not name.startswith("params/head/")]
  assert any(name.startswith(f"params/{stack}/blocks/") for name in frozen)
  for name in frozen:
    if "/blocks/" not in name:
      np.testing.assert_array_equal(after[name], before[name], err_msg=name)
      continue
    loaded_layer = after[name][0]
    new_layer = after[name][1]
    np.testing.assert_array_equal(loaded_layer, before[name][0], err_msg=name)
    if name.endswith("kernel"):
      assert not np.allclose(new_layer, before[name][1], atol=0.1), name
  moments = [name for name, x in after.items() if not name.startswith("params/") and x.ndim]
  assert moments
  assert all("head/" in name for name in moments)

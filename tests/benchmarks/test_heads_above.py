"""Heads above a frozen model: what they read stays as it was."""

import json

import numpy as np
import pytest

import more
import tests.recipes.nano_decoder
import tests.recipes.nano_encoder  # noqa: F401 -- the variants that the runs are of
from fine_tuning import fine_tuning
from t5x_like import train
from tests.runs import hide_other_devices, load_tensors

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled", "one_device")]
SHORT = (
  "--config.total_steps=2",
  "--config.eval_every=2",
  "--config.checkpoint.every=2",
  "--config.evals={}",
)
TOKENS = {"name": "tokens", "labels": 2}
FEATURES = {"name": "bilstm", "head": TOKENS, "states": [0, -1], "hidden": 8, "dropout": 0.1}


@pytest.fixture(scope="module", params=["encoder", more.later("decoder")])
def pretrained(request, tmp_path_factory, compiled):
  """(the stack's name, the workdir of a run of two steps)."""
  workdir = tmp_path_factory.mktemp("pretrained")
  length = '--config.model.design.position={"name": "learned", "length": 64}'
  with hide_other_devices():
    assert (
      train.main(
        [f"--config=tests/recipes/nano_{request.param}.py", f"--workdir={workdir}", *SHORT, length]
      )
      == 0
    )
  return request.param, workdir


@pytest.mark.parametrize(
  "head", [more.later(FEATURES), more.later(TOKENS)], ids=["bilstm", "tokens"]
)
def test_a_head_leaves_what_it_reads_and_layers_that_are_not_loaded_are_new(
  head, pretrained, tmp_path, capsys
):
  """BERT's feature-based tagger on the first layer of a run; of a decoder, its left-to-right tagger
  (table 5)."""
  side, workdir = pretrained
  words = [f"--config.{word}" for word in fine_tuning("tagging", tmp_path)]
  flags = [
    f"--config.init.workdir={workdir}",
    "--config.init.layers=1",
    "--config.tuning.name=head",
    "--config.seed=1",
  ]
  flags += [f"--config.model.head={json.dumps(head)}", "--config=tests/recipes/nano_encoder.py"]
  assert train.main([f"--workdir={tmp_path}/run", *SHORT, *words, *flags]) == 0, (
    capsys.readouterr().err
  )
  assert "layers: the first 1 alone" in capsys.readouterr().out
  before = load_tensors(workdir, 2)
  after = load_tensors(tmp_path / "run", 2)
  names = [
    name for name in after if name.startswith("params/") and not name.startswith("params/head/")
  ]
  assert any(name.startswith(f"params/{side}/blocks/") for name in names)
  for name in names:
    old = before[name]
    new = after[name]
    layered = "/blocks/" in name
    assert np.array_equal(new[0] if layered else new, old[0] if layered else old), name
    assert (
      not layered or not name.endswith("kernel") or not np.allclose(new[1], old[1], atol=0.1)
    ), name
  moments = [name for name, x in after.items() if not name.startswith("params/") and x.ndim]
  assert moments and all("head/" in name for name in moments)

"""Runs with LoRA train only adapters, and their exports and later runs merge them."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tests.recipes.nano_decoder  # noqa: F401 -- registers the variant of the runs
from t5x_like import train
from t5x_like.nn import params
from t5x_like.nn.linear import ADAPTERS
from t5x_like.saved_model import open_saved_model
from tests.runs import load_tensors

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled")]
FLAGS = (
  "--config=tests/recipes/nano_decoder.py",
  "--config.checkpoint.every=2",
  "--config.total_steps=4",
  '--config.schedule={"name": "constant", "learning_rate": 0.05}',
)
LORA = (
  "--config.tuning.name=lora",
  "--config.tuning.rank=2",
  '--config.tuning.targets=["query", "wi"]',
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, compiled):
  """Return a folder with a pretrained run, `base`, and a run from it with adapters, `lora`."""
  folder = tmp_path_factory.mktemp("runs")
  assert train.main([*FLAGS, f"--workdir={folder}/base", "--config.total_steps=2"]) == 0
  flags = [*FLAGS, *LORA, f"--workdir={folder}/lora", f"--config.init.workdir={folder}/base"]
  assert train.main(flags) == 0
  return folder


def test_only_adapters_change_and_have_optimizer_state(runs):
  base = load_tensors(runs / "base", 2)
  before = load_tensors(runs / "lora", 2)
  after = load_tensors(runs / "lora", 4)
  adapters = {name for name in after if name.startswith("params/") and name.endswith(ADAPTERS)}
  assert adapters
  assert all(not np.array_equal(before[name], after[name]) for name in adapters)
  for name in base:
    if name.startswith("params/"):
      assert after[name].tobytes() == base[name].tobytes(), name
  statistics = {
    name.split("/", 2)[2] for name in after if name.startswith("adam/") and name.count("/") > 1
  }
  assert statistics == {name.removeprefix("params/") for name in adapters}
  report = json.loads((runs / "lora" / "init.json").read_text())
  assert {f"params/{name}" for name in report["initialised"]} == adapters
  assert not report["ignored"]


@pytest.mark.more
def test_export_and_a_later_run_have_the_same_logits(runs, tmp_path):
  """The later run starts from the run with adapters."""
  from t5x_like.interop import hf
  from tools import convert_hf

  later_flags = [
    *FLAGS,
    f"--workdir={tmp_path}/later",
    f"--config.init.workdir={runs}/lora",
    "--config.total_steps=1",
  ]
  flags = [
    *later_flags,
    "--config.schedule.learning_rate=0.0",
    "--config.optimizer.weight_decay=0.0",
  ]
  assert train.main(flags) == 0
  assert convert_hf.main([f"--input={runs}/lora", f"--output={tmp_path}/exported"]) == 0
  tokens = {"decoder_input_tokens": np.arange(3, 35, dtype=np.int32)[None].repeat(8, 0)}

  def logits(workdir):
    run = open_saved_model(str(workdir))
    _, arrays = run.restore()
    return np.asarray(
      jax.jit(lambda arrays: params.with_arrays(run.model, arrays)(tokens)["logits"])(arrays)
    )

  tuned = logits(runs / "lora")
  assert np.abs(tuned - logits(runs / "base")).max() > 0.05
  np.testing.assert_allclose(logits(tmp_path / "later"), tuned, atol=1e-5 * np.abs(tuned).max())
  exported = hf.load(str(tmp_path / "exported"))
  exported_logits = jax.jit(lambda: exported(jax.tree.map(jnp.asarray, tokens))["logits"])()
  np.testing.assert_allclose(
    exported_logits[..., : tuned.shape[-1]], tuned, atol=1e-5 * np.abs(tuned).max()
  )


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (['--config.tuning.targets=["qurey"]'], "'qurey' names no kernel that can have an adapter"),
    (["--config.tuning.rank=0"], "config.tuning.rank: found 0"),
    (["--config.tuning.targets=[]"], "config.tuning.targets: found none"),
    (["--config.tuning.rank=3"], "(tuning.rank: 2 there, 3 here); use a new --workdir"),
  ],
)
def test_bad_adapters_are_refused_in_one_line(flags, message, runs, tmp_path, capsys):
  """In the last case a run is resumed with another rank."""
  workdir = runs / "lora" if "=3" in flags[0] else tmp_path
  command = [
    *FLAGS,
    *LORA,
    f"--workdir={workdir}",
    f"--config.init.workdir={runs}/base",
    "--config.total_steps=6",
  ]
  assert train.main([*command, *flags]) == 2
  assert message in capsys.readouterr().err.splitlines()[-1]

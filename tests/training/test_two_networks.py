"""Fine-tuning starts from the discriminator of a run with a generator and a discriminator."""

import numpy as np
import pytest

from fine_tuning import fine_tuning
from t5x_like import train
from tests.runs import load_tensors

pytestmark = [pytest.mark.usefixtures("compiled", "one_device"), pytest.mark.more]


@pytest.mark.parametrize("recipe", ["electra/small", "deberta/base"])
def test_fine_tuning_starts_from_the_discriminator(recipe, tmp_path, capsys):
  """DeBERTa's discriminator adds its token table to the generator's, so the sum is used."""
  two_networks = f"--workdir={tmp_path}/both"
  discriminator_only = f"--workdir={tmp_path}/one"
  assert train.main([f"--config=configs/{recipe}.py:debug", two_networks]) == 0
  overrides = [f"--config.{override}" for override in fine_tuning("classification", tmp_path)]
  no_updates = (
    "--config.schedule.learning_rate=0.0",
    "--config.optimizer.weight_decay=0.0",
    "--config.total_steps=2",
  )
  start = f"--config.init.workdir={tmp_path}/both"
  flags = [
    "--config=tests/recipes/nano_encoder.py",
    discriminator_only,
    *overrides,
    *no_updates,
    start,
  ]
  assert train.main(flags) == 0, capsys.readouterr()
  before = load_tensors(tmp_path / "both", 2)
  after = load_tensors(tmp_path / "one", 2)
  table = before["params/embed/table"] + before.get("params/generator/embed/table", 0)
  np.testing.assert_allclose(after["params/embed/table"], table, rtol=1e-6)
  assert not any("generator" in name for name in after)
  name = "params/encoder/blocks/self_attention/layer/query/kernel"
  assert np.array_equal(after[name], before[name])

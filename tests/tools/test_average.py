"""`tools.average` writes a workdir with the mean of checkpoints that other commands read."""

import numpy as np
import pytest

from t5x_like.saved_model import open_saved_model
from tests import runs
from tools import average

pytestmark = pytest.mark.runs


def arrays(workdir, step=None):
  return open_saved_model(str(workdir)).restore(step)[1]


def test_the_new_workdir_has_the_mean_of_the_steps(trained, tmp_path, capsys):
  steps = runs.steps(trained)[-2:]
  output = tmp_path / "mean"
  assert average.main([f"--workdir={trained}", f"--output={output}", "--last=2"]) == 0
  assert f"the mean of steps {steps[0]}, {steps[1]}" in capsys.readouterr().out
  first = arrays(trained, steps[0])
  second = arrays(trained, steps[1])
  mean = arrays(output)
  assert mean.keys() == first.keys()
  for name, x in mean.items():
    np.testing.assert_allclose(
      x, (np.asarray(first[name]) + np.asarray(second[name])) / 2, rtol=1e-5, atol=1e-7
    )
  flags = [f"--workdir={trained}", f"--output={tmp_path / 'other'}", "--steps=999"]
  assert average.main(flags) == 2
  assert "--steps: found 999, expected some of" in capsys.readouterr().err

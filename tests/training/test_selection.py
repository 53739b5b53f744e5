"""The checkpoint that a metric selects does not depend on restarts of the run."""

import jax
import jax.numpy as jnp
import pytest

from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.training import selection


class _Config:
  def __init__(self, **values):
    self.selection = {"metric": "eval/dev/f1", "goal": "max", "patience": None} | values

  class _Values(dict):
    def to_dict(self):
      return dict(self)

  @property
  def selection(self):
    return self._selection

  @selection.setter
  def selection(self, values):
    self._selection = self._Values(values)


SCORES = [(1, 50.0), (2, 60.0), (3, 55.0), (4, 60.0), (5, 59.0)]


@pytest.mark.parametrize("killed_after", [0, 2, 4])
def test_best_checkpoint_and_early_stop_do_not_depend_on_kills(killed_after, tmp_path):
  """After a kill, a new object reads the scores that were written."""
  config = _Config(patience=3)
  rows = []
  tracker = None
  for number, (step, score) in enumerate(SCORES):
    if number == killed_after or tracker is None:
      tracker = selection.Selection(config, tmp_path, rows)
    assert not tracker.is_out_of_patience
    tracker.offer(step, {"eval/dev/f1": score}, {"w": jnp.full(2, float(step))}, {"config": "x"})
    rows.append({"step": step, "eval/dev/f1": score})
  assert tracker.best_step == 2
  assert tracker.is_out_of_patience
  with Checkpoints(tmp_path / selection.FOLDER) as checkpoints:
    assert checkpoints.steps() == [2]


def test_run_that_returned_to_an_earlier_step_can_select_a_step_again(tmp_path):
  """The values may differ, as on another mesh. Steps after the new one are set aside."""
  score = {"eval/dev/f1": 60.0}
  for step, value in ((3, 1.0), (3, 2.0), (2, 3.0)):  # each start has no earlier evaluation
    picked = selection.Selection(_Config(), tmp_path, [])
    picked.offer(step, score, {"w": jnp.full(2, value)}, {"config": "x"})
    with Checkpoints(tmp_path / selection.FOLDER) as checkpoints:
      template = {
        "params": {"w": jax.ShapeDtypeStruct((2,), jnp.float32, sharding=jnp.ones(2).sharding)}
      }
      restored_step, tree, _ = checkpoints.restore(template)
      assert checkpoints.steps() == [step] == [restored_step]
      assert float(tree["params"]["w"][0]) == value
  assert (tmp_path / selection.FOLDER / "3.set_aside").exists()

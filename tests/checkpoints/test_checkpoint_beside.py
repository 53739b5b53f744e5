"""A checkpoint that is read while its run deletes it is not reported as damaged."""

import shutil

from t5x_like.checkpoints import orbax_steps
from t5x_like.checkpoints.manager import Checkpoints
from tests.checkpoints.test_checkpoint import abstract_of, as_bytes, make_state, mesh_of, save_steps


def test_a_step_that_a_run_deletes_while_it_is_read_is_not_damaged(tmp_path, monkeypatch, caplog):
  """The run keeps its newest step alone."""
  mesh = mesh_of(2, 4)
  manifest = orbax_steps.LocalSteps.manifest
  save_steps(tmp_path / "run", [1, 2], mesh, keep_last=None)
  (tmp_path / "run" / "2").rename(tmp_path / "newer")

  def overtaken(self, step):
    if (tmp_path / "newer").exists():
      (tmp_path / "newer").rename(tmp_path / "run" / "2")
      shutil.rmtree(tmp_path / "run" / "1")
    return manifest(self, step)

  monkeypatch.setattr(orbax_steps.LocalSteps, "manifest", overtaken)
  with Checkpoints(tmp_path / "run") as checkpoints:
    step, state, _ = checkpoints.restore(abstract_of(make_state(2, mesh), mesh))
  assert step == 2
  assert as_bytes(state) == as_bytes(make_state(2, mesh))
  assert not caplog.records

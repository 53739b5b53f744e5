"""A workdir's lock outlives the deletion of its file, unless another run has made it anew."""

import contextlib

import pytest

from t5x_like.errors import TransientError, UserError
from t5x_like.training import workdir


def test_a_second_run_is_refused_until_the_first_ends(tmp_path):
  with contextlib.closing(workdir.lock_workdir(tmp_path)) as first:
    with pytest.raises(UserError, match="another process is training in it"):
      workdir.lock_workdir(tmp_path)
    first.check()
  workdir.lock_workdir(tmp_path).close()


def test_a_deleted_lock_is_taken_again(tmp_path):
  with contextlib.closing(workdir.lock_workdir(tmp_path)) as first:
    (tmp_path / "lock").unlink()
    first.check()
    with pytest.raises(UserError, match="another process is training in it"):
      workdir.lock_workdir(tmp_path)
    first.check()


@pytest.mark.parametrize("lives", [True, False])
def test_a_lock_that_another_run_has_made_anew_is_lost(lives, tmp_path):
  """The other run may have ended: it may have saved steps that the first does not know."""
  with contextlib.closing(workdir.lock_workdir(tmp_path)) as first, contextlib.ExitStack() as stack:
    (tmp_path / "lock").unlink()
    second = workdir.lock_workdir(tmp_path)
    stack.callback(second.close) if lives else second.close()
    with pytest.raises(TransientError, match="another process has taken the workdir over"):
      first.check()
    second.check() if lives else None

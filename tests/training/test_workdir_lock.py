"""The lock of a workdir survives the deletion of its file, unless another run locks it again."""

import contextlib
import shutil

import pytest

from t5x_like.errors import TransientError, UserError
from t5x_like.training import workdir


def test_second_run_is_refused_until_the_first_ends(tmp_path):
  with contextlib.closing(workdir.lock_workdir(tmp_path)) as first:
    with pytest.raises(UserError, match="another process is training in it"):
      workdir.lock_workdir(tmp_path)
    first.check()
  workdir.lock_workdir(tmp_path).close()


def test_deleted_lock_is_written_again(tmp_path):
  with contextlib.closing(workdir.lock_workdir(tmp_path)) as first:
    (tmp_path / "lock").unlink()
    first.check()
    with pytest.raises(UserError, match="another process is training in it"):
      workdir.lock_workdir(tmp_path)
    first.check()


def test_removed_workdir_is_named(tmp_path):
  directory = tmp_path / "run"
  directory.mkdir()
  with contextlib.closing(workdir.lock_workdir(directory)) as lock:
    shutil.rmtree(directory)
    with pytest.raises(UserError, match=f"^{directory}: found no such directory any more"):
      lock.check()
  assert not directory.exists()


@pytest.mark.parametrize("is_second_alive", [True, False])
def test_lock_that_another_run_has_taken_is_lost(is_second_alive, tmp_path):
  """Even if the other run has ended, it may have saved steps that the first does not know."""
  with contextlib.closing(workdir.lock_workdir(tmp_path)) as first, contextlib.ExitStack() as stack:
    (tmp_path / "lock").unlink()
    second = workdir.lock_workdir(tmp_path)
    if is_second_alive:
      stack.callback(second.close)
    else:
      second.close()
    with pytest.raises(TransientError, match="another process has taken the workdir over"):
      first.check()
    if is_second_alive:
      second.check()

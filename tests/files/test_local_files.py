"""A pipe or a device in place of a file is refused at once."""

import contextlib
import io
import os
import pathlib
import shutil
import socket

import pytest

from t5x_like.errors import handle_errors
from t5x_like.files import local
from t5x_like.report import page
from t5x_like.saved_model import workdir as saved_workdir
from t5x_like.training import workdir as workdirs
from tests.fuzz.harness import Sandbox
from tools import convert_hf

pytestmark = pytest.mark.runs


def make_pipe(path: pathlib.Path) -> None:
  os.mkfifo(path)


def make_device(path: pathlib.Path) -> None:
  path.symlink_to("/dev/zero")


def make_socket(path: pathlib.Path) -> None:
  # The path of a socket must be short, so make it relative.
  with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(path.parent):
    server.bind(path.name)


def make_loop(path: pathlib.Path) -> None:
  path.symlink_to(path.name)


MAKERS = {
  "a pipe": make_pipe,
  "a device": make_device,
  "a socket": make_socket,
  "a link to itself": make_loop,
}


def read(path: pathlib.Path) -> bytes:
  return local.LocalPath(path).read_bytes()


@pytest.mark.parametrize("kind", MAKERS)
def test_pipes_devices_and_sockets_are_refused_as_files(kind, tmp_path):
  MAKERS[kind](tmp_path / "file")
  for call in (read, local.check_regular, lambda path: local.check_below(path.parent)):
    with pytest.raises(local.IrregularFile, match=f"found {kind}, expected a file"):
      call(tmp_path / "file")


def test_links_are_followed_and_missing_files_read_as_none(tmp_path):
  (tmp_path / "file").write_bytes(b"content")
  (tmp_path / "link").symlink_to("file")
  (tmp_path / "dangling").symlink_to("nothing")
  assert read(tmp_path / "file") == local.read_content(tmp_path / "link") == b"content"
  assert local.read_content(tmp_path / "nothing") is None
  local.check_below(tmp_path)


def export(folder: pathlib.Path) -> int:
  return convert_hf.main([f"--input={folder}", f"--output={folder.parent / 'exported'}"])


@handle_errors
def report(folder: pathlib.Path) -> None:
  page.write_report(folder)


@handle_errors
def read_history(folder: pathlib.Path) -> None:
  saved_workdir.read_history(folder)


@handle_errors
def read_config(folder: pathlib.Path) -> None:
  saved_workdir.read_identity(folder)


# (command, file of the workdir that it reads, its output if it can do without the file)
READERS = [
  (export, "config.json", None),
  (read_config, "config.json", None),
  (export, "checkpoints/4/manifest/metadata", "step 2 of"),
  (export, "checkpoints/4/state/_METADATA", "step 2 of"),
  (report, "metrics.jsonl", None),
  (report, "environment.json", None),
  (read_history, "history.jsonl", None),
]


@pytest.mark.parametrize("kind", ["a pipe", "a link to itself"])
@pytest.mark.parametrize("command, file, expected", READERS)
def test_commands_do_not_wait_for_a_pipe_in_a_workdir(
  command, file, expected, kind, trained, compiled, tmp_path
):
  output = io.StringIO()

  def run_command(case_folder: pathlib.Path) -> int:
    folder = pathlib.Path(shutil.copytree(trained, case_folder / "run"))
    (folder / file).unlink()
    MAKERS[kind](folder / file)
    with contextlib.redirect_stdout(output):
      return command(folder)

  outcome = Sandbox(tmp_path / "sandbox", seconds=120, allowed_folder=compiled).run(
    file, run_command
  )
  if expected is None:
    assert outcome.end == "refusal", outcome
    assert file in outcome.message, outcome
  else:
    assert outcome.end == "success", outcome
    assert expected in output.getvalue(), outcome


def test_locking_does_not_wait_for_a_pipe_in_place_of_the_lock(tmp_path):
  def run_command(case_folder: pathlib.Path) -> None:
    os.mkfifo(case_folder / "lock")
    workdirs.lock_workdir(str(case_folder)).close()  # a lease does instead

  assert Sandbox(tmp_path).run("lock", run_command).end == "success"

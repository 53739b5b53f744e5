"""A task in a user's file, named `module:class`, is inspected, trained on, mixed and checked."""

import pathlib
import sys

import pytest

from refusals import refuses
from t5x_like import train, trust
from t5x_like.data import task
from tools import inspect_data

pytestmark = pytest.mark.runs

REPO = pathlib.Path(__file__).resolve().parents[2]
RECIPE = f"--config={REPO}/configs/t5/base.py:debug"
ECHO = """
import dataclasses

from t5x_like.data import features
from t5x_like.data.preprocessors.encoder_decoder import encoder_decoder
from t5x_like.data.windows import TextArguments


@dataclasses.dataclass(frozen=True, kw_only=True)
class Echo(TextArguments):
  length: int = 8
  dynamic_offsets: bool = False
  label: str = "echo"

  def features(self, vocabulary):
    return features.encoder_decoder(self.length, self.length)

  def build(self):
    windows = self.windows(self.length)

    def batch(example_index_B, epoch_B, seed):
      window_BL = windows.read(example_index_B)
      return encoder_decoder(window_BL, window_BL)

    return self.build_task("echo.v1", windows, batch)


def build_echo(*, store: str, split: str):
  return Echo(store=store, split=split).build()
"""


@pytest.fixture
def user_directory(tmp_path, monkeypatch):
  """Return a directory with the user's file, which is also the current directory."""
  (tmp_path / "echo_tasks.py").write_text(ECHO)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", sys.path.copy())
  return tmp_path


def test_users_task_can_be_inspected_and_trained_on(user_directory, compiled, one_device, capsys):
  flags = [RECIPE, '--config.task={"name": "echo_tasks:Echo", "store": "builtin"}']
  assert inspect_data.main([*flags, "--ids"]) == 0
  output = capsys.readouterr().out
  assert "task echo" in output
  assert "encoder_input_tokens int32[8]" in output
  flags += [
    f"--workdir={user_directory}/run",
    "--config.model.variant=t5-v1_1-micro",
    "--config.peak_flops=1e11",
  ]
  assert train.main([*flags, "--config.evals={}"]) == 0, capsys.readouterr().err
  assert '"step": 2' in (user_directory / "run" / "metrics.jsonl").read_text()


def test_arguments_of_a_users_task_are_checked(user_directory):
  trust.begin_command(["echo_tasks:Echo", "echo_tasks:Eco", "echo_tasks:build_echo"])
  echo = task.build("echo_tasks:Echo", "train", store="builtin", length=16)
  assert echo.features["encoder_input_tokens"].shape == (16,)
  for name, arguments, problem in (
    ("Echo", {"lenth": 16}, "config.task.lenth: unknown key (did you mean 'length'?)"),
    ("build_echo", {}, "config.task.name: found 'echo_tasks:build_echo', expected a frozen"),
    ("Eco", {}, "config.task.name: 'echo_tasks:Eco' cannot be used"),
  ):
    with refuses(problem):
      task.build(f"echo_tasks:{name}", "train", store="builtin", **arguments)


def test_users_task_can_be_part_of_a_mixture(user_directory):
  trust.begin_command(["echo_tasks:Echo"])
  parts = {"a": {"name": "echo_tasks:Echo"}, "b": {"name": "echo_tasks:Echo", "length": 4}}
  mixture = task.build("mixture", "train", parts=parts, shared={"store": "builtin"}, period=10)
  assert mixture.features["decoder_target_tokens"].shape == (8,)

"""Commands tell a mistyped path from a name of the Hub, and ask the Hub for names alone."""

import sys
import types

import pytest

import t5x_like as t5x
from refusals import refuses
from t5x_like import chat, evaluate, predict, train
from t5x_like.saved_model import hub
from tools import convert_hf, few_shot

RECIPE = "--config=configs/gpt/gpt2_124m.py"
COMMANDS = {  # main function, flag of the model, other flags
  "predict": (predict.main, "--workdir", ["--input=in.txt", "--output=out.jsonl"]),
  "chat": (chat.main, "--workdir", []),
  "evaluate": (evaluate.main, "--workdir", [RECIPE]),
  "suite": (evaluate.main, "--workdir", ["--suite=glue", "--data=data", "--output=out"]),
  "few_shot": (few_shot.main, "--workdir", ["--input=questions.jsonl"]),
  "convert_hf": (convert_hf.main, "--input", ["--output=out"]),
  "init": (train.main, "config.init.workdir", [RECIPE, "--workdir=run"]),
}


class LocalEntryNotFoundError(Exception):
  """As huggingface_hub raises without a network."""


@pytest.fixture
def hub_requests(tmp_path, monkeypatch):
  """The names that were requested of a Hub out of reach.

  The working directory has `runs/gpt` and files to read.
  """
  names = []

  def snapshot_download(name, allow_patterns):
    names.append(name)
    raise LocalEntryNotFoundError(
      "Got: ConnectError: [Errno -2] Name or service not known\nAn error happened"
    )

  client = types.SimpleNamespace(snapshot_download=snapshot_download)
  monkeypatch.setitem(sys.modules, "huggingface_hub", client)
  monkeypatch.chdir(tmp_path)
  (tmp_path / "runs" / "gpt").mkdir(parents=True)
  (tmp_path / "in.txt").write_text("the\n")
  question = '{"query": "the", "choices": ["fox", "dog"], "gold": 0}\n'
  (tmp_path / "questions.jsonl").write_text(question)
  hub.local_directory.cache_clear()
  yield names
  hub.local_directory.cache_clear()


def refusal(capsys, command: str, path: str) -> str:
  """Return the line with which a command refuses a model; it names the flag and the path."""
  main, flag, extra_flags = COMMANDS[command]
  argument = f"--{flag}" if flag.startswith("config") else flag
  assert main([f"{argument}={path}", *extra_flags]) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith(f"error: {flag}: ")
  assert path in line
  return line


@pytest.mark.parametrize(
  "path, names",
  [
    ("./nosuch", ("found no directory ./nosuch",)),
    ("runs/gtp", ("found no directory", "did you mean 'runs/gpt'", "hf download runs/gtp")),
    ("runs/gpt", ("config.json",)),
  ],
)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_mistyped_path_is_not_requested_of_the_hub(
  command, path, names, hub_requests, tmp_path, capsys
):
  before = sorted(tmp_path.rglob("*"))
  line = refusal(capsys, command, path)
  for name in names:
    assert name in line
  assert hub_requests == []
  assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("extra_flags", [[RECIPE], ["--suite=glue", "--data=data"]])
def test_results_of_a_name_need_a_directory(extra_flags, hub_requests, capsys):
  assert evaluate.main(["--workdir=someone/small", *extra_flags]) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith("error: --workdir: found no directory someone/small")
  assert "Hub" in line
  assert hub_requests == []


@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "evaluate"])
def test_a_name_that_is_neither_is_refused_in_both_readings(command, hub_requests, capsys):
  line = refusal(capsys, command, "someone/small")
  assert "neither a directory here nor a model of the Hub" in line
  assert "hf download someone/small --local-dir DIR" in line
  assert hub_requests == ["someone/small"]


def test_without_the_client_the_extra_is_named(hub_requests, monkeypatch):
  monkeypatch.setitem(sys.modules, "huggingface_hub", None)
  with refuses("t5x.load", "small", "pip install 't5x-like[hf]'"):
    t5x.load("small")


@pytest.mark.parametrize(
  "path", ["/runs/x", "./runs/x", "gs://bucket/run", "a/b/c", "-x/y", "runs", "runs/x"]
)
def test_a_path_is_no_name_of_the_hub(path, hub_requests):
  assert not hub.is_hub_name(path)
  assert hub.local_directory(path, "--workdir") == path

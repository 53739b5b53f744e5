"""Paths and names of the Hub at the doors: a mistyped path is told as one, and only a name is asked
of the Hub."""

import sys
import types

import pytest

import t5x_like as t5x
from t5x_like import chat, evaluate, predict, train
from t5x_like.errors import UserError
from t5x_like.saved_model import hub
from tools import convert_hf, few_shot

RECIPE = "--config=configs/gpt/gpt2_124m.py"
DOORS = {
  "predict": (predict.main, "--workdir", ["--input=in.txt", "--output=out.jsonl"]),
  "chat": (chat.main, "--workdir", []),
  "evaluate": (evaluate.main, "--workdir", [RECIPE]),
  "suite": (evaluate.main, "--workdir", ["--suite=glue", "--data=data", "--output=out"]),
  "few_shot": (few_shot.main, "--workdir", ["--input=asked.jsonl"]),
  "convert_hf": (convert_hf.main, "--input", ["--output=out"]),
  "init": (train.main, "config.init.workdir", [RECIPE, "--workdir=run"]),
}


class LocalEntryNotFoundError(Exception):
  """As huggingface_hub raises without a network."""


@pytest.fixture
def asked(tmp_path, monkeypatch):
  """The names that a Hub out of reach was asked for; the working directory has `runs/gpt` and files
  to read."""
  names = []

  def snapshot_download(name, allow_patterns):
    names.append(name)
    raise LocalEntryNotFoundError(
      "Got: ConnectError: [Errno -2] Name or service not known\nAn error happened"
    )

  monkeypatch.setitem(
    sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=snapshot_download)
  )
  monkeypatch.chdir(tmp_path)
  (tmp_path / "runs" / "gpt").mkdir(parents=True)
  (tmp_path / "in.txt").write_text("the\n")
  (tmp_path / "asked.jsonl").write_text('{"query": "the", "choices": ["fox", "dog"], "gold": 0}\n')
  hub.local_directory.cache_clear()
  yield names
  hub.local_directory.cache_clear()


def told(capsys, door: str, path: str) -> str:
  main, flag, extra_flags = DOORS[door]
  argument = f"--{flag}" if flag.startswith("config") else flag
  assert main([f"{argument}={path}", *extra_flags]) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith(f"error: {flag}: ") and path in line, line
  return line


@pytest.mark.parametrize("door", DOORS)
def test_a_mistyped_path_is_not_asked_of_the_hub(door, asked, tmp_path, capsys):
  before = sorted(tmp_path.rglob("*"))
  assert "found no directory ./nosuch;" in told(capsys, door, "./nosuch")
  line = told(capsys, door, "runs/gtp")
  assert (
    "found no directory runs/gtp (did you mean 'runs/gpt'?)" in line
    and ("hf download runs/gtp") in line
  )
  assert "config.json is not there" in told(capsys, door, "runs/gpt")
  assert asked == [] and sorted(tmp_path.rglob("*")) == before


def test_results_of_a_name_need_a_directory(asked, capsys):
  for extra_flags in ([RECIPE], ["--suite=glue", "--data=data"]):
    assert evaluate.main(["--workdir=someone/small", *extra_flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert (
      line.startswith("error: --workdir: found no directory someone/small")
      and ("Hub's model of this name") in line
    )
  assert asked == []


@pytest.mark.parametrize("door", [door for door in DOORS if door != "evaluate"])
def test_a_name_that_is_neither_is_told_in_both_readings(door, asked, capsys):
  line = told(capsys, door, "someone/small")
  assert "neither a directory here nor a model that the Hub gave: it cannot be reached" in line
  assert "hf download someone/small --local-dir DIR" in line and asked == ["someone/small"]


def test_without_the_client_the_extra_is_named(asked, monkeypatch):
  monkeypatch.setitem(sys.modules, "huggingface_hub", None)
  with pytest.raises(
    UserError,
    match=r"t5x.load: small is neither a directory here .* pip "
    r"install 't5x-like\[hf\]'",
  ):
    t5x.load("small")


@pytest.mark.parametrize(
  "path", ["/runs/x", "./runs/x", "gs://bucket/run", "a/b/c", "-x/y", "runs", "runs/x"]
)
def test_what_is_no_name_of_the_hub(path, asked):
  assert not hub.is_hub_name(path) and hub.local_directory(path, "--workdir") == path

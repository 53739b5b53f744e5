"""Addresses that cannot be meant are refused by every program, and what is written outlasts a loss of power."""

import os
import pathlib

import pytest

from t5x_like import evaluate, predict, train
from t5x_like.errors import UserError
from t5x_like.files.places import directory, place
from tools import convert_hf, few_shot, prepare_data, train_vocabulary

REPO = pathlib.Path(__file__).resolve().parents[2]
REFUSED = {
  "": "an empty address",
  "  ": "an empty address",
  "/": "the root of the file system",
  "//": "the root of the file system",
  "file:///": "the root of the file system",
  "/tmp/..": "the root of the file system",
  "gs://": "no bucket",
  "s3://": "no bucket",
  "gs:///run": "no bucket",
  "memory://": "no bucket",
  "://run": "no scheme",
  "s3:/bucket/run": "a scheme without '//', expected s3://bucket/run",
  "gs:": "a scheme without '//'",
  "~/runs": "write --workdir=$HOME/runs",
  str(REPO): "the project's own directory",
}


@pytest.mark.parametrize("address", REFUSED)
def test_an_address_that_cannot_be_meant_is_refused(address):
  with pytest.raises(UserError) as refused:
    directory(address)
  assert REFUSED[address] in str(refused.value) and str(refused.value).startswith("--workdir=")


def test_the_home_directory_is_refused_unless_a_run_is_there(tmp_path, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path))
  with pytest.raises(UserError, match="the home directory"):
    directory(f"{tmp_path}/")
  (tmp_path / "config.json").write_text("{}")
  assert directory(tmp_path) == str(tmp_path)


def test_other_addresses_are_taken(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for address in ("runs/a", ".", "..", f"{tmp_path}/x:1", "run:1", "gs://bucket", "gs://bucket/run", "memory:///run"):
    assert directory(address) == address
  assert directory("gs://bucket/run//") == "gs://bucket/run" and directory("runs/a/") == "runs/a"
  assert directory(f"file://{tmp_path}/new/") == f"{tmp_path}/new"


RECIPE = f"--config={REPO}/tests/recipes/nano.py"
COMMANDS = {
  "train": (train.main, [RECIPE, "--workdir={}"]),
  "evaluate": (evaluate.main, ["--workdir={}"]),
  "suite": (evaluate.main, ["--workdir={},run", "--suite=glue", "--output=out"]),
  "suite's output": (evaluate.main, ["--workdir=run", "--suite=glue", "--output={}"]),
  "predict": (predict.main, ["--workdir={}", "--input=in.txt", "--output=out.jsonl"]),
  "convert_hf": (convert_hf.main, ["--input=model", RECIPE, "--output={}"]),
  "prepare_data": (prepare_data.main, ["--source=text:in.txt", "--vocabulary=bytes", "--output={}"]),
  "train_vocabulary": (train_vocabulary.main, ["--source=text:in.txt", "--size=300", "--output={}"]),
  "few_shot": (few_shot.main, ["--workdir={}", "--input=in.jsonl"]),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_program_refuses_them_in_one_line_and_writes_nothing(command, tmp_path, monkeypatch, capsys):
  main, argv = COMMANDS[command]
  monkeypatch.chdir(tmp_path)
  (tmp_path / "in.txt").write_text("a line\n")
  for address in ("", "s3://", "s3:/bucket/run"):
    assert main([word.format(address) for word in argv]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and f"={address}" in error and ": found " in error
  assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_a_file_and_its_name_are_put_on_disk(tmp_path, monkeypatch):
  synced, fsync, replace = [], os.fsync, os.replace
  monkeypatch.setattr(os, "fsync", lambda n: (synced.append(os.readlink(f"/proc/self/fd/{n}")), fsync(n)))
  monkeypatch.setattr(os, "replace", lambda a, b: (synced.append("renamed"), replace(a, b)))
  (place(tmp_path) / "new" / "config.json").write_bytes(b"{}")
  file, *rest = synced
  assert file.startswith(f"{tmp_path}/new/config.json.") and rest == ["renamed", f"{tmp_path}/new", str(tmp_path)]
  assert (tmp_path / "new" / "config.json").read_bytes() == b"{}"

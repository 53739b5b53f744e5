"""A task on a source prepares its store once, in one process, and again when files change."""

import os
import pathlib
import re
import subprocess
import sys
import threading

import numpy as np
import pytest

import json_lines
from preparations import prepare
from refusals import refuses
from t5x_like import config, data, recipes
from t5x_like.config import Corpus
from t5x_like.corpora import corpus
from t5x_like.data import task
from t5x_like.errors import UserError

REPO = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """Write a corpus of two files into the current directory, which also holds the cache."""
  generator = np.random.default_rng(0)
  for number in range(2):
    rows = []
    for length in generator.integers(1, 900, 100):
      rows.append({"text": "".join(map(chr, generator.integers(97, 123, length)))})
    json_lines.write(tmp_path / f"{number}.jsonl", rows)
  monkeypatch.setenv("T5X_LIKE_CACHE", str(tmp_path / "cache"))
  monkeypatch.chdir(tmp_path)
  return tmp_path


def build_task(split="train", name="span_corruption", **arguments):
  source_arguments = {"source": "jsonl:*.jsonl", "vocabulary": "bytes"}
  if name == "span_corruption":
    source_arguments["inputs_length"] = 64
  return task.build(name, split, **source_arguments | arguments)


def store_folders(root):
  return sorted(path for path in (root / "cache").iterdir() if path.is_dir())


def read_modification_times(root):
  files = (file for home in store_folders(root) for file in home.rglob("*"))
  return {file: file.stat().st_mtime_ns for file in files}


def test_task_on_a_source_equals_the_task_on_a_prepared_store(folder, capsys):
  assert prepare("jsonl:*.jsonl", "store") == 0
  assert prepare("jsonl:*.jsonl", "store_eos", "--append_eos") == 0
  capsys.readouterr()
  for split in ("train", "validation"):
    expected = task.build("span_corruption", split, store="store", inputs_length=64)
    assert build_task(split).fingerprint == expected.fingerprint
    expected = task.build("causal_lm", split, store="store_eos", length=64)
    assert build_task(split, "causal_lm", length=64).fingerprint == expected.fingerprint
  assert capsys.readouterr().out.count("preparing split") == 4
  assert len(store_folders(folder)) == 2
  modification_times = read_modification_times(folder)
  shared = {"name": "span_corruption", "inputs_length": 64, "vocabulary": "bytes"}
  shared["source"] = "jsonl:*.jsonl"
  mixture = task.build(
    "mixture", "train", shared=shared, parts={"a": {}, "b": {"store": "builtin"}}
  )
  assert (
    mixture.parts["a"].fingerprint == build_task().fingerprint != mixture.parts["b"].fingerprint
  )
  assert "preparing" not in capsys.readouterr().out
  assert modification_times == read_modification_times(folder)


def test_changed_files_are_prepared_again_and_the_older_store_remains(folder, capsys):
  first = build_task()
  (first_home,) = store_folders(folder)
  text = (folder / "0.jsonl").read_text()
  (folder / "0.jsonl").write_text(text.replace("a", "b"))  # of the same size
  os.utime(folder / "0.jsonl", ns=(1, 1))
  second = build_task()
  message = (
    "its files have changed since .*cache/.* was made .* preparing them anew; delete .*cache/"
  )
  assert re.search(message, capsys.readouterr().out)
  assert second.fingerprint != first.fingerprint
  assert len(store_folders(folder)) == 2
  assert first_home in store_folders(folder)
  (folder / "0.jsonl").write_text(text)
  os.utime(folder / "0.jsonl", ns=(2, 2))
  assert build_task().fingerprint == first.fingerprint  # only the modification time differs
  (folder / "0.jsonl").unlink()
  (folder / "1.jsonl").unlink()
  with pytest.raises(UserError, match=r"--config.task.store=\S+cache/\S+") as error:
    build_task()
  store = re.search(r"store=(\S+)", str(error.value))[1]
  store_task = task.build("span_corruption", "train", store=store, inputs_length=64)
  assert store_task.num_examples == first.num_examples


def test_second_process_waits_for_the_first_and_takes_over_if_it_dies(folder, monkeypatch):
  requests = []
  wait_for_turn = corpus._wait_for_turn

  def record_and_wait(root, request, *more):
    requests.append(request)
    return wait_for_turn(root, request, *more)

  monkeypatch.setattr(corpus, "_wait_for_turn", record_and_wait)
  vocabulary_fingerprint = build_task(cache=str(folder / "other")).vocabulary.fingerprint
  code = f"""
import sys, time; sys.path.insert(0, {str(REPO)!r})
from t5x_like.corpora import corpus
with corpus._wait_for_turn({str(folder / "cache")!r}, sys.argv[1], "x", bool):
  print("held", flush=True); time.sleep(60)
"""
  command = [sys.executable, "-c", code, requests[0]]
  holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
  assert holder.stdout.readline() == "held\n"
  is_waiting = threading.Event()
  tasks = []

  def watch_output(text, **_):
    if "another process is preparing it" in text:
      is_waiting.set()

  monkeypatch.setattr("builtins.print", watch_output)
  waiting = threading.Thread(target=lambda: tasks.append(build_task()))
  waiting.start()
  assert is_waiting.wait(60)
  assert not tasks
  monkeypatch.setattr(corpus, "_SILENCE_SECONDS", -1.0)
  with refuses(".lock: held by another process, which has not changed it for"):
    build_task()
  monkeypatch.setattr(corpus, "_SILENCE_SECONDS", 600.0)
  holder.kill()
  waiting.join(60)
  holder.wait()
  assert tasks[0].vocabulary.fingerprint == vocabulary_fingerprint


@pytest.mark.parametrize(
  "arguments, words",
  [
    ({"store": "builtin"}, ("config.task: found both a store and a source",)),
    ({"sorce": "x"}, ("config.task.sorce: unknown key",)),
    ({"clean": "c5"}, ("config.task.clean: found 'c5'", "some of c4")),
    ({"vocabulary": "nowhere"}, ("vocabulary nowhere: found nothing there",)),
    ({"source": "jsonl:none/*"}, ("none",)),
    ({"validation_fraction": 1.0}, ("validation_fraction: found 1.0",)),
    ({"cache": "0.jsonl/x"}, ("0.jsonl/x: cannot be written", "T5X_LIKE_CACHE")),
    ({"split": "test"}, ("found no split 'test'", "one of train, validation")),
  ],
)
def test_bad_arguments_are_refused(folder, arguments, words):
  with refuses(*words):
    build_task(**arguments)


def test_source_without_a_vocabulary_is_refused(folder):
  with refuses("config.task.vocabulary: missing"):
    task.build("span_corruption", "train", source="jsonl:*.jsonl")


def test_default_cache_is_in_the_workdir(monkeypatch):
  monkeypatch.setattr(data, "_default_directory", data._default_directory)
  monkeypatch.delenv("T5X_LIKE_CACHE", raising=False)
  data.use_cache("runs/one/")
  assert data.cache_directory() == "runs/one/data"
  monkeypatch.setenv("T5X_LIKE_CACHE", "gs://b/cache/")
  assert data.cache_directory() == "gs://b/cache"


def test_flag_of_a_source_replaces_the_store_of_a_recipe_and_vice_versa():
  recipe = str(REPO / "configs/t5/base.py")
  source = ["task.vocabulary=v", "task.source=jsonl:a", "task.clean=c4"]
  task_config = recipes.load(recipe, source).task
  assert "store" not in task_config
  assert task_config.source == "jsonl:a"
  assert task_config.vocabulary == "v"
  task_config = recipes.load(recipe, [*source, "task.store=data/x"]).task
  assert task_config.store == "data/x"
  assert not {"source", "vocabulary", "clean"} & set(task_config)
  assert recipes.load(f"{recipe}:debug", source).task.source == "jsonl:a"
  store_task = task_config.to_dict() | {"name": "t"}
  source_task = {"source": "a", "vocabulary": "v", "length": 3}
  assert config.change_task(source_task, {"store": "b"}) == {"store": "b", "length": 3}
  assert "store" not in config.change_task(store_task, Corpus("a", "v").__dict__)

"""Token stores that tasks make for themselves from a source: once, by one process, and anew when
files change."""

import functools
import json
import os
import pathlib
import re
import subprocess
import sys
import threading

import numpy as np
import pytest

from t5x_like import config, data, recipes
from t5x_like.config import Corpus
from t5x_like.corpora import building, corpus, tokens
from t5x_like.data import task
from t5x_like.errors import UserError
from t5x_like.store.tokens import TokenStore
from tools import prepare_data

REPO = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def here(tmp_path, monkeypatch):
  """A corpus of two files in a directory that is the present one, and a cache."""
  generator = np.random.default_rng(0)
  for number in range(2):
    texts = (
      "".join(map(chr, generator.integers(97, 123, n))) for n in generator.integers(1, 900, 100)
    )
    (tmp_path / f"{number}.jsonl").write_text(
      "".join(json.dumps({"text": text}) + "\n" for text in texts)
    )
  monkeypatch.setenv("T5X_LIKE_CACHE", str(tmp_path / "cache"))
  monkeypatch.chdir(tmp_path)
  return tmp_path


def build(split="train", name="span_corruption", **arguments):
  corpus_ = {"source": "jsonl:*.jsonl", "vocabulary": "bytes"}
  return task.build(
    name,
    split,
    **({"inputs_length": 64} if name == "span_corruption" else {}) | corpus_ | arguments,
  )


def homes(root):
  return sorted(path for path in (root / "cache").iterdir() if path.is_dir())


def test_a_task_on_a_source_is_the_one_on_the_prepared_store(here, capsys):
  flags = ["--source=jsonl:*.jsonl", "--vocabulary=bytes"]
  assert prepare_data.main([*flags, "--output=made"]) == 0
  assert prepare_data.main([*flags, "--output=made_eos", "--append_eos"]) == 0
  capsys.readouterr()
  for split in ("train", "validation"):
    expected = task.build("span_corruption", split, store="made", inputs_length=64)
    assert build(split).fingerprint == expected.fingerprint
    expected = task.build("causal_lm", split, store="made_eos", length=64)
    assert build(split, "causal_lm", length=64).fingerprint == expected.fingerprint
  assert capsys.readouterr().out.count("preparing split") == 4 and len(homes(here)) == 2
  before = {file: file.stat().st_mtime_ns for home in homes(here) for file in home.rglob("*")}
  mixed = task.build(
    "mixture",
    "train",
    shared={
      "source": "jsonl:*.jsonl",
      "vocabulary": "bytes",
      "inputs_length": 64,
      "name": "span_corruption",
    },
    parts={"a": {}, "b": {"store": "builtin"}},
  )
  assert mixed.parts["a"].fingerprint == build().fingerprint != mixed.parts["b"].fingerprint
  assert "preparing" not in capsys.readouterr().out
  assert before == {
    file: file.stat().st_mtime_ns for home in homes(here) for file in home.rglob("*")
  }


def test_changed_files_are_prepared_anew_beside_what_was_made(here, capsys):
  first = build()
  (old,) = homes(here)
  text = (here / "0.jsonl").read_text()
  (here / "0.jsonl").write_text(text.replace("a", "b"))  # at the same size
  os.utime(here / "0.jsonl", ns=(1, 1))
  second = build()
  said = capsys.readouterr().out
  assert re.search(
    r"its files have changed since .*cache/.* was made .* preparing them anew; "
    r"delete .*cache/",
    said,
  )
  assert second.fingerprint != first.fingerprint and len(homes(here)) == 2 and old in homes(here)
  (here / "0.jsonl").write_text(text)
  os.utime(here / "0.jsonl", ns=(2, 2))
  assert build().fingerprint == first.fingerprint  # another time, the same text: runs resume
  (here / "0.jsonl").unlink(), (here / "1.jsonl").unlink()
  with pytest.raises(UserError, match=r"--config.task.store=\S+cache/\S+") as refused:
    build()
  store = re.search(r"store=(\S+)", str(refused.value))[1]
  assert (
    task.build("span_corruption", "train", store=store, inputs_length=64).num_examples
    == first.num_examples
  )


def test_an_interrupted_preparation_goes_on(here, monkeypatch, capsys):
  monkeypatch.setattr(
    tokens.TokenStoreKind, "of", functools.partial(tokens.TokenStoreKind.of, shard_values=10_000)
  )
  expected = build(cache=str(here / "uninterrupted")).fingerprint
  write = building._write_shard
  written = []

  def stopping(*arguments):
    if len(written) == 4:
      raise KeyboardInterrupt
    written.append(write(*arguments))

  with monkeypatch.context() as patched:
    patched.setattr(building, "_write_shard", stopping)
    with pytest.raises(KeyboardInterrupt):
      build()
  assert not list((here / "cache").glob("*/train"))
  more = []
  monkeypatch.setattr(building, "_write_shard", lambda *arguments: more.append(write(*arguments)))
  assert build().fingerprint == expected
  (home,) = homes(here)
  assert len(more) == TokenStore.open(home / "train").manifest.num_shards - 4 > 2
  assert [child.name for child in home.iterdir()] == ["train"]


def test_who_comes_second_waits_also_for_one_that_dies(here, monkeypatch):
  vocabulary_print = build(cache=str(here / "other")).vocabulary.fingerprint
  code = f"""
import sys, time; sys.path.insert(0, {str(REPO)!r})
from t5x_like.corpora import corpus
with corpus._wait_for_turn({str(here / "cache")!r}, sys.argv[1], "x", bool):
  print("held", flush=True); time.sleep(60)
"""
  asked = []
  turn = corpus._wait_for_turn
  monkeypatch.setattr(
    corpus,
    "_wait_for_turn",
    lambda root, request, *more: asked.append(request) or turn(root, request, *more),
  )
  build(cache=str(here / "third"))
  holder = subprocess.Popen(
    [sys.executable, "-c", code, asked[0]], stdout=subprocess.PIPE, text=True
  )
  assert holder.stdout.readline() == "held\n"
  said = threading.Event()
  made = []
  monkeypatch.setattr(
    "builtins.print",
    lambda text, **_: said.set() if "another process is preparing it" in text else 0,
  )
  waiting = threading.Thread(target=lambda: made.append(build()))
  waiting.start()
  assert said.wait(60) and not made
  monkeypatch.setattr(corpus, "_SILENCE_SECONDS", -1.0)
  with pytest.raises(
    UserError,
    match=r"\.lock: held by another process, which has shown no sign "
    r"of life",
  ):
    build()
  monkeypatch.setattr(corpus, "_SILENCE_SECONDS", 600.0)
  holder.kill()
  waiting.join(60)
  holder.wait()
  assert made[0].vocabulary.fingerprint == vocabulary_print


def test_refusals(here):
  for arguments, message in (
    ({"store": "builtin"}, "config.task: found both a store and a source"),
    ({"sorce": "x"}, "config.task.sorce: unknown key"),
    ({"clean": "c5"}, "config.task.clean: found 'c5', expected some of c4"),
    ({"vocabulary": "nowhere"}, "vocabulary nowhere: found nothing there"),
    ({"source": "jsonl:none/*"}, "none"),
    ({"validation_fraction": 1.0}, "validation_fraction: found 1.0"),
    ({"cache": "0.jsonl/x"}, "0.jsonl/x: cannot be written .* T5X_LIKE_CACHE"),
    ({"split": "test"}, "found no split 'test', expected one of train, validation"),
  ):
    with pytest.raises(UserError, match=message):
      build(**arguments)
  with pytest.raises(UserError, match="config.task.vocabulary: missing"):
    task.build("span_corruption", "train", source="jsonl:*.jsonl")


def test_the_cache_is_that_of_the_workdir_unless_it_is_set(monkeypatch):
  monkeypatch.setattr(data, "_default", data._default)
  monkeypatch.delenv("T5X_LIKE_CACHE", raising=False)
  data.use_cache("runs/one/")
  assert data.cache_directory() == "runs/one/data"
  monkeypatch.setenv("T5X_LIKE_CACHE", "gs://b/cache/")
  assert data.cache_directory() == "gs://b/cache"


def test_a_source_takes_the_place_of_a_store_and_a_store_that_of_a_source():
  recipe = str(REPO / "configs/t5/base.py")
  source = ["task.vocabulary=v", "task.source=jsonl:a", "task.clean=c4"]
  made = recipes.load(recipe, source).task
  assert "store" not in made and (made.source, made.vocabulary) == ("jsonl:a", "v")
  made = recipes.load(recipe, [*source, "task.store=data/x"]).task
  assert made.store == "data/x" and not {"source", "vocabulary", "clean"} & set(made)
  assert recipes.load(f"{recipe}:debug", source).task.source == "jsonl:a"
  own = made.to_dict() | {"name": "t"}
  assert config.change_task({"source": "a", "vocabulary": "v", "length": 3}, {"store": "b"}) == {
    "store": "b",
    "length": 3,
  }
  assert "store" not in config.change_task(own, Corpus("a", "v").__dict__)

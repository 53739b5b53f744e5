"""Stores that tasks prepare: each request has its own, prepared once, and another's is refused."""

import json
import os

import numpy as np
import pytest

import stores
from t5x_like.corpora.sources import open_source
from t5x_like.data import prepared
from t5x_like.data.prepared import Request
from t5x_like.errors import DamageError, UserError
from t5x_like.store.manifest import FORMAT, Array
from t5x_like.store.writer import StoreWriter


@pytest.fixture
def request_of(tmp_path):
  (tmp_path / "a.tsv").write_text("a\tb\n" + "x\ty\n" * 5)

  def made(split="train", classes=("x",), **arguments):
    source = open_source(f"tsv:{tmp_path}/a.tsv", fields=("a", "b"))
    return Request(source, split, str(tmp_path / "cache"), {"classes": list(classes)}, arguments)

  return made


def make(request):
  with StoreWriter(request.path, arrays=[Array("x", "int32")], **request.about) as writer:
    count = sum(1 for _ in request.records())
    writer.extend({"x": (np.arange(count, dtype=np.int32), np.ones(count, np.int64))})


def test_a_request_is_prepared_once_and_each_has_its_own(request_of):
  made = []
  for request in (request_of(), request_of(), request_of("train[:2]"), request_of(length=3), request_of(classes="xy")):
    store = prepared.opened(request, lambda one: made.append(one) or make(one), "auto")
    assert store.num_items == (2 if "[" in request.split else 5) and store.name == request.source.name
  assert len(made) == len({one.path for one in made}) == 4
  assert "-train2-" in made[1].path.name


def test_another_request_and_damage_are_refused_with_the_remedy(request_of):
  request = request_of(length=3)
  prepared.opened(request, make, "auto")
  for key, change in (("source", {"split": "x"}), ("facts", {"classes": ["other"]})):
    text = (request.path / "manifest.json").read_text()
    stores.edit(request.path, lambda manifest, key=key, change=change: manifest[key].update(change), checked=True)
    with pytest.raises(UserError, match=f"manifest.json: {key}: not as the task asks.*delete .* is made again"):
      prepared.opened(request, make, "size")
    (request.path / "manifest.json").write_text(text)
  file = request.path / "x" / "00000000"
  file.write_bytes(bytes(file.stat().st_size))
  with pytest.raises(DamageError, match="x/00000000: found SHA-256 .* or delete .* and it is made again"):
    prepared.opened(request, make, "auto")


def test_a_store_of_another_version_is_prepared_again(request_of):
  """By name; if it stands under the name of this version, it is refused."""
  request = request_of()
  assert json.loads(json.dumps(request.content))["format"] == FORMAT
  prepared.opened(request, make, "auto")
  stores.edit(request.path, lambda manifest: manifest.update(format="t5x_like.store.v2"))
  with pytest.raises(UserError, match="format: found 't5x_like.store.v2', expected .* or delete .* is made again"):
    prepared.opened(request, make, "auto")


def test_a_failure_leaves_no_store(request_of, tmp_path):
  def failed(request):
    raise OSError(28, "No space left on device")

  with pytest.raises(UserError, match="config.task.cache: .* cannot be written .*No space left.*another directory"):
    prepared.opened(request_of(), failed, "auto")
  assert prepared.opened(request_of(), make, "auto").num_items == 5
  (tmp_path / "file").write_text("")
  request = Request(request_of().source, "train", os.fspath(tmp_path / "file"), {}, {})
  with pytest.raises(UserError, match="config.task.cache: .*file cannot be written"):
    prepared.opened(request, make, "auto")

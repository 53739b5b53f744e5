"""Reading a damaged store ends in a one-line error or in the right values."""

import contextlib
import functools
import hashlib
import io
import json
import pathlib
import random

import numpy as np
import pytest
from PIL import Image

from t5x_like.data import loader, task
from t5x_like.data.images import store as image_store
from t5x_like.errors import handle_errors
from t5x_like.store.tokens import TokenStore
from tests import stores
from tests.fuzz.harness import Sandbox, fuzz_seed, generator
from tests.fuzz.mutations import copy_folder, hash_files, list_files, mutate_folder
from tools import inspect_data

SEED = fuzz_seed(7)
# Numbers of cases for each kind of store.
NUM_SAMPLE_CASES = 6
NUM_CASES = 90


def sign(file: pathlib.Path) -> None:
  """Update the checksum in a manifest whose fields have changed."""
  manifest = json.loads(file.read_text())
  if file.name == "manifest.json" and "checksum" in manifest:
    fields = {key: value for key, value in manifest.items() if key not in ("format", "checksum")}
    manifest["checksum"] = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    file.write_text(json.dumps(manifest))


def damage_files(rng: random.Random, folder: pathlib.Path, share_of_manifests: float) -> str:
  """Damage one file of a store; return a description.

  Args:
    share_of_manifests: the probability that it is a manifest or a table.
  """
  files = [file for file in list_files(folder) if not file.endswith(".lock")]
  if rng.random() < share_of_manifests:
    files = [file for file in files if file.endswith((".json", ".table"))]
  return mutate_folder(rng, folder, files, sign)


class Tokens:
  """A token store, which is read whole or, in a tenth of the cases, by `inspect_data`."""

  def __init__(self, folder: pathlib.Path):
    store = stores.write(folder / "train", stores.random_documents(40, 30), shard_tokens=150)
    self.folder = folder
    self.expected = self._content(store)

  def damage(self, rng, folder: pathlib.Path) -> str:
    self._verify = rng.choice(("auto", "auto", "size"))
    self._uses_tool = rng.random() < 0.1
    return f"{self._verify}: {damage_files(rng, folder, 0.7)}"

  def read(self, folder: pathlib.Path) -> None:
    store = TokenStore.open(folder / "train", self._verify)
    store.vocabulary  # noqa: B018 -- read and checked
    content = self._content(store)
    if self._verify == "auto":
      assert all(map(np.array_equal, content, self.expected)), "wrong bits"

  def call(self, folder: pathlib.Path) -> int:
    if not self._uses_tool:
      return handle_errors(self.read)(folder)
    return inspect_data.main(
      ["--config=tests/recipes/nano.py", f"--config.task.store={folder}", "--split=train"]
    )

  def _content(self, store: TokenStore) -> tuple:
    N = store.num_documents
    last = store.num_tokens - 8
    positions = np.arange(0, max(last, 1), 5)
    windows = store.windows(positions, 8)
    spans = store.document_spans(np.arange(N))
    return windows, store.document_ends(), *spans, *store.documents_at(positions)


class Examples:
  """Prepared examples of a text-to-text task, of which the first batch is read."""

  def __init__(self, folder: pathlib.Path):
    rows = "".join(f"a {'word ' * (n % 5)}{n}\tb{n}\n" for n in range(30))
    self._source = folder.parent / "rows.tsv"
    self._source.write_text("source\ttarget\n" + rows)
    self.folder = folder
    self.expected = self._first_batch(folder)

  def damage(self, rng, folder: pathlib.Path) -> str:
    return damage_files(rng, folder, 0.5)

  def call(self, folder: pathlib.Path) -> int:
    return handle_errors(self.read)(folder)

  def read(self, folder: pathlib.Path) -> None:
    batch = self._first_batch(folder)
    for name, expected in self.expected.items():
      assert np.array_equal(batch[name], expected), "wrong bits"

  def _first_batch(self, folder: pathlib.Path) -> dict[str, np.ndarray]:
    examples_task = task.build(
      "text_to_text",
      "train",
      source=f"tsv:{self._source}",
      inputs="say: {source}",
      targets="{target}",
      inputs_length=64,
      targets_length=16,
      cache=str(folder),
    )
    return next(loader.eval_batches(examples_task, batch_size=4))


class Images:
  """A store of prepared images, of which all are read."""

  def __init__(self, folder: pathlib.Path):
    for n in range(6):
      pixels = np.random.default_rng(n).integers(0, 256, (5, 4, 3)).astype(np.uint8)
      file = folder.parent / "pictures" / "ab"[n % 2] / f"{n}.png"
      file.parent.mkdir(parents=True, exist_ok=True)
      Image.fromarray(pixels).save(file)
    self._source = f"folders:{folder.parent / 'pictures'}"
    self.folder = folder
    self.expected = self._content(folder)

  def damage(self, rng, folder: pathlib.Path) -> str:
    self._verify = rng.choice(("auto", "auto", "size"))
    return f"{self._verify}: {damage_files(rng, folder, 0.6)}"

  def call(self, folder: pathlib.Path) -> int:
    return handle_errors(self.read)(folder)

  def read(self, folder: pathlib.Path) -> None:
    content = self._content(folder, self._verify)
    if self._verify == "auto":
      assert content == self.expected, "wrong values"

  def _content(self, folder: pathlib.Path, verify: str = "auto"):
    store = image_store.open_store(self._source, "train", cache=str(folder), verify=verify)
    return store.read(np.arange(store.num_images)).tolist(), store.labels.tolist()


KINDS = {"tokens": Tokens, "examples": Examples, "images": Images}


def run_damaged_stores(kind: str, tmp_path: pathlib.Path, cases: range) -> None:
  (tmp_path / "intact").mkdir()
  with contextlib.redirect_stdout(io.StringIO()):
    store = KINDS[kind](tmp_path / "intact" / "store")
  sandbox = Sandbox(tmp_path / "sandbox", memory=2**30)
  for number in cases:
    case = [f"seed {SEED}, {kind} {number}:"]
    rng = generator(SEED, f"{kind}/{number}")
    sandbox.run(case, functools.partial(damage_and_read, store, rng, case))
  sandbox.check(min_cases=len(cases))


def damage_and_read(store, rng: random.Random, case: list[str], case_folder: pathlib.Path) -> int:
  """Damage a copy of a store and read it, which must not change the other files."""
  folder = copy_folder(store.folder, case_folder / "store")
  before = hash_files(folder)
  case.append(store.damage(rng, folder))
  intact = hash_files(folder).items() & before.items()
  code = store.call(folder)
  assert intact <= hash_files(folder).items(), "an intact file was changed"
  return code


@pytest.mark.parametrize("kind", KINDS)
def test_some_damaged_stores_are_read_or_refused(kind, tmp_path):
  run_damaged_stores(kind, tmp_path, range(NUM_SAMPLE_CASES))


@pytest.mark.fuzz
@pytest.mark.parametrize("kind", KINDS)
def test_many_damaged_stores_are_read_or_refused(kind, tmp_path):
  run_damaged_stores(kind, tmp_path, range(NUM_CASES))

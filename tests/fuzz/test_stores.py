"""Damaged token, example and image stores: right bits, or one line. See `harness`."""

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
from tests.fuzz.harness import Sandbox, generator
from tests.fuzz.mutations import copy_folder, digests, files_of, mutate_folder
from tools import inspect_data

# cases of each kind of store
SEED = 7
SAMPLE = 6
ALL = 90


def sign(file: pathlib.Path) -> None:
  """Give a manifest the checksum of its changed fields."""
  manifest = json.loads(file.read_text())
  if file.name == "manifest.json" and "checksum" in manifest:
    fields = {key: value for key, value in manifest.items() if key not in ("format", "checksum")}
    manifest["checksum"] = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    file.write_text(json.dumps(manifest))


def damage_files(choice: random.Random, folder: pathlib.Path, share_of_manifests: float) -> str:
  """Damage a file of a store, of which a share are manifests and tables; return a description."""
  files = [file for file in files_of(folder) if not file.endswith(".lock")]
  if choice.random() < share_of_manifests:
    files = [file for file in files if file.endswith((".json", ".table"))]
  return mutate_folder(choice, folder, files, sign)


class Tokens:
  """A token store, opened and read whole; or a batch of it shown by a tool."""

  def __init__(self, folder: pathlib.Path):
    store = stores.write(folder / "train", stores.random_documents(40, 30), shard_tokens=150)
    self.folder = folder
    self.expected = self._content(store)

  def damage(self, choice, folder: pathlib.Path) -> str:
    self._verify = choice.choice(("auto", "auto", "size"))
    self._shown = choice.random() < 0.1
    return f"{self._verify}: {damage_files(choice, folder, 0.7)}"

  def use(self, folder: pathlib.Path) -> None:
    store = TokenStore.open(folder / "train", self._verify)
    store.vocabulary  # noqa: B018 -- read and checked
    content = self._content(store)
    if self._verify == "auto":
      assert all(map(np.array_equal, content, self.expected)), "wrong bits"

  def run_command(self, folder: pathlib.Path) -> int:
    if not self._shown:
      return handle_errors(self.use)(folder)
    return inspect_data.main(
      ["--config=tests/recipes/nano.py", f"--config.task.store={folder}", "--split=train"]
    )

  def _content(self, store: TokenStore) -> tuple:
    N = store.num_documents
    last = store.num_tokens - 8
    places = np.arange(0, max(last, 1), 5)
    spans = store.document_spans(np.arange(N))
    return store.windows(places, 8), store.document_ends(), *spans, *store.documents_at(places)


class Examples:
  """Prepared examples of a task of texts, opened by the task, and the first batch of an
  evaluation."""

  def __init__(self, folder: pathlib.Path):
    rows = "".join(f"a {'word ' * (n % 5)}{n}\tb{n}\n" for n in range(30))
    self._source = folder.parent / "rows.tsv"
    self._source.write_text("source\ttarget\n" + rows)
    self.folder = folder
    self.expected = self._first(folder)

  def damage(self, choice, folder: pathlib.Path) -> str:
    return damage_files(choice, folder, 0.5)

  def run_command(self, folder: pathlib.Path) -> int:
    return handle_errors(self.use)(folder)

  def use(self, folder: pathlib.Path) -> None:
    batch = self._first(folder)
    for name, expected in self.expected.items():
      assert np.array_equal(batch[name], expected), "wrong bits"

  def _first(self, folder: pathlib.Path) -> dict[str, np.ndarray]:
    built = task.build(
      "text_to_text",
      "train",
      source=f"tsv:{self._source}",
      inputs="say: {source}",
      targets="{target}",
      inputs_length=64,
      targets_length=16,
      cache=str(folder),
    )
    return next(loader.eval_batches(built, batch_size=4))


class Images:
  """Prepared images, opened, and each of them read."""

  def __init__(self, folder: pathlib.Path):
    for n in range(6):
      pixels = np.random.default_rng(n).integers(0, 256, (5, 4, 3)).astype(np.uint8)
      file = folder.parent / "pictures" / "ab"[n % 2] / f"{n}.png"
      file.parent.mkdir(parents=True, exist_ok=True)
      Image.fromarray(pixels).save(file)
    self._source = f"folders:{folder.parent / 'pictures'}"
    self.folder = folder
    self.expected = self._content(folder)

  def damage(self, choice, folder: pathlib.Path) -> str:
    self._verify = choice.choice(("auto", "auto", "size"))
    return f"{self._verify}: {damage_files(choice, folder, 0.6)}"

  def run_command(self, folder: pathlib.Path) -> int:
    return handle_errors(self.use)(folder)

  def use(self, folder: pathlib.Path) -> None:
    assert self._content(folder, self._verify) == self.expected or self._verify == "size", (
      "wrong bits"
    )

  def _content(self, folder: pathlib.Path, verify: str = "auto"):
    store = image_store.open_store(self._source, "train", cache=str(folder), verify=verify)
    return store.read(np.arange(store.num_images)).tolist(), store.labels.tolist()


KINDS = {"tokens": Tokens, "examples": Examples, "images": Images}


def run_damaged_stores(kind: str, tmp_path: pathlib.Path, cases: range) -> None:
  (tmp_path / "sound").mkdir()
  with contextlib.redirect_stdout(io.StringIO()):
    subject = KINDS[kind](tmp_path / "sound" / "store")
  sandbox = Sandbox(tmp_path / "sandbox", memory=2**30)
  for number in cases:
    case = [f"seed {SEED}, {kind} {number}:"]
    choice = generator(SEED, f"{kind}/{number}")
    sandbox.run(case, functools.partial(damage_and_use, subject, choice, case))
  sandbox.check(min_cases=len(cases))


def damage_and_use(
  subject, choice: random.Random, case: list[str], case_folder: pathlib.Path
) -> int:
  """Damage a copy of a store and use it; other files stay as they are."""
  folder = copy_folder(subject.folder, case_folder / "store")
  before = digests(folder)
  case.append(subject.damage(choice, folder))
  sound = digests(folder).items() & before.items()
  code = subject.run_command(folder)
  assert sound <= digests(folder).items(), "a sound file was changed"
  return code


@pytest.mark.parametrize("kind", KINDS)
def test_some_damaged_stores_are_read_or_refused(kind, tmp_path):
  run_damaged_stores(kind, tmp_path, range(SAMPLE))


@pytest.mark.fuzz
@pytest.mark.parametrize("kind", KINDS)
def test_many_damaged_stores_are_read_or_refused(kind, tmp_path):
  run_damaged_stores(kind, tmp_path, range(ALL))

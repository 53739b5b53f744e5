"""A split held out of a source of images, and the names of classes on disk."""

import json
import unicodedata
import zipfile

import numpy as np
import pytest
from PIL import Image

from image_files import encode, folders
from t5x_like.corpora.sources import open_source
from t5x_like.data import task
from t5x_like.errors import UserError


def built(source, folder, **arguments):
  return task.build(
    "image_classification", source=source, resolution=8, cache=str(folder / "cache"), **arguments
  )


def test_a_validation_split_is_held_out_by_content(tmp_path):
  pixels = np.random.default_rng(0).integers(0, 256, (80, 4, 4, 3)).astype(np.uint8)
  files = {f"{'ab'[n % 2]}/{n}.png": encode(Image.fromarray(one)) for n, one in enumerate(pixels)}
  plain = folders(tmp_path / "pets", files)
  moved = folders(tmp_path / "x" / "pets", {f"b/z{n}": files[n] for n in files})
  opened, other = (open_source(f"held_out:4@{source}") for source in (plain, moved))
  assert (
    opened.splits == ("train", "validation")
    and opened.classes("label") == ("a", "b")
    and opened.name == "pets"
  )
  actual = {split: [one["image"] for _, one in opened.records(split)] for split in opened.splits}
  assert (
    sorted(actual["train"] + actual["validation"]) == sorted(files.values())
    and 10 < len(actual["validation"]) < 32
  )
  assert {one["image"] for _, one in other.records("validation")} == set(actual["validation"])
  assert {label for _, one in opened.records("validation") for label in one["label"]} == {"a", "b"}
  made = {split: built(f"held_out:4@{plain}", tmp_path, split=split) for split in opened.splits}
  assert {split: one.num_examples for split, one in made.items()} == {
    split: len(ones) for split, ones in actual.items()
  }
  with pytest.raises(
    UserError,
    match="found no split 'validation', expected one of train; held_out:10@SOURCE takes it",
  ):
    built(plain, tmp_path, split="validation")
  with pytest.raises(UserError, match="has a split 'validation', so leave held_out:2@ out"):
    open_source(f"held_out:2@held_out:4@{plain}")
  with pytest.raises(UserError, match="expected held_out:N@SOURCE, N from 2"):
    open_source(f"held_out:1@{plain}")


def test_classes_are_saved_and_read_again(tmp_path):
  from t5x_like import vocabularies
  from t5x_like.vocabularies.kinds.labels import LabelVocabulary

  names = LabelVocabulary(("cat", "dög"))
  names.save(tmp_path / "v")
  again = vocabularies.load(str(tmp_path / "v"))
  assert (again.names, again.size, again.fingerprint) == (names.names, 2, names.fingerprint)
  (tmp_path / "v" / "labels.json").write_text(json.dumps(["cat"]))
  with pytest.raises(UserError, match="is damaged"):
    vocabularies.load(str(tmp_path / "v"))


def test_classes_have_one_name_on_disks_of_macos_in_its_archives_and_elsewhere(tmp_path):
  picture = encode(Image.new("RGB", (4, 4)))
  name = "café"
  folders(
    tmp_path / "disk",
    {f"{unicodedata.normalize('NFD', name)}/1.png": picture, f"{name}/2.png": picture},
  )
  bare = name.encode()
  with zipfile.ZipFile(tmp_path / "mac.zip", "w") as archive:
    archive.writestr(f"{'x' * len(bare)}/1.png", picture)
  (tmp_path / "mac.zip").write_bytes(
    (tmp_path / "mac.zip").read_bytes().replace(b"x" * len(bare), bare)
  )
  for source in (f"folders:{tmp_path}/disk", f"folders:{tmp_path}/mac.zip"):
    opened = open_source(source)
    assert (
      opened.classes("label") == (name,) == (*{one["label"] for _, one in opened.records("train")},)
    )

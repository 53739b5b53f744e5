"""Validation splits are held out of sources of images; class names do not depend on the disk."""

import json
import unicodedata
import zipfile

import numpy as np
import pytest
from PIL import Image

from image_files import encode, write_folders
from refusals import refuses
from t5x_like import vocabularies
from t5x_like.corpora.sources import open_source
from t5x_like.data import task
from t5x_like.vocabularies.kinds.labels import LabelVocabulary


def build_task(source: str, folder, **arguments):
  return task.build(
    "image_classification", source=source, resolution=8, cache=str(folder / "cache"), **arguments
  )


def read_images(source, split: str) -> list[bytes]:
  return [record["image"] for _, record in source.records(split)]


@pytest.fixture
def image_files() -> dict[str, bytes]:
  """Return 80 different images of the classes a and b, by path."""
  pixels_NYXC = np.random.default_rng(0).integers(0, 256, (80, 4, 4, 3)).astype(np.uint8)
  files = {}
  for number, image_YXC in enumerate(pixels_NYXC):
    label = "ab"[number % 2]
    files[f"{label}/{number}.png"] = encode(Image.fromarray(image_YXC))
  return files


def test_validation_split_is_held_out_by_content(image_files, tmp_path):
  plain = write_folders(tmp_path / "pets", image_files)
  source = open_source(f"held_out:4@{plain}")
  assert source.splits == ("train", "validation")
  assert source.classes("label") == ("a", "b")
  assert source.name == "pets"
  train = read_images(source, "train")
  validation = read_images(source, "validation")
  assert sorted(train + validation) == sorted(image_files.values())
  assert 10 < len(validation) < 32
  assert {record["label"] for _, record in source.records("validation")} == {"a", "b"}

  moved_files = {f"b/z{path}": content for path, content in image_files.items()}
  moved = open_source(f"held_out:4@{write_folders(tmp_path / 'x' / 'pets', moved_files)}")
  assert set(read_images(moved, "validation")) == set(validation)

  for split, images in (("train", train), ("validation", validation)):
    split_task = build_task(f"held_out:4@{plain}", tmp_path, split=split)
    assert split_task.num_examples == len(images)


def test_unusable_held_out_splits_are_refused(image_files, tmp_path):
  plain = write_folders(tmp_path / "pets", image_files)
  with refuses("found no split 'validation'", "held_out:10@SOURCE takes it"):
    build_task(plain, tmp_path, split="validation")
  with refuses("has a split 'validation', so leave held_out:2@ out"):
    open_source(f"held_out:2@held_out:4@{plain}")
  with refuses("expected held_out:N@SOURCE, N from 2"):
    open_source(f"held_out:1@{plain}")


def test_saved_classes_can_be_loaded(tmp_path):
  saved = LabelVocabulary(("cat", "dög"))
  saved.save(tmp_path / "v")
  loaded = vocabularies.load(str(tmp_path / "v"))
  assert loaded.names == saved.names
  assert loaded.size == 2
  assert loaded.fingerprint == saved.fingerprint
  (tmp_path / "v" / "labels.json").write_text(json.dumps(["cat"]))
  with refuses("is damaged"):
    vocabularies.load(str(tmp_path / "v"))


def test_class_names_do_not_depend_on_the_unicode_form_of_folders(tmp_path):
  """macOS decomposes accents on disk, and its zip archives do not flag their UTF-8 names."""
  image = encode(Image.new("RGB", (4, 4)))
  name = "café"
  decomposed_name = unicodedata.normalize("NFD", name)
  write_folders(tmp_path / "disk", {f"{decomposed_name}/1.png": image, f"{name}/2.png": image})
  # zipfile sets the flag for names beyond ASCII, so replace an ASCII name of the same length.
  encoded_name = name.encode()
  placeholder = "x" * len(encoded_name)
  archive_path = tmp_path / "mac.zip"
  with zipfile.ZipFile(archive_path, "w") as archive:
    archive.writestr(f"{placeholder}/1.png", image)
  archive_path.write_bytes(archive_path.read_bytes().replace(placeholder.encode(), encoded_name))
  for path in (tmp_path / "disk", archive_path):
    source = open_source(f"folders:{path}")
    assert source.classes("label") == (name,)
    assert {record["label"] for _, record in source.records("train")} == {name}

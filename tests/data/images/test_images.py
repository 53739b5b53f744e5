"""Image stores hold upright, decodable images and count unusable files; tasks read the stores."""

import gzip
import io
import zipfile

import numpy as np
import pytest
from PIL import Image

from chances import assert_fits, assert_share
from image_files import NOISE, VARIED_FILES, encode, write_folders
from refusals import refuses
from t5x_like import data
from t5x_like.corpora import image_files
from t5x_like.corpora.sources import open_source
from t5x_like.data import loader, random, task
from t5x_like.data.images import store
from t5x_like.data.images.mixing import find_partners
from t5x_like.quiet_tensorflow import tf


def build(source, folder, name="image_classification", **arguments):
  defaults = {"split": "train", "resolution": 8, "crop": 1.0, "augmentations": ()}
  return task.build(name, source=source, cache=str(folder / "cache"), **defaults | arguments)


def open_images(source, folder, split="train", **options):
  return store.open_store(source, split, cache=str(folder / "cache"), **options)


def write_noise_folder(root, paths: str) -> str:
  """Write the same image to all paths, which are separated by spaces; return the source."""
  return write_folders(root, dict.fromkeys(paths.split(), encode(NOISE)))


def zip_files(path, files: dict[str, bytes]) -> str:
  """Write a zip archive of files; return its source."""
  with zipfile.ZipFile(path, "w") as archive:
    for name, content in files.items():
      archive.writestr(name, content)
  return f"folders:{path}"


def decode_pixels(content: bytes) -> np.ndarray:
  return np.asarray(Image.open(io.BytesIO(content)))


def test_a_line_about_the_data_is_printed_once(capsys):
  for seconds in range(2):
    data.announce("a store of one image", f"; checked in {seconds} s")
  assert capsys.readouterr().out == "data: a store of one image; checked in 0 s\n"


def test_unusable_files_are_counted_and_images_are_stored_as_8_bit_grey_or_rgb(tmp_path, capsys):
  images = open_images(write_folders(tmp_path / "pictures", VARIED_FILES), tmp_path)
  assert images.skipped == {
    "not a readable image": 3,
    f"more than {image_files.MAX_PIXELS:,} pixels": 1,
  }
  assert images.classes == ("a", "b")
  assert images.labels.tolist() == [0] * 4 + [1] * 4
  assert images.name == "pictures"
  names = sorted(VARIED_FILES.keys() - {"b/broken.jpg", "b/notes.txt", "b/empty.png", "b/huge.png"})
  contents = images.read(np.arange(8)).tolist()
  converted_names = set()
  for name, content in zip(names, contents, strict=True):
    if content == VARIED_FILES[name]:
      continue
    converted_names.add(name)
    image = Image.open(io.BytesIO(content))
    assert image.format == "PNG"
    if name == "b/deep.png":
      assert image.mode == "L"
      expected = NOISE[..., 0]
    else:
      assert image.mode == "RGB"
      expected = Image.open(io.BytesIO(VARIED_FILES[name])).convert("RGB")
    np.testing.assert_array_equal(image, expected, err_msg=name)
  assert set(names) - converted_names == {"a/kept.jpg", "a/grey.png", "b/pixel.png"}
  assert images.read(np.array([7, 0])).tolist() == [contents[7], contents[0]]
  assert "5 converted to PNG" in capsys.readouterr().out


@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_any_mode_are_batched_with_the_channels_of_the_task(channels, tmp_path):
  source = write_folders(tmp_path / "pictures", VARIED_FILES)
  batch = next(loader.eval_batches(build(source, tmp_path, channels=channels), batch_size=8))
  assert batch["image"].shape == (8, 8, 8, channels)
  assert np.isfinite(batch["image"]).all()
  assert np.abs(batch["image"]).max() <= 1


def test_photographs_are_turned_upright_by_their_exif_tag(tmp_path, capsys):
  noise = Image.fromarray(np.tile(NOISE[:4, :3], (2, 4, 1)))
  upright = noise.resize((96, 64), Image.Resampling.BICUBIC)
  stored = upright.transpose(Image.Transpose.ROTATE_90)
  tag = Image.Exif()
  tag[0x112] = 6  # Orientation: rotate by 90 degrees clockwise to display
  files = {
    "a/turned.jpg": encode(stored, "JPEG", quality=95, exif=tag),
    "a/turned.png": encode(stored, exif=tag),
    "a/upright.jpg": encode(upright, "JPEG", quality=95),
    "a/wrong.jpg": encode(upright, "JPEG", quality=95, exif=b"Exif\0\0MM no tags"),
  }
  images = open_images(write_folders(tmp_path / "photos", files), tmp_path)
  assert "1 converted to PNG, 1 turned upright" in capsys.readouterr().out
  for content, file in zip(images.read(np.arange(4)), files.values(), strict=True):
    # Batches ignore the tag when they decode an image; predictions from a file apply it.
    pixels = decode_pixels(content).astype(np.float32)
    assert pixels.shape == (64, 96, 3)
    assert np.abs(pixels - np.asarray(upright)).mean() < 8
    np.testing.assert_allclose(image_files.read_pixels(file, 3), pixels, atol=40)
    assert Image.open(io.BytesIO(content)).format == Image.open(io.BytesIO(file)).format


CAT_AND_DOG = "train/cat/x.png train/dog/x.png Val/cat/x.png Val/dog/x.png"


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
  "paths, splits, train_labels",
  [
    (f"{CAT_AND_DOG} test/cat/y.png", ("train", "validation", "test"), ["cat", "dog"]),
    (f"{CAT_AND_DOG} test/y.png", ("train", "validation"), ["cat", "dog"]),
    ("test/1.png train/2.png", ("train",), ["test", "train"]),
    (
      "bird/1.png cat/2.png cat/tabby/old/3.png dog/images/4.png cat/.cache/2.png",
      ("train",),
      ["bird", "cat", "cat", "dog"],
    ),
  ],
  ids=["splits", "a split without classes", "classes with names of splits", "deeper folders"],
)
def test_folders_of_images_are_splits_and_classes(paths, splits, train_labels, zipped, tmp_path):
  if zipped:
    source = zip_files(tmp_path / "pets.zip", dict.fromkeys(paths.split(), encode(NOISE)))
  else:
    source = write_noise_folder(tmp_path / "pets [new]", paths)
  opened = open_source(source)
  assert opened.splits == splits
  assert [record["label"] for _, record in opened.records("train")] == train_labels
  assert opened.classes("label") == tuple(sorted(set(train_labels)))


@pytest.mark.parametrize("top", ["", "pets/"])
def test_zip_archive_has_the_records_of_the_same_folders(top, tmp_path):
  plain = open_source(write_noise_folder(tmp_path / "pets", CAT_AND_DOG))
  files = {f"{top}{path}": encode(NOISE) for path in CAT_AND_DOG.split()}
  for path in ("train/cat/.DS_Store", "README.md", "train/labels.csv", "test/1.png"):
    files[f"{top}{path}"] = b"no image of a class"
  files["__MACOSX/train/cat/x.png"] = b"?"
  source = zip_files(tmp_path / "pets.zip", files)
  opened = open_source(source)
  assert opened.splits == plain.splits
  for split in opened.splits:
    expected = [record for _, record in plain.records(split)]
    assert [record for _, record in opened.records(split)] == expected
  assert build(source, tmp_path, split="validation").num_examples == 2
  folder_in_archive = f"{tmp_path}/pets.zip/{top}train"
  locations = [
    where for where, _ in open_source(f"folders:train={folder_in_archive}").records("train")
  ]
  assert locations == [f"{folder_in_archive}/cat/x.png", f"{folder_in_archive}/dog/x.png"]


def test_argument_classes_sets_the_label_numbers(tmp_path):
  source = write_noise_folder(tmp_path / "pets", "cat/1.png owl/1.png")
  numbered = build(source, tmp_path, classes=("cat", "dog", "owl"))
  assert numbered.classes == ("cat", "dog", "owl")
  assert numbered.labels.tolist() == [0, 2]
  assert build(source, tmp_path).labels.tolist() == [0, 1]
  with refuses("'owl'", "'label'", "cat, dog"):
    build(source, tmp_path, classes=("cat", "dog"))


def test_folders_of_splits_next_to_another_folder_are_ambiguous(tmp_path):
  source = write_noise_folder(
    tmp_path / "pets", "train/cat/1.png Val/cat/2.png devkit/about/readme.txt"
  )
  with refuses("Val, train", "folders:validation=", "/Val,train="):
    open_source(source)
  assert open_source(source.replace(":", ":train=")).classes("label") == ("Val", "devkit", "train")


def test_slice_of_a_split_has_its_first_images(tmp_path):
  all_images = open_images("digits", tmp_path)
  first = open_images("digits", tmp_path, "train[:30]")
  assert first.num_images == 30
  assert first.classes == all_images.classes
  assert first.labels.tolist() == all_images.labels[:30].tolist()
  assert first.read(np.arange(30)).tolist() == all_images.read(np.arange(30)).tolist()
  assert first.fingerprint != all_images.fingerprint


def write_idx(path, array: np.ndarray) -> None:
  header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
  path.write_bytes(gzip.compress(header + array.tobytes()))


def test_idx_files_are_read_as_images_and_labels(tmp_path):
  images = np.stack([NOISE[..., n % 3] for n in range(6)])
  labels = np.array([3, 0, 1, 1, 2, 0], np.uint8)
  write_idx(tmp_path / "train-images-idx3-ubyte.gz", images)
  write_idx(tmp_path / "train-labels-idx1-ubyte.gz", labels)
  stored = open_images(f"idx:{tmp_path}/train-images-idx3-ubyte.gz", tmp_path)
  assert stored.classes == tuple("0123")
  assert stored.labels.tolist() == labels.tolist()
  for content, image in zip(stored.read(np.arange(6)), images, strict=True):
    np.testing.assert_array_equal(decode_pixels(content), image)


def test_idx_files_whose_counts_disagree_are_refused(tmp_path):
  images_path = tmp_path / "train-images-idx3-ubyte.gz"
  source = f"idx:{images_path}"
  write_idx(images_path, np.zeros((6, 2, 2), np.uint8))
  write_idx(tmp_path / "train-labels-idx1-ubyte.gz", np.zeros(5, np.uint8))
  with refuses("6 images", "5 labels"):
    list(open_source(source).records("train"))
  # The header states three dimensions of size 0, but values follow.
  images_path.write_bytes(gzip.compress(b"\0\0\x08\x03" + bytes(20)))
  with refuses("found more than 0 values"):
    list(open_source(source).records("train"))


@pytest.mark.parametrize("form", ["tfrecord", "array_record"])
def test_tfds_images_stay_encoded(form, tmp_path):
  from t5x_like.quiet_tensorflow import tfds

  pictures = [encode(NOISE + np.uint8(n), "JPEG") for n in range(3)]

  with tfds.core.registered.skip_registration():

    class Pets(tfds.core.GeneratorBasedBuilder):
      VERSION = tfds.core.Version("1.0.0")

      def _info(self):
        features = {
          "image": tfds.features.Image(),
          "label": tfds.features.ClassLabel(names=["cat", "dog"]),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

      def _split_generators(self, manager):
        return {"train": self._generate_examples()}

      def _generate_examples(self):
        for n, data in enumerate(pictures):
          yield n, {"image": io.BytesIO(data), "label": n % 2}

    tfds.disable_progress_bar()
    Pets(data_dir=tmp_path, file_format=form).download_and_prepare()
  images = open_images("tfds:pets", tmp_path, data_dir=str(tmp_path))
  assert sorted(images.read(np.arange(3)).tolist()) == sorted(pictures)
  assert images.classes == ("cat", "dog")


def write_grey_images(folder) -> str:
  """Write 12 images in two classes, image n of grey level n; return the source."""
  images = {}
  for n in range(12):
    images[f"{'ab'[n // 6]}/{n:02}.png"] = encode(np.full((8, 8, 3), n, np.uint8))
  return write_folders(folder / "pictures", images)


def test_every_epoch_has_each_image_once_with_its_repeats_in_a_row(tmp_path):
  augmentations = ("flip", {"name": "color_jitter", "brightness": 0.0})
  grey_task = build(write_grey_images(tmp_path), tmp_path, repeats=3, augmentations=augmentations)
  batches = loader.train_batches(grey_task, batch_size=12, seed=3)
  levels = np.concatenate([next(batches)["image"][:, 0, 0, 0] for _ in range(6)])
  levels_NR = levels.reshape(24, 3)
  np.testing.assert_array_equal(levels_NR, levels_NR[:, :1].repeat(3, axis=1))
  first, second = levels_NR[:, 0].reshape(2, 12)
  assert len(set(first)) == 12
  assert sorted(first) == sorted(second)
  assert not np.array_equal(first, second)


@pytest.mark.parametrize("size", [1, 2, 7, 300, 301])
def test_partner_in_mixing_is_the_neighbour_in_the_order_of_the_epoch(size):
  index = tf.range(size, dtype=tf.int64)
  epoch = tf.fill([size], np.int64(3))
  order = random.shuffle(index, epoch, 5, size).numpy()
  neighbours = np.arange(size) ^ 1
  neighbours[-1] = max(size - 2, 0)  # an odd last image is paired with the one before it
  partners = find_partners(tf.constant(order), epoch, 5, size)
  np.testing.assert_array_equal(partners, order[neighbours])


def test_an_image_is_mixed_with_its_partner(tmp_path):
  scale = {"mean": (0.0,), "std": (1 / 255,)}
  grey_task = build(
    write_grey_images(tmp_path), tmp_path, repeats=3, mixing={"mixup": 0.5}, **scale
  )
  batch = next(loader.train_batches(grey_task, batch_size=36, seed=3))
  order = random.shuffle(tf.range(12, dtype=tf.int64), tf.zeros(12, tf.int64), 3, 12).numpy()
  first_index = np.repeat(order, 3)
  second_index = np.repeat(order[np.arange(12) ^ 1], 3)
  share = batch["label_share"]
  mixed_levels = share * first_index + (1 - share) * second_index
  np.testing.assert_allclose(batch["image"][:, 0, 0, 0], mixed_levels, atol=1e-4)
  np.testing.assert_array_equal(batch["label"], first_index // 6)
  np.testing.assert_array_equal(batch["other_label"], second_index // 6)


def test_masked_patches_are_uniform_and_change_with_the_epoch(tmp_path):
  masked = build("digits", tmp_path, "masked_images", resolution=12, patch=2, mask_ratio=0.7)
  index_B = tf.range(200, dtype=tf.int64)
  draw_masks = tf.function(lambda epoch_B: masked.batch(index_B, epoch_B, 1), autograph=False)
  masks_of_epochs = []
  for epoch in (0, 1):
    batch = draw_masks(tf.fill([200], tf.constant(epoch, tf.int64)))
    visible = batch["visible_patches"].numpy()
    assert visible.shape == (200, 10)
    patches = np.concatenate([visible, batch["masked_patches"]], 1)
    assert (np.sort(patches) == np.arange(36)).all()
    assert_fits(np.bincount(visible.ravel(), minlength=36), drawn=10 / 36)
    masks_of_epochs.append(visible)
  first_epoch, second_epoch = masks_of_epochs
  assert not np.array_equal(first_epoch, second_epoch)


def test_corrupted_patches_are_masked_swapped_or_unchanged_and_targets_are_colours(tmp_path):
  generator = np.random.default_rng(0)
  images = {}
  for n in range(4):
    images[f"a/{n}.png"] = encode(generator.integers(0, 256, (12, 12, 3)).astype(np.uint8))
  source = write_folders(tmp_path / "pictures", images)
  corrupted = build(source, tmp_path, "corrupted_images", resolution=12, patch=2, rate=0.5)
  batch = next(loader.train_batches(corrupted, batch_size=400, seed=1))
  sources = batch["patch_sources"]
  chosen = batch["patch_weights"] == 1
  positions = np.tile(np.arange(36), (400, 1))
  np.testing.assert_array_equal(sources[~chosen], positions[~chosen])
  assert (chosen.sum(1) == 18).all()
  masked = (sources == -1) & chosen
  unchanged = (sources == positions) & chosen
  swapped = chosen & ~masked & ~unchanged
  for kind, share in ((masked, 0.8), (unchanged, 0.1), (swapped, 0.1)):
    assert_share(kind.sum(), chosen.sum(), share)
  colours = (batch["image"] * 0.5 + 0.5).reshape(400, 6, 2, 6, 2, 3).mean((2, 4))
  levels = 8 * colours.reshape(400, 36, 3)
  # Rounding may move a colour that lies on the border between two of the eight levels.
  clear = (np.abs(levels - np.round(levels)) > 1e-3).all(-1)
  assert clear.mean() > 0.9
  expected = np.floor(levels).astype(int) @ [64, 8, 1]
  np.testing.assert_array_equal(batch["patch_colours"][clear], expected[clear])


@pytest.fixture
def one_image_source(tmp_path):
  """Return a source of one image."""
  return write_noise_folder(tmp_path / "pictures", "a/x.png")


@pytest.mark.parametrize(
  "name, arguments, words",
  [
    ("image_classification", {"crop": 0.0}, ("config.task.crop: ", "found 0.0")),
    ("image_classification", {"std": (0.5, 0.5)}, ("config.task.std: ", "[0.5, 0.5]")),
    ("image_classification", {"mean": (123.7, 116.3, 103.5)}, ("config.task.mean: ", "255")),
    (
      "image_classification",
      {"mixing": {"mixup": 0.1, "alpha": 2}},
      ("config.task.mixing.alpha: ", "unknown key"),
    ),
    (
      "image_classification",
      {"mixing": {"mixup": -1.0}},
      ("config.task.mixing.mixup: ", "found -1.0"),
    ),
    ("image_classification", {"label_field": None}, ("config.task.label_field: ", "found None")),
    ("image_classification", {"split": "validation"}, ("found no split 'validation'",)),
    ("image_classification", {"split": "trian[:30]"}, ("no split 'trian'", "one of train")),
    ("masked_images", {"resolution": 12, "patch": 5}, ("resolution 12", "patch 5")),
    ("corrupted_images", {"resolution": 12, "patch": 2, "rate": 0.0}, ("patch 2", "rate 0.0")),
  ],
)
def test_bad_arguments_are_refused(one_image_source, tmp_path, name, arguments, words):
  with refuses(*words):
    build(one_image_source, tmp_path, name, **arguments)


@pytest.mark.parametrize(
  "augmentation, key, value",
  [
    ("flp", "augmentations", "did you mean 'flip'"),
    ({"name": "flip", "rate": 1}, "augmentations.rate", "unknown key"),
    ({"name": "erase", "probability": 2}, "augmentations.probability", "found 2"),
    ({"name": "random_resized_crop", "area": (1.0, 0.1)}, "area", "1.0, 0.1"),
    ({"name": "random_resized_crop", "ratio": (0, 1)}, "ratio", "0, 1"),
    ({"name": "randaugment", "magnitude": 50}, "magnitude", "found 50"),
  ],
)
def test_bad_augmentations_are_refused(one_image_source, tmp_path, augmentation, key, value):
  with refuses(key, value):
    build(one_image_source, tmp_path, augmentations=(augmentation,))


@pytest.mark.parametrize(
  "place, problem",
  [
    ("nothing", "found nothing there"),
    ("pictures/a", "found no files below"),
    ("bad.zip", "found no zip archive"),
  ],
)
def test_paths_without_images_are_refused(one_image_source, tmp_path, place, problem):
  (tmp_path / "bad.zip").write_bytes(b"PK no")
  with refuses(place, problem):
    open_source(f"folders:{tmp_path}/{place}")


def test_a_source_without_readable_images_is_refused(tmp_path):
  source = write_folders(tmp_path / "pictures", {"a/x.png": b"?"})
  with refuses("found 0 images", "1 records skipped"):
    build(source, tmp_path)

"""Images are stored upright and decodable, others are counted, and preparation can be resumed."""

import gzip
import io
import zipfile

import numpy as np
import pytest
from PIL import Image

from image_files import NOISE, ODD, encode, folders
from refusals import refuses
from t5x_like.corpora import image_files, job
from t5x_like.corpora.sources import open_source
from t5x_like.data import loader, random, task
from t5x_like.data.images import checking, store
from t5x_like.data.images.mixing import find_partners
from t5x_like.errors import DamageError
from t5x_like.quiet_tensorflow import tf


def build(source, folder, **arguments):
  defaults = dict(
    resolution=8, crop=1.0, augmentations=(), cache=str(folder / "cache"), split="train"
  )
  return task.build("image_classification", source=source, **defaults | arguments)


def test_unusable_files_are_counted_and_images_are_stored_as_8_bit_grey_or_rgb(tmp_path, capsys):
  source = folders(tmp_path / "pictures", ODD)
  opened_store = store.open_store(source, "train", cache=str(tmp_path / "cache"))
  assert opened_store.skipped == {
    "not a readable image": 3,
    f"more than {image_files.MAX_PIXELS:,} pixels": 1,
  }
  assert opened_store.classes == ("a", "b")
  assert opened_store.labels.tolist() == [0] * 4 + [1] * 4
  assert opened_store.name == "pictures"
  unusable = {"b/broken.jpg", "b/notes.txt", "b/empty.png", "b/huge.png"}
  names = sorted(ODD.keys() - unusable)
  content_by_name = dict(zip(names, opened_store.read(np.arange(8)), strict=True))
  unchanged = {name for name in names if content_by_name[name] == ODD[name]}
  assert unchanged == {"a/kept.jpg", "a/grey.png", "b/pixel.png"}
  for name in set(names) - unchanged:
    image = Image.open(io.BytesIO(content_by_name[name]))
    original = Image.open(io.BytesIO(ODD[name]))
    assert image.format == "PNG"
    assert image.mode == ("L" if name == "b/deep.png" else "RGB")
    expected = NOISE[..., 0] if name == "b/deep.png" else np.asarray(original.convert("RGB"))
    assert np.array_equal(np.asarray(image), expected), name
  assert np.array_equal(opened_store.read(np.array([7, 0]))[0], content_by_name[names[7]])
  out = capsys.readouterr().out
  assert "5 converted to PNG" in out
  assert "3 records skipped (not a readable image)" in out


@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_any_mode_are_batched_with_the_channels_of_the_task(channels, tmp_path):
  source = folders(tmp_path / "pictures", ODD)
  batch = next(loader.eval_batches(build(source, tmp_path, channels=channels), batch_size=8))
  assert batch["image"].shape == (8, 8, 8, channels)
  assert np.isfinite(batch["image"]).all()
  assert np.abs(batch["image"]).max() <= 1


def test_photographs_are_turned_upright_by_their_exif_tag(tmp_path, capsys):
  noise = Image.fromarray(np.tile(NOISE[:4, :3], (2, 4, 1)))
  upright = noise.resize((96, 64), Image.Resampling.BICUBIC)
  stored = upright.transpose(Image.Transpose.ROTATE_90)
  tag = Image.Exif()
  tag[0x112] = 6
  files = {
    "a/turned.jpg": encode(stored, "JPEG", quality=95, exif=tag),
    "a/turned.png": encode(stored, exif=tag),
    "a/upright.jpg": encode(upright, "JPEG", quality=95),
    "a/wrong.jpg": encode(upright, "JPEG", quality=95, exif=b"Exif\0\0MM no tags"),
  }
  opened_store = store.open_store(
    folders(tmp_path / "photos", files), "train", cache=str(tmp_path / "cache")
  )
  assert "1 converted to PNG, 1 turned upright" in capsys.readouterr().out
  for data, file in zip(opened_store.read(np.arange(4)), files.values(), strict=True):
    # Batches decode an image without regard to a tag; predictions obey the tag of the file.
    pixels = np.asarray(Image.open(io.BytesIO(data)), np.float32)
    assert pixels.shape == (64, 96, 3)
    assert np.abs(pixels - np.asarray(upright)).mean() < 8
    np.testing.assert_allclose(image_files.read_pixels(file, 3), pixels, atol=40)
    assert Image.open(io.BytesIO(data)).format == Image.open(io.BytesIO(file)).format


def test_folders_of_splits_inside_a_folder_are_its_splits(tmp_path):
  images = {
    f"{split}/{name}/x.png": encode(NOISE) for split in ("train", "Val") for name in ("cat", "dog")
  }
  source = folders(tmp_path / "pets", images | {"test/cat/y.png": encode(NOISE)})
  opened = open_source(source)
  assert opened.splits == ("train", "validation", "test")
  assert opened.classes("label") == ("cat", "dog")
  assert opened.name == "pets"
  assert build(source, tmp_path, split="validation").num_examples == 2


def test_a_folder_of_images_without_classes_is_no_split(tmp_path):
  names = ("train/cat/x.png", "train/dog/x.png", "Val/cat/x.png", "Val/dog/x.png", "test/y.png")
  source = folders(tmp_path / "flat", {name: encode(NOISE) for name in names})
  assert open_source(source).splits == ("train", "validation")


def test_classes_may_have_the_names_of_splits_if_images_lie_in_them(tmp_path):
  images = {"test/1.png": encode(NOISE), "train/2.png": encode(NOISE)}
  opened = open_source(folders(tmp_path / "words", images))
  assert opened.splits == ("train",)
  assert opened.classes("label") == ("test", "train")


@pytest.mark.parametrize("top", ["", "pets/"])
def test_a_zip_archive_of_folders_is_its_folders(top, tmp_path):
  images = {
    f"{split}/{name}/{split}.png": encode(NOISE)
    for split in ("train", "val")
    for name in ("cat", "dog")
  }
  plain = open_source(folders(tmp_path / "pets", images))
  with zipfile.ZipFile(tmp_path / "pets.zip", "w") as archive:
    aside = {
      "train/cat/.DS_Store": b"?",
      "__MACOSX/train/cat/x.png": b"?",
      "README.md": b"?",
      "train/labels.csv": b"?",
    }
    aside["test/1.png"] = b"without a class"
    for name, data in {**images, **aside}.items():
      archive.writestr(f"{top}{name}" if not name.startswith("__") else name, data)
  source = f"folders:{tmp_path}/pets.zip"
  opened = open_source(source)
  assert opened.splits == plain.splits
  assert opened.classes("label") == ("cat", "dog")
  for split in opened.splits:
    expected = [record for _, record in plain.records(split)]
    assert [record for _, record in opened.records(split)] == expected
  assert build(source, tmp_path, split="validation").num_examples == 2
  folder_in_archive = f"{tmp_path}/pets.zip/{top}train"
  train_source = open_source(f"folders:train={folder_in_archive}")
  locations = [where for where, _ in train_source.records("train")]
  assert locations == [f"{folder_in_archive}/{name}/train.png" for name in ("cat", "dog")]


def test_a_damaged_zip_archive_is_refused(tmp_path):
  (tmp_path / "bad.zip").write_bytes(b"PK no")
  with refuses("bad.zip: found no zip archive"):
    open_source(f"folders:{tmp_path}/bad.zip")


def test_given_classes_number_the_labels(tmp_path):
  source = folders(tmp_path / "pets", {f"{name}/1.png": encode(NOISE) for name in ("cat", "owl")})
  built_task = build(source, tmp_path, classes=("cat", "dog", "owl"))
  assert built_task.classes == ("cat", "dog", "owl")
  assert built_task.labels.tolist() == [0, 2]
  assert build(source, tmp_path).labels.tolist() == [0, 1]


def test_a_label_outside_of_the_given_classes_is_refused(tmp_path):
  source = folders(tmp_path / "pets", {f"{name}/1.png": encode(NOISE) for name in ("cat", "owl")})
  with refuses("'owl'", "'label'", "cat, dog"):
    build(source, tmp_path, classes=("cat", "dog"))


@pytest.mark.parametrize("zipped", [False, True])
def test_folders_in_the_folder_of_a_class_belong_to_the_class(zipped, tmp_path):
  names = ("bird/1.png", "cat/2.png", "cat/tabby/old/3.png", "dog/images/4.png")
  images = {name: encode(NOISE) for name in (*names, "cat/.cache/2.png")}
  folders(tmp_path / "pets [new]", images)
  with zipfile.ZipFile(tmp_path / "pets.zip", "w") as archive:
    for name, data in images.items():
      archive.writestr(name, data)
  opened = open_source(f"folders:{tmp_path}/{'pets.zip' if zipped else 'pets [new]'}")
  actual = [
    (where.rpartition("/")[2], record["label"]) for where, record in opened.records("train")
  ]
  assert actual == [("1.png", "bird"), ("2.png", "cat"), ("3.png", "cat"), ("4.png", "dog")]
  assert opened.classes("label") == ("bird", "cat", "dog")


def test_folders_of_splits_beside_others_are_not_taken_for_classes(tmp_path):
  names = ("train/cat/1.png", "Val/cat/2.png", "devkit/about/readme.txt")
  source = folders(tmp_path / "pets", {name: encode(NOISE) for name in names})
  with refuses("Val, train", "folders:validation=", "/Val,train="):
    open_source(source)
  assert open_source(source.replace(":", ":train=")).classes("label") == ("Val", "devkit", "train")


def test_the_first_images_of_a_split_are_a_split(tmp_path):
  all_images = store.open_store("digits", "train", cache=str(tmp_path))
  first = store.open_store("digits", "train[:30]", cache=str(tmp_path))
  assert first.num_images == 30
  assert first.classes == all_images.classes
  assert first.labels.tolist() == all_images.labels[:30].tolist()
  assert first.read(np.arange(30)).tolist() == all_images.read(np.arange(30)).tolist()
  assert "/digits-train30-" in first.path
  assert first.fingerprint != all_images.fingerprint


def test_an_unknown_split_is_refused(tmp_path):
  with refuses("found no split 'trian'", "expected one of train"):
    store.open_store("digits", "trian[:30]", cache=str(tmp_path))


@pytest.fixture
def ten_images(tmp_path, monkeypatch):
  """A source of ten images, which a store has in several shards."""
  images = {f"{'ab'[n % 2]}/{n:02}.png": encode(NOISE + np.uint8(n)) for n in range(10)}
  monkeypatch.setattr(store, "_CHARACTERS", job.BATCH_CHARACTERS // 4)
  monkeypatch.setattr(store.PreparedImages, "shard_values", 1)
  return folders(tmp_path / "pictures", images)


def test_a_killed_preparation_goes_on(ten_images, tmp_path, monkeypatch):
  source = ten_images
  uninterrupted = store.open_store(source, "train", cache=str(tmp_path / "one"))
  checked_files = []

  def check_six_images(data, *size):
    checked_files.append(data)
    if len(checked_files) == 7:
      raise KeyboardInterrupt
    return checking.check_image(data, *size)

  monkeypatch.setattr(store, "check_image", check_six_images)
  with pytest.raises(KeyboardInterrupt):
    store.open_store(source, "train", cache=str(tmp_path / "two"))
  resumed = store.open_store(source, "train", cache=str(tmp_path / "two"))
  assert len(checked_files) < 8 + 10
  assert resumed.fingerprint == uninterrupted.fingerprint
  assert resumed.read(np.arange(10)).tolist() == uninterrupted.read(np.arange(10)).tolist()


def test_damaged_images_are_refused(ten_images, tmp_path):
  store.open_store(ten_images, "train", cache=str(tmp_path))
  shards = sorted(tmp_path.glob("*/image/*"))
  assert len(shards) == 3
  data = bytearray(shards[1].read_bytes())
  data[len(data) // 2 :] = data[len(data) // 2 :][::-1]
  shards[1].write_bytes(data)
  with refuses("image/000000000001", "SHA-256", "is made again", error=DamageError):
    store.open_store(ten_images, "train", cache=str(tmp_path))
  shards[1].write_bytes(data[:-1])
  with refuses(f"found {len(data) - 1} bytes", f"expected {len(data)}", error=DamageError):
    store.open_store(ten_images, "train", cache=str(tmp_path))


def write_idx(path, array: np.ndarray) -> None:
  header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
  path.write_bytes(gzip.compress(header + array.tobytes()))


def test_idx_files_give_their_images_and_labels(tmp_path):
  images = np.stack([NOISE[..., n % 3] for n in range(6)])
  labels = np.array([3, 0, 1, 1, 2, 0], np.uint8)
  write_idx(tmp_path / "train-images-idx3-ubyte.gz", images)
  write_idx(tmp_path / "train-labels-idx1-ubyte.gz", labels)
  source = f"idx:{tmp_path}/train-images-idx3-ubyte.gz"
  opened_store = store.open_store(source, "train", cache=str(tmp_path / "cache"))
  assert opened_store.classes == tuple("0123")
  assert opened_store.labels.tolist() == labels.tolist()
  for content, image in zip(opened_store.read(np.arange(6)), images):
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(content))), image)


def test_idx_files_of_other_numbers_than_they_state_are_refused(tmp_path):
  images_path = tmp_path / "train-images-idx3-ubyte.gz"
  source = f"idx:{images_path}"
  write_idx(images_path, np.zeros((6, 2, 2), np.uint8))
  write_idx(tmp_path / "train-labels-idx1-ubyte.gz", np.zeros(5, np.uint8))
  with refuses("6 images", "5 labels"):
    list(open_source(source).records("train"))
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
  opened_store = store.open_store(
    "tfds:pets", "train", cache=str(tmp_path / "cache"), data_dir=str(tmp_path)
  )
  assert sorted(opened_store.read(np.arange(3)).tolist()) == sorted(pictures)
  assert opened_store.classes == ("cat", "dog")


def write_grey_images(folder) -> str:
  """Write image n of 12 in the grey level n, in two classes; return the source."""
  images = {}
  for n in range(12):
    images[f"{'ab'[n // 6]}/{n:02}.png"] = encode(np.full((8, 8, 3), n, np.uint8))
  return folders(folder / "pictures", images)


@pytest.mark.parametrize("repeats", [1, 3])
def test_every_image_is_in_every_epoch_and_its_repeats_follow_each_other(repeats, tmp_path):
  augmentations = ("flip", {"name": "color_jitter", "brightness": 0.0})
  source = write_grey_images(tmp_path)
  built_task = build(source, tmp_path, repeats=repeats, augmentations=augmentations)
  batches = loader.train_batches(built_task, batch_size=4 * repeats, seed=3)
  numbers = np.concatenate([next(batches)["image"][:, 0, 0, 0] for _ in range(6)])
  for n in range(repeats):
    np.testing.assert_array_equal(numbers[n::repeats], numbers[::repeats])
  first, second = numbers[::repeats].reshape(2, 12)
  assert len(set(first)) == 12
  assert sorted(first) == sorted(second)
  assert not np.array_equal(first, second)


@pytest.mark.parametrize("size", [1, 2, 7, 300, 301])
def test_the_partner_of_an_image_is_its_neighbour_in_the_order_of_the_epoch(size):
  index = tf.range(size, dtype=tf.int64)
  epoch = tf.fill([size], np.int64(3))
  order = random.shuffle(index, epoch, 5, size).numpy()
  neighbours = np.arange(size) ^ 1
  neighbours[-1] = max(size - 2, 0)  # the last image of an odd number has the one before it
  partners = find_partners(tf.constant(order), epoch, 5, size)
  np.testing.assert_array_equal(partners, order[neighbours])


def test_an_image_is_mixed_with_its_partner(tmp_path):
  source = write_grey_images(tmp_path)
  built_task = build(
    source, tmp_path, repeats=3, mixing={"mixup": 0.5}, mean=(0.0,), std=(1 / 255,)
  )
  batch = next(loader.train_batches(built_task, batch_size=36, seed=3))
  order = random.shuffle(tf.range(12, dtype=tf.int64), tf.zeros(12, tf.int64), 3, 12).numpy()
  first_index = np.repeat(order, 3)
  second_index = np.repeat(order[np.arange(12) ^ 1], 3)
  share = batch["label_share"]
  np.testing.assert_allclose(
    batch["image"][:, 0, 0, 0], share * first_index + (1 - share) * second_index, atol=1e-4
  )
  np.testing.assert_array_equal(batch["label"], first_index // 6)
  np.testing.assert_array_equal(batch["other_label"], second_index // 6)


def test_masks_share_out_the_patches_anew_in_every_epoch(tmp_path):
  built_task = task.build(
    "masked_images",
    "train",
    source="digits",
    resolution=12,
    patch=2,
    cache=str(tmp_path),
    mask_ratio=0.7,
  )
  index = np.arange(200)
  draw_masks = tf.function(
    lambda epoch_B: built_task.batch(tf.constant(index), epoch_B, 1), autograph=False
  )
  batches = [draw_masks(tf.fill([200], tf.constant(epoch, tf.int64))) for epoch in (0, 1)]
  for batch in batches:
    patches = np.concatenate([batch["visible_patches"], batch["masked_patches"]], 1)
    assert batch["visible_patches"].shape == (200, 10)
    assert (np.sort(patches) == np.arange(36)).all()
    shares = np.bincount(np.ravel(batch["visible_patches"]), minlength=36) / 200
    assert np.abs(shares - 10 / 36).max() < 5 * (10 / 36 * 26 / 36 / 200) ** 0.5
  first, second = batches
  assert not np.array_equal(first["visible_patches"], second["visible_patches"])


def test_patches_that_do_not_divide_the_resolution_are_refused(tmp_path):
  arguments = dict(source="digits", resolution=12, patch=5, cache=str(tmp_path))
  with refuses("resolution 12", "patch 5"):
    task.build("masked_images", "train", **arguments)


def test_corrupted_patches_are_masked_swapped_or_kept_and_their_colours_are_those_of_the_image(
  tmp_path,
):
  images = {
    f"a/{n}.png": encode(np.random.default_rng(n).integers(0, 256, (12, 12, 3)).astype(np.uint8))
    for n in range(4)
  }
  arguments = dict(
    source=folders(tmp_path / "pictures", images), resolution=12, cache=str(tmp_path), crop=1.0
  )
  built_task = task.build(
    "corrupted_images", "train", patch=2, rate=0.5, augmentations=(), **arguments
  )
  actual = next(loader.train_batches(built_task, batch_size=400, seed=1))
  source = actual["patch_sources"]
  chosen = actual["patch_weights"] == 1
  places = np.tile(np.arange(36), (400, 1))
  np.testing.assert_array_equal(source[~chosen], places[~chosen])
  assert (chosen.sum(1) == 18).all()
  kinds = [
    (source == -1)[chosen],
    (source == places)[chosen],
    ((source != -1) & (source != places))[chosen],
  ]
  for kind, share in zip(kinds, (0.8, 0.1, 0.1), strict=True):
    assert abs(kind.mean() - share) < 5 * (share * (1 - share) / kind.size) ** 0.5
  pixels = (
    (actual["image"] * 0.5 + 0.5).reshape(400, 6, 2, 6, 2, 3).mean((2, 4)).reshape(400, 36, 3)
  )
  # pixels that are not at the limit between two levels of colour
  clear = (np.abs(pixels * 8 - np.round(pixels * 8)) > 1e-4).all(-1)
  assert clear.mean() > 0.9
  assert np.array_equal(
    actual["patch_colours"][clear], (np.floor(pixels * 8).astype(int) @ [64, 8, 1])[clear]
  )


def test_a_rate_of_corrupted_patches_of_0_is_refused(tmp_path):
  arguments = dict(source="digits", resolution=12, patch=2, rate=0.0, cache=str(tmp_path))
  with refuses("resolution 12", "patch 2", "rate 0.0"):
    task.build("corrupted_images", "train", **arguments)


@pytest.fixture
def one_picture(tmp_path):
  """A source of one image."""
  return folders(tmp_path / "pictures", {"a/x.png": encode(NOISE)})


@pytest.mark.parametrize(
  "arguments, key, value",
  [
    ({"crop": 0.0}, "crop", "found 0.0"),
    ({"std": (0.5, 0.5)}, "std", "[0.5, 0.5]"),
    ({"mean": (123.7, 116.3, 103.5)}, "mean", "255"),
    ({"mixing": {"mixup": 0.1, "alpha": 2}}, "mixing.alpha", "unknown key"),
    ({"mixing": {"mixup": -1.0}}, "mixing.mixup", "found -1.0"),
    ({"label_field": None}, "label_field", "found None"),
    ({"split": "validation"}, "", "found no split 'validation'"),
  ],
)
def test_bad_arguments_are_refused(one_picture, tmp_path, arguments, key, value):
  with refuses(f"config.task.{key}: " if key else "", value):
    build(one_picture, tmp_path, **arguments)


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
def test_bad_augmentations_are_refused(one_picture, tmp_path, augmentation, key, value):
  with refuses(key, value):
    build(one_picture, tmp_path, augmentations=(augmentation,))


@pytest.mark.parametrize(
  "folder, name", [("nothing", "found nothing there"), ("pictures/a", "found no files below")]
)
def test_folders_without_images_are_refused(one_picture, tmp_path, folder, name):
  with refuses(folder, name):
    open_source(f"folders:{tmp_path}/{folder}")


def test_a_source_without_readable_images_is_refused(one_picture, tmp_path):
  (tmp_path / "pictures" / "a" / "x.png").write_bytes(b"?")
  with refuses("found 0 images", "1 records skipped"):
    build(one_picture, tmp_path)

"""Images are stored once with all their captions, of which each epoch draws one."""

import io

import numpy as np
import pytest
from PIL import Image

import json_lines
from refusals import refuses
from t5x_like.data import loader
from t5x_like.data.images import prompts
from t5x_like.data.task import build
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary

COLORS = [(250, 10, 10), (10, 250, 10), (10, 10, 250)]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
  """Return a folder of images, with their captions in JSON lines and in a table."""
  folder = tmp_path_factory.mktemp("pairs")
  for number, color in enumerate(COLORS):
    Image.fromarray(np.full((9, 9, 3), color, np.uint8)).save(folder / f"{number}.png")
  (folder / "broken.png").write_bytes(b"no image")
  rows = [
    ("0.png", ["red", "a red tile"]),
    ("broken.png", ["x"]),
    ("1.png", ["green "]),
    ("none.png", ["y"]),
    ("2.png", ["blue", "", "deep blue", "the sea"]),
    ("0.png", []),
  ]
  json_lines.write(folder / "train.jsonl", [{"image": i, "caption": texts} for i, texts in rows])
  table = ["image\tcaption"]
  for image, texts in rows:
    table += [f"{image}\t{text}" for text in texts]
  (folder / "train.tsv").write_text("\n".join(table) + "\n")
  return folder


def build_task(pairs, form="jsonl", **arguments):
  defaults = {
    "source": f"{form}:train={pairs}/train.{form}",
    "folder": str(pairs),
    "resolution": 8,
    "length": 16,
    "cache": str(pairs / "cache"),
    "augmentations": [],
  }
  return build("image_text", "train", **defaults | arguments)


@pytest.mark.parametrize("form", ["jsonl", "tsv"])
def test_every_readable_image_is_stored_once_with_all_its_captions(pairs, form, capsys):
  task = build_task(pairs, form)
  tokens_CT, image_C = task.captions()
  texts = [ByteVocabulary().decode(row) for row in tokens_CT]
  assert texts == ["red", "a red tile", "green", "blue", "deep blue", "the sea"]
  assert image_C.tolist() == [0, 0, 1, 2, 2, 2]
  assert task.num_examples == 3
  out = capsys.readouterr().out
  assert "1 records skipped (image file not found)" in out
  assert "1 records skipped (not a readable image)" in out
  assert ("1 records skipped (no caption)" in out) == (form == "jsonl")
  for row in tokens_CT:
    end = list(row).index(1)
    assert not row[end + 1 :].any()


def test_each_epoch_has_every_image_with_a_random_caption(pairs):
  task = build_task(pairs)
  captions = {0: {"red", "a red tile"}, 1: {"green"}, 2: {"blue", "deep blue", "the sea"}}
  drawn_captions = {number: set() for number in captions}
  for _, batch in zip(range(12), loader.train_batches(task, batch_size=3, seed=1)):
    numbers = np.argmax(batch["image"].mean((1, 2)), axis=-1)
    assert sorted(numbers) == [0, 1, 2]
    assert set(batch) == set(task.features)
    for number, row in zip(numbers, batch["text_input_tokens"]):
      drawn_captions[number].add(ByteVocabulary().decode(row))
  assert drawn_captions == captions


def test_evaluation_uses_the_first_caption(pairs):
  (batch,) = loader.eval_batches(build_task(pairs), batch_size=3)
  texts = [ByteVocabulary().decode(row) for row in batch["text_input_tokens"]]
  assert texts == ["red", "green", "blue"]


def test_long_captions_are_truncated_and_end_with_eos_as_prompts_do(pairs, capsys):
  task = build_task(pairs, length=6)
  tokens_CT, _ = task.captions()
  assert "3 of 6 captions cut to 6 tokens" in capsys.readouterr().out
  texts = ["red", "a red tile", "green", "blue", "deep blue", "the sea"]
  np.testing.assert_array_equal(tokens_CT, prompts.encode_rows(texts, ByteVocabulary(), 6))
  assert (tokens_CT == 1).sum(axis=1).tolist() == [1] * 6


@pytest.mark.parametrize(
  "record, words",
  [
    ({"image": "0.png", "caption": [3]}, ("found number in field 'caption'",)),
    ({"image": "0.png"}, ("found no field 'caption' among image",)),
    ({"image": 3, "caption": "x"}, ("found int in field 'image'",)),
    ({"image": "3.png", "caption": "x"}, ("found 0 images, 1 records skipped (image file not",)),
    # An error of the file system, unlike a missing file, is not skipped.
    ({"image": "loop.png", "caption": "x"}, ("loop.png' cannot be read: found a link to itself",)),
  ],
)
def test_bad_records_are_refused(pairs, tmp_path, record, words):
  json_lines.write(tmp_path / "bad.jsonl", [record])
  (pairs / "loop.png").unlink(missing_ok=True)
  (pairs / "loop.png").symlink_to("loop.png")
  with refuses(*words):
    build_task(pairs, source=f"jsonl:train={tmp_path}/bad.jsonl")


def test_captions_are_read_from_tfds(tmp_path):
  """As in coco_captions, the features are an encoded image and a sequence of captions."""
  from t5x_like.quiet_tensorflow import tfds

  with tfds.core.registered.skip_registration():

    class Pictures(tfds.core.GeneratorBasedBuilder):
      VERSION = tfds.core.Version("1.0.0")

      def _info(self):
        captions = tfds.features.Sequence({"id": np.int64, "text": tfds.features.Text()})
        features = {"image": tfds.features.Image(), "captions": captions}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

      def _split_generators(self, manager):
        return {"train": self._generate_examples()}

      def _generate_examples(self):
        for number, color in enumerate(COLORS):
          file = io.BytesIO()
          Image.fromarray(np.full((9, 9, 3), color, np.uint8)).save(file, "PNG")
          texts = [{"id": n, "text": f"{number} {n}"} for n in range(number + 1)]
          yield number, {"image": io.BytesIO(file.getvalue()), "captions": texts}

    tfds.disable_progress_bar()
    Pictures(data_dir=tmp_path, file_format="array_record").download_and_prepare()
  task = build(
    "image_text",
    "train",
    source="tfds:pictures",
    data_dir=str(tmp_path),
    caption_field="captions.text",
    cache=str(tmp_path / "cache"),
    resolution=8,
  )
  texts = [ByteVocabulary().decode(row) for row in task.captions()[0]]
  assert sorted(texts) == ["0 0", "1 0", "1 1", "2 0", "2 1", "2 2"]

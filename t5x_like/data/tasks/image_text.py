"""Images and their captions, for contrastive training (CLIP, Radford et al. 2021).

  config.task = {"name": "image_text", "source": "jsonl:train=coco/train.jsonl,validation=coco/val.jsonl",
                 "folder": "coco/images", "image_field": "file", "caption_field": "captions", "resolution": 224,
                 "vocabulary": "clip-vit-base-patch32", "length": 77}

Features: `image` float32 [Y, X, C], as in `image_classification`; `text_input_tokens` int32 [length], the start of text
where the vocabulary has one, a caption, EOS and padding; `example_weights`, 1 but in the rows that pad the last batch
of an evaluation. Of several captions, one is drawn anew for every image and epoch; evaluations see the first.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np

from t5x_like import vocabularies
from t5x_like.data import features as declared
from t5x_like.data import random
from t5x_like.data.features import Feature, Features
from t5x_like.data.images import captions, examples, store
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.task import Task, digest
from t5x_like.slots import Positive
from t5x_like.store.reader import Verify

# On the built-in corpus, for `:debug`.
BUILT_IN = {"source": "digits", "vocabulary": "bytes", "caption_field": "label", "image_field": "image", "folder": ""}


def features(vocabulary, /, *, resolution: int, channels: int, length: int, **_) -> Features:
  """Return the features of the task with these arguments."""
  described = declared.images(resolution, channels)
  del described["label"]
  return described | {"text_input_tokens": Feature((length,), "int32")}


def task(
  *,
  source: str,
  split: str,
  resolution: Positive = 224,
  channels: Literal[1, 3] = 3,
  vocabulary: str = "bytes",
  length: Positive = 77,
  augmentations: tuple = ({"name": "random_resized_crop", "area": (0.9, 1.0)},),
  repeats: Positive = 1,
  crop: float = 1.0,
  mean: tuple[float, ...] = (0.48145466, 0.4578275, 0.40821073),
  std: tuple[float, ...] = (0.26862954, 0.26130258, 0.27577711),
  image_field: str = "image",
  caption_field: str = "caption",
  folder: str = "",
  cache: str = "data/prepared",
  data_dir: str | None = None,
  label: str | None = None,
  verify: Verify = "auto",
) -> Task:
  """Make the task.

  Args:
    source: records with an image and captions: `jsonl:`, `tsv:`, `csv:`, `parquet:` or `tfds:` (COCO's captions are
      `caption_field="captions.text"` of `tfds:coco_captions`); or any source of labelled images, with the label as
      the caption.
    vocabulary: a directory, such as that of a published model, or `bytes`; see `vocabularies`.
    length: length of a row of text.
    mean, std: mean and deviation for normalisation, one number or one per channel; by default CLIP's.
    image_field: the field of the encoded image or its path; adjacent records of one path are one image.
    caption_field: the field of a caption or a list of captions.
    folder: the directory to which image paths are relative and which they must not leave; without it, paths are used
      as they are.
    resolution, channels, augmentations, repeats, crop, cache, data_dir, verify: see `examples.Images`.

  Raises:
    UserError: an unusable source or argument, no usable image, a file changed since it was prepared.
  """
  encoding = vocabularies.load(vocabulary)
  notes = captions.notes(encoding, caption_field)
  read = dict(source=source, split=split, image_field=image_field, cache=cache, data_dir=data_dir, verify=verify)
  opened = store.open_store(**read, label_field=None, folder=folder, notes=notes)
  texts = captions.Captions(opened, encoding, length)
  if texts.cut:
    print(f"data: {opened.path}: {texts.cut:,} of {len(texts):,} captions cut to {length} tokens", flush=True)
  seen = dict(resolution=resolution, channels=channels, augmentations=augmentations, crop=crop, mean=mean, std=std)
  seen |= dict(repeats=repeats, label_field="", label=label)
  images = examples.task(examples.Images(**read, **seen), store=opened)

  def with_text(batch, drawn: bool):
    def made(index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
      key_B = random.row_keys(seed, epoch_B, index_B, tf.constant(examples.MORE, tf.int64))
      share_B = examples.uniform(random.bits(key_B, 1))[:, 0]
      share_B = share_B if drawn else tf.zeros_like(share_B)
      rows_BT = tf.numpy_function(texts.of_images, [index_B, share_B], tf.int32, stateful=False)
      found = batch(index_B, epoch_B, seed)
      del found["label"]
      return found | {"text_input_tokens": tf.ensure_shape(rows_BT, [index_B.shape[0], length])}

    return made

  return dataclasses.replace(
    images,
    name=label or f"{opened.name}_image_text",
    vocabulary=encoding,
    fingerprint=digest(task="image_text.v1", images=images.fingerprint, length=length, vocabulary=encoding.fingerprint),
    features=features(encoding, resolution=resolution, channels=channels, length=length),
    batch=with_text(images.batch, True),
    evaluated=with_text(images.evaluated, False),
    classes=(),
    labels=None,
    captions=lambda: (texts.rows(np.arange(len(texts))), texts.images()),
  )

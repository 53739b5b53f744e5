"""Images and their captions, for contrastive training (CLIP, Radford et al. 2021).

  config.task = {"name": "image_text", "source":
                 "jsonl:train=coco/train.jsonl,validation=coco/val.jsonl", "folder": "coco/images",
                 "image_field": "file", "caption_field": "captions", "resolution": 224,
                 "vocabulary": "clip-vit-base-patch32", "length": 77}

Features: `image` float32 [Y, X, C], as in `image_classification`; `text_input_tokens` int32
  [length], the start of text where the vocabulary has one, a caption, EOS and padding;
  `example_weights`, 1 but in the rows that pad the last batch of an evaluation. Of several
  captions, one is drawn anew for every image and epoch; evaluations see the first.
"""

from __future__ import annotations

import dataclasses
from typing import Unpack

import numpy as np

from t5x_like import vocabularies
from t5x_like.data.features import Feature, Features
from t5x_like.data.images import captions, examples, layout, store
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.task import Task
from t5x_like.resolution import Resolution
from t5x_like.slots import PositiveInt

# On the built-in corpus, for `:debug`.
BUILT_IN = {
  "source": "digits",
  "vocabulary": "bytes",
  "caption_field": "label",
  "image_field": "image",
  "folder": "",
}


def features(vocabulary, /, *, resolution: Resolution, channels: int, length: int, **_) -> Features:
  """Return the features of the task with these arguments."""
  described = layout.describe(resolution, channels)
  del described["label"]
  return described | {"text_input_tokens": Feature((length,), "int32")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Captioned(examples.ImageArguments):
  """The arguments of a task on images and captions.

  Attributes:
    source: records with an image and captions: `jsonl:`, `tsv:`, `csv:`, `parquet:` or `tfds:`
      (COCO's captions are `caption_field="captions.text"` of `tfds:coco_captions`); or any source
      of labelled images, with the label as the caption.
    vocabulary: a directory, such as a published model's, or `bytes`; see `vocabularies`.
    length: length of a row of text.
    mean, std: mean and deviation for normalising pixels in 0 to 1; by default CLIP's.
    image_field: the field of the encoded image or its path; adjacent records of one path are one
      image.
    caption_field: the field of a caption or a list of captions.
    folder: the directory to which image paths are relative and which they must not leave; without
      it, they are relative to the current directory, and must not leave that directory or that of
      the records.
  """

  vocabulary: str = "bytes"
  length: PositiveInt = 77
  augmentations: tuple = ({"name": "random_resized_crop", "area": (0.9, 1.0)},)
  crop: float = 1.0
  mean: tuple[float, ...] = (0.48145466, 0.4578275, 0.40821073)
  std: tuple[float, ...] = (0.26862954, 0.26130258, 0.27577711)
  caption_field: str = "caption"
  folder: str = ""


def task(**images: Unpack[Captioned]) -> Task:
  """Make the task.

  Args:
    images: see `Captioned`.

  Raises:
    UserError: an unusable source or argument, no usable image, a file changed since it was
      prepared.
  """
  arguments = Captioned(**images)
  vocabulary = vocabularies.load(arguments.vocabulary)
  length = arguments.length
  image_store = store.open_store(
    **arguments.store_arguments,
    image_field=arguments.image_field,
    label_field=None,
    folder=arguments.folder,
    notes=captions.make_notes(vocabulary, arguments.caption_field),
  )
  texts = captions.Captions(image_store, vocabulary, length)
  if texts.cut:
    print(
      f"data: {image_store.path}: {texts.cut:,} of {len(texts):,} captions cut to {length} tokens",
      flush=True,
    )

  def read_captions(
    values: dict[str, tf.Tensor], draws: examples.RandomDraws, training: bool
  ) -> dict[str, tf.Tensor]:
    share_B = draws.uniform(examples.FIRST_TASK_STREAM, 1)[:, 0] * float(training)
    rows_BT = tf.numpy_function(
      texts.rows_of_images, [draws.index_B, share_B], tf.int32, stateful=False
    )
    return {"text_input_tokens": tf.ensure_shape(rows_BT, [draws.index_B.shape[0], length])}

  task_on_images = examples.extend_task(
    "image_text.v1",
    arguments,
    examples.build_task(arguments, store=image_store),
    features(
      vocabulary, resolution=arguments.resolution, channels=arguments.channels, length=length
    ),
    read_captions,
    length=length,
    vocabulary=vocabulary.fingerprint,
  )
  return dataclasses.replace(
    task_on_images,
    vocabulary=vocabulary,
    classes=(),
    labels=None,
    captions=lambda: (texts.rows(np.arange(len(texts))), texts.images()),
  )

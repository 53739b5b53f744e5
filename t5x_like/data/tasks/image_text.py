"""Images and their captions, for contrastive training (CLIP, Radford et al. 2021).

  config.task = {"name": "image_text", "source":
                 "jsonl:train=coco/train.jsonl,validation=coco/val.jsonl", "folder": "coco/images",
                 "image_field": "file", "caption_field": "captions", "resolution": 224,
                 "vocabulary": "clip-vit-base-patch32", "length": 77}

Features:
  `image`: float32 [Y, X, C], as in `image_classification`.
  `text_input_tokens`: int32 [length], the start-of-text token if the vocabulary has one, a caption,
    EOS and padding.
  `example_weights`: 0 in the rows that pad the last batch of an evaluation, else 1.

If an image has several captions, training draws one of them in each epoch, and evaluations use the
first.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from t5x_like import data, vocabularies
from t5x_like.data.features import Feature, Features
from t5x_like.data.images import captions, examples, layout, store
from t5x_like.data.task import Task, unfingerprinted
from t5x_like.quiet_tensorflow import tf
from t5x_like.slots import PositiveInt
from t5x_like.vocabularies import Vocabulary

# The arguments of the task on built-in images, for `:debug`.
BUILT_IN = {
  "source": "digits",
  "vocabulary": "bytes",
  "caption_field": "label",
  "image_field": "image",
  "folder": "",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(examples.ImageArguments):
  """The arguments of images with captions.

  Attributes:
    source: records with an image and captions: `jsonl:`, `tsv:`, `csv:`, `parquet:` or `tfds:`
      (COCO's captions are `caption_field="captions.text"` of `tfds:coco_captions`); or any source
      of labelled images, with the label as the caption.
    vocabulary: a directory, such as a published model's, or `bytes`; see `vocabularies`.
    length: number of tokens in a row of text, padding included.
    mean, std: mean and standard deviation that normalise pixels from 0 to 1; by default CLIP's.
    image_field: the field of the encoded image or its path; adjacent records with the same path are
      merged into one image with all their captions.
    caption_field: the field of a caption or a list of captions.
    folder: the directory to which image paths are relative, and which they must not leave. If it is
      empty, paths are relative to the current directory, and must stay in that directory or in the
      directory of the records.
  """

  vocabulary: str = unfingerprinted(
    "the fingerprint covers the content of the vocabulary", default="bytes"
  )
  length: PositiveInt = 77
  augmentations: tuple = ({"name": "random_resized_crop", "area": (0.9, 1.0)},)
  crop: float = 1.0
  mean: tuple[float, ...] = (0.48145466, 0.4578275, 0.40821073)
  std: tuple[float, ...] = (0.26862954, 0.26130258, 0.27577711)
  caption_field: str = "caption"
  folder: str = unfingerprinted("the fingerprint covers the content of the images", default="")

  def features(self, vocabulary: Vocabulary) -> Features:
    """Return the shapes and dtypes of an example's image and text."""
    image_features = layout.describe(self.resolution, self.channels)
    del image_features["label"]
    return image_features | {"text_input_tokens": Feature((self.length,), "int32")}

  def build(self) -> Task:
    """Prepare the images and return the task.

    Raises:
      UserError: a source or argument is unusable, no image is usable, or a file has changed since
        it was prepared.
    """
    vocabulary = vocabularies.load(self.vocabulary)
    image_store = store.open_store(
      **self.store_arguments,
      image_field=self.image_field,
      label_field=None,
      folder=self.folder,
      notes=captions.make_notes(vocabulary, self.caption_field),
    )
    texts = captions.Captions(image_store, vocabulary, self.length)
    if texts.num_cut:
      data.announce(
        f"{image_store.path}: {texts.num_cut:,} of {len(texts):,} captions cut to "
        f"{self.length} tokens"
      )

    def read_captions(
      values: dict[str, tf.Tensor], draws: examples.RandomDraws, training: bool
    ) -> dict[str, tf.Tensor]:
      # A number in [0, 1) selects one of an image's captions; 0 is the first.
      if training:
        share_B = draws.uniform(examples.FIRST_TASK_STREAM, 1)[:, 0]
      else:
        share_B = tf.zeros_like(draws.index_B, tf.float32)
      rows_BT = tf.numpy_function(
        texts.rows_of_images, [draws.index_B, share_B], tf.int32, stateful=False
      )
      shape = [draws.index_B.shape[0], self.length]
      return {"text_input_tokens": tf.ensure_shape(rows_BT, shape)}

    def all_captions() -> tuple[np.ndarray, np.ndarray]:
      """Return the tokens of all captions, and the image of each."""
      return texts.rows(np.arange(len(texts))), texts.images()

    image_task = self.build_images(
      "image_text.v1",
      image_store,
      make_extra=read_captions,
      facts={"vocabulary": vocabulary.fingerprint},
    )
    return dataclasses.replace(image_task, vocabulary=vocabulary, captions=all_captions)

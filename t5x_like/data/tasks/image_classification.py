"""Classification of images (Dosovitskiy et al. 2021).

  config.task = {"name": "image_classification", "source":
                 "folders:train=imagenet/train,validation=imagenet/val", "resolution": 224,
                 "augmentations": ["random_resized_crop", "flip", {"name": "randaugment", "ops":
                 2}], "mixing": {"mixup": 0.8, "cutmix": 1.0}}

Features:
  `image`: float32 [Y, X, C], normalised.
  `label`: the number of its class.
  `example_weights`: 0 in the rows that pad the last batch of an evaluation, else 1.
  `other_label`, `label_share`: with mixing, the class of the image mixed in, and the share of the
    first image, float32.

In training, an image is augmented differently in every epoch. Evaluations see its middle. All
features are a function of the image, the epoch and the seed (`data/images`, `data/augmentations`).
"""

import dataclasses

from t5x_like.data.features import Features
from t5x_like.data.images import examples, layout
from t5x_like.data.images.mixing import Mixing
from t5x_like.data.task import Task
from t5x_like.errors import UserError
from t5x_like.vocabularies import Vocabulary

# The arguments of the task on built-in images, for `:debug`.
BUILT_IN = {"source": "digits"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(examples.LabelledImageArguments):
  """The arguments of image classification.

  Attributes:
    mixing: mixup and CutMix.
  """

  mixing: Mixing | None = None

  def features(self, vocabulary: Vocabulary) -> Features:
    return layout.describe(self.resolution, self.channels, mixed=self.mixing is not None)

  def build(self) -> Task:
    """Prepare the images and return the task.

    Raises:
      UserError: an unusable source or argument, no usable image, a file changed since it was
        prepared.
    """
    if self.label_field is None:
      raise UserError(
        "config.task.label_field: found None, expected the field of the class that each image has"
      )
    return self.build_images("image_classification.v4", self.open_images(), self.mixing)

"""Classification of images (Dosovitskiy et al. 2021).

  config.task = {"name": "image_classification", "source": "folders:train=imagenet/train,validation=imagenet/val",
                 "resolution": 224, "augmentations": ["random_resized_crop", "flip", {"name": "randaugment", "ops": 2}],
                 "mixing": {"mixup": 0.8, "cutmix": 1.0}}

Features: `image` float32 [Y, X, C], normalised; `label`, the number of its class; `example_weights`, 1 but in the rows
that pad the last batch of an evaluation; with mixing, `other_label`, the class of the image mixed in, and `label_share`
float32, the share of the first. In training an image is augmented anew in every epoch; evaluations see its middle. All
of it is a function of the image, the epoch and the seed (`data/images`, `data/augmentations`).
"""

from t5x_like.data.images import examples
from t5x_like.data.task import Task
from t5x_like.slots import with_arguments_of


@with_arguments_of(examples.task, but=("store",))
def task(**images) -> Task:
  """Makes the task.

  Args:
    source: `folders:`, `idx:`, `tfds:` or `digits`, see `data/sources/__init__.py`.
    resolution: height and width of the images in a batch.
    channels: 3 for RGB, 1 for grey; images of the other kind are converted.
    augmentations: of training images, in order: modules of `data/augmentations`, names or {"name": …} with arguments.
      What then has another size is resized like the images of evaluations.
    mixing: mixup and CutMix.
    repeats: how often an image stands in an epoch, one after the other and augmented each time anew (Hoffer et al.
      2020; DeiT takes 3); every batch holds them together if its size is a multiple.
    crop: evaluations resize the shorter side to resolution / crop, and see the middle.
    mean, std: of the normalisation of pixels in 0 to 1, one number or one for each channel.
    image_field, label_field: fields of the source.
    cache, data_dir, verify: see `text_to_text`.
    label: the name in metrics; by default `<corpus>_image_classification`.

  Raises:
    UserError: an unusable source or argument, no usable image, a file changed since it was prepared.
  """
  return examples.task(**images)

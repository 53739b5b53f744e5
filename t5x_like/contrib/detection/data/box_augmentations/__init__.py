"""Augmentations of images with boxes: one file each, named after it.

They are `config.task.augmentations` of detection. As in `data/augmentations`, with a `Boxed` as the
image: (float32 [Y, X, C] in 0 to 255, boxes float32 [M, 4] as shares of the image, bool [M] mask of
real boxes). A file's `make` takes the arguments of the recipe and, if its signature names it, the
`resolution` of the batch.
"""

from t5x_like.quiet_tensorflow import tf

Boxed = tuple["tf.Tensor", "tf.Tensor", "tf.Tensor"]

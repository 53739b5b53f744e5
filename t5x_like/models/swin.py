"""Swin Transformer: attention within windows that shift from layer to layer.

Liu et al. 2021, https://arxiv.org/abs/2103.14030. Grids get coarser from stage to stage.

A pre-norm encoder like ViT's. Each layer attends within windows and learns a scalar for each offset
and head; between stages, squares of four patches are merged. The cost grows linearly with the
number of patches.
"""

from t5x_like.architectures.design import Design
from t5x_like.architectures.window_encoder import WindowEncoder, WindowVariant

DESIGN = Design(
  norm="layernorm",
  norm_epsilon=1e-5,
  norm_position="pre",
  activation="gelu",
  biases=("qkv", "out", "mlp"),
  position="relative_2d",
  init_stddev=0.02,
  embed_norm=True,
  mlp_dropout=True,
)


def _swin(embed, depths, heads, window=7, patch=4, resolution=224, **arguments) -> WindowVariant:
  return WindowVariant(embed, depths, heads, DESIGN, patch, resolution, window=window, **arguments)


VARIANTS = {
  #                        embed  depths          heads           window
  # for debugging; Swin-T is swin-t
  "swin-tiny":       _swin(  32, (2, 2),         (2, 4),          4, 2, 32),
  "swin-fashion":    _swin(  32, (2, 2, 2),      (1, 2, 4),       7, 2, 28),
  "swin-t":          _swin(  96, (2, 2, 6, 2),   (3, 6, 12, 24),  7),
  "swin-s":          _swin(  96, (2, 2, 18, 2),  (3, 6, 12, 24),  7),
  "swin-b":          _swin( 128, (2, 2, 18, 2),  (4, 8, 16, 32),  7),
  "swin-l":          _swin( 192, (2, 2, 18, 2),  (6, 12, 24, 48), 7),
  "swin-b-384":      _swin( 128, (2, 2, 18, 2),  (4, 8, 16, 32), 12, 4, 384),
  "swin-l-384":      _swin( 192, (2, 2, 18, 2),  (6, 12, 24, 48), 12, 4, 384),
}  # fmt: skip


class Model(WindowEncoder):
  """A Swin Transformer in one of its `VARIANTS`, with `window` and an image encoder's arguments."""

  VARIANTS = VARIANTS

"""Swin Transformer V2: Swin that trains stably at large sizes.

Liu et al. 2022, https://arxiv.org/abs/2111.09883. It also transfers to other resolutions and
windows.

Norms follow the sublayers (res-post-norm) and patch merging. Logits are cosines times a learned
scale. A small network maps offsets, on a logarithmic scale, to biases; `pretrained_windows` keeps
that scale for another window.
"""

import dataclasses

from t5x_like.architectures.window_encoder import WindowEncoder, WindowVariant
from t5x_like.models import swin

DESIGN = dataclasses.replace(
  swin.DESIGN,
  norm_position="res_post",
  attention_scale="cosine",
  biases=("qv", "out", "mlp"),
  position="log_cpb",
)


def _swin(embed, depths, heads, window=8, patch=4, resolution=256, **arguments) -> WindowVariant:
  # Windows are limited as in `transformers`.
  return WindowVariant(
    embed, depths, heads, DESIGN, patch, resolution, window=window, rounding="down", **arguments
  )


VARIANTS = {
  #                          embed  depths          heads           window
  "swin-v2-tiny":      _swin(  32, (2, 2),         (2, 4),          4, 2, 32),  # to debug
  "swin-v2-t":         _swin(  96, (2, 2, 6, 2),   (3, 6, 12, 24),  8),
  "swin-v2-s":         _swin(  96, (2, 2, 18, 2),  (3, 6, 12, 24),  8),
  "swin-v2-b":         _swin( 128, (2, 2, 18, 2),  (4, 8, 16, 32),  8),
  "swin-v2-l":         _swin( 192, (2, 2, 18, 2),  (6, 12, 24, 48), 12, 4, 192),
  "swin-v2-t-16":      _swin(  96, (2, 2, 6, 2),   (3, 6, 12, 24),  16),
  "swin-v2-s-16":      _swin(  96, (2, 2, 18, 2),  (3, 6, 12, 24),  16),
  "swin-v2-b-16":      _swin( 128, (2, 2, 18, 2),  (4, 8, 16, 32),  16),
  "swin-v2-l-384":     _swin( 192, (2, 2, 18, 2),  (6, 12, 24, 48), 24, 4, 384,
                              pretrained_windows=(12, 12, 12, 6)),
}  # fmt: skip


class Model(WindowEncoder):
  """A Swin Transformer V2 in one of its `VARIANTS`, with the arguments of `swin.Model`."""

  VARIANTS = VARIANTS

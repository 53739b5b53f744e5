"""MViT: Multiscale Vision Transformers for images.

Fan et al. 2021, https://arxiv.org/abs/2104.11227, section 5.

A pre-norm encoder whose attention pools keys and values with small convolutions. The first block of
a stage also pools the queries, which leaves fewer tokens; the last block of a stage widens them.
The inputs have a class token, which is never pooled, and learned positions. For version 2, see
`mvit`.
"""

from dataclasses import replace

from t5x_like.contrib.multiscale.first_pooling_encoder import (
  FirstPoolingEncoder,
  FirstPoolingVariant,
)
from t5x_like.contrib.multiscale.models import mvit

DESIGN = replace(mvit.DESIGN, position="learned_1d")


def _mvit(embed, depths, heads=(1, 2, 4, 8), **arguments) -> FirstPoolingVariant:
  return FirstPoolingVariant(embed, depths, heads, DESIGN, **arguments)


VARIANTS = {
  #                    embed  depths, heads of each stage
  "mvit-v1-tiny": _mvit(  16, (1, 2), (2, 4), patch=4, resolution=32),  # for debugging
  "mvit-b16":     _mvit(  96, (1, 2, 11, 2)),
}  # fmt: skip


class Model(FirstPoolingEncoder):
  """An MViT in one of its `VARIANTS`, with the features and arguments of every image encoder."""

  VARIANTS = VARIANTS

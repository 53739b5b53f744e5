"""MViT v2: improved Multiscale Vision Transformers.

Li et al. 2022, https://arxiv.org/abs/2112.01526.

A pre-norm encoder whose attention pools queries, keys and values with small convolutions. Between
stages, queries are pooled, and tokens become fewer and wider; keys and values are always few.
Pooled queries are added to the output of attention. Positions are relative, separately for rows and
columns. `mvit_v1` is the first version.
"""

from t5x_like.architectures.design import Design
from t5x_like.contrib.multiscale.pooling_encoder import PoolingEncoder, PoolingVariant

DESIGN = Design(
  norm="layernorm",
  norm_epsilon=1e-6,
  norm_position="pre",
  activation="gelu",
  biases=("qkv", "out", "mlp"),
  position="decomposed_2d",
  init_stddev=0.02,
  mlp_dropout=True,
)


def _mvit(embed, depths, heads=(1, 2, 4, 8), **arguments) -> PoolingVariant:
  return PoolingVariant(embed, depths, heads, DESIGN, **arguments)


VARIANTS = {
  #                    embed  depths
  # for debugging; MViTv2-T is mvit-v2-t
  "mvit-tiny":    _mvit(  16, (1, 2), (2, 4), patch=4, resolution=32),
  "mvit-v2-t":    _mvit(  96, (1, 2,  5, 2)),
  "mvit-v2-s":    _mvit(  96, (1, 2, 11, 2)),
  "mvit-v2-b":    _mvit(  96, (2, 3, 16, 3)),
}  # fmt: skip


class Model(PoolingEncoder):
  """An MViT v2 in one of its `VARIANTS`, with the features and arguments of every image encoder."""

  VARIANTS = VARIANTS

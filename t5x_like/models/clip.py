"""CLIP: a ViT and a causal text encoder, trained to match texts with images.

Radford et al. 2021 (https://arxiv.org/abs/2103.00020), tables 19 and 20. The ViT has a norm before
its first block, and its projection of patches has no bias. Both encoders have pre-norm blocks and
an approximate GELU. The state at EOS represents a text of up to 77 tokens.

The text encoder's kernels start as in `initialize_parameters` of openai/CLIP's model.py. That code
leaves most kernels of the ViT to PyTorch's defaults: Xavier's standard deviation for the joint
matrix of queries, keys and values, and 1/sqrt(3 fan in) for the others.

`models/siglip.py` is trained with a pairwise loss.
"""

from dataclasses import replace

from t5x_like.architectures.design import Design, Tokens, Variant
from t5x_like.architectures.dual_encoder import DualEncoder, DualVariant
from t5x_like.architectures.image_encoder import ImageVariant
from t5x_like.nn.dims import Dims

TEXT = Design(
  norm="layernorm",
  norm_epsilon=1e-5,
  norm_position="pre",
  activation="quick_gelu",
  biases=("qkv", "out", "mlp"),
  position={"name": "learned", "length": 77, "stddev": 0.01},
  kernel_scales=(1.0, 1.0, 0.5, 4.0),
  residual_init=True,
  embed_init=0.02,
)
IMAGE = replace(
  TEXT,
  position="learned_1d",
  embed_norm=True,
  kernel_scales=(0.5, 1 / 3, 1 / 3, 1 / 3),
  residual_init=False,
)
TOKENS = Tokens(pad=None, start=49_406, eos=49_407)


def _dims(embed, heads, layers) -> Dims:
  return Dims(embed, heads, heads, embed // heads, 4 * embed, layers)


def _clip(width, image, text, patch, resolution=224) -> DualVariant:
  """Return a variant; `image` and `text` are the arguments of `_dims`."""
  image_dims = _dims(*image)
  image_variant = ImageVariant(
    image_dims,
    replace(IMAGE, embed_init=image_dims.embed**-0.5),
    patch,
    resolution,
    head="projection",
    patch_bias=False,
    patch_scale=1 / 3,
  )
  text_variant = Variant(_dims(*text), TEXT, 49_408, TOKENS)
  return DualVariant(image_variant, text_variant, width)


VARIANTS = {
  #                  width  image: embed heads layers  text: embed heads layers  patch
  "clip-tiny":      _clip( 64, (  64,  4,  4), ( 64,  4,  2),  8, 32),  # for debugging
  "clip-b32":       _clip(512, ( 768, 12, 12), (512,  8, 12), 32),
  "clip-b16":       _clip(512, ( 768, 12, 12), (512,  8, 12), 16),
  "clip-l14":       _clip(768, (1024, 16, 24), (768, 12, 12), 14),
  "clip-l14-336":   _clip(768, (1024, 16, 24), (768, 12, 12), 14, 336),
}  # fmt: skip


class Model(DualEncoder):
  """A CLIP in one of its `VARIANTS`, with the features and arguments of every dual encoder."""

  VARIANTS = VARIANTS

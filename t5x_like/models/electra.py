"""ELECTRA: an encoder that detects replaced tokens.

Clark et al. 2020, https://arxiv.org/abs/2003.10555.

Both networks are BERTs. The generator has the depth of the discriminator and a fraction of its
width (table 6). They share the embeddings of tokens, positions and types and their norm (section
3.2, "weight sharing"); each network projects them to its own width. Small models have a token table
of width 128.
"""

import copy
from dataclasses import replace
from typing import ClassVar, Literal

import jax
from flax import nnx

from t5x_like.architectures.architecture import Batch
from t5x_like.architectures.design import Variant
from t5x_like.architectures.encoder import HEAD_POSITIONS, Encoder
from t5x_like.errors import UserError
from t5x_like.models import bert
from t5x_like.nn.dims import Dims, subkey
from t5x_like.slots import PositiveFloat


def _discriminator(embed, mlp, heads, layers, table=None) -> Variant:
  dims = Dims(embed, heads, heads, embed // heads, mlp, layers)
  return Variant(dims, bert.DESIGN, 30522, bert.TOKENS, types=2, embed=table, head="discriminator")


def derive_generator(variant: Variant, size: float) -> Variant:
  """Derive the generator of a discriminator.

  It has `size` times the discriminator's width, with heads of the same width.

  Raises:
    UserError: it would have no width.
  """
  dims = variant.dims
  D = round(variant.dims.embed * size)
  if D < 1:
    raise UserError(
      f"config.model.generator_size: found {size}, expected at least 1 / {dims.embed}, for a "
      "generator of width 1"
    )
  heads = max(1, D // dims.head_dim)
  table_width = variant.embed or dims.embed
  dims = Dims(D, heads, heads, D // heads, round(dims.mlp * size), dims.layers)
  embed = None if table_width == D else table_width
  return replace(variant, dims=dims, embed=embed, head="mlm")


VARIANTS = {
  #                              embed   mlp heads layers
  "electra-tiny":  _discriminator( 128,  512,  2,  2),  # for debugging
  "electra-small": _discriminator( 256, 1024,  4, 12, table=128),
  "electra-base":  _discriminator( 768, 3072, 12, 12),
  "electra-large": _discriminator(1024, 4096, 16, 24),
}  # fmt: skip
GENERATOR_SIZES = {
  "electra-tiny": 1 / 2,
  "electra-small": 1 / 4,
  "electra-base": 1 / 3,
  "electra-large": 1 / 4,
}
GENERATORS = {
  name: derive_generator(variant, GENERATOR_SIZES[name]) for name, variant in VARIANTS.items()
}
# The generator released with electra-small, as wide as its discriminator.
GENERATORS["electra-small-released"] = derive_generator(VARIANTS["electra-small"], 1)


class Discriminator(Encoder):
  """The discriminator alone, for fine-tuning with a `head`."""

  VARIANTS = VARIANTS


class Generator(Encoder):
  """The generator alone: a masked language model, one of `GENERATORS`."""

  VARIANTS = GENERATORS


class Model(Encoder):
  """Both networks, for pretraining.

  The model itself is the discriminator; `generator` has the generator's parameters that are not
  shared.

  Args:
    generator_size: width of the generator as a fraction of the discriminator's; None is the paper's
      fraction for its sizes and a half for others (a quarter to a half worked best in the paper).
    head: only the default; use `Discriminator` for fine-tuning.
  """

  VARIANTS = VARIANTS
  FINE_TUNING_FAMILY: ClassVar[str] = "t5x_like.models.electra:Discriminator"

  def __init__(
    self,
    rngs: nnx.Rngs,
    *,
    variant: str | Variant,
    generator_size: PositiveFloat | None = None,
    head: Literal["discriminator"] | None = None,
    **options,
  ):
    super().__init__(rngs, variant=variant, head=head, **options)
    if generator_size is None:
      generator_size = GENERATOR_SIZES.get(variant, 0.5) if isinstance(variant, str) else 0.5
    generator_variant = derive_generator(self.variant, generator_size)
    self.generator = Generator(rngs, variant=generator_variant, **options)
    del self.generator.embed
    self.generator.inputs = self.generator.inputs.project

  def outputs(self, batch: Batch, key: jax.Array | None = None) -> dict:
    """Run both networks on the same tokens.

    In pretraining, the discriminator reads samples of the generator instead.

    Returns:
      {"logits": float32 [B, S] of the discriminator, "generator_logits": `VocabularyLogits` [B, S,
      V]}, and auxiliary scalars.
    """
    generated = self.generate(batch, subkey(key, 0))["logits"]
    return self.discriminate(batch, subkey(key, 1)) | {"generator_logits": generated}

  def discriminate(self, batch: Batch, key: jax.Array | None = None) -> dict[str, jax.Array]:
    """Return {"logits": float32 [B, S]}, positive for tokens of the batch judged to be replaced."""
    return super().outputs(
      {name: x for name, x in batch.items() if name not in HEAD_POSITIONS}, key
    )

  def generate(self, batch: Batch, key: jax.Array | None = None) -> dict:
    """Predict the token at each position, or at each masked position if the batch has them.

    Returns:
      {"logits": `VocabularyLogits` [B, S, V]}, or [B, K, V] at masked positions.
    """
    generator, _ = self.networks()
    return generator.outputs(batch, key)

  def networks(self) -> tuple[Generator, Discriminator]:
    """Return both networks as separate models, to fine-tune or save.

    They share their parameters with this model.
    """
    inputs = copy.copy(self.inputs)
    inputs.project = self.generator.inputs
    generator = copy.copy(self.generator)
    generator.embed = self.embed
    generator.inputs = inputs

    def create(key):
      return Discriminator(nnx.Rngs(params=key), variant=self.variant, dtype=self.dtype)

    discriminator = jax.eval_shape(create, jax.random.key(0))
    for name in ("embed", "inputs", "encoder", "head"):
      setattr(discriminator, name, getattr(self, name))
    return generator, discriminator

"""DeBERTa v3's pretraining: replaced token detection (He et al. 2021, arXiv:2111.09543).

As in ELECTRA, a generator fills in masked tokens and a discriminator predicts which tokens were
replaced; `objectives.electra` is the loss. The generator is as wide as the discriminator and has
half its layers. The two share token vectors by gradient-disentangled embedding sharing (section
3.3): the discriminator's table is E_D = stop_gradient(E_G) + E_delta. The generator's table E_G
learns from the generator alone, and E_delta, which starts at zero, from the discriminator alone.
Each network has its own norm after the table and its own vectors of relative distances.

Differences from the authors' code:

- It updates the generator first and the discriminator in a second step. Here one step updates both.
  No gradient passes between them, but the gradient is clipped by the norm over both networks.
- Both heads here are ELECTRA's. The authors' generator has DeBERTa's enhanced mask decoder
  (arXiv:2006.03654, section 3.2: the last layer twice, with absolute positions in its queries), and
  their discriminator adds the state of [CLS] to every token and normalises the sums.
"""

import copy
from dataclasses import replace
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.architectures.architecture import Batch
from t5x_like.architectures.encoder import HEAD_POSITIONS, Encoder
from t5x_like.models import deberta, electra
from t5x_like.nn import params
from t5x_like.nn.embed import Embed
from t5x_like.slots import PositiveInt

VARIANTS = {
  name: replace(variant, head="discriminator") for name, variant in deberta.VARIANTS.items()
}


class SumOfTables(nnx.Module):
  """The table `stop_gradient(base) + delta`; only the vectors looked up are added."""

  def __init__(self, base: nnx.Module, delta: nnx.Module):
    self.base = base
    self.delta = delta

  def __call__(self, ids_BT: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Look up `ids_BT`; return [B, T, D] in `dtype`."""
    base_BTD = jax.lax.stop_gradient(self.base(ids_BT, jnp.float32))
    return (base_BTD + self.delta(ids_BT, jnp.float32)).astype(dtype)


class Model(deberta.Model):
  """A discriminator, whose `embed` is E_delta, with its `generator`.

  Args:
    generator_layers: number of layers of the generator; None for half of the discriminator's.
    head: only the default is supported; to fine-tune with another head, use the family `deberta`.
  """

  VARIANTS = VARIANTS
  # the family of the discriminator without its generator; fine-tuning builds this one
  FINE_TUNING_FAMILY: ClassVar[str] = "deberta"

  def __init__(
    self,
    rngs: nnx.Rngs,
    *,
    variant: str | deberta.DebertaVariant,
    generator_layers: PositiveInt | None = None,
    head: Literal["discriminator"] | None = None,
    **options,
  ):
    super().__init__(rngs, variant=variant, head=head, **options)
    V = self.variant.vocab_size
    dims = self.variant.dims
    self.embed = Embed(V, dims.embed, rngs, init=params.zeros)
    generator_dims = replace(dims, layers=generator_layers or max(1, dims.layers // 2))
    generator_variant = replace(self.variant, dims=generator_dims, head="mlm")
    self.generator = deberta.Model(rngs, variant=generator_variant, **options)

  outputs = electra.Model.outputs

  def discriminate(self, batch: Batch, key: jax.Array | None = None) -> dict[str, jax.Array]:
    """Return {"logits": float32 [B, S]}, positive for tokens of the batch judged to be replaced."""
    discriminator = copy.copy(self)
    discriminator.embed = SumOfTables(self.generator.embed, self.embed)
    features = {name: x for name, x in batch.items() if name not in HEAD_POSITIONS}
    return Encoder.outputs(discriminator, features, key)

  def generate(self, batch: Batch, key: jax.Array | None = None) -> dict:
    """Compute the generator's outputs.

    Returns:
      {"logits": `VocabularyLogits`} [B, S, V], or [B, K, V] if the batch lists masked positions.
    """
    return self.generator.outputs(batch, key)

  def networks(self) -> tuple[deberta.Model, deberta.Model]:
    """Return (generator, discriminator) as separate models, to fine-tune or save.

    The discriminator's table is E_G + E_delta.
    """

    def create(key):
      return deberta.Model(nnx.Rngs(params=key), variant=self.variant, dtype=self.dtype)

    discriminator = jax.eval_shape(create, jax.random.key(0))
    for name in ("inputs", "encoder", "head"):
      setattr(discriminator, name, getattr(self, name))
    delta = self.embed.table
    base = self.generator.embed.table
    discriminator.embed.table = nnx.Param(base[...] + delta[...], axes=delta.axes, unit=delta.unit)
    return self.generator, discriminator

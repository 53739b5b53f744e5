"""The mean colours of corrupted patches.

This is masked patch prediction (Dosovitskiy et al. 2021, appendix B.1.2).
"""

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.nn import params
from t5x_like.nn.linear import Linear


class ColourHead(nnx.Module):
  """A head that predicts each patch's colour from its own output: {"logits": float32 [B, T, 8^C]}.

  There are 8 levels in each channel.
  """

  batch_features = ("patch_sources",)

  def __init__(self, rngs: nnx.Rngs, variant):
    D = variant.dims.embed
    self.num_class_tokens = variant.class_tokens
    self.mask = params.param(rngs, variant.design.table_init(), (D,), (None,))
    colours = 8**variant.channels
    init = variant.design.kernel_init(D)
    self.out = Linear((D, colours), ("embed", None), init, rngs, bias=True)

  def corrupt(self, x_BTD: jax.Array, sources_BT: jax.Array) -> jax.Array:
    """Replace each patch by another one, or by a learned vector.

    Args:
      sources_BT: int32, the index of the patch that replaces it, -1 for the learned vector.
    """
    index_BT = jnp.maximum(sources_BT, 0)
    source_BTD = jnp.take_along_axis(x_BTD, index_BT[..., None], axis=1)
    is_masked_BT1 = sources_BT[..., None] < 0
    mask_D = self.mask[...].astype(x_BTD.dtype)
    return jnp.where(is_masked_BT1, mask_D, source_BTD)

  def pool(self, x_BTD: jax.Array) -> jax.Array:
    """Return the mean of the patches, for linear evaluations: [B, D]."""
    return jnp.mean(x_BTD[:, self.num_class_tokens :], axis=1)

  def __call__(self, x_BTD: jax.Array, embed=None, valid_BT=None, key=None, *, patch_sources=None):
    logits_BTC = self.out(x_BTD[:, self.num_class_tokens :])
    return {"logits": logits_BTC.astype(jnp.float32)}


make = ColourHead

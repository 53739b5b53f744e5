"""The decoder of a masked autoencoder (MAE): predicts the masked patches from the visible ones."""

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.architectures.grid_stack import GridStackBuilder
from t5x_like.nn import params
from t5x_like.nn.dims import Dims, subkey
from t5x_like.nn.length_padding import run_padded
from t5x_like.nn.linear import Linear
from t5x_like.nn.remat import KEEP_ALL, Remat
from t5x_like.slots import PositiveInt


class ReconstructionHead(nnx.Module):
  """A head that returns the pixels of the masked patches: {"logits": float32 [B, M, P * P * C]}.

  A narrower stack of the model's own design reads the projected visible patches and, for each
  masked one, a learned vector; positions are added to both (He et al. 2022, section 3).

  Args:
    depth, embed, heads, mlp: layers, width, heads and feed-forward width of the head's stack.
  """

  batch_features = ("visible_patches", "masked_patches")

  def __init__(
    self,
    rngs: nnx.Rngs,
    variant,
    dropout_rate: float,
    remat: Remat = KEEP_ALL,
    layers: str = "scan",
    *,
    depth: PositiveInt = 8,
    embed: PositiveInt = 512,
    heads: PositiveInt = 16,
    mlp: PositiveInt = 2048,
  ):
    design = variant.design
    D = variant.dims.embed
    self.num_class_tokens = variant.class_tokens
    head_dim = embed // heads
    dims = Dims(embed=embed, heads=heads, kv_heads=heads, head_dim=head_dim, mlp=mlp, layers=depth)
    builder = GridStackBuilder(
      design,
      dims,
      causal=False,
      dropout_rate=dropout_rate,
      remat=remat,
      layers=layers,
      grid=variant.grid,
    )
    self.project = Linear((D, embed), ("embed", None), design.kernel_init(D), rngs, bias=True)
    self.mask = params.param(rngs, design.table_init(), (embed,), (None,))
    self.inputs = builder.inputs(rngs)
    self.decoder = builder.stack(rngs)
    pixels = variant.patch**2 * variant.channels
    self.out = Linear((embed, pixels), ("embed", None), design.kernel_init(embed), rngs, bias=True)

  def pool(self, x_BTD: jax.Array) -> jax.Array:
    """Return the mean of the encoded patches without class tokens, for linear probes: [B, D]."""
    return jnp.mean(x_BTD[:, self.num_class_tokens :], axis=1)

  def __call__(
    self, x_BTD: jax.Array, embed=None, valid_BT=None, key=None, *, visible_patches, masked_patches
  ):
    x_BTD = self.project(x_BTD)
    B = len(x_BTD)
    E = self.num_class_tokens
    M = masked_patches.shape[1]
    mask_D = self.mask[...].astype(x_BTD.dtype)
    mask_BMD = jnp.broadcast_to(mask_D, (B, M, *mask_D.shape))
    # Masked patches may follow the visible ones, as each carries its position in the image.
    class_pos_BE = jnp.broadcast_to(jnp.arange(E, dtype=jnp.int32), (B, E))
    pos_BT = jnp.concatenate([class_pos_BE, visible_patches + E, masked_patches + E], axis=1)
    x_BTD = jnp.concatenate([x_BTD, mask_BMD], axis=1)
    x_BTD = self.inputs(x_BTD, pos_BT, None, subkey(key, 0))
    x_BTD, aux = run_padded(self.decoder, x_BTD, pos_BT, subkey(key, 1), aligned=False)
    logits_BMP = self.out(x_BTD[:, -M:])
    return {"logits": logits_BMP.astype(jnp.float32)} | aux


make = ReconstructionHead

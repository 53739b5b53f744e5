"""SpanBERT's head, which also predicts masked tokens from the tokens around their span."""

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.architectures.design import Variant
from t5x_like.architectures.heads.lm import LmHead, hidden_scale
from t5x_like.architectures.heads.mlm import MlmHead, gather_tokens
from t5x_like.nn import params
from t5x_like.nn.embed import Embed
from t5x_like.nn.feed_forward import ACTIVATIONS
from t5x_like.nn.linear import Linear
from t5x_like.slots import PositiveInt


class SpanBoundaryHead(nnx.Module):
  """BERT's masked language model head, and a second prediction from the boundary of each span.

  The second one reads the tokens before and after the span, and a learned vector p of the token's
  offset in the span (Joshi et al. 2020, section 3.2): two layers `norm(activation(dense(…)))`, the
  first of [x_before; x_after; p], then logits against the token table.

  Args:
    places: number of vectors p; the last is for all larger offsets.
    place_dim: their width.
  """

  def __init__(
    self,
    rngs: nnx.Rngs,
    variant: Variant,
    *,
    places: PositiveInt = 32,
    place_dim: PositiveInt = 200,
  ):
    design = variant.design
    D = variant.dims.embed
    init = design.kernel_init(D)
    self.mlm = MlmHead(rngs, variant)
    self.places = params.param(rngs, init, (places, place_dim), (None, "embed"))
    self.dense = Linear((2 * D + place_dim, D), ("embed", None), init, rngs, bias=True)
    self.norm = design.make_norm(D, rngs)
    self.dense_2 = Linear((D, D), ("embed", None), init, rngs, bias=True)
    self.norm_2 = design.make_norm(D, rngs)
    self.lm = LmHead(rngs, bias=variant.vocab_size, scale=hidden_scale(design, D))
    self.activation, _ = ACTIVATIONS[design.activation]

  def __call__(
    self, x_BTD: jax.Array, embed: Embed, valid_BT=None, key=None, positions_BK=None, **_
  ) -> dict:
    return self.mlm(x_BTD, embed, positions_BK=positions_BK)

  def predict_from_boundary(
    self,
    x_BTD: jax.Array,
    positions_BK: jax.Array,
    starts_BK: jax.Array,
    ends_BK: jax.Array,
    embed: Embed,
  ):
    """Predict tokens from the tokens just before and after their spans.

    Args:
      positions_BK: int32, the tokens to predict.
      starts_BK, ends_BK: int32, the tokens before and after their spans.
    Returns:
      `VocabularyLogits` [B, K, V].
    """
    offset_BK = positions_BK - starts_BK - 1
    p_BKP = jnp.take(self.places[...], offset_BK, axis=0, mode="clip")
    p_BKP = p_BKP.astype(x_BTD.dtype)
    before_BKD = gather_tokens(x_BTD, starts_BK)
    after_BKD = gather_tokens(x_BTD, ends_BK)
    joined_BKX = jnp.concatenate([before_BKD, after_BKD, p_BKP], axis=-1)
    h_BKD = self.activation(self.dense(joined_BKX))
    h_BKD = self.norm(h_BKD)
    h_BKD = self.activation(self.dense_2(h_BKD))
    h_BKD = self.norm_2(h_BKD)
    return self.lm(h_BKD, embed)["logits"]


make = SpanBoundaryHead

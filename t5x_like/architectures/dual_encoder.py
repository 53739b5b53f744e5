"""An image encoder and a text encoder whose outputs share one space (CLIP, BASIC, SigLIP)."""

import dataclasses
import math
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like import slots
from t5x_like.architectures.architecture import Architecture, Batch, Dtype, Layers
from t5x_like.architectures.build import StackBuilder
from t5x_like.architectures.design import Design, Variant
from t5x_like.architectures.hybrid_encoder import HybridVariant
from t5x_like.architectures.image_encoder import ImageEncoder, ImageVariant
from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.nn.dims import subkey
from t5x_like.nn.layer import Context
from t5x_like.nn.linear import Linear
from t5x_like.nn.mask import Mask, positions
from t5x_like.resolution import Resolution
from t5x_like.slots import PositiveInt, Rate

# upper bound of the scale's logarithm in training (Radford et al. 2021, section 2.5)
MAX_LOG_SCALE = math.log(100.0)
_SIDES = ("image", "text")


@dataclasses.dataclass(frozen=True)
class DualVariant:
  """One published size of a pair of encoders.

  Attributes:
    image, text: variants of the two encoders; the image encoder's head is "attention_pool", or a
      projection instead of any other.
    width: width of the shared space.
    reading: "end" reads texts causally and takes the hidden state at their end; "mean" reads them
      bidirectionally and takes the mean of their tokens; "last" reads whole rows bidirectionally,
      padding included, and takes the state of the last position.
    projection_bias: whether the projection of texts has a bias.
  """

  image: ImageVariant | HybridVariant
  text: Variant
  width: int
  reading: Literal["end", "mean", "last"] = "end"
  projection_bias: bool = False

  @property
  def design(self) -> Design:
    return self.text.design

  @property
  def tokens(self):
    return self.text.tokens

  @property
  def vocab_size(self) -> int:
    return self.text.vocab_size


class TextEncoder(Architecture):
  """A stack over texts up to their first EOS; for `reading` see `DualVariant`, for other arguments
  `Architecture`."""

  def __init__(self, rngs: nnx.Rngs, *, reading: str, **options):
    self.causal = reading == "end"
    self.whole = reading == "last"
    super().__init__(rngs, **options)

  def build(self, rngs: nnx.Rngs, **options) -> None:
    parts = StackBuilder(self.variant.design, self.variant.dims, causal=self.causal, **options)
    self.inputs = parts.inputs(rngs)
    self.encoder = parts.stack(rngs)

  def pool(self, batch: Batch, key: jax.Array | None = None):
    """Return ([B, D] the pooled states of the texts, auxiliary scalars)."""
    tokens_BT = batch["text_input_tokens"]
    T = tokens_BT.shape[1]
    pos = positions(tokens_BT.shape[1])
    end_B = T - 1 if self.whole else jnp.argmax(tokens_BT == self.variant.tokens.eos, axis=1)
    end_B = jnp.broadcast_to(end_B, tokens_BT.shape[:1])
    own_BT = jnp.arange(T) <= end_B[:, None]
    # Causal attention already hides the tokens after the end.
    mask = Mask(
      pos,
      pos,
      k_valid=None if self.causal or self.whole else own_BT,
      causal=self.causal,
      aligned=True,
    )
    x_BTD = self.inputs(self.embed(tokens_BT, self.dtype), pos, key=subkey(key, 0))
    x_BTD, aux, _ = self.encoder(x_BTD, Context(mask=mask, valid=own_BT), key=subkey(key, 1))
    if self.causal or self.whole:
      return jnp.take_along_axis(x_BTD, end_B[:, None, None], axis=1)[:, 0], aux
    weights_BT = own_BT / (end_B[:, None] + 1.0)
    return jnp.einsum("BTD,BT->BD", x_BTD, weights_BT.astype(x_BTD.dtype)), aux


class DualEncoder(nnx.Module):
  """An image encoder and a text encoder, each with a projection, and a learned scale of their
  cosines.

  Args:
    variant: a name in `VARIANTS`, or a `DualVariant`. All arguments but `rngs` are keys of
      `config.model`.
    resolution, vocab_size: None for the variant's.
    scale: initial factor of the cosines; its logarithm is learned, up to log 100.
    bias: initial bias of the scaled cosines, for the objective `pairwise_sigmoid`; None for none.
    drop_path: rate of the image encoder.
    design: changes to both designs; `position` is {"image": …, "text": …}, or has one of the two
      keys.
    tokens: special ids; `eos` ends a text.
    dropout, dtype, remat, layers, pipeline: see `architectures.architecture.Architecture`.
  Raises:
    UserError: names the key, its value and the expected one.
  """

  VARIANTS: ClassVar[dict[str, DualVariant]] = {}
  VARIANT = DualVariant
  IMAGE_ENCODER: ClassVar[type[nnx.Module]] = ImageEncoder
  REQUIRED_FEATURES = ("image", "text_input_tokens")

  def __init__(
    self,
    rngs: nnx.Rngs,
    *,
    variant: str | DualVariant,
    resolution: Resolution | None = None,
    vocab_size: PositiveInt | None = None,
    scale: float = 1 / 0.07,
    bias: float | None = None,
    dropout: Rate = 0.0,
    drop_path: Rate = 0.0,
    dtype: Dtype = "float32",
    remat: str | dict = "none",
    layers: Layers = "scan",
    pipeline: dict = {},
    design: dict = {},
    tokens: dict = {},
  ):
    variant = (
      slots.find("config.model.variant", variant, self.VARIANTS)
      if isinstance(variant, str)
      else variant
    )
    if not 0 < scale <= 100:
      raise UserError(f"config.model.scale: found {scale}, expected above 0 and at most 100")
    options = dict(dropout=dropout, dtype=dtype, remat=remat, layers=layers, pipeline=pipeline)
    changes = {side: _changes(design, side) for side in _SIDES}
    projects = (
      slots.name_and_arguments("config.model.variant.image.head", variant.image.head)[0]
      != "attention_pool"
    )
    head = {"name": "projection", "width": variant.width} if projects else "attention_pool"
    if not projects and variant.width != variant.image.dims.embed:
      found = f"found {variant.width} with images of {variant.image.dims.embed}"
      raise UserError(
        f"config.model.variant.width: {found}, expected the same, as "
        "'attention_pool' does not project"
      )
    self.image = self.IMAGE_ENCODER(
      rngs,
      variant=dataclasses.replace(variant.image, head=head),
      resolution=resolution,
      drop_path=drop_path,
      design=changes["image"],
      **options,
    )
    self.text = TextEncoder(
      rngs,
      variant=variant.text,
      reading=variant.reading,
      vocab_size=vocab_size,
      design=changes["text"],
      tokens=tokens,
      **options,
    )
    image = dataclasses.replace(self.image.variant, head=variant.image.head)
    self.variant = dataclasses.replace(variant, image=image, text=self.text.variant)
    D = variant.text.dims.embed
    init = variant.text.design.kernel_init(D)
    bias_too = variant.projection_bias
    self.projection = Linear((D, variant.width), ("embed", None), init, rngs, bias=bias_too)
    self.scale = params.param(rngs, lambda *_: jnp.asarray(math.log(scale), jnp.float32), (), ())
    self.scale.set_metadata(most=MAX_LOG_SCALE)
    self.bias = (
      None
      if bias is None
      else params.param(rngs, lambda *_: jnp.asarray(bias, jnp.float32), (), ())
    )

  def __call__(self, batch: Batch, key: jax.Array | None = None) -> dict[str, jax.Array]:
    """Return `outputs`, and `logits` float32 [images, texts], the scaled cosines of all pairs in
    the batch."""
    found = self.outputs(batch, key)
    cosine_BB = jnp.einsum(
      "IP,TP->IT", found["image_embeddings"], found["text_embeddings"], precision="highest"
    )
    return found | {"logits": found["logit_scale"] * cosine_BB + found.get("logit_bias", 0.0)}

  def outputs(self, batch: Batch, key: jax.Array | None = None) -> dict[str, jax.Array]:
    """Compute embeddings of length 1 and the scale of their products.

    Args:
      batch: `image` float32 [B, Y, X, C]; `text_input_tokens` int32 [B, T], in which EOS ends a
        text.
      key: dropout key, or None for evaluation.
    Returns:
      {"image_embeddings", "text_embeddings", float32 [B, P]; "logit_scale" and, if there is one,
      "logit_bias", float32 scalars} and auxiliary scalars of both encoders.
    """
    image_BP, image_aux = self.embed_images(batch, subkey(key, 0))
    text_BP, text_aux = self.embed_texts(batch, subkey(key, 1))
    aux = {
      name: image_aux.get(name, 0.0) + text_aux.get(name, 0.0) for name in image_aux | text_aux
    }
    found = {
      "image_embeddings": image_BP,
      "text_embeddings": text_BP,
      "logit_scale": jnp.exp(self.scale[...]),
    }
    return aux | found | ({} if self.bias is None else {"logit_bias": self.bias[...]})

  def embed_images(self, batch: Batch, key: jax.Array | None = None):
    """Return (embeddings of length 1, float32 [B, P]; auxiliary scalars)."""
    found = self.image.outputs({"image": batch["image"]}, key)
    return _unit(found.pop("embeddings")), found

  def embed_texts(self, batch: Batch, key: jax.Array | None = None):
    """Return (embeddings of length 1, float32 [B, P]; auxiliary scalars)."""
    x_BD, aux = self.text.pool(batch, key)
    return _unit(self.projection(x_BD)), aux

  def features(self, batch: Batch) -> jax.Array:
    """Return the image's features before their projection, float32 [B, D]."""
    return self.image.features(batch)


def _unit(x_BP: jax.Array) -> jax.Array:
  x_BP = x_BP.astype(jnp.float32)
  return x_BP * jax.lax.rsqrt(jnp.maximum(jnp.sum(jnp.square(x_BP), axis=-1, keepdims=True), 1e-12))


def _changes(design: dict, side: str) -> dict:
  """Return the changes to the design of one of the two encoders."""
  changes = dict(slots.to_plain(design))
  position = slots.to_plain(changes.pop("position", {}))
  if not isinstance(position, dict) or set(position) - {*_SIDES}:
    raise UserError(
      f"config.model.design.position: found {position!r}, expected one for each encoder: "
      f"{{'image': …, 'text': …}}"
    )
  return changes | ({"position": position[side]} if side in position else {})

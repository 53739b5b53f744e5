"""An image encoder and a text encoder whose outputs share one space (CLIP, SigLIP)."""

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


@slots.rename_keys(reading="text_pooling")
@dataclasses.dataclass(frozen=True)
class DualVariant:
  """One published size of a pair of encoders.

  Attributes:
    image, text: variants of the two encoders; the image encoder's head is "attention_pool", or a
      projection instead of any other.
    width: width of the shared space.
    text_pooling: "end" reads texts causally and takes the hidden state at their end; "mean" reads
      them bidirectionally and takes the mean of their tokens; "last" reads whole rows
      bidirectionally, padding included, and takes the state of the last position.
    projection_bias: whether the projection of texts has a bias.
  """

  image: ImageVariant
  text: Variant
  width: int
  text_pooling: Literal["end", "mean", "last"] = "end"
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
  """A stack over texts up to their first EOS.

  Args:
    text_pooling: see `DualVariant`.
    options: the arguments of `Architecture`.
  """

  def __init__(self, rngs: nnx.Rngs, *, text_pooling: str, **options):
    self.causal = text_pooling == "end"
    self.reads_padding = text_pooling == "last"
    super().__init__(rngs, **options)

  def build(self, rngs: nnx.Rngs, **options) -> None:
    parts = StackBuilder(self.variant.design, self.variant.dims, causal=self.causal, **options)
    self.inputs = parts.inputs(rngs)
    self.encoder = parts.stack(rngs)

  def pool(self, batch: Batch, key: jax.Array | None = None):
    """Return (the pooled states of the texts [B, D], auxiliary scalars)."""
    tokens_BT = batch["text_input_tokens"]
    B, T = tokens_BT.shape
    pos = positions(T)
    if self.reads_padding:
      end_B = jnp.broadcast_to(T - 1, (B,))
    else:
      end_B = jnp.argmax(tokens_BT == self.variant.tokens.eos, axis=1)
    valid_BT = jnp.arange(T) <= end_B[:, None]
    # Causal attention already hides the tokens after the end.
    k_valid = None if self.causal or self.reads_padding else valid_BT
    mask = Mask(pos, pos, k_valid=k_valid, causal=self.causal, aligned=True)
    x_BTD = self.embed(tokens_BT, self.dtype)
    x_BTD = self.inputs(x_BTD, pos, key=subkey(key, 0))
    x_BTD, aux, _ = self.encoder(x_BTD, Context(mask=mask, valid=valid_BT), key=subkey(key, 1))
    if self.causal or self.reads_padding:
      last_state_B1D = jnp.take_along_axis(x_BTD, end_B[:, None, None], axis=1)
      return last_state_B1D[:, 0], aux
    weights_BT = valid_BT / (end_B[:, None] + 1.0)  # the mean of the tokens up to the end
    weights_BT = weights_BT.astype(x_BTD.dtype)
    return jnp.einsum("BTD,BT->BD", x_BTD, weights_BT), aux


class DualEncoder(nnx.Module):
  """An image encoder and a text encoder, each projected, and a learned scale of their cosines.

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
    if isinstance(variant, str):
      variant = slots.find("config.model.variant", variant, self.VARIANTS)
    if not 0 < scale <= 100:
      raise UserError(f"config.model.scale: found {scale}, expected above 0 and at most 100")
    options = dict(dropout=dropout, dtype=dtype, remat=remat, layers=layers, pipeline=pipeline)
    self.image = self.IMAGE_ENCODER(
      rngs,
      variant=dataclasses.replace(variant.image, head=_image_head(variant)),
      resolution=resolution,
      drop_path=drop_path,
      design=_design_changes(design, "image"),
      **options,
    )
    self.text = TextEncoder(
      rngs,
      variant=variant.text,
      text_pooling=variant.text_pooling,
      vocab_size=vocab_size,
      design=_design_changes(design, "text"),
      tokens=tokens,
      **options,
    )
    image = dataclasses.replace(self.image.variant, head=variant.image.head)
    self.variant = dataclasses.replace(variant, image=image, text=self.text.variant)
    D = variant.text.dims.embed
    P = variant.width
    init = variant.text.design.kernel_init(D)
    self.projection = Linear((D, P), ("embed", None), init, rngs, bias=variant.projection_bias)
    self.scale = _scalar(math.log(scale), rngs)
    self.scale.set_metadata(most=MAX_LOG_SCALE)
    self.bias = None if bias is None else _scalar(bias, rngs)

  def __call__(self, batch: Batch, key: jax.Array | None = None) -> dict[str, jax.Array]:
    """Return `outputs`, and `logits` float32 [images, texts], the scaled cosines of all pairs."""
    outputs = self.outputs(batch, key)
    image_IP = outputs["image_embeddings"]
    text_TP = outputs["text_embeddings"]
    cosine_IT = jnp.einsum("IP,TP->IT", image_IP, text_TP, precision="highest")
    logits_IT = outputs["logit_scale"] * cosine_IT + outputs.get("logit_bias", 0.0)
    return outputs | {"logits": logits_IT}

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
    outputs = {}
    for name in image_aux | text_aux:
      outputs[name] = image_aux.get(name, 0.0) + text_aux.get(name, 0.0)
    outputs["image_embeddings"] = image_BP
    outputs["text_embeddings"] = text_BP
    outputs["logit_scale"] = jnp.exp(self.scale[...])
    if self.bias is not None:
      outputs["logit_bias"] = self.bias[...]
    return outputs

  def embed_images(self, batch: Batch, key: jax.Array | None = None):
    """Return (embeddings of length 1, float32 [B, P]; auxiliary scalars)."""
    aux = self.image.outputs({"image": batch["image"]}, key)
    embeddings_BP = aux.pop("embeddings")
    return _normalize(embeddings_BP), aux

  def embed_texts(self, batch: Batch, key: jax.Array | None = None):
    """Return (embeddings of length 1, float32 [B, P]; auxiliary scalars)."""
    x_BD, aux = self.text.pool(batch, key)
    embeddings_BP = self.projection(x_BD)
    return _normalize(embeddings_BP), aux

  def features(self, batch: Batch) -> jax.Array:
    """Return the image's features before their projection, float32 [B, D]."""
    return self.image.features(batch)


def _normalize(x_BP: jax.Array) -> jax.Array:
  """Scale vectors to length 1, in float32."""
  x_BP = x_BP.astype(jnp.float32)
  square_B1 = jnp.sum(jnp.square(x_BP), axis=-1, keepdims=True)
  return x_BP * jax.lax.rsqrt(jnp.maximum(square_B1, 1e-12))


def _scalar(value: float, rngs: nnx.Rngs) -> nnx.Param:
  """Make a scalar parameter."""

  def init(key, shape, dtype):
    return jnp.asarray(value, dtype)

  return params.param(rngs, init, (), ())


def _image_head(variant: DualVariant) -> str | dict:
  """Return the head of the image encoder: its own attention pool, or a projection.

  Raises:
    UserError: an attention pool, which does not project, is not as wide as the shared space.
  """
  name, _ = slots.name_and_arguments("config.model.variant.image.head", variant.image.head)
  if name != "attention_pool":
    return {"name": "projection", "width": variant.width}
  if variant.width != variant.image.dims.embed:
    raise UserError(
      f"config.model.variant.width: found {variant.width} with images of "
      f"{variant.image.dims.embed}, expected the same, as 'attention_pool' does not project"
    )
  return "attention_pool"


def _design_changes(design: dict, side: str) -> dict:
  """Return the changes to the design of one of the two encoders."""
  changes = dict(slots.to_plain(design))
  position = slots.to_plain(changes.pop("position", {}))
  if not isinstance(position, dict) or set(position) - set(_SIDES):
    raise UserError(
      f"config.model.design.position: found {position!r}, expected one for each encoder: "
      f"{{'image': …, 'text': …}}"
    )
  if side in position:
    changes["position"] = position[side]
  return changes

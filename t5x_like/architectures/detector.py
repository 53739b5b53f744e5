"""An object detector: a backbone, an encoder of its features, and a decoder of object queries."""

import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t5x_like import slots
from t5x_like.architectures import backbones
from t5x_like.architectures.architecture import Batch, Dtype, Layers
from t5x_like.architectures.build import resolve_variant, stack_options
from t5x_like.architectures.design import Design
from t5x_like.architectures.positioned_attention import (
  PositionedBuilder,
  PositionEmbeddings,
  add_positions,
  sine_positions,
)
from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.nn.dims import Dims, subkey
from t5x_like.nn.layer import Context
from t5x_like.nn.linear import Linear
from t5x_like.nn.mask import Mask, positions
from t5x_like.parallel.constrain import constrain
from t5x_like.slots import PositiveInt, Rate

_BOX_LAYERS = 3


@dataclasses.dataclass(frozen=True)
class DetectorVariant:
  """One size of a detector.

  Attributes:
    dims: sizes of the encoder, and of the decoder except for `decoder_layers` and `decoder_mlp`.
    design: design of the blocks.
    backbone: one of `architectures.backbones`, a name or {"name": …} with its arguments.
    decoder_layers, decoder_mlp: layers and feed-forward width of the decoder; None for the
      encoder's.
    queries: maximal number of objects in an image.
    labels: number of classes, not counting "no object".
    channels: channels of the images.
    places: the positions of the map's cells, and where they and the query vectors are added. Only
      at the inputs do they reach values.
  """

  dims: Dims
  design: Design
  backbone: str | dict = "resnet"
  decoder_layers: int | None = None
  decoder_mlp: int | None = None
  queries: PositiveInt = 100
  labels: PositiveInt = 91
  channels: PositiveInt = 3
  places: PositionEmbeddings = PositionEmbeddings()

  @property
  def decoder_dims(self) -> Dims:
    layers = self.decoder_layers or self.dims.layers
    mlp = self.decoder_mlp or self.dims.mlp
    return dataclasses.replace(self.dims, layers=layers, mlp=mlp)


class Detector(nnx.Module):
  """Set prediction by an encoder-decoder (Carion et al. 2020).

  Args:
    variant: a name in `VARIANTS`, or a `DetectorVariant`. All arguments but `rngs` are keys of
      `config.model`.
    backbone, queries, channels, places: None for the variant's.
    labels: None or "auto" for the number of the data's classes.
    dropout: rate, wherever the design applies dropout.
    dtype, remat, layers, design: see `architectures.architecture.Architecture`.
  Raises:
    UserError: names the key, its value and the expected one.
  """

  VARIANTS: ClassVar[dict[str, DetectorVariant]] = {}
  VARIANT = DetectorVariant
  REQUIRED_FEATURES = ("image", "image_size")

  def __init__(
    self,
    rngs: nnx.Rngs,
    *,
    variant: str | DetectorVariant,
    backbone: str | dict | None = None,
    queries: PositiveInt | None = None,
    labels: PositiveInt | Literal["auto"] | None = None,
    channels: PositiveInt | None = None,
    places: PositionEmbeddings | None = None,
    dropout: Rate = 0.0,
    dtype: Dtype = "float32",
    remat: str | dict = "none",
    layers: Layers = "scan",
    design: dict = {},
  ):
    labels = None if labels == "auto" else labels
    given = dict(
      backbone=backbone, queries=queries, labels=labels, channels=channels, places=places
    )
    self.variant = variant = resolve_variant(self.VARIANTS, variant, design, **given)
    dims = variant.dims
    scheme = variant.design
    if dims.embed % 4:
      raise UserError(
        f"config.model.variant.dims.embed: found {dims.embed}, expected a multiple "
        "of 4, for the sines"
      )
    if scheme.position != "none":
      raise UserError(
        f"config.model.design.position: found {scheme.position!r}, expected 'none': "
        "places are added"
      )
    self.dtype, options = jnp.dtype(dtype), stack_options(dropout, remat, layers)
    D = dims.embed
    given = dict(rngs=rngs, channels=variant.channels, dtype=dtype, remat=remat, layers=layers)
    self.backbone = slots.make(
      "config.model.backbone", variant.backbone, backbones, "make", **given
    )
    width = self.backbone.width
    self.project = Linear((width, D), (None, "embed"), params.fan_in_normal(width), rngs, bias=True)
    self.position = variant.places.positions(rngs, D)
    self.encoder = PositionedBuilder(scheme, dims, causal=False, **options).stack(rngs)
    self.queries = params.param(rngs, params.normal(1.0), (variant.queries, D), (None, "embed"))
    self.decoder = PositionedBuilder(
      scheme, variant.decoder_dims, causal=False, cross=True, **options
    ).stack(rngs)
    self.decoder_norm = scheme.make_norm(D, rngs)
    self.classes = Linear(
      (D, variant.labels + 1), ("embed", None), params.fan_in_normal(D), rngs, bias=True
    )
    sizes = [D] * _BOX_LAYERS + [4]
    self.boxes = nnx.List(
      [
        Linear((i, o), ("embed", None), params.fan_in_normal(i), rngs, bias=True)
        for i, o in zip(sizes, sizes[1:])
      ]
    )

  def __call__(self, batch: Batch, key: jax.Array | None = None) -> dict[str, jax.Array]:
    return self.outputs(batch, key)

  def outputs(self, batch: Batch, key: jax.Array | None = None) -> dict[str, jax.Array]:
    """Predict a class and a box for each query.

    Args:
      batch: `image` float32 [B, Y, X, C], padded below and to the right; `image_size` int32 [B, 2],
        the height and width without padding.
      key: dropout key, or None for evaluation.
    Returns:
      All float32: `logits` [B, Q, labels + 1], the last for "no object", and `boxes` [B, Q, 4]: the
      centre's x and y, width and height, as fractions of the image without padding.
      `earlier_logits` and `earlier_boxes`, [B, L - 1, Q, …], are the predictions of the decoder's
      earlier layers.
    """
    image_BYXC = batch["image"]
    if image_BYXC.shape[-1] != self.variant.channels:
      found = (
        f"the model is for images of {self.variant.channels} channels, found {image_BYXC.shape[-1]}"
      )
      raise UserError(f"config.model.channels: {found}; set it and config.task.channels alike")
    map_BYXC = self.backbone(image_BYXC.astype(self.dtype), subkey(key, 3))
    valid_BYX = self._valid(batch["image_size"], image_BYXC.shape[1:3], map_BYXC.shape[1:3])
    memory_BSD = self.project(map_BYXC.reshape(len(map_BYXC), -1, map_BYXC.shape[-1]))
    memory_BSD = constrain(memory_BSD, "batch", "residual_length", "activation_embed")
    (B, S, D), valid_BS = memory_BSD.shape, valid_BYX.reshape(len(valid_BYX), -1)
    cells_BSD = (
      sine_positions(valid_BYX, D) if self.position is None else self.position(valid_BYX)
    ).astype(self.dtype)
    Q = self.variant.queries
    queries_BQD = jnp.broadcast_to(self.queries[...].astype(self.dtype), (B, Q, D))
    vectors = {"cells": cells_BSD, "memory": cells_BSD, "queries": queries_BQD}
    at_input, at_attention = (
      self.variant.places.at(place, vectors) for place in ("input", "attention")
    )
    pos = positions(S)
    q_pos = positions(Q)
    context = Context(
      mask=Mask(pos, pos, k_valid=valid_BS, aligned=True), position_vectors=at_attention["cells"]
    )
    memory_BSD, _, _ = self.encoder(
      add_positions(memory_BSD, at_input["cells"]), context, key=subkey(key, 1)
    )
    context = Context(
      mask=Mask(q_pos, q_pos, aligned=True),
      position_vectors=at_attention["queries"],
      memory=memory_BSD,
      memory_mask=Mask(q_pos, pos, k_valid=valid_BS),
      memory_position_vectors=at_attention["memory"],
    )
    x_LBQD = self._every(
      add_positions(jnp.zeros_like(queries_BQD), at_input["queries"]), context, subkey(key, 2)
    )
    x_BTD = jnp.swapaxes(self.decoder_norm(x_LBQD), 0, 1).reshape(B, -1, D)
    logits_BLQV = self.classes(x_BTD).astype(jnp.float32).reshape(B, -1, Q, self.variant.labels + 1)
    for layer in self.boxes[:-1]:
      x_BTD = jax.nn.relu(layer(x_BTD))
    boxes_BLQ4 = jax.nn.sigmoid(self.boxes[-1](x_BTD).astype(jnp.float32)).reshape(B, -1, Q, 4)
    return {
      "logits": logits_BLQV[:, -1],
      "boxes": boxes_BLQ4[:, -1],
      "earlier_logits": logits_BLQV[:, :-1],
      "earlier_boxes": boxes_BLQ4[:, :-1],
    }

  def _every(self, x_BQD: jax.Array, context: Context, key: jax.Array | None) -> jax.Array:
    """Return the output of every block of the decoder before the final norm, [L, B, Q, D]."""
    decoder = self.decoder
    keys_L = None if key is None else jax.random.split(key, self.decoder.repeats)

    def body(x_BQD, layer):
      block, layer_key = layer
      x_BQD, _, _ = block(x_BQD, context, None, layer_key)
      return x_BQD, x_BQD

    return decoder.scan_layers(body, x_BQD, (decoder.blocks, keys_L), decoder.remat)[1]

  @staticmethod
  def _valid(size_B2: jax.Array, whole: tuple[int, int], shrunk: tuple[int, int]) -> jax.Array:
    """Return bool [B, Y', X'], True for cells of the map whose nearest pixel above and to the left
    is not padding."""
    pixel = [
      np.floor(np.arange(n, dtype=np.float32) * np.float32(full / n))
      for full, n in zip(whole, shrunk)
    ]
    rows_BY, columns_BX = (jnp.asarray(p) < size_B2[:, [axis]] for axis, p in enumerate(pixel))
    return rows_BY[:, :, None] & columns_BX[:, None, :]

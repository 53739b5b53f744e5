"""An object detector: a backbone, an encoder of its features, and a decoder of object queries."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t5x_like import slots
from t5x_like.architectures import backbones
from t5x_like.architectures.architecture import Batch, Dtype, Layers
from t5x_like.architectures.build import resolve_variant, stack_options
from t5x_like.architectures.design import Design
from t5x_like.contrib.detection.positioned_attention import (
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

if TYPE_CHECKING:
  from t5x_like.contrib.detection.predictor import ObjectDetection
  from t5x_like.vocabularies import Vocabulary

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
  TAKES_BACKBONE = True

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
    variant = resolve_variant(
      self.VARIANTS,
      variant,
      design,
      backbone=backbone,
      queries=queries,
      labels=labels,
      channels=channels,
      places=places,
    )
    self.variant = variant
    dims = variant.dims
    D = dims.embed
    design = variant.design
    if D % 4:
      raise UserError(
        f"config.model.variant.dims.embed: found {D}, expected a multiple of 4, for the sines"
      )
    if design.position != "none":
      raise UserError(
        f"config.model.design.position: found {design.position!r}, expected 'none': "
        "places are added"
      )
    self.dtype = jnp.dtype(dtype)
    options = stack_options(dropout, remat, layers)
    self.backbone = slots.make(
      "config.model.backbone",
      variant.backbone,
      backbones,
      "make",
      rngs=rngs,
      channels=variant.channels,
      dtype=dtype,
      remat=remat,
      layers=layers,
    )
    width = self.backbone.width
    self.project = Linear((width, D), (None, "embed"), params.fan_in_normal(width), rngs, bias=True)
    self.position = variant.places.positions(rngs, D)
    self.encoder = PositionedBuilder(design, dims, causal=False, **options).stack(rngs)
    self.queries = params.param(rngs, params.normal(1.0), (variant.queries, D), (None, "embed"))
    decoder = PositionedBuilder(design, variant.decoder_dims, causal=False, cross=True, **options)
    self.decoder = decoder.stack(rngs)
    self.decoder_norm = design.make_norm(D, rngs)
    init = params.fan_in_normal(D)
    self.classes = Linear((D, variant.labels + 1), ("embed", None), init, rngs, bias=True)
    outputs = [D] * (_BOX_LAYERS - 1) + [4]
    self.boxes = nnx.List(
      [Linear((D, output), ("embed", None), init, rngs, bias=True) for output in outputs]
    )

  def __call__(self, batch: Batch, key: jax.Array | None = None) -> dict[str, jax.Array]:
    return self.outputs(batch, key)

  def build_image_predictor(
    self, vocabulary: "Vocabulary", task: Mapping[str, Any], flags: dict[str, Any]
  ) -> "ObjectDetection":
    """Return the predictor that detects objects; see `inference.images.build_predictor`."""
    from t5x_like.contrib.detection.predictor import ObjectDetection  # reads images

    return ObjectDetection(self, vocabulary, task, flags)

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
      raise UserError(
        f"config.model.channels: the model is for images of {self.variant.channels} channels, "
        f"found {image_BYXC.shape[-1]}; set it and config.task.channels to the same"
      )
    map_BYXC = self.backbone(image_BYXC.astype(self.dtype), subkey(key, 3))
    valid_BYX = _valid_cells(batch["image_size"], image_BYXC.shape[1:3], map_BYXC.shape[1:3])
    vectors = self._position_vectors(valid_BYX)
    at_input = self.variant.places.at("input", vectors)
    at_attention = self.variant.places.at("attention", vectors)

    B = len(map_BYXC)
    Q = self.variant.queries
    memory_BSD = self.project(map_BYXC.reshape(B, -1, map_BYXC.shape[-1]))
    memory_BSD = constrain(memory_BSD, "batch", "residual_length", "activation_embed")
    D = memory_BSD.shape[-1]
    valid_BS = valid_BYX.reshape(B, -1)
    k_pos = positions(memory_BSD.shape[1])
    q_pos = positions(Q)
    context = Context(
      mask=Mask(k_pos, k_pos, k_valid=valid_BS, aligned=True),
      position_vectors=at_attention["cells"],
    )
    memory_BSD = add_positions(memory_BSD, at_input["cells"])
    memory_BSD, _, _ = self.encoder(memory_BSD, context, key=subkey(key, 1))
    context = Context(
      mask=Mask(q_pos, q_pos, aligned=True),
      position_vectors=at_attention["queries"],
      memory=memory_BSD,
      memory_mask=Mask(q_pos, k_pos, k_valid=valid_BS),
      memory_position_vectors=at_attention["memory"],
    )
    x_BQD = add_positions(jnp.zeros_like(vectors["queries"]), at_input["queries"])
    x_LBQD = self._run_decoder(x_BQD, context, subkey(key, 2))

    x_BTD = jnp.swapaxes(self.decoder_norm(x_LBQD), 0, 1).reshape(B, -1, D)
    logits_BTV = self.classes(x_BTD).astype(jnp.float32)
    logits_BLQV = logits_BTV.reshape(B, -1, Q, self.variant.labels + 1)
    boxes_BLQ4 = self._predict_boxes(x_BTD).reshape(B, -1, Q, 4)
    return {
      "logits": logits_BLQV[:, -1],
      "boxes": boxes_BLQ4[:, -1],
      "earlier_logits": logits_BLQV[:, :-1],
      "earlier_boxes": boxes_BLQ4[:, :-1],
    }

  def _position_vectors(self, valid_BYX: jax.Array) -> dict[str, jax.Array]:
    """Return the vectors of the map's cells, for the encoder and for memory, and of the queries."""
    B = len(valid_BYX)
    D = self.variant.dims.embed
    if self.position is None:
      cells_BSD = sine_positions(valid_BYX, D)
    else:
      cells_BSD = self.position(valid_BYX)
    cells_BSD = cells_BSD.astype(self.dtype)
    queries_QD = self.queries[...].astype(self.dtype)
    queries_BQD = jnp.broadcast_to(queries_QD, (B, *queries_QD.shape))
    return {"cells": cells_BSD, "memory": cells_BSD, "queries": queries_BQD}

  def _predict_boxes(self, x_BTD: jax.Array) -> jax.Array:
    """Return float32 [B, T, 4], fractions of the image."""
    for layer in self.boxes[:-1]:
      x_BTD = jax.nn.relu(layer(x_BTD))
    return jax.nn.sigmoid(self.boxes[-1](x_BTD).astype(jnp.float32))

  def _run_decoder(self, x_BQD: jax.Array, context: Context, key: jax.Array | None) -> jax.Array:
    """Return the output of every block of the decoder before the final norm, [L, B, Q, D]."""
    decoder = self.decoder
    keys_L = None if key is None else jax.random.split(key, self.decoder.repeats)

    def body(x_BQD, layer):
      block, layer_key = layer
      x_BQD, _, _ = block(x_BQD, context, None, layer_key)
      return x_BQD, x_BQD

    return decoder.scan_layers(body, x_BQD, (decoder.blocks, keys_L), decoder.remat)[1]


def _valid_cells(
  size_B2: jax.Array, image_shape: tuple[int, int], map_shape: tuple[int, int]
) -> jax.Array:
  """Return bool [B, Y', X'], False for cells of the map that are padding.

  A cell is padding if its nearest pixel above and to the left is.
  """
  in_image = []
  for axis in range(2):
    cells = np.arange(map_shape[axis], dtype=np.float32)
    pixels = np.floor(cells * np.float32(image_shape[axis] / map_shape[axis]))
    in_image.append(jnp.asarray(pixels) < size_B2[:, [axis]])
  rows_BY, columns_BX = in_image
  return rows_BY[:, :, None] & columns_BX[:, None, :]

"""Masked autoencoders: a ViT whose head is their decoder.

A file's positions are read as a table. In published files it is the fixed table of sines and
cosines, and a model with `sinusoidal_2d` is written with this table.
"""

import dataclasses
import functools

from t5x_like.interop import image_encoders
from t5x_like.interop.config_table import Custom, Field, ModelType, Required, WriteOnly
from t5x_like.interop.image_encoders import map_position_table
from t5x_like.interop.tensor_layouts import map_with_leading_axes
from t5x_like.interop.tensor_mapping import Layout, prefix_table
from t5x_like.models import vit


def _canonical_name(name: str) -> str:
  """Rename the decoder's layers, which some versions of `transformers` write under another name."""
  return name.replace("decoder.decoder_encoder.layer.", "decoder.decoder_layers.")


MAE = (
  *image_encoders.VIT,
  Custom(write_fields=image_encoders.require_position_table),
  Field("decoder_num_hidden_layers", "head.depth", default=8),
  Field("decoder_hidden_size", "head.embed", default=512),
  Field("decoder_num_attention_heads", "head.heads", default=16),
  Field("decoder_intermediate_size", "head.mlp", default=2048),
  Required("architectures", ["ViTMAEForPreTraining"]),
  WriteOnly("mask_ratio", 0.75),
  WriteOnly("norm_pix_loss", True),
)
DECODER = {
  "decoder_embed": "head/project",
  "mask_token": Layout("head/mask", map_with_leading_axes),
  "decoder_pos_embed": Layout("", functools.partial(map_position_table, inputs="head/inputs")),
  **prefix_table("decoder_layers.{layer}.", "head/decoder/blocks/", image_encoders.LAYER),
  "decoder_norm": "head/decoder/final_norm",
  "decoder_pred": "head/out",
}
TYPES = (
  ModelType(
    "vit_mae",
    "ViTMAEForPreTraining",
    vit.Model,
    dataclasses.replace(vit.VARIANTS["vit-b16"], head="reconstruction"),
    MAE,
    prefix_table("vit.", "", image_encoders.TENSORS) | prefix_table("decoder.", "", DECODER),
    canonical_name=_canonical_name,
    free=(*image_encoders.FREE, "design.position"),
  ),
)

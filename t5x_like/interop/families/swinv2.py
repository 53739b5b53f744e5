"""Swin Transformers V2, as image classifiers or without a head."""

import functools
from typing import Any

from t5x_like.architectures.window_encoder import WindowVariant
from t5x_like.errors import UserError
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.config_table import Custom, Field, ModelType
from t5x_like.interop.encoders import Classes, EncoderTensors
from t5x_like.interop.families import swin
from t5x_like.interop.families.swin import HEADS
from t5x_like.interop.tensor_layouts import map_reshaped
from t5x_like.interop.tensor_mapping import Layout
from t5x_like.models import swin_v2
from t5x_like.resolution import height_and_width


def _read_pretrained_windows(fields: Fields) -> dict[str, Any]:
  """Return the windows of the stages' first training, none if all are 0."""
  windows = tuple(fields.take("pretrained_window_sizes", ()))
  return {"pretrained_windows": windows if any(windows) else ()}


def _write_pretrained_windows(variant: WindowVariant) -> dict[str, Any]:
  windows = variant.pretrained_windows or [0] * len(variant.depths)
  return {"pretrained_window_sizes": list(windows)}


class _SwinV2(ModelType):
  """The type, whose windows `transformers` limits by the images' height alone."""

  def read_variant(self, fields: Fields) -> WindowVariant:
    variant = super().read_variant(fields)
    for stage in range(len(variant.depths)):
      height, _ = height_and_width(variant.resolution)
      rows = max(1, height // variant.patch // 2**stage)
      # the window and the shift of `transformers`
      expected = (rows, 0)
      if variant.window < rows:
        expected = (variant.window, variant.window // 2)
      if variant.stage_window(stage) != expected:
        raise UserError(
          f"config.model.resolution: found {variant.resolution}, whose width limits the windows of "
          f"{variant.window} in stage {stage + 1}; transformers' swinv2 takes them by the height; "
          "choose wider images"
        )
    return variant


SWINV2 = (
  *swin.entries("qv"),
  Field("window_size", "window", default=7),
  Custom(_read_pretrained_windows, _write_pretrained_windows),
  Classes("Swinv2", HEADS),
)
LAYER = {
  "layernorm_before": "self_attention/res_norm",
  "layernorm_after": "mlp/res_norm",
  "attention.self.continuous_position_bias_mlp.0": "self_attention/layer/position/hidden",
  "attention.self.continuous_position_bias_mlp.2": "self_attention/layer/position/out",
  "attention.self.logit_scale": Layout(
    "self_attention/layer/q_norm/log_scale",
    functools.partial(map_reshaped, reshape=lambda x: x.reshape(-1, 1, 1)),
  ),
}
TYPES = (
  _SwinV2(
    "swinv2",
    "",
    swin_v2.Model,
    swin_v2.VARIANTS["swin-v2-t"],
    SWINV2,
    EncoderTensors("swinv2", HEADS, swin.tensors(LAYER), unread=()),
    **swin.FILES,
  ),
)

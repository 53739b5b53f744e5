"""Swin Transformers V2 that classify images."""

from t5x_like.architectures.window_encoder import WindowVariant
from t5x_like.errors import UserError
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.families import swin
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.models import swin_v2
from t5x_like.resolution import height_and_width

MODEL_TYPES = ("swinv2",)
MODELS = (swin_v2.Model,)
BIASED = "qv"


def read_config(fields: Fields, tensor_names: set[str]):
  pretrained = tuple(fields.take("pretrained_window_sizes", ()))
  if not any(pretrained):
    pretrained = ()
  base = swin_v2.VARIANTS["swin-v2-t"]
  variant = swin.read_variant(fields, base, BIASED, "Swinv2", pretrained_windows=pretrained)
  _refuse_narrow_images(variant)
  return swin_v2.Model, {"variant": variant}


def _refuse_narrow_images(variant: WindowVariant) -> None:
  """Refuse images whose width, and not their height, limits the windows.

  The library looks at the height alone.
  """
  for stage in range(len(variant.depths)):
    rows = max(1, height_and_width(variant.resolution)[0] // variant.patch >> stage)
    # the window and the shift of the library
    expected = (variant.window, variant.window // 2) if variant.window < rows else (rows, 0)
    if variant.stage_window(stage) != expected:
      raise UserError(
        f"config.model.resolution: found {variant.resolution}, whose width limits the windows of "
        f"{variant.window} in stage {stage + 1}; the library's swinv2 takes them by the height; "
        "choose wider images"
      )


def write_config(model, model_type: str | None) -> dict:
  _refuse_narrow_images(model.variant)
  design = dict(norm_position="res_post", attention_scale="cosine", position="log_cpb")
  pretrained = model.variant.pretrained_windows or [0] * len(model.variant.depths)
  return swin.write_shared_fields(model, "swinv2", BIASED, "Swinv2", **design) | {
    "pretrained_window_sizes": list(pretrained)
  }


def map_tensors(mapping: TensorMapping) -> None:
  def map_positions(hf_layer: str, path: str, index: int) -> None:
    hf_attention = f"{hf_layer}.attention.self"
    network = f"{path}/layer/position"
    mapping.linear(f"{hf_attention}.continuous_position_bias_mlp.0", f"{network}/hidden", index)
    mapping.linear(f"{hf_attention}.continuous_position_bias_mlp.2", f"{network}/out", index)
    mapping.fuse(
      f"{hf_attention}.logit_scale",
      [f"{path}/layer/q_norm/log_scale"],
      index,
      split=lambda x: [x.reshape(-1)],
      join=lambda arrays: arrays[0].reshape(-1, 1, 1),
    )

  swin.map_body(mapping, "swinv2.", "res_norm", map_positions)

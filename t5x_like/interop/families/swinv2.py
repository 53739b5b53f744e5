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
  pretrained = pretrained if any(pretrained) else ()
  base = swin_v2.VARIANTS["swin-v2-t"]
  variant = swin.read_variant(fields, base, BIASED, "Swinv2", pretrained_windows=pretrained)
  _check(variant)
  return swin_v2.Model, {"variant": variant}


def _check(variant: WindowVariant) -> None:
  """Refuse images whose width, and not their height, limits the windows: the library looks at the
  height alone."""
  for stage in range(len(variant.depths)):
    rows = max(1, height_and_width(variant.resolution)[0] // variant.patch >> stage)
    if variant.stage_window(stage) != (
      (variant.window, variant.window // 2) if variant.window < rows else (rows, 0)
    ):
      raise UserError(
        f"config.model.resolution: found {variant.resolution}, whose width limits the windows of "
        f"{variant.window} in stage {stage + 1}; the library's swinv2 takes them by the height; "
        "choose wider images"
      )


def write_config(model, model_type: str | None) -> dict:
  _check(model.variant)
  design = dict(norm_position="res_post", attention_scale="cosine", position="log_cpb")
  pretrained = model.variant.pretrained_windows or [0] * len(model.variant.depths)
  return swin.write_shared_fields(model, "swinv2", BIASED, "Swinv2", **design) | {
    "pretrained_window_sizes": list(pretrained)
  }


def map_tensors(mapping: TensorMapping) -> None:
  def layer(hf_name: str, path: str, index: int) -> None:
    attention = f"{hf_name}.attention.self"
    network = f"{path}/layer/position"
    mapping.linear(f"{attention}.continuous_position_bias_mlp.0", f"{network}/hidden", index)
    mapping.linear(f"{attention}.continuous_position_bias_mlp.2", f"{network}/out", index)
    scale = dict(split=lambda x: [x.reshape(-1)], join=lambda xs: xs[0].reshape(-1, 1, 1))
    mapping.fuse(f"{attention}.logit_scale", [f"{path}/layer/q_norm/log_scale"], index, **scale)

  swin.map_body(mapping, "swinv2.", "res_norm", layer)

"""Swin Transformers V2 that classify images."""

from t5x_like.interop.families import swin
from t5x_like.interop.fields import Fields
from t5x_like.interop.mapping import Mapping
from t5x_like.models import swin_v2

MODEL_TYPES = ("swinv2",)
MODELS = (swin_v2.Model,)
BIASED = "qv"


def build(fields: Fields, names: set[str]):
  pretrained = tuple(fields.take("pretrained_window_sizes", ()))
  pretrained = pretrained if any(pretrained) else ()
  base = swin_v2.VARIANTS["swin-v2-t"]
  return swin_v2.Model, {"variant": swin.variant(fields, base, BIASED, "Swinv2", pretrained_windows=pretrained)}


def config(model, model_type: str | None) -> dict:
  design = dict(norm_position="res_post", attention_scale="cosine", position="log_cpb")
  pretrained = model.variant.pretrained_windows or [0] * len(model.variant.depths)
  return swin.common(model, "swinv2", BIASED, "Swinv2", **design) | {"pretrained_window_sizes": list(pretrained)}


def tensors(m: Mapping) -> None:
  def layer(theirs: str, ours: str, at: int) -> None:
    attention, network = f"{theirs}.attention.self", f"{ours}/layer/position"
    m.linear(f"{attention}.continuous_position_bias_mlp.0", f"{network}/hidden", at)
    m.linear(f"{attention}.continuous_position_bias_mlp.2", f"{network}/out", at)
    scale = dict(split=lambda x: [x.reshape(-1)], join=lambda xs: xs[0].reshape(-1, 1, 1))
    m.fused(f"{attention}.logit_scale", [f"{ours}/layer/q_norm/log_scale"], at, **scale)

  swin.body(m, "swinv2.", "res_norm", layer)

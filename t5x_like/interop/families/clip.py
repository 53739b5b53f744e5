"""CLIP: both encoders and their projections."""

from typing import Any

from t5x_like.architectures.design import Tokens, Variant
from t5x_like.errors import UserError
from t5x_like.interop import encoders, image_encoders
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.config_table import (
  Choice,
  Custom,
  Entry,
  Field,
  Ignored,
  ModelType,
  Required,
  Section,
  WriteOnly,
)
from t5x_like.interop.image_encoders import SquareSide
from t5x_like.interop.tensor_layouts import map_flat, map_squares
from t5x_like.interop.tensor_mapping import Layout, prefix_table
from t5x_like.interop.variant_paths import replace_attributes
from t5x_like.models import clip

_LEGACY_EOS = 2  # the value of published configs, although EOS is the highest id
FREE = tuple(f"{part}.{path}" for part in ("image", "text") for path in image_encoders.FREE)


class DualType(ModelType):
  """A type of pairs of encoders.

  Attributes:
    has_bias: whether the logits of its models have a bias.
  """

  has_bias = False

  def write(self, model: Any, original_type: str | None = None) -> dict[str, Any]:
    if (model.bias is not None) != self.has_bias:
      expected = "a bias" if self.has_bias else "no bias"
      raise UserError(f"bias is {model.bias}; {self.name} has {expected} on its logits")
    return super().write(model, original_type)


def encoder_entries(
  embed: int, heads: int, mlp: int, epsilon: float, activation: str
) -> tuple[Entry, ...]:
  """Return the entries that both encoders have, with the defaults of one."""
  return (
    Field("hidden_size", "dims.embed", default=embed),
    Field("num_hidden_layers", "dims.layers", default=12),
    Field("num_attention_heads", "dims.heads", default=heads),
    Field("intermediate_size", "dims.mlp", default=mlp),
    Choice("hidden_act", "design.activation", encoders.ACTIVATIONS, default=activation),
    Field("layer_norm_eps", "design.norm_epsilon", default=epsilon),
    Ignored("attention_dropout", "dropout", "projection_dim", "initializer_factor"),
    Ignored("tie_word_embeddings"),
  )


def image_entries(patch: int) -> tuple[Entry, ...]:
  """Return the entries of patches, with their default side."""
  return (
    SquareSide("patch_size", "patch", default=patch),
    SquareSide("image_size", "resolution", default=224),
    image_encoders.CHANNELS,
  )


def _read_tokens(fields: Fields) -> dict[str, Any]:
  eos = fields.take("eos_token_id", 49_407)
  if eos == _LEGACY_EOS:
    eos = fields.take("vocab_size", 49_408) - 1
  fields.ignore("pad_token_id")
  return {"tokens": Tokens(None, fields.values.get("bos_token_id", 49_406), eos)}


def _write_tokens(variant: Variant) -> dict[str, Any]:
  tokens = variant.tokens
  if tokens.eos == _LEGACY_EOS != variant.vocab_size - 1:
    raise UserError(f"tokens.eos is {_LEGACY_EOS}, which configs of clip read as the highest id")
  return {
    "bos_token_id": tokens.start,
    "eos_token_id": tokens.eos,
    "pad_token_id": tokens.eos if tokens.pad is None else tokens.pad,
  }


IMAGE = (
  WriteOnly("model_type", "clip_vision_model"),
  *encoder_entries(768, 12, 3072, 1e-5, "quick_gelu"),
  *image_entries(patch=32),
)
TEXT = (
  WriteOnly("model_type", "clip_text_model"),
  *encoder_entries(512, 8, 2048, 1e-5, "quick_gelu"),
  Field("vocab_size", "vocab_size", default=49_408),
  Field("max_position_embeddings", "design.position.length", default=77),
  Custom(_read_tokens, _write_tokens),
)


def _write_width(variant: Any) -> dict[str, Any]:
  return {"projection_dim": variant.width}


CLIP = (
  Required("architectures", ["CLIPModel"]),
  Field("projection_dim", "width", default=512),
  Section("vision_config", "image", IMAGE, _write_width),
  Section("text_config", "text", TEXT, _write_width),
  Ignored("logit_scale_init_value", "initializer_factor", "tie_word_embeddings"),
  Ignored("text_config_dict", "vision_config_dict"),
)
LAYER = {
  "self_attn.q_proj": "self_attention/layer/query",
  "self_attn.k_proj": "self_attention/layer/key",
  "self_attn.v_proj": "self_attention/layer/value",
  "self_attn.out_proj": "self_attention/layer/out",
  "layer_norm1": "self_attention/in_norm",
  "layer_norm2": "mlp/in_norm",
  "mlp.fc1": "mlp/layer/wi",
  "mlp.fc2": "mlp/layer/wo",
}
# Of CLIP and of SigLIP.
COMMON = {
  "vision_model.embeddings.patch_embedding": Layout("image/patches", map_squares),
  "vision_model.embeddings.position_embedding": "image/inputs/position",
  **prefix_table("vision_model.encoder.layers.{layer}.", "image/encoder/blocks/", LAYER),
  "vision_model.post_layernorm": "image/encoder/final_norm",
  "text_model.embeddings.token_embedding": "text/embed",
  "text_model.embeddings.position_embedding": "text/inputs/position",
  **prefix_table("text_model.encoder.layers.{layer}.", "text/encoder/blocks/", LAYER),
  "text_model.final_layer_norm": "text/encoder/final_norm",
}
TENSORS = {
  **COMMON,
  "vision_model.embeddings.class_embedding": Layout("image/tokens", map_flat),
  "vision_model.pre_layrnorm": "image/inputs/norm",
  "visual_projection": "image/head/out",
  "text_projection": "projection",
  "logit_scale": "scale",
}
_BASE = {"image.design": clip.IMAGE, "text.design.position": "learned"}
TYPES = (
  DualType(
    "clip",
    "CLIPModel",
    clip.Model,
    replace_attributes(clip.VARIANTS["clip-b32"], _BASE),
    CLIP,
    TENSORS,
    ignored_suffixes=("position_ids",),
    free=FREE,
  ),
)

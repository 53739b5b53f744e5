"""SigLIP: both encoders, the pooling of images and the projection of texts."""

import functools
from typing import Any

from t5x_like.architectures.design import Tokens, Variant
from t5x_like.architectures.dual_encoder import DualVariant
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.config_table import (
  Choice,
  Custom,
  Field,
  Ignored,
  Required,
  Section,
  WriteOnly,
)
from t5x_like.interop.families import clip
from t5x_like.interop.families.clip import DualType
from t5x_like.interop.tensor_layouts import map_flat, map_stacked, map_with_leading_axis
from t5x_like.interop.tensor_mapping import Layout
from t5x_like.interop.variant_paths import replace_attributes
from t5x_like.models import siglip

# The EOS of the published tokenizer, which also pads with it. Published configs may have the EOS of
# another model, beyond the vocabulary.
_EOS = 1


def _read_tokens(fields: Fields) -> dict[str, Any]:
  eos = fields.values.get("eos_token_id")
  fields.ignore("pad_token_id", "eos_token_id")
  if not isinstance(eos, int) or not 0 <= eos < fields.take("vocab_size", 32_000):
    eos = _EOS
  return {"tokens": Tokens(None, eos=eos)}


def _write_tokens(variant: Variant) -> dict[str, Any]:
  tokens = variant.tokens
  return {
    "bos_token_id": None,
    "eos_token_id": tokens.eos,
    "pad_token_id": tokens.eos if tokens.pad is None else tokens.pad,
  }


def _read_width(fields: Fields) -> dict[str, Any]:
  """Return the width of the shared space, which is the width of images."""
  image = fields.section("vision_config")
  text = fields.section("text_config")
  image_width = image.take("hidden_size", 768)
  width = text.take("projection_size", text.take("hidden_size", 768))
  if width != image_width:
    raise text.refusal("projection_size", width, f"the {image_width} of images")
  return {"width": width}


def _write_width(variant: DualVariant) -> dict[str, Any]:
  return {"projection_size": variant.width}


IMAGE = (
  WriteOnly("model_type", "siglip_vision_model"),
  *clip.encoder_entries(768, 12, 3072, 1e-6, "gelu_pytorch_tanh"),
  *clip.image_entries(patch=16),
  Choice("vision_use_head", "head", {True: "attention_pool"}, default=True, written=False),
)
TEXT = (
  WriteOnly("model_type", "siglip_text_model"),
  *clip.encoder_entries(768, 12, 3072, 1e-6, "gelu_pytorch_tanh"),
  Field("vocab_size", "vocab_size", default=32_000),
  Field("max_position_embeddings", "design.position.length", default=64),
  Custom(_read_tokens, _write_tokens),
  Ignored("projection_size"),
)
SIGLIP = (
  Required("architectures", ["SiglipModel"]),
  Custom(_read_width),
  Section("vision_config", "image", IMAGE),
  Section("text_config", "text", TEXT, _write_width),
  Ignored("initializer_factor", "tie_word_embeddings", "text_config_dict", "vision_config_dict"),
)
TENSORS = {
  **clip.COMMON,
  "vision_model.head.probe": Layout("image/head/query", map_with_leading_axis),
  "vision_model.head.attention.in_proj": Layout(
    "image/head/attention", functools.partial(map_stacked, separator="_")
  ),
  "vision_model.head.attention.out_proj": "image/head/attention/out",
  "vision_model.head.layernorm": "image/head/norm",
  "vision_model.head.mlp.fc1": "image/head/mlp/wi",
  "vision_model.head.mlp.fc2": "image/head/mlp/wo",
  "text_model.head": "projection",
  "logit_scale": Layout("scale", map_flat),
  "logit_bias": Layout("bias", map_flat),
}


class _Siglip(DualType):
  has_bias = True


TYPES = (
  _Siglip(
    "siglip",
    "SiglipModel",
    siglip.Model,
    replace_attributes(siglip.VARIANTS["siglip-b16"], {"text.design.position": "learned"}),
    SIGLIP,
    TENSORS,
    ignored_suffixes=("position_ids",),
    free=clip.FREE,
  ),
)

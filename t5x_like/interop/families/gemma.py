"""Gemma 2, and the text model of Gemma 3.

Files of Gemma 3 may also contain parts for images, which are left out.
"""

import re
from typing import Any

from t5x_like.architectures.design import Variant
from t5x_like.errors import UserError
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.config_table import (
  Choice,
  Constant,
  Custom,
  Field,
  Ignored,
  ModelType,
  Required,
)
from t5x_like.interop.decoders import (
  GATED_ACTIVATIONS,
  HeadDim,
  LayersByType,
  Rope,
  RopeByType,
  SpecialTokens,
)
from t5x_like.interop.families import llama
from t5x_like.models import gemma2, gemma3

# Defaults of `text_config` in gemma3.
_TEXT_DEFAULTS = dict(model_type="gemma3_text", num_attention_heads=8, vocab_size=262_208)
_IMAGE_PARTS = re.compile(r"(model\.)?(vision_tower|multi_modal_projector)\.")


def _read_attention_scale(fields: Fields) -> dict[str, Any]:
  return {"design.attention_scale": fields.take("query_pre_attn_scalar", 256) ** -0.5}


def _write_attention_scale(variant: Variant) -> dict[str, Any]:
  """Return the whole number whose root divides the logits; it may not be exactly the scale's."""
  scale = variant.design.attention_scale or variant.dims.head_dim**-0.5
  return {"query_pre_attn_scalar": round(scale**-2)}


COMMON = (
  *llama.SIZES,
  Field("num_key_value_heads", "dims.kv_heads", default=4, nullable=True),
  HeadDim(default=256),
  Choice("hidden_activation", "design.activation", GATED_ACTIVATIONS, default="gelu_pytorch_tanh"),
  Field("rms_norm_eps", "design.norm_epsilon", default=1e-6),
  llama.ATTENTION_BIAS,
  Custom(_read_attention_scale, _write_attention_scale),
  Field("tie_word_embeddings", "design.tied", default=True),
  SpecialTokens(pad=0, start=2, eos=1),
  Required("use_bidirectional_attention", None, False),
  Ignored("hidden_act", "cache_implementation"),
)
GEMMA2 = (
  *COMMON,
  Rope(),
  LayersByType(window=4096, full_every=2),
  Field("attn_logit_softcapping", "design.softcap", default=50.0, nullable=True),
  Field("final_logit_softcapping", "design.logits_softcap", default=30.0, nullable=True),
)
GEMMA3 = (
  *COMMON,
  LayersByType(
    window=4096,
    full_every=gemma3.GLOBAL_EVERY,
    period_field="sliding_window_pattern",
    rope=RopeByType(local=1e4, full=1e6, local_name="rope_local_base_freq"),
  ),
  Constant("attn_logit_softcapping", None),  # `transformers` has the field, and never applies it
  Field("final_logit_softcapping", "design.logits_softcap", default=None),
  Ignored("_sliding_window_pattern"),  # `transformers` derives `layer_types` from it
)


class _ImagesAndText(ModelType):
  """A Gemma 3 that also sees images; its text model is read, and written as `gemma3_text`."""

  def read_variant(self, fields: Fields) -> Variant:
    fields.ignore("vision_config", "mm_tokens_per_image", "pad_token_id", "eos_token_id")
    fields.ignore("boi_token_index", "eoi_token_index", "image_token_index")
    # `transformers` ignores this field in `text_config`
    tied = {"tie_word_embeddings": fields.take("tie_word_embeddings", True)}
    values = _TEXT_DEFAULTS | fields.take("text_config") | tied
    text = Fields(values, f"{fields.origin}, text_config")
    # `transformers` does not apply this one in models with parts for images
    text.require("final_logit_softcapping", None)
    variant = super().read_variant(text)
    text.refuse_unused()
    return variant

  def write(self, model: Any, original_type: str | None = None) -> dict[str, Any]:
    raise UserError(f"{self.name} has parts for images")


def _canonical_name(name: str) -> str:
  """Return the name of a tensor in a model of text alone; "" for the parts that see images."""
  text = re.sub(r"^(language_model\.model|model\.language_model)\.", "model.", name)
  return "" if _IMAGE_PARTS.match(name) else text.removeprefix("language_model.")


LAYER = {
  **llama.ATTENTION,
  **llama.GATED_MLP,
  "post_attention_layernorm": "self_attention/res_norm",
  "pre_feedforward_layernorm": "mlp/in_norm",
  "post_feedforward_layernorm": "mlp/res_norm",
}
TENSORS = llama.TENSORS | {
  "tensors": llama.decoder_tensors(LAYER),
  "canonical_name": _canonical_name,
  "body_prefix": "",
}

TYPES = (
  ModelType(
    "gemma2",
    "Gemma2ForCausalLM",
    gemma2.Model,
    gemma2.DESIGN,
    GEMMA2,
    other_classes=(gemma3.Model,),
    **TENSORS,
  ),
  ModelType(
    "gemma3_text",
    "Gemma3ForCausalLM",
    gemma3.Model,
    gemma3.DESIGN,
    GEMMA3,
    other_classes=(gemma2.Model,),
    **TENSORS,
  ),
  _ImagesAndText("gemma3", "", gemma3.Model, gemma3.DESIGN, GEMMA3, **TENSORS),
)

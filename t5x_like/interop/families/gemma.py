"""Gemma 2, and the text model of Gemma 3.

Files of Gemma 3 may also contain parts for images, which are left out.
"""

import dataclasses
import re

from t5x_like.errors import UserError
from t5x_like.interop import decoders
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.families import llama
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.models import gemma2, gemma3

MODEL_TYPES = ("gemma2", "gemma3_text", "gemma3")
MODELS = (gemma2.Model, gemma3.Model)
# Defaults of `text_config` in gemma3.
_TEXT_DEFAULTS = dict(model_type="gemma3_text", num_attention_heads=8, vocab_size=262_208)
_IMAGE_PARTS = re.compile(r"(model\.)?(vision_tower|multi_modal_projector)\.")


def read_config(fields: Fields, tensor_names: set[str]):
  if fields.values["model_type"] == "gemma3":
    return _read_text_config(fields, tensor_names)
  is_gemma3 = fields.values["model_type"] == "gemma3_text"
  if is_gemma3:
    fields.require(
      "attn_logit_softcapping", None
    )  # the library has the field, and never applies it
    period = fields.take("sliding_window_pattern", gemma3.GLOBAL_EVERY)
    # the library's own note; it writes `layer_types` with it
    fields.ignore("_sliding_window_pattern")
    is_local = decoders.read_local_layers(fields, lambda layer: (layer + 1) % period != 0)
    local_rope, full_rope = decoders.read_local_and_full_rope(
      fields, local=1e4, full=1e6, local_name="rope_local_base_freq"
    )
    position = decoders.arrange_by_kind(is_local, local_rope, full_rope)
  else:
    is_local = decoders.read_local_layers(fields, lambda layer: layer % 2 == 0)
    position = decoders.read_rope(fields)
  window = decoders.take_nullable(fields, "sliding_window", 4096)
  softcap = None if is_gemma3 else 50.0
  logits_softcap = None if is_gemma3 else 30.0
  fields.require("use_bidirectional_attention", None, False)
  fields.ignore("hidden_act", "cache_implementation")
  family = gemma3 if is_gemma3 else gemma2
  design = dataclasses.replace(
    family.DESIGN,
    norm_epsilon=fields.take("rms_norm_eps", 1e-6),
    activation=fields.choose("hidden_activation", decoders.GATED_ACTIVATIONS, "gelu_pytorch_tanh"),
    biases=("qkv", "out") if fields.take("attention_bias", False) else (),
    position=position,
    attention_scale=fields.take("query_pre_attn_scalar", 256) ** -0.5,
    softcap=decoders.take_nullable(fields, "attn_logit_softcapping", softcap),
    windows=decoders.arrange_windows(is_local, window),
    tied=fields.take("tie_word_embeddings", True),
    logits_softcap=decoders.take_nullable(fields, "final_logit_softcapping", logits_softcap),
  )
  variant = llama.read_variant(fields, design, kv_heads=4, head_dim=256)
  tokens = decoders.read_special_tokens(fields, pad=0, start=2, eos=1)
  return family.Model, {"variant": dataclasses.replace(variant, tokens=tokens)}


def _read_text_config(fields: Fields, tensor_names: set[str]):
  """Read the text model of a Gemma 3 that also sees images."""
  fields.ignore(
    "vision_config",
    "mm_tokens_per_image",
    "boi_token_index",
    "eoi_token_index",
    "image_token_index",
    "pad_token_id",
    "eos_token_id",
  )
  # the library ignores this field in `text_config`
  tied = {"tie_word_embeddings": fields.take("tie_word_embeddings", True)}
  values = _TEXT_DEFAULTS | fields.take("text_config") | tied
  text = Fields(values, f"{fields.origin}, text_config")
  # the library does not apply this one beside the parts for images
  text.require("final_logit_softcapping", None)
  architecture = read_config(text, tensor_names)
  text.refuse_unused()
  return architecture


def write_config(model, model_type: str | None) -> dict:
  design = model.variant.design
  dims = model.variant.dims
  is_gemma3 = bool(design.qk_norm)
  decoders.require_plain_decoder(
    model,
    square=False,
    heads=False,
    mlp=False,
    norm="rmsnorm_plus_one",
    norm_position="sandwich",
    tied=[True, False],
    qk_norm=[True, False],
    biases=[(), ("qkv", "out")],
    activation=list(decoders.GATED_ACTIVATIONS.values()),
    attention_scale=[design.attention_scale],
    softcap=[None if is_gemma3 else design.softcap],
    embed_scale=True,
    logits_softcap=[design.logits_softcap],
    **decoders.allow_one_window(design),
  )
  scale = dims.head_dim**-0.5 if design.attention_scale is None else design.attention_scale
  scalar = round(scale**-2)
  if abs(scalar**-0.5 - scale) > 1e-6 * scale:
    raise UserError(f"design.attention_scale is {scale!r}; this type supports only 1/sqrt(integer)")
  rope = decoders.write_rope_by_kind(model) if is_gemma3 else None
  sizes = llama.write_sizes(model, rope)
  activation = sizes.pop("hidden_act")
  local_rope_fields = {}
  if is_gemma3:
    local_rope = sizes["rope_parameters"].get(decoders.LOCAL, sizes)
    local_rope_fields["rope_local_base_freq"] = local_rope["rope_theta"]
  return {
    "architectures": ["Gemma3ForCausalLM" if is_gemma3 else "Gemma2ForCausalLM"],
    "model_type": "gemma3_text" if is_gemma3 else "gemma2",
    **sizes,
    **local_rope_fields,
    "hidden_activation": activation,
    "attention_bias": "qkv" in design.biases,
    "query_pre_attn_scalar": scalar,
    "attn_logit_softcapping": design.softcap,
    "final_logit_softcapping": design.logits_softcap,
    "sliding_window": decoders.window_width(design, 4096),
    "layer_types": decoders.write_layer_types(design.windows, dims.layers),
  }


def canonical_name(name: str) -> str:
  """Return the name of a tensor in a model of text alone; "" for the parts that see images."""
  text = re.sub(r"^(language_model\.model|model\.language_model)\.", "model.", name)
  return "" if _IMAGE_PARTS.match(name) else text.removeprefix("language_model.")


def map_tensors(mapping: TensorMapping) -> None:
  llama.map_decoder(mapping, _map_feed_forward)


def _map_feed_forward(
  mapping: TensorMapping, hf_layer: str, path_template: str, index: int
) -> None:
  attention = path_template.format("self_attention")
  mlp = path_template.format("mlp")
  mapping.norm(f"{hf_layer}.post_attention_layernorm", f"{attention}/res_norm", index)
  mapping.norm(f"{hf_layer}.pre_feedforward_layernorm", f"{mlp}/in_norm", index)
  mapping.norm(f"{hf_layer}.post_feedforward_layernorm", f"{mlp}/res_norm", index)
  llama.map_gated_mlp(mapping, f"{hf_layer}.mlp", f"{mlp}/layer", index)

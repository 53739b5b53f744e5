"""Gemma 2, and the text model of Gemma 3, by itself or beside the parts that see images, which are
left out."""

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
# of gemma3, where it has none
_TEXT = dict(model_type="gemma3_text", num_attention_heads=8, vocab_size=262_208)
_SEEING = re.compile(r"(model\.)?(vision_tower|multi_modal_projector)\.")


def read_config(fields: Fields, tensor_names: set[str]):
  if fields.values["model_type"] == "gemma3":
    fields.ignore(
      "vision_config",
      "mm_tokens_per_image",
      "boi_token_index",
      "eoi_token_index",
      "image_token_index",
    )
    fields.ignore("pad_token_id", "eos_token_id")
    # the text's own is not the library's
    tied = {"tie_word_embeddings": fields.take("tie_word_embeddings", True)}
    text = Fields(_TEXT | fields.take("text_config") | tied, f"{fields.origin}, text_config")
    # nor does the library apply this one beside the parts that see
    text.require("final_logit_softcapping", None)
    made = read_config(text, tensor_names)
    text.refuse_unused()
    return made
  third = fields.values["model_type"] == "gemma3_text"
  if third:
    fields.require(
      "attn_logit_softcapping", None
    )  # the library has the field, and never applies it
    every = fields.take("sliding_window_pattern", gemma3.GLOBAL_EVERY)
    # the library's own note; it writes `layer_types` with it
    fields.ignore("_sliding_window_pattern")
    local = decoders.read_local_layers(fields, lambda layer: (layer + 1) % every != 0)
    position = decoders.arrange_by_kind(
      local,
      *decoders.read_local_and_full_rope(
        fields, local=1e4, full=1e6, local_name="rope_local_base_freq"
      ),
    )
  else:
    local = decoders.read_local_layers(fields, lambda layer: layer % 2 == 0)
    position = decoders.read_rope(fields)
  window = decoders.take_nullable(fields, "sliding_window", 4096)
  fields.require("use_bidirectional_attention", None, False)
  fields.ignore("hidden_act", "cache_implementation")
  design = dataclasses.replace(
    gemma3.DESIGN if third else gemma2.DESIGN,
    norm_epsilon=fields.take("rms_norm_eps", 1e-6),
    activation=fields.choose("hidden_activation", decoders.GATED_ACTIVATIONS, "gelu_pytorch_tanh"),
    biases=("qkv", "out") if fields.take("attention_bias", False) else (),
    position=position,
    attention_scale=fields.take("query_pre_attn_scalar", 256) ** -0.5,
    softcap=decoders.take_nullable(fields, "attn_logit_softcapping", None if third else 50.0),
    windows=tuple(window if here else None for here in local),
    tied=fields.take("tie_word_embeddings", True),
    logits_softcap=decoders.take_nullable(
      fields, "final_logit_softcapping", None if third else 30.0
    ),
  )
  variant = llama.read_variant(fields, design, kv_heads=4, head_dim=256)
  tokens = decoders.read_special_tokens(fields, pad=0, start=2, eos=1)
  return (gemma3 if third else gemma2).Model, {
    "variant": dataclasses.replace(variant, tokens=tokens)
  }


def write_config(model, model_type: str | None) -> dict:
  design = model.variant.design
  dims = model.variant.dims
  third = bool(design.qk_norm)
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
    softcap=[None if third else design.softcap],
    embed_scale=True,
    logits_softcap=[design.logits_softcap],
    **decoders.allow_one_window(design),
  )
  scale = dims.head_dim**-0.5 if design.attention_scale is None else design.attention_scale
  scalar = round(scale**-2)
  if abs(scalar**-0.5 - scale) > 1e-6 * scale:
    raise UserError(f"design.attention_scale is {scale!r}; this type supports only 1/sqrt(integer)")
  sizes = llama.write_sizes(model, decoders.write_rope_by_kind(model) if third else None)
  activation = sizes.pop("hidden_act")
  local = (
    {
      "rope_local_base_freq": sizes["rope_parameters"].get(decoders.LAYER_TYPES[0], sizes)[
        "rope_theta"
      ]
    }
    if third
    else {}
  )
  return {
    "architectures": ["Gemma3ForCausalLM" if third else "Gemma2ForCausalLM"],
    "model_type": "gemma3_text" if third else "gemma2",
    **sizes,
    **local,
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
  return "" if _SEEING.match(name) else text.removeprefix("language_model.")


def map_tensors(mapping: TensorMapping) -> None:
  llama.map_decoder(mapping, _feed_forward)


def _feed_forward(mapping: TensorMapping, hf_name: str, path: str, index: int) -> None:
  mapping.norm(
    f"{hf_name}.post_attention_layernorm", f"{path.format('self_attention')}/res_norm", index
  )
  path = path.format("mlp")
  mapping.norm(f"{hf_name}.pre_feedforward_layernorm", f"{path}/in_norm", index)
  mapping.norm(f"{hf_name}.post_feedforward_layernorm", f"{path}/res_norm", index)
  llama.map_gated_mlp(mapping, f"{hf_name}.mlp", f"{path}/layer", index)

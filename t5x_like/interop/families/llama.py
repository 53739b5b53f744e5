"""Llama and Mistral."""

import dataclasses
from collections.abc import Callable

from t5x_like.architectures.design import Tokens, Variant
from t5x_like.errors import UserError
from t5x_like.interop import decoders
from t5x_like.interop.config_fields import Fields, find_key
from t5x_like.interop.tensor_mapping import TensorMapping, locate_layers
from t5x_like.models import llama
from t5x_like.nn.dims import Dims

MODEL_TYPES = ("llama", "mistral")
MODELS = (llama.Model,)
BODY_PREFIX = "model."
ATTENTION_NAMES = ("q_proj", "k_proj", "v_proj", "o_proj")
GATED_MLP_NAMES = {"gate_proj": "gate", "up_proj": "wi", "down_proj": "wo"}
DEFAULT_EPSILON = 1e-6


def read_config(fields: Fields, tensor_names: set[str]):
  biases = ()
  windows = (None,)
  if fields.values["model_type"] == "mistral":
    windows = (decoders.take_nullable(fields, "sliding_window", 4096),)
  else:
    if fields.take("attention_bias", False):
      biases += ("qkv", "out")
    if fields.take("mlp_bias", False):
      biases += ("mlp",)
  design = dataclasses.replace(
    llama.LLAMA2,
    norm_epsilon=fields.take("rms_norm_eps", DEFAULT_EPSILON),
    activation=fields.choose("hidden_act", decoders.GATED_ACTIVATIONS, "silu"),
    biases=biases,
    position=decoders.read_rope(fields),
    windows=windows,
    tied=fields.take("tie_word_embeddings", False),
  )
  kv_heads = None if fields.values["model_type"] == "llama" else 8
  return llama.Model, {"variant": read_variant(fields, design, kv_heads=kv_heads)}


def read_variant(
  fields: Fields,
  design,
  *,
  kv_heads: int | None,
  head_dim: int | None = None,
  mlp: str = "intermediate_size",
  ids: Tokens = llama.TOKENS,
) -> Variant:
  """Return the variant of a config.

  Args:
    kv_heads, head_dim: defaults; None for as many as query heads, and for heads that together are
      as wide as the model.
    mlp: the name of the feed-forward width.
    ids: default special ids; padding is always as the config has it.
  """
  fields.ignore("max_position_embeddings", "attention_dropout")
  D = fields.take("hidden_size")
  heads = fields.take("num_attention_heads")
  dims = Dims(
    D,
    heads,
    decoders.take_nullable(fields, "num_key_value_heads", kv_heads) or heads,
    fields.take("head_dim", head_dim or D // heads),
    fields.take(mlp),
    fields.take("num_hidden_layers"),
  )
  return Variant(
    dims,
    design,
    fields.take("vocab_size"),
    decoders.read_special_tokens(fields, start=ids.start, eos=ids.eos),
  )


def write_config(model, model_type: str | None) -> dict:
  design = model.variant.design
  biases = set(design.biases)
  window = design.windows[0]
  is_mistral = window is not None or (model_type == "mistral" and not biases)
  if is_mistral:
    allowed_biases = [()]
  elif ("qkv" in biases) == ("out" in biases):
    allowed_biases = [tuple(part for part in ("qkv", "out", "mlp") if part in biases)]
  else:
    allowed_biases = [(), ("qkv", "out"), ("mlp",), ("qkv", "out", "mlp")]
  decoders.require_plain_decoder(
    model,
    square=False,
    heads=False,
    mlp=False,
    norm="rmsnorm",
    tied=[True, False],
    biases=allowed_biases,
    activation=list(decoders.GATED_ACTIVATIONS.values()),
    windows=(window,),
  )
  if is_mistral:
    return {
      "architectures": ["MistralForCausalLM"],
      "model_type": "mistral",
      "sliding_window": window,
      **write_sizes(model),
    }
  return {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": "qkv" in biases,
    "mlp_bias": "mlp" in biases,
    **write_sizes(model),
  }


def write_sizes(model, rope: dict | None = None, activation: str | None = None) -> dict:
  """Return the fields that Llama and its relatives share.

  Args:
    rope: `rope_parameters` if layers differ in them.
    activation: `hidden_act` of a type whose activation is always the same.
  """
  variant = model.variant
  design = model.variant.design
  dims = model.variant.dims
  if dims.embed % dims.heads:
    raise UserError(
      f"embedding width {dims.embed} is not a multiple of {dims.heads} heads, as this type needs"
    )
  if rope is None:
    position = decoders.require_position(model, "rope", "theta", *decoders.ROPE_SCALINGS)
    rope = decoders.write_rope(position)
  return {
    "vocab_size": variant.vocab_size,
    "hidden_size": dims.embed,
    "intermediate_size": dims.mlp,
    "num_hidden_layers": dims.layers,
    "num_attention_heads": dims.heads,
    "num_key_value_heads": dims.kv_heads,
    "head_dim": dims.head_dim,
    "hidden_act": activation or find_key(decoders.GATED_ACTIVATIONS, design.activation),
    "rms_norm_eps": design.norm_epsilon,
    **decoders.add_older_rope_fields(rope),
    "tie_word_embeddings": design.tied,
    **decoders.special_token_fields(variant.tokens),
  }


def map_tensors(mapping: TensorMapping) -> None:
  map_decoder(mapping, map_mlp)


def map_decoder(mapping: TensorMapping, map_feed_forward: Callable) -> None:
  """Map all but the feed-forward layers.

  Args:
    map_feed_forward: maps one, called as `map_feed_forward(mapping, hf_layer, path_template,
      index)`; the template has {} in place of the sublayer's name.
  """
  map_table(mapping)
  mapping.norm("model.norm", "decoder/final_norm")
  design = mapping.model.variant.design
  layers = mapping.model.variant.dims.layers
  for layer, (suffix, index) in enumerate(locate_layers(mapping.model.decoder, layers)):
    hf_layer = f"model.layers.{layer}"
    attention = f"decoder/blocks/self_attention{suffix}"
    mapping.attention(f"{hf_layer}.self_attn", f"{attention}/layer", index, names=ATTENTION_NAMES)
    if design.qk_norm:
      inner = "/norm" if design.qk_norm == "all_heads" else ""
      mapping.norm(f"{hf_layer}.self_attn.q_norm", f"{attention}/layer/q_norm{inner}", index)
      mapping.norm(f"{hf_layer}.self_attn.k_norm", f"{attention}/layer/k_norm{inner}", index)
    if f"{attention}/in_norm/scale" in mapping.parameter_names:
      mapping.norm(f"{hf_layer}.input_layernorm", f"{attention}/in_norm", index)
    map_feed_forward(mapping, hf_layer, f"decoder/blocks/{{}}{suffix}", index)


def map_table(mapping: TensorMapping) -> None:
  """Map the token table and the output projection."""
  mapping.copy("model.embed_tokens.weight", "embed/table")
  mapping.output("model.embed_tokens.weight")
  mapping.ignored_suffixes = ("rotary_emb.inv_freq",)


def map_mlp(mapping: TensorMapping, hf_layer: str, path_template: str, index: int) -> None:
  """Map the feed-forward layer with its norm; see `map_decoder`."""
  mlp = path_template.format("mlp")
  mapping.norm(f"{hf_layer}.post_attention_layernorm", f"{mlp}/in_norm", index)
  map_gated_mlp(mapping, f"{hf_layer}.mlp", f"{mlp}/layer", index)


def map_gated_mlp(mapping: TensorMapping, hf_name: str, path: str, index: int) -> None:
  """Map the three linear layers of a gated feed-forward layer."""
  for hf_part, part in GATED_MLP_NAMES.items():
    mapping.linear(f"{hf_name}.{hf_part}", f"{path}/{part}", index)


def map_experts(
  mapping: TensorMapping,
  hf_name: str,
  path: str,
  index: int,
  names: dict[str, str] = GATED_MLP_NAMES,
) -> None:
  """Map experts with tensors of their own.

  Args:
    names: the library's name of each linear layer -> our name.
  """
  for expert in range(mapping.model.variant.design.experts.experts):
    for hf_part, part in names.items():
      mapping.transpose(f"{hf_name}.{expert}.{hf_part}.weight", f"{path}/{part}", index, expert)

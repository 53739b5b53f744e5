"""Llama and Mistral."""

import dataclasses
from collections.abc import Callable

from t5x_like.architectures.design import Tokens, Variant
from t5x_like.errors import UserError
from t5x_like.interop import decoders
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.tensor_mapping import TensorMapping, locate_layers
from t5x_like.models import llama
from t5x_like.nn.dims import Dims

MODEL_TYPES = ("llama", "mistral")
MODELS = (llama.Model,)
BODY_PREFIX = "model."
NAMES = ("q_proj", "k_proj", "v_proj", "o_proj")
GATED = {"gate_proj": "gate", "up_proj": "wi", "down_proj": "wo"}
EPSILON = 1e-6  # if the config has none


def build(fields: Fields, names: set[str]):
  biases = ()
  windows = (None,)
  if fields.values["model_type"] == "mistral":
    windows = (decoders.optional(fields, "sliding_window", 4096),)
  else:
    biases = ("qkv", "out") if fields.take("attention_bias", False) else ()
    biases += ("mlp",) if fields.take("mlp_bias", False) else ()
  design = dataclasses.replace(
    llama.LLAMA2,
    norm_epsilon=fields.take("rms_norm_eps", EPSILON),
    activation=fields.choose("hidden_act", decoders.GATED, "silu"),
    biases=biases,
    position=decoders.rope(fields),
    windows=windows,
    tied=fields.take("tie_word_embeddings", False),
  )
  kv_heads = None if fields.values["model_type"] == "llama" else 8
  return llama.Model, {"variant": variant_of(fields, design, kv_heads=kv_heads)}


def variant_of(
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
    (decoders.optional(fields, "num_key_value_heads", kv_heads) or heads),
    fields.take("head_dim", head_dim or D // heads),
    fields.take(mlp),
    fields.take("num_hidden_layers"),
  )
  return Variant(
    dims,
    design,
    fields.take("vocab_size"),
    decoders.special_ids(fields, start=ids.start, eos=ids.eos),
  )


def config(model, model_type: str | None) -> dict:
  design = model.variant.design
  biases = set(design.biases)
  window = design.windows[0]
  mistral = window is not None or (model_type == "mistral" and not biases)
  both = [() if mistral else tuple(b for b in ("qkv", "out", "mlp") if b in biases)]
  if not mistral and ("qkv" in biases) != ("out" in biases):
    both = [(), ("qkv", "out"), ("mlp",), ("qkv", "out", "mlp")]
  decoders.refuse_others(
    model,
    square=False,
    heads=False,
    mlp=False,
    norm="rmsnorm",
    tied=[True, False],
    biases=both,
    activation=list(decoders.GATED.values()),
    windows=(window,),
  )
  kind = (
    {"sliding_window": window}
    if mistral
    else {"attention_bias": "qkv" in biases, "mlp_bias": "mlp" in biases}
  )
  class_name, model_type = (
    ("MistralForCausalLM", "mistral") if mistral else ("LlamaForCausalLM", "llama")
  )
  return {"architectures": [class_name], "model_type": model_type, **kind, **sizes_config(model)}


def sizes_config(model, rope: dict | None = None, activation: str | None = None) -> dict:
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
  rope = rope or decoders.rope_config(
    decoders.position_of(model, "rope", "theta", *decoders.SCALINGS)
  )
  return {
    "vocab_size": variant.vocab_size,
    "hidden_size": dims.embed,
    "intermediate_size": dims.mlp,
    "num_hidden_layers": dims.layers,
    "num_attention_heads": dims.heads,
    "num_key_value_heads": dims.kv_heads,
    "head_dim": dims.head_dim,
    "hidden_act": activation or decoders.name_of(decoders.GATED, design.activation),
    "rms_norm_eps": design.norm_epsilon,
    **decoders.rope_fields(rope),
    "tie_word_embeddings": design.tied,
    **decoders.ids_config(variant.tokens),
  }


def tensors(m: TensorMapping) -> None:
  map_decoder(m, mlp)


def map_decoder(m: TensorMapping, feed_forward: Callable) -> None:
  """Map all but the feed-forward layers, which `feed_forward(mapping, their prefix, our prefix,
  block)` maps."""
  map_table(m)
  m.norm("model.norm", "decoder/final_norm")
  for layer, (suffix, at) in enumerate(locate_layers(m.model.decoder, m.model.variant.dims.layers)):
    theirs = f"model.layers.{layer}"
    attention = f"decoder/blocks/self_attention{suffix}"
    m.attention(f"{theirs}.self_attn", f"{attention}/layer", at, names=NAMES)
    for name in ("q_norm", "k_norm") if m.model.variant.design.qk_norm else ():
      inner = "/norm" if m.model.variant.design.qk_norm == "all_heads" else ""
      m.norm(f"{theirs}.self_attn.{name}", f"{attention}/layer/{name}{inner}", at)
    if f"{attention}/in_norm/scale" in m.names:
      m.norm(f"{theirs}.input_layernorm", f"{attention}/in_norm", at)
    feed_forward(m, theirs, f"decoder/blocks/{{}}{suffix}", at)


def map_table(m: TensorMapping) -> None:
  """Map the token table and the output projection."""
  m.copy("model.embed_tokens.weight", "embed/table")
  m.output("model.embed_tokens.weight")
  m.ignored = ("rotary_emb.inv_freq",)


def mlp(m: TensorMapping, theirs: str, ours: str, at: int) -> None:
  ours = ours.format("mlp")
  m.norm(f"{theirs}.post_attention_layernorm", f"{ours}/in_norm", at)
  gated(m, f"{theirs}.mlp", f"{ours}/layer", at)


def gated(m: TensorMapping, theirs: str, ours: str, at: int) -> None:
  for their_name, name in GATED.items():
    m.linear(f"{theirs}.{their_name}", f"{ours}/{name}", at)


def experts(
  m: TensorMapping, theirs: str, ours: str, at: int, names: dict[str, str] = GATED
) -> None:
  """Map experts with tensors of their own."""
  for expert in range(m.model.variant.design.experts.experts):
    for their_name, name in names.items():
      m.transposed(f"{theirs}.{expert}.{their_name}.weight", f"{ours}/{name}", at, expert)

"""GPT-NeoX and Pythia."""

import dataclasses

from t5x_like.architectures.design import Variant
from t5x_like.interop import decoders, fused_tensors
from t5x_like.interop.config_fields import Fields, find_key
from t5x_like.interop.tensor_mapping import TensorMapping, locate_layers
from t5x_like.models import neox
from t5x_like.nn.dims import Dims

MODEL_TYPES = ("gpt_neox",)
MODELS = (neox.Model,)
BODY_PREFIX = "gpt_neox."


def read_config(fields: Fields, tensor_names: set[str]):
  fields.ignore(
    "max_position_embeddings",
    "attention_dropout",
    "hidden_dropout",
    "attention_probs_dropout_prob",
    "hidden_dropout_prob",
  )
  design = dataclasses.replace(
    neox.DESIGN,
    norm_epsilon=fields.take("layer_norm_eps", 1e-5),
    parallel="two_norms" if fields.take("use_parallel_residual", True) else "no",
    activation=fields.choose("hidden_act", decoders.PLAIN_ACTIVATIONS, "gelu"),
    biases=("qkv", "out", "mlp") if fields.take("attention_bias", True) else ("mlp",),
    position=decoders.read_rope(fields, fraction=0.25, names=("rotary_emb_base", "rotary_pct")),
    tied=fields.take("tie_word_embeddings", False),
  )
  D = fields.take("hidden_size")
  heads = fields.take("num_attention_heads")
  dims = Dims(
    D, heads, heads, D // heads, fields.take("intermediate_size"), fields.take("num_hidden_layers")
  )
  tokens = decoders.read_special_tokens(fields, start=0, eos=2)
  return neox.Model, {"variant": Variant(dims, design, fields.take("vocab_size"), tokens)}


def write_config(model, model_type: str | None) -> dict:
  variant = model.variant
  design = model.variant.design
  dims = model.variant.dims
  decoders.require_plain_decoder(
    model,
    mlp=False,
    norm="layernorm",
    parallel=["no", "two_norms"],
    tied=[True, False],
    biases=[("qkv", "out", "mlp"), ("mlp",)],
    activation=list(decoders.PLAIN_ACTIVATIONS.values()),
  )
  position = decoders.require_position(model, "rope", "theta", "fraction", *decoders.ROPE_SCALINGS)
  fraction = position.get("fraction", 1.0)
  rope = decoders.add_older_rope_fields(
    decoders.write_rope(position, partial_rotary_factor=fraction)
  )
  return {
    "architectures": ["GPTNeoXForCausalLM"],
    "model_type": "gpt_neox",
    "vocab_size": variant.vocab_size,
    "hidden_size": dims.embed,
    "num_hidden_layers": dims.layers,
    "num_attention_heads": dims.heads,
    "intermediate_size": dims.mlp,
    "hidden_act": find_key(decoders.PLAIN_ACTIVATIONS, design.activation),
    "layer_norm_eps": design.norm_epsilon,
    "use_parallel_residual": design.parallel != "no",
    "attention_bias": "qkv" in design.biases,
    "rotary_emb_base": rope.pop("rope_theta"),
    "rotary_pct": fraction,
    **rope,
    "tie_word_embeddings": design.tied,
    **decoders.special_token_fields(variant.tokens),
  }


def map_tensors(mapping: TensorMapping) -> None:
  dims = mapping.model.variant.dims
  design = mapping.model.variant.design
  mapping.copy("gpt_neox.embed_in.weight", "embed/table")
  mapping.norm("gpt_neox.final_layer_norm", "decoder/final_norm")
  if design.tied:
    mapping.tied["embed_out.weight"] = "gpt_neox.embed_in.weight"
  else:
    mapping.transpose("embed_out.weight", "head/kernel")
  mapping.ignored_suffixes = ("attention.bias", "attention.masked_bias", "rotary_emb.inv_freq")
  is_serial = design.parallel == "no"
  blocks = "decoder/blocks" if is_serial else "decoder/blocks/parallel/layer"
  norm = "in_norm" if is_serial else "norm"
  for layer, (_, index) in enumerate(locate_layers(mapping.model.decoder, dims.layers)):
    hf_layer = f"gpt_neox.layers.{layer}"
    attention = f"{blocks}/self_attention"
    mlp = f"{blocks}/mlp"
    mapping.norm(f"{hf_layer}.input_layernorm", f"{attention}/{norm}", index)
    mapping.norm(f"{hf_layer}.post_attention_layernorm", f"{mlp}/{norm}", index)
    fused_tensors.map_grouped_qkv(
      mapping,
      f"{hf_layer}.attention.query_key_value",
      f"{attention}/layer",
      index,
      heads=dims.heads,
      kv_heads=dims.heads,
    )
    mapping.linear(f"{hf_layer}.attention.dense", f"{attention}/layer/out", index)
    mapping.linear(f"{hf_layer}.mlp.dense_h_to_4h", f"{mlp}/layer/wi", index)
    mapping.linear(f"{hf_layer}.mlp.dense_4h_to_h", f"{mlp}/layer/wo", index)

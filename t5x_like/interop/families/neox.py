"""GPT-NeoX and Pythia."""

import dataclasses

from t5x_like.architectures.design import Variant
from t5x_like.interop import decoders, fused_tensors
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.tensor_mapping import TensorMapping, locate_layers
from t5x_like.models import neox
from t5x_like.nn.dims import Dims

MODEL_TYPES = ("gpt_neox",)
MODELS = (neox.Model,)
BODY_PREFIX = "gpt_neox."


def build(fields: Fields, names: set[str]):
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
    activation=fields.choose("hidden_act", decoders.PLAIN, "gelu"),
    biases=("qkv", "out", "mlp") if fields.take("attention_bias", True) else ("mlp",),
    position=decoders.rope(fields, fraction=0.25, names=("rotary_emb_base", "rotary_pct")),
    tied=fields.take("tie_word_embeddings", False),
  )
  D = fields.take("hidden_size")
  heads = fields.take("num_attention_heads")
  dims = Dims(
    D, heads, heads, D // heads, fields.take("intermediate_size"), fields.take("num_hidden_layers")
  )
  tokens = decoders.special_ids(fields, start=0, eos=2)
  return neox.Model, {"variant": Variant(dims, design, fields.take("vocab_size"), tokens)}


def config(model, model_type: str | None) -> dict:
  variant = model.variant
  design = model.variant.design
  dims = model.variant.dims
  decoders.refuse_others(
    model,
    mlp=False,
    norm="layernorm",
    parallel=["no", "two_norms"],
    tied=[True, False],
    biases=[("qkv", "out", "mlp"), ("mlp",)],
    activation=list(decoders.PLAIN.values()),
  )
  position = decoders.position_of(model, "rope", "theta", "fraction", *decoders.SCALINGS)
  fraction = position.get("fraction", 1.0)
  rope = decoders.rope_fields(decoders.rope_config(position, partial_rotary_factor=fraction))
  return {
    "architectures": ["GPTNeoXForCausalLM"],
    "model_type": "gpt_neox",
    "vocab_size": variant.vocab_size,
    "hidden_size": dims.embed,
    "num_hidden_layers": dims.layers,
    "num_attention_heads": dims.heads,
    "intermediate_size": dims.mlp,
    "hidden_act": decoders.name_of(decoders.PLAIN, design.activation),
    "layer_norm_eps": design.norm_epsilon,
    "use_parallel_residual": design.parallel != "no",
    "attention_bias": "qkv" in design.biases,
    "rotary_emb_base": rope.pop("rope_theta"),
    "rotary_pct": fraction,
    **rope,
    "tie_word_embeddings": design.tied,
    **decoders.ids_config(variant.tokens),
  }


def tensors(m: TensorMapping) -> None:
  dims = m.model.variant.dims
  design = m.model.variant.design
  m.copy("gpt_neox.embed_in.weight", "embed/table")
  m.norm("gpt_neox.final_layer_norm", "decoder/final_norm")
  if design.tied:
    m.copies["embed_out.weight"] = "gpt_neox.embed_in.weight"
  else:
    m.transposed("embed_out.weight", "head/kernel")
  m.ignored = ("attention.bias", "attention.masked_bias", "rotary_emb.inv_freq")
  blocks, norm = (
    ("decoder/blocks", "in_norm")
    if design.parallel == "no"
    else ("decoder/blocks/parallel/layer", "norm")
  )
  for layer, (_, at) in enumerate(locate_layers(m.model.decoder, dims.layers)):
    theirs = f"gpt_neox.layers.{layer}"
    attention = f"{blocks}/self_attention"
    mlp = f"{blocks}/mlp"
    m.norm(f"{theirs}.input_layernorm", f"{attention}/{norm}", at)
    m.norm(f"{theirs}.post_attention_layernorm", f"{mlp}/{norm}", at)
    fused_tensors.map_grouped_qkv(
      m,
      f"{theirs}.attention.query_key_value",
      f"{attention}/layer",
      at,
      heads=dims.heads,
      kv_heads=dims.heads,
    )
    m.linear(f"{theirs}.attention.dense", f"{attention}/layer/out", at)
    m.linear(f"{theirs}.mlp.dense_h_to_4h", f"{mlp}/layer/wi", at)
    m.linear(f"{theirs}.mlp.dense_4h_to_h", f"{mlp}/layer/wo", at)

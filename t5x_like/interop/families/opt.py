"""OPT."""

import dataclasses

from t5x_like.architectures.design import Variant
from t5x_like.interop import decoders
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.tensor_mapping import TensorMapping, locate_layers
from t5x_like.models import opt
from t5x_like.nn.dims import Dims

MODEL_TYPES = ("opt",)
MODELS = (opt.Model,)
NAMES = ("q_proj", "k_proj", "v_proj", "out_proj")


def build(fields: Fields, names: set[str]):
  fields.only("enable_bias", True)
  fields.only("layer_norm_elementwise_affine", True)
  fields.only("_remove_final_layer_norm", False)
  fields.only("tie_word_embeddings", True)
  fields.ignore("dropout", "attention_dropout", "activation_dropout", "layerdrop")
  D = fields.take("hidden_size", 768)
  heads = fields.take("num_attention_heads", 12)
  design = dataclasses.replace(
    opt.DESIGN,
    norm_position="pre" if fields.take("do_layer_norm_before", True) else "post",
    activation=fields.choose("activation_function", decoders.PLAIN, "relu"),
    position={
      "name": "learned",
      "length": fields.take("max_position_embeddings", 2048),
      "offset": 2,
    },
  )
  dims = Dims(
    D, heads, heads, D // heads, fields.take("ffn_dim", 3072), fields.take("num_hidden_layers", 12)
  )
  table = fields.take("word_embed_proj_dim", D)
  tokens = decoders.special_ids(fields, pad=1, start=2, eos=2)
  variant = Variant(
    dims, design, fields.take("vocab_size", 50272), tokens, embed=None if table == D else table
  )
  return opt.Model, {"variant": variant}


def config(model, model_type: str | None) -> dict:
  variant = model.variant
  design = model.variant.design
  dims = model.variant.dims
  decoders.refuse_others(
    model,
    mlp=False,
    norm="layernorm",
    norm_epsilon=1e-5,
    norm_position=["pre", "post"],
    biases=("qkv", "out", "mlp"),
    activation=list(decoders.PLAIN.values()),
  )
  position = decoders.position_of(model, "learned", "length", "offset")
  if position.get("offset", 0) != 2:
    decoders.require_design(model, position=[{**position, "offset": 2}])
  return {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "vocab_size": variant.vocab_size,
    "hidden_size": dims.embed,
    "word_embed_proj_dim": variant.embed or dims.embed,
    "ffn_dim": dims.mlp,
    "num_hidden_layers": dims.layers,
    "num_attention_heads": dims.heads,
    "max_position_embeddings": position.get("length", 512),
    "do_layer_norm_before": design.norm_position == "pre",
    "activation_function": decoders.name_of(decoders.PLAIN, design.activation),
    **decoders.ids_config(variant.tokens),
  }


def renamed(name: str) -> str:
  """Add the prefix that older files lack."""
  return f"model.{name}" if name.startswith("decoder.") else name


def tensors(m: TensorMapping) -> None:
  variant = m.model.variant
  inputs = "inputs/inner" if variant.embed else "inputs"
  m.copy("model.decoder.embed_tokens.weight", "embed/table")
  m.copy("model.decoder.embed_positions.weight", f"{inputs}/position/table")
  m.copies["lm_head.weight"] = "model.decoder.embed_tokens.weight"
  if variant.embed:
    m.linear("model.decoder.project_in", "inputs/project")
    m.linear("model.decoder.project_out", "head/project")
  pre = variant.design.norm_position == "pre"
  if pre:
    m.norm("model.decoder.final_layer_norm", "decoder/final_norm")
  norm = "in_norm" if pre else "out_norm"
  for layer, (_, at) in enumerate(locate_layers(m.model.decoder, variant.dims.layers)):
    theirs = f"model.decoder.layers.{layer}"
    attention = "decoder/blocks/self_attention"
    mlp = "decoder/blocks/mlp"
    m.norm(f"{theirs}.self_attn_layer_norm", f"{attention}/{norm}", at)
    m.norm(f"{theirs}.final_layer_norm", f"{mlp}/{norm}", at)
    m.attention(f"{theirs}.self_attn", f"{attention}/layer", at, names=NAMES)
    m.linear(f"{theirs}.fc1", f"{mlp}/layer/wi", at)
    m.linear(f"{theirs}.fc2", f"{mlp}/layer/wo", at)

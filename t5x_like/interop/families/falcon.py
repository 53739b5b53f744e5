"""Falcon."""

import dataclasses

from t5x_like.architectures.design import Variant
from t5x_like.errors import UserError
from t5x_like.interop import decoders, fused_tensors
from t5x_like.interop.config_fields import Fields, find_key
from t5x_like.interop.tensor_mapping import TensorMapping, locate_layers
from t5x_like.models import falcon
from t5x_like.nn.dims import Dims

MODEL_TYPES = ("falcon",)
MODELS = (falcon.Model,)
BODY_PREFIX = "transformer."
ALIBI = {"name": "alibi", "falcon": True}


def read_config(fields: Fields, tensor_names: set[str]):
  alibi = fields.take("alibi", False)
  if alibi:
    fields.ignore("rope_theta", "rope_scaling", "rope_parameters")
    position = ALIBI
  else:
    position = decoders.read_rope(fields)
  fields.ignore(
    "hidden_dropout",
    "attention_dropout",
    "max_position_embeddings",
    "apply_residual_connection_post_layernorm",
  )
  is_new = fields.take("new_decoder_architecture", False)
  multi_query = fields.take("multi_query", True)
  norms = fields.take("num_ln_in_parallel_attn", 2 if is_new else 1)
  is_parallel = fields.take("parallel_attn", True)
  if norms not in (1, 2) or (norms == 2 and not is_new) or (is_new and not is_parallel):
    expected = "1 or, with new_decoder_architecture and parallel_attn, 2"
    raise fields.refusal("num_ln_in_parallel_attn", norms, expected)
  parallel = "no"
  if norms == 2:
    parallel = "two_norms"
  elif is_parallel:
    parallel = "one_norm"
  design = dataclasses.replace(
    falcon.DESIGN,
    norm_epsilon=fields.take("layer_norm_epsilon", 1e-5),
    parallel=parallel,
    activation=fields.choose("activation", decoders.PLAIN_ACTIVATIONS, "gelu"),
    biases=("qkv", "out", "mlp") if fields.take("bias", False) else (),
    position=position,
    tied=fields.take("tie_word_embeddings", True),
  )
  D = fields.take("n_embed", fields.take("hidden_size", 4544))
  heads = fields.take("num_attention_heads", 71)
  kv_heads = fields.take("num_kv_heads", heads)
  if multi_query and not is_new:
    kv_heads = 1
  layers = fields.take("num_hidden_layers", 32)
  dims = Dims(D, heads, kv_heads, D // heads, fields.take("ffn_hidden_size", 4 * D), layers)
  tokens = decoders.read_special_tokens(fields, start=11, eos=11)
  return falcon.Model, {"variant": Variant(dims, design, fields.take("vocab_size", 65024), tokens)}


def write_config(model, model_type: str | None) -> dict:
  variant = model.variant
  design = model.variant.design
  dims = model.variant.dims
  decoders.require_plain_decoder(
    model,
    heads=False,
    mlp=False,
    norm="layernorm",
    parallel=["no", "one_norm", "two_norms"],
    biases=[(), ("qkv", "out", "mlp")],
    tied=[True, False],
    activation=list(decoders.PLAIN_ACTIVATIONS.values()),
  )
  alibi = design.position == ALIBI
  positions = {}
  if not alibi:
    position = decoders.require_position(model, "rope", "theta", *decoders.ROPE_SCALINGS)
    positions = decoders.add_older_rope_fields(decoders.write_rope(position))
  is_new = design.parallel == "two_norms" or dims.kv_heads not in (1, dims.heads)
  if is_new and design.parallel == "no":
    raise UserError(
      f"{dims.kv_heads} key/value heads for {dims.heads} heads need a design whose "
      "layers are parallel"
    )
  return {
    "architectures": ["FalconForCausalLM"],
    "model_type": "falcon",
    "vocab_size": variant.vocab_size,
    "hidden_size": dims.embed,
    "ffn_hidden_size": dims.mlp,
    "num_hidden_layers": dims.layers,
    "num_attention_heads": dims.heads,
    "num_kv_heads": dims.kv_heads,
    "new_decoder_architecture": is_new,
    "multi_query": dims.kv_heads == 1,
    "parallel_attn": design.parallel != "no",
    "num_ln_in_parallel_attn": 2 if design.parallel == "two_norms" else 1,
    "activation": find_key(decoders.PLAIN_ACTIVATIONS, design.activation),
    "layer_norm_epsilon": design.norm_epsilon,
    "alibi": alibi,
    "bias": bool(design.biases),
    **positions,
    "tie_word_embeddings": design.tied,
    **decoders.special_token_fields(variant.tokens),
  }


def map_tensors(mapping: TensorMapping) -> None:
  dims = mapping.model.variant.dims
  design = mapping.model.variant.design
  mapping.copy("transformer.word_embeddings.weight", "embed/table")
  mapping.norm("transformer.ln_f", "decoder/final_norm")
  mapping.ignored_suffixes = ("rotary_emb.inv_freq",)
  mapping.output("transformer.word_embeddings.weight")
  is_serial = design.parallel == "no"
  blocks = "decoder/blocks" if is_serial else "decoder/blocks/parallel/layer"
  inner = "" if design.parallel == "one_norm" else "/layer"
  attention = f"{blocks}/self_attention"
  mlp = f"{blocks}/mlp"
  for layer, (_, index) in enumerate(locate_layers(mapping.model.decoder, dims.layers)):
    hf_layer = f"transformer.h.{layer}"
    if is_serial:
      mapping.norm(f"{hf_layer}.input_layernorm", f"{attention}/in_norm", index)
      mapping.norm(f"{hf_layer}.post_attention_layernorm", f"{mlp}/in_norm", index)
    elif design.parallel == "two_norms":
      mapping.norm(f"{hf_layer}.ln_attn", f"{attention}/norm", index)
      mapping.norm(f"{hf_layer}.ln_mlp", f"{mlp}/norm", index)
    else:
      mapping.norm(f"{hf_layer}.input_layernorm", "decoder/blocks/parallel/in_norm", index)
    fused_tensors.map_grouped_qkv(
      mapping,
      f"{hf_layer}.self_attention.query_key_value",
      f"{attention}{inner}",
      index,
      heads=dims.heads,
      kv_heads=dims.kv_heads,
    )
    mapping.linear(f"{hf_layer}.self_attention.dense", f"{attention}{inner}/out", index)
    mapping.linear(f"{hf_layer}.mlp.dense_h_to_4h", f"{mlp}{inner}/wi", index)
    mapping.linear(f"{hf_layer}.mlp.dense_4h_to_h", f"{mlp}{inner}/wo", index)

"""Read and write MPT's config and map its tensors."""

import dataclasses

from t5x_like.architectures.design import Variant
from t5x_like.interop import decoders, fused_tensors
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.tensor_mapping import TensorMapping, locate_layers
from t5x_like.models import mpt
from t5x_like.nn.dims import Dims

MODEL_TYPES = ("mpt",)
MODELS = (mpt.Model,)
BODY_PREFIX = "transformer."


def read_config(fields: Fields, tensor_names: set[str]):
  attention = fields.section("attn_config")
  attention.require("alibi", True)
  attention.require("alibi_bias_max", 8)
  attention.require("attn_type", "multihead_attention")
  attention.require("attn_uses_sequence_id", False)
  attention.require("clip_qkv", None)
  attention.require("prefix_lm", False)
  attention.require("qk_ln", False)
  attention.ignore("attn_impl", "attn_pdrop")
  fields.require("expansion_ratio", 4)
  fields.require("logit_scale", None)
  fields.require("no_bias", True)
  # `transformers` never adds learned positions, whatever the config says.
  fields.ignore(
    "learned_pos_emb",
    "max_seq_len",
    "resid_pdrop",
    "emb_pdrop",
    "init_device",
    "init_config",
    "norm_type",
    "embedding_fraction",
    "verbose",
  )
  D = fields.take("d_model", 2048)
  heads = fields.take("n_heads", 16)
  layers = fields.take("n_layers", 24)
  design = dataclasses.replace(
    mpt.DESIGN,
    embed_init=(2 / D) ** 0.5,
    norm_epsilon=fields.take("layer_norm_epsilon", 1e-5),
    attention_scale=attention.take("softmax_scale", None),
    tied=fields.take("tie_word_embeddings", True),
  )
  attention.refuse_unused()
  dims = Dims(D, heads, heads, D // heads, 4 * D, layers)
  return mpt.Model, {
    "variant": Variant(
      dims, design, fields.take("vocab_size"), decoders.read_special_tokens(fields)
    )
  }


def write_config(model, model_type: str | None) -> dict:
  variant = model.variant
  design = variant.design
  dims = variant.dims
  decoders.require_plain_decoder(
    model,
    norm="layernorm_no_bias",
    activation="gelu",
    attention_scale=[design.attention_scale],
    tied=[True, False],
  )
  position = decoders.require_position(model, "alibi", "mpt")
  # MPT's slopes are those of the ALiBi paper only if the number of heads is a power of two.
  is_power_of_two = dims.heads & (dims.heads - 1) == 0
  if not is_power_of_two and not position.get("mpt"):
    decoders.require_design(model, position=[{"name": "alibi", "mpt": True}])
  return {
    "architectures": ["MptForCausalLM"],
    "model_type": "mpt",
    "vocab_size": variant.vocab_size,
    "d_model": dims.embed,
    "n_layers": dims.layers,
    "n_heads": dims.heads,
    "layer_norm_epsilon": design.norm_epsilon,
    "attn_config": {"alibi": True, "softmax_scale": design.attention_scale},
    "tie_word_embeddings": design.tied,
    **decoders.special_token_fields(variant.tokens),
  }


def map_tensors(mapping: TensorMapping) -> None:
  mapping.copy("transformer.wte.weight", "embed/table")
  mapping.norm("transformer.norm_f", "decoder/final_norm")
  mapping.output("transformer.wte.weight")
  for layer, (_, index) in enumerate(
    locate_layers(mapping.model.decoder, mapping.model.variant.dims.layers)
  ):
    hf_layer = f"transformer.blocks.{layer}"
    attention = "decoder/blocks/self_attention"
    mlp = "decoder/blocks/mlp"
    mapping.norm(f"{hf_layer}.norm_1", f"{attention}/in_norm", index)
    mapping.norm(f"{hf_layer}.norm_2", f"{mlp}/in_norm", index)
    fused_tensors.map_stacked(mapping, f"{hf_layer}.attn.Wqkv", f"{attention}/layer", index)
    mapping.linear(f"{hf_layer}.attn.out_proj", f"{attention}/layer/out", index)
    mapping.linear(f"{hf_layer}.ffn.up_proj", f"{mlp}/layer/wi", index)
    mapping.linear(f"{hf_layer}.ffn.down_proj", f"{mlp}/layer/wo", index)

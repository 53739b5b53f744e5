"""MPT."""

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


def build(fields: Fields, names: set[str]):
  attention = fields.section("attn_config")
  attention.only("alibi", True)
  attention.only("alibi_bias_max", 8)
  attention.only("attn_type", "multihead_attention")
  attention.only("attn_uses_sequence_id", False)
  attention.only("clip_qkv", None)
  attention.only("prefix_lm", False)
  attention.only("qk_ln", False)
  attention.ignore("attn_impl", "attn_pdrop")
  fields.only("expansion_ratio", 4)
  fields.only("logit_scale", None)
  fields.only("no_bias", True)
  # The library never adds learned positions, whatever the config says.
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
  attention.finish()
  dims = Dims(D, heads, heads, D // heads, 4 * D, layers)
  return mpt.Model, {
    "variant": Variant(dims, design, fields.take("vocab_size"), decoders.special_ids(fields))
  }


def config(model, model_type: str | None) -> dict:
  variant = model.variant
  design = model.variant.design
  dims = model.variant.dims
  decoders.refuse_others(
    model,
    norm="layernorm_no_bias",
    activation="gelu",
    attention_scale=[design.attention_scale],
    tied=[True, False],
  )
  power_of_two = dims.heads & (dims.heads - 1) == 0  # then both definitions of the slopes agree
  if not power_of_two and not decoders.position_of(model, "alibi", "mpt").get("mpt"):
    decoders.require_design(model, position=[{"name": "alibi", "mpt": True}])
  decoders.position_of(model, "alibi", "mpt")
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
    **decoders.ids_config(variant.tokens),
  }


def tensors(m: TensorMapping) -> None:
  m.copy("transformer.wte.weight", "embed/table")
  m.norm("transformer.norm_f", "decoder/final_norm")
  m.output("transformer.wte.weight")
  for layer, (_, at) in enumerate(locate_layers(m.model.decoder, m.model.variant.dims.layers)):
    theirs = f"transformer.blocks.{layer}"
    attention = "decoder/blocks/self_attention"
    mlp = "decoder/blocks/mlp"
    m.norm(f"{theirs}.norm_1", f"{attention}/in_norm", at)
    m.norm(f"{theirs}.norm_2", f"{mlp}/in_norm", at)
    fused_tensors.map_stacked(m, f"{theirs}.attn.Wqkv", f"{attention}/layer", at)
    m.linear(f"{theirs}.attn.out_proj", f"{attention}/layer/out", at)
    m.linear(f"{theirs}.ffn.up_proj", f"{mlp}/layer/wi", at)
    m.linear(f"{theirs}.ffn.down_proj", f"{mlp}/layer/wo", at)

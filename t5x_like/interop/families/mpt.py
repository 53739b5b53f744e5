"""MPT."""

from typing import Any

from t5x_like.architectures.design import Variant
from t5x_like.errors import UserError
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.config_table import Custom, Field, Ignored, ModelType, Required
from t5x_like.interop.decoders import SpecialTokens
from t5x_like.interop.tensor_layouts import map_stacked
from t5x_like.interop.tensor_mapping import Layout, prefix_table
from t5x_like.models import mpt


def _read_attention(fields: Fields) -> dict[str, Any]:
  section = fields.section("attn_config")
  section.require("alibi", True)
  section.require("alibi_bias_max", 8)
  section.require("attn_type", "multihead_attention")
  section.require("attn_uses_sequence_id", False)
  section.require("clip_qkv", None)
  section.require("prefix_lm", False)
  section.require("qk_ln", False)
  section.ignore("attn_impl", "attn_pdrop")
  scale = section.take("softmax_scale", None)
  width = fields.take("d_model", 2048)
  section.refuse_unused()
  return {"design.attention_scale": scale, "design.embed_init": (2 / width) ** 0.5}


def _write_attention(variant: Variant) -> dict[str, Any]:
  """Return the fields of attention.

  Raises:
    UserError: the positions are not ALiBi with MPT's slopes, which equal the paper's slopes if the
      number of heads is a power of two.
  """
  position = variant.design.position
  heads = variant.dims.heads
  mpt_position = {"name": "alibi", "mpt": True}
  accepted = [mpt_position]
  is_power_of_two = heads & (heads - 1) == 0
  if is_power_of_two:
    accepted += ["alibi", {"name": "alibi"}]
  if position not in accepted:
    raise UserError(
      f"design.position is {position!r}; this model type supports only {mpt_position!r}"
    )
  return {"attn_config": {"alibi": True, "softmax_scale": variant.design.attention_scale}}


ENTRIES = (
  Field("vocab_size", "vocab_size"),
  Field("d_model", "dims.embed", default=2048),
  Field("n_layers", "dims.layers", default=24),
  Field("n_heads", "dims.heads", default=16),
  Field("layer_norm_epsilon", "design.norm_epsilon", default=1e-5),
  Custom(_read_attention, _write_attention),
  Field("tie_word_embeddings", "design.tied", default=True),
  SpecialTokens(),
  Required("expansion_ratio", 4),
  Required("logit_scale", None),
  Required("no_bias", True),
  # `transformers` never adds learned positions, whatever the config says.
  Ignored("learned_pos_emb", "max_seq_len", "resid_pdrop", "emb_pdrop", "init_device"),
  Ignored("init_config", "norm_type", "embedding_fraction", "verbose"),
)
LAYER = {
  "norm_1": "self_attention/in_norm",
  "norm_2": "mlp/in_norm",
  "attn.Wqkv": Layout("self_attention/layer", map_stacked),
  "attn.out_proj": "self_attention/layer/out",
  "ffn.up_proj": "mlp/layer/wi",
  "ffn.down_proj": "mlp/layer/wo",
}

TYPES = (
  ModelType(
    "mpt",
    "MptForCausalLM",
    mpt.Model,
    mpt.DESIGN,
    ENTRIES,
    tensors={
      "transformer.wte": "embed",
      "transformer.norm_f": "decoder/final_norm",
      "lm_head": "head",
      **prefix_table("transformer.blocks.{layer}.", "decoder/blocks/", LAYER),
    },
    tied={"lm_head.weight": "transformer.wte.weight"},
    body_prefix="transformer.",
    free=("design.position",),
  ),
)

"""Falcon."""

from typing import Any

from t5x_like.architectures.design import Variant
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.config_table import Choice, Custom, Field, Ignored, ModelType
from t5x_like.interop.decoders import PLAIN_ACTIVATIONS, Rope, SpecialTokens
from t5x_like.interop.tensor_layouts import map_grouped_qkv
from t5x_like.interop.tensor_mapping import Layout, prefix_table
from t5x_like.models import falcon

ALIBI = {"name": "alibi", "falcon": True}


def _read_position(fields: Fields) -> dict[str, Any]:
  if not fields.take("alibi", False):
    return Rope().read(fields)
  fields.ignore("rope_theta", "rope_scaling", "rope_parameters")
  return {"design.position": ALIBI}


def _write_position(variant: Variant) -> dict[str, Any]:
  if variant.design.position == ALIBI:
    return {"alibi": True}
  return {"alibi": False} | Rope().write(variant)


def _read_layout(fields: Fields) -> dict[str, Any]:
  """Return the order of the sublayers and the key/value heads.

  Only the newer architecture has groups of heads, or a norm for each of two parallel sublayers.
  """
  is_new = fields.take("new_decoder_architecture", False)
  is_parallel = fields.take("parallel_attn", True)
  norms = fields.take("num_ln_in_parallel_attn", 2 if is_new else 1)
  if norms not in (1, 2) or (norms == 2 and not is_new) or (is_new and not is_parallel):
    expected = "1 or, with new_decoder_architecture and parallel_attn, 2"
    raise fields.refusal("num_ln_in_parallel_attn", norms, expected)
  parallel = "no"
  if norms == 2:
    parallel = "two_norms"
  elif is_parallel:
    parallel = "one_norm"
  kv_heads = fields.take("num_kv_heads", None)
  if fields.take("multi_query", True) and not is_new:
    kv_heads = 1
  return {"design.parallel": parallel, "dims.kv_heads": kv_heads}


def _write_layout(variant: Variant) -> dict[str, Any]:
  dims = variant.dims
  parallel = variant.design.parallel
  has_groups = dims.kv_heads not in (1, dims.heads)
  return {
    "num_kv_heads": dims.kv_heads,
    "new_decoder_architecture": parallel == "two_norms" or has_groups,
    "multi_query": dims.kv_heads == 1,
    "parallel_attn": parallel != "no",
    "num_ln_in_parallel_attn": 2 if parallel == "two_norms" else 1,
  }


ENTRIES = (
  Field("vocab_size", "vocab_size", default=65_024),
  Field("hidden_size", "dims.embed", default=4544, alias="n_embed"),
  Field("num_hidden_layers", "dims.layers", default=32),
  Field("num_attention_heads", "dims.heads", default=71),
  Field("ffn_hidden_size", "dims.mlp", default=None),
  Custom(_read_layout, _write_layout),
  Custom(_read_position, _write_position),
  Choice("activation", "design.activation", PLAIN_ACTIVATIONS, default="gelu"),
  Field("layer_norm_epsilon", "design.norm_epsilon", default=1e-5),
  Choice("bias", "design.biases", {True: ("qkv", "out", "mlp"), False: ()}, default=False),
  Field("tie_word_embeddings", "design.tied", default=True),
  SpecialTokens(start=11, eos=11),
  Ignored("hidden_dropout", "attention_dropout", "max_position_embeddings"),
  Ignored("apply_residual_connection_post_layernorm"),
)


def _sublayer(path: str) -> tuple[str, ...]:
  """Return the paths in a serial sublayer, and in parallel ones with two norms or one."""
  sublayer, _, inner = path.partition("/")
  inner = inner and f"/{inner}"
  parallel = f"parallel/layer/{sublayer}"
  return f"{sublayer}/layer{inner}", f"{parallel}/layer{inner}", f"{parallel}{inner}"


LAYER = {
  "input_layernorm": ("self_attention/in_norm", "parallel/in_norm"),
  "post_attention_layernorm": "mlp/in_norm",
  "ln_attn": "parallel/layer/self_attention/norm",
  "ln_mlp": "parallel/layer/mlp/norm",
  "self_attention.query_key_value": Layout(_sublayer("self_attention"), map_grouped_qkv),
  "self_attention.dense": _sublayer("self_attention/out"),
  "mlp.dense_h_to_4h": _sublayer("mlp/wi"),
  "mlp.dense_4h_to_h": _sublayer("mlp/wo"),
}

TYPES = (
  ModelType(
    "falcon",
    "FalconForCausalLM",
    falcon.Model,
    falcon.DESIGN,
    ENTRIES,
    tensors={
      "transformer.word_embeddings": "embed",
      "transformer.ln_f": "decoder/final_norm",
      "lm_head": "head",
      **prefix_table("transformer.h.{layer}.", "decoder/blocks/", LAYER),
    },
    tied={"lm_head.weight": "transformer.word_embeddings.weight"},
    ignored_suffixes=("rotary_emb.inv_freq",),
    body_prefix="transformer.",
  ),
)

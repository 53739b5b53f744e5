"""DeepSeek-V3, with or without the block that predicts the token after the next."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from t5x_like.architectures.design import Variant
from t5x_like.errors import UserError
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.config_table import Custom, Field, Ignored, ModelType, Required
from t5x_like.interop.decoders import (
  SpecialTokens,
  Unquantized,
  add_older_rope_fields,
  read_rope,
  require_rope,
  write_rope,
  yarn_temperature,
)
from t5x_like.interop.families import llama
from t5x_like.interop.tensor_mapping import Layout, TensorMapping, prefix_table
from t5x_like.interop.variant_paths import get_attribute
from t5x_like.models import deepseek
from t5x_like.nn.latent_attention import Latent

_PUBLISHED = deepseek.VARIANTS["v3"]
_LATENT_EPSILON = 1e-6  # of the norms of latents, whatever the epsilon of other norms
# our argument -> field
_LATENT = {
  "rank": "kv_lora_rank",
  "query_rank": "q_lora_rank",
  "rope": "qk_rope_head_dim",
  "value": "v_head_dim",
}
_ROPE_FIELDS = ("rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings")


def _read_attention(fields: Fields) -> dict[str, Any]:
  """Return the latents, the width of heads and the positions."""
  latent = {}
  for argument, field in _LATENT.items():
    latent[argument] = fields.take_nullable(field, _PUBLISHED.design.latent[argument])
  if fields.take("rms_norm_eps", _LATENT_EPSILON) != _LATENT_EPSILON:
    latent["norm_epsilon"] = _LATENT_EPSILON
  head_dim = fields.take("qk_nope_head_dim", 128) + latent["rope"]
  fields.require("num_key_value_heads", fields.take("num_attention_heads"), None)
  position, scale = _read_position(fields, head_dim)
  if fields.take("rope_interleave", True):
    position["interleaved"] = True
  return {
    "dims.head_dim": head_dim,
    "design.latent": latent,
    "design.position": position,
    "design.attention_scale": scale,
  }


def _read_position(fields: Fields, head_dim: int) -> tuple[dict, float | None]:
  """Return (the rotary positions of a config, the factor of the logits).

  DeepSeek's YaRN also multiplies the logits by the square of `0.1 * mscale_all_dim * ln(factor) +
  1`.
  """
  values = {name: fields.values.get(name) for name in _ROPE_FIELDS}
  field = "rope_scaling" if values["rope_scaling"] else "rope_parameters"
  yarn = dict(values[field] or {})
  weight = yarn.pop("mscale", None)
  weight_below = yarn.pop("mscale_all_dim", None)
  factor = float(yarn.get("factor") or 1.0)
  if weight and weight_below and yarn.get("attention_factor") is None:
    below = yarn_temperature(factor, weight_below)
    yarn["attention_factor"] = yarn_temperature(factor, weight) / below
  position = read_rope(Fields(values | {field: yarn}, fields.origin))
  fields.ignore(*_ROPE_FIELDS)
  scale = _attention_scale(head_dim, factor, weight_below) if weight_below else None
  return position, scale


def _attention_scale(head_dim: int, factor: float, weight: float) -> float:
  """Return the factor of the logits for a factor of YaRN and an `mscale_all_dim`."""
  return head_dim**-0.5 * yarn_temperature(factor, weight) ** 2


def _write_attention(variant: Variant) -> dict[str, Any]:
  design = variant.design
  if design.latent is None:
    raise UserError("design.latent is None, which this model type has in every layer")
  latent = Latent(**design.latent)
  position = require_rope(design.position)
  mscale = _write_mscale(design, variant.dims.head_dim, position)
  return {
    **{field: getattr(latent, argument) for argument, field in _LATENT.items()},
    "qk_nope_head_dim": variant.dims.head_dim - latent.rope,
    "num_key_value_heads": variant.dims.heads,
    "rope_interleave": bool(position.get("interleaved")),
    **add_older_rope_fields(write_rope(position, **mscale)),
  }


def _write_mscale(design, head_dim: int, position: dict) -> dict[str, float]:
  """Return the field of `rope_parameters` that expresses the factor of the logits."""
  if design.attention_scale in (None, head_dim**-0.5):
    return {}
  factor = (position.get("yarn") or {}).get("factor", 1.0)
  excess = (design.attention_scale * head_dim**0.5) ** 0.5 - 1.0
  if factor <= 1 or excess <= 0:
    raise UserError(
      f"design.attention_scale is {design.attention_scale!r}; this model type supports others only "
      "with YaRN"
    )
  weight = excess / (0.1 * math.log(factor))
  for digits in range(1, 17):  # the shortest weight with exactly this factor
    rounded = float(f"{weight:.{digits}g}")
    if _attention_scale(head_dim, factor, rounded) == design.attention_scale:
      return {"mscale_all_dim": rounded}
  return {"mscale_all_dim": weight}


def _read_dense_layers(fields: Fields) -> dict[str, Any]:
  layers = fields.take("num_hidden_layers")
  dense = fields.take("first_k_dense_replace", 3)
  if dense >= layers:
    raise fields.refusal("first_k_dense_replace", dense, f"0 to {layers - 1}")
  return {"design.dense_layers": dense}


def _write_dense_layers(variant: Variant) -> dict[str, Any]:
  return {"first_k_dense_replace": get_attribute(variant, "design.dense_layers")}


ENTRIES = (
  Unquantized(
    "the kernels are in 8 bits, which are not read; take a copy of the model in bfloat16, as "
    "fp8_cast_bf16.py of DeepSeek-V3's repository writes it"
  ),
  *llama.SIZES,
  llama.ACTIVATION,
  Field("rms_norm_eps", "design.norm_epsilon", default=_LATENT_EPSILON),
  llama.ATTENTION_BIAS,
  Custom(_read_attention, _write_attention),
  Custom(_read_dense_layers, _write_dense_layers),
  Field("n_routed_experts", "design.experts.experts", default=256),
  Field("num_experts_per_tok", "design.experts.top_k", default=8),
  Field("moe_intermediate_size", "design.experts.mlp", default=2048),
  Field("n_shared_experts", "design.experts.shared", default=1),
  Field("n_group", "design.experts.groups", default=8),
  Field("topk_group", "design.experts.top_groups", default=4),
  Field("routed_scaling_factor", "design.experts.scale", default=2.5),
  Field("norm_topk_prob", "design.experts.normalise", default=True),
  llama.UNTIED,
  SpecialTokens(start=deepseek.TOKENS.start, eos=deepseek.TOKENS.eos),
  Required("scoring_func", "sigmoid"),
  Required("topk_method", "noaux_tc"),
  Required("moe_layer_freq", 1),
  Ignored("ep_size", "aux_loss_alpha", "seq_aux", "num_local_experts", "qk_head_dim", "head_dim"),
  Ignored("num_nextn_predict_layers", "num_mtp_layers"),
)


class _DeepSeek(ModelType):
  """DeepSeek-V3, whose file may have a block that predicts the token after the next."""

  def read(self, fields: Fields) -> tuple[type, dict[str, Any]]:
    model_class, arguments = super().read(fields)
    prefix = f"model.layers.{arguments['variant'].dims.layers}."
    has_block = any(name.startswith(prefix) for name in fields.tensor_names)
    return model_class, arguments | {"mtp_depth": int(has_block)}

  def write(self, model: Any, original_type: str | None = None) -> dict[str, Any]:
    return super().write(model) | {"num_nextn_predict_layers": model.mtp_depth}


def map_keys_and_values(mapping: TensorMapping, hf_name: str, path: str, *index: int) -> None:
  """Map [N (H + value width), rank]: the key and the value of one head after another."""
  heads = mapping.model.variant.dims.heads
  value_width = Latent(**mapping.model.variant.design.latent).value

  def split(x: np.ndarray) -> list[np.ndarray]:
    x_NHR = x.reshape(heads, -1, x.shape[-1])
    parts = (x_NHR[:, :-value_width], x_NHR[:, -value_width:])
    return [part.reshape(-1, x.shape[-1]).T for part in parts]

  def join(arrays: Sequence[np.ndarray]) -> np.ndarray:
    rank = arrays[0].shape[0]
    parts = [array.T.reshape(heads, -1, rank) for array in arrays]
    return np.concatenate(parts, axis=1).reshape(-1, rank)

  paths = [f"{path}/key/kernel", f"{path}/value/kernel"]
  mapping.fuse(f"{hf_name}.weight", paths, *index, split=split, join=join)


LAYER = {
  "input_layernorm": "self_attention/in_norm",
  "self_attn.q_proj": "self_attention/layer/query",
  "self_attn.q_a_proj": "self_attention/layer/query_down",
  "self_attn.q_a_layernorm": "self_attention/layer/query_norm",
  "self_attn.q_b_proj": "self_attention/layer/query",
  "self_attn.kv_a_proj_with_mqa": "self_attention/layer/down",
  "self_attn.kv_a_layernorm": "self_attention/layer/norm",
  "self_attn.kv_b_proj": Layout("self_attention/layer", map_keys_and_values),
  "self_attn.o_proj": "self_attention/layer/out",
  "post_attention_layernorm": ("mlp/in_norm", "moe/in_norm"),
  **llama.GATED_MLP,
  "mlp.gate": "moe/layer/router",
  "mlp.gate.e_score_correction_bias": "moe/layer/router/balance",
  "mlp.shared_experts.gate_proj": "moe/layer/shared/gate",
  "mlp.shared_experts.up_proj": "moe/layer/shared/wi",
  "mlp.shared_experts.down_proj": "moe/layer/shared/wo",
  "mlp.experts.{expert}.gate_proj": "moe/layer/gate",
  "mlp.experts.{expert}.up_proj": "moe/layer/wi",
  "mlp.experts.{expert}.down_proj": "moe/layer/wo",
}
# of the block that predicts the token after the next
MTP_BLOCK = {
  "enorm": "embed_norm",
  "hnorm": "state_norm",
  "eh_proj": "project",
  "shared_head.norm": "stack/final_norm",
}


def map_tensors(mapping: TensorMapping) -> None:
  """Map both stacks, the first of layers without experts, and the block after the last layer."""
  variant = mapping.model.variant
  layer = dict(LAYER)
  del layer[
    "self_attn.q_proj" if Latent(**variant.design.latent).query_rank else "self_attn.q_b_proj"
  ]
  hf_layer = "model.layers.{layer}."
  dense_layers = variant.design.dense_layers
  expert_stack = "decoder/rest" if dense_layers else "decoder"
  mapping.add_table(llama.EMBEDDINGS | {"model.norm": f"{expert_stack}/final_norm"})
  mapping.add_table(prefix_table(hf_layer, "decoder/first/blocks/", layer))
  mapping.add_table(prefix_table(hf_layer, f"{expert_stack}/blocks/", layer), dense_layers)
  if not mapping.model.mtp_depth:
    return
  hf_block = f"model.layers.{variant.dims.layers}."
  mapping.add_table(prefix_table(hf_block, "mtp/", MTP_BLOCK))
  mapping.add_table(prefix_table(hf_layer, "mtp/stack/blocks/", layer), variant.dims.layers)
  table = "model.embed_tokens.weight"
  head = table if variant.design.tied else "lm_head.weight"
  mapping.tied[f"{hf_block}embed_tokens.weight"] = table
  mapping.tied[f"{hf_block}shared_head.head.weight"] = head


TYPES = (
  _DeepSeek(
    "deepseek_v3",
    "DeepseekV3ForCausalLM",
    deepseek.Model,
    _PUBLISHED.design,
    ENTRIES,
    **llama.TENSORS | {"tensors": map_tensors},
  ),
)

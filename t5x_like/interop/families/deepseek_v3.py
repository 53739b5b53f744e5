"""DeepSeek-V3, with or without the block that predicts the token after the next."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from t5x_like.architectures.design import Variant
from t5x_like.errors import UserError
from t5x_like.interop import decoders
from t5x_like.interop.config_fields import Fields, find_key
from t5x_like.interop.families import llama
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.models import deepseek
from t5x_like.nn.dims import Dims
from t5x_like.nn.latent_attention import Latent

MODEL_TYPES = ("deepseek_v3",)
MODELS = (deepseek.Model,)
BODY_PREFIX = "model."
# our argument -> field
LATENT = {
  "rank": "kv_lora_rank",
  "query_rank": "q_lora_rank",
  "rope": "qk_rope_head_dim",
  "value": "v_head_dim",
}
# our argument -> (field, default)
EXPERTS = {
  "experts": ("n_routed_experts", 256),
  "top_k": ("num_experts_per_tok", 8),
  "mlp": ("moe_intermediate_size", 2048),
  "shared": ("n_shared_experts", 1),
  "groups": ("n_group", 8),
  "top_groups": ("topk_group", 4),
  "scale": ("routed_scaling_factor", 2.5),
  "normalise": ("norm_topk_prob", True),
}
_PUBLISHED = deepseek.VARIANTS["v3"]
_LATENT_EPSILON = 1e-6  # of the norms of latents, whatever the epsilon of other norms


def read_config(fields: Fields, tensor_names: set[str]):
  if fields.take("quantization_config", None):
    raise UserError(
      f"{fields.origin}: field 'quantization_config' is there: the kernels are in 8 bits, which "
      "are not read; take a copy of the model in bfloat16, as fp8_cast_bf16.py of DeepSeek-V3's "
      "repository writes it"
    )
  fields.ignore("max_position_embeddings", "attention_dropout", "ep_size", "aux_loss_alpha")
  fields.ignore(
    "seq_aux",
    "num_local_experts",
    "qk_head_dim",
    "head_dim",
    "num_nextn_predict_layers",
    "num_mtp_layers",
  )
  fields.require("scoring_func", "sigmoid")
  fields.require("topk_method", "noaux_tc")
  fields.require("moe_layer_freq", 1)
  layers = fields.take("num_hidden_layers")
  dense = fields.take("first_k_dense_replace", 3)
  if dense >= layers:
    raise fields.refusal("first_k_dense_replace", dense, f"0 to {layers - 1}")
  latent = {}
  for argument, field in LATENT.items():
    default = _PUBLISHED.design.latent[argument]
    latent[argument] = decoders.take_nullable(fields, field, default)
  epsilon = fields.take("rms_norm_eps", _LATENT_EPSILON)
  if epsilon != _LATENT_EPSILON:
    latent["norm_epsilon"] = _LATENT_EPSILON
  heads = fields.take("num_attention_heads")
  head_dim = fields.take("qk_nope_head_dim", 128) + latent["rope"]
  fields.require("num_key_value_heads", heads, None)
  position, scale = _read_position(fields, head_dim)
  if fields.take("rope_interleave", True):
    position["interleaved"] = True
  routing = {}
  for argument, (field, default) in EXPERTS.items():
    routing[argument] = fields.take(field, default)
  design = dataclasses.replace(
    _PUBLISHED.design,
    norm_epsilon=epsilon,
    activation=fields.choose("hidden_act", decoders.GATED_ACTIVATIONS, "silu"),
    biases=("qkv", "out") if fields.take("attention_bias", False) else (),
    position=position,
    attention_scale=scale,
    latent=latent,
    experts=deepseek.routing(**routing),
    dense_layers=dense,
    tied=fields.take("tie_word_embeddings", False),
  )
  dims = Dims(
    fields.take("hidden_size"), heads, heads, head_dim, fields.take("intermediate_size"), layers
  )
  ids = decoders.read_special_tokens(fields, start=deepseek.TOKENS.start, eos=deepseek.TOKENS.eos)
  has_mtp_block = any(name.startswith(f"model.layers.{layers}.") for name in tensor_names)
  return deepseek.Model, {
    "variant": Variant(dims, design, fields.take("vocab_size"), ids),
    "mtp_depth": 1 if has_mtp_block else 0,
  }


_ROPE_FIELDS = ("rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings")


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
    below = decoders.yarn_temperature(factor, weight_below)
    yarn["attention_factor"] = decoders.yarn_temperature(factor, weight) / below
  position = decoders.read_rope(Fields(values | {field: yarn}, fields.origin))
  fields.ignore(*_ROPE_FIELDS)
  scale = _attention_scale(head_dim, factor, weight_below) if weight_below else None
  return position, scale


def _attention_scale(head_dim: int, factor: float, weight: float) -> float:
  """Return the factor of the logits for a factor of YaRN and an `mscale_all_dim`."""
  return head_dim**-0.5 * decoders.yarn_temperature(factor, weight) ** 2


def write_config(model, model_type: str | None) -> dict:
  variant = model.variant
  design = model.variant.design
  dims = model.variant.dims
  experts = model.variant.design.experts
  if design.latent is None or not experts or not experts.shared:
    raise UserError(
      f"design.latent is {design.latent!r} with {experts!r}; this type has both, "
      "and a shared expert"
    )
  latent = Latent(**design.latent)
  required_latent = design.latent
  if (latent.norm_epsilon or design.norm_epsilon) != _LATENT_EPSILON:
    required_latent = {"norm_epsilon": _LATENT_EPSILON}
  required_experts = dataclasses.replace(
    deepseek.routing(**{argument: getattr(experts, argument) for argument in EXPERTS}),
    bias_rate=experts.bias_rate,
    balance_loss=experts.balance_loss,
  )
  decoders.require_plain_decoder(
    model,
    square=False,
    mlp=False,
    norm="rmsnorm",
    biases=[(), ("qkv", "out")],
    activation=list(decoders.GATED_ACTIVATIONS.values()),
    attention_scale=[design.attention_scale],
    latent=[required_latent],
    dense_layers=[design.dense_layers],
    experts=[required_experts],
    experts_every=1,
    tied=[True, False],
  )
  position = decoders.require_position(
    model, "rope", "theta", "interleaved", *decoders.ROPE_SCALINGS
  )
  latent_fields = {field: getattr(latent, argument) for argument, field in LATENT.items()}
  expert_fields = {field: getattr(experts, argument) for argument, (field, _) in EXPERTS.items()}
  rope = decoders.write_rope(position, **_write_mscale(design, dims.head_dim, position))
  return {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": variant.vocab_size,
    "hidden_size": dims.embed,
    "intermediate_size": dims.mlp,
    "num_hidden_layers": dims.layers,
    "num_attention_heads": dims.heads,
    "num_key_value_heads": dims.heads,
    "hidden_act": find_key(decoders.GATED_ACTIVATIONS, design.activation),
    "rms_norm_eps": design.norm_epsilon,
    **decoders.add_older_rope_fields(rope),
    "rope_interleave": bool(position.get("interleaved")),
    "attention_bias": bool(design.biases),
    "tie_word_embeddings": design.tied,
    **latent_fields,
    "qk_nope_head_dim": dims.head_dim - latent.rope,
    **expert_fields,
    "norm_topk_prob": experts.normalise is not False,
    "first_k_dense_replace": design.dense_layers,
    "num_nextn_predict_layers": model.mtp_depth,
    **decoders.special_token_fields(variant.tokens),
  }


def _write_mscale(design, head_dim: int, position: dict) -> dict[str, float]:
  """Return the field of `rope_parameters` that expresses the factor of the logits."""
  if design.attention_scale in (None, head_dim**-0.5):
    return {}
  factor = (position.get("yarn") or {}).get("factor", 1.0)
  excess = (design.attention_scale * head_dim**0.5) ** 0.5 - 1.0
  if factor <= 1 or excess <= 0:
    raise UserError(
      f"design.attention_scale is {design.attention_scale!r}; this type supports "
      "others only with YaRN"
    )
  weight = excess / (0.1 * math.log(factor))
  for digits in range(1, 17):  # the shortest weight with exactly this factor
    rounded = float(f"{weight:.{digits}g}")
    if _attention_scale(head_dim, factor, rounded) == design.attention_scale:
      return {"mscale_all_dim": rounded}
  return {"mscale_all_dim": weight}


def map_tensors(mapping: TensorMapping) -> None:
  variant = mapping.model.variant
  layers = variant.dims.layers
  dense_layers = variant.design.dense_layers
  llama.map_table(mapping)
  expert_stack = "decoder/rest" if dense_layers else "decoder"
  mapping.norm("model.norm", f"{expert_stack}/final_norm")
  for layer in range(dense_layers):
    hf_layer = f"model.layers.{layer}"
    _map_attention(mapping, hf_layer, "decoder/first", layer)
    _map_mlp(mapping, hf_layer, "decoder/first", layer)
  for layer in range(dense_layers, layers):
    hf_layer = f"model.layers.{layer}"
    _map_attention(mapping, hf_layer, expert_stack, layer - dense_layers)
    _map_experts(mapping, hf_layer, expert_stack, layer - dense_layers)
  if mapping.model.mtp_depth:
    _map_mtp_block(mapping, f"model.layers.{layers}")


def _map_mtp_block(mapping: TensorMapping, hf_layer: str) -> None:
  """Map the block that predicts the token after the next."""
  table = "model.embed_tokens.weight"
  head = table if mapping.model.variant.design.tied else "lm_head.weight"
  mapping.tied[f"{hf_layer}.embed_tokens.weight"] = table
  mapping.tied[f"{hf_layer}.shared_head.head.weight"] = head
  mapping.norm(f"{hf_layer}.enorm", "mtp/embed_norm")
  mapping.norm(f"{hf_layer}.hnorm", "mtp/state_norm")
  mapping.linear(f"{hf_layer}.eh_proj", "mtp/project")
  mapping.norm(f"{hf_layer}.shared_head.norm", "mtp/stack/final_norm")
  _map_attention(mapping, hf_layer, "mtp/stack", 0)
  _map_experts(mapping, hf_layer, "mtp/stack", 0)


def _map_attention(mapping: TensorMapping, hf_layer: str, stack: str, index: int) -> None:
  hf_attention = f"{hf_layer}.self_attn"
  attention = f"{stack}/blocks/self_attention/layer"
  mapping.norm(f"{hf_layer}.input_layernorm", f"{stack}/blocks/self_attention/in_norm", index)
  mapping.linear(f"{hf_attention}.kv_a_proj_with_mqa", f"{attention}/down", index)
  mapping.linear(f"{hf_attention}.o_proj", f"{attention}/out", index)
  has_query_latent = f"{attention}/query_down/kernel" in mapping.parameter_names
  if has_query_latent:
    mapping.linear(f"{hf_attention}.q_b_proj", f"{attention}/query", index)
    mapping.linear(f"{hf_attention}.q_a_proj", f"{attention}/query_down", index)
  else:
    mapping.linear(f"{hf_attention}.q_proj", f"{attention}/query", index)
  mapping.norm(f"{hf_attention}.kv_a_layernorm", f"{attention}/norm", index)
  if has_query_latent:
    mapping.norm(f"{hf_attention}.q_a_layernorm", f"{attention}/query_norm", index)
  _map_keys_and_values(mapping, f"{hf_attention}.kv_b_proj.weight", attention, index)


def _map_keys_and_values(mapping: TensorMapping, hf_name: str, attention: str, index: int) -> None:
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

  paths = [f"{attention}/key/kernel", f"{attention}/value/kernel"]
  mapping.fuse(hf_name, paths, index, split=split, join=join)


def _map_mlp(mapping: TensorMapping, hf_layer: str, stack: str, index: int) -> None:
  mlp = f"{stack}/blocks/mlp"
  mapping.norm(f"{hf_layer}.post_attention_layernorm", f"{mlp}/in_norm", index)
  llama.map_gated_mlp(mapping, f"{hf_layer}.mlp", f"{mlp}/layer", index)


def _map_experts(mapping: TensorMapping, hf_layer: str, stack: str, index: int) -> None:
  moe = f"{stack}/blocks/moe"
  hf_mlp = f"{hf_layer}.mlp"
  mapping.norm(f"{hf_layer}.post_attention_layernorm", f"{moe}/in_norm", index)
  mapping.transpose(f"{hf_mlp}.gate.weight", f"{moe}/layer/router/kernel", index)
  mapping.copy(f"{hf_mlp}.gate.e_score_correction_bias", f"{moe}/layer/router/balance", index)
  llama.map_gated_mlp(mapping, f"{hf_mlp}.shared_experts", f"{moe}/layer/shared", index)
  llama.map_experts(mapping, f"{hf_mlp}.experts", f"{moe}/layer", index)

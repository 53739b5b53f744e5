"""DeepSeek-V3, with or without the block that predicts the token after the next."""

import dataclasses
import math

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
LATENT = {
  "rank": "kv_lora_rank",
  "query_rank": "q_lora_rank",
  "rope": "qk_rope_head_dim",
  "value": "v_head_dim",
}
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
_EPSILON = 1e-6  # of the norms of latents, whatever that of the others


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
  for name, value in (
    ("scoring_func", "sigmoid"),
    ("topk_method", "noaux_tc"),
    ("moe_layer_freq", 1),
  ):
    fields.require(name, value)
  layers = fields.take("num_hidden_layers")
  dense = fields.take("first_k_dense_replace", 3)
  if dense >= layers:
    raise fields.refusal("first_k_dense_replace", dense, f"0 to {layers - 1}")
  latent = {
    ours: decoders.take_nullable(fields, theirs, _PUBLISHED.design.latent[ours])
    for ours, theirs in LATENT.items()
  }
  if (epsilon := fields.take("rms_norm_eps", _EPSILON)) != _EPSILON:
    latent["norm_epsilon"] = _EPSILON
  heads = fields.take("num_attention_heads")
  head_dim = fields.take("qk_nope_head_dim", 128) + latent["rope"]
  fields.require("num_key_value_heads", heads, None)
  position, scale = _positions(fields, head_dim)
  if fields.take("rope_interleave", True):
    position["interleaved"] = True
  routing = {ours: fields.take(*theirs) for ours, theirs in EXPERTS.items()}
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
  ahead = any(name.startswith(f"model.layers.{layers}.") for name in tensor_names)
  return deepseek.Model, {
    "variant": Variant(dims, design, fields.take("vocab_size"), ids),
    "mtp_depth": int(ahead),
  }


def _positions(fields: Fields, head_dim: int) -> tuple[dict, float | None]:
  """Return (the rotary positions of a config, the factor of the logits).

  DeepSeek's YaRN also multiplies the logits by the square of `0.1 * mscale_all_dim * ln(factor) +
  1`.
  """
  values = dict(fields.values)
  field = "rope_scaling" if values.get("rope_scaling") else "rope_parameters"
  yarn = dict(values.get(field) or {})
  one = yarn.pop("mscale", None)
  every = yarn.pop("mscale_all_dim", None)
  factor = float(yarn.get("factor") or 1.0)
  if one and every and yarn.get("attention_factor") is None:
    yarn["attention_factor"] = decoders.yarn_temperature(factor, one) / decoders.yarn_temperature(
      factor, every
    )
  position = decoders.read_rope(
    Fields({n: values.get(n) for n in _ROPE} | {field: yarn}, fields.origin)
  )
  fields.ignore(*_ROPE)
  return position, _scale(head_dim, factor, every) if every else None


_ROPE = ("rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings")


def _scale(head_dim: int, factor: float, every: float) -> float:
  return head_dim**-0.5 * decoders.yarn_temperature(factor, every) ** 2


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
  own = Latent(**design.latent)
  usual = deepseek.routing(**{ours: getattr(experts, ours) for ours in EXPERTS})
  free = dict(bias_rate=experts.bias_rate, balance_loss=experts.balance_loss)
  decoders.require_plain_decoder(
    model,
    square=False,
    mlp=False,
    norm="rmsnorm",
    biases=[(), ("qkv", "out")],
    activation=list(decoders.GATED_ACTIVATIONS.values()),
    attention_scale=[design.attention_scale],
    latent=[
      design.latent
      if (own.norm_epsilon or design.norm_epsilon) == _EPSILON
      else {"norm_epsilon": _EPSILON}
    ],
    dense_layers=[design.dense_layers],
    experts=[dataclasses.replace(usual, **free)],
    experts_every=1,
    tied=[True, False],
  )
  position = decoders.require_position(
    model, "rope", "theta", "interleaved", *decoders.ROPE_SCALINGS
  )
  sizes = {theirs: getattr(own, ours) for ours, theirs in LATENT.items()}
  rope = decoders.write_rope(position, **_mscale(design, dims.head_dim, position))
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
    **sizes,
    "qk_nope_head_dim": dims.head_dim - sizes["qk_rope_head_dim"],
    **{theirs: getattr(experts, ours) for ours, (theirs, _) in EXPERTS.items()},
    "norm_topk_prob": experts.normalise is not False,
    "first_k_dense_replace": design.dense_layers,
    "num_nextn_predict_layers": model.mtp_depth,
    **decoders.special_token_fields(variant.tokens),
  }


def _mscale(design, head_dim: int, position: dict) -> dict[str, float]:
  """Return the fields of `rope_parameters` that say the factor of the logits."""
  if design.attention_scale in (None, head_dim**-0.5):
    return {}
  factor = (position.get("yarn") or {}).get("factor", 1.0)
  extra = (design.attention_scale * head_dim**0.5) ** 0.5 - 1.0
  if factor <= 1 or extra <= 0:
    raise UserError(
      f"design.attention_scale is {design.attention_scale!r}; this type supports "
      "others only with YaRN"
    )
  every = extra / (0.1 * math.log(factor))
  shorter = (float(f"{every:.{digits}g}") for digits in range(1, 17))
  scale = lambda every: _scale(head_dim, factor, every)  # noqa: E731
  return {"mscale_all_dim": next((x for x in shorter if scale(x) == design.attention_scale), every)}


def map_tensors(mapping: TensorMapping) -> None:
  variant = mapping.model.variant
  dims = variant.dims
  dense = variant.design.dense_layers
  llama.map_table(mapping)
  rest = "decoder/rest" if dense else "decoder"
  mapping.norm("model.norm", f"{rest}/final_norm")
  for layer in range(dims.layers):
    first = layer < dense
    _layer(
      mapping,
      f"model.layers.{layer}",
      "decoder/first" if first else rest,
      layer if first else layer - dense,
      first,
    )
  if mapping.model.mtp_depth:
    hf_layer = f"model.layers.{dims.layers}"
    mapping.tied[f"{hf_layer}.embed_tokens.weight"] = "model.embed_tokens.weight"
    mapping.tied[f"{hf_layer}.shared_head.head.weight"] = (
      "model.embed_tokens.weight" if variant.design.tied else "lm_head.weight"
    )
    mapping.norm(f"{hf_layer}.enorm", "mtp/embed_norm")
    mapping.norm(f"{hf_layer}.hnorm", "mtp/state_norm")
    mapping.linear(f"{hf_layer}.eh_proj", "mtp/project")
    mapping.norm(f"{hf_layer}.shared_head.norm", "mtp/stack/final_norm")
    _layer(mapping, hf_layer, "mtp/stack", 0, dense=False)


def _layer(mapping: TensorMapping, hf_name: str, stack: str, index: int, dense: bool) -> None:
  attention = f"{stack}/blocks/self_attention"
  heads = mapping.model.variant.dims.heads
  mapping.norm(f"{hf_name}.input_layernorm", f"{attention}/in_norm", index)
  low = f"{attention}/layer/query_down/kernel" in mapping.parameter_names
  linears = {
    "kv_a_proj_with_mqa": "down",
    "o_proj": "out",
    "q_b_proj" if low else "q_proj": "query",
  }
  for hf_part, name in (linears | ({"q_a_proj": "query_down"} if low else {})).items():
    mapping.linear(f"{hf_name}.self_attn.{hf_part}", f"{attention}/layer/{name}", index)
  mapping.norm(f"{hf_name}.self_attn.kv_a_layernorm", f"{attention}/layer/norm", index)
  if low:
    mapping.norm(f"{hf_name}.self_attn.q_a_layernorm", f"{attention}/layer/query_norm", index)
  value = Latent(**mapping.model.variant.design.latent).value

  def split(x):
    x_NHR = x.reshape(heads, -1, x.shape[-1])
    return [part.reshape(-1, x.shape[-1]).T for part in (x_NHR[:, :-value], x_NHR[:, -value:])]

  def join(xs):
    return np.concatenate([x.T.reshape(heads, -1, x.shape[0]) for x in xs], axis=1).reshape(
      -1, xs[0].shape[0]
    )

  names = [f"{attention}/layer/{name}/kernel" for name in ("key", "value")]
  mapping.fuse(f"{hf_name}.self_attn.kv_b_proj.weight", names, index, split=split, join=join)
  mlp = f"{stack}/blocks/{'mlp' if dense else 'moe'}"
  mapping.norm(f"{hf_name}.post_attention_layernorm", f"{mlp}/in_norm", index)
  if dense:
    return llama.map_gated_mlp(mapping, f"{hf_name}.mlp", f"{mlp}/layer", index)
  mapping.transpose(f"{hf_name}.mlp.gate.weight", f"{mlp}/layer/router/kernel", index)
  mapping.copy(f"{hf_name}.mlp.gate.e_score_correction_bias", f"{mlp}/layer/router/balance", index)
  llama.map_gated_mlp(mapping, f"{hf_name}.mlp.shared_experts", f"{mlp}/layer/shared", index)
  llama.map_experts(mapping, f"{hf_name}.mlp.experts", f"{mlp}/layer", index)

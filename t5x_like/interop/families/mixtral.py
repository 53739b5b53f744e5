"""Mixtral: Llama's layout, with experts."""

import dataclasses

from t5x_like.errors import UserError
from t5x_like.interop import decoders
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.families import llama
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.models import mixtral

MODEL_TYPES = ("mixtral",)
MODELS = (mixtral.Model,)
BODY_PREFIX = "model."


def read_config(fields: Fields, tensor_names: set[str]):
  experts = fields.take("num_local_experts", 8)
  top_k = fields.take("num_experts_per_tok", 2)
  if not 2 <= top_k <= experts:  # a single normalised gate would be constant
    raise fields.refusal("num_experts_per_tok", top_k, f"2 to {experts}")
  design = dataclasses.replace(
    mixtral.DESIGN,
    norm_epsilon=fields.take("rms_norm_eps", 1e-5),
    activation=fields.choose("hidden_act", decoders.GATED_ACTIVATIONS, "silu"),
    position=decoders.read_rope(fields, theta=1e6),
    windows=(fields.take("sliding_window", None),),
    experts=dataclasses.replace(
      mixtral.DESIGN.experts,
      experts=experts,
      top_k=top_k,
      balance_loss=float(fields.take("router_aux_loss_coef", 0.001)),
      jitter=float(fields.take("router_jitter_noise", 0.0)),
    ),
    tied=fields.take("tie_word_embeddings", False),
  )
  return mixtral.Model, {"variant": llama.read_variant(fields, design, kv_heads=8)}


def write_config(model, model_type: str | None) -> dict:
  design = model.variant.design
  experts = model.variant.design.experts
  if not experts:
    raise UserError("design.experts is None, which this model type has in every layer")
  decoders.require_plain_decoder(
    model,
    square=False,
    heads=False,
    mlp=False,
    norm="rmsnorm",
    tied=[True, False],
    windows=(design.windows[0],),
    activation=list(decoders.GATED_ACTIVATIONS.values()),
    experts=[experts],
    experts_every=1,
  )
  decoders.require_dropless_experts(experts, normalised=True)
  return {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    **llama.write_sizes(model),
    "sliding_window": design.windows[0],
    "num_local_experts": experts.experts,
    "num_experts_per_tok": experts.top_k,
    "router_aux_loss_coef": experts.balance_loss,
    "router_jitter_noise": experts.jitter,
  }


def map_tensors(mapping: TensorMapping) -> None:
  llama.map_decoder(mapping, _map_experts)


def _map_experts(mapping: TensorMapping, hf_layer: str, path_template: str, index: int) -> None:
  moe = path_template.format("moe")
  hf_moe = f"{hf_layer}.block_sparse_moe"
  names = {"w1": "gate", "w2": "wo", "w3": "wi"}
  mapping.norm(f"{hf_layer}.post_attention_layernorm", f"{moe}/in_norm", index)
  mapping.transpose(f"{hf_moe}.gate.weight", f"{moe}/layer/router/kernel", index)
  llama.map_experts(mapping, f"{hf_moe}.experts", f"{moe}/layer", index, names)

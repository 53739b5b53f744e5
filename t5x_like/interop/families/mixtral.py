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


def build(fields: Fields, names: set[str]):
  experts = fields.take("num_local_experts", 8)
  top_k = fields.take("num_experts_per_tok", 2)
  if not 2 <= top_k <= experts:  # a single normalised gate would be constant
    raise fields.refusal("num_experts_per_tok", top_k, f"2 to {experts}")
  design = dataclasses.replace(
    mixtral.DESIGN,
    norm_epsilon=fields.take("rms_norm_eps", 1e-5),
    activation=fields.choose("hidden_act", decoders.GATED, "silu"),
    position=decoders.rope(fields, theta=1e6),
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
  return mixtral.Model, {"variant": llama.variant_of(fields, design, kv_heads=8)}


def config(model, model_type: str | None) -> dict:
  design = model.variant.design
  experts = model.variant.design.experts
  if not experts:
    raise UserError("design.experts is None, which this model type has in every layer")
  decoders.refuse_others(
    model,
    square=False,
    heads=False,
    mlp=False,
    norm="rmsnorm",
    tied=[True, False],
    windows=(design.windows[0],),
    activation=list(decoders.GATED.values()),
    experts=[experts],
    experts_every=1,
  )
  decoders.refuse_experts(experts, normalised=True)
  return {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    **llama.sizes_config(model),
    "sliding_window": design.windows[0],
    "num_local_experts": experts.experts,
    "num_experts_per_tok": experts.top_k,
    "router_aux_loss_coef": experts.balance_loss,
    "router_jitter_noise": experts.jitter,
  }


def tensors(m: TensorMapping) -> None:
  llama.map_decoder(m, _experts)


def _experts(m: TensorMapping, theirs: str, ours: str, at: int) -> None:
  ours = ours.format("moe")
  block = f"{theirs}.block_sparse_moe"
  m.norm(f"{theirs}.post_attention_layernorm", f"{ours}/in_norm", at)
  m.transposed(f"{block}.gate.weight", f"{ours}/layer/router/kernel", at)
  llama.experts(m, f"{block}.experts", f"{ours}/layer", at, {"w1": "gate", "w2": "wo", "w3": "wi"})

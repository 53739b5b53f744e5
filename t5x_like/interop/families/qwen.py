"""Qwen 2, 2.5 and 3: Llama's layout, with biases or norms on queries and keys, and with experts."""

import dataclasses

from t5x_like.errors import UserError
from t5x_like.interop import decoders
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.families import llama
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.models import qwen
from t5x_like.nn.feed_forward import Experts

MODEL_TYPES = ("qwen2", "qwen3", "qwen3_moe")
MODELS = (qwen.Model,)
BODY_PREFIX = "model."


def read_config(fields: Fields, tensor_names: set[str]):
  kind = fields.values["model_type"]
  fields.require("use_mrope", False)
  design = dataclasses.replace(
    qwen.QWEN2 if kind == "qwen2" else qwen.QWEN3,
    norm_epsilon=fields.take("rms_norm_eps", 1e-6),
    activation=fields.choose("hidden_act", decoders.GATED_ACTIVATIONS, "silu"),
    position=decoders.read_rope(fields),
    windows=_windows(fields, every=kind == "qwen3_moe"),
    tied=fields.take("tie_word_embeddings", False),
  )
  sizes = dict(kv_heads=32, head_dim=128 if kind == "qwen3" else None, ids=qwen.TOKENS)
  if kind != "qwen2":
    design = dataclasses.replace(
      design, biases=("qkv", "out") if fields.take("attention_bias", False) else ()
    )
  if kind == "qwen3_moe":
    every = _experts_every(fields)
    design = dataclasses.replace(design, experts=_experts(fields, every), experts_every=every)
    sizes |= dict(kv_heads=4, mlp="moe_intermediate_size" if every == 1 else "intermediate_size")
  return qwen.Model, {"variant": llama.read_variant(fields, design, **sizes)}


def _windows(fields: Fields, every: bool) -> tuple[int | None, ...]:
  """Return the windows of a period; of a dense model's layers, only those from `max_window_layers`
  on have one."""
  window = decoders.take_nullable(fields, "sliding_window", 4096)
  window = window if fields.take("use_sliding_window", False) else None
  first = fields.take("max_window_layers", 28)
  local = decoders.read_local_layers(
    fields, lambda layer: window is not None and (every or layer >= first)
  )
  return tuple(window if here else None for here in local)


def _experts_every(fields: Fields) -> int:
  """Return N, if only every N-th layer has experts; raise UserError if the layers are no whole
  periods."""
  every = fields.take("decoder_sparse_step", 1)
  layers = fields.take("num_hidden_layers")
  if every < 1 or layers % every:
    raise fields.refusal("decoder_sparse_step", every, f"a divisor of the {layers} layers")
  return every


def _experts(fields: Fields, every: int) -> Experts:
  """Return the experts of a config; those beside dense layers have a width of their own."""
  fields.ignore("intermediate_size")
  fields.require("mlp_only_layers", [], None)
  # the new and the old spelling
  experts = fields.take("num_local_experts", 0) or fields.take("num_experts", 128)
  fields.ignore("num_experts")
  top_k = fields.take("num_experts_per_tok", 8)
  if not 2 <= top_k <= experts:
    raise fields.refusal("num_experts_per_tok", top_k, f"2 to {experts}")
  return dataclasses.replace(
    qwen.QWEN3_MOE.experts,
    experts=experts,
    top_k=top_k,
    mlp=None if every == 1 else fields.take("moe_intermediate_size"),
    normalise=fields.take("norm_topk_prob", False),
    balance_loss=float(fields.take("router_aux_loss_coef", 0.001)),
  )


def write_config(model, model_type: str | None) -> dict:
  design = model.variant.design
  dims = model.variant.dims
  experts = model.variant.design.experts
  old = not design.qk_norm
  decoders.require_plain_decoder(
    model,
    square=old,
    heads=False,
    mlp=False,
    norm="rmsnorm",
    biases=("qkv",) if old else [(), ("qkv", "out")],
    qk_norm=[True, False],
    activation=list(decoders.GATED_ACTIVATIONS.values()),
    experts=[None] if old else [experts],
    experts_every=design.experts_every if experts else 1,
    tied=[True, False],
    **decoders.allow_one_window(design),
  )
  name, model_type = (
    ("Qwen2", "qwen2") if old else ("Qwen3Moe", "qwen3_moe") if experts else ("Qwen3", "qwen3")
  )
  window = decoders.window_width(design, None)
  sizes = llama.write_sizes(model)
  if old or (experts and dims.embed == dims.heads * dims.head_dim):
    del sizes["head_dim"]
  values = {
    "architectures": [f"{name}ForCausalLM"],
    "model_type": model_type,
    **sizes,
    "use_sliding_window": window is not None,
    "sliding_window": window,
  }
  if not old:
    values["attention_bias"] = bool(design.biases)
  if not experts:
    return values | {"layer_types": decoders.write_layer_types(design.windows, dims.layers)}
  if len(design.windows) > 1:
    raise UserError(
      f"design.windows is {design.windows!r}; with experts, this type has the same in every layer"
    )
  if (experts.mlp is None) != (design.experts_every == 1):
    raise UserError(
      f"design.experts.mlp is {experts.mlp}; this type has a width of experts only "
      "beside dense layers"
    )
  decoders.require_dropless_experts(dataclasses.replace(experts, mlp=None), normalised=False)
  if design.experts_every > 1:
    values["decoder_sparse_step"] = design.experts_every
  return values | {
    "moe_intermediate_size": experts.mlp or dims.mlp,
    "num_local_experts": experts.experts,
    "num_experts": experts.experts,
    "num_experts_per_tok": experts.top_k,
    "norm_topk_prob": experts.normalise is not False,
    "router_aux_loss_coef": experts.balance_loss,
  }


def map_tensors(mapping: TensorMapping) -> None:
  llama.map_decoder(mapping, _experts_of if mapping.model.variant.design.experts else llama.map_mlp)


def _experts_of(mapping: TensorMapping, hf_name: str, path: str, index: int) -> None:
  if f"{path.format('moe')}/in_norm/scale" not in mapping.parameter_names:
    llama.map_mlp(mapping, hf_name, path, index)
    return
  path = path.format("moe")
  mapping.norm(f"{hf_name}.post_attention_layernorm", f"{path}/in_norm", index)
  mapping.transpose(f"{hf_name}.mlp.gate.weight", f"{path}/layer/router/kernel", index)
  llama.map_experts(mapping, f"{hf_name}.mlp.experts", f"{path}/layer", index)

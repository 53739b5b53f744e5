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
  model_type = fields.values["model_type"]
  fields.require("use_mrope", False)
  design = dataclasses.replace(
    qwen.QWEN2 if model_type == "qwen2" else qwen.QWEN3,
    norm_epsilon=fields.take("rms_norm_eps", 1e-6),
    activation=fields.choose("hidden_act", decoders.GATED_ACTIVATIONS, "silu"),
    position=decoders.read_rope(fields),
    windows=_read_windows(fields, in_every_layer=model_type == "qwen3_moe"),
    tied=fields.take("tie_word_embeddings", False),
  )
  sizes = dict(kv_heads=32, head_dim=128 if model_type == "qwen3" else None, ids=qwen.TOKENS)
  if model_type != "qwen2":
    design = dataclasses.replace(
      design, biases=("qkv", "out") if fields.take("attention_bias", False) else ()
    )
  if model_type == "qwen3_moe":
    period = _read_expert_period(fields)
    experts = _read_experts(fields, period)
    design = dataclasses.replace(design, experts=experts, experts_every=period)
    sizes |= dict(kv_heads=4, mlp="moe_intermediate_size" if period == 1 else "intermediate_size")
  return qwen.Model, {"variant": llama.read_variant(fields, design, **sizes)}


def _read_windows(fields: Fields, in_every_layer: bool) -> tuple[int | None, ...]:
  """Return the windows of a period.

  Args:
    in_every_layer: whether all layers may have one, or only those from `max_window_layers` on.
  """
  window = decoders.take_nullable(fields, "sliding_window", 4096)
  if not fields.take("use_sliding_window", False):
    window = None
  first = fields.take("max_window_layers", 28)
  if in_every_layer:
    first = 0
  is_local = decoders.read_local_layers(fields, lambda layer: window is not None and layer >= first)
  return decoders.arrange_windows(is_local, window)


def _read_expert_period(fields: Fields) -> int:
  """Return N, if only every N-th layer has experts.

  Raises:
    UserError: the layers are not whole periods of N.
  """
  period = fields.take("decoder_sparse_step", 1)
  layers = fields.take("num_hidden_layers")
  if period < 1 or layers % period:
    raise fields.refusal("decoder_sparse_step", period, f"a divisor of the {layers} layers")
  return period


def _read_experts(fields: Fields, period: int) -> Experts:
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
    mlp=None if period == 1 else fields.take("moe_intermediate_size"),
    normalise=fields.take("norm_topk_prob", False),
    balance_loss=float(fields.take("router_aux_loss_coef", 0.001)),
  )


def write_config(model, model_type: str | None) -> dict:
  design = model.variant.design
  dims = model.variant.dims
  experts = model.variant.design.experts
  is_qwen2 = not design.qk_norm
  decoders.require_plain_decoder(
    model,
    square=is_qwen2,
    heads=False,
    mlp=False,
    norm="rmsnorm",
    biases=("qkv",) if is_qwen2 else [(), ("qkv", "out")],
    qk_norm=[True, False],
    activation=list(decoders.GATED_ACTIVATIONS.values()),
    experts=[None] if is_qwen2 else [experts],
    experts_every=design.experts_every if experts else 1,
    tied=[True, False],
    **decoders.allow_one_window(design),
  )
  if is_qwen2:
    class_name, model_type = "Qwen2ForCausalLM", "qwen2"
  elif experts:
    class_name, model_type = "Qwen3MoeForCausalLM", "qwen3_moe"
  else:
    class_name, model_type = "Qwen3ForCausalLM", "qwen3"
  window = decoders.window_width(design, None)
  sizes = llama.write_sizes(model)
  if is_qwen2 or (experts and dims.embed == dims.heads * dims.head_dim):
    del sizes["head_dim"]
  values = {
    "architectures": [class_name],
    "model_type": model_type,
    **sizes,
    "use_sliding_window": window is not None,
    "sliding_window": window,
  }
  if not is_qwen2:
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
  llama.map_decoder(mapping, _map_feed_forward)


def _map_feed_forward(
  mapping: TensorMapping, hf_layer: str, path_template: str, index: int
) -> None:
  moe = path_template.format("moe")
  if f"{moe}/in_norm/scale" not in mapping.parameter_names:
    llama.map_mlp(mapping, hf_layer, path_template, index)
    return
  mapping.norm(f"{hf_layer}.post_attention_layernorm", f"{moe}/in_norm", index)
  mapping.transpose(f"{hf_layer}.mlp.gate.weight", f"{moe}/layer/router/kernel", index)
  llama.map_experts(mapping, f"{hf_layer}.mlp.experts", f"{moe}/layer", index)

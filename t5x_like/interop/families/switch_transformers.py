"""Switch Transformers.

We drop no tokens, so logits equal the library's as long as no expert gets more than the config's
`expert_capacity` tokens (64 by default) of one sequence; models trained here are written with a
capacity that none exceeds.
"""

import dataclasses

from t5x_like.architectures.design import Variant
from t5x_like.errors import UserError
from t5x_like.interop.config_fields import Fields, find_key
from t5x_like.interop.families.t5 import map_stacks, read_special_tokens, require_t5_design
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.models import switch
from t5x_like.models.t5 import V1_0
from t5x_like.nn.dims import Dims

MODEL_TYPES = ("switch_transformers",)
MODELS = (switch.Model,)
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "silu": "silu"}


def read_config(fields: Fields, tensor_names: set[str]):
  layers = fields.take("num_layers")
  heads = fields.take("num_heads")
  decoder_layers = fields.take("num_decoder_layers", layers)
  sparse = fields.take("num_sparse_encoder_layers", 3)
  every = fields.take("encoder_sparse_step", layers // sparse if sparse else 0)
  fields.require("decoder_sparse_step", every)
  if every not in (1, 2):
    raise fields.refusal("encoder_sparse_step", every, "1 or 2")
  fields.require("router_bias", False)
  fields.require("router_type", "tokens_masked")
  fields.require("feed_forward_proj", "relu")
  fields.ignore(
    "num_sparse_decoder_layers",
    "expert_capacity",
    "router_dtype",
    "router_ignore_padding_tokens",
    "add_router_probs",
    "dropout_rate",
    "batch_prioritized_routing",
    "n_positions",
    "is_gated_act",
    "num_selected_experts",
  )
  routing = dataclasses.replace(
    switch.ROUTING,
    experts=fields.take("num_experts"),
    jitter=fields.take("router_jitter_noise", 0.01),
    balance_loss=fields.take("router_aux_loss_coef", 0.001),
    z_loss=fields.take("router_z_loss_coef", 0.001),
  )
  design = dataclasses.replace(
    V1_0,
    activation=fields.choose("dense_act_fn", ACTIVATIONS, "relu"),
    norm_epsilon=fields.take("layer_norm_epsilon", 1e-6),
    position={
      "name": "relative_bias",
      "buckets": fields.take("relative_attention_num_buckets", 32),
      "max_distance": fields.take("relative_attention_max_distance", 128),
    },
    experts=routing,
    experts_every=every,
    tied="lm_head.weight" not in tensor_names,
    logits_scale=fields.take("tie_word_embeddings", True),
  )
  dims = Dims(
    fields.take("d_model"), heads, heads, fields.take("d_kv"), fields.take("d_ff"), layers
  )
  tokens = read_special_tokens(fields)
  variant = Variant(dims, design, fields.take("vocab_size"), tokens, decoder_layers=decoder_layers)
  return switch.Model, {"variant": variant}


def write_config(model, model_type: str | None) -> dict:
  require_t5_design(model, activation=list(ACTIVATIONS.values()))
  variant = model.variant
  design = model.variant.design
  position = {"name": design.position} if isinstance(design.position, str) else design.position
  experts = design.experts
  dims = variant.dims
  if (
    position["name"] != "relative_bias"
    or not position.get("shared", True)
    or "bidirectional" in position
  ):
    raise UserError(
      f"design.position is {design.position!r}; this type supports only 'relative_bias'"
    )
  is_supported = (
    experts
    and experts.top_k == 1
    and experts.router == "softmax"
    and not (experts.mlp or experts.shared or experts.normalise)
  )
  if not is_supported:
    raise UserError(
      f"design.experts is {experts!r}; this type supports only one expert per token, as wide as "
      "the MLP, by its probability"
    )
  decoder_layers = variant.decoder_dims.layers
  return {
    "architectures": ["SwitchTransformersForConditionalGeneration"],
    "model_type": "switch_transformers",
    "is_encoder_decoder": True,
    "vocab_size": variant.vocab_size,
    "d_model": dims.embed,
    "d_kv": dims.head_dim,
    "d_ff": dims.mlp,
    "num_layers": dims.layers,
    "num_decoder_layers": decoder_layers,
    "num_sparse_encoder_layers": dims.layers // design.experts_every,
    "num_sparse_decoder_layers": decoder_layers // design.experts_every,
    "num_heads": dims.heads,
    "num_experts": experts.experts,
    "expert_capacity": 2**20,  # none is dropped
    "router_jitter_noise": experts.jitter,
    "router_aux_loss_coef": experts.balance_loss,
    "router_z_loss_coef": experts.z_loss,
    "relative_attention_num_buckets": position.get("buckets", 32),
    "relative_attention_max_distance": position.get("max_distance", 128),
    "layer_norm_epsilon": design.norm_epsilon,
    "dense_act_fn": find_key(ACTIVATIONS, design.activation),
    "tie_word_embeddings": design.logits_scale,
    "pad_token_id": variant.tokens.pad,
    "eos_token_id": variant.tokens.eos,
    "decoder_start_token_id": variant.tokens.start,
  }


def map_tensors(mapping: TensorMapping) -> None:
  def feed_forward(mapping: TensorMapping, hf_name: str, path: str, index: int) -> None:
    if f"{path}/wi/kernel" in mapping.parameter_names:
      mapping.linear(f"{hf_name}.mlp.wi", f"{path}/wi", index)
      mapping.linear(f"{hf_name}.mlp.wo", f"{path}/wo", index)
      return
    mapping.linear(f"{hf_name}.mlp.router.classifier", f"{path}/router", index)
    for expert in range(mapping.model.variant.design.experts.experts):
      for name in ("wi", "wo"):
        mapping.transpose(
          f"{hf_name}.mlp.experts.expert_{expert}.{name}.weight", f"{path}/{name}", index, expert
        )

  map_stacks(mapping, feed_forward)

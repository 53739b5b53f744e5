"""Switch Transformers.

No tokens are dropped here, so logits equal those of `transformers` as long as no expert gets more
than `expert_capacity` tokens (64 by default) of one sequence. Models trained here are written with
a capacity that no expert exceeds.
"""

import dataclasses
from typing import Any

from t5x_like.architectures.design import Variant
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.config_table import (
  Choice,
  Custom,
  Field,
  Ignored,
  ModelType,
  Required,
  WriteOnly,
)
from t5x_like.interop.families import t5
from t5x_like.models import switch
from t5x_like.models.t5 import V1_0

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "silu": "silu"}


def _read_expert_layers(fields: Fields) -> dict[str, Any]:
  """Return the period of the layers with experts, which both stacks share."""
  layers = fields.take("num_layers")
  sparse = fields.take("num_sparse_encoder_layers", 3)
  every = fields.take("encoder_sparse_step", layers // sparse if sparse else 0)
  fields.require("decoder_sparse_step", every)
  fields.ignore("num_sparse_decoder_layers")
  if every not in (1, 2):
    raise fields.refusal("encoder_sparse_step", every, "1 or 2")
  return {"design.experts_every": every}


def _write_expert_layers(variant: Variant) -> dict[str, Any]:
  every = variant.design.experts_every
  return {
    "num_sparse_encoder_layers": variant.dims.layers // every,
    "num_sparse_decoder_layers": variant.decoder_dims.layers // every,
  }


ENTRIES = (
  *t5.COMMON_ENTRIES,
  Choice("dense_act_fn", "design.activation", ACTIVATIONS, default="relu"),
  # Tied embeddings imply that the decoder's output is scaled before the logits, as in T5.
  Field("tie_word_embeddings", "design.logits_scale", default=True),
  Custom(_read_expert_layers, _write_expert_layers),
  Field("num_experts", "design.experts.experts"),
  Field("router_jitter_noise", "design.experts.jitter", default=0.01),
  Field("router_aux_loss_coef", "design.experts.balance_loss", default=0.001),
  Field("router_z_loss_coef", "design.experts.z_loss", default=0.001),
  WriteOnly("expert_capacity", 2**20),  # so no token is dropped
  Required("router_bias", False),
  Required("router_type", "tokens_masked"),
  Required("feed_forward_proj", "relu"),
  Ignored("router_dtype", "router_ignore_padding_tokens", "add_router_probs"),
  Ignored("batch_prioritized_routing", "is_gated_act", "num_selected_experts"),
)
MLP = {
  "layer_norm": ("mlp/in_norm", "moe/in_norm"),
  "mlp.wi": "mlp/layer/wi",
  "mlp.wo": "mlp/layer/wo",
  "mlp.router.classifier": "moe/layer/router",
  "mlp.experts.expert_{expert}.wi": "moe/layer/wi",
  "mlp.experts.expert_{expert}.wo": "moe/layer/wo",
}
_DESIGN = dataclasses.replace(V1_0, position="relative_bias", experts=switch.ROUTING)

TYPES = (
  ModelType(
    "switch_transformers",
    "SwitchTransformersForConditionalGeneration",
    switch.Model,
    _DESIGN,
    ENTRIES,
    t5.stack_tensors(MLP),
    **t5.TENSOR_OPTIONS,
  ),
)

"""ModernBERT, with its masked language model head."""

import functools
from typing import Any

from t5x_like.architectures.design import Variant
from t5x_like.interop import encoders
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.config_table import (
  Choice,
  Custom,
  Field,
  Ignored,
  ModelType,
  Required,
)
from t5x_like.interop.decoders import FULL, LOCAL, require_rope, window_width, write_layer_types
from t5x_like.interop.encoders import Classes, Head, SpecialTokens
from t5x_like.interop.tensor_layouts import map_stacked
from t5x_like.interop.tensor_mapping import Layout, prefix_table
from t5x_like.models import modernbert

NORMS = {False: "layernorm_no_bias", True: "layernorm"}
HEAD = Head(
  "ForMaskedLM", "mlm", {"head.dense": "dense", "head.norm": "norm", "decoder.bias": "lm/bias"}
)


def _read_layers(fields: Fields) -> dict[str, Any]:
  """Return the windows and positions of all layers."""
  layer_types = _read_layer_types(fields, fields.take("num_hidden_layers"))
  positions = _read_positions(fields)
  # half on either side
  windows = {FULL: None, LOCAL: fields.take("local_attention", 128) // 2 + 1}
  return {
    "design.windows": tuple(windows[layer_type] for layer_type in layer_types),
    "design.position": tuple(positions[layer_type] for layer_type in layer_types),
  }


def _read_layer_types(fields: Fields, layers: int) -> list[str]:
  """Return the type of each layer."""
  period = fields.take("global_attn_every_n_layers", 3)
  default = [LOCAL if layer % period else FULL for layer in range(layers)]
  layer_types = fields.take("layer_types", default)
  unknown = sorted(set(layer_types) - {FULL, LOCAL})
  if unknown:
    raise fields.refusal("layer_types", unknown[0], f"{FULL!r} or {LOCAL!r}")
  return layer_types


def _read_positions(fields: Fields) -> dict[str, dict]:
  """Return the rotary positions of each type of layer.

  Older files have the base of each type in a field of its own.
  """
  parameters = fields.take("rope_parameters", {})
  older_thetas = {
    FULL: fields.take("global_rope_theta", 160_000.0),
    LOCAL: fields.take("local_rope_theta", 10_000.0),
  }
  positions = {}
  for layer_type, theta in older_thetas.items():
    rope = {"rope_type": "default", "rope_theta": theta} | (parameters.get(layer_type) or {})
    if rope.keys() > {"rope_type", "rope_theta"} or rope["rope_type"] != "default":
      raise fields.refusal(
        f"rope_parameters.{layer_type}", rope, "rope_type 'default' and a rope_theta"
      )
    positions[layer_type] = {"name": "rope", "theta": float(rope["rope_theta"])}
  return positions


def _write_layers(variant: Variant) -> dict[str, Any]:
  """Return the fields of windows and positions, from the first layer of each type."""
  design = variant.design
  positions = design.position if isinstance(design.position, tuple) else (design.position,)
  layer_types = write_layer_types(variant)["layer_types"]
  parameters: dict[str, dict] = {}
  for layer, layer_type in enumerate(layer_types):
    position = require_rope(positions[layer % len(positions)])
    rope = {"rope_theta": position.get("theta", 10_000.0), "rope_type": "default"}
    parameters.setdefault(layer_type, rope)
  return {
    "layer_types": layer_types,
    "local_attention": 2 * (window_width(variant, 65) - 1),
    "rope_parameters": parameters,
  }


MODERNBERT = (
  *encoders.SIZES,
  Field("norm_eps", "design.norm_epsilon", default=1e-5),
  Choice("norm_bias", "design.norm", NORMS, default=False),
  Choice("hidden_activation", "design.activation", {"gelu": "geglu"}, default="gelu"),
  Custom(_read_layers, _write_layers),
  SpecialTokens(modernbert.TOKENS, "bos_token_id", "cls_token_id", "eos_token_id", "sep_token_id"),
  Required("architectures", ["ModernBertForMaskedLM"]),
  Classes("ModernBert", (HEAD,)),
  Required("position_embedding_type", "absolute"),
  Required("classifier_activation", "gelu"),
  Required("attention_bias", False),
  Required("mlp_bias", False),
  Required("classifier_bias", False),
  Required("decoder_bias", True),
  Ignored("attention_dropout", "embedding_dropout", "mlp_dropout", "classifier_pooling"),
  Ignored("reference_compile", "deterministic_flash_attn", "initializer_cutoff_factor"),
  Ignored("sparse_prediction", "layer_norm_eps", "sparse_pred_ignore_index"),
  Ignored("repad_logits_with_grad", "max_position_embeddings"),
)
LAYER = {
  "attn_norm": "self_attention/in_norm",
  "attn.Wqkv": Layout("self_attention/layer", map_stacked),
  "attn.Wo": "self_attention/layer/out",
  "mlp_norm": "mlp/in_norm",
  "mlp.Wi": Layout("mlp/layer", functools.partial(map_stacked, parts=("gate", "wi"))),
  "mlp.Wo": "mlp/layer/wo",
}
TENSORS = {
  "model.embeddings.tok_embeddings": "embed",
  "model.embeddings.norm": "inputs/norm",
  **prefix_table("model.layers.{layer}.", "encoder/blocks/", LAYER),
  "model.final_norm": "encoder/final_norm",
  **prefix_table("", "head/", HEAD.tensors),
}
TYPES = (
  ModelType(
    "modernbert",
    "",
    modernbert.Model,
    modernbert.DESIGN,
    MODERNBERT,
    TENSORS,
    tied={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    free=encoders.FILES["free"],
  ),
)

"""ModernBERT, with its masked language model head."""

import dataclasses

from t5x_like.architectures.design import Variant
from t5x_like.errors import UserError
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.decoders import FULL, LOCAL
from t5x_like.interop.encoders import read_special_tokens
from t5x_like.interop.fused_tensors import map_stacked
from t5x_like.interop.hf import require_design
from t5x_like.interop.tensor_mapping import TensorMapping, locate_layers
from t5x_like.models import modernbert
from t5x_like.nn.cores.auto import EXACT_CORES
from t5x_like.nn.dims import Dims

MODEL_TYPES = ("modernbert",)
MODELS = (modernbert.Model,)
NORMS = {False: "layernorm_no_bias", True: "layernorm"}


def read_config(fields: Fields, tensor_names: set[str]):
  fields.ignore(
    "attention_dropout",
    "embedding_dropout",
    "mlp_dropout",
    "classifier_pooling",
    "reference_compile",
    "deterministic_flash_attn",
    "initializer_cutoff_factor",
    "sparse_prediction",
    "layer_norm_eps",
    "sparse_pred_ignore_index",
    "repad_logits_with_grad",
    "max_position_embeddings",
  )
  fields.require("architectures", ["ModernBertForMaskedLM"])
  fields.require("position_embedding_type", "absolute")
  fields.require("classifier_activation", "gelu")
  fields.require("attention_bias", False)
  fields.require("mlp_bias", False)
  fields.require("classifier_bias", False)
  fields.require("decoder_bias", True)
  fields.require("tie_word_embeddings", True)
  D = fields.take("hidden_size")
  N = fields.take("num_attention_heads")
  layers = fields.take("num_hidden_layers")
  layer_types = _read_layer_types(fields, layers)
  positions = _read_positions(fields)
  # half on either side
  windows = {FULL: None, LOCAL: fields.take("local_attention", 128) // 2 + 1}
  design = dataclasses.replace(
    modernbert.DESIGN,
    norm=fields.choose("norm_bias", NORMS, False),
    norm_epsilon=fields.take("norm_eps", 1e-5),
    activation=fields.choose("hidden_activation", {"gelu": "geglu"}, "gelu"),
    windows=tuple(windows[layer_type] for layer_type in layer_types),
    position=tuple(positions[layer_type] for layer_type in layer_types),
    init_stddev=fields.values.get("initializer_range", 0.02),
  )
  dims = Dims(D, N, N, D // N, fields.take("intermediate_size"), layers)
  tokens = read_special_tokens(fields, modernbert.TOKENS)
  return modernbert.Model, {"variant": Variant(dims, design, fields.take("vocab_size"), tokens)}


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


def write_config(model, model_type: str | None) -> dict:
  variant = model.variant
  design = model.variant.design
  dims = model.variant.dims
  require_design(
    model,
    norm=list(NORMS.values()),
    norm_position="pre",
    parallel="no",
    activation="geglu",
    biases=(),
    qk_norm=False,
    attention_scale=None,
    softcap=None,
    logits_scale=False,
    experts=None,
    embed_scale=False,
    embed_norm=True,
    core=[*EXACT_CORES],
  )
  if variant.head != "mlm" or variant.types or variant.embed or dims.kv_heads != dims.heads:
    raise UserError(
      f"the head {variant.head!r}, types={variant.types}, embed={variant.embed}, {dims}: "
      "ModernBERT is written with the head 'mlm', no types, and as many key/value heads as heads"
    )
  layer_types = [FULL if window is None else LOCAL for window in design.windows]
  thetas = _write_thetas(layer_types, design.position)
  windows = {window for window in design.windows if window is not None}
  if len(windows) > 1:
    raise UserError(f"design.windows has {sorted(windows)}; this type supports only one width")
  return {
    "architectures": ["ModernBertForMaskedLM"],
    "model_type": "modernbert",
    "vocab_size": variant.vocab_size,
    "hidden_size": dims.embed,
    "intermediate_size": dims.mlp,
    "num_hidden_layers": dims.layers,
    "num_attention_heads": dims.heads,
    "hidden_activation": "gelu",
    "norm_eps": design.norm_epsilon,
    "norm_bias": design.norm == "layernorm",
    "initializer_range": design.init_stddev or 0.02,
    "layer_types": layer_types,
    "local_attention": 2 * (max(windows, default=65) - 1),
    "rope_parameters": {
      layer_type: {"rope_theta": theta, "rope_type": "default"}
      for layer_type, theta in thetas.items()
    },
    "pad_token_id": variant.tokens.pad,
    "bos_token_id": variant.tokens.start,
    "cls_token_id": variant.tokens.start,
    "eos_token_id": variant.tokens.eos,
    "sep_token_id": variant.tokens.eos,
    "tie_word_embeddings": True,
  }


def _write_thetas(layer_types: list[str], positions: tuple) -> dict[str, float]:
  """Return the base of the rotary positions of each type of layer.

  Raises:
    UserError: layers of one type differ, or have other positions.
  """
  thetas = {}
  for layer_type, position in zip(layer_types, positions, strict=True):
    scheme = {"name": position} if isinstance(position, str) else position
    theta = scheme.get("theta", 10_000.0)
    is_rope = scheme["name"] == "rope" and not scheme.keys() - {"name", "theta"}
    if not is_rope or thetas.setdefault(layer_type, theta) != theta:
      raise UserError(
        f"design.position has {position!r}; this type supports only 'rope' with one theta for the "
        "layers that see all tokens and one for the others"
      )
  return thetas


def map_tensors(mapping: TensorMapping) -> None:
  mapping.tied = {"decoder.weight": "model.embeddings.tok_embeddings.weight"}
  mapping.copy("model.embeddings.tok_embeddings.weight", "embed/table")
  mapping.norm("model.embeddings.norm", "inputs/norm")
  layers = mapping.model.variant.dims.layers
  for layer, (suffix, index) in enumerate(locate_layers(mapping.model.encoder, layers)):
    hf_layer = f"model.layers.{layer}"
    attention = f"encoder/blocks/self_attention{suffix}"
    mlp = f"encoder/blocks/mlp{suffix}"
    if f"{attention}/in_norm/scale" in mapping.parameter_names:
      mapping.norm(f"{hf_layer}.attn_norm", f"{attention}/in_norm", index)
    map_stacked(mapping, f"{hf_layer}.attn.Wqkv", f"{attention}/layer", index)
    mapping.linear(f"{hf_layer}.attn.Wo", f"{attention}/layer/out", index)
    mapping.norm(f"{hf_layer}.mlp_norm", f"{mlp}/in_norm", index)
    map_stacked(mapping, f"{hf_layer}.mlp.Wi", f"{mlp}/layer", index, parts=("gate", "wi"))
    mapping.linear(f"{hf_layer}.mlp.Wo", f"{mlp}/layer/wo", index)
  mapping.norm("model.final_norm", "encoder/final_norm")
  mapping.linear("head.dense", "head/dense")
  mapping.norm("head.norm", "head/norm")
  mapping.copy("decoder.bias", "head/lm/bias")

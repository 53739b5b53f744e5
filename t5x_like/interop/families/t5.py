"""T5 1.0 and 1.1, mT5, umT5 and ByT5."""

import dataclasses
from collections.abc import Callable

from t5x_like.architectures.design import Tokens, Variant
from t5x_like.errors import UserError
from t5x_like.interop.config_fields import Fields, find_key
from t5x_like.interop.hf import exact_cores, require_design
from t5x_like.interop.tensor_mapping import TensorMapping, locate_layers
from t5x_like.models import t5
from t5x_like.nn.dims import Dims

MODEL_TYPES = ("t5", "mt5", "umt5")
MODELS = (t5.Model,)
ACTIVATIONS = {
  "relu": "relu",
  "gated-gelu": "geglu_tanh",
  "gated-silu": "swiglu",
  "gelu": "gelu",
  "gated-relu": "reglu",
  "gated-gelu_new": "geglu_tanh",
  "gated-swish": "swiglu",
  "silu": "silu",
  "swish": "silu",
  "gelu_new": "gelu_tanh",
}
ATTENTION_NAMES = ("q", "k", "v", "o")


def read_config(fields: Fields, tensor_names: set[str]):
  model_type = fields.values["model_type"]
  # Whether the output is scaled: T5 files of the library's version 5 say so; in older files and
  # umT5, tied weights imply it; mT5 never scales.
  is_scaled = fields.take("scale_decoder_outputs", fields.take("tie_word_embeddings", True))
  fields.ignore("dropout_rate", "n_positions")
  default_projection = "relu" if model_type == "t5" else "gated-gelu"
  projection = fields.take("feed_forward_proj", default_projection)
  activation = fields.choose("feed_forward_proj", ACTIVATIONS, projection)
  if projection == "gated-gelu":
    fields.require("dense_act_fn", "gelu_new", "gelu_pytorch_tanh")
  else:
    fields.require("dense_act_fn", projection.removeprefix("gated-"))
  fields.require("is_gated_act", projection.startswith("gated-"))
  design = dataclasses.replace(
    t5.V1_0,
    activation=activation,
    norm_epsilon=fields.take("layer_norm_epsilon", 1e-6),
    position={
      "name": "relative_bias",
      "buckets": fields.take("relative_attention_num_buckets", 32),
      "max_distance": fields.take("relative_attention_max_distance", 128),
      "shared": model_type != "umt5",
    },
    tied="lm_head.weight" not in tensor_names,
    logits_scale=is_scaled and model_type != "mt5",
  )
  heads = fields.take("num_heads")
  layers = fields.take("num_layers")
  dims = Dims(
    fields.take("d_model"), heads, heads, fields.take("d_kv"), fields.take("d_ff"), layers
  )
  tokens = read_special_tokens(fields)
  decoder_layers = fields.take("num_decoder_layers", layers)
  return t5.Model, {
    "variant": Variant(
      dims, design, fields.take("vocab_size"), tokens, decoder_layers=decoder_layers
    )
  }


def read_special_tokens(fields: Fields) -> Tokens:
  """Return the special ids of a config.

  Padding starts the decoder by default. The first of several end ids counts.
  """
  pad = fields.take("pad_token_id", 0)
  start = fields.values.get("decoder_start_token_id") or pad
  eos = fields.take("eos_token_id", 1)
  if isinstance(eos, list):
    eos = eos[0]
  return Tokens(pad, start, eos)


def require_t5_design(model, **expected) -> None:
  """Refuse designs that are not T5's.

  Args:
    expected: allowed values of fields in which the family differs.
  Raises:
    UserError: a field has another value; names it.
  """
  variant = model.variant
  t5_design = dict(
    norm="rmsnorm",
    norm_position="pre",
    parallel="no",
    biases=(),
    qk_norm=False,
    attention_scale=1.0,
    softcap=None,
    windows=(None,),
    core=exact_cores(variant.design),
    embed_scale=False,
    embed_norm=False,
    logits_scale=[True, False],
    logits_softcap=None,
    logits_bias=False,
  )
  require_design(model, **t5_design | expected)
  if variant.shared or variant.embed or variant.dims.kv_heads != variant.dims.heads:
    raise UserError(
      f"{variant.dims} with shared={variant.shared}, embed={variant.embed}: this type has an "
      "encoder of its own, a table as wide as the stack, and as many key/value heads as heads"
    )
  sizes = dataclasses.replace(variant.decoder_dims, layers=variant.dims.layers)
  if sizes != variant.dims:
    raise UserError(
      f"{sizes} of the decoder beside {variant.dims}: this type has stacks that "
      "differ in layers alone"
    )


def write_config(model, model_type: str | None) -> dict:
  require_t5_design(model, experts=None, activation=list(ACTIVATIONS.values()))
  variant = model.variant
  design = model.variant.design
  position = {"name": design.position} if isinstance(design.position, str) else design.position
  expressible = position["name"] == "relative_bias" and "bidirectional" not in position
  require_design(model, position=[design.position] if expressible else ["relative_bias"])
  dims = variant.dims
  if not position.get("shared", True):
    model_type = "umt5"
  elif model_type != "mt5" or design.logits_scale:
    model_type = "t5"
  return {
    "architectures": [f"{model_type.upper()}ForConditionalGeneration"],
    "model_type": model_type,
    "is_encoder_decoder": True,
    "vocab_size": variant.vocab_size,
    "d_model": dims.embed,
    "d_kv": dims.head_dim,
    "d_ff": dims.mlp,
    "num_layers": dims.layers,
    "num_decoder_layers": variant.decoder_dims.layers,
    "num_heads": dims.heads,
    "relative_attention_num_buckets": position.get("buckets", 32),
    "relative_attention_max_distance": position.get("max_distance", 128),
    "layer_norm_epsilon": design.norm_epsilon,
    "feed_forward_proj": find_key(ACTIVATIONS, design.activation),
    # the library takes it to mean scaling in this family
    "tie_word_embeddings": design.logits_scale,
    **({"scale_decoder_outputs": design.logits_scale} if model_type == "t5" else {}),
    "pad_token_id": variant.tokens.pad,
    "eos_token_id": variant.tokens.eos,
    "decoder_start_token_id": variant.tokens.start,
  }


def map_tensors(mapping: TensorMapping) -> None:
  map_stacks(mapping, map_feed_forward)


def map_stacks(mapping: TensorMapping, map_feed_forward: Callable) -> None:
  """Map both stacks, the token table and the output.

  Args:
    map_feed_forward: maps a feed-forward layer, called as `map_feed_forward(mapping, hf_name, path,
      index)`.
  """
  variant = mapping.model.variant
  mapping.copy("shared.weight", "embed/table")
  mapping.tied = {
    "encoder.embed_tokens.weight": "shared.weight",
    "decoder.embed_tokens.weight": "shared.weight",
  }
  mapping.output("shared.weight")
  # in old files, never used
  mapping.ignored_suffixes = ("EncDecAttention.relative_attention_bias.weight",)
  _map_stack(mapping, "encoder", variant.dims.layers, map_feed_forward)
  _map_stack(mapping, "decoder", variant.decoder_dims.layers, map_feed_forward)


def _map_stack(mapping: TensorMapping, side: str, layers: int, map_feed_forward: Callable) -> None:
  """Map the layers of the encoder or of the decoder."""
  hf_table = "SelfAttention.relative_attention_bias.weight"
  mapping.norm(f"{side}.final_layer_norm", f"{side}/final_norm")
  if f"{side}/position/table" in mapping.parameter_names:
    mapping.copy(f"{side}.block.0.layer.0.{hf_table}", f"{side}/position/table")
  for layer, (suffix, index) in enumerate(locate_layers(getattr(mapping.model, side), layers)):
    hf_block = f"{side}.block.{layer}.layer"
    self_attention = f"{side}/blocks/self_attention{suffix}"
    layer_table = f"{self_attention}/layer/position/table"
    if layer_table in mapping.parameter_names:
      mapping.copy(f"{hf_block}.0.{hf_table}", layer_table, index)
    mapping.attention(
      f"{hf_block}.0.SelfAttention", f"{self_attention}/layer", index, names=ATTENTION_NAMES
    )
    mapping.norm(f"{hf_block}.0.layer_norm", f"{self_attention}/in_norm", index)
    hf_feed_forward = f"{hf_block}.1"
    if side == "decoder":
      cross_attention = f"{side}/blocks/cross_attention{suffix}"
      mapping.attention(
        f"{hf_block}.1.EncDecAttention", f"{cross_attention}/layer", index, names=ATTENTION_NAMES
      )
      mapping.norm(f"{hf_block}.1.layer_norm", f"{cross_attention}/in_norm", index)
      hf_feed_forward = f"{hf_block}.2"
    feed_forward = f"{side}/blocks/mlp{suffix}"
    if f"{feed_forward}/in_norm/scale" not in mapping.parameter_names:
      feed_forward = f"{side}/blocks/moe{suffix}"
    mapping.norm(f"{hf_feed_forward}.layer_norm", f"{feed_forward}/in_norm", index)
    map_feed_forward(mapping, hf_feed_forward, f"{feed_forward}/layer", index)


def map_feed_forward(mapping: TensorMapping, hf_name: str, path: str, index: int) -> None:
  """Map the feed-forward layer, gated or not."""
  hf_layer = f"{hf_name}.DenseReluDense"
  if f"{path}/gate/kernel" in mapping.parameter_names:
    mapping.linear(f"{hf_layer}.wi_0", f"{path}/gate", index)
    mapping.linear(f"{hf_layer}.wi_1", f"{path}/wi", index)
  else:
    mapping.linear(f"{hf_layer}.wi", f"{path}/wi", index)
  mapping.linear(f"{hf_layer}.wo", f"{path}/wo", index)

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
  umt5 = fields.values["model_type"] == "umt5"
  tied = "lm_head.weight" not in tensor_names
  # Whether the output is scaled: T5 files of the library's version 5 say so; in older files and
  # umT5, tied weights imply it; mT5 never scales.
  scaled = fields.take("scale_decoder_outputs", fields.take("tie_word_embeddings", True))
  fields.ignore("dropout_rate", "n_positions")
  kind = fields.take(
    "feed_forward_proj", "relu" if fields.values["model_type"] == "t5" else "gated-gelu"
  )
  activation = fields.choose("feed_forward_proj", ACTIVATIONS, kind)
  same = (
    ("gelu_new", "gelu_pytorch_tanh") if kind == "gated-gelu" else (kind.removeprefix("gated-"),)
  )
  fields.require("dense_act_fn", *same)
  fields.require("is_gated_act", kind.startswith("gated-"))
  design = dataclasses.replace(
    t5.V1_0,
    activation=activation,
    norm_epsilon=fields.take("layer_norm_epsilon", 1e-6),
    position={
      "name": "relative_bias",
      "buckets": fields.take("relative_attention_num_buckets", 32),
      "max_distance": fields.take("relative_attention_max_distance", 128),
      "shared": not umt5,
    },
    tied=tied,
    logits_scale=scaled and fields.values["model_type"] != "mt5",
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
  """Return the special ids of a config: padding starts the decoder, and the first of several end
  ids counts."""
  pad = fields.take("pad_token_id", 0)
  eos = fields.take("eos_token_id", 1)
  return Tokens(
    pad,
    fields.values.get("decoder_start_token_id") or pad,
    eos[0] if isinstance(eos, list) else eos,
  )


def require_t5_design(model, **expected) -> None:
  """Refuse designs that are not T5's in the fields that are not `expected`; raise UserError that
  names the field."""
  variant = model.variant
  usual = dict(
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
  require_design(model, **usual | expected)
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


def map_stacks(mapping: TensorMapping, feed_forward: Callable) -> None:
  """Map all but the feed-forward layers, which `feed_forward(mapping, their prefix, our prefix,
  block)` maps."""
  variant = mapping.model.variant
  mapping.copy("shared.weight", "embed/table")
  mapping.tied = {f"{side}.embed_tokens.weight": "shared.weight" for side in ("encoder", "decoder")}
  mapping.output("shared.weight")
  mapping.ignored_suffixes = (
    "EncDecAttention.relative_attention_bias.weight",
  )  # in old files, never used
  for side, layers in (("encoder", variant.dims.layers), ("decoder", variant.decoder_dims.layers)):
    mapping.norm(f"{side}.final_layer_norm", f"{side}/final_norm")
    if f"{side}/position/table" in mapping.parameter_names:
      mapping.copy(
        f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        f"{side}/position/table",
      )
    for layer, (suffix, index) in enumerate(locate_layers(getattr(mapping.model, side), layers)):
      hf_layer = f"{side}.block.{layer}.layer"
      path = f"{side}/blocks"
      own = f"{path}/self_attention{suffix}/layer/position/table"
      if own in mapping.parameter_names:
        mapping.copy(f"{hf_layer}.0.SelfAttention.relative_attention_bias.weight", own, index)
      mapping.attention(
        f"{hf_layer}.0.SelfAttention",
        f"{path}/self_attention{suffix}/layer",
        index,
        names=ATTENTION_NAMES,
      )
      mapping.norm(f"{hf_layer}.0.layer_norm", f"{path}/self_attention{suffix}/in_norm", index)
      last = 1
      if side == "decoder":
        mapping.attention(
          f"{hf_layer}.1.EncDecAttention",
          f"{path}/cross_attention{suffix}/layer",
          index,
          names=ATTENTION_NAMES,
        )
        mapping.norm(f"{hf_layer}.1.layer_norm", f"{path}/cross_attention{suffix}/in_norm", index)
        last = 2
      name = next(
        kind
        for kind in ("mlp", "moe")
        if f"{path}/{kind}{suffix}/in_norm/scale" in mapping.parameter_names
      )
      mapping.norm(f"{hf_layer}.{last}.layer_norm", f"{path}/{name}{suffix}/in_norm", index)
      feed_forward(mapping, f"{hf_layer}.{last}", f"{path}/{name}{suffix}/layer", index)


def map_feed_forward(mapping: TensorMapping, hf_name: str, path: str, index: int) -> None:
  """Map the feed-forward layer, gated or not."""
  gated = f"{path}/gate/kernel" in mapping.parameter_names
  if gated:
    mapping.linear(f"{hf_name}.DenseReluDense.wi_0", f"{path}/gate", index)
  mapping.linear(f"{hf_name}.DenseReluDense.{'wi_1' if gated else 'wi'}", f"{path}/wi", index)
  mapping.linear(f"{hf_name}.DenseReluDense.wo", f"{path}/wo", index)

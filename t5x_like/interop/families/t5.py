"""T5 1.0 and 1.1, mT5, umT5 and ByT5."""

import dataclasses
from collections.abc import Callable

from t5x_like.architectures.design import Tokens, Variant
from t5x_like.errors import UserError
from t5x_like.interop import decoders
from t5x_like.interop.config_fields import Fields
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
NAMES = ("q", "k", "v", "o")


def build(fields: Fields, names: set[str]):
  umt5 = fields.values["model_type"] == "umt5"
  tied = "lm_head.weight" not in names
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
  fields.only("dense_act_fn", *same)
  fields.only("is_gated_act", kind.startswith("gated-"))
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
  tokens = special_ids(fields)
  decoder_layers = fields.take("num_decoder_layers", layers)
  return t5.Model, {
    "variant": Variant(
      dims, design, fields.take("vocab_size"), tokens, decoder_layers=decoder_layers
    )
  }


def special_ids(fields: Fields) -> Tokens:
  """Return the special ids of a config: padding starts the decoder, and the first of several end
  ids counts."""
  pad = fields.take("pad_token_id", 0)
  eos = fields.take("eos_token_id", 1)
  return Tokens(
    pad,
    fields.values.get("decoder_start_token_id") or pad,
    eos[0] if isinstance(eos, list) else eos,
  )


def refuse_others(model, **expected) -> None:
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


def config(model, model_type: str | None) -> dict:
  refuse_others(model, experts=None, activation=list(ACTIVATIONS.values()))
  variant = model.variant
  design = model.variant.design
  position = {"name": design.position} if isinstance(design.position, str) else design.position
  ours = position["name"] == "relative_bias" and "bidirectional" not in position
  require_design(model, position=[design.position] if ours else ["relative_bias"])
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
    "feed_forward_proj": decoders.name_of(ACTIVATIONS, design.activation),
    # the library takes it to mean scaling in this family
    "tie_word_embeddings": design.logits_scale,
    **({"scale_decoder_outputs": design.logits_scale} if model_type == "t5" else {}),
    "pad_token_id": variant.tokens.pad,
    "eos_token_id": variant.tokens.eos,
    "decoder_start_token_id": variant.tokens.start,
  }


def tensors(m: TensorMapping) -> None:
  map_stacks(m, dense)


def map_stacks(m: TensorMapping, feed_forward: Callable) -> None:
  """Map all but the feed-forward layers, which `feed_forward(mapping, their prefix, our prefix,
  block)` maps."""
  variant = m.model.variant
  m.copy("shared.weight", "embed/table")
  m.copies = {f"{side}.embed_tokens.weight": "shared.weight" for side in ("encoder", "decoder")}
  m.output("shared.weight")
  m.ignored = ("EncDecAttention.relative_attention_bias.weight",)  # in old files, never used
  for side, layers in (("encoder", variant.dims.layers), ("decoder", variant.decoder_dims.layers)):
    m.norm(f"{side}.final_layer_norm", f"{side}/final_norm")
    if f"{side}/position/table" in m.names:
      m.copy(
        f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        f"{side}/position/table",
      )
    for layer, (suffix, at) in enumerate(locate_layers(getattr(m.model, side), layers)):
      theirs = f"{side}.block.{layer}.layer"
      ours = f"{side}/blocks"
      own = f"{ours}/self_attention{suffix}/layer/position/table"
      if own in m.names:
        m.copy(f"{theirs}.0.SelfAttention.relative_attention_bias.weight", own, at)
      m.attention(
        f"{theirs}.0.SelfAttention", f"{ours}/self_attention{suffix}/layer", at, names=NAMES
      )
      m.norm(f"{theirs}.0.layer_norm", f"{ours}/self_attention{suffix}/in_norm", at)
      last = 1
      if side == "decoder":
        m.attention(
          f"{theirs}.1.EncDecAttention", f"{ours}/cross_attention{suffix}/layer", at, names=NAMES
        )
        m.norm(f"{theirs}.1.layer_norm", f"{ours}/cross_attention{suffix}/in_norm", at)
        last = 2
      name = next(
        kind for kind in ("mlp", "moe") if f"{ours}/{kind}{suffix}/in_norm/scale" in m.names
      )
      m.norm(f"{theirs}.{last}.layer_norm", f"{ours}/{name}{suffix}/in_norm", at)
      feed_forward(m, f"{theirs}.{last}", f"{ours}/{name}{suffix}/layer", at)


def dense(m: TensorMapping, theirs: str, ours: str, at: int) -> None:
  """Map the feed-forward layer, gated or not."""
  gated = f"{ours}/gate/kernel" in m.names
  if gated:
    m.linear(f"{theirs}.DenseReluDense.wi_0", f"{ours}/gate", at)
  m.linear(f"{theirs}.DenseReluDense.{'wi_1' if gated else 'wi'}", f"{ours}/wi", at)
  m.linear(f"{theirs}.DenseReluDense.wo", f"{ours}/wo", at)

"""Shared by the Hugging Face forms of ViT and its descendants: fields, patches, tokens, positions and layers."""

import dataclasses

import numpy as np

from t5x_like.architectures.image_encoder import ImageVariant
from t5x_like.errors import UserError
from t5x_like.interop.encoders import ACTIVATIONS
from t5x_like.interop.fields import Fields
from t5x_like.interop.hf import only
from t5x_like.interop.mapping import Mapping
from t5x_like.nn.cores.auto import EXACT
from t5x_like.nn.dims import Dims
from t5x_like.nn.image_positions.sinusoidal_2d import table_of
from t5x_like.nn.positions import Position

ATTENTION = ("attention.query", "attention.key", "attention.value", "output.dense")


def build(fields: Fields, base: ImageVariant, **changes) -> ImageVariant:
  """Return the variant of a config with ViT's fields; `changes` apply to the base."""
  fields.ignore("hidden_dropout_prob", "attention_probs_dropout_prob", "encoder_stride", "pooler_act")
  fields.ignore("pooler_output_size", "layer_norm_type", "image_mean", "image_std")
  biases = fields.choose("qkv_bias", {True: ("qkv", "out", "mlp"), False: ("out", "mlp")}, True)
  D, N = fields.take("hidden_size"), fields.take("num_attention_heads")
  design = dataclasses.replace(
    base.design,
    norm_epsilon=fields.take("layer_norm_eps", 1e-12),
    activation=fields.choose("hidden_act", ACTIVATIONS, "gelu"),
    biases=biases,
    position="learned_1d",
  )
  return dataclasses.replace(
    base,
    dims=Dims(D, N, N, D // N, fields.take("intermediate_size"), fields.take("num_hidden_layers")),
    design=design,
    patch=side(fields, "patch_size", 16),
    resolution=side(fields, "image_size", 224),
    channels=fields.take("num_channels", 3),
    **changes,
  )


def side(fields: Fields, name: str, default: int) -> int:
  """Return the side length that a field, a number or a pair, gives for height and width."""
  found = fields.take(name, default)
  if isinstance(found, int):
    return found
  if isinstance(found, list) and len(set(found)) == 1:
    return found[0]
  raise fields.refusal(name, found, "one number, as images and patches are square")


def labels_of(fields: Fields) -> int:
  return len(fields.values.get("id2label") or {}) or fields.values.get("num_labels") or 2


def config(model, model_type: str, positions: tuple[str, ...] = ("learned_1d",)) -> dict:
  """Return ViT's fields of a model, except the fields of its classes.

  Raises:
    UserError: the type cannot express a field of the design; names it.
  """
  variant, design, dims = model.variant, model.variant.design, model.variant.dims
  only(
    model,
    norm="layernorm",
    norm_position="pre",
    parallel="no",
    biases=[("qkv", "out", "mlp"), ("out", "mlp")],
    qk_norm=False,
    attention_scale=None,
    softcap=None,
    windows=(None,),
    experts=None,
    activation=list(ACTIVATIONS.values()),
    position=list(positions),
    embed_scale=False,
    embed_norm=False,
    core=[*EXACT],
  )
  if dims.kv_heads != dims.heads or dims.head_dim * dims.heads != dims.embed:
    raise UserError(f"{dims}: {model_type} has as many key/value heads as heads, and heads that share the width")
  return {
    "model_type": model_type,
    "hidden_size": dims.embed,
    "num_hidden_layers": dims.layers,
    "num_attention_heads": dims.heads,
    "intermediate_size": dims.mlp,
    "hidden_act": next(theirs for theirs, ours in ACTIVATIONS.items() if ours == design.activation),
    "layer_norm_eps": design.norm_epsilon,
    "qkv_bias": "qkv" in design.biases,
    "image_size": variant.resolution,
    "patch_size": variant.patch,
    "num_channels": variant.channels,
  }


def label_fields(labels: int) -> dict:
  """Return the fields that define the number of classes."""
  names = {i: f"LABEL_{i}" for i in range(labels)}
  return {"id2label": {str(i): n for i, n in names.items()}, "label2id": {n: i for i, n in names.items()}}


def tensors(m: Mapping, prefix: str, tokens: tuple[str, ...]) -> None:
  """Map the body: embeddings, layers and the last norm.

  Args:
    prefix: the prefix of the body's tensors, "vit." or empty.
    tokens: the names of the tokens before the patches.
  """
  patches(m, f"{prefix}embeddings.patch_embeddings.projection")
  for number, token in enumerate(tokens):
    m.fused(f"{prefix}embeddings.{token}", ["tokens"], number, split=lambda x: [x.reshape(-1)], join=leading(2))
  positions(m, f"{prefix}embeddings.position_embeddings", "inputs", m.model.inputs.position)
  layers(m, f"{prefix}encoder.layer", "encoder", m.model.variant.dims.layers)
  m.norm(f"{prefix}layernorm", "encoder/final_norm")


def patches(m: Mapping, theirs: str) -> None:
  """Map the projection of patches, which is a convolution in the library."""
  P, C = m.model.variant.patch, m.model.variant.channels
  m.fused(
    f"{theirs}.weight",
    ["patches/kernel"],
    split=lambda x: [x.transpose(2, 3, 1, 0).reshape(P * P * C, -1)],
    join=lambda xs: xs[0].reshape(P, P, C, -1).transpose(3, 2, 0, 1),
  )
  m.copy(f"{theirs}.bias", "patches/bias")


def positions(m: Mapping, theirs: str, ours: str, scheme: Position) -> None:
  """Map a table of positions; write a fixed scheme as a table."""
  if f"{ours}/position/table" in m.names:
    m.fused(theirs, [f"{ours}/position/table"], split=lambda x: [x[0]], join=leading(1))
  else:
    m.fused(theirs, [], split=lambda x: [], join=lambda _: table_of(scheme.width, scheme.grid)[None])


def layers(m: Mapping, theirs: str, ours: str, number: int) -> None:
  """Map the layers of a stack."""
  for at in range(number):
    m.attention(f"{theirs}.{at}.attention", f"{ours}/blocks/self_attention/layer", at, names=ATTENTION)
    m.norm(f"{theirs}.{at}.layernorm_before", f"{ours}/blocks/self_attention/in_norm", at)
    m.norm(f"{theirs}.{at}.layernorm_after", f"{ours}/blocks/mlp/in_norm", at)
    m.linear(f"{theirs}.{at}.intermediate.dense", f"{ours}/blocks/mlp/layer/wi", at)
    m.linear(f"{theirs}.{at}.output.dense", f"{ours}/blocks/mlp/layer/wo", at)


def leading(axes: int):
  """Return a `join` of one part that prepends axes of length 1."""
  return lambda xs: np.asarray(xs[0]).reshape((1,) * axes + np.shape(xs[0]))

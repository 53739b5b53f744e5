"""Shared by the Hugging Face forms of ViT and its descendants: fields, patches, tokens, positions
and layers."""

import dataclasses

import numpy as np

from t5x_like.architectures.image_encoder import ImageVariant
from t5x_like.errors import UserError
from t5x_like.interop.config_fields import Fields, find_key
from t5x_like.interop.encoders import ACTIVATIONS
from t5x_like.interop.hf import require_design
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.nn.cores.auto import EXACT_CORES
from t5x_like.nn.dims import Dims
from t5x_like.nn.image_positions.sinusoidal_2d import sine_table
from t5x_like.nn.positions import Position
from t5x_like.resolution import Resolution, from_sides

POOLER = "pooler.dense.weight"  # of a body
ATTENTION_NAMES = ("attention.query", "attention.key", "attention.value", "output.dense")


def read_variant(
  fields: Fields,
  base: ImageVariant,
  mlp: int | None = None,
  epsilon: float = 1e-12,
  patch: int = 16,
  **changes,
) -> ImageVariant:
  """Return the variant of a config with ViT's fields.

  Args:
    mlp: the width of the feed-forward layer, if it is computed from other fields.
    epsilon, patch: defaults of the norms and of the side of a patch.
    changes: apply to the base.
  """
  fields.ignore(
    "hidden_dropout_prob", "attention_probs_dropout_prob", "encoder_stride", "pooler_act"
  )
  fields.ignore("pooler_output_size", "layer_norm_type", "image_mean", "image_std")
  biases = fields.choose("qkv_bias", {True: ("qkv", "out", "mlp"), False: ("out", "mlp")}, True)
  D = fields.take("hidden_size")
  N = fields.take("num_attention_heads")
  design = dataclasses.replace(
    base.design,
    norm_epsilon=fields.take("layer_norm_eps", epsilon),
    activation=fields.choose("hidden_act", ACTIVATIONS, "gelu"),
    biases=biases,
    position="learned_1d",
  )
  return dataclasses.replace(
    base,
    dims=Dims(
      D, N, N, D // N, mlp or fields.take("intermediate_size"), fields.take("num_hidden_layers")
    ),
    design=design,
    patch=read_side(fields, "patch_size", patch),
    resolution=read_resolution(fields, "image_size", 224),
    channels=fields.take("num_channels", 3),
    **changes,
  )


def read_side(fields: Fields, name: str, default: int) -> int:
  """Return the side length that a field, a number or a pair, gives for height and width."""
  found = fields.take(name, default)
  if isinstance(found, int):
    return found
  if isinstance(found, list) and len(set(found)) == 1:
    return found[0]
  raise fields.refusal(name, found, "one number, as patches are square")


def read_resolution(fields: Fields, name: str, default: Resolution) -> Resolution:
  """Return the height and width of images that a field gives, a number or a pair."""
  found = fields.take(name, default)
  if isinstance(found, int):
    return found
  if isinstance(found, list | tuple) and len(found) == 2 and all(isinstance(n, int) for n in found):
    return from_sides(*found)
  raise fields.refusal(name, found, "one number, or height and width")


def count_labels(fields: Fields) -> int:
  return len(fields.values.get("id2label") or {}) or fields.values.get("num_labels") or 2


def write_config(
  model, model_type: str, positions=("learned_1d",), layer_scale: float | None = None, gated=False
) -> dict:
  """Return ViT's fields of a model, except the fields of its classes.

  Args:
    positions, layer_scale: the supported fields of the design.
    gated: whether its activation is SwiGLU instead of one that the library names.
  Raises:
    UserError: the type cannot express a field of the design; names it.
  """
  variant = model.variant
  design = model.variant.design
  dims = model.variant.dims
  require_design(
    model,
    norm="layernorm",
    norm_position="pre",
    parallel="no",
    layer_scale=layer_scale,
    biases=[("qkv", "out", "mlp"), ("out", "mlp")],
    qk_norm=False,
    attention_scale=None,
    softcap=None,
    windows=(None,),
    experts=None,
    activation="swiglu" if gated else list(ACTIVATIONS.values()),
    position=list(positions),
    embed_scale=False,
    embed_norm=False,
    core=[*EXACT_CORES],
  )
  if dims.kv_heads != dims.heads or dims.head_dim * dims.heads != dims.embed:
    raise UserError(
      f"{dims}: {model_type} has as many key/value heads as heads, and heads that share the width"
    )
  return {
    "model_type": model_type,
    "hidden_size": dims.embed,
    "num_hidden_layers": dims.layers,
    "num_attention_heads": dims.heads,
    "intermediate_size": dims.mlp,
    "hidden_act": "gelu" if gated else find_key(ACTIVATIONS, design.activation),
    "layer_norm_eps": design.norm_epsilon,
    "qkv_bias": "qkv" in design.biases,
    "image_size": variant.resolution,
    "patch_size": variant.patch,
    "num_channels": variant.channels,
  }


def read_head(
  fields: Fields, classifier: str, body: str, pooler: str | bool = False, **arguments
) -> dict:
  """Return the head of a config, by its class, the first of `architectures`.

  Args:
    classifier, body: the names of the classes with and without a classifier; the first is the
      default.
    pooler: the pooler of the body, if it has one.
    arguments: of both heads.
  Raises:
    UserError: the class is neither.
  """
  found = (fields.values.get("architectures") or [classifier])[0]
  if found == body:
    return {"name": "image_features"} | ({"pooler": pooler} if pooler else {}) | arguments
  if found != classifier:
    raise fields.refusal("architectures", found, f"{classifier} or {body}")
  return {"name": "image_classification", "labels": count_labels(fields)} | arguments


def write_head(
  model, model_type: str, classifier: str, body: str, poolers=("none",), **expected
) -> dict:
  """Return the fields of the class and of its labels, as `head` reads them.

  Args:
    poolers: the poolers that the body may have.
    expected: other values than usual of the classifier's `pooling`, `hidden` and `norm`.
  Raises:
    UserError: the type has no such head.
  """
  spec = (
    model.variant.head if isinstance(model.variant.head, dict) else {"name": model.variant.head}
  )
  usual = {
    "pooling": "token" if model.variant.class_tokens else "mean",
    "hidden": False,
    "norm": "before",
  }
  differ = [
    key for key, value in usual.items() if (spec.get(key) or value) != expected.get(key, value)
  ]
  natural = spec.get("pooling") in (None, usual["pooling"])
  if spec["name"] == "image_features" and spec.get("pooler", "none") in poolers and natural:
    return {"architectures": [body]}
  if spec["name"] != "image_classification" or differ:
    has = ", ".join(f"{key} {value!r}" for key, value in (usual | expected).items())
    raise UserError(
      f"the head {model.variant.head!r}: {model_type} has 'image_classification' with {has}"
    )
  return {"architectures": [classifier]} | write_labels(spec.get("labels", 1000))


def write_labels(labels: int) -> dict:
  """Return the fields that define the number of classes."""
  names = {i: f"LABEL_{i}" for i in range(labels)}
  return {
    "id2label": {str(i): n for i, n in names.items()},
    "label2id": {n: i for i, n in names.items()},
  }


def map_tensors(mapping: TensorMapping, prefix: str, tokens: tuple[str, ...]) -> None:
  """Map the body: embeddings, layers and the last norm.

  Args:
    prefix: the prefix of the body's tensors, "vit." or empty.
    tokens: the names of the tokens before the patches.
  """
  map_embeddings(mapping, prefix, tokens)
  map_layers(mapping, f"{prefix}encoder.layer", "encoder", mapping.model.variant.dims.layers)
  mapping.norm(f"{prefix}layernorm", "encoder/final_norm")


def map_embeddings(mapping: TensorMapping, prefix: str, tokens: tuple[str, ...]) -> None:
  """Map patches, tokens and positions; see `tensors`."""
  map_patches(mapping, f"{prefix}embeddings.patch_embeddings.projection")
  for number, token in enumerate(tokens):
    mapping.fuse(
      f"{prefix}embeddings.{token}",
      ["tokens"],
      number,
      split=lambda x: [x.reshape(-1)],
      join=join_with_leading_axes(2),
    )
  map_positions(
    mapping, f"{prefix}embeddings.position_embeddings", "inputs", mapping.model.inputs.position
  )


def map_patches(
  mapping: TensorMapping, hf_name: str, path: str = "", variant: ImageVariant | None = None
) -> None:
  """Map the projection of patches, which is a convolution in the library.

  Args:
    ours: the prefix of the image encoder's parameters.
    variant: its variant; None for the model's.
  """
  variant = variant or mapping.model.variant
  P = variant.patch
  C = variant.channels
  mapping.fuse(
    f"{hf_name}.weight",
    [f"{path}patches/kernel"],
    split=lambda x: [x.transpose(2, 3, 1, 0).reshape(P * P * C, -1)],
    join=lambda xs: xs[0].reshape(P, P, C, -1).transpose(3, 2, 0, 1),
  )
  if f"{path}patches/bias" in mapping.parameter_names:
    mapping.copy(f"{hf_name}.bias", f"{path}patches/bias")


def map_positions(mapping: TensorMapping, hf_name: str, path: str, scheme: Position) -> None:
  """Map a table of positions; write a fixed scheme as a table."""
  if f"{path}/position/table" in mapping.parameter_names:
    mapping.fuse(
      hf_name, [f"{path}/position/table"], split=lambda x: [x[0]], join=join_with_leading_axes(1)
    )
  else:
    mapping.fuse(
      hf_name, [], split=lambda x: [], join=lambda _: sine_table(scheme.width, scheme.grid)[None]
    )


def map_pooler(mapping: TensorMapping, prefix: str) -> None:
  """Map the pooler of a body; a classifier does not read it."""
  if "head/dense/kernel" in mapping.parameter_names:
    mapping.linear("pooler.dense", "head/dense")
  else:
    mapping.unread_suffixes = tuple(f"{prefix}pooler.dense.{end}" for end in ("weight", "bias"))


def map_layers(mapping: TensorMapping, hf_name: str, path: str, number: int) -> None:
  """Map the layers of a stack."""
  for index in range(number):
    mapping.attention(
      f"{hf_name}.{index}.attention",
      f"{path}/blocks/self_attention/layer",
      index,
      names=ATTENTION_NAMES,
    )
    mapping.norm(
      f"{hf_name}.{index}.layernorm_before", f"{path}/blocks/self_attention/in_norm", index
    )
    mapping.norm(f"{hf_name}.{index}.layernorm_after", f"{path}/blocks/mlp/in_norm", index)
    mapping.linear(f"{hf_name}.{index}.intermediate.dense", f"{path}/blocks/mlp/layer/wi", index)
    mapping.linear(f"{hf_name}.{index}.output.dense", f"{path}/blocks/mlp/layer/wo", index)


def join_with_leading_axes(axes: int):
  """Return a `join` of one part that prepends axes of length 1."""
  return lambda xs: np.asarray(xs[0]).reshape((1,) * axes + np.shape(xs[0]))

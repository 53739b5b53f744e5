"""Read and write ViT and its descendants: fields, patches, tokens, positions and layers."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from t5x_like.architectures.image_encoder import ImageVariant
from t5x_like.errors import UserError
from t5x_like.interop.config_fields import Fields, find_key
from t5x_like.interop.encoders import ACTIVATIONS, label_fields
from t5x_like.interop.hf import require_design
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.nn.cores.auto import EXACT_CORES
from t5x_like.nn.dims import Dims
from t5x_like.nn.image_positions.sinusoidal_2d import sine_table
from t5x_like.nn.positions import Position
from t5x_like.resolution import Resolution, from_sides

POOLER = "pooler.dense.weight"  # the tensor that a body with a pooler has
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
    epsilon, patch: the default epsilon of the norms and side of a patch.
    changes: replace fields of the base.
  """
  fields.ignore(
    "hidden_dropout_prob", "attention_probs_dropout_prob", "encoder_stride", "pooler_act"
  )
  fields.ignore("pooler_output_size", "layer_norm_type", "image_mean", "image_std")
  biases = fields.choose("qkv_bias", {True: ("qkv", "out", "mlp"), False: ("out", "mlp")}, True)
  D = fields.take("hidden_size")
  N = fields.take("num_attention_heads")
  if not mlp:
    mlp = fields.take("intermediate_size")
  design = dataclasses.replace(
    base.design,
    norm_epsilon=fields.take("layer_norm_eps", epsilon),
    activation=fields.choose("hidden_act", ACTIVATIONS, "gelu"),
    biases=biases,
    position="learned_1d",
  )
  return dataclasses.replace(
    base,
    dims=Dims(D, N, N, D // N, mlp, fields.take("num_hidden_layers")),
    design=design,
    patch=read_side(fields, "patch_size", patch),
    resolution=read_resolution(fields, "image_size", 224),
    channels=fields.take("num_channels", 3),
    **changes,
  )


def read_side(fields: Fields, name: str, default: int) -> int:
  """Return the side length of a square that a field gives as a number or as an equal pair."""
  value = fields.take(name, default)
  if isinstance(value, int):
    return value
  if isinstance(value, list) and len(set(value)) == 1:
    return value[0]
  raise fields.refusal(name, value, "one number, as patches are square")


def read_resolution(fields: Fields, name: str, default: Resolution) -> Resolution:
  """Return the height and width of images that a field gives as a number or as a pair."""
  value = fields.take(name, default)
  if isinstance(value, int):
    return value
  is_pair = isinstance(value, list | tuple) and len(value) == 2
  if is_pair and all(isinstance(side, int) for side in value):
    return from_sides(*value)
  raise fields.refusal(name, value, "one number, or height and width")


def count_labels(fields: Fields) -> int:
  """Return the number of classes in a config."""
  return len(fields.values.get("id2label") or {}) or fields.values.get("num_labels") or 2


def write_config(
  model,
  model_type: str,
  positions: Sequence = ("learned_1d",),
  layer_scale: float | None = None,
  gated: bool = False,
) -> dict:
  """Return ViT's fields of a model, except the fields of its classes.

  Args:
    positions, layer_scale: the supported values of these fields of the design.
    gated: whether the activation is SwiGLU, which the library does not name.
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
  """Return the head of a config by its class, the first of `architectures`.

  Args:
    classifier, body: the names of the classes with and without a classifier; the first is the
      default.
    pooler: the pooler of the body, if it has one.
    arguments: further arguments of either head.
  Raises:
    UserError: the class is neither.
  """
  class_name = (fields.values.get("architectures") or [classifier])[0]
  if class_name == classifier:
    return {"name": "image_classification", "labels": count_labels(fields), **arguments}
  if class_name != body:
    raise fields.refusal("architectures", class_name, f"{classifier} or {body}")
  head = {"name": "image_features"}
  if pooler:
    head["pooler"] = pooler
  return head | arguments


def write_head(
  model,
  model_type: str,
  classifier: str,
  body: str,
  poolers: Sequence[str] = ("none",),
  **expected,
) -> dict:
  """Return the fields of the class and of its labels, as `read_head` reads them.

  Args:
    classifier, body: the names of the classes with and without a classifier.
    poolers: the poolers that the body may have.
    expected: required `pooling`, `hidden` and `norm` of the classifier where they are not the
      default ones.
  Raises:
    UserError: the type has no such head.
  """
  head = model.variant.head
  spec = head if isinstance(head, dict) else {"name": head}
  defaults = {
    "pooling": "token" if model.variant.class_tokens else "mean",
    "hidden": False,
    "norm": "before",
  }
  has_default_pooling = spec.get("pooling") in (None, defaults["pooling"])
  has_pooler = spec.get("pooler", "none") in poolers
  if spec["name"] == "image_features" and has_pooler and has_default_pooling:
    return {"architectures": [body]}
  required = defaults | expected
  differs = any((spec.get(key) or defaults[key]) != value for key, value in required.items())
  if spec["name"] != "image_classification" or differs:
    arguments = ", ".join(f"{key} {value!r}" for key, value in required.items())
    raise UserError(f"the head {head!r}: {model_type} has 'image_classification' with {arguments}")
  return {"architectures": [classifier]} | label_fields(spec.get("labels", 1000))


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
  """Map patches, tokens and positions; see `map_tensors`."""
  embeddings = f"{prefix}embeddings"
  map_patches(mapping, f"{embeddings}.patch_embeddings.projection")
  for number, token in enumerate(tokens):
    mapping.fuse(
      f"{embeddings}.{token}",
      ["tokens"],
      number,
      split=lambda x: [x.reshape(-1)],
      join=join_with_leading_axes(2),
    )
  position = mapping.model.inputs.position
  map_positions(mapping, f"{embeddings}.position_embeddings", "inputs", position)


def map_patches(
  mapping: TensorMapping, hf_name: str, prefix: str = "", variant: ImageVariant | None = None
) -> None:
  """Map the projection of patches, which is a convolution in the library.

  Args:
    prefix: the prefix of the image encoder's parameters.
    variant: the variant of the image encoder; None for the model's.
  """
  variant = variant or mapping.model.variant
  P = variant.patch
  C = variant.channels
  mapping.fuse(
    f"{hf_name}.weight",
    [f"{prefix}patches/kernel"],
    split=lambda x: [x.transpose(2, 3, 1, 0).reshape(P * P * C, -1)],
    join=lambda arrays: arrays[0].reshape(P, P, C, -1).transpose(3, 2, 0, 1),
  )
  if f"{prefix}patches/bias" in mapping.parameter_names:
    mapping.copy(f"{hf_name}.bias", f"{prefix}patches/bias")


def map_positions(mapping: TensorMapping, hf_name: str, path: str, scheme: Position) -> None:
  """Map a table of positions; write a fixed scheme as a table."""
  table = f"{path}/position/table"
  if table in mapping.parameter_names:
    mapping.fuse(hf_name, [table], split=lambda x: [x[0]], join=join_with_leading_axes(1))
    return
  mapping.fuse(
    hf_name,
    [],
    split=lambda x: [],
    join=lambda arrays: sine_table(scheme.width, scheme.grid)[None],
  )


def map_pooler(mapping: TensorMapping, prefix: str) -> None:
  """Map the pooler of a body; a classifier does not read it."""
  if "head/dense/kernel" in mapping.parameter_names:
    mapping.linear("pooler.dense", "head/dense")
  else:
    mapping.unread_suffixes = (f"{prefix}pooler.dense.weight", f"{prefix}pooler.dense.bias")


def map_layers(mapping: TensorMapping, hf_name: str, path: str, layers: int) -> None:
  """Map the layers of a stack."""
  attention = f"{path}/blocks/self_attention"
  mlp = f"{path}/blocks/mlp"
  for layer in range(layers):
    hf_layer = f"{hf_name}.{layer}"
    mapping.attention(f"{hf_layer}.attention", f"{attention}/layer", layer, names=ATTENTION_NAMES)
    mapping.norm(f"{hf_layer}.layernorm_before", f"{attention}/in_norm", layer)
    mapping.norm(f"{hf_layer}.layernorm_after", f"{mlp}/in_norm", layer)
    mapping.linear(f"{hf_layer}.intermediate.dense", f"{mlp}/layer/wi", layer)
    mapping.linear(f"{hf_layer}.output.dense", f"{mlp}/layer/wo", layer)


def join_with_leading_axes(axes: int) -> Callable[[Sequence[np.ndarray]], np.ndarray]:
  """Return a `join` of one part that prepends axes of length 1."""
  return lambda arrays: np.asarray(arrays[0]).reshape((1,) * axes + np.shape(arrays[0]))

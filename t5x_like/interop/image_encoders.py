"""Shared by the Hugging Face forms of ViT and its descendants: fields, patches, tokens, positions
and layers."""

import dataclasses

import numpy as np

from t5x_like.architectures.image_encoder import ImageVariant
from t5x_like.errors import UserError
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.encoders import ACTIVATIONS
from t5x_like.interop.hf import require_design
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.nn.cores.auto import EXACT_CORES
from t5x_like.nn.dims import Dims
from t5x_like.nn.image_positions.sinusoidal_2d import sine_table
from t5x_like.nn.positions import Position
from t5x_like.resolution import Resolution, from_sides

POOLER = "pooler.dense.weight"  # of a body
ATTENTION = ("attention.query", "attention.key", "attention.value", "output.dense")


def build(
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
    patch=side(fields, "patch_size", patch),
    resolution=resolution(fields, "image_size", 224),
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
  raise fields.refusal(name, found, "one number, as patches are square")


def resolution(fields: Fields, name: str, default: Resolution) -> Resolution:
  """Return the height and width of images that a field gives, a number or a pair."""
  found = fields.take(name, default)
  if isinstance(found, int):
    return found
  if isinstance(found, list | tuple) and len(found) == 2 and all(isinstance(n, int) for n in found):
    return from_sides(*found)
  raise fields.refusal(name, found, "one number, or height and width")


def labels_of(fields: Fields) -> int:
  return len(fields.values.get("id2label") or {}) or fields.values.get("num_labels") or 2


def config(
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
    "hidden_act": next(
      (theirs for theirs, ours in ACTIVATIONS.items() if ours == design.activation), "gelu"
    ),
    "layer_norm_eps": design.norm_epsilon,
    "qkv_bias": "qkv" in design.biases,
    "image_size": variant.resolution,
    "patch_size": variant.patch,
    "num_channels": variant.channels,
  }


def head(
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
  return {"name": "image_classification", "labels": labels_of(fields)} | arguments


def head_fields(
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
  return {"architectures": [classifier]} | label_fields(spec.get("labels", 1000))


def label_fields(labels: int) -> dict:
  """Return the fields that define the number of classes."""
  names = {i: f"LABEL_{i}" for i in range(labels)}
  return {
    "id2label": {str(i): n for i, n in names.items()},
    "label2id": {n: i for i, n in names.items()},
  }


def tensors(m: TensorMapping, prefix: str, tokens: tuple[str, ...]) -> None:
  """Map the body: embeddings, layers and the last norm.

  Args:
    prefix: the prefix of the body's tensors, "vit." or empty.
    tokens: the names of the tokens before the patches.
  """
  embeddings(m, prefix, tokens)
  layers(m, f"{prefix}encoder.layer", "encoder", m.model.variant.dims.layers)
  m.norm(f"{prefix}layernorm", "encoder/final_norm")


def embeddings(m: TensorMapping, prefix: str, tokens: tuple[str, ...]) -> None:
  """Map patches, tokens and positions; see `tensors`."""
  patches(m, f"{prefix}embeddings.patch_embeddings.projection")
  for number, token in enumerate(tokens):
    m.fused(
      f"{prefix}embeddings.{token}",
      ["tokens"],
      number,
      split=lambda x: [x.reshape(-1)],
      join=leading(2),
    )
  positions(m, f"{prefix}embeddings.position_embeddings", "inputs", m.model.inputs.position)


def patches(
  m: TensorMapping, theirs: str, ours: str = "", variant: ImageVariant | None = None
) -> None:
  """Map the projection of patches, which is a convolution in the library.

  Args:
    ours: the prefix of the image encoder's parameters.
    variant: its variant; None for the model's.
  """
  variant = variant or m.model.variant
  P = variant.patch
  C = variant.channels
  m.fused(
    f"{theirs}.weight",
    [f"{ours}patches/kernel"],
    split=lambda x: [x.transpose(2, 3, 1, 0).reshape(P * P * C, -1)],
    join=lambda xs: xs[0].reshape(P, P, C, -1).transpose(3, 2, 0, 1),
  )
  if f"{ours}patches/bias" in m.names:
    m.copy(f"{theirs}.bias", f"{ours}patches/bias")


def positions(m: TensorMapping, theirs: str, ours: str, scheme: Position) -> None:
  """Map a table of positions; write a fixed scheme as a table."""
  if f"{ours}/position/table" in m.names:
    m.fused(theirs, [f"{ours}/position/table"], split=lambda x: [x[0]], join=leading(1))
  else:
    m.fused(
      theirs, [], split=lambda x: [], join=lambda _: sine_table(scheme.width, scheme.grid)[None]
    )


def pooler(m: TensorMapping, prefix: str) -> None:
  """Map the pooler of a body; a classifier does not read it."""
  if "head/dense/kernel" in m.names:
    m.linear("pooler.dense", "head/dense")
  else:
    m.unread = tuple(f"{prefix}pooler.dense.{end}" for end in ("weight", "bias"))


def layers(m: TensorMapping, theirs: str, ours: str, number: int) -> None:
  """Map the layers of a stack."""
  for at in range(number):
    m.attention(
      f"{theirs}.{at}.attention", f"{ours}/blocks/self_attention/layer", at, names=ATTENTION
    )
    m.norm(f"{theirs}.{at}.layernorm_before", f"{ours}/blocks/self_attention/in_norm", at)
    m.norm(f"{theirs}.{at}.layernorm_after", f"{ours}/blocks/mlp/in_norm", at)
    m.linear(f"{theirs}.{at}.intermediate.dense", f"{ours}/blocks/mlp/layer/wi", at)
    m.linear(f"{theirs}.{at}.output.dense", f"{ours}/blocks/mlp/layer/wo", at)


def leading(axes: int):
  """Return a `join` of one part that prepends axes of length 1."""
  return lambda xs: np.asarray(xs[0]).reshape((1,) * axes + np.shape(xs[0]))

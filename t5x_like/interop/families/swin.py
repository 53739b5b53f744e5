"""Swin Transformers that classify images, and the code they share with Swin V2 (`swinv2.py`)."""

from collections.abc import Callable
from dataclasses import replace

from t5x_like.architectures.window_encoder import WindowVariant
from t5x_like.errors import UserError
from t5x_like.interop import image_encoders
from t5x_like.interop.config_fields import Fields, find_key
from t5x_like.interop.encoders import ACTIVATIONS
from t5x_like.interop.hf import require_design
from t5x_like.interop.tensor_mapping import TensorMapping, locate_layers
from t5x_like.models import swin
from t5x_like.nn.cores.auto import EXACT_CORES
from t5x_like.resolution import height_and_width

MODEL_TYPES = ("swin",)
MODELS = (swin.Model,)
BIASED = "qkv"
ABSOLUTE = ("none", "learned_1d", "sinusoidal_2d")  # the last is written as a table
ATTENTION_NAMES = ("self.query", "self.key", "self.value", "output.dense")


def read_config(fields: Fields, tensor_names: set[str]):
  return swin.Model, {"variant": read_variant(fields, swin.VARIANTS["swin-t"], BIASED, "Swin")}


def read_variant(
  fields: Fields, base: WindowVariant, biased: str, classes: str, **changes
) -> WindowVariant:
  """Return the variant of a config.

  Args:
    biased: the entry of `design.biases` for `qkv_bias`.
    classes: the prefix of its class names.
  """
  fields.ignore(
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "drop_path_rate",
    "encoder_stride",
    "path_norm",
  )
  fields.ignore("num_layers", "hidden_size", "out_features", "out_indices", "stage_names")
  design = replace(
    base.design,
    norm_epsilon=fields.take("layer_norm_eps", 1e-5),
    activation=fields.choose("hidden_act", ACTIVATIONS, "gelu"),
    biases=fields.choose("qkv_bias", {True: (biased, "out", "mlp"), False: ("out", "mlp")}, True),
  )
  return replace(
    base,
    embed=fields.take("embed_dim", 96),
    depths=tuple(fields.take("depths", (2, 2, 6, 2))),
    heads=tuple(fields.take("num_heads", (3, 6, 12, 24))),
    design=design,
    patch=image_encoders.read_side(fields, "patch_size", 4),
    resolution=image_encoders.read_resolution(fields, "image_size", 224),
    channels=fields.take("num_channels", 3),
    window=fields.take("window_size", 7),
    patch_position=fields.choose(
      "use_absolute_embeddings", {True: "learned_1d", False: "none"}, False
    ),
    mlp_ratio=fields.take("mlp_ratio", 4.0),
    head=image_encoders.read_head(fields, f"{classes}ForImageClassification", f"{classes}Model"),
    **changes,
  )


def write_config(model, model_type: str | None) -> dict:
  last = model.variant.grids[-1]
  if min(last.rows, last.columns) < model.variant.window:
    raise UserError(
      f"the last stage has {last.rows} x {last.columns} tokens, fewer than a window of "
      f"{model.variant.window}, with which the library's swin fails"
    )
  required = dict(norm_position="pre", attention_scale=None, position="relative_2d")
  return write_shared_fields(model, "swin", BIASED, "Swin", **required)


def write_shared_fields(model, model_type: str, biased: str, classes: str, **design) -> dict:
  """Return the fields of a model.

  Args:
    biased, classes: see `read_variant`.
    design: allowed values of fields of the design.
  Raises:
    UserError: the type cannot express a field of the design; names it.
  """
  require_design(
    model,
    norm="layernorm",
    parallel="no",
    layer_scale=None,
    biases=[(biased, "out", "mlp"), ("out", "mlp")],
    qk_norm=False,
    softcap=None,
    experts=None,
    activation=list(ACTIVATIONS.values()),
    embed_scale=False,
    embed_norm=True,
    core=[*EXACT_CORES],
    **design,
  )
  variant = model.variant
  if variant.patch_position not in ABSOLUTE:
    raise UserError(
      f"config.model.patch_position: found {variant.patch_position!r}; this model type supports "
      f"only {' or '.join(map(repr, ABSOLUTE))}"
    )
  sides = height_and_width(variant.resolution)
  if variant.patch_position != "none" and any(side % variant.patch for side in sides):
    raise UserError(
      f"config.model.resolution: found {variant.resolution}, no multiple of the patch's "
      f"{variant.patch}; with positions at the patches this model type supports only multiples"
    )
  return image_encoders.write_head(
    model, model_type, f"{classes}ForImageClassification", f"{classes}Model"
  ) | {
    "model_type": model_type,
    "embed_dim": variant.embed,
    "depths": list(variant.depths),
    "num_heads": list(variant.heads),
    "window_size": variant.window,
    "mlp_ratio": variant.mlp_ratio,
    "hidden_act": find_key(ACTIVATIONS, variant.design.activation),
    "layer_norm_eps": variant.design.norm_epsilon,
    "qkv_bias": biased in variant.design.biases,
    "use_absolute_embeddings": variant.patch_position != "none",
    "image_size": variant.resolution,
    "patch_size": variant.patch,
    "num_channels": variant.channels,
  }


def map_tensors(mapping: TensorMapping) -> None:
  def map_position_table(hf_layer: str, path: str, index: int) -> None:
    table = f"{hf_layer}.attention.self.relative_position_bias_table"
    mapping.copy(table, f"{path}/layer/position/table", index)

  map_body(mapping, "swin.", "in_norm", map_position_table)


def map_body(
  mapping: TensorMapping,
  prefix: str,
  norm: str,
  map_positions: Callable[[str, str, int], None],
) -> None:
  """Map all tensors.

  Args:
    prefix: the prefix of the body's tensors in a classifier.
    norm: the name of the sublayers' norm.
    map_positions: maps the tensors of attention besides its projections, called with the name of
      the library's layer, the path of our sublayer and the index of the layer.
  """
  is_classifier = "head/out/kernel" in mapping.parameter_names
  if not is_classifier:
    prefix = ""
  model = mapping.model
  image_encoders.map_patches(mapping, f"{prefix}embeddings.patch_embeddings.projection")
  mapping.norm(f"{prefix}embeddings.norm", "inputs/norm")
  if model.variant.patch_position != "none":
    image_encoders.map_positions(
      mapping, f"{prefix}embeddings.position_embeddings", "inputs", model.inputs.position
    )
  for number, layers in enumerate(model.variant.depths):
    stage = f"stage_{number + 1}"
    blocks = f"{stage}/stack/blocks"
    stack = getattr(model, stage).stack
    for layer, (suffix, index) in enumerate(locate_layers(stack, layers)):
      hf_layer = f"{prefix}encoder.layers.{number}.blocks.{layer}"
      attention = f"{blocks}/self_attention{suffix}"
      mlp = f"{blocks}/mlp{suffix}"
      mapping.attention(f"{hf_layer}.attention", f"{attention}/layer", index, names=ATTENTION_NAMES)
      map_positions(hf_layer, attention, index)
      mapping.norm(f"{hf_layer}.layernorm_before", f"{attention}/{norm}", index)
      mapping.norm(f"{hf_layer}.layernorm_after", f"{mlp}/{norm}", index)
      mapping.linear(f"{hf_layer}.intermediate.dense", f"{mlp}/layer/wi", index)
      mapping.linear(f"{hf_layer}.output.dense", f"{mlp}/layer/wo", index)
    if number > 0:
      hf_merge = f"{prefix}encoder.layers.{number - 1}.downsample"
      mapping.linear(f"{hf_merge}.reduction", f"{stage}/entry/linear")
      mapping.norm(f"{hf_merge}.norm", f"{stage}/entry/norm")
  mapping.norm(f"{prefix}layernorm", "final_norm")
  if is_classifier:
    mapping.linear("classifier", "head/out")
  mapping.ignored_suffixes = ("relative_position_index", "relative_coords_table")

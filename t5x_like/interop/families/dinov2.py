"""DINOv2, with and without registers, as an image classifier or without a head."""

from dataclasses import replace

from t5x_like.architectures.image_encoder import ImageVariant
from t5x_like.errors import UserError
from t5x_like.interop import fused_tensors, image_encoders
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.models import dinov2

PLAIN = "dinov2"
REGISTERS = "dinov2_with_registers"
MODEL_TYPES = (PLAIN, REGISTERS)
MODELS = (dinov2.Model,)
CLASSES = {PLAIN: "Dinov2", REGISTERS: "Dinov2WithRegisters"}
_WITHOUT_EFFECT = """
  drop_path_rate use_mask_token reshape_hidden_states out_features out_indices stage_names
  _out_features _out_indices
"""


def read_config(fields: Fields, tensor_names: set[str]):
  model_type = fields.values["model_type"]
  body = f"{CLASSES[model_type]}Model"
  head = image_encoders.read_head(fields, f"{CLASSES[model_type]}ForImageClassification", body)
  if head["name"] == "image_classification":
    head["pooling"] = "both"
  fields.ignore(*_WITHOUT_EFFECT.split())
  fields.require("apply_layernorm", True)
  registers = fields.take("num_register_tokens", 4) if model_type == REGISTERS else 0
  D = fields.take("hidden_size", 768)
  ratio = fields.take("mlp_ratio", 4)
  gated = fields.choose("use_swiglu_ffn", {True: True, False: False}, False)
  variant = image_encoders.read_variant(
    fields,
    dinov2.VARIANTS["dinov2-b14"],
    mlp=_swiglu_width(int(D * ratio)) if gated else int(D * ratio),
    epsilon=1e-6,
    patch=14 if model_type == PLAIN else 16,
    class_tokens=1,
    registers=registers,
    head=head,
  )
  design = replace(variant.design, layer_scale=float(fields.take("layerscale_value", 1.0)))
  if registers:
    design = replace(design, position=dinov2.ANTIALIASED)
  if gated:
    design = replace(design, activation="swiglu")
  return dinov2.Model, {"variant": replace(variant, design=design)}


def _swiglu_width(mlp: int) -> int:
  """Return the width of a SwiGLU layer in place of a plain one: two thirds, as a multiple of 8."""
  return (mlp * 2 // 3 + 7) // 8 * 8


def write_config(model, model_type: str | None) -> dict:
  variant: ImageVariant = model.variant
  model_type = REGISTERS if variant.registers else PLAIN
  dims = variant.dims
  classes = CLASSES[model_type]
  fields = image_encoders.write_head(
    model, model_type, f"{classes}ForImageClassification", f"{classes}Model", pooling="both"
  )
  scale = variant.design.layer_scale
  gated = variant.design.activation == "swiglu"
  if variant.class_tokens != 1 or scale is None:
    raise UserError(
      f"class_tokens is {variant.class_tokens}, design.layer_scale {scale}; {model_type} has 1 and "
      "a number"
    )
  if not isinstance(variant.resolution, int):
    raise UserError(
      f"config.model.resolution: found {variant.resolution}; {model_type} has positions of a square"
    )
  positions = ("learned_1d", dinov2.ANTIALIASED) if variant.registers else ("learned_1d",)
  fields |= image_encoders.write_config(
    model, model_type, positions, layer_scale=scale, gated=gated
  )
  mlp = fields.pop("intermediate_size")
  ratio = _find_mlp_ratio(mlp, dims.embed, gated)
  if ratio is None:
    raise UserError(
      f"{dims}: {model_type} has feed-forward layers as wide as a whole multiple of the stack's"
    )
  if variant.registers:
    fields["num_register_tokens"] = variant.registers
  return fields | {"mlp_ratio": ratio, "layerscale_value": scale, "use_swiglu_ffn": gated}


def _find_mlp_ratio(mlp: int, embed: int, gated: bool) -> int | None:
  """Return the `mlp_ratio` that gives this feed-forward width, None if no whole number does."""
  for ratio in range(1, 17):
    width = ratio * embed
    if mlp == (_swiglu_width(width) if gated else width):
      return ratio
  return None


def map_tensors(mapping: TensorMapping) -> None:
  classifies = "head/out/kernel" in mapping.parameter_names
  registers = mapping.model.variant.registers
  prefix = f"{REGISTERS if registers else PLAIN}." if classifies else ""
  image_encoders.map_embeddings(mapping, prefix, ("cls_token",))
  if registers:
    mapping.fuse(
      f"{prefix}embeddings.register_tokens",
      ["registers"],
      split=lambda x: [x[0]],
      join=image_encoders.join_with_leading_axes(1),
    )
  for index in range(mapping.model.variant.dims.layers):
    hf_layer = f"{prefix}encoder.layer.{index}"
    attention = "encoder/blocks/self_attention"
    mlp = "encoder/blocks/mlp"
    mapping.norm(f"{hf_layer}.norm1", f"{attention}/in_norm", index)
    mapping.attention(
      f"{hf_layer}.attention", f"{attention}/layer", index, names=image_encoders.ATTENTION_NAMES
    )
    mapping.copy(f"{hf_layer}.layer_scale1.lambda1", f"{attention}/res_norm/scale", index)
    mapping.norm(f"{hf_layer}.norm2", f"{mlp}/in_norm", index)
    if "encoder/blocks/mlp/layer/gate/kernel" in mapping.parameter_names:
      fused_tensors.map_stacked(
        mapping, f"{hf_layer}.mlp.weights_in", f"{mlp}/layer", index, parts=("gate", "wi")
      )
      mapping.linear(f"{hf_layer}.mlp.weights_out", f"{mlp}/layer/wo", index)
    else:
      mapping.linear(f"{hf_layer}.mlp.fc1", f"{mlp}/layer/wi", index)
      mapping.linear(f"{hf_layer}.mlp.fc2", f"{mlp}/layer/wo", index)
    mapping.copy(f"{hf_layer}.layer_scale2.lambda1", f"{mlp}/res_norm/scale", index)
  mapping.norm(f"{prefix}layernorm", "encoder/final_norm")
  if classifies:
    mapping.linear("classifier", "head/out")
  mapping.unread_suffixes = (f"{prefix}embeddings.mask_token",)

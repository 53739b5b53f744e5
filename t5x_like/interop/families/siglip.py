"""SigLIP: both encoders, the pooling of images and the projection of texts."""

from dataclasses import replace

from t5x_like.architectures.design import Tokens, Variant
from t5x_like.architectures.dual_encoder import DualVariant
from t5x_like.architectures.image_encoder import ImageVariant
from t5x_like.errors import UserError
from t5x_like.interop import fused_tensors, image_encoders
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.families import clip
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.models import siglip

MODEL_TYPES = ("siglip",)
MODELS = (siglip.Model,)
# The EOS of the published tokenizer, which also pads with it. Published configs may have the EOS of
# another model, beyond the vocabulary.
_EOS = 1


def read_config(fields: Fields, tensor_names: set[str]):
  """Return the class of the model and its arguments from a SigLIP `config.json`."""
  fields.require("architectures", ["SiglipModel"])
  fields.ignore(
    "initializer_factor", "tie_word_embeddings", "text_config_dict", "vision_config_dict"
  )
  image = fields.section("vision_config")
  text = fields.section("text_config")
  image_dims, image_design = clip.read_encoder(image, siglip.IMAGE, 768, 12)
  image.require("vision_use_head", True)
  image_variant = ImageVariant(
    image_dims,
    image_design,
    patch=image_encoders.read_side(image, "patch_size", 16),
    resolution=image_encoders.read_side(image, "image_size", 224),
    channels=image.take("num_channels", 3),
    class_tokens=0,
    head="attention_pool",
    partial_patches="dropped",
  )
  text_dims, text_design = clip.read_encoder(text, siglip.TEXT, 768, 12)
  length = text.take("max_position_embeddings", 64)
  text_design = replace(text_design, position={"name": "learned", "length": length})
  width = text.take("projection_size", text_dims.embed)
  if width != image_dims.embed:
    raise text.refusal("projection_size", width, f"the {image_dims.embed} of images")
  vocab_size = text.take("vocab_size", 32_000)
  eos = text.values.get("eos_token_id")
  text.ignore("pad_token_id", "eos_token_id")
  if not isinstance(eos, int) or not 0 <= eos < vocab_size:
    eos = _EOS
  image.refuse_unused()
  text.refuse_unused()
  text_variant = Variant(text_dims, text_design, vocab_size, Tokens(None, eos=eos))
  variant = DualVariant(image_variant, text_variant, width, "last", projection_bias=True)
  return siglip.Model, {"variant": variant}


def write_config(model, model_type: str | None) -> dict:
  """Return the `config.json` of a model; raise UserError if SigLIP cannot express its design."""
  variant = model.variant
  image = model.image.variant
  text = model.variant.text
  if variant.text_pooling != "last" or not variant.projection_bias or model.bias is None:
    raise UserError(
      f"variant.text_pooling is {variant.text_pooling!r}, projection_bias "
      f"{variant.projection_bias}, bias {model.bias}; siglip has 'last', True and a bias"
    )
  if (
    image.class_tokens
    or image.registers
    or not image.patch_bias
    or variant.image.head != "attention_pool"
  ):
    raise UserError(
      f"class_tokens is {image.class_tokens}, patch_bias {image.patch_bias}, head "
      f"{variant.image.head!r}; siglip has 0, True and 'attention_pool'"
    )
  position = text.design.position
  if not isinstance(position, dict) or position["name"] != "learned" or position.get("offset"):
    raise UserError(f"design.position of texts is {position!r}; siglip supports only 'learned'")
  image_config = clip.write_encoder(model.image, "siglip_vision_model", False, "learned_1d")
  image_config |= {
    "image_size": image.resolution,
    "patch_size": image.patch,
    "num_channels": image.channels,
  }
  text_config = clip.write_encoder(model.text, "siglip_text_model", False, position)
  text_config |= {
    "vocab_size": text.vocab_size,
    "max_position_embeddings": position.get("length", 512),
    "projection_size": variant.width,
    "pad_token_id": text.tokens.eos if text.tokens.pad is None else text.tokens.pad,
    "bos_token_id": None,
    "eos_token_id": text.tokens.eos,
  }
  return {
    "architectures": ["SiglipModel"],
    "model_type": "siglip",
    "vision_config": image_config,
    "text_config": text_config,
  }


def map_tensors(mapping: TensorMapping) -> None:
  """Map the tensors of both encoders, the pooling head, the projection, and the scale and bias."""
  mapping.ignored_suffixes = ("position_ids",)
  variant = mapping.model.image.variant
  image_encoders.map_patches(mapping, "vision_model.embeddings.patch_embedding", "image/", variant)
  mapping.copy("vision_model.embeddings.position_embedding.weight", "image/inputs/position/table")
  clip.map_layers(mapping, "vision_model", "image", variant.dims.layers)
  mapping.norm("vision_model.post_layernorm", "image/encoder/final_norm")
  mapping.fuse(
    "vision_model.head.probe",
    ["image/head/query"],
    split=lambda x: [x[0]],
    join=image_encoders.join_with_leading_axes(1),
  )
  fused_tensors.map_stacked(
    mapping, "vision_model.head.attention.in_proj", "image/head/attention", separator="_"
  )
  mapping.linear("vision_model.head.attention.out_proj", "image/head/attention/out")
  mapping.norm("vision_model.head.layernorm", "image/head/norm")
  for hf_layer, path in (("fc1", "wi"), ("fc2", "wo")):
    mapping.linear(f"vision_model.head.mlp.{hf_layer}", f"image/head/mlp/{path}")
  mapping.copy("text_model.embeddings.token_embedding.weight", "text/embed/table")
  mapping.copy("text_model.embeddings.position_embedding.weight", "text/inputs/position/table")
  clip.map_layers(mapping, "text_model", "text", mapping.model.variant.text.dims.layers)
  mapping.norm("text_model.final_layer_norm", "text/encoder/final_norm")
  mapping.linear("text_model.head", "projection")
  for hf_layer, path in (("logit_scale", "scale"), ("logit_bias", "bias")):
    mapping.fuse(
      hf_layer, [path], split=lambda x: [x[0]], join=image_encoders.join_with_leading_axes(1)
    )

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
_EOS = 1  # of the published tokenizer, which also pads with it; configs have another model's


def build(fields: Fields, names: set[str]):
  fields.only("architectures", ["SiglipModel"])
  fields.ignore(
    "initializer_factor", "tie_word_embeddings", "text_config_dict", "vision_config_dict"
  )
  image = fields.section("vision_config")
  text = fields.section("text_config")
  dims, design = clip.stack(image, siglip.IMAGE, 768, 12)
  image.only("vision_use_head", True)
  vision = ImageVariant(
    dims,
    design,
    patch=image_encoders.side(image, "patch_size", 16),
    resolution=image_encoders.side(image, "image_size", 224),
    channels=image.take("num_channels", 3),
    class_tokens=0,
    head="attention_pool",
    edge="dropped",
  )
  dims, design = clip.stack(text, siglip.TEXT, 768, 12)
  design = replace(
    design, position={"name": "learned", "length": text.take("max_position_embeddings", 64)}
  )
  width = text.take("projection_size", dims.embed)
  if width != vision.dims.embed:
    raise text.refusal("projection_size", width, f"the {vision.dims.embed} of images")
  vocab = text.take("vocab_size", 32_000)
  ends = text.values.get("eos_token_id")
  text.ignore("pad_token_id", "eos_token_id")
  eos = ends if isinstance(ends, int) and 0 <= ends < vocab else _EOS
  for part in (image, text):
    part.finish()
  words = Variant(dims, design, vocab, Tokens(None, eos=eos))
  return siglip.Model, {"variant": DualVariant(vision, words, width, "last", projection_bias=True)}


def config(model, model_type: str | None) -> dict:
  variant = model.variant
  image = model.image.variant
  text = model.variant.text
  if variant.reading != "last" or not variant.projection_bias or model.bias is None:
    found = (
      f"variant.reading is {variant.reading!r}, projection_bias {variant.projection_bias}, "
      f"bias {model.bias}"
    )
    raise UserError(f"{found}; siglip has 'last', True and a bias")
  if (
    image.class_tokens
    or image.registers
    or not image.patch_bias
    or variant.image.head != "attention_pool"
  ):
    found = (
      f"class_tokens is {image.class_tokens}, patch_bias {image.patch_bias}, head "
      f"{variant.image.head!r}"
    )
    raise UserError(f"{found}; siglip has 0, True and 'attention_pool'")
  position = text.design.position
  if not isinstance(position, dict) or position["name"] != "learned" or position.get("offset"):
    raise UserError(f"design.position of texts is {position!r}; siglip supports only 'learned'")
  vision = clip.fields_of(model.image, "siglip_vision_model", False, "learned_1d")
  words = clip.fields_of(model.text, "siglip_text_model", False, position)
  return {
    "architectures": ["SiglipModel"],
    "model_type": "siglip",
    "vision_config": vision
    | {"image_size": image.resolution, "patch_size": image.patch, "num_channels": image.channels},
    "text_config": words
    | {
      "vocab_size": text.vocab_size,
      "max_position_embeddings": position.get("length", 512),
      "projection_size": variant.width,
      "pad_token_id": text.tokens.eos if text.tokens.pad is None else text.tokens.pad,
      "bos_token_id": None,
      "eos_token_id": text.tokens.eos,
    },
  }


def tensors(m: TensorMapping) -> None:
  m.ignored = ("position_ids",)
  variant = m.model.image.variant
  vision = "vision_model"
  words = "text_model"
  image_encoders.patches(m, f"{vision}.embeddings.patch_embedding", "image/", variant)
  m.copy(f"{vision}.embeddings.position_embedding.weight", "image/inputs/position/table")
  clip.layers(m, vision, "image", variant.dims.layers)
  m.norm(f"{vision}.post_layernorm", "image/encoder/final_norm")
  m.fused(
    f"{vision}.head.probe",
    ["image/head/query"],
    split=lambda x: [x[0]],
    join=image_encoders.leading(1),
  )
  fused_tensors.map_stacked(m, f"{vision}.head.attention.in_proj", "image/head/attention", join="_")
  m.linear(f"{vision}.head.attention.out_proj", "image/head/attention/out")
  m.norm(f"{vision}.head.layernorm", "image/head/norm")
  for theirs, ours in (("fc1", "wi"), ("fc2", "wo")):
    m.linear(f"{vision}.head.mlp.{theirs}", f"image/head/mlp/{ours}")
  m.copy(f"{words}.embeddings.token_embedding.weight", "text/embed/table")
  m.copy(f"{words}.embeddings.position_embedding.weight", "text/inputs/position/table")
  clip.layers(m, words, "text", m.model.variant.text.dims.layers)
  m.norm(f"{words}.final_layer_norm", "text/encoder/final_norm")
  m.linear(f"{words}.head", "projection")
  for theirs, ours in (("logit_scale", "scale"), ("logit_bias", "bias")):
    m.fused(theirs, [ours], split=lambda x: [x[0]], join=image_encoders.leading(1))

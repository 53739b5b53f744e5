"""CLIP: both encoders and their projections."""

import dataclasses

from t5x_like.architectures.design import Design, Tokens, Variant
from t5x_like.architectures.dual_encoder import DualVariant
from t5x_like.architectures.image_encoder import ImageVariant
from t5x_like.errors import UserError
from t5x_like.interop import image_encoders
from t5x_like.interop.config_fields import Fields, find_key
from t5x_like.interop.encoders import ACTIVATIONS
from t5x_like.interop.hf import require_design
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.models import clip
from t5x_like.nn.cores.auto import EXACT_CORES
from t5x_like.nn.dims import Dims

MODEL_TYPES = ("clip",)
MODELS = (clip.Model,)
ATTENTION_NAMES = ("q_proj", "k_proj", "v_proj", "out_proj")
_LEGACY_EOS = 2  # the value of published configs, although EOS is the highest id
_UNUSED = (
  "attention_dropout",
  "dropout",
  "projection_dim",
  "initializer_factor",
  "tie_word_embeddings",
)


def read_config(fields: Fields, tensor_names: set[str]):
  fields.require("architectures", ["CLIPModel"])
  fields.ignore(
    "logit_scale_init_value",
    "initializer_factor",
    "tie_word_embeddings",
    "text_config_dict",
    "vision_config_dict",
  )
  width = fields.take("projection_dim", 512)
  image = fields.section("vision_config")
  text = fields.section("text_config")
  dims, design = read_encoder(image, clip.IMAGE, 768, 12)
  vision = ImageVariant(
    dims,
    design,
    patch=image.take("patch_size", 32),
    resolution=image.take("image_size", 224),
    channels=image.take("num_channels", 3),
    head="projection",
    patch_bias=False,
    patch_scale=1 / 3,
  )
  dims, design = read_encoder(text, clip.TEXT, 512, 8)
  vocab = text.take("vocab_size", 49_408)
  eos = text.take("eos_token_id", 49_407)
  length = text.take("max_position_embeddings", 77)
  text.ignore("pad_token_id")
  eos = vocab - 1 if eos == _LEGACY_EOS else eos
  start = text.values.get("bos_token_id", 49_406)
  design = dataclasses.replace(design, position={"name": "learned", "length": length})
  image.refuse_unused()
  text.refuse_unused()
  return clip.Model, {
    "variant": DualVariant(vision, Variant(dims, design, vocab, Tokens(None, start, eos)), width)
  }


def read_encoder(fields: Fields, base: Design, width: int, heads: int) -> tuple[Dims, Design]:
  """Return the sizes and the design of an encoder; width and heads are the defaults."""
  fields.ignore(*_UNUSED)
  D = fields.take("hidden_size", width)
  N = fields.take("num_attention_heads", heads)
  dims = Dims(
    D,
    N,
    N,
    D // N,
    fields.take("intermediate_size", 4 * width),
    fields.take("num_hidden_layers", 12),
  )
  return dims, dataclasses.replace(
    base,
    norm_epsilon=fields.take("layer_norm_eps", base.norm_epsilon),
    activation=fields.choose("hidden_act", ACTIVATIONS, find_key(ACTIVATIONS, base.activation)),
  )


def write_config(model, model_type: str | None) -> dict:
  if model.bias is not None:
    raise UserError("bias is not None; clip has no bias on its logits")
  image = model.image.variant
  text = model.variant.text
  if model.variant.text_pooling != "end":
    raise UserError(
      f"variant.text_pooling is {model.variant.text_pooling!r}; clip reads texts at their end"
    )
  if image.class_tokens != 1 or image.patch_bias:
    raise UserError(
      f"class_tokens is {image.class_tokens}, patch_bias {image.patch_bias}; clip has 1 and False"
    )
  position = text.design.position
  if not isinstance(position, dict) or position["name"] != "learned" or position.get("offset"):
    raise UserError(f"design.position of texts is {position!r}; clip supports only 'learned'")
  if text.tokens.eos == _LEGACY_EOS != text.vocab_size - 1:
    raise UserError(f"tokens.eos is {_LEGACY_EOS}, which configs of clip read as the highest id")
  return {
    "architectures": ["CLIPModel"],
    "model_type": "clip",
    "projection_dim": model.variant.width,
    "vision_config": write_encoder(model.image, "clip_vision_model", True, "learned_1d")
    | {
      "image_size": image.resolution,
      "patch_size": image.patch,
      "num_channels": image.channels,
      "projection_dim": model.variant.width,
    },
    "text_config": write_encoder(model.text, "clip_text_model", False, position)
    | {
      "vocab_size": text.vocab_size,
      "max_position_embeddings": position.get("length", 512),
      "bos_token_id": text.tokens.start,
      "eos_token_id": text.tokens.eos,
      "pad_token_id": text.tokens.eos if text.tokens.pad is None else text.tokens.pad,
      "projection_dim": model.variant.width,
    },
  }


def write_encoder(model, model_type: str, embed_norm: bool, position) -> dict:
  """Return the fields of an encoder; raise UserError for a design that the type cannot express."""
  design = model.variant.design
  dims = model.variant.dims
  require_design(
    model,
    norm="layernorm",
    norm_position="pre",
    parallel="no",
    biases=("qkv", "out", "mlp"),
    qk_norm=False,
    attention_scale=None,
    softcap=None,
    windows=(None,),
    experts=None,
    activation=list(ACTIVATIONS.values()),
    position=[position],
    embed_scale=False,
    embed_norm=embed_norm,
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
    "hidden_act": find_key(ACTIVATIONS, design.activation),
    "layer_norm_eps": design.norm_epsilon,
  }


def map_tensors(mapping: TensorMapping) -> None:
  mapping.ignored_suffixes = ("position_ids",)
  variant = mapping.model.image.variant
  embeddings = "vision_model.embeddings"
  image_encoders.map_patches(mapping, f"{embeddings}.patch_embedding", "image/", variant)
  mapping.fuse(
    f"{embeddings}.class_embedding",
    ["image/tokens"],
    split=lambda x: [x[None]],
    join=lambda xs: xs[0].reshape(-1),
  )
  mapping.copy(f"{embeddings}.position_embedding.weight", "image/inputs/position/table")
  mapping.norm("vision_model.pre_layrnorm", "image/inputs/norm")
  map_layers(mapping, "vision_model", "image", variant.dims.layers)
  mapping.norm("vision_model.post_layernorm", "image/encoder/final_norm")
  mapping.copy("text_model.embeddings.token_embedding.weight", "text/embed/table")
  mapping.copy("text_model.embeddings.position_embedding.weight", "text/inputs/position/table")
  map_layers(mapping, "text_model", "text", mapping.model.variant.text.dims.layers)
  mapping.norm("text_model.final_layer_norm", "text/encoder/final_norm")
  mapping.linear("visual_projection", "image/head/out")
  mapping.linear("text_projection", "projection")
  mapping.copy("logit_scale", "scale")


def map_layers(mapping: TensorMapping, hf_name: str, path: str, layers: int) -> None:
  """Map the layers of an encoder."""
  attention = f"{path}/encoder/blocks/self_attention"
  mlp = f"{path}/encoder/blocks/mlp"
  for layer in range(layers):
    hf_layer = f"{hf_name}.encoder.layers.{layer}"
    mapping.attention(f"{hf_layer}.self_attn", f"{attention}/layer", layer, names=ATTENTION_NAMES)
    mapping.norm(f"{hf_layer}.layer_norm1", f"{attention}/in_norm", layer)
    mapping.norm(f"{hf_layer}.layer_norm2", f"{mlp}/in_norm", layer)
    mapping.linear(f"{hf_layer}.mlp.fc1", f"{mlp}/layer/wi", layer)
    mapping.linear(f"{hf_layer}.mlp.fc2", f"{mlp}/layer/wo", layer)

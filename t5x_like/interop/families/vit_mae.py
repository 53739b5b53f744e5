"""Masked autoencoders: a ViT whose head is their decoder.

A file's positions are read as a table. In published files it is the fixed table of sines and
cosines, and a model with `sinusoidal_2d` is written with this table.
"""

from t5x_like.errors import UserError
from t5x_like.interop import image_encoders
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.models import vit

MODEL_TYPES = ("vit_mae",)
MODELS = (vit.Model,)
SIZES = {  # of the decoder: their name -> our name and the default
  "decoder_num_hidden_layers": ("depth", 8),
  "decoder_hidden_size": ("embed", 512),
  "decoder_num_attention_heads": ("heads", 16),
  "decoder_intermediate_size": ("mlp", 2048),
}


def canonical_name(name: str) -> str:
  """Rename the decoder's layers, which some versions of the library write under another name."""
  return name.replace("decoder.decoder_encoder.layer.", "decoder.decoder_layers.")


def read_config(fields: Fields, tensor_names: set[str]):
  fields.require("architectures", ["ViTMAEForPreTraining"])
  fields.ignore("mask_ratio", "norm_pix_loss")
  head = {"name": "reconstruction"}
  for name, (argument, default) in SIZES.items():
    head[argument] = fields.take(name, default)
  return vit.Model, {
    "variant": image_encoders.read_variant(
      fields, vit.VARIANTS["vit-b16"], class_tokens=1, head=head
    )
  }


def write_config(model, model_type: str | None) -> dict:
  head = model.variant.head
  if not isinstance(head, dict):
    head = {"name": head}
  if head["name"] != "reconstruction" or model.variant.class_tokens != 1:
    raise UserError(
      f"the head {head['name']!r} with {model.variant.class_tokens} class tokens: vit_mae has "
      "'reconstruction' and 1"
    )
  sizes = {name: head.get(argument, default) for name, (argument, default) in SIZES.items()}
  fields = image_encoders.write_config(model, "vit_mae", ("learned_1d", "sinusoidal_2d"))
  return {
    "architectures": ["ViTMAEForPreTraining"],
    **fields,
    **sizes,
    "mask_ratio": 0.75,
    "norm_pix_loss": True,
  }


def map_tensors(mapping: TensorMapping) -> None:
  image_encoders.map_tensors(mapping, "vit.", ("cls_token",))
  mapping.linear("decoder.decoder_embed", "head/project")
  mapping.fuse(
    "decoder.mask_token",
    ["head/mask"],
    split=lambda x: [x.reshape(-1)],
    join=image_encoders.join_with_leading_axes(2),
  )
  image_encoders.map_positions(
    mapping, "decoder.decoder_pos_embed", "head/inputs", mapping.model.head.inputs.position
  )
  image_encoders.map_layers(
    mapping, "decoder.decoder_layers", "head/decoder", mapping.model.head.decoder.repeats
  )
  mapping.norm("decoder.decoder_norm", "head/decoder/final_norm")
  mapping.linear("decoder.decoder_pred", "head/out")

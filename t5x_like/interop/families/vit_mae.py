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


def renamed(name: str) -> str:
  """Rename the decoder's layers, which some versions of the library write under another name."""
  return name.replace("decoder.decoder_encoder.layer.", "decoder.decoder_layers.")


def build(fields: Fields, names: set[str]):
  fields.only("architectures", ["ViTMAEForPreTraining"])
  fields.ignore("mask_ratio", "norm_pix_loss")
  head = {"name": "reconstruction"} | {
    ours: fields.take(name, default) for name, (ours, default) in SIZES.items()
  }
  return vit.Model, {
    "variant": image_encoders.build(fields, vit.VARIANTS["vit-b16"], class_tokens=1, head=head)
  }


def config(model, model_type: str | None) -> dict:
  head = (
    model.variant.head if isinstance(model.variant.head, dict) else {"name": model.variant.head}
  )
  if head["name"] != "reconstruction" or model.variant.class_tokens != 1:
    found = f"the head {head['name']!r} with {model.variant.class_tokens} class tokens"
    raise UserError(f"{found}: vit_mae has 'reconstruction' and 1")
  sizes = {name: head.get(ours, default) for name, (ours, default) in SIZES.items()}
  fields = image_encoders.config(model, "vit_mae", ("learned_1d", "sinusoidal_2d"))
  return (
    {"architectures": ["ViTMAEForPreTraining"]}
    | fields
    | sizes
    | {"mask_ratio": 0.75, "norm_pix_loss": True}
  )


def tensors(m: TensorMapping) -> None:
  image_encoders.tensors(m, "vit.", ("cls_token",))
  m.linear("decoder.decoder_embed", "head/project")
  m.fused(
    "decoder.mask_token",
    ["head/mask"],
    split=lambda x: [x.reshape(-1)],
    join=image_encoders.leading(2),
  )
  image_encoders.positions(
    m, "decoder.decoder_pos_embed", "head/inputs", m.model.head.inputs.position
  )
  image_encoders.layers(m, "decoder.decoder_layers", "head/decoder", m.model.head.decoder.repeats)
  m.norm("decoder.decoder_norm", "head/decoder/final_norm")
  m.linear("decoder.decoder_pred", "head/out")

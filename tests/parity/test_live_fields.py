"""A field that `config.json` lacks has the default of `transformers`, or its lack is refused."""

import json

import pytest
from transformers import AutoConfig

from t5x_like.errors import UserError
from t5x_like.interop import hf
from t5x_like.interop.config_fields import Fields

pytestmark = pytest.mark.parity

REQUIRED_FIELDS = {  # of types whose classes have no default that we read
  "clip": dict(architectures=["CLIPModel"]),
  "deberta-v2": dict(
    relative_attention=True,
    share_att_key=True,
    position_biased_input=False,
    norm_rel_ebd="layer_norm",
    pos_att_type=["p2c", "c2p"],
    type_vocab_size=0,
    position_buckets=256,
  ),
  "modernbert": dict(architectures=["ModernBertForMaskedLM"]),
  "siglip": dict(architectures=["SiglipModel"]),
  "switch_transformers": dict(num_sparse_encoder_layers=6, num_sparse_decoder_layers=6),
  "vit_mae": dict(architectures=["ViTMAEForPreTraining"]),
}
TYPES = sorted(name for name in hf.model_types() if not name.startswith("timm/") and name != "detr")


def variant_or_refusal(values):
  """Return the variant that a config describes, or the message that refuses the config."""
  model_type = hf.find_model_type(hf.model_type_of(values), "config.json")
  fields = Fields(values, "config.json")
  try:
    _, arguments = model_type.read(fields)
    fields.refuse_unused()
  except UserError as error:
    return str(error)
  return arguments["variant"]


def without_each_field(values):
  """Yield (name, the config without this field), for the config and for its sections."""
  for name, value in values.items():
    if name == "model_type" or name in REQUIRED_FIELDS.get(values["model_type"], {}):
      continue
    if not (name.endswith("_token_id") and value is None):  # ours are then the published models'
      yield name, {key: value for key, value in values.items() if key != name}
    if name in ("text_config", "vision_config"):
      for inner_name, section in without_each_field(value):
        yield f"{name}.{inner_name}", values | {name: section}


@pytest.mark.parametrize("model_type", TYPES)
def test_a_missing_field_has_the_librarys_default_or_is_refused(model_type):
  config = AutoConfig.for_model(model_type, **REQUIRED_FIELDS.get(model_type, {}))
  values = json.loads(config.to_json_string(use_diff=False)) | REQUIRED_FIELDS.get(model_type, {})
  full_variant = variant_or_refusal(values)
  assert not isinstance(full_variant, str), full_variant
  for name, shorter_values in without_each_field(values):
    variant = variant_or_refusal(shorter_values)
    assert variant == full_variant or isinstance(variant, str), name

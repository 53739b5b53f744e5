"""Fields that a `config.json` leaves out have the library's defaults (`make parity`)."""

import json

import pytest
from transformers import AutoConfig

from t5x_like.errors import UserError
from t5x_like.interop import hf
from t5x_like.interop.config_fields import Fields

pytestmark = pytest.mark.parity

NEEDED = {  # of types whose classes have no default that we read
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
TYPES = [
  name for name in sorted(hf.model_types()) if not name.startswith("timm/") and name != "detr"
]


def variant(values):
  """The variant of a config, or the refusal of one that lacks a field."""
  family = hf._find_family(hf.model_type_of(values), "config.json")
  fields = Fields(values, "config.json")
  try:
    made = family.read_config(fields, set())[1]["variant"]
    fields.refuse_unused()
  except UserError as error:
    return str(error)
  return made


def shortened(values):
  """Yield (name, the config without this field), of the config itself and of its sections."""
  for name, value in values.items():
    if name == "model_type" or name in NEEDED.get(values["model_type"], {}):
      continue
    if not (name.endswith("_token_id") and value is None):  # ours are then the published models'
      yield name, {key: value for key, value in values.items() if key != name}
    if name in ("text_config", "vision_config"):
      yield from ((f"{name}.{inner}", values | {name: rest}) for inner, rest in shortened(value))


@pytest.mark.parametrize("model_type", TYPES)
def test_a_field_left_out_is_the_librarys_default_or_missed(model_type):
  config = AutoConfig.for_model(model_type, **NEEDED.get(model_type, {}))
  values = json.loads(config.to_json_string(use_diff=False)) | NEEDED.get(model_type, {})
  whole = variant(values)
  assert not isinstance(whole, str), whole
  for name, fewer in shortened(values):
    found = variant(fewer)
    assert found == whole or isinstance(found, str), name

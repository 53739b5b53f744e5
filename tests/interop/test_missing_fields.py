"""What a config.json leaves out has the library's default; `make parity` has every field of every
type."""

import math

import pytest

from interop.test_decoders import read_variant
from t5x_like.architectures.design import Tokens
from t5x_like.errors import UserError
from t5x_like.interop import config_table

T5 = dict(vocab_size=64, d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4)
BART = dict(
  vocab_size=64, d_model=16, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=32
)

GPT2 = dict(model_type="gpt2", vocab_size=64, n_embd=16, n_head=4, n_layer=2)
LLAMA = dict(
  model_type="llama",
  vocab_size=64,
  hidden_size=16,
  intermediate_size=32,
  num_attention_heads=4,
  num_hidden_layers=2,
)


def test_defaults_of_relatives_differ():
  activations = {
    kind: read_variant(T5 | {"model_type": kind}).design.activation
    for kind in ("t5", "mt5", "umt5")
  }
  assert activations == {"t5": "relu", "mt5": "geglu_tanh", "umt5": "geglu_tanh"}
  bart, mbart, marian = (
    read_variant(BART | {"model_type": kind}) for kind in ("bart", "mbart", "marian")
  )
  assert not (bart.design.embed_scale or mbart.design.embed_scale or marian.design.embed_scale)
  assert mbart.tokens == Tokens(1, 2, 2)
  assert marian.tokens == Tokens(58_100, 58_100, 0)
  siglip = read_variant(
    {
      "model_type": "siglip",
      "architectures": ["SiglipModel"],
      "text_config": {},
      "vision_config": {},
    }
  )
  assert siglip.image.design.activation == siglip.text.design.activation == "gelu_tanh"


def test_the_first_of_several_ends_counts():
  for values in (T5 | {"model_type": "t5"}, BART | {"model_type": "bart"}):
    assert read_variant(values | {"eos_token_id": [5, 6]}).tokens.eos == 5


@pytest.mark.parametrize("change", [{"dense_act_fn": "gelu"}, {"is_gated_act": False}])
def test_an_activation_that_overrides_the_layer_is_refused(change):
  """The library computes with these fields, which usually follow from `feed_forward_proj`."""
  values = T5 | {"model_type": "t5", "feed_forward_proj": "gated-gelu"}
  assert (
    read_variant(values | {"dense_act_fn": "gelu_new", "is_gated_act": True}).design.activation
    == "geglu_tanh"
  )
  with pytest.raises(UserError, match=next(iter(change))):
    read_variant(values | change)


@pytest.mark.parametrize(
  "values, extra",
  [  # of GPT-2 medium, DistilGPT-2, SmolLM2, BART CNN, OPUS-MT and umT5
    (GPT2, {"n_special": 0, "predict_special_tokens": True}),
    (GPT2, {"_num_labels": 1}),
    (
      LLAMA,
      {
        "is_llama_config": True,
        "rope_interleaved": False,
        "transformers.js_config": {"dtype": "q4"},
      },
    ),
    (BART | {"model_type": "bart"}, {"extra_pos_embeddings": 0, "_num_labels": 3}),
    (BART | {"model_type": "marian"}, {"extra_pos_embeddings": 58_101}),
    (
      T5 | {"model_type": "umt5"},
      {"scalable_attention": True, "dense_act_fn": "gelu_pytorch_tanh"},
    ),
  ],
)
def test_unused_fields_of_published_configs_are_ignored(values, extra):
  assert read_variant(values | extra) == read_variant(values)


def test_fields_of_other_models_are_refused():
  for values, extra in ((GPT2, {"n_special": 3}), (LLAMA, {"rope_interleaved": True})):
    with pytest.raises(UserError, match=next(iter(extra))):
      read_variant(values | extra)


def test_fields_that_cannot_change_the_function_are_named_once(caplog):
  """As conversions from GGUF, adapters and older readers write them; what may change the function
  is refused."""
  extra = {
    "_model_name_or_path": "x",
    "_private": 1,
    "save_step": 3,
    "adapters": {},
    "resid_dropout": 0.1,
  }
  extra |= {"max_sequence_length": 8, "attn_implementation": "sdpa", "max_window_layers": 2}
  assert read_variant(LLAMA | extra) == read_variant(LLAMA)
  read_variant(LLAMA | extra)
  (record,) = caplog.records
  assert all(f"'{name}'" in record.getMessage() for name in extra)
  with pytest.raises(
    UserError, match="field 'clip_qkv' is 8, which this model type is not known to have"
  ):
    read_variant(LLAMA | extra | {"clip_qkv": 8})


def test_yarn_takes_its_length_and_factor_from_the_config():
  def yarn(values, **extra):
    return read_variant(
      LLAMA | {"max_position_embeddings": 64, "rope_scaling": {"type": "yarn"} | values} | extra
    ).design.position["yarn"]

  assert yarn({"factor": 4.0, "attn_factor": 1.0, "finetuned": True}) == {
    "factor": 4.0,
    "original_length": 64,
  }
  assert yarn({"original_max_position_embeddings": 16}) == {"factor": 4.0, "original_length": 16}
  arguments = yarn(
    {"factor": 2.0, "original_max_position_embeddings": 32}, original_max_position_embeddings=16
  )
  assert arguments == {"factor": 2.0, "original_length": 16}
  weighted = yarn({"factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.5})
  assert weighted["attention"] == pytest.approx((0.1 * math.log(4) + 1) / (0.05 * math.log(4) + 1))


def test_a_field_without_a_type_is_refused_where_it_is_declared():
  with pytest.raises(LookupError, match="no_such_field"):
    config_table.Field("no_such_field", "design.norm_epsilon")

"""BART, mBART and Marian, whose files have the same layout."""

import dataclasses

from t5x_like.architectures.design import Tokens, Variant
from t5x_like.errors import UserError
from t5x_like.interop.config_fields import Fields, find_key
from t5x_like.interop.hf import exact_cores, require_design
from t5x_like.interop.tensor_mapping import TensorMapping, locate_layers
from t5x_like.models import bart, transformer
from t5x_like.nn.dims import Dims

MODEL_TYPES = ("bart", "mbart", "marian")
MODELS = (bart.Model, transformer.Model)
BODY_PREFIX = "model."
ACTIVATIONS = {
  "gelu": "gelu",
  "relu": "relu",
  "silu": "silu",
  "swish": "silu",
  "gelu_new": "gelu_tanh",
  "tanh": "tanh",
}
ATTENTION_NAMES = ("q_proj", "k_proj", "v_proj", "out_proj")
# padding, end and start
IDS = {"bart": (1, 2, None), "mbart": (1, 2, None), "marian": (58_100, 0, 58_100)}
DESIGNS = {"bart": bart.BART, "mbart": bart.MBART, "marian": transformer.MARIAN}
# fields of a design that a config may set, or that do not change the function
_FREE_FIELDS = {
  "activation",
  "position",
  "embed_scale",
  "logits_bias",
  "embed_init",
  "init_stddev",
  "mlp_dropout",
  "core",
  "quantization",
}


def read_config(fields: Fields, tensor_names: set[str]):
  model_type = fields.values["model_type"]
  _require_layout(fields, model_type)
  length = fields.take("max_position_embeddings", 1024)
  design = DESIGNS[model_type]
  position = design.position
  if model_type != "marian":
    position = {"name": "learned", "length": length, "offset": 2}
  design = dataclasses.replace(
    design,
    activation=fields.choose("activation_function", ACTIVATIONS, "gelu"),
    position=position,
    embed_scale=fields.take("scale_embedding", False),
    logits_bias="final_logits_bias" in tensor_names,
  )
  D = fields.take("d_model")
  heads = fields.take("encoder_attention_heads")
  mlp = fields.take("encoder_ffn_dim")
  layers = fields.take("encoder_layers")
  decoder_layers = fields.take("decoder_layers", layers)
  decoder_heads = fields.take("decoder_attention_heads", heads)
  decoder_mlp = fields.take("decoder_ffn_dim", mlp)
  fields.require("num_hidden_layers", layers)
  for name, count in (
    ("encoder_attention_heads", heads),
    ("decoder_attention_heads", decoder_heads),
  ):
    if D % count:
      raise fields.refusal(name, count, f"a divisor of d_model, {D}")
  variant = Variant(
    Dims(D, heads, heads, D // heads, mlp, layers),
    design,
    fields.take("vocab_size"),
    _read_special_tokens(fields, model_type),
    decoder_layers=decoder_layers,
    decoder_heads=None if decoder_heads == heads else decoder_heads,
    decoder_mlp=None if decoder_mlp == mlp else decoder_mlp,
  )
  model_class = transformer.Model if model_type == "marian" else bart.Model
  return model_class, {"variant": variant}


def _require_layout(fields: Fields, model_type: str) -> None:
  """Refuse configs with another layout than the published models of the type."""
  fields.require("share_encoder_decoder_embeddings", True)
  fields.require("decoder_vocab_size", fields.values.get("vocab_size"))
  fields.require("normalize_before", model_type == "mbart")
  fields.require("normalize_embedding", model_type != "marian")
  fields.require("add_final_layer_norm", model_type == "mbart")
  fields.require("static_position_embeddings", model_type == "marian")
  fields.require("add_bias_logits", False)
  fields.require("do_blenderbot_90_layernorm", False)
  fields.require("tie_word_embeddings", True)
  fields.ignore(
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "encoder_layerdrop",
    "decoder_layerdrop",
    "classif_dropout",
    "force_bos_token_to_be_generated",
    "extra_pos_embeddings",  # which nothing reads
    "replacing_rate",
    "student_decoder_layers",
    "student_encoder_layers",
  )


def _read_special_tokens(fields: Fields, model_type: str) -> Tokens:
  """Return the special ids of a config; without an id of its own, the decoder starts with EOS."""
  pad, eos, start = IDS[model_type]
  pad = fields.take("pad_token_id", pad)
  eos = fields.take("eos_token_id", eos)
  if isinstance(eos, list):
    eos = eos[0]
  start = fields.values.get("decoder_start_token_id", start)
  return Tokens(pad, eos if start is None else start, eos)


def write_config(model, model_type: str | None) -> dict:
  variant = model.variant
  design = model.variant.design
  if isinstance(model, transformer.Model):
    model_type = "marian"
    class_name = "MarianMTModel"
    required_position = {"name": "sinusoidal", "interleaved": False}
  elif design.norm_position == "pre":
    model_type = "mbart"
    class_name = "MBartForConditionalGeneration"
    required_position = {"name": "learned", "offset": 2}
  else:
    model_type = "bart"
    class_name = "BartForConditionalGeneration"
    required_position = {"name": "learned", "offset": 2}
  require_design(model, core=exact_cores(design))
  for field in dataclasses.fields(design):
    if field.name not in _FREE_FIELDS:
      required = getattr(DESIGNS[model_type], field.name)
      require_design(model, **{field.name: [required]})
  position = {"name": design.position} if isinstance(design.position, str) else design.position
  if {name: position.get(name) for name in required_position} != required_position:
    raise UserError(
      f"design.position is {design.position!r}; this type supports only {required_position!r}"
    )
  dims = variant.dims
  tokens = variant.tokens
  if dims.heads * dims.head_dim != dims.embed or dims.kv_heads != dims.heads:
    raise UserError(
      f"heads of width {dims.head_dim} are not the embedding width {dims.embed} "
      f"over {dims.heads} heads"
    )
  config = {
    "architectures": [class_name],
    "model_type": model_type,
    "is_encoder_decoder": True,
    "vocab_size": variant.vocab_size,
    "d_model": dims.embed,
    "encoder_layers": dims.layers,
    "decoder_layers": variant.decoder_dims.layers,
    "encoder_attention_heads": dims.heads,
    "decoder_attention_heads": variant.decoder_dims.heads,
    "encoder_ffn_dim": dims.mlp,
    "decoder_ffn_dim": variant.decoder_dims.mlp,
    "max_position_embeddings": position.get("length", 1024),
    "activation_function": find_key(ACTIVATIONS, design.activation),
    "scale_embedding": design.embed_scale,
    "pad_token_id": tokens.pad,
    "bos_token_id": 0,
    "eos_token_id": tokens.eos,
    "decoder_start_token_id": tokens.start,
  }
  if model_type != "marian":
    config["forced_eos_token_id"] = tokens.eos
  return config


def map_tensors(mapping: TensorMapping) -> None:
  variant = mapping.model.variant
  mapping.copy("model.shared.weight", "embed/table")
  mapping.tied = dict.fromkeys(
    ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"),
    "model.shared.weight",
  )
  mapping.ignored_suffixes = ("final_logits_bias",)
  if variant.design.logits_bias:
    mapping.fuse(
      "final_logits_bias",
      ["head/bias"],
      split=lambda x: [x[0]],
      join=lambda arrays: arrays[0][None],
    )
  if isinstance(mapping.model, transformer.Model):
    mapping.ignored_suffixes += ("embed_positions.weight",)  # sines and cosines
  _map_stack(mapping, "encoder", variant.dims.layers, {"self_attention": "self_attn"})
  _map_stack(
    mapping,
    "decoder",
    variant.decoder_dims.layers,
    {"self_attention": "self_attn", "cross_attention": "encoder_attn"},
  )


def _map_stack(
  mapping: TensorMapping, side: str, layers: int, attention_names: dict[str, str]
) -> None:
  """Map the embeddings and layers of a stack.

  Args:
    side: "encoder" or "decoder".
    attention_names: our name of each kind of attention -> its name in the library.
  """
  if f"{side}_inputs/position/table" in mapping.parameter_names:
    mapping.copy(f"model.{side}.embed_positions.weight", f"{side}_inputs/position/table")
  if f"{side}_inputs/norm/scale" in mapping.parameter_names:
    mapping.norm(f"model.{side}.layernorm_embedding", f"{side}_inputs/norm")
  if f"{side}/final_norm/scale" in mapping.parameter_names:
    mapping.norm(f"model.{side}.layer_norm", f"{side}/final_norm")
  norm = "in_norm" if mapping.model.variant.design.norm_position == "pre" else "out_norm"
  blocks = f"{side}/blocks"
  for layer, (_, index) in enumerate(locate_layers(getattr(mapping.model, side), layers)):
    hf_layer = f"model.{side}.layers.{layer}"
    for name, hf_name in attention_names.items():
      mapping.attention(
        f"{hf_layer}.{hf_name}", f"{blocks}/{name}/layer", index, names=ATTENTION_NAMES
      )
      mapping.norm(f"{hf_layer}.{hf_name}_layer_norm", f"{blocks}/{name}/{norm}", index)
    mapping.linear(f"{hf_layer}.fc1", f"{blocks}/mlp/layer/wi", index)
    mapping.linear(f"{hf_layer}.fc2", f"{blocks}/mlp/layer/wo", index)
    mapping.norm(f"{hf_layer}.final_layer_norm", f"{blocks}/mlp/{norm}", index)

"""Translate the metadata of GGUF files to fields of `config.json`, and back.

GGUF names the same sizes by other keys. From the fields, the tables of `families` read and write a
model, so an architecture here is a short table of keys. A model is written only if its metadata
read back as the same model.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from t5x_like.errors import UserError, did_you_mean
from t5x_like.files.file_names import quote_name
from t5x_like.files.gguf_file import GgufFile
from t5x_like.nn.positions.rope import Llama3Scaling

ARCHITECTURE_KEY = "general.architecture"
ROPE_FACTORS = "rope_freqs.weight"  # the tensor of Llama 3's scaling of rotary positions

_LLAMA3 = {
  "low_freq_factor": 1.0,
  "high_freq_factor": 4.0,
  "original_max_position_embeddings": 8192,
}
# Key of the metadata, without the architecture's name -> the field of a config with the same value.
_SIZES = {
  "context_length": "max_position_embeddings",
  "embedding_length": "hidden_size",
  "block_count": "num_hidden_layers",
  "feed_forward_length": "intermediate_size",
  "attention.head_count": "num_attention_heads",
  "attention.head_count_kv": "num_key_value_heads",
  "attention.key_length": "head_dim",
  "attention.layer_norm_rms_epsilon": "rms_norm_eps",
  "rope.freq_base": "rope_theta",
}
_GEMMA_SIZES = _SIZES | {"attention.sliding_window": "sliding_window"}
_CAPS = {
  "attn_logit_softcapping": "attn_logit_softcapping",
  "final_logit_softcapping": "final_logit_softcapping",
}
_HEAD_WIDTHS = ("attention.value_length", "rope.dimension_count")  # must equal `head_dim`
_SCALING = (
  "rope.scaling.type",
  "rope.scaling.factor",
  "rope.scaling.original_context_length",
)
# Keys that do not change the model.
_IGNORED = ("vocab_size", "rope.scaling.finetuned", "tensor_data_layout")
# Keys that do not change the model if they have one of these values; others are refused.
_REQUIRED = {
  "expert_count": (0,),
  "expert_used_count": (0,),
  "attention.causal": (True,),
  "pooling_type": (0,),
}
_TOKEN_IDS = {
  "tokenizer.ggml.bos_token_id": "bos_token_id",
  "tokenizer.ggml.padding_token_id": "pad_token_id",
}
_END_IDS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
_LLAMA_LAYER = {
  "attn_norm": "input_layernorm",
  "attn_q": "self_attn.q_proj",
  "attn_k": "self_attn.k_proj",
  "attn_v": "self_attn.v_proj",
  "attn_output": "self_attn.o_proj",
  "attn_q_norm": "self_attn.q_norm",
  "attn_k_norm": "self_attn.k_norm",
  "ffn_norm": "post_attention_layernorm",
  "ffn_gate": "mlp.gate_proj",
  "ffn_up": "mlp.up_proj",
  "ffn_down": "mlp.down_proj",
}
_GEMMA_LAYER = _LLAMA_LAYER | {
  "post_attention_norm": "post_attention_layernorm",
  "ffn_norm": "pre_feedforward_layernorm",
  "post_ffw_norm": "post_feedforward_layernorm",
}


@dataclasses.dataclass(frozen=True)
class Architecture:
  """An architecture of llama.cpp that has a family here.

  Attributes:
    name: the value of `general.architecture`.
    model_type: the `model_type` of its config.
    keys: key of the metadata, without the architecture's name -> field of the config.
    defaults: fields that the files need not state.
    layer: module of a layer in the file -> its name in Hugging Face's files.
    permutes_heads: whether the rows of queries and keys are stored in llama.cpp's order, in which
      the channels that rotate together are neighbours.
    shifts_norms: whether 1 is added to the scales of norms.
    num_layers_of_27b: the number of layers of the size 27B, whose attention is scaled by
      1/sqrt(hidden_size / heads) instead of 1/sqrt(head_dim). Files do not state the scale;
      llama.cpp recognises the size by this number. None for architectures without such a size.
  """

  name: str
  model_type: str
  keys: Mapping[str, str]
  defaults: Mapping[str, Any]
  layer: Mapping[str, str]
  permutes_heads: bool = False
  shifts_norms: bool = False
  num_layers_of_27b: int | None = None


ARCHITECTURES = {
  architecture.name: architecture
  for architecture in (
    Architecture("llama", "llama", _SIZES, {}, _LLAMA_LAYER, permutes_heads=True),
    Architecture("qwen2", "qwen2", _SIZES, {"use_sliding_window": False}, _LLAMA_LAYER),
    Architecture("qwen3", "qwen3", _SIZES, {"use_sliding_window": False}, _LLAMA_LAYER),
    Architecture(
      "gemma2",
      "gemma2",
      _GEMMA_SIZES | _CAPS,
      {},
      _GEMMA_LAYER,
      shifts_norms=True,
      num_layers_of_27b=46,
    ),
    Architecture(
      "gemma3",
      "gemma3_text",
      _GEMMA_SIZES
      | {
        "rope.freq_base_swa": "rope_local_base_freq",
        "final_logit_softcapping": "final_logit_softcapping",
      },
      {"rope_theta": 1e6, "rope_local_base_freq": 1e4},
      _GEMMA_LAYER,
      shifts_norms=True,
      num_layers_of_27b=62,
    ),
  )
}


def find_architecture(metadata: Mapping[str, Any], path: str) -> Architecture:
  """Return the architecture of a file.

  Raises:
    UserError: the file holds no model, or no family here has its architecture.
  """
  kind = metadata.get("general.type", "model")
  if kind != "model":
    raise UserError(
      f"{path}: general.type is {quote_name(kind)}, expected 'model'; give the file of the model"
    )
  name = metadata.get(ARCHITECTURE_KEY)
  if not isinstance(name, str) or name not in ARCHITECTURES:
    suggestion = did_you_mean(str(name), ARCHITECTURES)
    raise UserError(
      f"{path}: {ARCHITECTURE_KEY} is {quote_name(name)}, expected one of "
      f"{', '.join(ARCHITECTURES)}{suggestion}; convert the original Hugging Face model instead"
    )
  return ARCHITECTURES[name]


def read_config(file: GgufFile) -> dict[str, Any]:
  """Return the content of the `config.json` that describes a file's model.

  Raises:
    UserError: the architecture is unknown here, or a key has a value that no model of it has.
  """
  rope_factors = None
  if ROPE_FACTORS in file.tensors:
    rope_factors = file.read(ROPE_FACTORS)
  shapes = {name: info.shape for name, info in file.tensors.items()}
  return translate_metadata(file.metadata, shapes, rope_factors, file.path)


def translate_metadata(
  metadata: Mapping[str, Any],
  shapes: Mapping[str, tuple[int, ...]],
  rope_factors: np.ndarray | None,
  path: str,
) -> dict[str, Any]:
  """Return the content of the `config.json` that describes the same model.

  Args:
    metadata: the metadata of a GGUF file.
    shapes: the shapes of its tensors by name.
    rope_factors: its tensor `rope_freqs.weight`, if it has one.
    path: the file, for messages.
  Raises:
    UserError: as `read_config`.
  """
  architecture = find_architecture(metadata, path)
  prefix = f"{architecture.name}."
  values = {}
  for key, value in metadata.items():
    if key.startswith(prefix):
      values[key.removeprefix(prefix)] = value
  _refuse_unknown(values, architecture, path)
  config: dict[str, Any] = {"model_type": architecture.model_type, **architecture.defaults}
  for key, field in architecture.keys.items():
    if key in values:
      config[field] = values[key]
  _complete_head_dim(config, values, f"{path}: {prefix}")
  embeddings = shapes.get("token_embd.weight")
  if embeddings is not None:
    config["vocab_size"] = embeddings[0]
  config["tie_word_embeddings"] = "output.weight" not in shapes
  if architecture.name in ("llama", "qwen3"):
    config["attention_bias"] = "blk.0.attn_q.bias" in shapes
  if architecture.name == "llama":
    config["mlp_bias"] = "blk.0.ffn_up.bias" in shapes
  if architecture.num_layers_of_27b is not None:
    config["query_pre_attn_scalar"] = _attention_width(config, architecture)
  scaling = _read_scaling(values, rope_factors, architecture, path)
  if scaling:
    config["rope_scaling"] = scaling
  return config | _read_token_ids(metadata)


def _complete_head_dim(config: dict[str, Any], values: Mapping[str, Any], where: str) -> None:
  """Set the width of a head where the file states none.

  Args:
    values: the metadata without the architecture's name.
    where: the file and the architecture's name, for messages.
  Raises:
    UserError: layers have different numbers of heads, or heads have several widths.
  """
  heads = config.get("num_attention_heads")
  if not isinstance(heads, int):
    raise UserError(
      f"{where}attention.head_count is {quote_name(heads)}, expected a number; no model here has "
      "layers with different numbers of heads"
    )
  head_dim = config.setdefault("head_dim", _default_head_dim(config))
  for key in _HEAD_WIDTHS:
    if values.get(key, head_dim) != head_dim:
      raise UserError(
        f"{where}{key} is {quote_name(values[key])}, expected {head_dim}, the width of a head; no "
        "model here computes that"
      )


def _refuse_unknown(values: Mapping[str, Any], architecture: Architecture, path: str) -> None:
  """Raise UserError for a key that no model of an architecture has."""
  supported = {*architecture.keys, *_HEAD_WIDTHS, *_SCALING, *_IGNORED}
  for key, value in values.items():
    if key not in supported and value not in _REQUIRED.get(key, ()):
      raise UserError(
        f"{path}: {architecture.name}.{key} is {quote_name(value)}, which no model of this "
        "architecture here has; convert the original Hugging Face model instead"
      )


def _default_head_dim(config: Mapping[str, Any]) -> int | None:
  """Return the width of a head if the heads share the width of the stack."""
  width = config.get("hidden_size")
  heads = config["num_attention_heads"]
  if not isinstance(width, int) or heads < 1:
    return None  # the reader of the config refuses it
  return width // heads


def _attention_width(config: Mapping[str, Any], architecture: Architecture) -> Any:
  """Return the width whose root divides the logits of attention, which files do not state."""
  if config.get("num_hidden_layers") == architecture.num_layers_of_27b:
    return config["hidden_size"] // config["num_attention_heads"]
  return config["head_dim"]


def _read_scaling(
  values: Mapping[str, Any], rope_factors: np.ndarray | None, architecture: Architecture, path: str
) -> dict[str, Any] | None:
  """Return `rope_scaling` of a config; None without scaling."""
  kind = values.get("rope.scaling.type", "none")
  where = f"{path}: {architecture.name}."
  if rope_factors is not None:
    if kind != "none":
      raise UserError(
        f"{where}rope.scaling.type is {quote_name(kind)}, expected 'none' in a file with "
        f"the tensor {ROPE_FACTORS!r}"
      )
    return _read_llama3(values, rope_factors, path)
  if kind == "none":
    return None
  factor = values.get("rope.scaling.factor")
  if kind == "linear":
    return {"rope_type": "linear", "factor": factor}
  if kind == "yarn":
    length = values.get("rope.scaling.original_context_length")
    return {
      "rope_type": "yarn",
      "factor": factor,
      "original_max_position_embeddings": length,
    }
  raise UserError(
    f"{where}rope.scaling.type is {quote_name(kind)}, expected 'none', 'linear' or 'yarn'; no "
    "model here computes that"
  )


def _read_llama3(values: Mapping[str, Any], rope_factors: np.ndarray, path: str) -> dict[str, Any]:
  """Return the scaling of Llama 3 whose factors a file has.

  The file has one factor for each pair of channels. The largest is the scaling's; all published
  models have the same other parameters.
  """
  scaling = {"rope_type": "llama3", "factor": float(rope_factors.max()), **_LLAMA3}
  length = values.get("rope.scaling.original_context_length")
  if length is not None:
    scaling["original_max_position_embeddings"] = length
  expected = llama3_factors(scaling, values.get("rope.freq_base", 1e4), 2 * rope_factors.size)
  if not np.allclose(expected, rope_factors, rtol=1e-4):
    raise UserError(
      f"{path}: tensor {ROPE_FACTORS!r} has other factors than Llama 3's scaling by "
      f"{scaling['factor']:g}; no model here computes that"
    )
  return scaling


def llama3_factors(scaling: Mapping[str, Any], theta: float, head_dim: int) -> np.ndarray:
  """Return by how much Llama 3's scaling divides each frequency, float32 [head_dim / 2].

  Args:
    scaling: `rope_scaling` of a config.
    theta: the base of the frequencies.
  """
  llama3 = Llama3Scaling(
    scaling["factor"],
    scaling["low_freq_factor"],
    scaling["high_freq_factor"],
    scaling["original_max_position_embeddings"],
  )
  frequency_P = theta ** -(np.arange(0, head_dim, 2) / head_dim)
  return (1 / llama3.factors(frequency_P)).astype(np.float32)


def _read_token_ids(metadata: Mapping[str, Any]) -> dict[str, Any]:
  """Return the special ids of a file under their names in a config."""
  ids = {}
  for key, field in _TOKEN_IDS.items():
    if key in metadata:
      ids[field] = metadata[key]
  ends = [metadata[key] for key in _END_IDS if key in metadata]
  ends = list(dict.fromkeys(ends))
  if ends:
    ids["eos_token_id"] = ends[0] if len(ends) == 1 else ends
  return ids


def write_metadata(config: Mapping[str, Any], architecture: Architecture) -> dict[str, Any]:
  """Return the metadata that describe a model.

  Args:
    config: the `config.json` of the model, as its family writes it, completed by
      `max_position_embeddings`.
  Raises:
    UserError: the architecture has no such scaling of positions.
  """
  prefix = f"{architecture.name}."
  metadata = {ARCHITECTURE_KEY: architecture.name, f"{prefix}vocab_size": config["vocab_size"]}
  fields = dict(config)
  if fields.get("head_dim") is None:
    fields["head_dim"] = _default_head_dim(fields)
  for key, field in architecture.keys.items():
    if fields.get(field) is not None:
      metadata[f"{prefix}{key}"] = fields[field]
  metadata[f"{prefix}attention.value_length"] = fields["head_dim"]
  metadata[f"{prefix}rope.dimension_count"] = fields["head_dim"]
  scaling = config.get("rope_scaling") or {"rope_type": "default"}
  kind = scaling["rope_type"]
  if kind not in ("default", "linear", "yarn", "llama3"):
    raise UserError(f"rope_type is {kind!r}; GGUF's {architecture.name} has no such scaling")
  if kind in ("linear", "yarn"):
    metadata[f"{prefix}rope.scaling.type"] = kind
    metadata[f"{prefix}rope.scaling.factor"] = scaling["factor"]
  if "original_max_position_embeddings" in scaling:
    length = scaling["original_max_position_embeddings"]
    metadata[f"{prefix}rope.scaling.original_context_length"] = length
  return metadata

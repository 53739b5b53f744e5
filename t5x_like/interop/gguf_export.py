"""Write a decoder as a GGUF file, which llama.cpp runs."""

import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from t5x_like.errors import UserError, one_line
from t5x_like.files.gguf_file import import_gguf
from t5x_like.interop import hf
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.config_table import ModelType
from t5x_like.interop.gguf_config import (
  ARCHITECTURES,
  ROPE_FACTORS,
  Architecture,
  llama3_factors,
  translate_metadata,
  write_metadata,
)
from t5x_like.interop.gguf_tensors import attention_heads, gguf_name, to_file_layout
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.interop.variant_paths import canonical_attributes, get_attribute, is_same
from t5x_like.nn import params

# Types of matrices: flag -> type in the file, and its number in `general.file_type`.
DTYPES = {"float16": ("F16", 1), "q8_0": ("Q8_0", 7)}
_QUANTIZATION_VERSION = 2
_MAX_FLOAT16 = 65504.0


def save(
  model: Any, path: str, tokenizer: Mapping[str, Any], length: int, dtype: str = "float16"
) -> None:
  """Write a model and its tokenizer to a new file, whole or not at all.

  Matrices have the type `dtype`, other tensors float32, as llama.cpp's converter writes them.
  Matrices whose rows are no multiple of Q8_0's blocks of 32 values stay float16.

  Args:
    model: a decoder, with arrays and without adapters.
    path: the file.
    tokenizer: the metadata of the tokenizer, as `vocabularies` returns them.
    length: the number of tokens that the model reads.
    dtype: a key of `DTYPES`.
  Raises:
    UserError: GGUF cannot express the model, a value does not fit float16, or the file exists or
      cannot be written.
  """
  package = import_gguf(path)
  architecture, model_type, metadata = describe(model, length)
  type_name, file_type = DTYPES[dtype]
  metadata |= {
    "general.type": "model",
    "general.file_type": file_type,
    "general.quantization_version": _QUANTIZATION_VERSION,
    **tokenizer,
  }
  mapping = TensorMapping(model)
  model_type.map_tensors(mapping)
  hf.require_all_mapped(mapping, f"{path}: {architecture.name}")
  output = pathlib.Path(path)
  if output.exists():
    raise UserError(f"{path}: exists; give a new file")
  # a killed export leaves no file of this name
  unfinished = output.with_name(f".{output.name}.{os.getpid()}.unfinished")
  try:
    output.parent.mkdir(parents=True, exist_ok=True)
    writer = package.GGUFWriter(unfinished, architecture.name, use_temp_file=True)
    _add_metadata(writer, metadata)
    encoded = _encode_tensors(model, mapping, architecture, metadata, package, type_name)
    for name, blocks, tensor_type in encoded:
      writer.add_tensor(name, blocks, raw_dtype=tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(unfinished, output)
  except OSError as error:
    reason = error.strerror or one_line(error)
    raise UserError(f"{path}: cannot be written: {reason}") from error
  finally:
    unfinished.unlink(missing_ok=True)


def describe(model: Any, length: int) -> tuple[Architecture, ModelType, dict[str, Any]]:
  """Return the architecture that can express a model, its model type and the metadata.

  Args:
    model: a decoder, with arrays or abstract.
    length: the number of tokens that it reads.
  Raises:
    UserError: no architecture can.
  """
  refusals = []
  for architecture in ARCHITECTURES.values():
    model_type = hf.find_model_type(architecture.model_type, architecture.name)
    if not isinstance(model, model_type.classes):
      continue
    try:
      config = model_type.write(model, architecture.model_type)
      config.setdefault("max_position_embeddings", length)
      metadata = write_metadata(config, architecture) | _token_ids(config)
      scaling = config.get("rope_scaling") or {}
      factors = None
      if scaling.get("rope_type") == "llama3":
        head_dim = model.variant.dims.head_dim
        factors = llama3_factors(scaling, config["rope_theta"], head_dim)
        metadata[ROPE_FACTORS] = factors
      _require_faithful(model, architecture, model_type, metadata, factors)
      return architecture, model_type, metadata
    except UserError as error:
      refusals.append(str(error))
  reasons = "; ".join(dict.fromkeys(refusals))
  if not reasons:
    reasons = f"expected a decoder of {', '.join(ARCHITECTURES)}"
  raise UserError(f"{type(model).__module__}: this model has no GGUF form: {reasons}")


def _token_ids(config: Mapping[str, Any]) -> dict[str, Any]:
  """Return the special ids of a config, which the ids of the tokenizer replace."""
  fields = {
    "tokenizer.ggml.bos_token_id": "bos_token_id",
    "tokenizer.ggml.eos_token_id": "eos_token_id",
    "tokenizer.ggml.padding_token_id": "pad_token_id",
  }
  return {key: config[field] for key, field in fields.items() if config.get(field) is not None}


def _require_faithful(
  model: Any,
  architecture: Architecture,
  model_type: ModelType,
  metadata: Mapping[str, Any],
  factors: np.ndarray | None,
) -> None:
  """Refuse metadata that do not read back as the model that they were written from."""
  variant = model.variant
  shapes = {"token_embd.weight": (variant.vocab_size, variant.dims.embed)}
  if not variant.design.tied:
    shapes["output.weight"] = shapes["token_embd.weight"]
  if "qkv" in variant.design.biases:
    shapes["blk.0.attn_q.bias"] = ()
  if "mlp" in variant.design.biases:
    shapes["blk.0.ffn_up.bias"] = ()
  config = translate_metadata(metadata, shapes, factors, architecture.name)
  expected = canonical_attributes(model_type.read_variant(Fields(config, architecture.name)))
  for path, value in canonical_attributes(variant).items():
    if not is_same(value, expected.get(path)):
      raise UserError(
        f"{path} is {get_attribute(variant, path)!r}; GGUF's {architecture.name} supports only "
        f"{expected.get(path)!r}"
      )


def _add_metadata(writer: Any, metadata: Mapping[str, Any]) -> None:
  for key, value in metadata.items():
    # the writer has written the architecture, and the factors are a tensor
    if key in ("general.architecture", ROPE_FACTORS):
      continue
    if isinstance(value, bool):
      writer.add_bool(key, value)
    elif isinstance(value, int):
      writer.add_uint32(key, value)
    elif isinstance(value, float):
      writer.add_float32(key, value)
    elif isinstance(value, str):
      writer.add_string(key, value)
    else:
      writer.add_array(key, value)


def _encode_tensors(
  model: Any,
  mapping: TensorMapping,
  architecture: Architecture,
  metadata: Mapping[str, Any],
  package: Any,
  type_name: str,
) -> Iterator[tuple[str, np.ndarray, Any]]:
  """Yield (name, blocks, type) of each tensor in the file.

  Raises:
    UserError: a value does not fit float16.
  """
  types = package.GGMLQuantizationType
  if ROPE_FACTORS in metadata:
    yield ROPE_FACTORS, metadata[ROPE_FACTORS], types.F32
  arrays = params.arrays(model)
  heads = attention_heads(metadata, architecture)
  block, _ = package.GGML_QUANT_SIZES[types[type_name]]
  for tensor in mapping.tensors:
    name = gguf_name(tensor.name, architecture)
    values = np.asarray(hf.join_parts(tensor, arrays), np.float32)
    values = np.ascontiguousarray(to_file_layout(tensor.name, values, architecture, heads))
    tensor_type = types.F32
    if values.ndim > 1:
      tensor_type = types.F16 if values.shape[-1] % block else types[type_name]
      largest = np.abs(values).max()
      if not largest <= _MAX_FLOAT16:
        raise UserError(
          f"tensor {name!r} has the value {largest:g}, expected at most {_MAX_FLOAT16:g}, the "
          "largest of float16; export to a Hugging Face directory instead"
        )
    yield name, package.quantize(values, tensor_type), tensor_type

"""The tensors of a GGUF file under the names and in the layout of Hugging Face's files.

llama.cpp's files differ in three points. Names are shorter. In Llama's files the rows of queries
and keys are in another order, since llama.cpp rotates neighbouring channels where `transformers`
rotates the halves of a head. In Gemma's files the scales of norms include the 1 that `transformers`
adds.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from t5x_like.files.gguf_file import GgufFile
from t5x_like.interop.gguf_config import ROPE_FACTORS, Architecture, find_architecture

_BODY = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_HF_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
_DTYPES = {"F16": "float16", "BF16": "bfloat16"}  # others are read as float32
_EMBEDDINGS = "token_embd.weight"
_ROTATED = ("self_attn.q_proj", "self_attn.k_proj")


class GgufTensors:
  """All tensors of a GGUF file, with the interface of `tensor_files.TensorFiles`.

  Args:
    file: the file.

  Attributes:
    where: the path, for messages.
    names: Hugging Face's names of the tensors; a tensor that it has no name for keeps its own.
    dtype: the dtype of the token vectors; float32 if they are quantized.
    parameter_count: the number of values in all tensors.
  """

  def __init__(self, file: GgufFile):
    self.where = file.path
    self._file = file
    self._architecture = find_architecture(file.metadata, file.path)
    self._heads = attention_heads(file.metadata, self._architecture)
    self._locations: dict[str, str] = {}
    for name in file.tensors:
      if name != ROPE_FACTORS:  # belongs to the config
        self._locations[hf_name(name, self._architecture)] = name
    self.names = set(self._locations)
    self.parameter_count = sum(math.prod(info.shape) for info in file.tensors.values())
    embeddings = file.tensors.get(_EMBEDDINGS)
    self.dtype = "float32" if embeddings is None else _DTYPES.get(embeddings.type_name, "float32")

  def add_alias(self, name: str, alias: str) -> None:
    """Give a tensor another name too, if no tensor has it."""
    if name in self.names and alias not in self.names:
      self._locations[alias] = self._locations[name]
      self.names.add(alias)

  def name_in_file(self, name: str) -> str:
    """Return the name by which messages call a tensor."""
    return self._locations.get(name) or gguf_name(name, self._architecture)

  def read(self, name: str) -> np.ndarray:
    """Read a tensor as float32."""
    values = self._file.read(self._locations[name])
    return from_file_layout(name, values, self._architecture, self._heads)


def attention_heads(metadata: Mapping[str, Any], architecture: Architecture) -> tuple[int, int]:
  """Return the numbers of heads of queries and of keys."""
  heads = metadata.get(f"{architecture.name}.attention.head_count", 1)
  return heads, metadata.get(f"{architecture.name}.attention.head_count_kv", heads)


def hf_name(name: str, architecture: Architecture) -> str:
  """Return Hugging Face's name of a tensor, or its own name if there is none."""
  module, _, suffix = name.rpartition(".")
  if module in _BODY:
    return f"{_BODY[module]}.{suffix}"
  match = _LAYER.fullmatch(name)
  if match is None or match[2] not in architecture.layer:
    return name
  return f"model.layers.{match[1]}.{architecture.layer[match[2]]}.{match[3]}"


def gguf_name(name: str, architecture: Architecture) -> str:
  """Return the name in a GGUF file of a tensor with Hugging Face's name."""
  module, _, suffix = name.rpartition(".")
  for short_name, published in _BODY.items():
    if published == module:
      return f"{short_name}.{suffix}"
  match = _HF_LAYER.fullmatch(name)
  if match is not None:
    for short_name, published in architecture.layer.items():
      if published == match[2]:
        return f"blk.{match[1]}.{short_name}.{match[3]}"
  return name


def from_file_layout(
  name: str, values: np.ndarray, architecture: Architecture, heads: tuple[int, int]
) -> np.ndarray:
  """Return a tensor of a file in the layout of Hugging Face's files.

  Args:
    name: Hugging Face's name.
    heads: the numbers of heads of queries and of keys.
  """
  count = _count_rotated_heads(name, architecture, heads)
  if count and values.shape[0] % (2 * count) == 0:
    rows = values.reshape(count, -1, 2, *values.shape[1:])
    return rows.swapaxes(1, 2).reshape(values.shape)
  if _is_shifted(name, architecture):
    return values - 1
  return values


def to_file_layout(
  name: str, values: np.ndarray, architecture: Architecture, heads: tuple[int, int]
) -> np.ndarray:
  """Return a tensor in the layout of GGUF files; the inverse of `from_file_layout`."""
  count = _count_rotated_heads(name, architecture, heads)
  if count:
    rows = values.reshape(count, 2, -1, *values.shape[1:])
    return rows.swapaxes(1, 2).reshape(values.shape)
  if _is_shifted(name, architecture):
    return values + 1
  return values


def _count_rotated_heads(name: str, architecture: Architecture, heads: tuple[int, int]) -> int:
  """Return the number of heads of queries or keys whose rows are reordered; else 0."""
  match = _HF_LAYER.fullmatch(name)
  if not architecture.permutes_heads or match is None or match[2] not in _ROTATED:
    return 0
  return heads[_ROTATED.index(match[2])]


def _is_shifted(name: str, architecture: Architecture) -> bool:
  return architecture.shifts_norms and name.endswith("norm.weight")

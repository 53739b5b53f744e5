"""Map tensors that fuse query, key and value, in each family's order of the three.

Biases are mapped if the model has them.
"""

from collections.abc import Sequence

import numpy as np

from t5x_like.interop.tensor_mapping import TensorMapping

QKV = ("query", "key", "value")


def map_conv1d(mapping: TensorMapping, hf_name: str, path: str, *index: int) -> None:
  """Map a linear layer of GPT and GPT-2, whose kernels are [in, out], like ours."""
  mapping.copy(f"{hf_name}.weight", f"{path}/kernel", *index)
  mapping.copy(f"{hf_name}.bias", f"{path}/bias", *index)


def map_conv1d_qkv(mapping: TensorMapping, hf_name: str, path: str, *index: int) -> None:
  """Map [in, 3 N H]: all queries, all keys, all values (GPT and GPT-2)."""
  for hf_suffix, suffix in (("weight", "kernel"), ("bias", "bias")):
    mapping.fuse(
      f"{hf_name}.{hf_suffix}",
      [f"{path}/{part}/{suffix}" for part in QKV],
      *index,
      split=lambda x: np.split(x, 3, axis=-1),
      join=lambda parts: np.concatenate(parts, axis=-1),
    )


def map_stacked(
  mapping: TensorMapping,
  hf_name: str,
  path: str,
  *index: int,
  parts: tuple[str, ...] = QKV,
  separator: str = ".",
) -> None:
  """Map [3 N H, in]: all queries, all keys, all values (MPT, timm's ViT).

  Args:
    parts: the names of the fused layers below `path`.
    separator: the character between `hf_name` and "weight" or "bias".
  """
  for hf_suffix, suffix in _suffixes(mapping, f"{path}/{parts[0]}"):
    mapping.fuse(
      f"{hf_name}{separator}{hf_suffix}",
      [f"{path}/{part}/{suffix}" for part in parts],
      *index,
      split=lambda x: [part.T for part in np.split(x, len(parts))],
      join=lambda arrays: np.concatenate([array.T for array in arrays]),
    )


def map_grouped_qkv(mapping: TensorMapping, hf_name: str, path: str, *index: int) -> None:
  """Map [K (N / K + 2) H, in]: the queries, key and value of one key/value head after another.

  BLOOM, GPT-NeoX and Falcon have this order.
  """
  kv_heads = mapping.model.variant.dims.kv_heads
  group = mapping.model.variant.dims.heads // kv_heads

  def split(x: np.ndarray) -> list[np.ndarray]:
    head_dim = x.shape[0] // kv_heads // (group + 2)
    x_KGH = x.reshape(kv_heads, group + 2, head_dim, *x.shape[1:])
    parts = (x_KGH[:, :group], x_KGH[:, group], x_KGH[:, group + 1])
    return [part.reshape(-1, *x.shape[1:]).T for part in parts]

  def join(arrays: Sequence[np.ndarray]) -> np.ndarray:
    parts = []
    for array, heads_of_group in zip(arrays, (group, 1, 1), strict=True):
      parts.append(array.T.reshape(kv_heads, heads_of_group, -1, *array.shape[:-1]))
    return np.concatenate(parts, axis=1).reshape(-1, *arrays[0].shape[:-1])

  for hf_suffix, suffix in _suffixes(mapping, f"{path}/query"):
    mapping.fuse(
      f"{hf_name}.{hf_suffix}",
      [f"{path}/{part}/{suffix}" for part in QKV],
      *index,
      split=split,
      join=join,
    )


def _suffixes(mapping: TensorMapping, path: str) -> list[tuple[str, str]]:
  """Return (suffix of a tensor, suffix of a parameter) for the kernel and, if any, the bias."""
  suffixes = [("weight", "kernel")]
  if f"{path}/bias" in mapping.parameter_names:
    suffixes.append(("bias", "bias"))
  return suffixes

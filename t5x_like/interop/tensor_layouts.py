"""Map tensors whose layout differs from ours: fused, reshaped, or of convolutions.

Each function is the `add` of a `tensor_mapping.Layout`. Biases are mapped if the model has them.
"""

import functools
import math
from collections.abc import Callable, Sequence

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


def map_reshaped(
  mapping: TensorMapping,
  hf_name: str,
  path: str,
  *index: int,
  reshape: Callable[[np.ndarray], np.ndarray],
) -> None:
  """Map a tensor with other axes.

  Args:
    reshape: gives our parameter the axes of the tensor.
  """
  shape = mapping.shapes[path][len(index) :]
  mapping.fuse(
    hf_name,
    [path],
    *index,
    split=lambda x: [x.reshape(shape)],
    join=lambda arrays: reshape(np.asarray(arrays[0])),
  )


map_with_leading_axis = functools.partial(map_reshaped, reshape=lambda x: x[None])
map_with_leading_axes = functools.partial(map_reshaped, reshape=lambda x: x[None, None])
map_flat = functools.partial(map_reshaped, reshape=lambda x: x.reshape(-1))


def map_token(mapping: TensorMapping, hf_name: str, path: str, *, number: int) -> None:
  """Map [1, 1, D]: one of the learned vectors before an image's patches."""
  mapping.fuse(
    hf_name,
    [path],
    number,
    split=lambda x: [x.reshape(-1)],
    join=lambda arrays: np.asarray(arrays[0])[None, None],
  )


def map_separate_heads(mapping: TensorMapping, hf_name: str, path: str, *index: int) -> None:
  """Map [..., N, H], whose last two axes our parameters merge (XLNet)."""
  heads = mapping.model.variant.dims.heads

  def separate(x: np.ndarray) -> np.ndarray:
    return x.reshape(*x.shape[:-1], heads, -1)

  map_reshaped(mapping, hf_name, path, *index, reshape=separate)


def map_separate_heads_out(mapping: TensorMapping, hf_name: str, path: str, *index: int) -> None:
  """Map [D, N, H], the kernel of attention's output (XLNet)."""
  heads = mapping.model.variant.dims.heads
  width = mapping.model.variant.dims.embed
  mapping.fuse(
    hf_name,
    [path],
    *index,
    split=lambda x: [np.ascontiguousarray(x.reshape(width, -1).T)],
    join=lambda arrays: arrays[0].T.reshape(width, heads, -1),
  )


def map_convolution(mapping: TensorMapping, hf_name: str, path: str, *index: int) -> None:
  """Map a convolution: [out, in, Y, X] in a file, [Y, X, in, out] here."""
  mapping.fuse(
    f"{hf_name}.weight",
    [f"{path}/kernel"],
    *index,
    split=lambda x: [x.transpose(2, 3, 1, 0)],
    join=lambda arrays: arrays[0].transpose(3, 2, 0, 1),
  )
  if f"{path}/bias" in mapping.parameter_names:
    mapping.copy(f"{hf_name}.bias", f"{path}/bias", *index)


def map_squares(
  mapping: TensorMapping, hf_name: str, path: str, *index: int, side: int | None = None
) -> None:
  """Map a convolution of separate squares, which is a linear layer here: [Y X in, out].

  Args:
    side: the rows and columns of a square; None for the patches of the model's images.
  """
  kernel = f"{path}/kernel"
  if side is None:
    variant = mapping.model.variant
    channels = getattr(variant, "image", variant).channels
    side = math.isqrt(mapping.shapes[kernel][0] // channels)
  mapping.fuse(
    f"{hf_name}.weight",
    [kernel],
    *index,
    split=lambda x: [x.transpose(2, 3, 1, 0).reshape(-1, x.shape[0])],
    join=lambda arrays: (
      arrays[0].reshape(side, side, -1, arrays[0].shape[-1]).transpose(3, 2, 0, 1)
    ),
  )
  if f"{path}/bias" in mapping.parameter_names:
    mapping.copy(f"{hf_name}.bias", f"{path}/bias", *index)


def map_batch_norm(mapping: TensorMapping, hf_name: str, path: str, *index: int) -> None:
  """Map a batch norm with its statistics."""
  mapping.norm(hf_name, path, *index)
  mapping.copy(f"{hf_name}.running_mean", f"{path}/mean", *index)
  mapping.copy(f"{hf_name}.running_var", f"{path}/variance", *index)

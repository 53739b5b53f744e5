"""Map tensors that fuse query, key and value, in each family's order; biases are mapped if the
model has them."""

import numpy as np

from t5x_like.interop.tensor_mapping import TensorMapping

QKV = ("query", "key", "value")


def map_conv1d(m: TensorMapping, theirs: str, ours: str, *index: int) -> None:
  """Map a linear layer of GPT and GPT-2, whose kernels are [in, out], like ours."""
  m.copy(f"{theirs}.weight", f"{ours}/kernel", *index)
  m.copy(f"{theirs}.bias", f"{ours}/bias", *index)


def map_conv1d_qkv(m: TensorMapping, theirs: str, ours: str, *index: int) -> None:
  """Map [in, 3 N H]: all queries, all keys, all values (GPT and GPT-2)."""
  for their_name, name in (("weight", "kernel"), ("bias", "bias")):
    m.fused(
      f"{theirs}.{their_name}",
      [f"{ours}/{part}/{name}" for part in QKV],
      *index,
      split=lambda x: np.split(x, 3, axis=-1),
      join=lambda xs: np.concatenate(xs, axis=-1),
    )


def map_stacked(
  m: TensorMapping,
  theirs: str,
  ours: str,
  *index: int,
  parts: tuple[str, ...] = QKV,
  join: str = ".",
) -> None:
  """Map [3 N H, in]: all queries, all keys, all values (MPT, timm's ViT); or several layers of
  other names.

  Args:
    join: the character between `theirs` and "weight" or "bias".
  """
  for their_name, name in _held(m, f"{ours}/{parts[0]}"):
    m.fused(
      f"{theirs}{join}{their_name}",
      [f"{ours}/{part}/{name}" for part in parts],
      *index,
      split=lambda x: [part.T for part in np.split(x, len(parts))],
      join=lambda xs: np.concatenate([x.T for x in xs]),
    )


def map_grouped_qkv(
  m: TensorMapping, theirs: str, ours: str, *index: int, heads: int, kv_heads: int
) -> None:
  """Map [K (N / K + 2) H, in]: for each key/value head in turn its queries, key and value (BLOOM,
  GPT-NeoX, Falcon)."""
  group = heads // kv_heads

  def split(x):
    x_KGH = x.reshape(kv_heads, group + 2, x.shape[0] // kv_heads // (group + 2), *x.shape[1:])
    return [
      part.reshape(-1, *x.shape[1:]).T
      for part in (x_KGH[:, :group], x_KGH[:, group], x_KGH[:, group + 1])
    ]

  def join(xs):
    parts = [
      x.T.reshape(kv_heads, n, -1, *x.shape[:-1]) for x, n in zip(xs, (group, 1, 1), strict=True)
    ]
    return np.concatenate(parts, axis=1).reshape(-1, *xs[0].shape[:-1])

  for their_name, name in _held(m, f"{ours}/query"):
    m.fused(
      f"{theirs}.{their_name}",
      [f"{ours}/{part}/{name}" for part in QKV],
      *index,
      split=split,
      join=join,
    )


def _held(m: TensorMapping, ours: str) -> list[tuple[str, str]]:
  biased = f"{ours}/bias" in m.names
  return [("weight", "kernel")] + ([("bias", "bias")] if biased else [])

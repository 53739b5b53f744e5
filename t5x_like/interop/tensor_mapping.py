"""The two-way mapping between tensors of a Hugging Face file and slices of parameters."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from t5x_like.nn import params
from t5x_like.nn.stack import Stack

# a parameter's name, and the indices of its leading axes (layer, expert)
Part = tuple[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Tensor:
  """A tensor of a file, made of one or several slices of parameters.

  Attributes:
    name: its name in the file.
    parts: the slices it holds.
    split: splits the tensor into one array per part.
    join: joins one array per part into the tensor.
  """

  name: str
  parts: tuple[Part, ...]
  split: Callable[[np.ndarray], Sequence[np.ndarray]]
  join: Callable[[Sequence[np.ndarray]], np.ndarray]


class TensorMapping:
  """The tensors of one model. Biases are mapped if the model has them.

  Attributes:
    tensors: all tensors of the model.
    copies: names of duplicate tensors that a file may hold (tied weights), each with the name of
      its original.
    ignored: suffixes of names to skip (buffers of older versions).
    unread: suffixes of names that a class has or had but does not use; our model lacks them, but
      they are saved again.
  """

  def __init__(self, model):
    self.model = model
    self.names = set(params.named_params(model))
    self.tensors: list[Tensor] = []
    self.copies: dict[str, str] = {}
    self.ignored: tuple[str, ...] = ()
    self.unread: tuple[str, ...] = ()

  def copy(self, theirs: str, ours: str, *index: int) -> None:
    """Map a tensor to an equal array."""
    self.tensors.append(Tensor(theirs, ((ours, index),), lambda x: [x], lambda xs: xs[0]))

  def transposed(self, theirs: str, ours: str, *index: int) -> None:
    """Map a transposed matrix: torch stores the kernels of linear layers as [out, in]."""
    self.tensors.append(Tensor(theirs, ((ours, index),), lambda x: [x.T], lambda xs: xs[0].T))

  def linear(self, theirs: str, ours: str, *index: int) -> None:
    """Map a torch `Linear`: the kernel, and the bias if there is one."""
    self.transposed(f"{theirs}.weight", f"{ours}/kernel", *index)
    if f"{ours}/bias" in self.names:
      self.copy(f"{theirs}.bias", f"{ours}/bias", *index)

  def norm(self, theirs: str, ours: str, *index: int) -> None:
    """Map a norm: the scale, and the bias if there is one."""
    self.copy(f"{theirs}.weight", f"{ours}/scale", *index)
    if f"{ours}/bias" in self.names:
      self.copy(f"{theirs}.bias", f"{ours}/bias", *index)

  def output(self, table: str) -> None:
    """Map the output projection `lm_head.weight`, in a tied model a copy of the token table of this
    name."""
    if self.model.variant.design.tied:
      self.copies["lm_head.weight"] = table
    else:
      self.transposed("lm_head.weight", "head/kernel")

  def fused(
    self, theirs: str, ours: Sequence[str], *index: int, split: Callable, join: Callable
  ) -> None:
    """Map one tensor that holds several parameters."""
    self.tensors.append(Tensor(theirs, tuple((name, index) for name in ours), split, join))

  def attention(self, theirs: str, ours: str, *index: int, names: Sequence[str]) -> None:
    """Map the four linear layers of attention; `names` are their names for query, key, value and
    output."""
    for their_name, name in zip(names, ("query", "key", "value", "out"), strict=True):
      self.linear(f"{theirs}.{their_name}", f"{ours}/{name}", *index)


def locate_layers(stack: Stack, layers: int) -> list[tuple[str, int]]:
  """Return (suffix of the sublayers' names in the block, index of the block) for each layer.

  A block holds one layer, without a suffix, or one period of numbered layers.
  """
  period = layers // stack.repeats
  return [(f"_{layer % period}" if period > 1 else "", layer // period) for layer in range(layers)]

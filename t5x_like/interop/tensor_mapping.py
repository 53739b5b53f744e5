"""Map the tensors of a Hugging Face file to slices of our parameters, for reading and writing."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from t5x_like.nn import params
from t5x_like.nn.stack import Stack

# a parameter's path, and the indices of its leading axes (layer, expert)
Part = tuple[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Tensor:
  """A tensor of a file, made of one or several slices of parameters.

  Attributes:
    name: its name in the file.
    parts: the slices of parameters that it contains.
    split: splits the tensor into one array per part.
    join: joins one array per part into the tensor.
  """

  name: str
  parts: tuple[Part, ...]
  split: Callable[[np.ndarray], Sequence[np.ndarray]]
  join: Callable[[Sequence[np.ndarray]], np.ndarray]


class TensorMapping:
  """The tensors of one model. Biases are mapped if the model has them.

  Each method maps tensors named `hf_name` to parameters at `path`; `index` selects the layer, and
  the expert, in parameters that stack them.

  Attributes:
    model: the model, possibly abstract.
    parameter_names: the paths of all its parameters.
    tensors: the tensors mapped so far.
    tied: the name of each duplicate tensor that a file may contain -> the name of its original.
    ignored_suffixes: endings of tensor names to skip (buffers of older versions).
    unread_suffixes: endings of tensor names that a class has or had but does not use; our model
      lacks them, but they are saved again.
  """

  def __init__(self, model):
    self.model = model
    self.parameter_names = set(params.named_params(model))
    self.tensors: list[Tensor] = []
    self.tied: dict[str, str] = {}
    self.ignored_suffixes: tuple[str, ...] = ()
    self.unread_suffixes: tuple[str, ...] = ()

  def copy(self, hf_name: str, path: str, *index: int) -> None:
    """Map a tensor to an equal array."""
    self.fuse(hf_name, [path], *index, split=lambda x: [x], join=lambda parts: parts[0])

  def transpose(self, hf_name: str, path: str, *index: int) -> None:
    """Map a transposed matrix: torch stores the kernels of linear layers as [out, in]."""
    self.fuse(hf_name, [path], *index, split=lambda x: [x.T], join=lambda parts: parts[0].T)

  def linear(self, hf_name: str, path: str, *index: int) -> None:
    """Map a torch `Linear`: the kernel, and the bias if there is one."""
    self.transpose(f"{hf_name}.weight", f"{path}/kernel", *index)
    if f"{path}/bias" in self.parameter_names:
      self.copy(f"{hf_name}.bias", f"{path}/bias", *index)

  def norm(self, hf_name: str, path: str, *index: int) -> None:
    """Map a norm: the scale, and the bias if there is one."""
    self.copy(f"{hf_name}.weight", f"{path}/scale", *index)
    if f"{path}/bias" in self.parameter_names:
      self.copy(f"{hf_name}.bias", f"{path}/bias", *index)

  def output(self, table: str) -> None:
    """Map the output projection `lm_head.weight`; in a tied model it is a copy of `table`."""
    if self.model.variant.design.tied:
      self.tied["lm_head.weight"] = table
    else:
      self.transpose("lm_head.weight", "head/kernel")

  def fuse(
    self, hf_name: str, paths: Sequence[str], *index: int, split: Callable, join: Callable
  ) -> None:
    """Map one tensor that contains several parameters; see `Tensor` for `split` and `join`."""
    parts = tuple((path, index) for path in paths)
    self.tensors.append(Tensor(hf_name, parts, split, join))

  def attention(self, hf_name: str, path: str, *index: int, names: Sequence[str]) -> None:
    """Map the four linear layers of attention.

    Args:
      names: the names of the query, key, value and output layers in the file.
    """
    for name, projection in zip(names, ("query", "key", "value", "out"), strict=True):
      self.linear(f"{hf_name}.{name}", f"{path}/{projection}", *index)


def locate_layers(stack: Stack, layers: int) -> list[tuple[str, int]]:
  """Return (suffix of the sublayers' names in the block, index of the block) for each layer.

  A block consists of one layer, without a suffix, or of one period of numbered layers.
  """
  period = layers // stack.repeats
  if period == 1:
    return [("", layer) for layer in range(layers)]
  return [(f"_{layer % period}", layer // period) for layer in range(layers)]

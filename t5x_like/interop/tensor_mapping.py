"""Map the tensors of a Hugging Face file to slices of our parameters, for reading and writing."""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from t5x_like.nn import params
from t5x_like.nn.stack import Stack

# a parameter's path, and the indices of its leading axes (layer, expert)
Part = tuple[str, tuple[int, ...]]
# The tensors of a model: name of a module or tensor in a file -> path of ours, see `add_table`.
TensorTable = Mapping[str, "str | tuple[str, ...] | Fused"]
_BLOCKS = "/blocks/"


@dataclasses.dataclass(frozen=True)
class Fused:
  """Several parameters in one tensor of a table.

  Attributes:
    path: the path of the parameters' module.
    add: maps the tensor, called as `add(mapping, hf_name, path, *index)`.
  """

  path: str | tuple[str, ...]
  add: Callable[..., None]


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


def prefix_table(hf_prefix: str, prefix: str, table: TensorTable) -> TensorTable:
  """Return a table with prefixes before the names in a file and before our paths."""
  prefixed = {}
  for hf_name, target in table.items():
    paths = target.path if isinstance(target, Fused) else target
    if isinstance(paths, str):
      paths = prefix + paths
    else:
      paths = tuple(prefix + path for path in paths)
    if isinstance(target, Fused):
      prefixed[hf_prefix + hf_name] = Fused(paths, target.add)
    else:
      prefixed[hf_prefix + hf_name] = paths
  return prefixed


class TensorMapping:
  """The tensors of one model. Biases are mapped if the model has them.

  Each method maps tensors named `hf_name` to parameters at `path`; `index` selects the layer, and
  the expert, in parameters that stack them.

  Attributes:
    model: the model, possibly abstract.
    shapes: the shape of each parameter by path.
    parameter_names: the paths of all parameters.
    tensors: the tensors mapped so far.
    tied: the name of each duplicate tensor that a file may contain -> the name of its original.
    ignored_suffixes: endings of tensor names to skip (buffers of older versions).
    unread_suffixes: endings of tensor names that a class has or had but does not use; our model
      lacks them, but they are saved again.
  """

  def __init__(self, model):
    self.model = model
    self.shapes = {name: x.shape for name, x in params.named_params(model).items()}
    self.parameter_names = set(self.shapes)
    self._modules = set(self.parameter_names)
    for name in self.parameter_names:
      self._modules |= {name[: match.start()] for match in re.finditer("/", name)}
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

  def add_table(self, table: TensorTable, first_layer: int = 0) -> None:
    """Map the tensors of a table, as far as the model has their parameters.

    A path names a linear layer, a norm or a table, whose tensors end in ".weight" and ".bias", or a
    parameter. Of several paths the first counts that the model, or a layer, has.

    `{layer}` in a name stands for each layer of the stack in the path, whose sublayers are named
    there without the layer's number in the period. `{expert}` stands for each expert of a layer.

    Args:
      first_layer: the number of the stacks' first layer in the file.
    """
    for hf_name, target in table.items():
      paths = target.path if isinstance(target, Fused) else target
      add = target.add if isinstance(target, Fused) else TensorMapping.module
      mapped = set()
      for path in (paths,) if isinstance(paths, str) else paths:
        for name, module_path, index in self._expand(hf_name, path, first_layer):
          if name not in mapped:
            mapped.add(name)
            add(self, name, module_path, *index)

  def _expand(
    self, hf_name: str, path: str, first_layer: int
  ) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield (name, path, index) of each module of a table's line that the model has."""
    if "{layer}" not in hf_name:
      if self._has(path):
        yield hf_name, path, ()
      return
    stack, _, sublayer = path.partition(_BLOCKS)
    sublayer_name, _, inner_path = sublayer.partition("/")
    for layer, (suffix, index) in enumerate(self._locate_layers(stack), first_layer):
      layer_path = f"{stack}{_BLOCKS}{sublayer_name}{suffix}/{inner_path}"
      if not self._has(layer_path):
        continue
      name = hf_name.replace("{layer}", str(layer))
      if "{expert}" not in name:
        yield name, layer_path, (index,)
        continue
      for expert in range(self.shapes[layer_path][1]):
        yield name.replace("{expert}", str(expert)), layer_path, (index, expert)

  def _has(self, path: str) -> bool:
    """Return whether the model has a parameter of this path, or parameters below it."""
    return path in self._modules

  def _locate_layers(self, stack: str) -> list[tuple[str, int]]:
    """Return (suffix of the sublayers, index of the block) of each layer, as `locate_layers`.

    The list is empty if the model has no such stack.
    """
    names = [name for name in self.parameter_names if name.startswith(stack + _BLOCKS)]
    if not names:
      return []
    repeats = self.shapes[names[0]][0]
    sublayers = {name.removeprefix(stack + _BLOCKS).split("/")[0] for name in names}
    numbers = {match[0] for name in sublayers if (match := re.search(r"_\d+$", name))}
    layers = repeats * max(len(numbers), 1)
    return locate_layers_of_period(max(len(numbers), 1), layers)

  def module(self, hf_name: str, path: str, *index: int) -> None:
    """Map a linear layer, a norm or a table with its bias, or a single parameter."""
    if len(index) > 1:  # an expert's kernel
      self.transpose(f"{hf_name}.weight", path, *index)
    elif path in self.parameter_names:
      self.copy(hf_name, path, *index)
    elif f"{path}/kernel" in self.parameter_names:
      self.linear(hf_name, path, *index)
    elif f"{path}/table" in self.parameter_names:
      self.copy(f"{hf_name}.weight", f"{path}/table", *index)
    else:
      self.norm(hf_name, path, *index)

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
  return locate_layers_of_period(layers // stack.repeats, layers)


def locate_layers_of_period(period: int, layers: int) -> list[tuple[str, int]]:
  """Return the location of each layer, as `locate_layers`, for blocks of `period` layers."""
  if period == 1:
    return [("", layer) for layer in range(layers)]
  return [(f"_{layer % period}", layer // period) for layer in range(layers)]

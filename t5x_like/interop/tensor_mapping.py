"""Map the tensors of a Hugging Face file to slices of our parameters, for reading and writing."""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from t5x_like.nn import params

# a parameter's path, and the indices of its leading axes (layer, expert)
Part = tuple[str, tuple[int, ...]]
# The tensors of a model: name of a module or tensor in a file -> path of ours, see `add_table`.
TensorTable = Mapping[str, "str | tuple[str, ...] | Layout"]
_BLOCKS = "/blocks/"
_NUMBER = re.compile(r"\{(stage|block|unit)([+-]\d+)?\}")  # a number in a name, and its offset


@dataclasses.dataclass(frozen=True)
class Layout:
  """A tensor of a table whose layout differs from ours, such as several parameters in one tensor.

  Attributes:
    path: the path of the parameter or of the parameters' module; "" for the whole model.
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
    paths = target.path if isinstance(target, Layout) else target
    if isinstance(paths, str):
      paths = prefix + paths
    else:
      paths = tuple(prefix + path for path in paths)
    if isinstance(target, Layout):
      prefixed[hf_prefix + hf_name] = Layout(paths, target.add)
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
    self._modules = {"", *self.parameter_names}
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

  def fuse(
    self, hf_name: str, paths: Sequence[str], *index: int, split: Callable, join: Callable
  ) -> None:
    """Map one tensor that contains several parameters; see `Tensor` for `split` and `join`."""
    parts = tuple((path, index) for path in paths)
    self.tensors.append(Tensor(hf_name, parts, split, join))

  def add_table(self, table: TensorTable, first_layer: int = 0) -> None:
    """Map the tensors of a table, as far as the model has their parameters.

    A path names a linear layer, a norm or a table, whose tensors end in ".weight" and ".bias", or a
    parameter. Of several paths, the first that the model, or a layer, has is used.

    `{layer}` in a name stands for each layer of the stack in the path, whose sublayers are named
    there without the layer's number in the period. `{expert}` stands for each expert of a layer,
    and `{stage}`, `{block}` and `{unit}` for the numbers in the paths of our modules; a name in the
    file may count from another number, as `{stage+1}`.

    Args:
      first_layer: the number of the stacks' first layer in the file.
    """
    for hf_name, target in table.items():
      paths = target.path if isinstance(target, Layout) else target
      add = target.add if isinstance(target, Layout) else TensorMapping.module
      if isinstance(paths, str):
        paths = (paths,)
      mapped = set()
      for path in paths:
        for name, module_path, index in self._expand(hf_name, path, first_layer):
          if name not in mapped:
            mapped.add(name)
            add(self, name, module_path, *index)

  def _expand(
    self, hf_name: str, path: str, first_layer: int
  ) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield (name, path, index) of each module of a table's line that the model has."""
    for numbered_name, numbered_path in self._expand_numbers(hf_name, path):
      yield from self._expand_layers(numbered_name, numbered_path, first_layer)

  def _expand_numbers(self, hf_name: str, path: str) -> list[tuple[str, str]]:
    """Return (name, path) for each value of `{stage}`, `{block}` and `{unit}` in the model."""
    if not _NUMBER.search(path):
      return [(hf_name, path)]
    module = path.partition(_BLOCKS)[0]
    candidates = [match_numbers(module, name) for name in self._modules]
    matches = [numbers for numbers in candidates if numbers is not None]
    expanded = []
    for numbers in sorted(matches, key=lambda numbers: list(numbers.values())):
      expanded.append((number_name(hf_name, numbers), number_name(path, numbers)))
    return expanded

  def _expand_layers(
    self, hf_name: str, path: str, first_layer: int
  ) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield (name, path, index) of each layer's and each expert's module that the model has."""
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
    """Return (suffix of the sublayers' names in the block, index of the block) for each layer.

    A block consists of one layer, without a suffix, or of one period of numbered layers. The list
    is empty if the model has no such stack.
    """
    names = [name for name in self.parameter_names if name.startswith(stack + _BLOCKS)]
    if not names:
      return []
    blocks = self.shapes[names[0]][0]
    sublayers = {name.removeprefix(stack + _BLOCKS).split("/")[0] for name in names}
    suffixes = {re.search(r"(_\d+)?$", name)[0] for name in sublayers}
    period = len(suffixes)
    if period == 1:
      return [("", block) for block in range(blocks)]
    return [(f"_{layer % period}", layer // period) for layer in range(blocks * period)]

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


def number_name(pattern: str, numbers: Mapping[str, int]) -> str:
  """Return a name or path with numbers instead of `{stage}`, `{block}` and `{unit}`."""
  return _NUMBER.sub(lambda match: str(numbers[match[1]] + int(match[2] or 0)), pattern)


def match_numbers(pattern: str, name: str) -> dict[str, int] | None:
  """Return the numbers for which `number_name` returns a name, or None if there are none."""
  offsets = {match[1]: int(match[2] or 0) for match in _NUMBER.finditer(pattern)}
  match = _compile_pattern(pattern).fullmatch(name)
  if match is None:
    return None
  return {number: int(digits) - offsets[number] for number, digits in match.groupdict().items()}


@functools.cache
def _compile_pattern(pattern: str) -> re.Pattern:
  """Return a regular expression of the names that a pattern describes."""
  texts = _NUMBER.sub("\n", pattern).split("\n")
  names = [match[1] for match in _NUMBER.finditer(pattern)]
  expression = re.escape(texts[0])
  for name, text in zip(names, texts[1:], strict=True):
    expression += rf"(?P<{name}>\d+)" + re.escape(text)
  return re.compile(expression)

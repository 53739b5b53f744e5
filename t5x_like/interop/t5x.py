"""Read encoder-decoders and Adafactor's state from T5X checkpoints.

The checkpoints are of `t5x/examples/t5` and `t5x/examples/scalable_t5`. Kernels are [in, out], as
in this package. The trees of parameters differ from ours in three points:

- T5X stores each layer separately (`encoder/layers_0/…`) or, with `scan_layers`, all layers of a
  stack in one array with the layers on axis 1 (`encoder/encoder/…`). Ours are on axis 0.
- T5X's tables of relative positions are [heads, buckets], ours [buckets, heads]. `minimal` has one
  per stack, umT5 and `scalable_t5` one per layer.
- Attention kernels in T5X may have separate axes for the heads and for their dimensions.

Adafactor stores two means of the second moments of a factored array: `v_row` and `v_col`. In T5X
`v_row` belongs to the shorter of the two largest axes or, with `scan_layers`, to the logical axis
`embed`. In this package the two largest axes always decide.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from t5x_like.architectures.design import Variant
from t5x_like.errors import UserError
from t5x_like.interop.t5x_files import Checkpoint
from t5x_like.models import t5
from t5x_like.nn import params
from t5x_like.nn.dims import Dims

# T5X's `mlp_activations` -> our activation; flax's gelu is the tanh approximation
ACTIVATIONS = {
  "relu": "relu",
  "gelu": "gelu_tanh",
  "silu": "silu",
  "gelu,linear": "geglu_tanh",
  "relu,linear": "reglu",
  "silu,linear": "swiglu",
}
_GATED_KERNELS = {"gate": "wi_0", "wi": "wi_1"}  # our kernel -> T5X's
_LAYERS = {  # (side, our sublayer) -> (T5X's layer, its norm)
  ("encoder", "self_attention"): ("attention", "pre_attention_layer_norm"),
  ("decoder", "self_attention"): ("self_attention", "pre_self_attention_layer_norm"),
  ("decoder", "cross_attention"): ("encoder_decoder_attention", "pre_cross_attention_layer_norm"),
  ("encoder", "mlp"): ("mlp", "pre_mlp_layer_norm"),
  ("decoder", "mlp"): ("mlp", "pre_mlp_layer_norm"),
}
_STATE = "state/param_states"
_STEP = "state/step"


def read_variant(checkpoint: Checkpoint, activations: str | None = None) -> Variant:
  """Return the sizes and the design of the model in a checkpoint.

  T5X stores neither the activation nor the scaling of logits. By default, a gated feed-forward
  layer has the activation of T5 1.1 (`gelu,linear`), and a layer without a gate the activation of
  T5 1.0 (`relu`). Logits are scaled if the token table is also the output kernel.

  Args:
    checkpoint: the checkpoint.
    activations: a key of `ACTIVATIONS`, for a checkpoint with another activation.
  Raises:
    UserError: an array is missing, or the shapes contradict each other or the activation.
  """
  vocab_size, embed = _read_shape(checkpoint, "target/token_embedder/embedding", 2)
  layers = _count_layers(checkpoint, "encoder")
  decoder_layers = _count_layers(checkpoint, "decoder")
  first_layer = _first_layer(checkpoint, "encoder")
  is_gated = f"{first_layer}/mlp/wi_0/kernel" in checkpoint.names
  if activations is None:
    activations = "gelu,linear" if is_gated else "relu"
  if activations.endswith(",linear") != is_gated:
    kernels = "wi_0 and wi_1" if is_gated else "wi"
    raise UserError(
      f"{checkpoint.where}: found {kernels} in feed-forward layers, expected the layers of "
      f"{activations!r}"
    )
  has_shared_bias = "target/encoder/relpos_bias/rel_embedding" in checkpoint.names
  bias = "target/encoder" if has_shared_bias else first_layer
  heads, buckets = _layer_shape(checkpoint, f"{bias}/relpos_bias/rel_embedding")
  wi = "wi_0" if is_gated else "wi"
  mlp = _layer_shape(checkpoint, f"{first_layer}/mlp/{wi}/kernel")[-1]
  query_shape = _layer_shape(checkpoint, f"{first_layer}/attention/query/kernel")
  query_width = math.prod(query_shape[1:])
  if query_width % heads:
    raise UserError(
      f"{checkpoint.where}: found queries of {query_width} values and relative positions for "
      f"{heads} heads, expected a multiple; the checkpoint is of another model"
    )
  tied = "target/decoder/logits_dense/kernel" not in checkpoint.names
  design = replace(
    t5.V1_0,
    activation=ACTIVATIONS[activations],
    position={"name": "relative_bias", "buckets": buckets, "shared": has_shared_bias},
    tied=tied,
    logits_scale=tied,
  )
  dims = Dims(embed, heads, heads, query_width // heads, mlp, layers)
  return Variant(dims, design, vocab_size, decoder_layers=decoder_layers)


def read_parameters(checkpoint: Checkpoint, model) -> Iterator[tuple[str, np.ndarray]]:
  """Read the parameters of a model that has the variant of the checkpoint.

  Yields:
    (name of the parameter in this package, float32 array).

  Raises:
    UserError: an array is missing, unknown or of another shape.
  """
  locations = {}
  for name, parameter in params.named_params(model).items():
    locations[name] = _locate(checkpoint, name, parameter.shape)
  expected = {f"target/{path}" for location in locations.values() for path in location.paths}
  for name in sorted(checkpoint.names - expected):
    if name.startswith("target/"):
      raise UserError(f"{checkpoint.where}: array {name!r} is unknown; this model has no such part")
  for name, location in locations.items():
    yield name, _read(checkpoint, "target", "", location)


def read_step(checkpoint: Checkpoint) -> int | None:
  """Return the number of finished steps, or None if the checkpoint has none.

  Raises:
    UserError: the number is impossible.
  """
  if _STEP not in checkpoint.names:
    return None
  step = checkpoint.read(_STEP)
  is_number = step.size == 1 and np.issubdtype(step.dtype, np.integer)
  if not is_number or not 0 <= step.reshape(()) < 2**31:
    raise UserError(
      f"{checkpoint.where}: {_STEP} is of shape {list(step.shape)}, expected a number of steps"
    )
  return int(step.reshape(()))


def has_optimizer_state(checkpoint: Checkpoint) -> bool:
  """Return whether the checkpoint has the state of an optimizer."""
  return any(name.startswith(_STATE) for name in checkpoint.names)


def read_second_moments(
  checkpoint: Checkpoint, model, shapes: Mapping[str, tuple[int, ...]], scale: float = 1.0
) -> Iterator[tuple[str, np.ndarray]]:
  """Read Adafactor's second moments.

  This package does not factor matrices with a side shorter than 128. If T5X has factored them, they
  get the product of their factors. Matrices that are factored only in this package get the means of
  their moments.

  Args:
    checkpoint: the checkpoint.
    model: the model whose parameters the moments belong to.
    shapes: the shapes of our tensors, named `adafactor/v/PARAMETER`, `adafactor/v_row/…` and
      `adafactor/v_col/…`.
    scale: the ratio of our gradients to T5X's; moments are multiplied by its square.
  Yields:
    (name of the tensor in this package, float32 array).
  Raises:
    UserError: an array is missing or of another shape, or the optimizer is another or has momentum.
  """
  for name, parameter in params.named_params(model).items():
    location = _locate(checkpoint, name, parameter.shape)
    unfactored, factors = _read_moments(checkpoint, location)
    is_factored_here = shapes[f"adafactor/v/{name}"] != parameter.shape
    moments = {}
    for kind in ("v_row", "v_col", "v"):
      moments[kind] = np.zeros(shapes[f"adafactor/{kind}/{name}"], np.float32)
    if not is_factored_here:
      moments["v"] = _multiply_factors(factors) if unfactored is None else unfactored
    else:
      if factors is None:
        factors = (unfactored.mean(axis=2), unfactored.mean(axis=1))
      shorter, longer = np.argsort(location.shape, kind="stable")[-2:]
      moments["v_row"] = factors[shorter]
      moments["v_col"] = factors[longer]
    for kind, array in moments.items():
      shape = shapes[f"adafactor/{kind}/{name}"]
      yield f"adafactor/{kind}/{name}", np.float32(array * scale**2).reshape(shape)


def _multiply_factors(factors: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
  """Return the second moments [layers, rows, columns] that two factors approximate."""
  rows, columns = factors
  return rows[:, :, None] * columns[:, None, :] / rows.mean(axis=1)[:, None, None]


class _Location(NamedTuple):
  """The arrays in a T5X checkpoint that contain one of our parameters.

  Attributes:
    paths: the paths of the arrays below `target`: one for each layer, or a single one outside of
      stacks and with `scan_layers`.
    scanned: whether axis 1 of the array is the layers.
    layers: the number of layers; 0 outside of stacks.
    shape: our shape of one layer.
  """

  paths: tuple[str, ...]
  scanned: bool
  layers: int
  shape: tuple[int, ...]

  @property
  def is_bias(self) -> bool:
    """Whether the parameter is a table of relative positions."""
    return self.paths[0].endswith("rel_embedding")

  @property
  def embed_first(self) -> bool:
    """Whether `embed` is a kernel's axis 0: its input, not its output, is the residual stream."""
    return not self.paths[0].endswith(("/out/kernel", "/wo/kernel"))


def _locate(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> _Location:
  """Return the location of one of our parameters, given its name and shape."""
  side, *keys = name.split("/")
  outside_stacks = {
    "embed/table": "token_embedder/embedding",
    "head/kernel": "decoder/logits_dense/kernel",
    f"{side}/final_norm/scale": f"{side}/{side}_norm/scale",
    f"{side}/position/table": f"{side}/relpos_bias/rel_embedding",
  }
  if name in outside_stacks:
    return _Location((outside_stacks[name],), False, 0, shape)
  layer, norm = _LAYERS[side, keys[1]]
  match keys[2:]:
    case ["in_norm", "scale"]:
      path = f"{norm}/scale"
    case ["layer", "position", "table"]:
      path = "relpos_bias/rel_embedding"
    case ["layer", part, "kernel"]:
      is_gated = any(array.endswith("/mlp/wi_0/kernel") for array in checkpoint.names)
      if is_gated:
        part = _GATED_KERNELS.get(part, part)
      path = f"{layer}/{part}/kernel"
  if _is_scanned(checkpoint, side):
    return _Location((f"{side}/{side}/{path}",), True, shape[0], shape[1:])
  paths = tuple(f"{side}/layers_{i}/{path}" for i in range(shape[0]))
  return _Location(paths, False, shape[0], shape[1:])


def _read(checkpoint: Checkpoint, root: str, suffix: str, location: _Location) -> np.ndarray:
  """Return a parameter in our layout, or an optimizer's array that is laid out like one.

  Args:
    checkpoint: the checkpoint.
    root: the folder that the location's paths are below.
    suffix: the end of the arrays' names after these paths.
    location: the location of the parameter.
  """
  layers = []
  for path in location.paths:
    name = f"{root}/{path}{suffix}"
    array = checkpoint.read(name)
    stored_shape = array.shape
    if location.scanned and array.ndim > 1:
      array = np.moveaxis(array, 1, 0)
    else:
      array = array[None]
    if location.is_bias and array.ndim == 3:
      array = array.swapaxes(1, 2)
    expected_layers = location.layers if location.scanned else 1
    if array.shape[0] != expected_layers or not _fits(array.shape[1:], location):
      raise UserError(
        f"{checkpoint.where}: array '{name}' has shape {list(stored_shape)}, expected "
        f"{_expected_shape(location)}; the checkpoint is of another model or damaged"
      )
    layers.append(array.reshape(-1, *location.shape))
  joined = np.concatenate(layers)
  return np.ascontiguousarray(joined if location.layers else joined[0])


def _expected_shape(location: _Location) -> list[int]:
  """Return the shape that a parameter should have in T5X."""
  shape = list(location.shape)
  if location.scanned:
    shape.insert(1, location.layers)
  return shape[::-1] if location.is_bias else shape


def _fits(shape: tuple[int, ...], location: _Location) -> bool:
  """Return whether a T5X array of one layer has the shape of our parameter.

  The array may have separate axes for the heads and for their dimensions.
  """
  if len(shape) == 3 and len(location.shape) == 2:
    if location.embed_first:
      shape = (shape[0], shape[1] * shape[2])
    else:
      shape = (shape[0] * shape[1], shape[2])
  return shape == location.shape


def _read_moments(
  checkpoint: Checkpoint, location: _Location
) -> tuple[np.ndarray | None, tuple[np.ndarray, np.ndarray] | None]:
  """Return (second moments, None), or (None, factors) if T5X factors the parameter.

  The factors are the means of the second moments over axis 1 and over axis 0, each [layers, size].
  """
  _check_optimizer(checkpoint, location)
  first = f"{_STATE}/{location.paths[0]}"
  # T5X stores a placeholder of one value in `v` of a factored parameter
  if checkpoint.shape(f"{first}/v") != (1,) or math.prod(location.shape) == 1:
    moments = _read(checkpoint, _STATE, "/v", location)
    if not location.layers and len(location.shape) == 2:
      moments = moments[None]
    return moments, None
  if len(location.shape) != 2 or location.is_bias:
    raise UserError(
      f"{checkpoint.where}: found '{first}' factored, expected it whole; give --fresh"
    )
  rows = []
  columns = []
  for path in location.paths:
    row, column = _read_factors(checkpoint, f"{_STATE}/{path}", location)
    rows.append(row)
    columns.append(column)
  return None, (np.concatenate(rows), np.concatenate(columns))


def _check_optimizer(checkpoint: Checkpoint, location: _Location) -> None:
  """Raise UserError unless the optimizer's state is Adafactor's, without momentum."""
  for path in location.paths:
    prefix = f"{_STATE}/{path}"
    if f"{prefix}/v" not in checkpoint.names:
      names = [name for name in checkpoint.names if name.startswith(f"{prefix}/")]
      arrays = sorted({name.rpartition("/")[2] for name in names})
      raise UserError(
        f"{checkpoint.where}: array '{prefix}/v' is missing (found "
        f"{', '.join(arrays) or 'nothing'}), expected the state of Adafactor; give --fresh to "
        "start the optimizer anew"
      )
    if f"{prefix}/m" in checkpoint.names and math.prod(checkpoint.shape(f"{prefix}/m")) > 1:
      raise UserError(
        f"{checkpoint.where}: found momentum in '{prefix}/m', which Adafactor here does not have; "
        "give --fresh"
      )


def _read_factors(
  checkpoint: Checkpoint, path: str, location: _Location
) -> tuple[np.ndarray, np.ndarray]:
  """Return the factors of one T5X array; see `_read_moments`."""
  row = checkpoint.read(f"{path}/v_row")
  column = checkpoint.read(f"{path}/v_col")
  if not location.scanned and row.ndim == column.ndim == 1:
    shorter, longer = np.argsort(location.shape, kind="stable")
    factors = [None, None]
    factors[shorter] = row[None]
    factors[longer] = column[None]
  else:  # by logical axes: `v_row` belongs to `embed`
    if location.scanned:
      # The array is [in, layers, out], and a factor lacks `in` or `out`: layers are on axis 0 of
      # the factor that lacks `in`, else on axis 1.
      row = np.moveaxis(row, 1 if location.embed_first else 0, 0)
      column = np.moveaxis(column, 0 if location.embed_first else 1, 0)
    else:
      row = row[None]
      column = column[None]
    factors = [row, column.reshape(len(column), -1)]
    if not location.embed_first:
      factors.reverse()
  layers = location.layers if location.scanned else 1
  for axis, (factor, size) in enumerate(zip(factors, location.shape)):
    if factor.shape != (layers, size):
      raise UserError(
        f"{checkpoint.where}: the factors '{path}' have shape {list(factor.shape)} for axis "
        f"{axis}, expected {[layers, size]}; the checkpoint is of another model or damaged"
      )
  return factors[0], factors[1]


def _is_scanned(checkpoint: Checkpoint, side: str) -> bool:
  """Return whether the layers of a stack are stored in one array (`scan_layers`)."""
  return any(name.startswith(f"target/{side}/{side}/") for name in checkpoint.names)


def _first_layer(checkpoint: Checkpoint, side: str) -> str:
  """Return the path of a stack's first layer, or of all its layers with `scan_layers`."""
  return f"target/{side}/{side if _is_scanned(checkpoint, side) else 'layers_0'}"


def _count_layers(checkpoint: Checkpoint, side: str) -> int:
  """Return the number of layers of a stack."""
  if _is_scanned(checkpoint, side):
    first_layer = _first_layer(checkpoint, side)
    return _read_shape(checkpoint, f"{first_layer}/pre_mlp_layer_norm/scale", 2)[1]
  prefix = f"target/{side}/layers_"
  suffixes = [name.removeprefix(prefix) for name in checkpoint.names if name.startswith(prefix)]
  return len({suffix.partition("/")[0] for suffix in suffixes})


def _layer_shape(checkpoint: Checkpoint, name: str) -> tuple[int, ...]:
  """Return the shape of an array without the axis of layers, which `scan_layers` adds."""
  shape = checkpoint.shape(name)
  side = name.split("/")[1]
  if f"target/{side}/{side}/" in name:
    shape = (shape[0], *shape[2:])
  if len(shape) not in (2, 3):
    raise UserError(
      f"{checkpoint.where}: array {name!r} has shape {list(shape)} in each layer, expected a matrix"
    )
  return shape


def _read_shape(checkpoint: Checkpoint, name: str, rank: int) -> tuple[int, ...]:
  """Return the shape of an array; raise UserError if it does not have `rank` axes."""
  shape = checkpoint.shape(name)
  if len(shape) != rank:
    raise UserError(
      f"{checkpoint.where}: array {name!r} has shape {list(shape)}, expected {rank} axes"
    )
  return shape

"""Read the encoder-decoders of T5X and the state of Adafactor.

The trees are those of `t5x/examples/t5` and `t5x/examples/scalable_t5`.

Kernels have T5X's orientation here too, [in, out]. The trees differ in three points:

- T5X keeps each layer by itself (`encoder/layers_0/…`) or, under `scan_layers`, all layers of a
  stack in one array whose axis 1 counts them (`encoder/encoder/…`). Here axis 0 counts them.
- T5X's tables of relative positions are [heads, buckets], here [buckets, heads]. `minimal` has one
  per stack, umT5 and `scalable_t5` one per layer.
- Attention kernels may have separate axes of heads and of their dimensions.

Adafactor keeps, of a factored array, a mean over rows and one over columns. T5X names them by the
two largest axes, or under `scan_layers` by logical axes: `v_row` is the one along `embed`. Here the
two largest axes decide.
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

# T5X's `mlp_activations` -> our activation; flax's gelu is the approximation by tanh
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
  """Return sizes and design of the model in a checkpoint.

  T5X stores neither the activation nor the scaling of logits. A gated feed-forward layer is taken
  for version 1.1's (`gelu,linear`), another for version 1.0's (`relu`); logits are scaled if the
  token table makes them.

  Args:
    activations: a key of `ACTIVATIONS`, if the checkpoint's is another.
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


def parameters(checkpoint: Checkpoint, model) -> Iterator[tuple[str, np.ndarray]]:
  """Yield (name, array) of each parameter of a model with the checkpoint's variant; float32.

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


def second_moments(
  checkpoint: Checkpoint, model, shapes: Mapping[str, tuple[int, ...]], scale: float = 1.0
) -> Iterator[tuple[str, np.ndarray]]:
  """Yield (name, array) of Adafactor's second moments; float32.

  A matrix that T5X factors and this package does not, because a side is shorter than 128, gets the
  product of its factors; one that only this package factors gets means.

  Args:
    shapes: the shapes of our tensors, named `adafactor/v/PARAMETER`, `adafactor/v_row/…` and
      `adafactor/v_col/…`.
    scale: our gradients in units of T5X's; moments are multiplied by its square.
  Raises:
    UserError: an array is missing or of another shape, or the optimizer is another or has momentum.
  """
  for name, parameter in params.named_params(model).items():
    location = _locate(checkpoint, name, parameter.shape)
    unfactored, factors = _read_moments(checkpoint, location)
    is_factored_here = shapes[f"adafactor/v/{name}"] != parameter.shape
    kinds = ("v_row", "v_col", "v")
    moments = {kind: np.zeros(shapes[f"adafactor/{kind}/{name}"], np.float32) for kind in kinds}
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
  """The arrays of T5X that contain a parameter.

  Attributes:
    paths: one path below `target` for each layer; one alone outside of stacks and for all layers
      under `scan_layers`.
    scanned: whether axis 1 counts layers.
    layers: the number of layers; 0 outside of stacks.
    shape: our shape of one layer.
  """

  paths: tuple[str, ...]
  scanned: bool
  layers: int
  shape: tuple[int, ...]

  @property
  def is_bias(self) -> bool:
    return self.paths[0].endswith("rel_embedding")

  @property
  def embed_first(self) -> bool:
    """Whether the input of a kernel is the residual stream, rather than its output."""
    return not self.paths[0].endswith(("/out/kernel", "/wo/kernel"))


def _locate(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> _Location:
  """Return the location of one of our parameters."""
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
  """Return a parameter, or an array of an optimizer with the same layout."""
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
  """Return the shape of a parameter in T5X."""
  shape = list(location.shape)
  if location.scanned:
    shape.insert(1, location.layers)
  return shape[::-1] if location.is_bias else shape


def _fits(shape: tuple[int, ...], location: _Location) -> bool:
  """Return whether an array of one layer has our shape.

  It may also have separate axes of heads and of their dimensions.
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

  The factors are the means over axis 1 and over axis 0, by layer.
  """
  _check_optimizer(checkpoint, location)
  first = f"{_STATE}/{location.paths[0]}"
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
        f"{checkpoint.where}: found momentum in '{prefix}/m', which Adafactor here "
        "has not; give --fresh"
      )


def _read_factors(
  checkpoint: Checkpoint, path: str, location: _Location
) -> tuple[np.ndarray, np.ndarray]:
  """Return the means over axis 1 and axis 0 of one T5X array, with a leading axis of layers."""
  row = checkpoint.read(f"{path}/v_row")
  column = checkpoint.read(f"{path}/v_col")
  factors = [None, None]
  if not location.scanned and row.ndim == column.ndim == 1:
    shorter, longer = np.argsort(location.shape, kind="stable")
    factors[shorter] = row[None]
    factors[longer] = column[None]
  else:  # by logical axes: rows are `embed`
    if location.scanned:
      # the axis of layers was the second, or is the first if the only one before it is gone
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
  return any(name.startswith(f"target/{side}/{side}/") for name in checkpoint.names)


def _first_layer(checkpoint: Checkpoint, side: str) -> str:
  """Return the path of the first layer, or of all layers together."""
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
  """Return the shape of an array of one layer."""
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
  shape = checkpoint.shape(name)
  if len(shape) != rank:
    raise UserError(
      f"{checkpoint.where}: array {name!r} has shape {list(shape)}, expected {rank} axes"
    )
  return shape

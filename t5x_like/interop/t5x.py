"""T5X's encoder-decoders: the tree of `t5x/examples/t5` and of `t5x/examples/scalable_t5`, and
Adafactor's state.

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

ACTIVATIONS = {  # T5X's `mlp_activations` -> ours; flax's gelu is the approximation by tanh
  "relu": "relu",
  "gelu": "gelu_tanh",
  "silu": "silu",
  "gelu,linear": "geglu_tanh",
  "relu,linear": "reglu",
  "silu,linear": "swiglu",
}
_SIDES = ("encoder", "decoder")
_LAYERS = {  # (side, ours) -> (T5X's layer, its norm)
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
  vocabulary, embed = _sizes(checkpoint, "target/token_embedder/embedding", 2)
  layers = [_depth(checkpoint, side) for side in _SIDES]
  first = [_first(checkpoint, side) for side in _SIDES]
  gated = f"{first[0]}/mlp/wi_0/kernel" in checkpoint.names
  chosen = activations or ("gelu,linear" if gated else "relu")
  if chosen.endswith(",linear") != gated:
    wi = "wi_0 and wi_1" if gated else "wi"
    raise UserError(
      f"{checkpoint.where}: found {wi} in feed-forward layers, expected the layers of {chosen!r}"
    )
  shared = "target/encoder/relpos_bias/rel_embedding" in checkpoint.names
  bias = "target/encoder" if shared else first[0]
  heads, buckets = _unstacked(checkpoint, f"{bias}/relpos_bias/rel_embedding")
  mlp = _unstacked(checkpoint, f"{first[0]}/mlp/{'wi_0' if gated else 'wi'}/kernel")[-1]
  joined = int(np.prod(_unstacked(checkpoint, f"{first[0]}/attention/query/kernel")[1:]))
  if joined % heads:
    raise UserError(
      f"{checkpoint.where}: found queries of {joined} values and relative positions for {heads} "
      "heads, expected a multiple; the checkpoint is of another model"
    )
  tied = "target/decoder/logits_dense/kernel" not in checkpoint.names
  position = {"name": "relative_bias", "buckets": buckets, "shared": shared}
  design = replace(
    t5.V1_0, activation=ACTIVATIONS[chosen], position=position, tied=tied, logits_scale=tied
  )
  dims = Dims(embed, heads, heads, joined // heads, mlp, layers[0])
  return Variant(dims, design, vocabulary, decoder_layers=layers[1])


def parameters(checkpoint: Checkpoint, model) -> Iterator[tuple[str, np.ndarray]]:
  """Yield (name, array) of each parameter of a model that has the checkpoint's variant; float32.

  Raises:
    UserError: an array is missing, unknown or of another shape.
  """
  holders = params.named_params(model)
  places = {name: _place(checkpoint, name, holder.shape) for name, holder in holders.items()}
  expected = {f"target/{path}" for place in places.values() for path in place.paths}
  for name in sorted(name for name in checkpoint.names - expected if name.startswith("target/")):
    raise UserError(f"{checkpoint.where}: array {name!r} is unknown; this model has no such part")
  for name, place in places.items():
    yield name, _read(checkpoint, "target", "", place)


def read_step(checkpoint: Checkpoint) -> int | None:
  """Return the number of finished steps, or None if the checkpoint has none; raise UserError for an
  impossible one."""
  if _STEP not in checkpoint.names:
    return None
  found = checkpoint.read(_STEP)
  if (
    found.size != 1
    or not np.issubdtype(found.dtype, np.integer)
    or not 0 <= found.reshape(()) < 2**31
  ):
    raise UserError(
      f"{checkpoint.where}: {_STEP} is of shape {list(found.shape)}, expected a number of steps"
    )
  return int(found.reshape(()))


def has_optimizer_state(checkpoint: Checkpoint) -> bool:
  """Return whether the checkpoint holds the state of an optimizer."""
  return any(name.startswith(_STATE) for name in checkpoint.names)


def second_moments(
  checkpoint: Checkpoint, model, wanted: Mapping[str, tuple[int, ...]], scale: float = 1.0
) -> Iterator[tuple[str, np.ndarray]]:
  """Yield (name, array) of Adafactor's second moments; float32.

  A matrix that T5X factors and this package does not, because a side is shorter than 128, gets the
  product of its factors; one that only this package factors gets means.

  Args:
    wanted: the shapes of our tensors, named `adafactor/v/PARAMETER`, `adafactor/v_row/…` and
      `adafactor/v_col/…`.
    scale: our gradients in units of T5X's; moments are multiplied by its square.
  Raises:
    UserError: an array is missing or of another shape, or the optimizer is another or has momentum.
  """
  for name, holder in params.named_params(model).items():
    place = _place(checkpoint, name, holder.shape)
    full, factors = _moments(checkpoint, place)
    shapes = {kind: wanted[f"adafactor/{kind}/{name}"] for kind in ("v_row", "v_col", "v")}
    shorter, longer = (
      np.argsort(place.shape, kind="stable")[-2:] if len(place.shape) > 1 else (0, 0)
    )
    made = {kind: np.zeros(shape, np.float32) for kind, shape in shapes.items()}
    if shapes["v"] == holder.shape:
      if full is None:
        full = (
          factors[0][:, :, None] * factors[1][:, None, :] / factors[0].mean(axis=1)[:, None, None]
        )
      made["v"] = full
    else:
      if factors is None:
        factors = full.mean(axis=2), full.mean(axis=1)
      made["v_row"], made["v_col"] = factors[shorter], factors[longer]
    for kind, array in made.items():
      yield f"adafactor/{kind}/{name}", np.float32(array * scale**2).reshape(shapes[kind])


class _Place(NamedTuple):
  """The arrays of T5X that hold a parameter.

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


def _place(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> _Place:
  side, *inner = name.split("/")
  outside = {
    "embed/table": "token_embedder/embedding",
    "head/kernel": "decoder/logits_dense/kernel",
    f"{side}/final_norm/scale": f"{side}/{side}_norm/scale",
    f"{side}/position/table": f"{side}/relpos_bias/rel_embedding",
  }
  if name in outside:
    return _Place((outside[name],), False, 0, shape)
  layer, norm = _LAYERS[side, inner[1]]
  match inner[2:]:
    case ["in_norm", "scale"]:
      path = f"{norm}/scale"
    case ["layer", "position", "table"]:
      path = "relpos_bias/rel_embedding"
    case ["layer", part, "kernel"]:
      gated = any(known.endswith("/mlp/wi_0/kernel") for known in checkpoint.names)
      path = f"{layer}/{({'gate': 'wi_0', 'wi': 'wi_1'} if gated else {}).get(part, part)}/kernel"
  scanned = _is_scanned(checkpoint, side)
  prefixes = [side] if scanned else [f"layers_{i}" for i in range(shape[0])]
  return _Place(
    tuple(f"{side}/{prefix}/{path}" for prefix in prefixes), scanned, shape[0], shape[1:]
  )


def _read(checkpoint: Checkpoint, root: str, suffix: str, place: _Place) -> np.ndarray:
  """Return a parameter, or an array of an optimizer that is like one."""
  layers = []
  for path in place.paths:
    found = array = checkpoint.read(f"{root}/{path}{suffix}")
    array = np.moveaxis(array, 1, 0) if place.scanned and array.ndim > 1 else array[None]
    if place.is_bias and array.ndim == 3:
      array = array.swapaxes(1, 2)
    fits = array.shape[0] == (place.layers if place.scanned else 1) and _fits(
      array.shape[1:], place
    )
    if not fits:
      shape = (
        [*place.shape[:1], place.layers, *place.shape[1:]] if place.scanned else list(place.shape)
      )
      raise UserError(
        f"{checkpoint.where}: array '{root}/{path}{suffix}' has shape {list(found.shape)}, "
        f"expected {shape[::-1] if place.is_bias else shape}; the checkpoint is of another model "
        "or damaged"
      )
    layers.append(array.reshape(-1, *place.shape))
  joined = np.concatenate(layers)
  return np.ascontiguousarray(joined if place.layers else joined[0])


def _fits(found: tuple[int, ...], place: _Place) -> bool:
  """Return whether an array of one layer is like ours, or differs by separate axes of heads
  alone."""
  if found == place.shape or len(found) != 3 or len(place.shape) != 2:
    return found == place.shape
  merged = (found[0], found[1] * found[2]) if place.embed_first else (found[0] * found[1], found[2])
  return merged == place.shape


def _moments(
  checkpoint: Checkpoint, place: _Place
) -> tuple[np.ndarray | None, tuple[np.ndarray, np.ndarray] | None]:
  """Return (second moments like the parameter, None), or (None, the means over axis 1 and over axis
  0, by layer)."""
  for path in place.paths:
    where = f"{_STATE}/{path}"
    if f"{where}/v" not in checkpoint.names:
      known = sorted(
        {name.rpartition("/")[2] for name in checkpoint.names if name.startswith(f"{where}/")}
      )
      raise UserError(
        f"{checkpoint.where}: array '{where}/v' is missing (found "
        f"{', '.join(known) or 'nothing'}), expected the state "
        "of Adafactor; give --fresh to start the optimizer anew"
      )
    if f"{where}/m" in checkpoint.names and int(np.prod(checkpoint.shape(f"{where}/m"))) > 1:
      raise UserError(
        f"{checkpoint.where}: found momentum in '{where}/m', which Adafactor here "
        "has not; give --fresh"
      )
  first = f"{_STATE}/{place.paths[0]}"
  if checkpoint.shape(f"{first}/v") != (1,) or int(np.prod(place.shape)) == 1:
    return _full(_read(checkpoint, _STATE, "/v", place), place), None
  if len(place.shape) != 2 or place.is_bias:
    raise UserError(
      f"{checkpoint.where}: found '{first}' factored, expected it whole; give --fresh"
    )
  by_axis = [_factors(checkpoint, f"{_STATE}/{path}", place) for path in place.paths]
  return None, (
    np.concatenate([one for one, _ in by_axis]),
    np.concatenate([two for _, two in by_axis]),
  )


def _full(array: np.ndarray, place: _Place) -> np.ndarray:
  return array if place.layers else array[None] if len(place.shape) == 2 else array


def _factors(checkpoint: Checkpoint, path: str, place: _Place) -> tuple[np.ndarray, np.ndarray]:
  """Return the means over axis 1 and over axis 0 of one T5X array, each with a leading axis of
  layers."""
  row, column = (checkpoint.read(f"{path}/{kind}") for kind in ("v_row", "v_col"))
  if not place.scanned and row.ndim == column.ndim == 1:
    found = [None, None]
    shorter, longer = np.argsort(place.shape, kind="stable")
    found[shorter], found[longer] = row[None], column[None]
  else:  # by logical axes: rows are `embed`
    # the axis of layers was the second, or is the first if the only one before it is gone
    if place.scanned:
      row, column = (
        np.moveaxis(x, int(own), 0)
        for x, own in ((row, place.embed_first), (column, not place.embed_first))
      )
    else:
      row = row[None]
      column = column[None]
    found = [row, column.reshape(len(column), -1)]
    found = found if place.embed_first else found[::-1]
  layers = place.layers if place.scanned else 1
  for kind, array, size in zip(("axis 0", "axis 1"), found, place.shape):
    if array.shape != (layers, size):
      raise UserError(
        f"{checkpoint.where}: the factors '{path}' have shape {list(array.shape)} for {kind}, "
        f"expected {[layers, size]}; the checkpoint is of another model or damaged"
      )
  return found[0], found[1]


def _is_scanned(checkpoint: Checkpoint, side: str) -> bool:
  return any(name.startswith(f"target/{side}/{side}/") for name in checkpoint.names)


def _first(checkpoint: Checkpoint, side: str) -> str:
  """Return the path of the first layer, or of all layers together."""
  return f"target/{side}/{side if _is_scanned(checkpoint, side) else 'layers_0'}"


def _depth(checkpoint: Checkpoint, side: str) -> int:
  """Return the number of layers of a stack."""
  if _is_scanned(checkpoint, side):
    return _sizes(checkpoint, f"{_first(checkpoint, side)}/pre_mlp_layer_norm/scale", 2)[1]
  prefix = f"target/{side}/layers_"
  return len(
    {name[len(prefix) :].partition("/")[0] for name in checkpoint.names if name.startswith(prefix)}
  )


def _unstacked(checkpoint: Checkpoint, name: str) -> tuple[int, ...]:
  """Return the shape of an array of one layer."""
  found = checkpoint.shape(name)
  side = name.split("/")[1]
  found = (found[0], *found[2:]) if f"target/{side}/{side}/" in name else found
  if len(found) not in (2, 3):
    raise UserError(
      f"{checkpoint.where}: array {name!r} has shape {list(found)} in each layer, expected a matrix"
    )
  return found


def _sizes(checkpoint: Checkpoint, name: str, rank: int) -> tuple[int, ...]:
  found = checkpoint.shape(name)
  if len(found) != rank:
    raise UserError(
      f"{checkpoint.where}: array {name!r} has shape {list(found)}, expected {rank} axes"
    )
  return found

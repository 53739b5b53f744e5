"""Build the device mesh, which arranges devices along named axes."""

import math
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from t5x_like.errors import UserError, did_you_mean

AXES = ("replica", "data", "fsdp", "sequence", "tensor", "expert", "stage")


def make_mesh(sizes: dict[str, int], devices: list[jax.Device] | None = None) -> Mesh:
  """Build a mesh over all devices.

  Args:
    sizes: the length of each axis of `AXES`, by default 1; one axis may be -1, which takes the
      remaining devices. `replica` spans TPU slices, over the data-centre network; all other axes
      are within a slice. GPU nodes count as slices if `replica` is a multiple of their number;
      otherwise the first axes span nodes.
    devices: the devices to use; None means all devices of the job.
  Returns:
    A mesh with every axis of `AXES` (most of length 1), all of them Auto.
  Raises:
    UserError: an axis is unknown, or the sizes do not multiply to the number of devices.
  """
  if devices is None:
    devices = jax.devices()
  _check_sizes(sizes)
  shape = [sizes.get(axis, 1) for axis in AXES]
  fixed_sizes = [size for size in shape if size != -1]
  num_open = len(shape) - len(fixed_sizes)
  if num_open > 1 or min(fixed_sizes) < 1:
    raise UserError(f"mesh: sizes must be positive, with at most one -1; found {dict(sizes)}")
  num_fixed = math.prod(fixed_sizes)
  if num_open:
    open_index = shape.index(-1)
    if len(devices) % num_fixed:
      raise UserError(
        f"mesh: {dict(sizes)} needs a multiple of {num_fixed} devices for "
        f"mesh.{AXES[open_index]}=-1, found {len(devices)}"
      )
    shape[open_index] = len(devices) // num_fixed
  elif num_fixed != len(devices):
    raise UserError(
      f"mesh: {dict(sizes)} multiplies to {num_fixed} devices, found {len(devices)}; set one "
      "axis to -1 to use all of them"
    )
  return Mesh(_arrange(shape, devices), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def _check_sizes(sizes: dict[str, int]) -> None:
  """Raise UserError for an unknown mesh axis, or a size that is not an integer."""
  unknown = sorted(set(sizes) - set(AXES))
  if unknown:
    near = did_you_mean(unknown[0], AXES)
    raise UserError(f"mesh.{unknown[0]}: unknown mesh axis{near}; the axes are {', '.join(AXES)}")
  for axis, size in sizes.items():
    if type(size) is not int:
      raise UserError(
        f"mesh.{axis}: found {size!r}, expected a whole number of devices, or -1 for "
        "the remaining devices"
      )


def _arrange(shape: list[int], devices: list[jax.Device]) -> np.ndarray:
  """Arrange devices so that neighbours in the mesh are close, with slices along `replica`."""
  from jax.experimental import mesh_utils

  replicas, *inner_shape = shape
  slices = len({getattr(device, "slice_index", 0) for device in devices})
  if slices > 1 and (replicas % slices == 0 or devices[0].platform == "tpu"):
    if replicas % slices:
      raise UserError(
        f"mesh.replica={replicas}: found {slices} slices, expected a multiple of {slices}: only "
        f"replica spans slices; set mesh.replica={slices}"
      )
    shape_within_slice = [replicas // slices, *inner_shape]
    shape_across_slices = [slices] + [1] * len(inner_shape)
    return mesh_utils.create_hybrid_device_mesh(
      shape_within_slice, shape_across_slices, devices, allow_split_physical_axes=True
    )
  return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)


def exchange_stages(mesh: Mesh, axis: str) -> list[list[list[int]] | None]:
  """Return the stages of a reduce-scatter over a mesh axis, each as `axis_index_groups`.

  A mesh axis may run through several dimensions of a TPU's torus. It then has one stage for each
  dimension, the slowest first: in a single stage, the TPU compiler would use an all-reduce, which
  moves twice as much. Any other axis has one stage over all its indices, [None].
  """
  axis_first = np.moveaxis(mesh.devices, mesh.axis_names.index(axis), 0)
  devices_on_axis = axis_first.reshape(mesh.shape[axis], -1)[:, 0]
  coords = [getattr(device, "coords", None) for device in devices_on_axis]
  # The lengths of the axis in the dimensions of the torus, slowest first. The fastest dimension is
  # as long as the run of devices before a second coordinate changes. The next dimension is found in
  # the same way among the first devices of these runs.
  lengths = []
  step = 1
  while step < len(devices_on_axis) and None not in coords:
    coords_at_step = coords[::step]
    length = _run_length(coords_at_step)
    if len(coords_at_step) % length or length == 1:
      return [None]
    lengths.insert(0, length)
    step *= length
  lengths = _join_odd_lengths(lengths)
  if len(lengths) < 2:
    return [None]
  indices = np.arange(len(devices_on_axis)).reshape(lengths)
  stages = []
  for dim, length in enumerate(lengths):
    stages.append(np.moveaxis(indices, dim, -1).reshape(-1, length).tolist())
  return stages


def _run_length(coords: Sequence[Sequence[int]]) -> int:
  """Return how many devices, from the first on, differ from it in the same dimensions."""
  second_differs_in = _differing_dims(coords[0], coords[1])
  for number, device_coords in enumerate(coords[1:], 1):
    if _differing_dims(coords[0], device_coords) != second_differs_in:
      return number
  return len(coords)


def _differing_dims(coords: Sequence[int], other_coords: Sequence[int]) -> set[int]:
  """Return the dimensions of the torus in which two devices differ."""
  return {dim for dim in range(len(coords)) if coords[dim] != other_coords[dim]}


def _join_odd_lengths(lengths: list[int]) -> list[int]:
  """Merge every length with the one before it, into their product, if either is odd."""
  joined: list[int] = []
  for length in lengths:
    if joined and (length % 2 or joined[-1] % 2):
      joined[-1] *= length
    else:
      joined.append(length)
  return joined

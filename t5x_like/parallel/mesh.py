"""The device mesh: devices arranged along named axes."""

import functools
import math

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from t5x_like.errors import UserError, did_you_mean

AXES = ("replica", "data", "fsdp", "sequence", "tensor", "expert", "stage")


def make_mesh(sizes: dict[str, int], devices: list[jax.Device] | None = None) -> Mesh:
  """Build a mesh over all devices.

  Args:
    sizes: length of each axis of `AXES`, 1 when left out; one axis may be -1 and takes the
      remaining devices. `replica` spans TPU slices, over the data-centre network; all other axes
      lie within a slice. GPU nodes count as slices if `replica` is a multiple of their number;
      otherwise the first axes span nodes.
    devices: all devices of the job when None.
  Returns:
    A mesh with every axis of `AXES` (most of length 1), of type Auto.
  Raises:
    UserError: an axis is unknown, or the sizes do not multiply to the number of devices.
  """
  devices = jax.devices() if devices is None else devices
  unknown = sorted(set(sizes) - set(AXES))
  if unknown:
    near = did_you_mean(unknown[0], AXES)
    raise UserError(f"mesh.{unknown[0]}: unknown mesh axis{near}; the axes are {', '.join(AXES)}")
  for axis, n in sizes.items():
    if type(n) is not int:
      raise UserError(
        f"mesh.{axis}: found {n!r}, expected a whole number of devices, or -1 for "
        "the remaining devices"
      )
  shape = [sizes.get(axis, 1) for axis in AXES]
  free = [axis for axis, n in zip(AXES, shape) if n == -1]
  if len(free) > 1 or any(n < 1 and n != -1 for n in shape):
    raise UserError(f"mesh: sizes must be positive, with at most one -1; found {dict(sizes)}")
  fixed = math.prod(n for n in shape if n != -1)
  if free:
    if len(devices) % fixed:
      raise UserError(
        f"mesh: {dict(sizes)} needs a multiple of {fixed} devices for mesh.{free[0]}=-1, found "
        f"{len(devices)}"
      )
    shape = [len(devices) // fixed if n == -1 else n for n in shape]
  elif fixed != len(devices):
    raise UserError(
      f"mesh: {dict(sizes)} multiplies to {fixed} devices, found {len(devices)}; set one axis to "
      "-1 to use all of them"
    )
  return Mesh(_arrange(shape, devices), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def _arrange(shape: list[int], devices: list[jax.Device]) -> np.ndarray:
  """Arrange devices so that physical neighbours are neighbours in the mesh, with slices along
  `replica`."""
  from jax.experimental import mesh_utils

  slices = len({getattr(d, "slice_index", 0) for d in devices})
  if slices > 1 and (shape[0] % slices == 0 or devices[0].platform == "tpu"):
    if shape[0] % slices:
      raise UserError(
        f"mesh.replica={shape[0]}: found {slices} slices, expected a multiple of {slices}: only "
        f"replica spans slices; set mesh.replica={slices}"
      )
    inner = [shape[0] // slices, *shape[1:]]
    across = [slices] + [1] * (len(shape) - 1)
    return mesh_utils.create_hybrid_device_mesh(
      inner, across, devices, allow_split_physical_axes=True
    )
  return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)


def exchange_stages(mesh: Mesh, axis: str) -> list[list[list[int]] | None]:
  """Return the stages of a reduce-scatter over a mesh axis, each as groups of indices along it
  (`axis_index_groups`).

  An axis that runs through several dimensions of a TPU's torus has one stage for each, the slowest
  first. In a single stage, the TPU compiler would all-reduce, which moves twice as much. Elsewhere:
  [None], all indices at once.
  """
  line = np.moveaxis(mesh.devices, mesh.axis_names.index(axis), 0).reshape(mesh.shape[axis], -1)[
    :, 0
  ]
  coords = [getattr(device, "coords", None) for device in line]
  lengths = []
  step = 1
  while step < len(line) and None not in coords:
    along = coords[::step]
    moved = [{i for i, (a, b) in enumerate(zip(along[0], other)) if a != b} for other in along[1:]]
    length = next((n for n, dims in enumerate(moved, 1) if dims != moved[0]), len(along))
    if len(along) % length or length == 1:
      return [None]
    lengths.insert(0, length)
    step *= length
  lengths = functools.reduce(_without_odd, lengths, [])
  if len(lengths) < 2:
    return [None]
  places = np.arange(len(line)).reshape(lengths)
  return [
    np.moveaxis(places, i, -1).reshape(-1, length).tolist() for i, length in enumerate(lengths)
  ]


def _without_odd(lengths: list[int], length: int) -> list[int]:
  if lengths and (length % 2 or lengths[-1] % 2):
    return [*lengths[:-1], lengths[-1] * length]
  return [*lengths, length]

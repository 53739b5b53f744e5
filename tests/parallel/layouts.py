"""Read the coordinates and hosts of the devices of TPU slices, as the TPU compiler reports them.

python -m tests.parallel.layouts     # rewrites layouts.json; needs libtpu (the extra `plan`)
"""

import dataclasses
import json
import os
import pathlib

FILE = pathlib.Path(__file__).with_suffix(".json")
TOPOLOGIES = [  # (shape of a slice, number of slices)
  ("v4:2x4x4", 1),
  ("v5e:8x8", 1),
  ("v5e:16x16", 1),
  ("v5p:4x4x4", 1),
  ("v6e:8x8", 1),
  ("tpu7x:4x4x4", 1),
  ("v5e:1x1", 1),
  ("v5e:4x4", 1),
  ("v5e:4x8", 1),
  ("v4:2x2x4", 2),
  ("v4:2x2x4", 4),
  ("v5e:4x4", 2),
  ("v5e:4x4", 4),
  ("tpu7x:2x2x2", 2),
  ("tpu7x:2x2x2", 4),
]


@dataclasses.dataclass(frozen=True)
class Device:
  """A stand-in for a jax device, with the attributes that `make_mesh` reads."""

  id: int
  process_index: int
  coords: tuple[int, ...]
  core_on_chip: int
  slice_index: int
  device_kind: str
  platform: str = "tpu"


def read() -> dict[tuple[str, int], list[Device]]:
  """Return the devices of every topology in layouts.json, by (name, slices)."""
  layouts = {}
  for key, layout in json.loads(FILE.read_text()).items():
    name, _, slices = key.partition(" x ")
    layouts[name, int(slices)] = [
      Device(number, process, tuple(coords), core, slice_, layout["kind"])
      for number, (process, slice_, core, *coords) in enumerate(layout["devices"])
    ]
  return layouts


def describe(name: str, slices: int) -> dict:
  """Return the device kind of a topology, and [process, slice, core, x, y, z] of each device."""
  from t5x_like.planning import hardware

  topology = hardware.parse(name, slices)
  os.environ.update(hardware.environment(topology))
  devices = hardware.devices(topology)
  device_ids = [
    [d.process_index, getattr(d, "slice_index", None) or 0, d.core_on_chip, *d.coords]
    for d in devices
  ]
  return {"kind": devices[0].device_kind, "devices": device_ids}


if __name__ == "__main__":
  lines = [
    f'"{name} x {slices}": {json.dumps(describe(name, slices), separators=(",", ":"))}'
    for name, slices in TOPOLOGIES
  ]
  FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")

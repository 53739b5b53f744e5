"""Train on CPU devices that are arranged like the devices of a TPU slice.

    python -m tests.parallel.arranged v5e:4x4 <train's flags>

Device i of process p stands for the i-th device of host p, so that meshes, rows of hosts and groups
of devices are the same as on the slice.
"""

import sys

import jax

from t5x_like import command_line, train
from t5x_like.parallel import mesh
from tests.parallel import layouts


def main(argv: list[str]) -> int:
  slice_ = layouts.read()[argv[0], 1]
  original_arrange = mesh._arrange

  def arrange(shape, devices):
    remapped = {}
    for process in {device.process_index for device in devices}:
      process_devices = [device for device in devices if device.process_index == process]
      remapped |= dict(
        zip(
          [device for device in slice_ if device.process_index == process],
          process_devices,
          strict=True,
        )
      )
    arranged = original_arrange(shape, slice_)
    assert len(remapped) == arranged.size
    result = arranged.copy()
    result.flat = [remapped[device] for device in arranged.flat]
    return result

  mesh._arrange = arrange
  code = train.main(argv[1:])
  print(f"trained on {jax.device_count()} devices of {jax.process_count()} processes")
  return code


if __name__ == "__main__":
  command_line.run_program(main) if sys.argv[1:] else sys.exit(2)

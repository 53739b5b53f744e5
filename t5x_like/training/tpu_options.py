"""Set the TPU compiler's options by chip, for the training step of plans and runs.

The effects are step times that `t5x_like.plan` estimates for Llama 3.1 8B (70B on v5p, PaLM 540B on
v4), without and with the option. The user's value of an option in `XLA_FLAGS` or `LIBTPU_INIT_ARGS`
takes precedence. Options that the installed libtpu does not know are left out. The effect on chips
that are not in `OPTIONS` has not been studied.
"""

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

import jax


class Option(NamedTuple):
  """A compiler option with its reason and its estimated effect on the time of a step."""

  name: str
  value: str
  reason: str
  effect: str


def _vmem_limit(effect: str) -> Option:
  reason = (
    "fusions may use 96 MiB of the on-chip vector memory (VMEM): larger tiles, fewer "
    "reads of the HBM"
  )
  return Option("xla_tpu_scoped_vmem_limit_kib", "98304", reason, effect)


def _sparse_core_collectives(effect: str) -> tuple[Option, ...]:
  reason = "collectives run on the sparse cores while the tensor core multiplies matrices"
  names = [f"xla_tpu_enable_sparse_core_collective_offload_{kind}" for kind in _COLLECTIVES]
  for kind in ("all_gather", "all_reduce"):
    names.append(f"xla_tpu_enable_{kind}_offload_tracing")
  names.append("xla_tpu_use_tc_device_shape_on_sc")
  options = [Option(name, "true", reason, effect) for name in names]
  return (*options, Option("xla_sc_enable_instruction_fusion", "false", reason, effect))


def _async_all_gather(effect: str) -> Option:
  reason = "all-gathers run while matrices are multiplied; newer chips do so by default"
  return Option("xla_enable_async_all_gather", "true", reason, effect)


def _sparse_core_2d_all_gather(effect: str) -> Option:
  reason = "all-gathers over two dimensions of a torus run on the sparse cores too"
  return Option(
    "xla_tpu_enable_sparse_core_collective_offload_2d_all_gather", "true", reason, effect
  )


_COLLECTIVES = ("all_gather", "all_reduce", "reduce_scatter")

# The options by a pattern that matches the whole of JAX's `device_kind`.
OPTIONS: dict[str, tuple[Option, ...]] = {
  "TPU v4": (_async_all_gather("v4 12x16x16, length 2,048: 30.84 -> 24.86 s"),),
  "TPU v5( lite|e)": (_vmem_limit("v5e 16x16, length 2,048: 1.068 -> 0.935 s"),),
  "TPU v6( lite|e)": (
    _vmem_limit("v6e 16x16, length 8,192: 1.288 -> 1.100 s"),
    *_sparse_core_collectives(
      "v6e 16x16, length 8,192: 1.288 -> 1.135 s alone, 1.100 -> 1.008 s with the VMEM limit"
    ),
    _sparse_core_2d_all_gather("v6e 16x16, length 8,192: 0.156 -> 0.001 s of waiting"),
  ),
  "TPU v5p?": (
    _vmem_limit("v5p 8x8x8, length 8,192: 14.98 -> 11.30 s with the collectives' options"),
    *_sparse_core_collectives("v5p 8x8x8, length 8,192: 14.98 -> 11.30 s with the VMEM limit"),
    _sparse_core_2d_all_gather(
      "v5p 8x8x8, length 8,192, mesh of data=8 and fsdp=64: 13.34 -> 11.82 s"
    ),
  ),
}
_UNKNOWN = re.compile(r"No such compile option: '(\w+)'")


def options_for_chip(device_kind: str, environment: Mapping[str, str]) -> dict[str, str]:
  """Return the options of a chip that the user's environment does not set."""
  options: tuple[Option, ...] = ()
  for pattern, chip_options in OPTIONS.items():
    if re.fullmatch(pattern, device_kind):
      options = chip_options
      break
  user_flags = f"{environment.get('XLA_FLAGS', '')} {environment.get('LIBTPU_INIT_ARGS', '')}"
  user_options = set(re.findall(r"--(\w+)", user_flags))
  return {option.name: option.value for option in options if option.name not in user_options}


def compile_for_chip(
  lowered: jax.stages.Lowered, device_kind: str, **extra_options: str | bool
) -> tuple[jax.stages.Compiled, dict[str, str]]:
  """Compile for a chip; return (the program, the options of the chip that libtpu accepted).

  Args:
    extra_options: further compiler options, which override the chip's.
  """
  options = options_for_chip(device_kind, os.environ)
  while True:
    try:
      return lowered.compile({**options, **extra_options}), options
    except jax.errors.JaxRuntimeError as error:
      unknown = _UNKNOWN.search(str(error))
      if unknown is None or options.pop(unknown[1], None) is None:
        raise

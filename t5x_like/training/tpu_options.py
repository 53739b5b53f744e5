"""Options of the TPU compiler by chip, for the training step of plans and runs.

Effects are estimates of `t5x_like.plan` for Llama 3.1 8B (70B on v5p, PaLM 540B on v4), by steps
that differ in the option alone. An option that `XLA_FLAGS` or `LIBTPU_INIT_ARGS` names is the
user's. Options that a version of libtpu does not know are left out. Chips without options here were
not measured.
"""

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

import jax


class Option(NamedTuple):
  """An option with its reason and the measured effect."""

  name: str
  value: str
  reason: str
  effect: str


def _memory(effect: str) -> Option:
  reason = (
    "fusions may use 96 MiB of the memory beside the matrix units: larger tiles, fewer "
    "reads of the HBM"
  )
  return Option("xla_tpu_scoped_vmem_limit_kib", "98304", reason, effect)


def _offload(effect: str) -> tuple[Option, ...]:
  reason = "collectives run on the sparse cores, beside the products of the core"
  on = [f"xla_tpu_enable_sparse_core_collective_offload_{kind}" for kind in _KINDS]
  traced = [f"xla_tpu_enable_{kind}_offload_tracing" for kind in ("all_gather", "all_reduce")]
  names = [*on, *traced, "xla_tpu_use_tc_device_shape_on_sc"]
  options = [Option(name, "true", reason, effect) for name in names]
  return (*options, Option("xla_sc_enable_instruction_fusion", "false", reason, effect))


def _gathers(effect: str) -> Option:
  reason = "gathers run beside the products; newer chips do so by default"
  return Option("xla_enable_async_all_gather", "true", reason, effect)


def _plane(effect: str) -> Option:
  reason = "gathers over two dimensions of a torus run on the sparse cores too"
  return Option(
    "xla_tpu_enable_sparse_core_collective_offload_2d_all_gather", "true", reason, effect
  )


_KINDS = ("all_gather", "all_reduce", "reduce_scatter")

# By a pattern of the `device_kind`.
OPTIONS: dict[str, tuple[Option, ...]] = {
  "TPU v4": (_gathers("v4 12x16x16, length 2,048: 30.84 -> 24.86 s"),),
  "TPU v5( lite|e)": (_memory("v5e 16x16, length 2,048: 1.068 -> 0.935 s"),),
  "TPU v6( lite|e)": (
    _memory("v6e 16x16, length 8,192: 1.288 -> 1.100 s"),
    *_offload(
      "v6e 16x16, length 8,192: 1.288 -> 1.135 s alone, 1.100 -> 1.008 s with the memory's option"
    ),
    _plane("v6e 16x16, length 8,192: 0.156 -> 0.001 s of waiting"),
  ),
  "TPU v5p?": (
    _memory("v5p 8x8x8, length 8,192: 14.98 -> 11.30 s with the sparse cores' options"),
    *_offload("v5p 8x8x8, length 8,192: 14.98 -> 11.30 s with the memory's option"),
    _plane("v5p 8x8x8, length 8,192, mesh of data=8 and fsdp=64: 13.34 -> 11.82 s"),
  ),
}
_UNKNOWN = re.compile(r"No such compile option: '(\w+)'")


def options_for_chip(device_kind: str, environment: Mapping[str, str]) -> dict[str, str]:
  """Return the options of a chip that the user's environment does not set."""
  options = next(
    (options for kind, options in OPTIONS.items() if re.fullmatch(kind, device_kind)), ()
  )
  user_flags = f"{environment.get('XLA_FLAGS', '')} {environment.get('LIBTPU_INIT_ARGS', '')}"
  user_options = set(re.findall(r"--(\w+)", user_flags))
  return {option.name: option.value for option in options if option.name not in user_options}


def compile_for_chip(
  lowered: jax.stages.Lowered, device_kind: str, **extra_options: str | bool
) -> tuple[jax.stages.Compiled, dict[str, str]]:
  """Compile for a chip and return (the program, the options that it was compiled with).

  Args:
    more: further options of the compiler.
  """
  options = options_for_chip(device_kind, os.environ)
  while True:
    try:
      return lowered.compile({**options, **extra_options}), options
    except jax.errors.JaxRuntimeError as error:
      unknown = _UNKNOWN.search(str(error))
      if unknown is None or options.pop(unknown[1], None) is None:
        raise

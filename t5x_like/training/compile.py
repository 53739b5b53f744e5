"""How the step is compiled on each backend."""

import functools

import jax

_OPTIONS = {
  # Matrix products and reductions through YNNPACK, reductions fused with the arithmetic in front of them.
  "cpu": {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_DOT,LIBRARY_FUSION_TYPE_REDUCE"},
}


@functools.cache
def compiler_options(backend: str | None = None) -> dict[str, str]:
  """Options for `lowered.compile(compiler_options=...)`, without those that the installed jaxlib does not know.

  Args:
    backend: "cpu", "gpu" or "tpu"; the default backend when omitted. Accelerators keep XLA's own defaults.
  """
  options = _OPTIONS.get(backend or jax.default_backend(), {})
  return {name: value for name, value in options.items() if _known(name, value)}


def _known(name: str, value: str) -> bool:
  try:
    jax.jit(lambda x: x).lower(1.0).compile(compiler_options={name: value})
  except (RuntimeError, ValueError):  # "No such compile option", or a value it cannot parse
    return False
  return True

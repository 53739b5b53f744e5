"""Divide the time of a profiled step by kind of kernel."""

import collections
import pathlib
import re

# The first pattern that matches a kernel's name gives its kind. The names come from cuBLAS,
# cuDNN, NCCL, XLA, YNNPACK, Pallas and Triton.
_KINDS = {
  "attention kernels": r"flash|fmha|sdpa|mha_|splash|attention",
  "matrix products": r"gemm|cublas|cutlass|nvjet|wgmma|xmma|dot|convolution|matmul|ynn_fusion",
  "collectives": r"nccl|all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
  r"|ncclDevKernel",
  "copies": r"memcpy|memset|copy|transpose|concatenate|slice",
  "reductions": r"reduce|softmax|norm",
  "fused elementwise work": r"fusion|loop_|input_|wrapped",
}


def milliseconds(folder: pathlib.Path) -> dict[str, float]:
  """Return device milliseconds of a trace by kind of kernel, the longest first.

  On a GPU or TPU the kernels of all streams count. On a CPU the operations of all threads count,
  which run at the same time, so the sum is processor time.

  Args:
    folder: directory of the trace, as given to `jax.profiler.trace`.
  """
  from jax.profiler import ProfileData

  newest = max(folder.rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
  planes = list(ProfileData.from_file(str(newest)).planes)
  devices = [plane for plane in planes if plane.name.startswith("/device:")]
  total: dict[str, float] = collections.Counter()
  for plane in devices or [plane for plane in planes if plane.name.startswith("/host:CPU")]:
    for line in plane.lines:
      if devices and not re.search(r"Stream|XLA Ops", line.name):
        continue
      for event in line.events:
        stats = dict(event.stats)
        # Control flow contains other operations and does not count.
        if devices or "hlo_op" in stats and not re.match(r"while|call|conditional", event.name):
          total[kind(f"{event.name} {stats.get('hlo_op', '')}")] += event.duration_ns / 1e6
  return dict(sorted(total.items(), key=lambda item: -item[1]))


def kind(name: str) -> str:
  """Return the kind of a kernel by its name, or "other"."""
  for kind, pattern in _KINDS.items():
    if re.search(pattern, name, re.IGNORECASE):
      return kind
  return "other"

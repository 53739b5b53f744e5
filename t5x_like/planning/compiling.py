"""Compile a step for a topology and measure the program, in the child process of a plan.

  python -m t5x_like.planning.compiling REQUEST.json ANSWER.json

`planning/child.py` runs it in the environment that `hardware.environment` returns.
"""

import json
import math
import pathlib
import re
import sys
import tempfile
import time
from typing import Any

import jax
import numpy as np

from t5x_like import recipes, slots, trust
from t5x_like.errors import UserError, one_line
from t5x_like.files import outputs
from t5x_like.nn import params
from t5x_like.nn.cores import describe_cores, record_cores
from t5x_like.parallel.rules import rows_by_process
from t5x_like.planning import (
  counts,
  hardware,
  minimum,
  products,
  promise,
  roofline,
  search,
  steps,
  timing,
)
from t5x_like.planning.collectives import Collective, collectives
from t5x_like.planning.hlo import Program
from t5x_like.runtime import process
from t5x_like.training import compilation, device_peak
from t5x_like.training.build import Parts, build_parts

_GIGA = 1e9
_MANY_GATHERS = 4  # a decoding step that sends more than 4 times the least bytes gets the hint
_GATHERS_HINT = (
  "; parameters are gathered for every token: mesh.tensor in place of mesh.fsdp leaves them where "
  "they are"
)


def plan(request: dict[str, Any]) -> dict[str, Any]:
  """Return the plan for a `child.Request` as JSON-serialisable values; bytes are per device."""
  topology = hardware.parse(request["topology"], request["slices"])
  devices = hardware.devices(topology)
  recipe = recipes.load(request["config"], request["overrides"])
  platform = hardware.platform(topology, devices)
  config, task = steps.resolve(recipe, platform, request["phase"])
  if request["step"] != "train":
    config.accumulation_steps = 1
  parts = build_parts(config, devices)
  rules = parts.rules
  mesh = dict(rules.mesh.shape)
  step = steps.make(request["step"], config, parts, task)
  answer = {
    "topology": topology.name,
    "step": request["step"],
    "config": request["config"],
    "overrides": request["overrides"],
    "mesh": {axis: size for axis, size in mesh.items() if size > 1},
    "devices": len(devices),
    "device_kind": devices[0].device_kind,
    "slice_shape": hardware.slice_shape(devices),
    "phase": request["phase"],
    "total_steps": config.total_steps,
    "config_values": promise.step_values(recipe),
    "versions": promise.select_versions(process.package_versions()),
    **_describe_step(request["step"], config, parts, task, step),
  }
  answer["memory"]["hbm"] = _device_memory(topology, devices[0])
  start = time.perf_counter()
  with record_cores() as used:
    lowered = step.lower()
  answer["cores"] = describe_cores(used)
  answer["lower_seconds"] = time.perf_counter() - start
  answer["dropped"] = sorted(rules.dropped)
  start = time.perf_counter()
  cpu_start = time.process_time()
  try:
    compiled, text, options = _compile(request["step"], config, lowered, devices[0])
  except Exception as error:
    shortage = _memory_shortage(error)
    if shortage is None:
      raise
    seconds = time.perf_counter() - start
    return answer | {
      "fits": False,
      "compile_seconds": seconds,
      "verdict": f"does not fit: {shortage}",
    }
  answer["options"] = options
  answer["compile_seconds"] = time.perf_counter() - start
  answer["compile_cpu_seconds"] = time.process_time() - cpu_start
  answer |= _memory(answer["memory"], compiled.memory_analysis())
  if request["hlo"]:
    outputs.write_output(request["hlo"], text, "--hlo")
  program = Program(text)
  rows = collectives(program, mesh)
  answer |= _costs(answer, topology, program, rows, rules.mesh.devices)
  if topology.kind == hardware.LOCAL and request["step"] == "train":
    answer |= _measure(answer, config, parts, compiled, step.batch)
  answer["verdict"] = _verdict(answer)
  return answer


def _describe_step(kind: str, config, parts: Parts, task, step: steps.Step) -> dict[str, Any]:
  """Return the entries of a plan that are known before the step is compiled."""
  named = params.named_params(parts.model)
  itemsize = np.dtype(config.model.get("dtype", "float32")).itemsize
  train = kind == "train"
  minimum_bytes = minimum.ring_bytes(
    named, parts.rules, itemsize, train, config.accumulation_steps, parts.trained
  )
  return {
    "model": f"{config.model.name} {config.model.get('variant', '')}".strip(),
    "batch_size": config.batch_size,
    "accumulation_steps": config.accumulation_steps,
    "remat": slots.to_plain(config.model.get("remat")),
    "parameters": sum(math.prod(p.shape) for p in named.values()),
    "features": {name: list(feature.shape) for name, feature in task.features.items()},
    "rows": _describe_rows(parts.rules, config.batch_size),
    "model_flops": step.model_flops,
    "tokens": step.tokens,
    "unit": "images" if "image" in step.batch else "tokens",
    "memory": {
      "params": steps.shard_bytes(parts.state.params),
      "optimizer": steps.shard_bytes(parts.state.opt_state) if train else 0.0,
      "batch": steps.shard_bytes(step.batch),
    },
    "minimum_ring_gigabytes": sum(minimum_bytes.values()) / _GIGA,
    "minimum": minimum_bytes,
    "weight_bytes": minimum.weight_bytes(named, parts.rules, itemsize),
  }


def _device_memory(topology: hardware.Topology, device: jax.Device) -> float | None:
  """Return the bytes of a device's memory; None for devices that share their host's."""
  if topology.chip:
    return topology.chip.memory
  statistics = device.memory_stats() or {}
  return statistics.get("bytes_limit")


def _measure(
  answer: dict[str, Any], config, parts: Parts, step: jax.stages.Compiled, batch
) -> dict[str, Any]:
  """Return the measured seconds of a step on the devices of this machine, and their MFU."""
  seconds = timing.time_step(config, parts, step, batch)
  peak = config.peak_flops
  if not peak:
    peak, _ = device_peak.peak_flops(jax.devices()[0])
  mfu = answer["model_flops"] / (seconds * peak * answer["devices"]) if peak else None
  return {"seconds": {"step": seconds}, "mfu": mfu}


def _compile(
  step: str, config, lowered: jax.stages.Lowered, device
) -> tuple[jax.stages.Compiled, str, dict[str, str]]:
  """Return (the compiled program, its text, the options that training would compile it with)."""
  if device.platform != "tpu":
    options = {}
    if step == "train":
      options = compilation.gpu_options(config, device)
      compiled, _ = compilation.compile_lowered_step(lowered, device, **options)
    else:
      compiled = lowered.compile()
    return compiled, compiled.as_text(), options
  # Let libtpu write the text: jaxlib, which would read the program back, may be older and refuse
  # instructions.
  with tempfile.TemporaryDirectory() as folder:
    dump_options = {"xla_dump_to": folder, "xla_dump_hlo_as_text": True}
    if step == "train":
      compiled, options = compilation.compile_lowered_step(lowered, device, **dump_options)
    else:
      compiled = lowered.compile(dump_options)
      options = {}
    dumps = list(pathlib.Path(folder).glob("*.after_codegen.txt"))
    if not dumps:
      return compiled, compiled.as_text(), options
    largest_dump = max(dumps, key=lambda file: file.stat().st_size)
    return compiled, largest_dump.read_text(), options


def _describe_rows(rules, batch_size: int) -> dict[str, int]:
  """Describe how the rows of a global batch are spread over hosts."""
  rows_by_host = list(rows_by_process(rules.batch(), batch_size).values())
  lengths = [len(rows) for rows in rows_by_host]
  num_contiguous = 0
  for rows in rows_by_host:
    is_contiguous = rows[-1] - rows[0] == len(rows) - 1
    num_contiguous += int(is_contiguous)
  return {
    "hosts": len(rows_by_host),
    "fewest": min(lengths),
    "most": max(lengths),
    "read": len(np.unique(np.concatenate(rows_by_host))),
    "ranges": num_contiguous,
  }


def _memory_shortage(error: Exception) -> str | None:
  """Return the compiler's message if a program needs too much memory, else None."""
  text = one_line(error)
  if "RESOURCE_EXHAUSTED" not in text and "Ran out of memory" not in text:
    return None
  for pattern in (r"Used (\S+) of (\S+) hbm", r"\((\S+)\) exceeds available HBM \((\S+)\)"):
    sizes = re.search(pattern, text)
    if sizes:
      return f"the compiler needs {sizes[1]} of {sizes[2]} of HBM"
  return text[:200]


def _memory(kinds: dict[str, float | None], analysis) -> dict[str, Any]:
  """Return the bytes by kind, and whether their total fits.

  Args:
    kinds: bytes that are known without the compiler.
    analysis: the compiler's `memory_analysis()`.
  """
  kinds |= {
    "arguments": analysis.argument_size_in_bytes,
    "outputs": analysis.output_size_in_bytes - analysis.alias_size_in_bytes,
    "temporaries": analysis.temp_size_in_bytes,
    "code": analysis.generated_code_size_in_bytes,
    "host": analysis.host_temp_size_in_bytes + analysis.host_argument_size_in_bytes,
  }
  total = sum(kinds[kind] for kind in ("arguments", "outputs", "temporaries", "code"))
  kinds["total"] = total
  return {
    "memory": kinds,
    "fits": kinds["hbm"] is None or total <= kinds["hbm"],
    "argument_gigabytes": kinds["arguments"] / _GIGA,
    "temporary_gigabytes": kinds["temporaries"] / _GIGA,
    "total_gigabytes": total / _GIGA,
  }


def _costs(
  answer: dict[str, Any],
  topology: hardware.Topology,
  program: Program,
  rows: list[Collective],
  mesh_devices,
) -> dict[str, Any]:
  """Return FLOPs, bytes sent, and an estimate of their time."""
  product_flops = products.flops(program)
  kernel_flops, unknown_kernels = products.kernels(program)
  costs = {
    "hlo_flops": product_flops + kernel_flops,
    "kernel_flops": kernel_flops,
    "kernels_not_counted": unknown_kernels,
    "collectives": [row.row() for row in rows],
    "ring_gigabytes": sum(row.ring_bytes for row in rows) / _GIGA,
    "loops_not_counted": program.unknown,
    "loops_skipped": program.skipped,
    "counts": counts.counts(program, rows),
  }
  if topology.chip is None:
    return costs
  chip = topology.chip
  devices = mesh_devices.reshape(-1)
  peak, _ = device_peak.peak_flops(devices[0])
  # 8-bit products run at twice the rate, so half of their FLOPs are saved.
  saved_flops = product_flops - products.flops(program, chip.fast)
  device_flops = max(product_flops + kernel_flops, answer["model_flops"] / len(devices))
  seconds = {
    "products": (device_flops - saved_flops) / peak,
    "roofline": roofline.seconds(program, peak, chip.bandwidth, chip.fast),
    "compiler": products.cycles(program) / chip.clock,
    "kernels": kernel_flops / (peak * chip.kernels),
    **_collective_seconds(rows, devices, topology),
  }
  compute_seconds = max(seconds["products"], seconds["compiler"] + seconds["kernels"])
  step_seconds = max(compute_seconds, seconds["asynchronous"]) + seconds["synchronous"]
  seconds["step"] = step_seconds
  costs["seconds"] = seconds
  costs["dearest"] = counts.slowest_operations(program, chip.clock)
  costs["mfu"] = None
  if step_seconds:
    costs["mfu"] = answer["model_flops"] / (step_seconds * peak * len(devices))
  if answer["step"] == "decode":
    new_tokens = answer["tokens"] / answer["batch_size"]
    costs["weights_seconds"] = new_tokens * answer["weight_bytes"] / chip.bandwidth
  return costs


def _collective_seconds(
  rows: list[Collective], devices, topology: hardware.Topology
) -> dict[str, float]:
  """Return the seconds of collectives that overlap with other work, and of those that do not."""
  seconds = {"asynchronous": 0.0, "synchronous": 0.0}
  for row in rows:
    group = [devices[index] for index in row.group]
    kind = "asynchronous" if row.asynchronous else "synchronous"
    seconds[kind] += hardware.seconds(row.ring_bytes, group, topology, row.ring)
  return seconds


def _verdict(answer: dict[str, Any]) -> str:
  """Return a sentence that says whether the step fits the memory, with advice."""
  hbm = answer["memory"]["hbm"]
  total = f"{answer['total_gigabytes']:.2f}"
  if hbm is None:
    return f"compiles; {total} GB a device"
  usage = f"{total} of {hbm / _GIGA:.2f} GB a device"
  if not answer["fits"]:
    return f"does not fit: {usage}"
  many_gigabytes = _MANY_GATHERS * answer["minimum_ring_gigabytes"]
  gathers_often = answer["ring_gigabytes"] > many_gigabytes > 0
  if answer["step"] == "decode" and gathers_often:
    return f"fits: {usage}{_GATHERS_HINT}"
  return f"fits: {usage}"


def main(request_file: str, answer_file: str) -> None:
  """Write the answer to a request file: the plan, or the candidates of a search."""
  jax.config.update("jax_threefry_partitionable", True)
  try:
    request = json.loads(pathlib.Path(request_file).read_text())
    trust.begin_command((), request["trust"])
    if request["topology"] == hardware.LOCAL:
      process.prepare()  # as training does
    if request["search"]:
      answer = {"candidates": search.candidates(request)}
    else:
      answer = plan(request)
  except UserError as error:
    answer = {"error": one_line(error)}
  pathlib.Path(answer_file).write_text(json.dumps(answer))


if __name__ == "__main__":
  main(*sys.argv[1:])

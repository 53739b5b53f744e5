"""Compile a step for a topology and measure the program, in the child process of a plan.

  python -m t5x_like.planning.compiling REQUEST.json ANSWER.json

runs in an environment made by `hardware.environment`; see `planning/child.py`.
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
from t5x_like.nn.cores import cores_used, in_words
from t5x_like.parallel.rules import rows_by_process
from t5x_like.planning import counts, hardware, minimum, products, roofline, search, steps
from t5x_like.planning.collectives import Collective, collectives
from t5x_like.planning.hlo import Program
from t5x_like.training import compilation
from t5x_like.training.build import build

_GIGA = 1e9
_OFTEN = 4
_GATHERS = "; parameters are gathered for every token: mesh.tensor in place of mesh.fsdp leaves them where they are"


def plan(request: dict[str, Any]) -> dict[str, Any]:
  """Make the plan for `request` (see `child.Request`), as JSON-serialisable values; bytes are per device."""
  topology = hardware.parse(request["topology"], request["slices"])
  devices = hardware.devices(topology)
  config = recipes.load(request["config"], request["overrides"])
  config, task = steps.resolve(config, topology.platform, request["phase"])
  if request["step"] != "train":
    config.accumulation_steps = 1
  parts = build(config, devices)
  rules, mesh = parts.rules, dict(parts.rules.mesh.shape)
  step = steps.make(request["step"], config, parts, task)
  named = params.named_params(parts.model)
  itemsize = np.dtype(config.model.get("dtype", "float32")).itemsize
  train = request["step"] == "train"
  least = minimum.ring_bytes(named, rules, itemsize, train, config.accumulation_steps, parts.trained)
  told = {
    "topology": topology.name,
    "step": request["step"],
    "config": request["config"],
    "overrides": request["overrides"],
    "model": f"{config.model.name} {config.model.get('variant', '')}".strip(),
    "mesh": {axis: size for axis, size in mesh.items() if size > 1},
    "devices": len(devices),
    "device_kind": devices[0].device_kind,
    "batch_size": config.batch_size,
    "accumulation_steps": config.accumulation_steps,
    "remat": slots.plain(config.model.get("remat")),
    "parameters": sum(math.prod(p.shape) for p in named.values()),
    "features": {name: list(feature.shape) for name, feature in task.features.items()},
    "rows": _rows(rules, config.batch_size),
    "model_flops": step.model_flops,
    "tokens": step.tokens,
    "unit": "images" if "image" in step.batch else "tokens",
    "memory": {
      "hbm": topology.chip.memory if topology.chip else None,
      "params": steps.shard_bytes(parts.state.params),
      "optimizer": steps.shard_bytes(parts.state.opt_state) if train else 0.0,
      "batch": steps.shard_bytes(step.batch),
    },
    "minimum_ring_gigabytes": sum(least.values()) / _GIGA,
    "minimum": least,
    "weight_bytes": minimum.weight_bytes(named, rules, itemsize),
  }
  start = time.perf_counter()
  with cores_used() as used:
    lowered = step.lower()
  told["cores"] = in_words(used)
  told["lower_seconds"] = time.perf_counter() - start
  told["dropped"] = sorted(rules.dropped)
  start, busy = time.perf_counter(), time.process_time()
  try:
    compiled, text, told["options"] = _compile(request["step"], lowered, devices[0])
  except Exception as error:
    found = _out_of_memory(error)
    if found is None:
      raise
    seconds = time.perf_counter() - start
    return told | {"fits": False, "compile_seconds": seconds, "verdict": f"does not fit: {found}"}
  told |= {"compile_seconds": time.perf_counter() - start, "compile_cpu_seconds": time.process_time() - busy}
  told |= _memory(told["memory"], compiled.memory_analysis())
  if request["hlo"]:
    outputs.write(request["hlo"], text, "--hlo")
  program = Program(text)
  rows = collectives(program, mesh)
  told |= _costs(told, topology, program, rows, parts.rules.mesh.devices)
  told["verdict"] = _verdict(told)
  return told


def _compile(step: str, lowered: jax.stages.Lowered, device) -> tuple[jax.stages.Compiled, str, dict[str, str]]:
  """Return (the compiled program, its text, the options that training would compile it with)."""
  if device.platform == "cpu":
    compiled = lowered.compile()
    return compiled, compiled.as_text(), {}
  # libtpu writes the text itself: jaxlib, which would read the program back, may be older and refuse instructions.
  with tempfile.TemporaryDirectory() as folder:
    dump = {"xla_dump_to": folder, "xla_dump_hlo_as_text": True}
    if step == "train":
      compiled, options = compilation.compiled_step(lowered, device, **dump)
    else:
      compiled, options = lowered.compile(dump), {}
    written = list(pathlib.Path(folder).glob("*.after_codegen.txt"))
    text = max(written, key=lambda file: file.stat().st_size).read_text() if written else compiled.as_text()
    return compiled, text, options


def _rows(rules, batch_size: int) -> dict[str, int]:
  """Describe how the rows of a global batch are spread over hosts."""
  held = rows_by_process(rules.batch(), batch_size)
  counts = [len(rows) for rows in held.values()]
  return {
    "hosts": len(held),
    "fewest": min(counts),
    "most": max(counts),
    "read": len(np.unique(np.concatenate(list(held.values())))),
    "ranges": sum(bool(rows[-1] - rows[0] == len(rows) - 1) for rows in held.values()),
  }


def _out_of_memory(error: Exception) -> str | None:
  """Return the compiler's message about a program that needs more memory than there is; None for other errors."""
  text = one_line(error)
  if "RESOURCE_EXHAUSTED" not in text and "Ran out of memory" not in text:
    return None
  used = re.search(r"Used (\S+) of (\S+) hbm", text) or re.search(r"\((\S+)\) exceeds available HBM \((\S+)\)", text)
  return f"the compiler needs {used[1]} of {used[2]} of HBM" if used else text[:200]


def _memory(kinds: dict[str, float | None], found) -> dict[str, Any]:
  """Return the bytes by kind, and whether their total fits."""
  kinds |= {
    "arguments": found.argument_size_in_bytes,
    "outputs": found.output_size_in_bytes - found.alias_size_in_bytes,
    "temporaries": found.temp_size_in_bytes,
    "code": found.generated_code_size_in_bytes,
    "host": found.host_temp_size_in_bytes + found.host_argument_size_in_bytes,
  }
  total = kinds["total"] = sum(kinds[kind] for kind in ("arguments", "outputs", "temporaries", "code"))
  return {
    "memory": kinds,
    "fits": kinds["hbm"] is None or total <= kinds["hbm"],
    "argument_gigabytes": kinds["arguments"] / _GIGA,
    "temporary_gigabytes": kinds["temporaries"] / _GIGA,
    "total_gigabytes": total / _GIGA,
  }


def _costs(told, topology: hardware.Topology, program: Program, rows: list[Collective], mesh_devices) -> dict[str, Any]:
  """Return FLOPs, bytes sent, and an estimate of their time."""
  executed = products.flops(program)
  attention, unknown = products.kernels(program)
  costs = {
    "hlo_flops": executed + attention,
    "kernel_flops": attention,
    "kernels_not_counted": unknown,
    "collectives": [row.row() for row in rows],
    "ring_gigabytes": sum(row.ring_bytes for row in rows) / _GIGA,
    "loops_not_counted": program.unknown,
    "loops_skipped": program.skipped,
    "counts": counts.counts(program, rows),
  }
  if topology.chip is None:
    return costs
  chip, flat = topology.chip, mesh_devices.reshape(-1)
  peak, _ = compilation.peak_flops(flat[0])
  saved = executed - products.flops(program, chip.fast)  # by 8-bit products, at twice the rate
  waiting = {True: 0.0, False: 0.0}
  for row in rows:
    group = [flat[i] for i in row.group]
    waiting[row.asynchronous] += hardware.seconds(row.ring_bytes, group, topology, row.ring)
  seconds = {
    "products": (max(executed + attention, told["model_flops"] / len(flat)) - saved) / peak,
    "roofline": roofline.seconds(program, peak, chip.bandwidth, chip.fast),
    "compiler": products.cycles(program) / chip.clock,
    "kernels": attention / (peak * chip.kernels),
    "asynchronous": waiting[True],
    "synchronous": waiting[False],
  }
  computing = max(seconds["products"], seconds["compiler"] + seconds["kernels"])
  seconds["step"] = total = max(computing, waiting[True]) + waiting[False]
  costs |= {
    "seconds": seconds,
    "dearest": counts.dearest(program, chip.clock),
    "mfu": told["model_flops"] / (total * peak * len(flat)) if total else None,
  }
  if told["step"] == "decode":
    costs["weights_seconds"] = told["tokens"] / told["batch_size"] * told["weight_bytes"] / chip.bandwidth
  return costs


def _verdict(told: dict[str, Any]) -> str:
  memory = told["memory"]
  if memory["hbm"] is None:
    return f"compiles; {told['total_gigabytes']:.2f} GB a device"
  of = f"{told['total_gigabytes']:.2f} of {memory['hbm'] / _GIGA:.2f} GB a device"
  if not told["fits"]:
    return f"does not fit: {of}"
  often = told["step"] == "decode" and told["ring_gigabytes"] > _OFTEN * told["minimum_ring_gigabytes"] > 0
  return f"fits: {of}" + (_GATHERS if often else "")


def main(request: str, answer: str) -> None:
  jax.config.update("jax_threefry_partitionable", True)
  try:
    asked = json.loads(pathlib.Path(request).read_text())
    trust.begin((), asked["trust"])
    found = {"candidates": search.candidates(asked)} if asked["search"] else plan(asked)
  except UserError as error:
    found = {"error": one_line(error)}
  pathlib.Path(answer).write_text(json.dumps(found))


if __name__ == "__main__":
  main(*sys.argv[1:])

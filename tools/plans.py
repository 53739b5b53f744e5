"""Compile published models for TPU slices with the TPU compiler, and store the plans.

  # all plans, one after another: about half an hour on two cores
  python -m tools.plans
  # the plans whose name matches; the others stay as they are
  python -m tools.plans --only='llama.*8b'
  # also store programs that do more work than the stored ones
  python -m tools.plans --accept

Plans are stored in docs/plans.json; `python -m tools.write_reference` makes a page of them. A plan
whose program does more work (`planning/counts.py`) is refused with exit code 4: the stored plan
stays, and the counts that grew are printed. Exit code 5 means that a step does not fit, or that the
compiler failed or ran out of time; a failure does not replace a stored plan with figures. Needs
libtpu (the extra `plan`), but no TPU.
"""

import json
import re
import sys
from typing import Any

from t5x_like import command_line
from t5x_like.errors import UserError, handle_errors
from t5x_like.plan import EXIT_DOES_NOT_FIT
from t5x_like.planning import child, counts
from t5x_like.planning.promise import STORED_PLANS, promise_fields

_FSDP = ("mesh.fsdp=-1", "mesh.data=1")
_T5 = "configs/t5/base.py:xxl"
_LLAMA = "configs/llama/8b.py"
_PALM = "configs/palm/8b.py"
_ATTENTION = (
  'model.remat={"name": "save", "names": ["query", "key", "value", "context", "attention_out"]}'
)
_540B = (
  "model.variant=540b",
  "mesh.fsdp=768",
  "mesh.tensor=4",
  "mesh.data=1",
  # PaLM's one head of keys and values cannot be split by `tensor`.
  "rules.kv_heads=None",
  "rules.activation_kv_heads=None",
)


def _plan(
  config: str, topology: str, *overrides: str, slices: int = 1, step: str = "train"
) -> child.Request:
  return child.Request(config, topology, slices, step, overrides=overrides)


PLANS: dict[str, child.Request] = {
  "bert large, v5e 4x4": _plan("configs/bert/base.py:large", "v5e:4x4"),
  "t5 1.1 xxl, v5e 8x8": _plan(_T5, "v5e:8x8"),
  "t5 1.1 xxl, v5e 8x8, 2,048 rows": _plan(
    _T5, "v5e:8x8", "batch_size=2048", "accumulation_steps=2"
  ),
  "t5 1.1 xxl, v5p 4x4x4": _plan(
    _T5, "v5p:4x4x4", "mesh.data=4", "mesh.fsdp=16", "batch_size=1024", "model.remat=minimal"
  ),
  "t5 11b, v4 8x8x8": _plan(f"{_T5},v1_0", "v4:8x8x8", "batch_size=2048"),
  "llama 3.1 8b, v5e 16x16, 2,048": _plan(
    _LLAMA, "v5e:16x16", *_FSDP, "batch_size=512", "task.length=2048", "model.remat=minimal"
  ),
  "llama 3.1 8b, v6e 16x16, 8,192": _plan(
    _LLAMA, "v6e:16x16", *_FSDP, "batch_size=256", "task.length=8192", _ATTENTION
  ),
  "llama 3.1 8b, v6e 16x16, 32,768": _plan(
    _LLAMA, "v6e:16x16", *_FSDP, "batch_size=256", "task.length=32768"
  ),
  "llama 3.1 8b, v6e 8x8, 32,768 over sequence": _plan(
    _LLAMA, "v6e:8x8", *_FSDP, "mesh.sequence=4", "batch_size=16", "task.length=32768"
  ),
  "llama 3.1 70b, v5p 8x8x8": _plan(
    _LLAMA,
    "v5p:8x8x8",
    "mesh.data=8",
    "mesh.fsdp=64",
    "model.variant=llama3.1-70b",
    "batch_size=512",
    "task.length=8192",
    _ATTENTION,
  ),
  "llama 3.1 405b, v5p 16x16x16": _plan(
    _LLAMA,
    "v5p:16x16x16",
    "mesh.data=2",
    "mesh.fsdp=256",
    "mesh.tensor=8",
    "model.variant=llama3.1-405b",
    "batch_size=512",
    _ATTENTION,
  ),
  "palm 540b, v4 12x16x16": _plan(_PALM, "v4:12x16x16", *_540B, "batch_size=1536"),
  "palm 540b, two slices of v4 12x16x16": _plan(
    _PALM, "v4:12x16x16", *_540B, "batch_size=3072", "mesh.replica=2", slices=2
  ),
  "switch base 128, v5e 8x8": _plan("configs/switch/base.py:128", "v5e:8x8"),
  "mixtral 8x7b, v5p 8x8x8": _plan("configs/mixtral/8x7b.py", "v5p:8x8x8"),
  "mixtral 8x7b without drops, v5p 8x8x8": _plan(
    "configs/mixtral/8x7b.py", "v5p:8x8x8", "model.design.experts.dispatch=dropless"
  ),
  "llama 3.1 8b, v5e 4x4, evaluation": _plan(
    _LLAMA, "v5e:4x4", *_FSDP, "batch_size=16", step="eval"
  ),
  "llama 3.1 8b, v5e 4x4, decoding": _plan(
    _LLAMA, "v5e:4x4", *_FSDP, "batch_size=64", "task.length=2048", step="decode"
  ),
  "llama 3.1 8b, v5e 4x4, decoding over tensor": _plan(
    _LLAMA,
    "v5e:4x4",
    "mesh.data=2",
    "mesh.fsdp=1",
    "mesh.tensor=8",
    "batch_size=64",
    "task.length=2048",
    step="decode",
  ),
  "vit h 14, v5e 8x8": _plan("configs/vit/base.py:huge", "v5e:8x8"),
  "swin l, v5e 8x8": _plan("configs/swin/base.py:l", "v5e:8x8"),
  "deit s 16, v5e 2x4": _plan("configs/deit/base.py:small,alone", "v5e:2x4"),
  "vit s 16, v5e 2x4": _plan("configs/vit/small.py", "v5e:2x4"),
  "swin t, v5e 2x4": _plan("configs/swin/base.py:t", "v5e:2x4"),
  "mae vit b, v5e 4x8": _plan("configs/vit/mae.py", "v5e:4x8"),
  "gpt-2 124m, v5p 2x2x1": _plan("configs/gpt/gpt2_124m.py", "v5p:2x2x1"),
  "t5 1.1 large, v5p 2x2x1": _plan("configs/t5/base.py:large", "v5p:2x2x1", "batch_size=256"),
  "gemma 3 27b, v5p 4x8x8": _plan(
    "configs/gemma3/12b.py", "v5p:4x8x8", "mesh.data=4", "mesh.fsdp=64", "model.variant=27b"
  ),
  "qwen 3 235b a22b, v5p 8x8x8": _plan(
    "configs/qwen/qwen3_8b.py",
    "v5p:8x8x8",
    "model.variant=qwen3-235b-a22b",
    "mesh.fsdp=64",
    "mesh.expert=8",
  ),
  "deepseek v3 671b, v5p 8x16x16": _plan(
    "configs/deepseek/v3.py", "v5p:8x16x16", "batch_size=12288"
  ),
}
# `dearest` holds the most expensive operations.
_STORED_FIELDS = (
  *promise_fields(),
  *"verdict remat compile_cpu_seconds options counts dearest".split(),
)
EXIT_GREW = 4
_COLUMNS = (
  "plan",
  "mesh",
  "rows",
  "remat",
  "GB of HBM",
  "temporaries",
  "sent GB (least)",
  "seconds, MFU",
  "options",
  "compiling",
)
_PAGE = """# Plans of published models

<!-- Written by `python -m tools.write_reference` from docs/plans.json; do not edit. -->

Look here for a mesh, a batch size and a remat policy that fit a slice. The TPU compiler has
compiled each of these steps for its slice, on a machine without a TPU. [Plan a
run](../how-to/plan-a-run.md) explains every figure, and [size and cost](sizing.md) has the hours.
Nothing on this page was measured on hardware.

All figures are for one device and one step:

- **GB** are 10^9 bytes.
- **Sent** counts the bytes that a device sends around rings. The number in brackets is the least
  that parameters and gradients need.
- **Seconds** are an estimate from the compiler's cycles, from attention kernels at part of the
  chip's peak rate, and from the links of the slice. It leaves out gaps between operations.
- **Options** says whether the chip's compiler options were passed. Evaluation and decoding have
  none.
- **Compiling** is CPU time, on a machine that also ran other programs.

Below the table are the command of each plan, and the most expensive operations of each step.

"""


def page(plans: dict[str, dict[str, Any]]) -> str:
  """Return the page of the stored plans in Markdown."""
  rows = [f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
  rows += [_row(name, plans[name]) for name in PLANS if name in plans]
  commands = [_command(request) for request in PLANS.values()]
  sections = [
    _operations_section(name, plans[name]) for name in PLANS if plans.get(name, {}).get("dearest")
  ]
  table = "\n".join(rows)
  return f"{_PAGE}{table}\n\n```\n" + "\n".join(commands) + "\n```\n" + "".join(sections)


def _command(request: child.Request) -> str:
  flags = [f"--config={request.config}", f"--topology={request.topology}"]
  if request.slices > 1:
    flags.append(f"--slices={request.slices}")
  if request.step != "train":
    flags.append(f"--step={request.step}")
  flags += [f"--config.{override}" for override in request.overrides]
  return "python -m t5x_like.plan " + " ".join(flags)


def _operations_section(name: str, plan: dict[str, Any]) -> str:
  """Return a section with the most expensive operations of a plan, and the parts of its step."""
  seconds = plan["seconds"]
  parts = (
    f"cycles {seconds['compiler']:.3f}, kernels {seconds['kernels']:.3f}, waiting "
    f"{seconds['synchronous']:.3f}"
  )
  lines = [
    f"| {row['seconds']:.4f} | {row['times']:,} | `{row['name']}` | `{row['type']}` |"
    for row in plan["dearest"]
  ]
  head = f"\n## Most expensive operations: {name}\n\nSeconds of the step: {parts}.\n\n"
  return (
    head
    + "\n".join(["| seconds | executions | traced as | first result |", "|---" * 4 + "|", *lines])
    + "\n"
  )


def _remat(spec: str | dict[str, Any]) -> str:
  """Return a policy of remat in a few words: its name, or its name and what it saves."""
  return spec if isinstance(spec, str) else " ".join([spec["name"], *spec.get("names", ())])


def _row(name: str, plan: dict[str, Any]) -> str:
  if "total_gigabytes" not in plan:
    return f"| {name} | {plan['verdict']} |" + " |" * 8
  mesh = " ".join(f"{axis} {size}" for axis, size in plan["mesh"].items())
  hbm = plan["memory"]["hbm"] / 1e9
  times = plan.get("seconds")
  sent = plan.get("ring_gigabytes")
  cells = [
    name if plan["fits"] else f"{name}: **does not fit**",
    mesh,
    f"{plan['batch_size']:,}",
    _remat(plan.get("remat") or ""),
    f"{plan['total_gigabytes']:.1f} of {hbm:.1f}",
    f"{plan['temporary_gigabytes']:.2f}",
    f"{'not known' if sent is None else f'{sent:.1f}'} ({plan['minimum_ring_gigabytes']:.1f})",
    f"{times['step']:.2f}, {100 * plan['mfu']:.0f} %" if times else "",
    "yes" if plan.get("options") else "",
    f"{plan['compile_cpu_seconds']:.0f} s" if "compile_cpu_seconds" in plan else "",
  ]
  return "| " + " | ".join(cells) + " |"


@handle_errors
def main(argv: list[str] | None = None) -> int:
  parser = command_line.Parser(__doc__, opens_runs=False)
  parser.add_argument(
    "--only", default="", metavar="REGEX", help="plans whose name matches (default: all)"
  )
  parser.add_argument(
    "--accept", action="store_true", help="also store programs that do more work or do not compile"
  )
  parser.add_argument(
    "--timeout_seconds",
    type=float,
    default=1800,
    metavar="S",
    help="limit for each plan (default: 1800)",
  )
  args = parser.parse_args(sys.argv[1:] if argv is None else argv)
  try:
    chosen = [name for name in PLANS if re.search(args.only, name)]
  except re.error as error:
    raise UserError(f"--only={args.only}: not a regular expression: {error}") from None
  if not chosen:
    raise UserError(f"--only={args.only}: matches none of {', '.join(PLANS)}")
  worst = 0
  for name in chosen:
    plan = child.plan(PLANS[name], args.timeout_seconds)
    print(f"{name}: {plan['verdict']}", flush=True)
    # Read again for each plan: another process may write it too.
    plans = json.loads(STORED_PLANS.read_text()) if STORED_PLANS.exists() else {}
    grew = counts.describe_growth(plans.get(name, {}).get("counts", {}), plan.get("counts", {}))
    if grew and not args.accept:
      print(f"  refused, its program does more work: {'; '.join(grew)}", flush=True)
      worst = EXIT_GREW
      continue
    # A plan without figures is one that the compiler has not finished.
    if name in plans and "total_gigabytes" not in plan and not args.accept:
      print("  not stored: the old plan has figures", flush=True)
      worst = EXIT_DOES_NOT_FIT
      continue
    plans[name] = {
      key: value
      for key, value in plan.items()
      if key in _STORED_FIELDS or key.endswith("gigabytes")
    }
    if not plan["fits"]:
      worst = EXIT_DOES_NOT_FIT
    STORED_PLANS.write_text(
      json.dumps({name: plans[name] for name in PLANS if name in plans}, indent=1) + "\n"
    )
  return worst


if __name__ == "__main__":
  sys.exit(main())

"""Writes docs/plans.md: plans of published models on TPU slices, compiled by the TPU compiler, and what they cost.

  python -m tools.plans                      # all of them, one after another: about half an hour on two cores
  python -m tools.plans --only='llama.*8b'   # those whose name matches; the others keep their lines
  python -m tools.plans --accept             # although a program does more work than the stored one

A plan whose program grows (`planning/counts.py`) is refused with exit code 4: its old line stays, and the counts that
grew are printed. So does the line of a plan whose compiler fails or is not done in time, with exit code 5.
Needs libtpu (the extra `plan`), but no TPU. The measured plans are kept beside the page, in docs/plans.json.
"""

import json
import pathlib
import re
import sys
from typing import Any

from t5x_like import command_line
from t5x_like.errors import UserError, door
from t5x_like.plan import EXIT_DOES_NOT_FIT
from t5x_like.planning import child, counts

_FSDP = ("mesh.fsdp=-1", "mesh.data=1")
_T5, _LLAMA, _PALM = "configs/t5/base.py:xxl", "configs/llama/8b.py", "configs/palm/8b.py"
_ATTENTION = 'model.remat={"name": "save", "names": ["query", "key", "value", "context", "attention_out"]}'
# One head of keys and values cannot be split.
_540B = (
  "model.variant=540b",
  "mesh.fsdp=768",
  "mesh.tensor=4",
  "mesh.data=1",
  "rules.kv_heads=None",
  "rules.activation_kv_heads=None",
)


def _plan(config: str, topology: str, *overrides: str, slices: int = 1, step: str = "train") -> child.Request:
  return child.Request(config, topology, slices, step, overrides=overrides)


PLANS: dict[str, child.Request] = {
  "bert large, v5e 4x4": _plan("configs/bert/base.py:large", "v5e:4x4"),
  "t5 1.1 xxl, v5e 8x8": _plan(_T5, "v5e:8x8"),
  "t5 1.1 xxl, v5e 8x8, 2,048 rows": _plan(_T5, "v5e:8x8", "batch_size=2048", "accumulation_steps=2"),
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
  "llama 3.1 8b, v6e 16x16, 32,768": _plan(_LLAMA, "v6e:16x16", *_FSDP, "batch_size=256", "task.length=32768"),
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
  "llama 3.1 8b, v5e 4x4, evaluation": _plan(_LLAMA, "v5e:4x4", *_FSDP, "batch_size=16", step="eval"),
  "llama 3.1 8b, v5e 4x4, decoding": _plan(
    _LLAMA, "v5e:4x4", *_FSDP, "batch_size=64", "task.length=2048", step="decode"
  ),
  "llama 3.1 8b, v5e 4x4, decoding over tensor": _plan(
    _LLAMA, "v5e:4x4", "mesh.data=2", "mesh.fsdp=1", "mesh.tensor=8", "batch_size=64", "task.length=2048", step="decode"
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
    "configs/qwen/qwen3_8b.py", "v5p:8x8x8", "model.variant=qwen3-235b-a22b", "mesh.fsdp=64", "mesh.expert=8"
  ),
  "deepseek v3 671b, v5p 8x16x16": _plan("configs/deepseek/v3.py", "v5p:8x16x16", "batch_size=12288"),
}
_KEPT = """fits verdict mesh batch_size remat accumulation_steps memory seconds mfu compile_seconds compile_cpu_seconds
  options counts dearest""".split()
EXIT_GREW = 4
_PAGE = pathlib.Path("docs/plans.md")
_INTRODUCTION = """# Plans

The TPU compiler has compiled each of these steps for its slice, on a machine without a TPU. `python -m tools.plans`
writes this page; [plan a run](how-to/plan-a-run.md) explains the figures. For hours and cost see [size and
cost](reference/sizing.md).

All figures are for one device and one step:

- **GB** are 10^9 bytes.
- **Sent** counts the bytes that a device sends around rings. In brackets stands the least that parameters and gradients
  need, with the token table gathered like any other parameter. Programs that exchange token vectors send less.
- **Seconds** are an estimate: the compiler's cycles, attention kernels at a measured share of the peak rate, and the
  links that the slice has. Gaps between operations are left out.
- **Compiling** is CPU time on busy cores. Idle cores need up to a third less.

All lines were compiled by libtpu 0.0.52. T5 1.1 XXL on v5e and DeiT-S were compiled before the kernel `fused` and the
hash that dropout draws from, Swin-T and MAE before the kernel `short`. Rotary positions were turned by a product
(below) for Mixtral and, among Llama's training steps, for 8B with rows of 2,048 and 8,192, 70B and 405B. The option for
gathers over a plane (below) was passed for Mixtral, T5 1.1 XXL on v5p, Llama 70B and 405B, and 8B on v6e with rows of
8,192. **Options** tells whether options of the chip were passed: there are none for evaluation and decoding. Below the
table stand the dearest operations of each.

Before and after, by today's estimate:

- **BERT-large**: 0.67 s (12 %) at first, 0.42 s (20 %) without arrays of pairs in dropout and with the option for the
  compiler's memory, 0.35 s (24 %) with minimal remat, dropout by keys and attention in JAX's kernels, 0.24 s (35 %)
  with the paper's dropout in the kernel `fused`, 0.20 s (42 %) with dropout by a hash and with parameters and optimizer
  split over the chips ([cause by cause](explanation/cycles.md)).
- **ViT-H**: 1.33 s (24 %) with full remat, 0.70 s (47 %) with `fused`, the hash, and queries, keys, values, results of
  attention and the MLP's hidden activations kept.
- **Swin-L**: 0.66 s (10 %) with full remat and the dense core, 0.46 s (15 %) with the kernel `short`, **0.43 s (16 %)**
  with the named activations kept, 10.8 GB ([why not more](explanation/cycles.md#others-whose-mark-is-not-reached)).
- **Llama 8B on v5e**, rows of 2,048: 1.19 s (41 %) for 256 rows without options, 1.06 s (46 %) with them; 1.75 s
  (55 %) for 512 rows and minimal remat (`--config.model.remat=minimal`), 0.27 s of it in gathers and reduce-scatters
  that do not grow with the rows; 1.71 s (57 %) without a barrier behind the gradients of joined projections, and 1.67 s
  (58 %) with rotary positions as below.
- **Llama 8B on v6e**, 256 rows of 8,192: 1.44 s (32 %) with full remat, 1.21 s (38 %) with the option for gathers over
  a plane and with rotary positions as below, **1.16 s (40 %)** if queries, keys, values and results of attention are
  kept. Keeping the MLP's activations costs more in reading them (0.12 s) than it saves. Kernels take 0.29 s.
- **Larger models**, in brackets by the earlier estimate, which left out kernels and waiting: Llama 70B 59 % (52), 405B
  55 % (46), Mixtral 37 % (35), T5 1.1 XXL on v5p 46 % (33). Others were overestimated: T5 1.1 XXL on v5e 17 % (24),
  PaLM 540B 39 % (50), Llama 8B on v6e with rows of 32,768 28 % (51).
- **Llama 70B**: 13.63 s (59 %, 19.3 GB) with full remat; 12.77 s (63 %, 65.4 GB) if queries, keys, values and results
  of attention are kept; **11.82 s (68 %, 80.5 GB)** with parameters over a plane of 64 chips (below).
- **Llama 405B**: 10.20 s (55 %, 38.5 GB) with full remat and parameters over 512 chips in three dimensions, **8.52 s
  (66 %, 87.3 GB)** over planes of 256 and with attention's activations kept, so that its sums along `tensor` are not
  made again.
- **Mixtral**: 3.81 s (37 %) with full remat, 3.59 s (40 %) with the named activations, 3.33 s (43 %) since the experts'
  outputs are among them, **2.77 s (51 %)** with slots for 1.25 times an expert's share in place of 1.5 and with the
  option for gathers over a plane.
- **Switch**: 0.21 s (2 %) for 128 rows, 0.43 s (16 %) for the 2,048 of its recipe, 16.3 GB.
- **Rotary positions**: a TPU wrote halves of heads with the padding of a whole. They are turned by a product that moves
  lanes now: Llama 8B on v5e 1.67 s in place of 1.71.
- **Experts without drops** over eight chips (`dispatch=dropless`) had buffers for the worst case, in which all rows go
  to one chip. Rows travel in rounds of 1.25 times balanced loads since: Mixtral takes 4.46 s (32 %, named activations
  kept) in place of 31.68 (full remat, as more did not fit), Qwen 3 235B 13.3 s (20 %) in place of 70.6; [where the rest
  goes](explanation/cycles.md#experts-without-drops). Plans count one round, which balanced loads need, and grouped
  products at the rate of attention kernels.
- **DeepSeek-V3** drops no token since: 65.2 s (21 %) in place of 63.9 s (22 %) with slots for 1.5 times an expert's
  share.
- **Gemma 3 27B** with parameters over planes of 64 chips sends 166 GB, over all 256 chips 1,049: 9.70 s (61 %) in place
  of 10.29 (58 %).
- **v4** gathers beside the products only by an option, which is passed since: PaLM 540B 30.84 s (39 %) before, 24.72 s
  (49 %) now; T5 11B 2.01 s (16 %) and 1.63 s (20 %), the latter with `fused` too.
- **T5 1.1 XXL on v5p 4x4x4**: 1.59 s (46 %) with full remat, dense attention and parameters over all 64 chips, **1.02 s
  (71 %, 33.6 GB)** with `fused`, the named activations kept, and parameters over planes of 16.
- **T5 1.1 XXL on v5e 8x8** with the 2,048 rows that the paper gives its largest models (section 3.7): 6.65 s (51 %) in
  two parts (`--config.batch_size=2048 --config.accumulation_steps=2`, 6.1 GB, compiled in 800 s of CPU time), 8.30 s
  (41 %) in four, where gathers and sums take turns with fewer rows. The line below has 128 rows.

Two kinds of traffic explain most of the difference from the least:

- **Sums of activations along `tensor`**: 237 of the 541 GB of Llama 405B, and most of the 62 GB of decoding over
  `tensor`.
- **All-reduces on three-dimensional tori** (PaLM, T5 11B). Where parameters are gathered from all three
  dimensions at once, the compiler fills an array with zeros, writes its part and uses an all-reduce, which sends twice
  the bytes. Over two dimensions it gathers. Llama 70B on v5p 8x8x8 with parameters over 512 chips sends 694 GB (the
  least is 422) and fills arrays for 0.54 of 12.77 s. Over a plane of 64 chips, with eight copies (`mesh.data=8`,
  `mesh.fsdp=64`), it sends 415 (421). For such gathers the sparse cores have an option of their own, without which they
  wait 1.52 s. Split parameters over a plane where a chip's memory holds so large a share of them (13 GB here).

Decode over `tensor`: parameters stay in place. Over `fsdp`, they are gathered again for every token.

"""


def page(plans: dict[str, dict[str, Any]]) -> str:
  """Return the page in Markdown."""
  rows = [
    "| plan | mesh | rows | remat | GB of HBM | temporaries | sent GB (least) | seconds, MFU | options | compiling |",
    "|---" * 10 + "|",
  ]
  flags = []
  for name, asked in PLANS.items():
    words = [f"--config={asked.config}", f"--topology={asked.topology}"]
    words += [f"--slices={asked.slices}"] * (asked.slices > 1) + [f"--step={asked.step}"] * (asked.step != "train")
    flags.append("python -m t5x_like.plan " + " ".join([*words, *(f"--config.{one}" for one in asked.overrides)]))
    if name in plans:
      rows.append(_row(name, plans[name]))
  dear = "".join(_dearest(name, plans[name]) for name in PLANS if plans.get(name, {}).get("dearest"))
  return _INTRODUCTION + "\n".join(rows) + "\n\n```\n" + "\n".join(flags) + f"\n```\n{dear}"


def _dearest(name: str, plan: dict[str, Any]) -> str:
  """Return a section with the dearest operations of a plan, and the parts of its step."""
  seconds = plan["seconds"]
  parts = f"cycles {seconds['compiler']:.3f}, kernels {seconds['kernels']:.3f}, waiting {seconds['synchronous']:.3f}"
  lines = [
    f"| {one['seconds']:.4f} | {one['times']:,} | `{one['name']}` | `{one['type']}` |" for one in plan["dearest"]
  ]
  head = f"\n## The dearest operations of {name}\n\nSeconds of the step: {parts}.\n\n"
  return head + "\n".join(["| seconds | executions | traced as | first result |", "|---" * 4 + "|", *lines]) + "\n"


def _remat(spec: str | dict[str, Any]) -> str:
  """Return a policy of remat in a few words: its name, or its name and what it saves."""
  return spec if isinstance(spec, str) else " ".join([spec["name"], *spec.get("names", ())])


def _row(name: str, plan: dict[str, Any]) -> str:
  if "total_gigabytes" not in plan:
    return f"| {name} | {plan['verdict']} |" + " |" * 8
  mesh = " ".join(f"{axis} {size}" for axis, size in plan["mesh"].items())
  hbm, times, sent = plan["memory"]["hbm"] / 1e9, plan.get("seconds"), plan.get("ring_gigabytes")
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


@door
def main(argv: list[str] | None = None) -> int:
  parser = command_line.Parser(__doc__, opens_runs=False)
  parser.add_argument("--only", default="", metavar="REGEX", help="plans whose name matches (default: all)")
  parser.add_argument("--accept", action="store_true", help="store programs that do more work, or fail, too")
  parser.add_argument("--timeout_seconds", type=float, default=1800, metavar="S", help="for each (default: 1800)")
  args = parser.parse_args(sys.argv[1:] if argv is None else argv)
  try:
    chosen = [name for name in PLANS if re.search(args.only, name)]
  except re.error as error:
    raise UserError(f"--only={args.only}: no regular expression: {error}") from None
  if not chosen:
    raise UserError(f"--only={args.only}: matches none of {', '.join(PLANS)}")
  measured = _PAGE.with_suffix(".json")
  worst = 0
  for name in chosen:
    plan = child.plan(PLANS[name], args.timeout_seconds)
    print(f"{name}: {plan['verdict']}", flush=True)
    plans = json.loads(measured.read_text()) if measured.exists() else {}  # read now: another may be writing it too
    grew = counts.grown(plans.get(name, {}).get("counts", {}), plan.get("counts", {}))
    if grew and not args.accept:
      print(f"  refused, its program does more work: {'; '.join(grew)}", flush=True)
      worst = EXIT_GREW
      continue
    if name in plans and "total_gigabytes" not in plan and not args.accept:
      print("  not stored: the old plan has figures", flush=True)
      worst = EXIT_DOES_NOT_FIT
      continue
    plans[name] = {key: value for key, value in plan.items() if key in _KEPT or key.endswith("gigabytes")}
    worst = worst if plan["fits"] else EXIT_DOES_NOT_FIT
    measured.write_text(json.dumps({name: plans[name] for name in PLANS if name in plans}, indent=1) + "\n")
    _PAGE.write_text(page(plans))
  return worst


if __name__ == "__main__":
  sys.exit(main())

"""`python -m tools.benchmark marks`: the steps whose speed other systems publish, one after another, on one device."""

import argparse
import functools
import json
import pathlib
import subprocess
import sys
import tempfile

from t5x_like.errors import UserError
from t5x_like.files.places import directory

_SHORT = ["--batch=2", "--steps=2", "--warmup=1"]
# Name: recipe and sizes, the same made small enough for a CPU, and the published figure.
_MARKS: dict[str, tuple[list[str], list[str], str]] = {
  "decoder of 1.3 B, 2,048": (
    ["--config=configs/gpt/gpt2_124m.py", "--set=model.variant=gpt3-xl", "--length=2048", "--batch=16"],
    ["--set=model.variant=gpt2-tiny", "--length=256"],
    "llm.c 1.56 B and nanochat d18 on an H100: 46 to 49 % MFU",
  ),
  "GPT-2 124M, 1,024": (
    ["--config=configs/gpt/gpt2_124m.py", "--length=1024", "--batch=32"],
    ["--set=model.variant=gpt2-tiny", "--length=256"],
    "",
  ),
  "T5-1.1-large, 512/114": (
    ["--config=configs/t5/base.py:large", "--inputs=512", "--targets=114", "--batch=64"],
    ["--set=model.variant=t5-v1_1-tiny", "--inputs=128", "--targets=32"],
    "NVIDIA's T5X, 512/128: 158.7 examples/s on an H100 (fp8), 75.8 on an A100",
  ),
  "BERT-large, 512": (
    ["--config=configs/bert/base.py:large", "--length=512", "--batch=64"],
    ["--set=model.variant=bert-mini", "--length=128"],
    "",
  ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declare the command's flags."""
  parser.add_argument("--only", metavar="TEXT", help="the marks with this in their name")
  parser.add_argument("--small", action="store_true", help="tiny models, to try the command on a CPU")
  parser.add_argument("--steps", type=int, default=20, help="steps to time (default: %(default)s)")
  kind = functools.partial(directory, flag="--output")
  parser.add_argument(
    "--output", default="marks", type=kind, help="directory of figures and traces (default: %(default)s)"
  )
  parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a key of every recipe")


def main(args: argparse.Namespace) -> None:
  """Measure each in a process of its own and print a table; raise UserError if none is measured."""
  chosen = {name: mark for name, mark in _MARKS.items() if not args.only or args.only.lower() in name.lower()}
  if not chosen:
    raise UserError(f"--only={args.only}: no mark has this in its name; there are {', '.join(_MARKS)}")
  output = pathlib.Path(args.output)
  found = {}
  for name, (full, small, _) in chosen.items():
    words = [*full, f"--steps={args.steps}", *(small + _SHORT if args.small else []), *(f"--set={s}" for s in args.set)]
    found[name] = _measure(name, words, output / name.partition(",")[0].replace(" ", "_"))
  if not any(found.values()):
    raise UserError("no step could be measured; each said why above")
  print(_table(found), flush=True)
  output.mkdir(parents=True, exist_ok=True)
  (output / "marks.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
  print(json.dumps(found))


def _measure(name: str, words: list[str], folder: pathlib.Path) -> dict | None:
  """Return the figures that the benchmark of a step prints last; None if it failed, after its output."""
  command = [sys.executable, "-m", __package__, "step", *words, f"--profile={folder}"]
  print(f"\n=== {name}\n$ python {' '.join(command[1:])}", flush=True)
  with tempfile.TemporaryFile("w+") as err:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=err, text=True)
    err.seek(0)
    print(done.stdout, end="" if done.returncode == 0 else f"{err.read()[-3000:]}\nexit code {done.returncode}\n")
  return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def _table(found: dict[str, dict | None]) -> str:
  lines = ["| step | s | examples/s | tokens/s | of matmul | MFU | GB | published |", "|" + "---|" * 8]
  for name, figures in found.items():
    if figures is None:
      lines.append(f"| {name} | failed |||||| {_MARKS[name][2]} |")
      continue
    memory = figures["peak_gigabytes"]
    cells = [
      f"{figures['seconds_per_step']:.4f}",
      f"{figures['examples_per_second']:.1f}",
      f"{figures['tokens_per_second']:,.0f}",
      f"{figures['fraction_of_matmul']:.1%}",
      f"{figures['mfu']:.1%}",
      f"{memory:.1f}" if memory else "",
    ]
    lines.append(f"| {name} | {' | '.join(cells)} | {_MARKS[name][2]} |")
  return "\n".join(lines)

"""Plan a run on hardware that this machine does not have.

python -m t5x_like.plan --config=configs/llama/8b.py --topology=v5e:16x16

It compiles the same step that training, evaluation (--step=eval) or prediction (--step=decode)
would run, for a TPU slice (v4:4x4x8, v5e:16x16, v5p:8x8x8, v6e:16x16, tpu7x:4x4x4; --slices=2 for
several), for CPU devices (cpu:8) or for the devices of this machine (local), where it also times a
train step. It reports whether the step fits, how much each device sends over which mesh axis and
the possible minimum, and the estimated time of a step. It needs no TPU and no data, but libtpu: pip
install 't5x-like[plan]'. `t5x_like.train --plan=FILE` holds a run to the plan that --json writes.
See docs/how-to/plan-a-run.md.

Exit codes: 0 it fits, 5 it does not, 6 the compiler gave no answer, 2 an error that one line on
stderr explains. With several topologies, the highest of their codes is returned.
"""

import argparse
import json
import sys

from t5x_like import command_line
from t5x_like.errors import UserError, handle_errors
from t5x_like.files import outputs

EXIT_DOES_NOT_FIT = 5
EXIT_NO_ANSWER = 6
_STEPS = ("train", "eval", "decode")


@handle_errors
def main(argv: list[str]) -> int:
  from t5x_like.planning import child, hardware, prices, table

  args, overrides = _parser().parse(argv)
  recipe = args.config.partition(":")[0]
  json_output = outputs.OutputFile(args.json, "--json", [recipe]) if args.json else None
  if args.hlo:
    outputs.OutputFile(args.hlo, "--hlo", [recipe])  # the process that compiles writes it
  if not args.timeout_seconds > 0:
    raise UserError(f"--timeout_seconds={args.timeout_seconds:g}: expected more than 0")
  topologies = [hardware.parse(topology, args.slices) for topology in args.topology.split(",")]
  quantity = _read_quantity(args, topologies)
  requests = []
  for topology in args.topology.split(","):
    request = child.Request(
      args.config,
      topology,
      args.slices,
      args.step,
      args.phase,
      tuple(overrides),
      args.hlo,
      trust=args.trust,
    )
    requests.append(request)
  if args.search is not None:
    return _search(requests, args, json_output)
  if args.hlo and len(requests) > 1:
    raise UserError(f"--hlo={args.hlo}: holds one program; give one --topology")
  plans = []
  for topology, request in zip(topologies, requests):
    plan = child.plan(request, args.timeout_seconds, _print_progress)
    if quantity and plan.get("seconds"):
      plan["bill"] = prices.plan_bill(plan, topology, quantity)
    plans.append(plan)
  _write_json(json_output, plans if len(plans) > 1 else plans[0])
  print("\n\n".join(table.text(plan) for plan in plans))
  if len(plans) > 1:
    print(f"\n{table.comparison(plans)}")
  return max(_exit_code(plan) for plan in plans)


def _parser() -> command_line.Parser:
  """Return the parser of the flags."""
  parser = command_line.Parser(__doc__)
  parser.add_argument("--config", required=True, metavar="RECIPE", help="a recipe, as for training")
  parser.add_argument(
    "--topology",
    required=True,
    metavar="KIND:SHAPE",
    help="v5e:16x16, cpu:8, local, …; several are separated by commas and compared",
  )
  parser.add_argument(
    "--slices", type=int, default=1, metavar="N", help="number of slices (default: 1)"
  )
  parser.add_argument("--step", choices=_STEPS, default="train", help="which step (default: train)")
  parser.add_argument("--phase", metavar="NAME", help="a phase of the recipe (default: the last)")
  parser.add_argument(
    "--search",
    type=int,
    nargs="?",
    const=8,
    metavar="N",
    help="compile the N most promising meshes, remat policies and batch sizes instead, and rank "
    "them (default N: 8)",
  )
  parser.add_argument(
    "--prices", metavar="FILE", help="print the price of the run, by this TOML file of prices"
  )
  quantity = parser.add_mutually_exclusive_group()
  quantity.add_argument(
    "--steps",
    type=command_line.step_number,
    metavar="N",
    help="print the hours of this many steps (default with --prices: the recipe's total_steps)",
  )
  quantity.add_argument(
    "--tokens",
    type=float,
    metavar="N",
    help="print the hours of the steps for this many tokens, or images",
  )
  parser.add_argument("--json", metavar="FILE", help="write the plan to this file")
  parser.add_argument(
    "--hlo", metavar="FILE", help="write the compiled program's text to this file"
  )
  parser.add_argument(
    "--timeout_seconds",
    type=float,
    default=1800,
    metavar="S",
    help="for the compiler (default: 1800)",
  )
  return parser


def _read_quantity(args: argparse.Namespace, topologies: list):
  """Return the steps or tokens to bill, with their prices; None if no flag asks for them.

  Raises:
    UserError: a flag is wrong, or a kind of chip has no price.
  """
  from t5x_like.planning.prices import Quantity, read_prices

  if args.prices is None and args.steps is None and args.tokens is None:
    return None
  if args.search is not None:
    raise UserError("--search: prints no hours or prices; plan with the flags that it prints")
  if args.tokens is not None and not 0 < args.tokens < 1e18:
    raise UserError(f"--tokens={args.tokens:g}: expected a number above 0")
  if args.step != "train" and args.steps is None and args.tokens is None:
    raise UserError(
      f"--prices={args.prices}: the recipe has no number of {args.step} steps; give --steps or "
      "--tokens"
    )
  prices = read_prices(args.prices) if args.prices else None
  for topology in topologies:
    if topology.kind == "cpu":
      raise UserError(f"--topology={topology.name}: a plan for CPUs has no seconds; use local")
    if prices and topology.kind not in prices.per_chip_hour:
      raise UserError(
        f"{args.prices}.per_chip_hour.{topology.kind}: missing; found prices of "
        f"{', '.join(prices.per_chip_hour)}; add one"
      )
  return Quantity(args.steps, args.tokens, prices)


def _search(requests: list, args, json_output: outputs.OutputFile | None) -> int:
  from t5x_like.planning import search, table

  if len(requests) > 1:
    raise UserError(f"--topology={args.topology}: --search takes one topology")
  if args.search < 1 or args.step != "train":
    raise UserError(
      f"--search={args.search}: expected how many plans of a train step to compile, at least 1"
    )
  if args.hlo:
    raise UserError(
      f"--hlo={args.hlo}: --search compiles several programs; give --hlo with the "
      "flags that it prints"
    )
  plans = search.search(requests[0], args.search, args.timeout_seconds, _print_progress)
  _write_json(json_output, plans)
  print(table.ranking(plans))
  return _exit_code(plans[0])


def _exit_code(plan: dict) -> int:
  if plan["fits"] is None:
    return EXIT_NO_ANSWER
  return 0 if plan["fits"] else EXIT_DOES_NOT_FIT


def _print_progress(line: str) -> None:
  print(line, file=sys.stderr, flush=True)


def _write_json(output: outputs.OutputFile | None, plans) -> None:
  if output:
    output.write([json.dumps(plans, indent=2) + "\n"])


if __name__ == "__main__":
  command_line.run_program(main)

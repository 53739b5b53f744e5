"""Write the generated pages of docs/reference: config-keys.md, sizing.md and plans.md.

  python -m tools.write_reference

`make docs` runs this, and the pages are not in git. Keys come from signatures and docstrings
(`t5x_like.listing`). Sizes, costs and plans come from docs/plans.json, which `python -m
tools.plans` writes; nothing is compiled here.
"""

import dataclasses
import json
import math
import pathlib
import re
import sys
from typing import Any

from t5x_like import command_line, config, listing, recipes
from t5x_like.errors import UserError, handle_errors
from t5x_like.planning import child

from . import plans

_REPO = pathlib.Path(__file__).resolve().parents[1]
_FOLDER = _REPO / "docs" / "reference"
# Keys of a recipe, in the order of the page; "" stands for keys that are no record or slot.
_ORDER = ["", *(field.name for field in dataclasses.fields(config.Recipe))]
# Sections with keys that every `name` takes, besides the arguments of each.
_SECTIONS_WITH_NAMES = ("task", "optimizer", "evals.NAME")
_KEYS_INTRODUCTION = """# Keys of a recipe

<!-- Written by `python -m tools.write_reference` from signatures and docstrings; do not edit. -->

Set any key on the command line: `--config.KEY=VALUE`. Values are JSON; other text is a string. A
*slot* is a key with a `name`, which selects a function, and that function's arguments:
`--config.optimizer.name=adamw --config.optimizer.weight_decay=0.01`. A new name discards the
arguments of the old one. A key without a default is required. Unknown keys are refused, with the
nearest match.
"""
_SIZING_INTRODUCTION = """# Size and cost of a run

<!-- Written by `python -m tools.write_reference` from docs/plans.json; do not edit. -->

How many chips does a published model need, for how long? The TPU compiler has compiled each step
below for its slice, without one ([plan a run](../how-to/plan-a-run.md)). No row was measured on
hardware.

- **GB a chip** is the compiler's memory plan, of the chip's HBM. It is exact for the compiler's
  version.
- **Seconds a step** is an estimate: the compiler's cycles, kernels at a measured share of the peak
  rate, the links of the slice, no stalls. Measure a few hundred steps before you book a slice.
- **Hours** and **chip-hours** are this estimate for the recipe's whole run. A plan with other rows
  or lengths processes the same number of tokens or images.
- **Cost** is chip-hours times the price of a chip-hour. Prices change and depend on region and
  commitment: [Cloud TPU pricing](https://cloud.google.com/tpu/pricing).

"""
_SIZING_NOTES = """
The run of BERT is shorter than its row says: nine tenths of its steps have rows of 128 tokens, and
the plan is for the last tenth, with 512. The recipes of T5 train on 2^35 tokens, the budget of the
comparisons in T5's paper; the published checkpoints saw more.
"""
_SIZING_ADVICE = """
## Choose a slice

1. **Memory first.** Parameters, gradients and optimizer state must fit. With Adafactor that is
   about 4 bytes a parameter for the float32 parameters, and as much for their gradients while a
   step runs; AdamW adds 8. Split them with `--config.mesh.fsdp`.
2. **Rows next.** A chip should have enough rows that products take longer than the exchange of
   parameters. `plan` prints both.
3. **Let it search**: `python -m t5x_like.plan --config=RECIPE --topology=v5e:8x8 --search=6` ranks
   meshes, remat and rows.

[Plans](plans.md) has all figures of each plan, with its command.
"""


def config_keys() -> str:
  """Return the page of all keys in Markdown."""
  groups_by_slot: dict[str, list[listing.Group]] = {slot: [] for slot in _ORDER}
  for group in listing.groups():
    slot, _, _ = group.section.partition(".")
    groups_by_slot[slot].append(group)
  lines = [_KEYS_INTRODUCTION]
  for slot, groups in groups_by_slot.items():
    if groups:
      lines.append(f"## `config.{slot}`\n" if slot else "## Top level\n")
    for equal_groups in _gather_equal_groups(groups):
      lines += _describe_groups(equal_groups)
  return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def _gather_equal_groups(groups: list[listing.Group]) -> list[list[listing.Group]]:
  """Gather the groups of a section that have the same keys, to list the keys once."""
  equal_groups: dict[tuple, list[listing.Group]] = {}
  for group in groups:
    # Owners differ between the groups, and are not printed.
    keys = tuple(dataclasses.replace(key, owners=()) for key in group.keys)
    equal_groups.setdefault((group.section, bool(group.name), keys), []).append(group)
  return list(equal_groups.values())


def _describe_groups(groups: list[listing.Group]) -> list[str]:
  """Return the Markdown lines of groups with the same keys: heading, descriptions, table."""
  lines = []
  first = groups[0]
  if first.name:
    lines.append("### " + ", ".join(f"`{group.name}`" for group in groups) + "\n")
    if len(groups) == 1:
      lines.append(first.about)
    else:
      lines += [f"- `{group.name}`: {group.about}" for group in groups]
    lines.append("")
  elif first.section:
    suffix = ", with any name" if first.section in _SECTIONS_WITH_NAMES else ""
    lines.append(f"### `config.{first.section}.…`{suffix}\n")
    lines.append(first.about + "\n")
  lines.append(_table(first.section, first.keys) if first.keys else "No arguments.\n")
  return lines


def _table(section: str, keys: tuple[listing.Key, ...]) -> str:
  """Return the Markdown table of a section's keys."""
  rows = ["| key | value | default | |", "|---|---|---|---|"]
  for key in keys:
    default = "required" if key.default is None else f"`{key.default}`"
    cells = (f"`{key.name.removeprefix(section + '.')}`", key.kind, default, key.about)
    rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
  return "\n".join(rows) + "\n"


def sizing() -> str:
  """Return the page of sizes and costs in Markdown."""
  stored_plans = json.loads(plans.STORED_PLANS.read_text())
  rows = [
    "| model | slice | chips | rows a step | GB a chip | seconds a step | MFU | whole run | hours "
    "| chip-hours |",
    "|---|---|---|---|---|---|---|---|---|---|",
  ]
  for name, request in plans.PLANS.items():
    plan = stored_plans.get(name)
    if request.step == "train" and plan and plan.get("seconds"):
      rows.append(_sizing_row(name, request, plan))
  return _SIZING_INTRODUCTION + "\n".join(rows) + "\n" + _SIZING_NOTES + _SIZING_ADVICE


def _sizing_row(name: str, request: child.Request, plan: dict[str, Any]) -> str:
  """Return the table row of a plan, scaled to the whole run of its recipe."""
  recipe = recipes.load(request.config)
  planned_recipe = recipes.load(request.config, request.overrides)
  length = _row_length(recipe)
  planned_length = _row_length(planned_recipe)
  run_size = recipe.total_steps * recipe.batch_size * length
  unit = "tokens" if length > 1 else "images"
  num_steps = run_size / (planned_recipe.batch_size * planned_length)
  hours = num_steps * plan["seconds"]["step"] / 3600
  chip, _, shape = request.topology.partition(":")
  num_chips = math.prod(map(int, shape.split("x"))) * request.slices
  slices = f"{request.slices} × " if request.slices > 1 else ""
  row_lengths = f" of {planned_length:,}" if planned_length > 1 else ""
  cells = (
    # The slice has its own column.
    re.sub(rf", (two slices of )?{chip} {shape}", "", name),
    f"{slices}{chip} {shape}",
    f"{num_chips:,}",
    f"{planned_recipe.batch_size:,}{row_lengths}",
    f"{plan['total_gigabytes']:.1f} of {plan['memory']['hbm'] / 1e9:.1f}",
    f"{plan['seconds']['step']:.2f}",
    f"{100 * plan['mfu']:.0f} %",
    f"{_in_words(run_size)} {unit}",
    f"{hours:,.0f}" if hours >= 10 else f"{hours:.1f}",
    f"{num_chips * hours:,.0f}",
  )
  return "| " + " | ".join(cells) + " |"


def _row_length(recipe) -> int:
  """Return the tokens in a row as papers count them; 1 for an image.

  It is the length of the encoder's inputs, or of a decoder's window.
  """
  return recipe.task.get("inputs_length") or recipe.task.get("length") or 1


def _in_words(number: float) -> str:
  """Return a number in three digits, such as "34.4 billion"."""
  for size, unit in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
    if number >= size:
      return f"{number / size:.3g} {unit}"
  return f"{number:,.0f}"


def plans_page() -> str:
  """Return the page of all stored plans in Markdown."""
  return plans.page(json.loads(plans.STORED_PLANS.read_text()))


PAGES = {"config-keys.md": config_keys, "sizing.md": sizing, "plans.md": plans_page}


@handle_errors
def main(argv: list[str] | None = None) -> int:
  parser = command_line.Parser(__doc__, opens_runs=False)
  parser.parse_args(sys.argv[1:] if argv is None else argv)
  if not _FOLDER.is_dir():
    raise UserError(
      f"{_FOLDER}: no such directory; the pages are written in a clone of the project"
    )
  for name, build_page in PAGES.items():
    path = _FOLDER / name
    path.write_text(build_page())
    print(f"wrote {path.relative_to(_REPO)}")
  return 0


if __name__ == "__main__":
  sys.exit(main())

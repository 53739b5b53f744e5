"""Write the generated pages of docs/reference: keys of recipes, sizes and costs, and plans.

  # writes config-keys.md, sizing.md and plans.md; `make docs` runs it
  python -m tools.write_reference

The pages are not in git. Keys come from signatures and docstrings (`t5x_like.listing`); sizes,
costs and plans come from docs/plans.json, which `python -m tools.plans` compiles. Nothing is
compiled here.
"""

import dataclasses
import itertools
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
_ORDER = ["", *(field.name for field in dataclasses.fields(config.Recipe))]
_SECTIONS_WITH_NAMES = ("task", "optimizer", "evals.NAME")  # records besides the objects of a slot
_KEYS = """# Keys of a recipe

<!-- Written by `python -m tools.write_reference` from signatures and docstrings; do not edit. -->

Set any key on the command line: `--config.KEY=VALUE`. Values are JSON; other text is a string. A
*slot* is a key with a `name`, which selects a function, and that function's arguments:
`--config.optimizer.name=adamw --config.optimizer.weight_decay=0.01`. A new name discards the
arguments of the old one. A key without a default is required. Unknown keys are refused, with the
nearest match.
"""
_SIZING = """# Size and cost of a run

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


def config_keys() -> str:
  """Return the page of all keys in Markdown."""
  lines = [_KEYS]
  by_key = sorted(listing.groups(), key=lambda group: _ORDER.index(group.section.partition(".")[0]))
  for slot, groups in itertools.groupby(by_key, key=lambda group: group.section.partition(".")[0]):
    lines.append(f"## `config.{slot}`\n" if slot else "## Top level\n")
    groups_by_keys: dict[tuple, list[listing.Group]] = {}
    for group in groups:
      keys = tuple(dataclasses.replace(key, owners=()) for key in group.keys)
      groups_by_keys.setdefault((group.section, bool(group.name), keys), []).append(group)
    for (section, named, keys), members in groups_by_keys.items():
      if named:
        lines.append("### " + ", ".join(f"`{group.name}`" for group in members) + "\n")
        if len(members) == 1:
          lines.append(members[0].about)
        else:
          lines += [f"- `{group.name}`: {group.about}" for group in members]
        lines.append("")
      elif section:
        suffix = ", with any name" if section in _SECTIONS_WITH_NAMES else ""
        lines.append(f"### `config.{section}.…`{suffix}\n")
        lines.append(members[0].about + "\n")
      lines.append(_table(section, keys) if keys else "No arguments.\n")
  return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def _table(section: str, keys: tuple[listing.Key, ...]) -> str:
  rows = ["| key | value | default | |", "|---|---|---|---|"]
  for key in keys:
    default = "required" if key.default is None else f"`{key.default}`"
    cells = (f"`{key.name.removeprefix(section + '.')}`", key.kind, default, key.about)
    rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
  return "\n".join(rows) + "\n"


def sizing() -> str:
  """Return the page of sizes and costs in Markdown."""
  measured = json.loads(plans.STORED_PLANS.read_text())
  rows = [
    "| model | slice | chips | rows a step | GB a chip | seconds a step | MFU | whole run | hours "
    "| chip-hours |",
    "|---" * 10 + "|",
  ]
  for name, request in plans.PLANS.items():
    if request.step == "train" and name in measured and measured[name].get("seconds"):
      rows.append(_size(name, request, measured[name]))
  note = (
    "\nThe run of BERT is shorter than its row says: nine tenths of its steps have rows of 128 "
    "tokens, and the plan has"
    " the last tenth, with 512.\nThe recipes of T5 train on 2^35 tokens, the budget of the "
    "comparisons in T5's paper;"
    " the published checkpoints saw more.\n"
  )
  return _SIZING + "\n".join(rows) + "\n" + note + _ADVICE


_ADVICE = """
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


def _size(name: str, request: child.Request, plan: dict[str, Any]) -> str:
  recipe = recipes.load(request.config)
  planned = recipes.load(request.config, request.overrides)
  run = recipe.total_steps * recipe.batch_size * _length(recipe)
  steps = run / (planned.batch_size * _length(planned))
  kind, _, shape = request.topology.partition(":")
  chips = math.prod(map(int, shape.split("x"))) * request.slices
  hours = steps * plan["seconds"]["step"] / 3600
  unit = "tokens" if _length(recipe) > 1 else "images"
  cells = (
    re.sub(rf", (two slices of )?{kind} {shape}", "", name),
    f"{f'{request.slices} × ' if request.slices > 1 else ''}{kind} {shape}",
    f"{chips:,}",
    f"{planned.batch_size:,}" + (f" of {_length(planned):,}" if _length(planned) > 1 else ""),
    f"{plan['total_gigabytes']:.1f} of {plan['memory']['hbm'] / 1e9:.1f}",
    f"{plan['seconds']['step']:.2f}",
    f"{100 * plan['mfu']:.0f} %",
    f"{_short(run)} {unit}",
    f"{hours:,.0f}" if hours >= 10 else f"{hours:.1f}",
    f"{chips * hours:,.0f}",
  )
  return "| " + " | ".join(cells) + " |"


def _length(recipe) -> int:
  """Return the number of tokens of a row, as papers count them.

  They are the tokens of the encoder's inputs or of the window; an image counts as 1.
  """
  return recipe.task.get("inputs_length") or recipe.task.get("length") or 1


def _short(number: float) -> str:
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
  for name, page in PAGES.items():
    path = _FOLDER / name
    path.write_text(page())
    print(f"wrote {path.relative_to(_REPO)}")
  return 0


if __name__ == "__main__":
  sys.exit(main())

"""Show examples of a recipe's task as the model reads them, in a terminal or as an HTML page.

Example:
  python -m tools.inspect_data --config=configs/t5/base.py:debug
  python -m tools.inspect_data --config=configs/bert/base.py --config.task.store=data/corpus \\
      --step=9 --html=seen.html

The rows come from the global batch at --step, so --step=9 shows the examples of step 9. Each
segment has a colour. Padding and positions without weight are grey, special ids are bold, and
targets without weight are dots. Features that `task.preprocessors` change are also shown before the
change.
"""

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any

import jinja2
import numpy as np
from ml_collections import ConfigDict
from rich.console import Console
from rich.text import Text

from t5x_like import command_line, recipes
from t5x_like.errors import UserError, handle_errors
from t5x_like.files import outputs
from t5x_like.vocabularies import Vocabulary

_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red")
_TOKENS = "_tokens"
_NOTHING = "\u00b7"  # a target without weight
_BEFORE_SUFFIX = " before preprocessors"
_MAX_VALUES = 24  # displayed values of a feature that is not tokens

_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{{ title }}</title><style>
body { font: 15px/1.7 system-ui, sans-serif; margin: 2em; max-width: 75em }
h3 { margin: 1em 0 .2em; font-size: 1em }
span { padding: 1px 2px; margin-right: 1px; border-radius: 3px }
code { white-space: pre-wrap; font: 13px monospace; unicode-bidi: isolate }
.special { font-weight: bold }
.off { color: #999 }
{% for colour in colours %}.s{{ loop.index0 }} { background: {{ colour }} }
{% endfor %}</style><h1>{{ title }}</h1><p>{{ facts }}</p>
{% for example in examples %}<h2>Example {{ loop.index0 }}</h2>
{% for feature in example %}<h3>{{ feature.name }} <small>{{ feature.shape }}</small></h3>
{% if feature.cells %}<code>{% for c in feature.cells
%}<span class="{{ c.style }}" title="{{ c.title }}"
>{{ c.piece }}</span>{% endfor %}{% if feature.padding
%} <span class="off">+ {{ feature.padding }} padding</span>{% endif %}</code>{% else
%}<code>{{ feature.values }}</code>{% endif %}
{% endfor %}{% endfor %}</html>
"""
_BACKGROUNDS = ("#e3f4f4", "#fbf3d0", "#e2f3e0", "#f3e3f3", "#e2e8fb", "#fbe2e0")


@dataclasses.dataclass(frozen=True)
class Cell:
  """One position of a sequence.

  Attributes:
    id: token id.
    piece: text of the id's piece.
    special: whether the id is a special one.
    padding: whether the id is padding.
    weight: loss weight, if the example has weights.
    segment: segment id, if the example has segments.
  """

  id: int
  piece: str
  special: bool
  padding: bool
  weight: float | None
  segment: int | None

  @property
  def off(self) -> bool:
    """Whether the position is shown in grey."""
    return self.padding or self.weight == 0

  @property
  def style(self) -> str:
    """The classes of the cell in HTML."""
    names = ["off" if self.off else f"s{self.colour_number}"]
    if self.special:
      names.append("special")
    return " ".join(names)

  @property
  def colour_number(self) -> int:
    """The number of the segment's colour."""
    return (self.segment or 0) % len(_COLOURS)

  @property
  def title(self) -> str:
    facts = (("id", self.id), ("weight", self.weight), ("segment", self.segment))
    return ", ".join(f"{name} {value:g}" for name, value in facts if value is not None)


@dataclasses.dataclass(frozen=True)
class DisplayedFeature:
  """A feature of one example, prepared for display.

  Attributes:
    name: name of the feature.
    shape: dtype and shape.
    cells: positions of a sequence of tokens, without padding at the end; empty for other features.
    padding: number of padding ids at the end.
    values: values of a feature that is not a sequence of tokens.
  """

  name: str
  shape: str
  cells: list[Cell]
  padding: int
  values: str


def describe(example: dict[str, np.ndarray], vocabulary: Vocabulary) -> list[DisplayedFeature]:
  """Describe one example for display: token features first, with their weights and segments."""
  features = []
  tokens_first = sorted(example, key=lambda name: (not _is_tokens(name), name))
  for name in tokens_first:
    value = np.asarray(example[name])
    shape = f"{value.dtype}{list(value.shape)}"
    if _is_tokens(name) and value.ndim == 1:
      features.append(DisplayedFeature(name, shape, *_cells(name, value, example, vocabulary), ""))
    else:
      flat = value.reshape(-1)
      values = str(value)
      if value.dtype.kind in "iufb":
        values = " ".join(f"{number:g}" for number in flat[:_MAX_VALUES].tolist())
      remark = ""
      if flat.size > _MAX_VALUES:
        remark = f" ... ({flat.size} values, {np.count_nonzero(flat)} of them not 0)"
      features.append(DisplayedFeature(name, shape, [], 0, values + remark))
  return features


def _is_tokens(name: str) -> bool:
  return name.removesuffix(_BEFORE_SUFFIX).endswith(_TOKENS)


def _cells(
  name: str, ids_T: np.ndarray, example: dict[str, np.ndarray], vocabulary: Vocabulary
) -> tuple[list[Cell], int]:
  """Return the cells of a sequence of ids up to its padding, and the number of padding ids."""
  side = name.split("_")[0]

  def feature_like_ids(feature: str) -> np.ndarray | None:
    value = np.asarray(example.get(f"{side}_{feature}"))
    return value if value.shape == ids_T.shape else None

  weights = feature_like_ids("loss_weights") if name.endswith("_target_tokens") else None
  packed = feature_like_ids("segment_ids")
  types = feature_like_ids("token_types")
  segments = packed
  if types is not None:
    segments = types if packed is None else packed + types
  pad = 0 if vocabulary.pad_id is None or name.startswith("encoder_target") else vocabulary.pad_id
  length = int(np.flatnonzero(ids_T != pad)[-1]) + 1 if (ids_T != pad).any() else 0
  pieces = vocabulary.pieces_of(ids_T[:length])
  cells = []
  for i, token_id in enumerate(ids_T[:length].tolist()):
    is_unpredicted = weights is not None and token_id == 0 and weights[i] == 0
    cell = Cell(
      id=token_id,
      piece=visible(_NOTHING if is_unpredicted else pieces[i]),
      special=token_id in vocabulary.special_ids,
      padding=token_id == pad,
      weight=None if weights is None else float(weights[i]),
      segment=None if segments is None else int(segments[i]),
    )
    cells.append(cell)
  return cells, ids_T.size - length


def visible(piece: str) -> str:
  """Return a piece with unprintable and bidirectional control characters escaped."""
  return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in piece)


def to_terminal(console: Console, examples: list[list[DisplayedFeature]], ids: bool) -> None:
  """Print examples in colours, optionally with the ids of tokens."""
  for number, example in enumerate(examples):
    console.print(Text(f"\nExample {number}", style="bold underline"))
    for feature in example:
      console.print(Text.assemble((feature.name, "bold"), f" {feature.shape}"))
      line = Text(feature.values)
      for cell in feature.cells:
        style = "bright_black" if cell.off else _COLOURS[cell.colour_number]
        if cell.special:
          style = f"bold {style}"
        line.append(f"{cell.piece}:{cell.id}" if ids else cell.piece, style)
        if cell.piece != _NOTHING:
          line.append("|", "bright_black")
      if feature.padding:
        line.append(f" + {feature.padding} padding", "bright_black")
      console.print(line)


def to_html(examples: list[list[DisplayedFeature]], title: str, facts: str) -> str:
  environment = jinja2.Environment(autoescape=True)
  return environment.from_string(_PAGE).render(
    examples=examples, title=title, facts=facts, colours=_BACKGROUNDS
  )


def examples_of(
  config: Any, split: str, step: int, count: int
) -> tuple[list[list[DisplayedFeature]], str]:
  """Return the first rows of the batch at a step, and a line about the task."""
  from t5x_like.data import task as task_lib
  from t5x_like.training import phases
  from t5x_like.training.build import build_phases

  def build_task(slot: str, name: str, _: str, arguments: dict[str, Any]) -> task_lib.Task:
    return task_lib.build_at(slot, name, split, arguments)

  def batch_of(config: Any) -> tuple[Any, dict[str, np.ndarray]]:
    built = build_phases(config, build_task)
    return phases.phase_at(built, step), next(phases.iterate_batches(built, step))

  phase, batch = batch_of(config)
  config = phase.config
  task = phase.task
  rows = min(count, len(next(iter(batch.values()))))
  unprocessed = without_preprocessors(config)
  if unprocessed is not None:
    for name, value in batch_of(unprocessed)[1].items():
      if not np.array_equal(value, batch[name]):
        batch[f"{name}{_BEFORE_SUFFIX}"] = value
  facts = (
    f"task {task.name}, split {split}, {task.num_examples:,} examples, step {step}, batch of "
    f"{config.batch_size}, seed {config.seed}, vocabulary of {task.vocabulary.size:,} ids, "
    f"fingerprint {task.fingerprint[:12]}"
  )
  examples = [
    describe({name: value[row] for name, value in batch.items()}, task.vocabulary)
    for row in range(rows)
  ]
  return examples, facts


def without_preprocessors(config: Any) -> Any | None:
  """Return the config without preprocessors of the user's own; None if it has none."""
  values = json.loads(json.dumps(config.to_dict()))
  removed = []

  def drop(node: Any) -> None:
    if isinstance(node, dict):
      removed.append(node.pop("preprocessors", None))
      for child in node.values():
        drop(child)

  drop(values["task"])
  drop(values["phases"])
  return ConfigDict(values) if any(removed) else None


@handle_errors
def main(argv: Sequence[str] | None = None) -> None:
  parser = command_line.Parser(__doc__, prog="python -m tools.inspect_data")
  parser.add_argument(
    "--config", required=True, help="the recipe; change it with --config.KEY=VALUE as in training"
  )
  parser.add_argument("--split", help="split of the corpus (default: the recipe's training split)")
  parser.add_argument(
    "--step",
    type=command_line.step_number,
    default=0,
    help="the step whose batch is shown (default: 0)",
  )
  parser.add_argument("--examples", type=int, default=3, help="the most rows to show (default: 3)")
  parser.add_argument(
    "--ids", action="store_true", help="print ids next to the pieces in the terminal"
  )
  parser.add_argument("--html", help="write an HTML page to this file instead")
  args, overrides = parser.parse(argv)
  if args.examples < 1:
    raise UserError(f"--examples={args.examples}: expected at least 1")
  page = outputs.OutputFile(args.html, "--html", [args.config]) if args.html else None
  config = recipes.load(args.config, overrides)
  examples, facts = examples_of(config, args.split or config.train_split, args.step, args.examples)
  if page is None:
    console = Console()
    console.print(Text(facts))
    to_terminal(console, examples, args.ids)
    return
  page.write([to_html(examples, args.config, facts)])
  print(f"{args.html}: {len(examples)} examples; {facts}")


if __name__ == "__main__":
  sys.exit(main())

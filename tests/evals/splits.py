"""The splits that `test_splits.py` scores, and how a topic's evaluator adds a case.

A topic's `cases.py` names a function in `SPLIT_CASES` by the evaluator; it returns a `Case`.
"""

import itertools
import json
from collections.abc import Callable
from typing import NamedTuple

# (brightness, label) of the examples of each split: most dark examples are "a" and most bright ones
# "b".
SPLITS = {
  "train": [("dark", "a")] * 9 + [("bright", "b")] * 8,
  "validation": [("dark", "a")] * 3
  + [("dark", "b"), ("bright", "b"), ("bright", "a"), ("bright", "a")],
  "held": [("dark", "a")] * 2 + [("dark", "b"), ("bright", "b"), ("bright", "a")],
}
SIZES = {split: len(rows) for split, rows in SPLITS.items()}


def accuracy(split: str, predictions: dict[str, str]) -> float:
  """Return the accuracy on a split, in percent, of predictions by brightness."""
  correct = [label == predictions[brightness] for brightness, label in SPLITS[split]]
  return 100 * sum(correct) / SIZES[split]


def scores_by_one_input(split: str) -> set[float]:
  """Return the possible accuracies of a model whose input is always the same."""
  return {accuracy(split, {"dark": label, "bright": label}) for label in "ab"}


def scores_by_brightness(split: str) -> set[float]:
  """Return the possible accuracies of a model whose input is the brightness."""
  scores = set()
  for dark, bright in itertools.product("ab", "ab"):
    scores.add(accuracy(split, {"dark": dark, "bright": bright}))
  return scores


def source(folder, kind: str, file_name: str) -> str:
  """Return a source with all splits; `{}` in the name of its files is the split."""
  return f"{kind}:" + ",".join(f"{split}={folder}/{file_name.format(split)}" for split in SPLITS)


def task_flag(folder, **arguments) -> str:
  return "task=" + json.dumps({"cache": str(folder / "cache")} | arguments)


class Training(NamedTuple):
  """The run that an evaluator is tested in; evaluators with the same name share one.

  Attributes:
    name: the name of the run.
    recipe: the address of its recipe.
    make_flags: `(folder) -> the flags`, without "--config."; the folder holds the data of
      `write_texts` and `write_images`, to which the function may add files.
  """

  name: str
  recipe: str
  make_flags: Callable


class Case(NamedTuple):
  """How an evaluator is tested.

  Attributes:
    training: the run whose model is scored.
    metric: the metric that is compared with the expected scores.
    expected: `(run, split) -> the possible scores`.
    count: the metric that counts the scored examples, None if the evaluator has none.
    size: `(run, split) -> the expected count`.
    has_one_score: whether `expected` is a single score, which must differ by split.
    arguments: `(folder) -> the arguments of the evaluator`.
  """

  training: Training
  metric: str
  expected: Callable
  count: str | None = "examples"
  size: Callable = lambda run, split: SIZES[split]
  has_one_score: bool = False
  arguments: Callable = lambda folder: {}


def expect_one_input(run, split: str) -> set[float]:
  return scores_by_one_input(split)


def expect_brightness(run, split: str) -> set[float]:
  return scores_by_brightness(split)


def expect_a(run, split: str) -> set[float]:
  """Return the score of predicting "a" for everything."""
  return {accuracy(split, {"dark": "a", "bright": "a"})}

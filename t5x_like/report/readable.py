"""Describe a run for its page: a verdict, facts, next commands, and texts with marked blanks."""

import datetime
import re
import shlex
from collections.abc import Sequence
from typing import Any

import numpy as np

from t5x_like.objectives import OBJECTIVES
from t5x_like.report.charts import Rows, series
from t5x_like.report.charts import names as metric_names
from t5x_like.report.numbers import duration, short

_GAP = re.compile(r"<extra_id_\d+>|\[MASK\]|<mask>")
_SENTINEL = re.compile(r"(<extra_id_\d+>)")
_MAX_WORDS = 500  # words of a text on the page; marking them takes quadratic time
_MAX_CHARACTERS = 10_000
_COUNT = re.compile(r"([\d,]+) parameters")
BLANK = "____"
Parts = list[tuple[str, str]]  # texts and their classes on the page


def last_step(rows: Rows) -> int:
  """Return the last step with metrics; 0 if there is none."""
  return max((row["step"] for row in rows), default=0)


def verdict(rows: Rows, total: int | None) -> str:
  """Summarize a run's outcome in a sentence or two; return "" if it has no metrics."""
  if not rows:
    return ""
  progress = _progress(last_step(rows), total)
  name, entropy = _validation(rows)
  if name is not None:
    steps, loss = series(rows, name)
    if len(loss):
      return f"{progress} {_validation_verdict(steps, loss, entropy)}"
  _, loss = series(rows, "train/loss")
  if len(loss):
    return f"{progress} The training loss went from {loss[0]:.3f} to {loss[-1]:.3f}."
  return progress


def _progress(step: int, total: int | None) -> str:
  if not total:
    return f"At step {step:,}."
  if step >= total:
    return f"Finished all {step:,} steps."
  return f"At step {step:,} of {total:,}."


def _validation_verdict(steps: np.ndarray, loss: np.ndarray, entropy: float | None) -> str:
  """Compare the last validation loss with the unigram entropy and with earlier losses."""
  text = f"The validation loss is {loss[-1]:.3f}"
  if entropy is not None:
    gap = entropy - loss[-1]
    side = "below" if gap > 0 else "above"
    lesson = "learned from its input" if gap > 0 else "learned nothing from its input yet"
    text += f", {abs(gap):.3f} {side} the unigram entropy ({entropy:.3f}): the model has {lesson}"
  best = int(loss.argmin())
  if len(loss) > 2 and loss[-1] > 1.01 * loss[best]:
    return f"{text}. It was lowest at step {steps[best]:,} ({loss[best]:.3f}) and has risen since."
  if len(loss) > 2 and loss[-1] < 0.99 * loss[-2]:
    return f"{text}. It was still falling."
  return f"{text}."


def _validation(rows: Rows) -> tuple[str | None, float | None]:
  """Return the name of the first evaluation's loss and its targets' unigram entropy, if any."""
  names = sorted(name for name in metric_names(rows) if re.fullmatch(r"eval/.+/loss", name))
  if not names:
    return None, None
  name = names[0]
  entropy_name = name.removesuffix("loss") + "unigram_entropy"
  _, entropies = series(rows, entropy_name)
  if not len(entropies):
    return name, None
  return name, float(entropies[-1])


def facts(
  rows: Rows, starts: list[dict[str, Any]], environment: dict[str, str], sharding: str
) -> list[dict[str, str]]:
  """Return the facts about a run: {label, value}.

  Args:
    starts: the lines of `history.jsonl`.
    environment: the values of `environment.json` by dotted key.
    sharding: the content of `sharding.txt`.
  """
  values: dict[str, str] = {}
  times = [datetime.datetime.fromisoformat(row["time"]) for row in starts]
  if times:
    values["Started"] = f"{times[0]:%-d %B %Y, %H:%M} UTC"
    count = sum("environment" in row for row in starts)
    if count > 1:
      values["Starts"] = f"{count}, the last on {times[-1]:%-d %B %Y, %H:%M} UTC"
  seconds = _seconds(rows)
  if seconds:
    values["Time of steps and evaluations"] = duration(seconds)
  parameter_count = _COUNT.search(sharding)
  if parameter_count:
    values["Parameters"] = short(int(parameter_count[1].replace(",", "")))
  if "device_kind" in environment:
    kind = environment["device_kind"]
    machine = f"{environment.get('devices', '1')} x {kind}"
    if kind == "cpu":
      cpu = environment.get("host_cpu", "")
      machine += f" ({cpu}, {environment.get('host_cores', '?')} cores)"
    values["Machine"] = machine
  return [{"label": label, "value": value} for label, value in values.items()]


def _seconds(rows: Rows) -> float:
  """Return the seconds of all steps and evaluations.

  A step without a line counts as many seconds as the next step with one.
  """
  steps, seconds_per_step = series(rows, "train/seconds_per_step")
  total = float(np.sum(seconds_per_step * np.diff(steps, prepend=0)))
  for name in metric_names(rows):
    if name.startswith("eval/") and name.endswith("/seconds"):
      _, seconds = series(rows, name)
      total += float(seconds.sum())
  return total


def objective_class(config: dict[str, str]) -> Any:
  """Return the objective's class; None if it is not one of this package.

  Args:
    config: the run's config by dotted key.
  """
  name = config.get("objective.name", "")
  if name not in OBJECTIVES.names():
    return None
  return OBJECTIVES.find("config.objective.name", name)


def next_steps(
  workdir: str,
  config: dict[str, str],
  step: int,
  total: int | None,
  *,
  flags: Sequence[str] = (),
  has_export: bool = False,
) -> list[dict[str, Any]]:
  """Return the commands that suit a run, in the order of their use: {label, words}.

  The words are quoted for a shell.

  Args:
    workdir: the workdir of the run, as its commands name it.
    config: the run's config by dotted key; without one there are no commands.
    step: the last step with metrics; 0 if there is none.
    total: the last step of the config, if it has one.
    flags: the flags of the recipe with which the run was started; empty if they are not known.
    has_export: whether `tools.convert_hf` can export the model.
  """
  if not config:
    return []
  address = workdir.rstrip("/") or workdir
  flags = tuple(flags) or ("--config=RECIPE",)
  steps = []

  def add(label: str, module: str, *flags: str) -> None:
    words = ["python", "-m", module, *flags]
    steps.append({"label": label, "words": [shlex.quote(word) for word in words]})

  if total is not None and step < total:
    add(f"Train to step {total:,}", "t5x_like.train", *flags, f"--workdir={address}")
  if step == 0:
    return steps
  add("Evaluate the newest checkpoint", "t5x_like.evaluate", f"--workdir={address}")
  objective = objective_class(config)
  inputs = () if objective is None else objective.predict_inputs
  inputs_of_images = {"images", "images with texts"}
  has_images = "features.image" in config
  if not has_images and "texts" in inputs:
    add("Talk with it; --web opens a page", "t5x_like.chat", f"--workdir={address}")
    files = ("--input=lines.txt", "--output=predictions.jsonl")
    add("Predict for each line of a file", "t5x_like.predict", f"--workdir={address}", *files)
  elif has_images and not inputs_of_images.isdisjoint(inputs):
    files = ["--input=photos/", "--output=predictions.jsonl"]
    if "images with texts" in inputs:
      files.append("--texts=texts.txt")
    add("Predict for each image of a folder", "t5x_like.predict", f"--workdir={address}", *files)
  if total is None or step >= total:
    directories = (f"--workdir={address}-next", f"--config.init.workdir={address}")
    recipe = [flag for flag in flags if not flag.startswith("--config.init.")]
    label = "Train from its weights, with this recipe or a recipe of fine-tuning"
    add(label, "t5x_like.train", *recipe, *directories)
  if has_export:
    add("Export for transformers", "tools.convert_hf", f"--input={address}", "--output=exported")
  return steps


def sample(texts: dict[str, str]) -> dict[str, Any]:
  """Lay out a sample for the page.

  Args:
    texts: `input`, `target` and `prediction`; with blanks also `filled` and `original`; `shows` is
      `more` for a text that continues its input.

  Returns:
    `rows` of a label and parts; `status`, a short description; and `good`, whether the prediction
    equals the original, which is None for a continuation.
  """
  shortened = {name: _shorten(text) for name, text in texts.items()}
  if texts.get("shows") == "more":
    return _continuation(shortened)
  if "filled" in texts and "original" in texts:
    return _mark_gaps(shortened)
  is_exact = texts["target"] == texts["prediction"]
  status = "✓ exact match" if is_exact else "differs"
  rows = [(name, _mark_sentinels(shortened[name])) for name in ("input", "target", "prediction")]
  return {"rows": rows, "good": is_exact, "status": status}


def _continuation(texts: dict[str, str]) -> dict[str, Any]:
  """Lay out a prompt with the model's continuation and the original one."""
  prompt = texts["input"]
  prompt_part = (prompt, "sentinel")
  rows = [
    ("model", [prompt_part, (texts["prediction"], "")]),
    ("original", [prompt_part, (texts["target"], "")]),
  ]
  return {"rows": rows, "good": None, "status": f"continued after {len(prompt.split())} words"}


def _mark_gaps(texts: dict[str, str]) -> dict[str, Any]:
  """Mark each word that the model put into a blank as good if the original has it there."""
  gapped = _blank_gaps(texts["input"])
  filled = _blank_gaps(texts["filled"])
  original = texts["original"].split()
  in_input = _in_common(filled, gapped)
  in_original = _in_common(filled, original)
  marks = []
  for index, filled_word in enumerate(filled):
    if in_input[index] and filled_word != BLANK:
      marks.append("")
    else:
      marks.append("good" if in_original[index] else "bad")
  gap_marks = ["sentinel" if gapped_word == BLANK else "" for gapped_word in gapped]
  original_marks = ["" if is_same else "sentinel" for is_same in _in_common(original, gapped)]
  num_good = marks.count("good")
  num_filled = len(marks) - marks.count("")
  return {
    "rows": [
      ("with gaps", _join(gapped, gap_marks)),
      ("model", _join(filled, marks)),
      ("original", _join(original, original_marks)),
    ],
    "good": num_filled > 0 and num_good == num_filled,
    "status": f"{num_good} of {num_filled} words as in the original",
  }


def _mark_sentinels(text: str) -> Parts:
  """Return the parts of a text, with the class "sentinel" for sentinels."""
  parts = []
  for part in _SENTINEL.split(text):
    if part:
      mark = "sentinel" if _SENTINEL.fullmatch(part) else ""
      parts.append((part, mark))
  return parts


def _shorten(text: str) -> str:
  """Cut a text to `_MAX_CHARACTERS` and `_MAX_WORDS`; a cut text ends with an ellipsis."""
  short = text[:_MAX_CHARACTERS]
  words = short.split(maxsplit=_MAX_WORDS)
  if len(words) > _MAX_WORDS:
    return " ".join(words[:_MAX_WORDS]) + " …"
  return short if len(text) <= _MAX_CHARACTERS else f"{short}…"


def _blank_gaps(text: str) -> list[str]:
  """Return the words of a text, with a blank for each that contains a sentinel or a mask."""
  return [BLANK if _GAP.search(text_word) else text_word for text_word in text.split()]


def _in_common(words: list[str], reference: list[str]) -> list[bool]:
  """Return which words belong to a longest common subsequence with the reference."""
  distinct_words = dict.fromkeys([*words, *reference])
  numbers = dict(zip(distinct_words, range(len(distinct_words))))
  ids_N = np.asarray(list(map(numbers.get, words)), np.int32)
  ids_M = np.asarray(list(map(numbers.get, reference)), np.int32)
  # lengths[i, j] is the length of a longest common subsequence of words[i:] and reference[j:].
  lengths = np.zeros((len(words) + 1, len(reference) + 1), np.int32)
  for i in reversed(range(len(words))):
    next_lengths = lengths[i + 1]
    lengths_here = np.where(ids_M == ids_N[i], next_lengths[1:] + 1, next_lengths[:-1])
    longest_from_end = np.maximum.accumulate(lengths_here[::-1])
    lengths[i, :-1] = longest_from_end[::-1]
  is_common = [False] * len(words)
  i = 0
  j = 0
  while i < len(words) and j < len(reference):
    if words[i] == reference[j]:
      is_common[i] = True
      i += 1
      j += 1
    elif lengths[i + 1, j] >= lengths[i, j + 1]:
      i += 1
    else:
      j += 1
  return is_common


def _join(words: list[str], marks: list[str]) -> Parts:
  """Join words by spaces; neighbours of the same class become one part."""
  parts: Parts = []
  for next_word, mark in zip(words, marks):
    if parts:
      last_text, last_mark = parts[-1]
      if last_mark == mark and mark != "sentinel":
        parts[-1] = (f"{last_text} {next_word}", mark)
        continue
      parts.append((" ", ""))
    parts.append((next_word, mark))
  return parts

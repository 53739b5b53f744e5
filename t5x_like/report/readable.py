"""A run in words for its page: the verdict, the facts about it, and filled texts with their gaps
marked."""

import datetime
import re
from typing import Any

import numpy as np

from t5x_like.report.charts import Rows, series
from t5x_like.report.charts import names as metric_names
from t5x_like.report.numbers import duration, short

_GAP = re.compile(r"<extra_id_\d+>|\[MASK\]|<mask>")
_SENTINEL = re.compile(r"(<extra_id_\d+>)")
_MOST_WORDS = 500  # of a text on the page; marking words takes time with their square
_MOST_CHARACTERS = 10_000
_COUNT = re.compile(r"([\d,]+) parameters")
BLANK = "____"
Parts = list[tuple[str, str]]  # texts and their classes on the page


def verdict(rows: Rows, total: int | None) -> str:
  """Return what came of a run, in a sentence or two; the empty string if it has no metrics."""
  if not rows:
    return ""
  step = max(row["step"] for row in rows)
  begun = f"Finished all {step:,} steps." if total and step >= total else f"At step {step:,}"
  if not begun.endswith("."):
    begun += f" of {total:,}." if total else "."
  name, entropy = _validation(rows)
  steps, loss = series(rows, name) if name else ((), ())
  if not len(loss):
    _, loss = series(rows, "train/loss")
    return (
      f"{begun} The training loss went from {loss[0]:.3f} to {loss[-1]:.3f}."
      if len(loss)
      else begun
    )
  told = f"{begun} The validation loss is {loss[-1]:.3f}"
  if entropy is not None:
    gap = entropy - loss[-1]
    told += (
      f", {abs(gap):.3f} {'below' if gap > 0 else 'above'} the unigram entropy "
      f"({entropy:.3f}): the model has "
    )
    told += "learned from its input" if gap > 0 else "learned nothing from its input yet"
  best = int(loss.argmin())
  if len(loss) > 2 and loss[-1] > 1.01 * loss[best]:
    return f"{told}. It was lowest at step {steps[best]:,} ({loss[best]:.3f}) and has risen since."
  if len(loss) > 2 and loss[-1] < 0.99 * loss[-2]:
    return f"{told}. It was still falling."
  return f"{told}."


def _validation(rows: Rows) -> tuple[str | None, float | None]:
  """Return the name of the first evaluation's loss, and the unigram entropy of its targets if
  known."""
  names = sorted(name for name in metric_names(rows) if re.fullmatch(r"eval/.+/loss", name))
  if not names:
    return None, None
  _, entropy = series(rows, names[0].removesuffix("loss") + "unigram_entropy")
  return names[0], float(entropy[-1]) if len(entropy) else None


def facts(
  rows: Rows, starts: list[dict[str, Any]], environment: dict[str, str], sharding: str
) -> list[dict[str, str]]:
  """Return the facts about a run: {label, value}.

  Args:
    starts: the lines of `history.jsonl`; `sharding` is the content of `sharding.txt`.
  """
  found: dict[str, str] = {}
  times = [datetime.datetime.fromisoformat(row["time"]) for row in starts]
  if times:
    found["Started"] = f"{times[0]:%-d %B %Y, %H:%M} UTC"
    count = sum("environment" in row for row in starts)
    if count > 1:
      found["Starts"] = f"{count}, the last on {times[-1]:%-d %B %Y, %H:%M} UTC"
  if seconds := _seconds(rows):
    found["Time of steps and evaluations"] = duration(seconds)
  if match := _COUNT.search(sharding):
    found["Parameters"] = short(int(match[1].replace(",", "")))
  if "device_kind" in environment:
    kind = environment["device_kind"]
    cpu = environment.get("host_cpu", "")
    machine = f"{environment.get('devices', '1')} x {kind}"
    cores = environment.get("host_cores", "?")
    found["Machine"] = f"{machine} ({cpu}, {cores} cores)" if kind == "cpu" else machine
  return [{"label": label, "value": value} for label, value in found.items()]


def _seconds(rows: Rows) -> float:
  """Return the seconds of all steps, those without a line as long as the next with one, and of all
  evaluations."""
  steps, seconds = series(rows, "train/seconds_per_step")
  total = float(
    sum(s * (step - before) for s, step, before in zip(seconds, steps, [0, *steps[:-1]]))
  )
  names = [
    name for name in metric_names(rows) if name.startswith("eval/") and name.endswith("/seconds")
  ]
  return total + float(sum(series(rows, name)[1].sum() for name in names))


def sample(texts: dict[str, str]) -> dict[str, Any]:
  """Return a sample for the page: `rows` of a label and parts, `status` in words, and whether it is
  `good`.

  A text that goes on from a prompt (`shows` is `more`) is neither good nor bad.
  """
  whole = texts
  texts = {name: _shortened(text) for name, text in texts.items()}
  if texts.get("shows") == "more":
    told = [(texts["input"], "sentinel")]
    prompt = texts["input"]
    rows = [
      ("model", [*told, (texts["prediction"], "")]),
      ("original", [*told, (texts["target"], "")]),
    ]
    return {"rows": rows, "good": None, "status": f"goes on after {len(prompt.split())} words"}
  if "filled" not in texts or "original" not in texts:
    exact = whole["target"] == whole["prediction"]
    rows = [(name, _split(texts[name])) for name in ("input", "target", "prediction")]
    return {"rows": rows, "good": exact, "status": "✓ exact match" if exact else "differs"}
  gapped = _gapped(texts["input"])
  filled = _gapped(texts["filled"])
  original = texts["original"].split()
  told = _same(filled, gapped)
  wanted = _same(original, gapped)
  right = _same(filled, original)
  marks = ["good" if right[n] else "bad" for n in range(len(filled))]
  marks = [
    "" if told[n] and word != BLANK else mark for n, (word, mark) in enumerate(zip(filled, marks))
  ]
  rows = [
    ("with gaps", _joined(gapped, ["sentinel" if word == BLANK else "" for word in gapped])),
    ("model", _joined(filled, marks)),
    ("original", _joined(original, ["" if same else "sentinel" for same in wanted])),
  ]
  good = marks.count("good")
  words = len(marks) - marks.count("")
  return {
    "rows": rows,
    "good": bool(words) and good == words,
    "status": f"{good} of {words} words as in the original",
  }


def _split(text: str) -> Parts:
  parts = [part for part in _SENTINEL.split(text) if part]
  return [(part, "sentinel" if _SENTINEL.fullmatch(part) else "") for part in parts]


def _shortened(text: str) -> str:
  """Return a text of at most `_MOST_CHARACTERS` and `_MOST_WORDS`; a longer one ends with an
  ellipsis."""
  short = text[:_MOST_CHARACTERS]
  words = short.split(maxsplit=_MOST_WORDS)
  if len(words) > _MOST_WORDS:
    return " ".join(words[:_MOST_WORDS]) + " …"
  return short if len(text) <= _MOST_CHARACTERS else f"{short}…"


def _gapped(text: str) -> list[str]:
  """Return the words of a text; one that holds a sentinel or a mask is a gap as a whole."""
  return [BLANK if _GAP.search(word) else word for word in text.split()]


def _same(words: list[str], others: list[str]) -> list[bool]:
  """Return which words belong to a longest common subsequence with the others."""
  numbers = {word: number for number, word in enumerate(dict.fromkeys([*words, *others]))}
  ids_N = np.asarray([numbers[word] for word in words], np.int32)
  ids_M = np.asarray([numbers[word] for word in others], np.int32)
  # lengths[i, j]: of a longest common subsequence of the words from i and the others from j
  lengths = np.zeros((len(words) + 1, len(others) + 1), np.int32)
  for i in reversed(range(len(words))):
    after = lengths[i + 1]
    best = np.where(ids_M == ids_N[i], after[1:] + 1, after[:-1])
    lengths[i, :-1] = np.maximum.accumulate(best[::-1])[::-1]
  same = [False] * len(words)
  i = j = 0
  while i < len(words) and j < len(others):
    if words[i] == others[j]:
      same[i] = True
      i += 1
      j += 1
    elif lengths[i + 1, j] >= lengths[i, j + 1]:
      i += 1
    else:
      j += 1
  return same


def _joined(words: list[str], marks: list[str]) -> Parts:
  """Return words with spaces between them; neighbours of one class are one part."""
  parts: Parts = []
  for word, mark in zip(words, marks):
    if parts and parts[-1][1] == mark and mark != "sentinel":
      parts[-1] = f"{parts[-1][0]} {word}", mark
    else:
      parts += [*([(" ", "")] if parts else []), (word, mark)]
  return parts

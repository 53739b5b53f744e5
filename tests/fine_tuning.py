"""Small labelled data sets, and changes to an encoder's recipe, for every fine-tuning objective."""

import dataclasses
import itertools
import json
import pathlib
from typing import Any

NUMBERS = "one two three four five six seven eight nine ten eleven twelve".split()
PAIRS = tuple(itertools.product(NUMBERS, NUMBERS))


@dataclasses.dataclass(frozen=True)
class FineTuning:
  """The data of an objective, in a source's format, and the recipe's values that use it."""

  source_format: str
  content: str
  task: dict[str, Any]
  head: dict[str, Any]


def classification_table() -> str:
  lines = ["text\tlabel\n"]
  for first, second in PAIRS:
    label = "same" if first == second else "other"
    lines.append(f"{first} {second}\t{label}\n")
  return "".join(lines)


def tagged_sentences() -> str:
  return "".join(f"{first} O\nbefore B\n{second} O\n\n" for first, second in PAIRS)


def multiple_choice_rows() -> str:
  rows = []
  for text, option in PAIRS:
    if option == text:
      continue
    # Both labels must occur, so the answers about "six" name the wrong option
    label = 0 if option == "six" else 1
    rows.append(json.dumps({"text": text, "options": [option, text, "none"], "label": label}))
  return "\n".join(rows)


def question_rows() -> str:
  rows = []
  for answer, other_word in PAIRS:
    row = {
      "question": f"which of {answer} {other_word}?",
      "context": f"{answer}, not {other_word}.",
      "answers": [{"text": answer, "answer_start": 0}],
    }
    rows.append(json.dumps(row))
  return "\n".join(rows)


FINE_TUNING = {
  "classification": FineTuning(
    source_format="tsv",
    content=classification_table(),
    task={"text": "{text}", "labels": ["same", "other"]},
    head={"name": "classification", "labels": 2},
  ),
  "tagging": FineTuning(
    source_format="conll",
    content=tagged_sentences(),
    task={"tags_field": "1", "tags": ["O", "B"]},
    head={"name": "tokens", "labels": 2},
  ),
  "multiple_choice": FineTuning(
    source_format="jsonl",
    content=multiple_choice_rows(),
    task={"text": "{text}?", "options": "options", "choices": 3},
    head={"name": "multiple_choice", "choices": 3},
  ),
  "span_qa": FineTuning(
    source_format="jsonl",
    content=question_rows(),
    task={"stride": 16},
    head={"name": "spans"},
  ),
}


def fine_tuning(objective: str, folder: pathlib.Path) -> list[str]:
  """Writes the data into a folder and returns overrides, `KEY=VALUE`, of an encoder's recipe."""
  setup = FINE_TUNING[objective]
  (folder / "data").write_text(setup.content)
  source = f"{setup.source_format}:train={folder}/data,validation={folder}/data"
  cache = str(folder / "cache")
  task = {"name": objective, "length": 64, "source": source, "cache": cache} | setup.task
  slots = {"task": task, "objective": {"name": objective}, "model.head": setup.head}
  return [f"{slot}={json.dumps(values)}" for slot, values in slots.items()]

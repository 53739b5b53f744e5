"""A little labelled data for every objective of fine-tuning, and the changes to an encoder's recipe
that use it."""

import json
import pathlib

NUMBERS = "one two three four five six seven eight nine ten eleven twelve".split()
FINE_TUNING = {  # objective: form of its data, that data, the task, the head
  "classification": (
    "tsv",
    "text\tlabel\n"
    + "".join(f"{w} {v}\t{'same' if w == v else 'other'}\n" for w in NUMBERS for v in NUMBERS),
    {"text": "{text}", "labels": ["same", "other"]},
    {"name": "classification", "labels": 2},
  ),
  "tagging": (
    "conll",
    "".join(f"{w} O\nbefore B\n{v} O\n\n" for w in NUMBERS for v in NUMBERS),
    {"tags_field": "1", "tags": ["O", "B"]},
    {"name": "tokens", "labels": 2},
  ),
  "multiple_choice": (
    "jsonl",
    "\n".join(
      json.dumps({"text": w, "options": [v, w, "none"], "label": 1 if v != "six" else 0})
      for w in NUMBERS
      for v in NUMBERS
      if v != w
    ),
    {"text": "{text}?", "options": "options", "choices": 3},
    {"name": "multiple_choice", "choices": 3},
  ),
  "span_qa": (
    "jsonl",
    "\n".join(
      json.dumps(
        {
          "question": f"which of {w} {v}?",
          "context": f"{w}, not {v}.",
          "answers": [{"text": w, "answer_start": 0}],
        }
      )
      for w in NUMBERS
      for v in NUMBERS
    ),
    {"stride": 16},
    {"name": "spans"},
  ),
}


def fine_tuning(objective: str, folder: pathlib.Path) -> list[str]:
  """Writes the data into a folder and returns the overrides, `KEY=VALUE`, of a recipe such as
  RoBERTa's."""
  form, contents, arguments, head = FINE_TUNING[objective]
  (folder / "data").write_text(contents)
  data = {
    "source": f"{form}:train={folder}/data,validation={folder}/data",
    "cache": str(folder / "cache"),
  }
  task = {"name": objective, "length": 64} | data | arguments
  slots = {"task": task, "objective": {"name": objective}, "model.head": head}
  return [f"{slot}={json.dumps(values)}" for slot, values in slots.items()]

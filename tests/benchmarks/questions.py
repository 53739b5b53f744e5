"""A small suite of questions: its files, its command and its results."""

import json
import pathlib
import sys

import json_lines

NUMBER = 400  # questions of the largest file


def write_questions(folder: pathlib.Path) -> pathlib.Path:
  """Write the files of three tasks of CORE, and return their folder."""
  choices = []
  for n in range(NUMBER):
    words = " ".join(["many"] * (n % 9))
    row = {"query": f"Door {n} is {words}", "choices": ["open", f"shut {n % 5}"], "gold": n % 2}
    choices.append(row)
  json_lines.write(folder / "copa.jsonl", choices)
  schemas = [
    {"context_options": [f"Ann {n} saw", f"Bob {n} saw"], "continuation": "it.", "gold": n % 2}
    for n in range(40)
  ]
  json_lines.write(folder / "winograd_wsc.jsonl", schemas)
  words = [{"context": f"One, two, {n}", "continuation": "three"} for n in range(40)]
  json_lines.write(folder / "lambada_openai.jsonl", words)
  return folder


def command(model, data, output) -> list[str]:
  return [f"--workdir={model}", "--suite=core", f"--data={data}", f"--output={output}"]


def program(flags: list[str]) -> list[str]:
  """Return the command in a process of its own, which knows the variant of the recipe."""
  code = (
    "import sys, tests.recipes.nano_decoder; from t5x_like import command_line, evaluate; "
    "command_line.run_program(evaluate.main)"
  )
  return [sys.executable, "-c", code, *flags]


def read_table(output: pathlib.Path) -> dict:
  return json.loads((output / "results.json").read_text())["tasks"]

"""Check docs/reproduce.md.

Commands parse, recipes load, and the flags in a row of a table fit the command of its section.
"""

import pathlib
import re
import shlex

import pytest

from t5x_like import command_line, evaluate, recipes, slots
from t5x_like.benchmarks.suite import RECIPES
from t5x_like.config import Init
from t5x_like.data import tasks
from t5x_like.errors import UserError
from t5x_like.training.resolve import resolve

REPO = pathlib.Path(__file__).resolve().parents[1]
PAGE = (REPO / "docs/reproduce.md").read_text()
COMMAND = re.compile(r"^python -m (\S+) (.*)$", re.MULTILINE)
CODE_SPAN = re.compile(r"`([^`]+)`")
# A flag and its further values, as in `--config.KEY=A`, `B`, `C`.
FLAG_WITH_VALUES = re.compile(r"`(--config\.[^`=]+=[^`]+)`((?:, `[^`:-][^`]*`)+)")
RECIPE = re.compile(r"configs/\w+/\w+\.py(?::[\w,/]+)?")


class Parsed(Exception):
  """Leave a command after parsing, with its flags."""


def check_train(arguments: list[str]) -> None:
  """Load and resolve the recipe of a `train` command.

  The runs that it starts from or learns from need not exist.
  """
  args, overrides = command_line.parse(arguments, "")
  check_init(recipes.load(args.config, overrides))
  local_overrides = [key for key in overrides if not key.startswith(("init.", "teacher."))]
  config = resolve(recipes.load(args.config, local_overrides))
  name, task_arguments = slots.name_and_arguments("config.task", config.task)
  task = slots.find("config.task.name", name, tasks, "Arguments")
  slots.fill("config.task", {"split": "train", **task_arguments}, task)


def check_init(config) -> None:
  """Check the keys of `config.init`."""
  slots.fill("config.init", {"workdir": "runs/other"} | config.init.to_dict(), Init)


def check_evaluate(arguments: list[str], monkeypatch) -> None:
  """Parse an `evaluate` command; check that a recipe of fine-tuning accepts its keys."""

  def leave(args):
    raise Parsed(args)

  with monkeypatch.context() as patched:
    patched.setattr(evaluate, "_check_flags", leave)
    with pytest.raises(Parsed) as parsed:
      evaluate.main.__wrapped__(arguments)
  args = parsed.value.args[0]
  evaluate._check_flags(args)
  prefix = "--config."
  overrides = [
    argument.removeprefix(prefix) for argument in arguments if argument.startswith(prefix)
  ]
  candidates = [args.config] if args.config else RECIPES.values()
  assert any(accepts(recipe, overrides) for recipe in candidates)


def accepts(recipe: str, overrides: list[str]) -> bool:
  """Return whether a recipe loads with these overrides."""
  try:
    check_init(recipes.load(recipe, overrides))
  except UserError:
    return False
  return True


def check_tool(module: str, arguments: list[str]) -> None:
  """Check that the source of a tool names the flags of a command."""
  source = (REPO / f"{module.replace('.', '/')}.py").read_text()
  for argument in arguments:
    assert f'"{argument.partition("=")[0]}"' in source, (module, argument)


def replace_argument(command: list[str], arguments: str) -> list[str]:
  """Return a command whose recipe has other arguments."""
  replaced = []
  for flag in command:
    if flag.startswith("--config="):
      recipe = flag.partition(":")[0]
      flag = f"{recipe}:{arguments}"
    replaced.append(flag)
  return replaced


def merge_flags(command: list[str], changes: list[str]) -> list[str]:
  """Return a command with flags changed or added."""
  changed_names = [flag.partition("=")[0] for flag in changes]
  unchanged = [flag for flag in command if flag.partition("=")[0] not in changed_names]
  return unchanged + changes


SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]


@pytest.mark.parametrize("section", SECTIONS, ids=[section.splitlines()[0] for section in SECTIONS])
def test_the_commands_of_a_section_parse_and_its_recipes_load(section, monkeypatch):
  # The first commands of the last code block, which the rows below it change.
  train_command = []
  evaluate_command = []
  in_code_block = False
  for line in section.splitlines():
    command = COMMAND.match(line)
    if line.startswith("```"):
      in_code_block = not in_code_block
      if in_code_block:
        train_command = []
        evaluate_command = []
    elif command:
      module = command[1]
      arguments = shlex.split(command[2])
      if module == "t5x_like.train":
        check_train(arguments)
        train_command = train_command or arguments
      elif module == "t5x_like.evaluate":
        check_evaluate(arguments, monkeypatch)
        evaluate_command = evaluate_command or arguments
      else:
        check_tool(module, arguments)
    else:
      for row in expand_values(line):
        check_row(split_spans(row), train_command, evaluate_command, monkeypatch)


def expand_values(line: str) -> list[str]:
  """Return a line once for each value of its flag with several values."""
  match = FLAG_WITH_VALUES.search(line)
  if match is None:
    return [line]
  flag, further_values = match.groups()
  flags = [flag]
  for value in CODE_SPAN.findall(further_values):
    # A string in quotation marks replaces the last string of a JSON value.
    replaced = r'"[^"]*"(?=[^"]*$)' if value.startswith('"') else r"(?<==).*"
    flags.append(re.sub(replaced, value, flag, count=1))
  return [line.replace(match[0], f"`{variant}`") for variant in flags]


def test_a_flag_with_several_values_is_checked_with_each():
  line = "| 6 | noise | `--config.a=1`, `2` `--config.b=3` |"
  assert expand_values(line) == [line.replace(", `2`", ""), line.replace("1`, `2`", "2`")]
  line = """`--config.a='{"name": "x", "at": "y"}'`, `"z"`"""
  assert expand_values(line)[1] == """`--config.a='{"name": "x", "at": "z"}'`"""


def split_spans(line: str) -> list[list[str]]:
  """Split each code span of a line that may be a recipe, its argument, flags or a command."""
  spans = CODE_SPAN.findall(line)
  return [shlex.split(span) for span in spans if span.startswith((":", "-", "c", "e"))]


def check_row(
  spans: list[list[str]], train_command: list[str], evaluate_command: list[str], monkeypatch
) -> None:
  """Check the recipes of a line, and its changes to the commands of the section."""
  recipe_files = [span[0] for span in spans if RECIPE.fullmatch(span[0])]
  for recipe in recipe_files:
    recipes.load(recipe)
  if recipe_files:
    train_command = [f"--config={recipe_files[0]}", "--workdir=runs/row"]
  changes = []
  recipe_arguments = []
  for span in spans:
    if span[0].startswith("--config."):
      changes += [flag for flag in span if "KEY" not in flag]
    elif span[0].startswith(":") and span[0] != ":words":
      recipe_arguments.append(span[0].removeprefix(":"))
  for argument in recipe_arguments:
    check_train(replace_argument(train_command, argument) + changes)
  if changes and not recipe_arguments:
    check_train(train_command + changes)
  for span in spans:
    if span[0] == "evaluate" and len(span) > 1 and span[1] != "…":
      check_evaluate(merge_flags(evaluate_command, span[1:]), monkeypatch)


def test_every_full_recipe_is_on_the_page():
  """Recipes for laptops, for a user's own text and for fine-tuning are exempt."""
  exempt = re.compile(r"configs/finetune/|fashion|blood_cells|my_text|quickstart|t5/prefix_lm")
  missing = []
  for path in sorted((REPO / "configs").rglob("*.py")):
    file = path.relative_to(REPO).as_posix()
    if path.name != "__init__.py" and file not in PAGE and not exempt.search(file):
      missing.append(file)
  assert not missing


def test_the_checks_find_misspelled_flags(monkeypatch):
  with pytest.raises(UserError, match="did you mean 'total_steps'"):
    check_train(["--config=configs/t5/base.py", "--workdir=x", "--config.totl_steps=1"])
  with pytest.raises(UserError, match="config.task.style: found 'bert_stile'"):
    check_row(
      [["--config.task.style=bert_stile"]],
      ["--config=configs/t5/architectures.py", "--workdir=x"],
      [],
      monkeypatch,
    )
  for flag in ("--siute=glue", "--config.init.layres=6"):
    with pytest.raises((UserError, AssertionError)):
      check_row([["evaluate", flag]], [], ["--workdir=x", "--suite=glue"], monkeypatch)

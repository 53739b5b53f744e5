"""Check docs/reproduce.md: commands parse, recipes load, and the changes of a row fit its section's
command."""

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
SPAN = re.compile(r"`([^`]+)`")
RECIPE = re.compile(r"configs/\w+/\w+\.py(?::[\w,/]+)?")


class Parsed(Exception):
  """Carry the parsed flags of a command out of it."""


def check_train(arguments: list[str]) -> None:
  """Load and resolve the recipe of a `train` command; a run that it starts from need not be
  there."""
  args, overrides = command_line.parse(arguments, "")
  own_overrides = [
    argument for argument in overrides if not argument.startswith(("init.", "teacher."))
  ]
  check_init(recipes.load(args.config, overrides))
  config = resolve(recipes.load(args.config, own_overrides))
  name, arguments = slots.name_and_arguments("config.task", config.task)
  slots.fill(
    "config.task",
    {"split": "train", **arguments},
    slots.find("config.task.name", name, tasks, "task"),
  )


def check_init(config) -> None:
  slots.fill("config.init", {"workdir": "runs/other"} | config.init.to_dict(), Init)


def check_evaluate(arguments: list[str], monkeypatch) -> None:
  """Parse a command of `evaluate`, and load a recipe of fine-tuning that takes its keys."""

  def stop(args):
    raise Parsed(args)

  with monkeypatch.context() as patched:
    patched.setattr(evaluate, "_check_flags", stop)
    with pytest.raises(Parsed) as parsed:
      evaluate.main.__wrapped__(arguments)
  args = parsed.value.args[0]
  evaluate._check_flags(args)
  overrides = [
    argument.removeprefix("--config.") for argument in arguments if argument.startswith("--config.")
  ]
  assert any(
    loads(recipe, overrides) for recipe in ([args.config] if args.config else RECIPES.values())
  )


def loads(recipe: str, overrides: list[str]) -> bool:
  try:
    check_init(recipes.load(recipe, overrides))
  except UserError:
    return False
  return True


def check_tool(module: str, arguments: list[str]) -> None:
  source = (REPO / f"{module.replace('.', '/')}.py").read_text()
  for argument in arguments:
    assert f'"{argument.partition("=")[0]}"' in source, (module, argument)


def replace_argument(command: list[str], arguments: str) -> list[str]:
  """Return a command whose recipe has another argument."""
  return [f"{w.partition(':')[0]}:{arguments}" if w.startswith("--config=") else w for w in command]


def merge_flags(evaluating: list[str], arguments: list[str]) -> list[str]:
  """Return a command of `evaluate` with flags changed or added."""
  names = [argument.partition("=")[0] for argument in arguments]
  return [
    argument for argument in evaluating if argument.partition("=")[0] not in names
  ] + arguments


SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]


@pytest.mark.parametrize("section", SECTIONS, ids=[section.splitlines()[0] for section in SECTIONS])
def test_the_commands_of_a_section_parse_and_its_recipes_load(section, monkeypatch):
  training = []
  evaluating = []
  fenced = False
  for line in section.splitlines():
    if line.startswith("```"):
      fenced = not fenced
      training, evaluating = ([], []) if fenced else (training, evaluating)
    elif match := COMMAND.match(line):
      module = match[1]
      arguments = shlex.split(match[2])
      if module == "t5x_like.train":
        check_train(arguments)
        training = training or arguments
      elif module == "t5x_like.evaluate":
        check_evaluate(arguments, monkeypatch)
        evaluating = evaluating or arguments
      else:
        check_tool(module, arguments)
    else:
      check_row(
        [shlex.split(span) for span in SPAN.findall(line) if span[0] in ":-ce"],
        training,
        evaluating,
        monkeypatch,
      )


def check_row(
  spans: list[list[str]], training: list[str], evaluating: list[str], monkeypatch
) -> None:
  """Check the changes that a line of the page names."""
  named = [span[0] for span in spans if RECIPE.fullmatch(span[0])]
  for recipe in named:
    recipes.load(recipe)
  training = [f"--config={named[0]}", "--workdir=runs/row"] if named else training
  changes = [
    argument
    for span in spans
    for argument in span
    if span[0].startswith("--config.") and "KEY" not in argument
  ]
  arguments = [span[0][1:] for span in spans if span[0].startswith(":") and span[0] != ":words"]
  for argument in arguments:
    check_train(replace_argument(training, argument) + changes)
  if changes and not arguments:
    check_train(training + changes)
  for span in spans:
    if span[0] == "evaluate" and len(span) > 1 and span[1] != "…":
      check_evaluate(merge_flags(evaluating, span[1:]), monkeypatch)


def test_every_full_recipe_is_on_the_page():
  """Recipes for laptops, for a user's own text and for fine-tuning are exempt."""
  files = {
    path.relative_to(REPO).as_posix()
    for path in (REPO / "configs").rglob("*.py")
    if path.name != "__init__.py"
  }
  exempt = re.compile(r"configs/finetune/|fashion|blood_cells|my_text|quickstart|t5/prefix_lm")
  missing = sorted(file for file in files if file not in PAGE and not exempt.search(file))
  assert not missing


def test_what_does_not_parse_is_found(monkeypatch):
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

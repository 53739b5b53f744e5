"""Check a train command on this machine before a launcher creates anything that costs money."""

import contextlib
import pathlib
from collections.abc import Sequence

from launch import commands
from t5x_like import recipes
from t5x_like.config import check_values
from t5x_like.errors import UserError

_MODULE = "t5x_like.train"
_PLACEHOLDER_VOCAB_SIZE = 128  # only the hosts may be able to read the vocabulary


def check(
  command: Sequence[str], directory: str = "", folders: Sequence[str] | None = None
) -> None:
  """Check that the recipe of a train command exists and that its flags and keys resolve.

  The check reads no data and no weights. Commands that do not run `t5x_like.train` are not checked.

  Args:
    directory: directory in which the command runs, if this machine has it; default: this project.
    folders: folders of this project that are copied to the hosts. () is the whole project; None
      means that the hosts share a disk.

  Raises:
    UserError: the training program would refuse the command, or the recipe is not copied to the
      hosts.
  """
  flags = train_flags(command)
  if flags is None:
    return
  working_directory = pathlib.Path(directory or commands.ROOT)
  if not working_directory.is_dir():
    working_directory = commands.ROOT
  with contextlib.chdir(working_directory):
    _check_flags(flags, folders)


def train_flags(command: Sequence[str]) -> list[str] | None:
  """Return the flags of `python -m t5x_like.train …` or `t5x-like train …`; None for others."""
  arguments = list(command)
  for index, (argument, following) in enumerate(zip(arguments, arguments[1:])):
    if argument == "-m" and following == _MODULE:
      return arguments[index + 2 :]
    if pathlib.PurePath(argument).name == "t5x-like" and following == "train":
      return arguments[index + 2 :]
  return None


def _check_flags(flags: list[str], folders: Sequence[str] | None) -> None:
  from t5x_like import train

  for flag in flags:
    if flag.partition("=")[0] in ("-h", "--help", "--list"):
      raise UserError(f"the train command: found {flag}, expected flags that train")
  args, overrides, window = train.parse(flags)
  file = pathlib.Path(args.config.partition(":")[0])
  if folders is not None:
    _check_reaches_hosts(file, folders)
  config = recipes.load(args.config, overrides)
  train.check_profile(args.profile, window, config)
  check_values(config)
  _check_slots(config)


def _check_reaches_hosts(file: pathlib.Path, folders: Sequence[str]) -> None:
  """Refuse a recipe outside of the copied folders, which no host would find."""
  is_copied = not file.is_absolute() and ".." not in file.parts
  if folders:
    is_copied = is_copied and file.parts[:1] != () and file.parts[0] in folders
  if not is_copied:
    copied_folders = ", ".join(f"{folder}/" for folder in folders) or "the files"
    raise UserError(
      f"--config={file}: the hosts get {copied_folders} of this project only; put the recipe into "
      "configs/, or leave the check out with --unchecked"
    )


def _check_slots(config) -> None:
  """Resolve a config as a run does, but open no other run, store or vocabulary.

  Only the hosts may be able to read these.
  """
  from t5x_like import objectives, slots
  from t5x_like.data import tasks
  from t5x_like.training.resolve import resolve

  slots.find("config.task.name", config.task.get("name"), tasks, "Arguments")
  objective = slots.find(
    "config.objective.name", config.objective.get("name"), objectives, "Objective"
  )
  if config.init or objective.teacher:
    return
  if config.model.get("vocab_size") == "auto":
    with config.model.ignore_type():
      config.model.vocab_size = _PLACEHOLDER_VOCAB_SIZE
  resolve(config, platform="tpu")

"""The values that a recipe leaves open until its data are read, by the name of its task.

A file `x.py` fills in what the task `x` can know before it is made: `is_open(config)`, and
`complete(config)`, which returns the config and lines that say what was read. It comes before jax,
tensorflow or a model is loaded.
"""

from ml_collections import ConfigDict

from t5x_like import slots
from t5x_like.errors import UserError

_STEPS = 1000  # of a plan, which opens no data
_EVALUATIONS = 10  # of a run


def complete(config: ConfigDict) -> tuple[ConfigDict, list[str]]:
  """Return the config with the values that its data give, and lines that say what was read.

  Raises:
    UserError: the data cannot be used, with all of their problems in one message; or a number of
      steps is open for a task whose examples nothing counts before it is made.
  """
  name = config.task.get("name")
  if name in slots.names(__name__):
    values = slots.module(name, __name__)
    if values.is_open(config):
      return values.complete(config)
  elif config.total_steps is None:
    raise UserError(
      "config.total_steps: found None, expected a number; passes over the examples, "
      f"config.epochs={config.epochs:g}, are counted for the task "
      f"{' or '.join(slots.names(__name__))} only, not for {name!r}"
    )
  return with_steps(config), []


def with_steps(config: ConfigDict, steps: int = _STEPS) -> ConfigDict:
  """Return the config with numbers of steps where it leaves them open; evaluations come after each
  tenth of the run.

  Args:
    steps: the length of the run, where it is open; the default is for plans, which open no data.
  """
  made = ConfigDict(config.to_dict())
  with made.unlocked(), made.ignore_type():
    if made.total_steps is None:
      made.total_steps = steps
    every = max(1, made.total_steps // _EVALUATIONS)
    if made.eval_every is None:
      made.eval_every = every
    if made.checkpoint.get("every", every) is None:
      made.checkpoint.every = every
  return made

"""The values that a recipe leaves open until its data are read, by the name of its task.

A file `x.py` fills in values for the task `x` before the task is made. It has `is_open(config)` and
`complete(config)`, which returns the config and lines that describe the data. It runs before jax,
tensorflow or a model is loaded.
"""

from ml_collections import ConfigDict

from t5x_like import slots
from t5x_like.errors import UserError

_PLAN_STEPS = 1000  # a plan opens no data
_EVALUATIONS_PER_RUN = 10


def complete(config: ConfigDict) -> tuple[ConfigDict, list[str]]:
  """Return the config with the values that its data give, and lines that describe the data.

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


def with_steps(config: ConfigDict, steps: int = _PLAN_STEPS) -> ConfigDict:
  """Return the config with numbers of steps where it leaves them open.

  Evaluations come after each tenth of the run.

  Args:
    config: the config.
    steps: the length of the run, where it is open; the default is for plans, which open no data.
  """
  config = ConfigDict(config.to_dict())
  with config.unlocked(), config.ignore_type():
    if config.total_steps is None:
      config.total_steps = steps
    every = max(1, config.total_steps // _EVALUATIONS_PER_RUN)
    if config.eval_every is None:
      config.eval_every = every
    if config.checkpoint.get("every", every) is None:
      config.checkpoint.every = every
  return config

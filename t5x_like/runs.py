"""Start training runs from Python, as `python -m t5x_like.train` does from a shell."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from t5x_like import train
from t5x_like.files.mirror import copy_small_files
from t5x_like.files.paths import check_directory
from t5x_like.library.task import config_of, override_texts
from t5x_like.report.writer import read_metrics


class Run:
  """A training run, from its recipe to its metrics.

  t5x.Run("configs/t5/base.py:tiny", "runs/tiny", {"total_steps": 100}).train()

  Args:
    config: a recipe as for `--config`, or a config made in Python.
    workdir: the run's directory or address; a run that is in it is resumed.
    overrides: changes to the config: values by key, or `KEY=VALUE` of each `--config.KEY=VALUE`.

  Attributes:
    config: the recipe with the overrides.
    workdir: the directory or address of the run.

  Raises:
    UserError: there is no such recipe, or a key or value is invalid.
  """

  def __init__(
    self, config: str | ConfigDict, workdir: str, overrides: Sequence[str] | Mapping[str, Any] = ()
  ):
    self.config = config_of(config, overrides)
    self._flags: list[str] = []
    if isinstance(config, str):
      self._flags = train.recipe_flags(config, override_texts(overrides))
    self.workdir = check_directory(workdir)

  def train(
    self,
    callbacks: Sequence[Callable[[int, dict[str, float]], object]] = (),
    *,
    from_step: int | None = None,
    profile: range | None = None,
    plan: str | None = None,
  ) -> None:
    """Train to the end, from the newest checkpoint if there is one.

    Args:
      callbacks: functions of a step and its metrics, called for each line of `metrics.jsonl`.
        An exception ends the run.
      from_step: a saved step to go back to; later ones are set aside.
      profile: the steps to record a profiler trace of.
      plan: a plan of `t5x_like.plan --json` that the run is compared with.
    Raises:
      UserError: the config, the data or the workdir do not fit; before the first step, if that can
        be known.
      Preempted: a signal stopped the run; its state is saved.
      NumericError: the loss or the state is not finite.
    """
    train.train_config(self.config, self.workdir, from_step, profile, callbacks, self._flags, plan)

  def metrics(self) -> list[dict[str, Any]]:
    """Return the lines of `metrics.jsonl`: `step`, and values by name."""
    return read_metrics(copy_small_files(self.workdir))

"""Export models during a run, for programs that follow it.

`config.export = {"every": 1000, "format": "gguf"}`.

An export equals the one that `tools.convert_hf` makes from the checkpoint of the same step. A
thread writes it while training continues, from a copy of the weights in the host's memory; the next
export waits for it. It gets its name when it is complete. Exported steps are saved steps: if the
run is killed before an export is complete, the next start makes it from the checkpoint.
"""

import os
import pathlib
import shutil
import threading
from collections.abc import Callable, Mapping

import jax
import numpy as np
from ml_collections import ConfigDict

from t5x_like import config as config_lib
from t5x_like import slots, trust
from t5x_like.errors import UserError, did_you_mean
from t5x_like.files.paths import is_remote
from t5x_like.nn import params
from t5x_like.runtime import process
from t5x_like.saved_model import SavedModel, exports, open_saved_model
from t5x_like.saved_model.model import merge_for_export

_FOLDER = "exports"
_UNFINISHED = ".unfinished-"
_REPLACED = ".replaced-"
Weights = Mapping[str, np.ndarray]


def check_options(config: ConfigDict, saved_every: int) -> ConfigDict:
  """Return a resolved `config.export`.

  Args:
    config: the config of a recipe, not yet resolved.
    saved_every: the resolved `config.checkpoint.every`.
  Raises:
    UserError: a value is wrong.
  """
  values = slots.fill("config.export", config.export, config_lib.Export)
  if values["every"] is None:
    values["every"] = saved_every
  if values["every"] % saved_every:
    raise UserError(
      f"config.export.every: found {values['every']}, expected a multiple of "
      f"config.checkpoint.every ({saved_every}), so that an export that is interrupted can be made "
      "from the checkpoint of its step"
    )
  formats = slots.names(exports)
  if values["format"] not in formats:
    suggestion = did_you_mean(values["format"], formats)
    raise UserError(
      f"config.export.format: found {values['format']!r}, expected one of "
      f"{', '.join(formats)}{suggestion}"
    )
  dtypes = slots.module(values["format"], exports).DTYPES
  if values["dtype"] is not None and values["dtype"] not in dtypes:
    raise UserError(
      f"config.export.dtype: found {values['dtype']!r}, expected one of {', '.join(dtypes)} for "
      f"format {values['format']!r}"
    )
  if values["directory"] is not None:
    trust.check_location("config.export.directory", values["directory"])
  if values["directory"] is not None and is_remote(values["directory"]):
    raise UserError(
      f"config.export.directory: found the address {values['directory']}, expected a local "
      "directory; export checkpoints to addresses with python -m tools.convert_hf"
    )
  return ConfigDict(values)


def require_one_local_process(workdir: str) -> None:
  """Raise UserError if a run in this workdir is at a URL or has several processes."""
  if jax.process_count() > 1 or is_remote(workdir):
    raise UserError(
      "config.export: needs a run of one process in a local workdir; export the checkpoints of "
      "others with python -m tools.convert_hf"
    )


class RunExports:
  """The exports of a run, one at a time in the background.

  Args:
    config: the resolved config, with an export.
    workdir: the run's directory, which holds its config and vocabulary.

  Raises:
    UserError: the model cannot be exported to the format, or a package is missing.
  """

  def __init__(self, config: ConfigDict, workdir: str):
    self._options = config.export
    self._format = slots.module(self._options.format, exports)
    self._total_steps = config.total_steps
    self._workdir = workdir
    directory = self._options.directory or f"{workdir.rstrip('/')}/{_FOLDER}"
    self._directory = pathlib.Path(directory)
    self._thread: threading.Thread | None = None
    self._error: BaseException | None = None
    self._format.require_exportable(open_saved_model(workdir))
    self._remove_unfinished()

  def write_missing(self, step: int, saved_steps: list[int]) -> None:
    """Export the saved steps up to `step` that are due and not exported."""
    for saved_step in sorted(saved_steps):
      if saved_step <= step and self._is_due(saved_step) and not self.path(saved_step).exists():
        self._start(saved_step, lambda saved, number=saved_step: saved.restore(number)[1])

  def write(self, step: int, weights: Mapping[str, jax.Array]) -> None:
    """Start the export of a step if it is due; an earlier one of the step is replaced.

    Args:
      weights: the parameters by name. They are copied before this returns, since the next step
        reuses their memory.
    Raises:
      UserError: the export before it failed.
    """
    if not self._is_due(step):
      return
    self.wait()
    copies = {name: np.array(array) for name, array in weights.items()}
    self._start(step, lambda saved: copies)

  def wait(self) -> None:
    """Wait for the export in progress; raise its error, if it failed."""
    if self._thread is not None:
      self._thread.join()
      self._thread = None
    error = self._error
    self._error = None
    if error is not None:
      raise error

  def path(self, step: int) -> pathlib.Path:
    """Return the directory or the file of a step's export."""
    return self._directory / f"{step}{self._format.SUFFIX}"

  def _is_due(self, step: int) -> bool:
    return step > 0 and (step % self._options.every == 0 or step == self._total_steps)

  def _start(self, step: int, read_weights: Callable[[SavedModel], Weights]) -> None:
    self.wait()

    def export_step() -> None:
      try:
        self._export(step, read_weights)
      except BaseException as error:  # raised by `wait`, in the thread of training
        self._error = error

    # The thread is no daemon, so the program ends after the export.
    self._thread = threading.Thread(target=export_step, name="export")
    self._thread.start()

  def _export(self, step: int, read_weights: Callable[[SavedModel], Weights]) -> None:
    saved = open_saved_model(self._workdir)
    weights = read_weights(saved)
    arrays = {name: weights[name] for name in params.named_params(saved.model)}
    with jax.default_device(_host_device()):  # the others have no memory to spare
      model = merge_for_export(params.with_arrays(saved.model, arrays))
    final = self.path(step)
    self._directory.mkdir(parents=True, exist_ok=True)
    unfinished = self._directory / f"{_UNFINISHED}{final.name}"
    context = exports.describe(saved)
    self._format.write(model, str(unfinished), context, self._options.dtype)
    if final.exists():  # after a rollback, the run has reached this step again
      replaced = self._directory / f"{_REPLACED}{final.name}"
      os.replace(final, replaced)
      os.replace(unfinished, final)
      _remove(replaced)
    else:
      os.replace(unfinished, final)
    process.log(f"exported step {step} to {final}")

  def _remove_unfinished(self) -> None:
    """Remove the remains of interrupted exports."""
    for prefix in (_UNFINISHED, _REPLACED):
      for path in self._directory.glob(f"{prefix}*"):
        _remove(path)


def _host_device() -> jax.Device | None:
  """Return the CPU as a device; None if jax was started without it."""
  try:
    return jax.local_devices(backend="cpu")[0]
  except RuntimeError:
    return None


def _remove(path: pathlib.Path) -> None:
  if path.is_dir():
    shutil.rmtree(path)
  else:
    path.unlink()

"""Open a run: assemble it, take its workdir and restore its state."""

import contextlib
from collections.abc import Iterator

from ml_collections import ConfigDict

from t5x_like import slots
from t5x_like.files.paths import check_directory
from t5x_like.training import restoring
from t5x_like.training.assembly import assemble
from t5x_like.training.run import TrainingRun
from t5x_like.training.session import Session


@contextlib.contextmanager
def open_training_run(
  config: ConfigDict, workdir: str, from_step: int | None = None
) -> Iterator[TrainingRun]:
  """Open a run, resuming it if the workdir holds one.

  On exit, wait for the last checkpoint and leave the workdir. All errors that can be detected are
  raised before the first step: in the config, the mesh, the data, the vocabulary, or a workdir of
  another config.

  Args:
    config: resolved (`resolve.resolve`).
    workdir: a directory, made if missing, or an address that fsspec knows.
    from_step: a saved step to return to, once. Later steps are set aside; later starts with the
      same `from_step` continue normally.
  """
  address = check_directory(workdir)
  trackers = [
    slots.make(f"config.trackers.{name}", values, "t5x_like.report.trackers", "Tracker")
    for name, values in {"console": "console", **config.trackers}.items()
  ]
  assembly = assemble(config, address)
  with Session(address, assembly.config, assembly.identity, trackers) as session:
    goes_back = from_step is not None and from_step != session.past.requested_step
    restored = restoring.restore(assembly, session, from_step if goes_back else None)
    session.begin(restored.step, assembly, restored.loaded, from_step, goes_back)
    run_class = TrainingRun
    if config.checkpoint.emergency:
      from t5x_like.training.emergency_run import EmergencyRun

      run_class = EmergencyRun
    yield run_class(assembly, session, restored)

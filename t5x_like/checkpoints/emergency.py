"""Keep emergency copies of the last steps near every host, in addition to shared checkpoints.

Every few steps each process writes its own shards to a directory of its host: a disk, or memory
(`/dev/shm`). Where the mesh repeats the state, as `replica` does over slices, each slice then holds
all of it. A job that lost hosts continues from the newest step whose shards are all on some
remaining host: a process reads its shards from its own host, and a new host receives its shards
over the mesh from the devices with the same shards. If no step is complete, the job restores the
ordinary checkpoint.

Orbax's own emergency manager (`orbax.checkpoint.experimental.emergency`, 0.12) is not used: its
first slice keeps no copy, it returns no metadata, and it expects the processes of the first start,
so a smaller job cannot continue.
"""

import dataclasses
import json
import logging
import os
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from t5x_like import slots
from t5x_like.checkpoints.emergency_steps import EmergencySteps
from t5x_like.checkpoints.manager import Checkpoints, StateTemplate
from t5x_like.errors import DamageError, UserError, one_line
from t5x_like.files import checked_json
from t5x_like.files.local import check_owner
from t5x_like.files.paths import AnyPath, as_path
from t5x_like.parallel import distributed

STARTS_FILE = "emergency.json"
_HISTORY_FILE = "history.jsonl"
_ID = re.compile("[0-9a-f]{32}")
_MAX_REMEMBERED_STARTS = 64
_log = logging.getLogger("t5x_like.checkpoint")


@dataclasses.dataclass(frozen=True)
class EmergencyOptions:
  """`config.checkpoint.emergency`: copies of the state near each host, besides the checkpoints.

  Attributes:
    directory: a directory on a disk of each host or in its memory, such as /dev/shm/t5x_like;
      $VARIABLES are replaced by the host's environment variables.
    every: steps between copies; the last two are kept.
  """

  directory: str
  every: slots.PositiveInt = 10


def check_options(values: Any) -> ConfigDict:
  """Check a `config.checkpoint.emergency` and return it with all defaults.

  Raises:
    UserError: a key or value is wrong, or the directory is a URL, or relative.
  """
  filled = slots.fill("config.checkpoint.emergency", values, EmergencyOptions)
  if not filled["directory"].startswith(("/", "$")):
    raise UserError(
      f"config.checkpoint.emergency.directory: found {filled['directory']!r}, expected an "
      "absolute path on each host's own disk or in its memory, such as /dev/shm/t5x_like"
    )
  return ConfigDict(filled)


class StartRecord(NamedTuple):
  """One start of a run, a row of `emergency.json`.

  Attributes:
    id: the name of the directory of its copies.
    first_step: the step that it continued from.
    history_lines: the number of lines of `history.jsonl` that named a step before this start: lines
      of rollbacks and of all starts, also of those without copies.
  """

  id: str
  first_step: int
  history_lines: int


class StartHistory:
  """Record the starts of a run in its workdir, to know which emergency copies belong to it.

  A copy of an earlier start belongs to the run only if its step is at most the smallest one that
  the run continued from later.

  Args:
    workdir: process 0 reads and writes there.
  """

  def __init__(self, workdir: AnyPath):
    self._file = workdir / STARTS_FILE
    self._history = workdir / _HISTORY_FILE
    self._records: list[StartRecord] | None = None
    self._history_steps: list[int] = []

  @property
  def records(self) -> list[StartRecord]:
    """The recorded starts, oldest first; all processes must read the property the first time."""
    if self._records is None:
      rows, self._history_steps = distributed.broadcast_from_first(
        lambda: [self._read(), self._read_history_steps()]
      )
      self._records = [StartRecord(*row) for row in rows]
    return self._records

  @property
  def ids(self) -> list[str]:
    """The ids of the recorded starts, oldest first."""
    return [record.id for record in self.records]

  @property
  def current_id(self) -> str:
    """The id of this start."""
    return self.records[-1].id

  def begin(self, step: int) -> None:
    """Record that the run continues from a step; all processes must call it.

    Raises:
      UserError: the record cannot be written.
    """
    earlier = self.records

    def write() -> list[StartRecord]:
      record = StartRecord(uuid.uuid4().hex, int(step), len(self._read_history_steps()))
      records = [*earlier, record][-_MAX_REMEMBERED_STARTS:]
      try:
        self._file.write_text(json.dumps(records))
      except OSError as error:
        raise UserError(
          f"{self._file}: cannot be written: {error.strerror or one_line(error)}; free space"
        ) from error
      return records

    rows = distributed.broadcast_from_first(write)
    self._records = [StartRecord(*row) for row in rows]

  def belongs_to_run(self, start_id: str, step: int) -> bool:
    """Return whether a copy of a step by a start belongs to the run's current history."""
    if start_id not in self.ids:
      return False
    position = self.ids.index(start_id)
    record = self.records[position]
    later_first_steps = [later.first_step for later in self.records[position + 1 :]]
    # One line more, as the start itself adds a line.
    later_history_steps = self._history_steps[record.history_lines + 1 :]
    return all(step <= first_step for first_step in later_first_steps + later_history_steps)

  def _read(self) -> list[StartRecord]:
    """Return the recorded starts; none, with a warning, if the file is damaged."""
    records = []
    try:
      for start_id, step, lines in json.loads(self._file.read() or b"[]"):
        if _ID.fullmatch(start_id) and _is_count(step) and _is_count(lines):
          records.append(StartRecord(start_id, step, lines))
    except (ValueError, TypeError, RecursionError) as error:
      _log.warning(
        "%s: damaged (%s); the emergency copies of earlier starts are not used",
        self._file,
        one_line(error),
      )
      return []
    return records

  def _read_history_steps(self) -> list[int]:
    """Return the steps that lines of `history.jsonl` name."""
    content = self._history.read() or b""
    rows = checked_json.read_rows(content, self._history, lambda row: None)
    return [row["step"] for row, _ in rows if type(row.get("step")) is int]


def _is_count(number: Any) -> bool:
  return type(number) is int and number >= 0


class _NearbyCheckpoints(Checkpoints):
  """`Checkpoints` whose steps are `EmergencySteps`."""

  def __init__(self, directory: str, starts: StartHistory):
    path = os.path.expandvars(directory)
    if "$" in path:
      raise UserError(
        f"config.checkpoint.emergency.directory: found {path!r}, expected variables that are set "
        "on every host"
      )
    try:
      os.makedirs(path, exist_ok=True)
    except OSError as error:
      raise UserError(
        f"config.checkpoint.emergency.directory={path}: cannot be created: {error.strerror}"
      ) from error
    try:
      check_owner(path, allow_link=True)  # in /dev/shm, another user may have created it before
    except OSError as error:
      raise UserError(
        f"config.checkpoint.emergency.directory={path}: {error.strerror}, or name another directory"
      ) from None
    super().__init__(path)
    self._store = EmergencySteps(path, starts)

  def ignore_before(self, step: int) -> None:
    """Ignore the copies of steps before this one from now on."""
    self._store.min_step = step

  def agreed_steps(self) -> list[int]:
    """Return the steps of which any process holds a copy, the same list in all processes.

    All processes must call it.
    """
    return self._store.agreed_steps()

  def _move_aside(self, steps: list[int], suffix: str) -> None:
    """Leave damaged copies to `EmergencySteps`, which removes them."""


class EmergencyCheckpoints(Checkpoints):
  """Checkpoints of a run, with emergency copies near its hosts.

  Args:
    directory, options: see `Checkpoints`.
    values: `config.checkpoint.emergency`, see `EmergencyOptions`.
  """

  def __init__(self, directory, values: Mapping[str, Any], **options):
    super().__init__(directory, **options)
    self._starts = StartHistory(as_path(directory).parent)
    self._nearby = _NearbyCheckpoints(values["directory"], self._starts)

  def save_copy(
    self,
    step: int,
    state: dict,
    metadata: dict[str, Any],
    before: Callable[[], None],
    announce: Callable[[str], None] = lambda state_digest: None,
  ) -> None:
    """Start an emergency copy of a step; return once the tensors may be donated.

    See `save` for the arguments.

    A process that cannot write its copy prints a warning and continues.

    Raises:
      NumericError: naming a tensor that is not finite.
    """
    self._nearby.save(step, state, metadata, before=before, announce=announce)

  def restore(
    self, abstract_state: StateTemplate, step: int | None = None
  ) -> tuple[int, dict, dict] | None:
    """Restore a step as `Checkpoints.restore` does; the newest may be an emergency copy.

    An emergency copy is saved as a checkpoint at once.
    """
    if step is None:
      restored = self._restore_newest(abstract_state)
    else:
      restored = super().restore(abstract_state, step)
    self._starts.begin(restored[0] if restored else 0)
    self._nearby.ignore_before(0)
    return restored

  def _restore_newest(self, abstract_state: StateTemplate) -> tuple[int, dict, dict] | None:
    saved = max(self._store.agreed_steps(), default=0)
    restored = self._restore_copy(abstract_state, saved)
    if restored is None:
      return self._restore_fallback(abstract_state, saved)
    step, state, metadata = restored
    if step > saved:
      super().save(step, state, dict(metadata))  # the next failure may take the copies
    return restored

  def _restore_copy(
    self, abstract_state: StateTemplate, min_step: int
  ) -> tuple[int, dict, dict] | None:
    """Restore the newest emergency copy from a step on; None, with a warning, if it is damaged."""
    try:
      self._nearby.ignore_before(min_step)
      restored = self._nearby.restore(abstract_state)
      self.restored_digest = self._nearby.restored_digest
      return restored
    except DamageError as error:
      reason = one_line(error).partition("; restore a copy")[0]
      _log.warning("%s: the ordinary checkpoint is used", reason)
      return None

  def _restore_fallback(
    self, abstract_state: StateTemplate, newest: int
  ) -> tuple[int, dict, dict] | None:
    """Restore an ordinary checkpoint or, if the newest are damaged, a copy newer than that."""
    damage = None
    restored = None
    try:
      restored = super().restore(abstract_state)
    except DamageError as error:
      damage = error
    intact = restored[0] if restored else 0
    if damage is None and intact == newest:
      return restored
    self._nearby.ignore_before(intact + 1)
    if self._nearby.agreed_steps():
      restored = None  # frees its memory: two states may not fit
      restored = self._restore_copy(abstract_state, intact + 1)
      if restored is None and damage is None:
        restored = super().restore(abstract_state, intact)
    if restored is None and damage is not None:
      raise damage
    return restored

  def set_aside(self, after: int, suffix: str) -> list[int]:
    self._starts.begin(after)
    return super().set_aside(after, suffix)

  def close(self) -> None:
    try:
      self._nearby.close()
    finally:
      super().close()

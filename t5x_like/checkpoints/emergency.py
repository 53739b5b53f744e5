"""Emergency copies: the state of the last steps near every host, beside the checkpoints that all
hosts share.

Every few steps each process writes its own shards to a directory of its host: a disk, or memory
(`/dev/shm`). Where the mesh repeats the state, as `replica` does over slices, each slice then holds
all of it. A job that has lost hosts goes on from the newest step that the processes hold together:
a process reads its shards at home, and a new host receives its shards over the mesh from the
devices that hold the same. Otherwise the ordinary checkpoint serves.

Orbax's own emergency manager (`orbax.checkpoint.experimental.emergency`, 0.12) is not used: its
first slice keeps no copy, it returns no metadata, and it expects the processes of the first start,
so no smaller job can go on.
"""

import dataclasses
import json
import logging
import os
import re
import stat
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict

from t5x_like import slots
from t5x_like.checkpoints.emergency_steps import EmergencySteps
from t5x_like.checkpoints.manager import Checkpoints, StateTemplate
from t5x_like.errors import DamageError, UserError, one_line
from t5x_like.files import checked_json
from t5x_like.files.paths import AnyPath, as_path
from t5x_like.parallel import distributed

# in the workdir
FILE = "emergency.json"
_HISTORY = "history.jsonl"
_ID = re.compile("[0-9a-f]{32}")
_STARTS = 64  # that are remembered
_log = logging.getLogger("t5x_like.checkpoint")


@dataclasses.dataclass(frozen=True)
class EmergencyOptions:
  """`config.checkpoint.emergency`: copies of the state near each host, beside the checkpoints.

  Attributes:
    directory: on a disk of each host or in its memory, such as /dev/shm/t5x_like; $VARIABLES of the
      host are replaced.
    every: steps between copies; the last two are kept.
  """

  directory: str
  every: slots.PositiveInt = 10


def check_options(values: Any) -> ConfigDict:
  """Return a `config.checkpoint.emergency` with all defaults.

  Raises:
    UserError: a key or value is wrong, or the directory is an address, or relative.
  """
  filled = slots.fill("config.checkpoint.emergency", values, EmergencyOptions)
  if not filled["directory"].startswith(("/", "$")):
    raise UserError(
      f"config.checkpoint.emergency.directory: found {filled['directory']!r}, expected an "
      "absolute path on each host's own disk or in its memory, such as /dev/shm/t5x_like"
    )
  return ConfigDict(filled)


class StartHistory:
  """The starts of a run, in its workdir. They tell its copies from other runs' and from steps that
  it went back from.

  Each start names its copies by an id of its own, and records the step that it went on from, and
  how many lines of `history.jsonl` name a step: of starts, those without copies too, and of
  rollbacks. A copy of an earlier start counts only up to the smallest step that the run went on
  from later.

  Args:
    workdir: process 0 reads and writes there.
  """

  def __init__(self, workdir: AnyPath):
    self._file = workdir / FILE
    self._history = workdir / _HISTORY
    self._known = None
    self._steps: list[int] = []  # of the history

  @property
  def known(self) -> list[list]:
    """Id, first step and lines of each start, oldest first; all processes must ask first at the
    same time."""
    if self._known is None:
      self._known, self._steps = distributed.broadcast_from_first(
        lambda: [self._read(), self._past()]
      )
    return self._known

  @property
  def current(self) -> str:
    """The id of this start."""
    return self.known[-1][0]

  def begin(self, step: int) -> None:
    """Record that the run goes on from a step; all processes must call it. Raise UserError if it
    cannot be written."""
    known = self.known

    def write():
      found = [*known, [uuid.uuid4().hex, int(step), len(self._past())]][-_STARTS:]
      try:
        self._file.write_text(json.dumps(found))
      except OSError as error:
        raise UserError(
          f"{self._file}: cannot be written: {error.strerror or one_line(error)}; free space"
        ) from error
      return found

    self._known = distributed.broadcast_from_first(write)

  def belongs_to_run(self, start: str, step: int) -> bool:
    """Return whether a copy of a step by a start is on the run's way."""
    place = next((i for i, (one, *_) in enumerate(self.known) if one == start), None)
    if place is None:
      return False
    later = [first for _, first, _ in self.known[place + 1 :]]
    # after its own line
    return all(step <= first for first in later + self._steps[self.known[place][2] + 1 :])

  def _read(self) -> list[list]:
    try:
      found = json.loads(self._file.read() or b"[]")
      whole = lambda *numbers: all(type(n) is int and n >= 0 for n in numbers)  # noqa: E731
      return [
        [one, step, lines]
        for one, step, lines in found
        if _ID.fullmatch(one) and whole(step, lines)
      ]
    except (ValueError, TypeError, RecursionError) as error:
      _log.warning(
        "%s: damaged (%s); the emergency copies of earlier starts are not used",
        self._file,
        one_line(error),
      )
      return []

  def _past(self) -> list[int]:
    rows = checked_json.read_rows(self._history.read() or b"", self._history, lambda row: None)
    return [row["step"] for row, _ in rows if type(row.get("step")) is int]


def _check_owner(directory: str) -> None:
  """Raise UserError if another user can replace the copies in a directory, as in one that waited in
  /dev/shm for it."""
  where = f"config.checkpoint.emergency.directory={directory}"
  trusted = (os.geteuid(), 0)
  status = os.stat(directory)
  if status.st_uid not in trusted or os.lstat(directory).st_uid not in trusted:
    kind = "link" if os.path.islink(directory) else "directory"
    raise UserError(
      f"{where}: found a {kind} of another user, expected one of yours; name another directory"
    )
  if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
    raise UserError(
      f"{where}: found a directory that every user may change; take that right away: chmod o-w "
      f"{directory}"
    )


class _Near(Checkpoints):
  """`Checkpoints` of which the steps are `NearSteps`."""

  def __init__(self, directory: str, starts: StartHistory):
    here = os.path.expandvars(directory)
    if "$" in here:
      raise UserError(
        f"config.checkpoint.emergency.directory: found {here!r}, expected variables that are set "
        "on every host"
      )
    try:
      os.makedirs(here, exist_ok=True)
    except OSError as error:
      raise UserError(
        f"config.checkpoint.emergency.directory={here}: cannot be made: {error.strerror}"
      ) from error
    _check_owner(here)
    super().__init__(here)
    self._store = EmergencySteps(here, starts)

  def since(self, step: int) -> "_Near":
    """Ignore the steps before this one."""
    self._store.least = step
    return self

  def agreed_steps(self) -> list[int]:
    """Return the steps of which any process holds a copy; all processes must call it."""
    return self._store.agreed_steps()

  def _move_aside(self, steps: list[int], word: str) -> None:
    """Leave damaged copies to `NearSteps`, which removes them."""


class EmergencyCheckpoints(Checkpoints):
  """Checkpoints of a run with emergency copies beside them.

  Args:
    directory, **ordinary: of `Checkpoints`.
    values: `config.checkpoint.emergency`, see `EmergencyOptions`.
  """

  def __init__(self, directory, values: Mapping[str, Any], **ordinary):
    super().__init__(directory, **ordinary)
    self._starts = StartHistory(as_path(directory).parent)
    self._near = _Near(values["directory"], self._starts)

  def save_copy(
    self, step: int, state: dict, metadata: dict[str, Any], before: Callable[[], None]
  ) -> None:
    """Start an emergency copy of a step; return once the tensors may be donated. See `save` for the
    arguments.

    A process that cannot write its copy warns and goes on.

    Raises:
      NumericError: naming a tensor that is not finite.
    """
    self._near.save(step, state, metadata, before=before)

  def restore(
    self, abstract_state: StateTemplate, step: int | None = None
  ) -> tuple[int, dict, dict] | None:
    """As `Checkpoints.restore`, but the newest step may be an emergency copy, which is then saved
    at once as well."""
    found = None
    if step is None:
      saved = max(self._store.agreed_steps(), default=0)
      try:
        found = self._near.since(saved).restore(abstract_state)
      except DamageError as error:
        _log.warning(
          "%s: the ordinary checkpoint is used", one_line(error).partition("; restore a copy")[0]
        )
      if found and found[0] > saved:
        super().save(found[0], found[1], dict(found[2]))  # the next failure may take the copies
      found = found or self._restore_fallback(abstract_state, saved)
    else:
      found = super().restore(abstract_state, step)
    self._starts.begin(found[0] if found else 0)
    self._near.since(0)
    return found

  def _restore_fallback(
    self, abstract_state: StateTemplate, newest: int
  ) -> tuple[int, dict, dict] | None:
    """Restore an ordinary checkpoint or, if the newest ones are damaged, a copy that is newer than
    the intact one."""
    damage = None
    try:
      found = super().restore(abstract_state)
    except DamageError as error:
      found = None
      damage = error
    intact = found[0] if found else 0
    if damage is None and intact == newest:
      return found
    if any(step > intact for step in self._near.since(intact + 1).agreed_steps()):
      found = None  # makes room: two states may not fit
      try:
        found = self._near.restore(abstract_state)
      except DamageError as error:
        _log.warning(
          "%s: the ordinary checkpoint is used", one_line(error).partition("; restore a copy")[0]
        )
      if found is None and damage is None:
        found = super().restore(abstract_state, intact)
    if found is None and damage is not None:
      raise damage
    return found

  def set_aside(self, after: int, word: str) -> list[int]:
    self._starts.begin(after)
    return super().set_aside(after, word)

  def close(self) -> None:
    try:
      self._near.close()
    finally:
      super().close()

"""Which host is the slowest: each tells the others, now and then, how long it works for a step itself.

All processes of a job take equally long for a step, since each waits for the last. What tells them apart is the time
that a host spends on its own: waiting for its data and preparing the step.
"""

import json
import time

import jax

_PREFIX = "t5x_like/hosts/"
_EVERY_SECONDS = 20.0


class Stragglers:
  """Exchanges figures through the coordinator, without a collective; does nothing in a single process."""

  def __init__(self):
    self._seconds, self._steps, self._told = 0.0, 0, time.monotonic()
    self._client = None
    if jax.process_count() > 1:
      from jax._src import distributed  # the key-value store has no public API

      self._client = distributed.global_state.client

  def step_done(self, own_seconds: float) -> dict[str, float]:
    """Notes a step; in process 0, now and then, the slowest host and the mean time of its own work, in seconds."""
    self._seconds, self._steps = self._seconds + own_seconds, self._steps + 1
    if self._client is None or time.monotonic() - self._told < _EVERY_SECONDS:
      return {}
    mine = json.dumps(self._seconds / self._steps)
    self._client.key_value_set(f"{_PREFIX}{jax.process_index()}", mine, allow_overwrite=True)
    self._seconds, self._steps, self._told = 0.0, 0, time.monotonic()
    if jax.process_index():
      return {}
    found = {int(k.rpartition("/")[2]): json.loads(v) for k, v in self._client.key_value_dir_get(_PREFIX)}
    slowest = max(found, key=found.get)
    return {"slowest_host": slowest, "slowest_host_seconds": found[slowest]}

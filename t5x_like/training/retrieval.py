"""Steps of a model that retrieves passages: make the index when it is due, find passages for a batch, update the model.

The index is made every `objective.refresh_every` steps, from the retriever's parameters, of which the state then keeps
a copy, `reference/retriever/…`. So it is a function of the state, and a run that is stopped between two refreshes makes
the same index again when it goes on. The queries, and p(z|x), are of the current parameters.
"""

import dataclasses
import operator
import weakref

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from t5x_like.errors import UserError
from t5x_like.parallel.rules import fetch
from t5x_like.retrieval import shelf
from t5x_like.runtime import process
from t5x_like.training.build import REFERENCE, Parts, abstract_batch
from t5x_like.training.compilation import Cost, compile_step
from t5x_like.training.state import TrainState

_KEPT = operator.attrgetter("reference.retriever")


class Steps:
  """The steps of a phase: `(state, batch) -> (state, metrics)`, which donates the state.

  Attributes:
    cost: of the update; embedding and search are not counted.
  """

  def __init__(self, config: ConfigDict, parts: Parts, task):
    batch = abstract_batch(config, parts.rules, task)
    passages, k = task.passages, batch["passage_tokens"].shape[1] - 1
    self._every, self._shelf = parts.objective.refresh_every, None
    if k:
      self._shelf = shelf(parts.objective.search, parts.model, parts.rules, passages, config.batch_size * (1 + k))
      process.say(
        f"retrieval: {k} of {passages.number:,} passages for each of {config.batch_size} rows, by an index made every"
        f" {self._every:,} steps"
      )
    kept = {name: x for name, x in parts.state.params.items() if name.startswith(REFERENCE)}
    self._copied = jax.jit(
      lambda arrays: {name: jnp.copy(arrays[name.removeprefix(REFERENCE)]) for name in kept},
      out_shardings={name: x.sharding for name, x in kept.items()},
    )
    self._step, self.cost = compile_step(config, parts, batch)
    self._index: tuple[int, jax.Array] | None = None  # the step it was made at, and it
    self._given: tuple[weakref.ref, int] = (lambda: None, 0)  # the last state returned, and its step

  def __call__(self, state: TrainState, batch: dict[str, jax.Array]) -> tuple[TrainState, dict[str, jax.Array]]:
    """Find the passages of a batch and update the model."""
    last, step = self._given
    if last() is not state:
      step = int(fetch(state.step))  # waits for it: only at a start
    if self._shelf:
      state = self._refreshed(state, step)
      batch = self._shelf.filled(state.params, self._index[1], batch)
      del batch["passages"]
    state, metrics = self._step(state, batch)
    self._given = weakref.ref(state), step + 1
    return state, metrics

  def _refreshed(self, state: TrainState, step: int) -> TrainState:
    """Return the state, with the retriever's parameters copied if the index is due; make the index if there is none."""
    due = step - step % self._every
    if step == due:
      state = dataclasses.replace(state, params=state.params | self._copied(state.params))
    if step == due or self._index is None or self._index[0] != due:
      self._index = None  # its memory, before there is another
      self._index = due, self._shelf.index(_KEPT, state.params)
    return state


def compiled(config: ConfigDict, parts: Parts, task) -> tuple[Steps, Cost]:
  """Return the steps for batches of texts, and the cost of an update.

  Raises:
    UserError: the recipe evaluates the loss of given rows, splits a batch, or mixes tasks of several shelves.
  """
  for name, values in config.evals.items():
    if values.name == "loss":
      raise UserError(
        f"config.evals.{name}: the loss is of rows with their passages, which only a step finds; name the evaluator"
        ' `open_qa` instead: config.evals = {"open_qa": {}}'
      )
  if getattr(task, "passages", None) is None:
    raise UserError(
      f"config.task.name: found {config.task.name}, expected open_qa, by itself: passages are of one task"
    )
  steps = Steps(config, parts, task)
  return steps, steps.cost

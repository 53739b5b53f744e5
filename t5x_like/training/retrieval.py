"""Steps of a model that retrieves passages: make the index when it is due, find passages for a
batch, update the model.

The index is made every `objective.refresh_every` steps, from the retriever's parameters, of which
the state then keeps a copy, `reference/retriever/…`. So it is a function of the state, and a run
that is stopped between two refreshes makes the same index again when it goes on. The queries, and
p(z|x), are of the current parameters.
"""

import dataclasses
import operator
import weakref
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from t5x_like.errors import UserError
from t5x_like.parallel.rules import fetch
from t5x_like.retrieval import build_index, open_search
from t5x_like.runtime import process
from t5x_like.training.build import REFERENCE, Parts, abstract_batch
from t5x_like.training.compilation import StepCost, compile_step
from t5x_like.training.state import TrainState

_KEPT = operator.attrgetter("reference.retriever")


class RetrievalStep:
  """The steps of a phase: `(state, batch) -> (state, metrics)`, which donates the state.

  Attributes:
    cost: of the update; embedding and search are not counted.
  """

  def __init__(self, config: ConfigDict, parts: Parts, task):
    batch = abstract_batch(config, parts.rules, task)
    passages = task.passages
    k = batch["passage_tokens"].shape[1] - 1
    self._every = parts.objective.refresh_every
    self._beside = parts.objective.refresh == "beside"
    self._search = None
    if k:
      given = (
        parts.model,
        parts.rules,
        passages,
        config.batch_size * (1 + k),
        self._every if self._beside else 1,
      )
      self._search = open_search(parts.objective.search, *given)
      process.log(
        f"retrieval: {k} of {passages.number:,} passages for each of {config.batch_size} rows, by "
        f"an index made every {self._every:,} steps"
      )
    kept = {name: x for name, x in parts.state.params.items() if name.startswith(REFERENCE)}
    self._copied = jax.jit(
      lambda arrays: {name: jnp.copy(arrays[name.removeprefix(REFERENCE)]) for name in kept},
      out_shardings={name: x.sharding for name, x in kept.items()},
    )
    self._step, self.cost = compile_step(config, parts, batch)
    self._index: tuple[int, Any] | None = None  # the step that it is for, and it
    # the step that it is for, it, and its parts that are made
    self._next: tuple[int, Any, int] = (0, None, 0)
    # the last state returned, and its step
    self._given: tuple[weakref.ref, int] = (lambda: None, 0)

  def __call__(
    self, state: TrainState, batch: dict[str, jax.Array]
  ) -> tuple[TrainState, dict[str, jax.Array]]:
    """Find the passages of a batch and update the model."""
    last, step = self._given
    if last() is not state:
      step = int(fetch(state.step))  # waits for it: only at a start
    if self._search:
      state = self._refreshed(state, step)
      batch = self._search.add_nearest(state.params, self._index[1], batch)
      del batch["passages"]
    state, metrics = self._step(state, batch)
    self._given = weakref.ref(state), step + 1
    return state, metrics

  def _refreshed(self, state: TrainState, step: int) -> TrainState:
    """Return the state, with the retriever's parameters copied if the index is due; make the index
    if there is none."""
    due = step - step % self._every
    if step == due:
      state = dataclasses.replace(state, params=state.params | self._copied(state.params))
    if self._index is None or self._index[0] != due:
      self._index = None  # its memory, before there is another
      ready = self._next[0] == due and self._next[2] == self._search.parts
      self._index = (
        due,
        self._next[1] if ready else build_index(self._search, self._source(state.params), _KEPT),
      )
    if self._beside:
      self._advance(state.params, due + self._every, min(1 + step - due, self._search.parts))
    return state

  def _source(self, arrays: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Return parameters whose reference is the retriever that makes the index in use."""
    before = {
      name.removeprefix(REFERENCE): x
      for name, x in arrays.items()
      if name.startswith(2 * REFERENCE)
    }
    return arrays | before

  def _advance(self, arrays: dict[str, jax.Array], due: int, wanted: int) -> None:
    """Make parts of the index for step `due`, as many as are wanted by now; at a start, more than
    one."""
    at, made, parts = self._next
    if at != due:
      at = due
      made = self._search.empty_index()
      parts = 0
    for number in range(parts, wanted):
      made = self._search.embed_part(_KEPT, arrays, made, number)
    self._next = at, made, max(parts, wanted)


def compile_run_step(config: ConfigDict, parts: Parts, task) -> tuple[RetrievalStep, StepCost]:
  """Return the steps for batches of texts, and the cost of an update.

  Raises:
    UserError: the recipe evaluates the loss of given rows, splits a batch, or mixes tasks of
      several shelves.
  """
  for name, values in config.evals.items():
    if values.name == "loss":
      raise UserError(
        f"config.evals.{name}: the loss is of rows with their passages, which only a step finds; "
        "name the evaluator"
        ' `open_qa` instead: config.evals = {"open_qa": {}}'
      )
  if getattr(task, "passages", None) is None:
    raise UserError(
      f"config.task.name: found {config.task.name}, expected open_qa, by itself: passages are of "
      "one task"
    )
  steps = RetrievalStep(config, parts, task)
  return steps, steps.cost

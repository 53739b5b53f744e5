"""Train a model that retrieves passages: build its index when due, and find passages for batches.

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

_RETRIEVER = operator.attrgetter("reference.retriever")


class RetrievalStep:
  """The steps of a phase: `(state, batch) -> (state, metrics)`, which donates the state.

  Attributes:
    cost: of the update; embedding and search are not counted.
  """

  def __init__(self, config: ConfigDict, parts: Parts, task):
    batch = abstract_batch(config, parts.rules, task)
    passages = task.passages
    num_passages = batch["passage_tokens"].shape[1] - 1
    self._every = parts.objective.refresh_every
    self._indexes_beside = parts.objective.refresh == "beside"
    self._search = None
    if num_passages:
      self._search = open_search(
        parts.objective.search,
        parts.model,
        parts.rules,
        passages,
        config.batch_size * (1 + num_passages),
        self._every if self._indexes_beside else 1,
      )
      process.log(
        f"retrieval: {num_passages} of {passages.number:,} passages for each of "
        f"{config.batch_size} rows, by an index made every {self._every:,} steps"
      )
    references = {}
    for name, x in parts.state.params.items():
      if name.startswith(REFERENCE):
        references[name] = x

    def copy_references(arrays):
      return {name: jnp.copy(arrays[name.removeprefix(REFERENCE)]) for name in references}

    reference_shardings = {name: x.sharding for name, x in references.items()}
    self._copy_references = jax.jit(copy_references, out_shardings=reference_shardings)
    self._step, self.cost = compile_step(config, parts, batch)
    self._index: tuple[int, Any] | None = None  # (the step that it is for, the index)
    # (the step that it is for, the index, the number of its parts that are built)
    self._next_index: tuple[int, Any, int] = (0, None, 0)
    # (the last state returned, its step)
    self._last: tuple[weakref.ref, int] = (lambda: None, 0)

  def __call__(
    self, state: TrainState, batch: dict[str, jax.Array]
  ) -> tuple[TrainState, dict[str, jax.Array]]:
    """Find the passages of a batch and update the model."""
    last_state, step = self._last
    if last_state() is not state:
      step = int(fetch(state.step))  # waits for it: only at a start
    if self._search:
      state = self._refresh(state, step)
      batch = self._search.add_nearest(state.params, self._index[1], batch)
      del batch["passages"]
    state, metrics = self._step(state, batch)
    self._last = weakref.ref(state), step + 1
    return state, metrics

  def _refresh(self, state: TrainState, step: int) -> TrainState:
    """Return the state, with the retriever's parameters copied if the index is due.

    Build the index if there is none for the step.
    """
    due = step - step % self._every
    if step == due:
      references = self._copy_references(state.params)
      state = dataclasses.replace(state, params=state.params | references)
    if self._index is None or self._index[0] != due:
      self._index = None  # its memory, before there is another
      next_step, built, num_parts = self._next_index
      if next_step != due or num_parts != self._search.parts:
        built = build_index(self._search, self._index_params(state.params), _RETRIEVER)
      self._index = due, built
    if self._indexes_beside:
      parts_due = min(1 + step - due, self._search.parts)
      self._advance(state.params, due + self._every, parts_due)
    return state

  def _index_params(self, arrays: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Return parameters whose reference is the retriever that makes the index in use."""
    before = {}
    for name, x in arrays.items():
      if name.startswith(2 * REFERENCE):
        before[name.removeprefix(REFERENCE)] = x
    return arrays | before

  def _advance(self, arrays: dict[str, jax.Array], due: int, parts_due: int) -> None:
    """Build the parts of the index for step `due` that are due by now; at a start, several."""
    index_step, built, num_parts = self._next_index
    if index_step != due:
      built = self._search.empty_index()
      num_parts = 0
    for number in range(num_parts, parts_due):
      built = self._search.embed_part(_RETRIEVER, arrays, built, number)
    self._next_index = due, built, max(num_parts, parts_due)


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

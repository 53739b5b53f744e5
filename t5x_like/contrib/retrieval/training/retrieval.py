"""Train a model that retrieves passages: refresh its index, and find the passages of batches.

The index is built every `objective.refresh_every` steps from the retriever's parameters. At a
refresh these are copied to `reference/retriever/…` in the state, so that a run which stops between
two refreshes builds the same index again when it resumes. Queries and p(z|x) use the current
parameters.
"""

import dataclasses
import operator
import weakref

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from t5x_like.contrib.retrieval.search import build_index, open_search
from t5x_like.errors import UserError
from t5x_like.parallel.rules import fetch
from t5x_like.runtime import process
from t5x_like.training.build import Parts
from t5x_like.training.compilation import StepCost, compile_step
from t5x_like.training.state import REFERENCE, TrainState

_RETRIEVER = operator.attrgetter("reference.retriever")


class RetrievalStep:
  """The training step: `(state, batch) -> (state, metrics)`; the state is donated.

  Attributes:
    cost: the cost of an update, without embedding passages and searching.
  """

  def __init__(self, config: ConfigDict, parts: Parts, task):
    batch = parts.rules.abstract_batch(task.features, config.batch_size)
    passages = task.passages
    # Each row also has the null document.
    num_retrieved = batch["passage_tokens"].shape[1] - 1
    self._every = parts.objective.refresh_every
    self._indexes_beside = parts.objective.refresh == "beside"
    self._search = None
    if num_retrieved:
      self._search = open_search(
        parts.objective.search,
        parts.model,
        parts.rules,
        passages,
        config.batch_size * (1 + num_retrieved),
        self._every if self._indexes_beside else 1,
      )
      process.log(
        f"retrieval: {num_retrieved} of {passages.num_passages:,} passages for each of "
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
    # The index in use and the refresh, as a step, that it belongs to.
    self._index = None
    self._index_step: int | None = None
    # The index for the next refresh, and how many of its parts are built.
    self._next_index = None
    self._next_index_step = 0
    self._num_built_parts = 0
    # The last state returned and its step, which spares a transfer of the step to the host.
    self._last_state: weakref.ref | None = None
    self._last_step = 0

  def __call__(
    self, state: TrainState, batch: dict[str, jax.Array]
  ) -> tuple[TrainState, dict[str, jax.Array]]:
    """Find the passages of a batch and update the model."""
    step = self._last_step
    if self._last_state is None or self._last_state() is not state:
      step = int(fetch(state.step))  # waits for the device, but only when a run starts
    if self._search:
      state = self._refresh(state, step)
      batch = self._search.add_nearest(state.params, self._index, batch)
      del batch["passages"]
    state, metrics = self._step(state, batch)
    self._last_state = weakref.ref(state)
    self._last_step = step + 1
    return state, metrics

  def _refresh(self, state: TrainState, step: int) -> TrainState:
    """Build the index of a step if it is missing, and return the state.

    At a refresh, the state has the retriever's parameters copied to the reference.
    """
    refresh_step = step - step % self._every
    if step == refresh_step:
      references = self._copy_references(state.params)
      state = dataclasses.replace(state, params=state.params | references)
    if self._index_step != refresh_step:
      self._index = None  # frees its memory before another is built
      is_next_complete = self._num_built_parts == self._search.parts
      if self._next_index_step == refresh_step and is_next_complete:
        self._index = self._next_index
      else:
        self._index = build_index(self._search, self._index_params(state.params), _RETRIEVER)
      self._index_step = refresh_step
    if self._indexes_beside:
      num_due_parts = min(1 + step - refresh_step, self._search.parts)
      self._build_next_parts(state.params, refresh_step + self._every, num_due_parts)
    return state

  def _index_params(self, arrays: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Return parameters whose reference is the retriever that builds the index in use.

    With `objective.refresh` "beside", it is the reference before the last refresh, which the state
    keeps under a doubled prefix.
    """
    retriever = {}
    for name, x in arrays.items():
      if name.startswith(2 * REFERENCE):
        retriever[name.removeprefix(REFERENCE)] = x
    return arrays | retriever

  def _build_next_parts(
    self, arrays: dict[str, jax.Array], refresh_step: int, num_due_parts: int
  ) -> None:
    """Build the next index up to a number of parts: one per step, several when a run starts."""
    if self._next_index_step != refresh_step:
      self._next_index = self._search.empty_index()
      self._next_index_step = refresh_step
      self._num_built_parts = 0
    for part in range(self._num_built_parts, num_due_parts):
      self._next_index = self._search.embed_part(_RETRIEVER, arrays, self._next_index, part)
    self._num_built_parts = max(self._num_built_parts, num_due_parts)


def compile_run_step(config: ConfigDict, parts: Parts, task) -> tuple[RetrievalStep, StepCost]:
  """Return the training step for batches of texts, and the cost of an update.

  Raises:
    UserError: the recipe has an evaluator of the loss, or its task has no passages of its own.
  """
  for name, values in config.evals.items():
    if values.name == "loss":
      raise UserError(
        f"config.evals.{name}: the loss is of rows with their passages, which only a step finds; "
        'name the evaluator `open_qa` instead: config.evals = {"open_qa": {}}'
      )
  if getattr(task, "passages", None) is None:
    raise UserError(
      f"config.task.name: found {config.task.name}, expected open_qa, by itself: passages are of "
      "one task"
    )
  step = RetrievalStep(config, parts, task)
  return step, step.cost

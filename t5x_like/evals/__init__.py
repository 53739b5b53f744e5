"""Evaluators, one a file: the module path is the registry (`config.evals = {"loss": {}, …}`).

An evaluator is a frozen dataclass `Evaluator`, a `BaseEvaluator` whose fields are the arguments in
the recipe. It is made once and called with the parameters of any step. It returns an `EvalResult`,
whose metrics are reported under `eval/<task>/`.
"""

import abc
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from t5x_like import config
from t5x_like.nn import params
from t5x_like.parallel.rules import Rules, fetch, from_local_rows, local_rows
from t5x_like.slots import Slot


@dataclasses.dataclass(frozen=True)
class EvalContext:
  """The context shared by evaluators.

  Attributes:
    model: the abstract model.
    objective: `(model, batch, key) -> (loss sum, sums)`.
    task: the task to evaluate on; see `data.task.Task`.
    batches: `(max_examples) -> iterator` of this host's rows of fixed-shape batches, each example
      once; see `data.loader.eval_batches`.
    batch_size: the number of rows of a global batch.
    rules: the mesh and the sharding rules.
    for_split: `(split) -> EvalContext` for another split of the task.
    vocabulary: the run's vocabulary, if it is not the task's, as for a task of labelled images;
      None is the task's.
    heartbeat: the function to call before every call of a compiled function.
    split: the split of the task; None if unknown.
  """

  model: object
  objective: Callable
  task: object
  batches: Callable[[int | None], Iterator[dict[str, np.ndarray]]]
  batch_size: int
  rules: Rules
  for_split: Callable[[str], "EvalContext"] | None = None
  vocabulary: object | None = None
  heartbeat: Callable[[], None] = lambda: None
  split: str | None = None

  def abstract_batch(self) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes and dtypes of a global batch, without `example_index`."""
    batch = {}
    for name, feature in self.task.features.items():
      batch[name] = jax.ShapeDtypeStruct((self.batch_size, *feature.shape), feature.dtype)
    return batch

  def global_batches(self, max_examples: int | None) -> Iterator[dict[str, jax.Array]]:
    """Yield batches as global arrays, with rows split as in training."""
    return self.shard_batches(self.batches(max_examples))

  def shard_batches(
    self, batches: Iterator[dict[str, np.ndarray]]
  ) -> Iterator[dict[str, jax.Array]]:
    """Turn batches of this host's rows into global arrays."""
    sharding = self.rules.batch()
    rows = local_rows(sharding, self.batch_size)
    for batch in batches:
      yield from_local_rows(sharding, rows, batch, self.batch_size)

  def jit(self, function: Callable) -> Callable:
    """Compile `function(model, batch)` to take (named parameters, batch) on this mesh."""

    @jax.jit
    def run(arrays, batch):
      with self.rules.activate():
        return function(params.with_arrays(self.model, arrays), batch)

    def run_with_heartbeat(arrays, batch):
      self.heartbeat()
      return run(arrays, batch)

    return run_with_heartbeat

  def run_batches(
    self,
    run: Callable,
    arrays: dict[str, jax.Array],
    batches: Iterator[dict[str, np.ndarray]],
  ) -> list[np.ndarray]:
    """Run a compiled function on batches of this host's rows; return its outputs on the host.

    Args:
      run: `(parameters, batch) -> a tuple of arrays` with a leading axis B.
      arrays: the parameters by name.

    Returns:
      Each array with the rows of all batches, including rows that only fill a batch.
    """
    outputs = []
    for batch in self.shard_batches(batches):
      outputs.append([fetch(array) for array in run(arrays, batch)])
    return [np.concatenate(parts) for parts in zip(*outputs, strict=True)]


@dataclasses.dataclass(frozen=True)
class EvalResult:
  """An evaluator's result.

  Attributes:
    metrics: numbers by name.
    samples: a few examples for the report, as dicts of text.
    predictions: a JSON object for every example, with its input and prediction.
  """

  metrics: dict[str, float]
  samples: list[dict[str, str]] = dataclasses.field(default_factory=list)
  predictions: list[dict[str, Any]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class BaseEvaluator(abc.ABC):
  """An evaluator and its arguments.

  A subclass declares its arguments as keyword-only fields. Its `__post_init__` refuses arguments
  and tasks that do not fit, before the first step, and reads the examples that it needs.

  Attributes:
    context: the model, the task and its batches; the program supplies it.
  """

  context: EvalContext

  @abc.abstractmethod
  def metric_names(self) -> tuple[str, ...]:
    """Return the names of all metrics that it may write.

    A run refuses unknown and duplicate names before its first step.
    """

  @abc.abstractmethod
  def __call__(self, arrays: dict[str, jax.Array]) -> EvalResult:
    """Evaluate the model with these parameters, by name."""

  def compute(self, model, batch: dict[str, jax.Array]) -> Any:
    """Return arrays computed from a batch; `run` is its compiled form."""
    return ()

  @functools.cached_property
  def run(self) -> Callable:
    """`compute` as a compiled function of (named parameters, batch)."""
    return self.context.jit(self.compute)


EVALUATORS = Slot(
  __name__,
  "Evaluator",
  supplied=("context", "name"),
  records=(config.Instance,),
  base=BaseEvaluator,
  guide="docs/how-to/add-an-evaluator.md",
)

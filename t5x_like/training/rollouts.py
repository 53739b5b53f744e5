"""Steps on the model's own completions: answer the prompts of a batch, reward the answers, update
the model.

All of this happens within the step: it takes a batch of prompts, and what it adds to it is a
function of the state, the seed, the step and each row's place in the global batch, whatever the
layout of the devices. Nothing else is kept, so a run that is stopped in the middle of a rollout
makes the same one when it goes on.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from t5x_like import rewards
from t5x_like.decoding.generate import choose_by_keys
from t5x_like.decoding.rollouts import rollout
from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.objectives import flatten_rows
from t5x_like.parallel.rules import fetch, from_local_rows, local_rows
from t5x_like.runtime import process
from t5x_like.training.build import Parts, abstract_batch
from t5x_like.training.compilation import StepCost, compile_step
from t5x_like.training.state import TrainState

# folded into the run's key; dropout has the key itself
_ROLLOUTS = 2
_ORDERS = 3


class RolloutStep:
  """The steps of a phase: `(state, batch of prompts) -> (state, metrics)`, which donates the state.

  Attributes:
    cost: of one update; generation is not counted.
  """

  def __init__(self, config: ConfigDict, parts: Parts, task):
    self._parts = parts
    self._task = task
    self._batch_size = config.batch_size
    self._ends = rewards.completion_ends(task)
    batch = abstract_batch(config, parts.rules, task)
    _, K, N = batch["decoder_log_probabilities"].shape
    process.log(
      f"rollouts: {K} completions of each of {config.batch_size} prompts, of at most {N} tokens, "
      f"rewarded by {parts.objective.reward}"
    )
    answer = answering(parts.model, parts.rules, seed=config.seed, ends=self._ends)
    self._answer = answer.lower(parts.state.params, batch, parts.state.step).compile()
    self._divide = None
    if hasattr(parts.objective, "estimate_advantages"):
      _check_minibatches(config, parts)
      divide = dividing(parts.model, parts.objective, parts.rules, config.seed)
      lowered = divide.lower(parts.state.params, batch, parts.state.step)
      self._divide = lowered.compile()
      batch = {name: _like(x, parts.rules.batch()) for name, x in lowered.out_info[0].items()}
    self._step, self.cost = compile_step(config, parts, batch)

  def answered(self, state: TrainState, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Return a batch of prompts with their completions and the rewards of these.

    Raises:
      UserError: the reward function fails; see `rewards.reward_texts`.
    """
    batch = self._answer(state.params, batch, state.step)
    rules = self._parts.rules
    size = self._batch_size
    N = batch["decoder_log_probabilities"].shape[-1]
    rows = local_rows(rules.batch(), size)
    reward = self._parts.objective.reward
    asked = np.arange(size) if rewards.needs_all_processes(reward) else rows
    tokens_BKN = fetch(batch["decoder_target_tokens"])[asked][..., -N:]
    texts = rewards.decode_completions(tokens_BKN.reshape(-1, N), self._task.vocabulary, self._ends)
    fields = rewards.unpack_fields(fetch(batch["fields"])[asked])
    examples = [one for one in fields for _ in range(tokens_BKN.shape[1])]
    found_BK = rewards.reward_texts(reward, texts, examples).reshape(tokens_BKN.shape[:2])
    return batch | {
      "rewards": from_local_rows(rules.batch(), rows, found_BK[np.searchsorted(asked, rows)], size)
    }

  def __call__(
    self, state: TrainState, batch: dict[str, jax.Array]
  ) -> tuple[TrainState, dict[str, jax.Array]]:
    """Answer a batch and update the model; several updates count as one step.

    The metrics are those of the last update, or the means of the minibatches of the last pass.
    """
    batch = self.answered(state, batch)
    objective = self._parts.objective
    divide = self._divide or (lambda *_: (batch,) * objective.updates)
    found = []
    for part in divide(state.params, batch, state.step):
      state = dataclasses.replace(state, step=state.step - 1) if found else state
      state, metrics = self._step(state, part)
      found.append(metrics)
    last = found[-getattr(objective, "minibatches", 1) :]
    return state, last[0] if len(last) == 1 else _means(last)


def answering(model, rules, *, seed: int, ends: tuple[int, ...]) -> Callable:
  """Return the jitted function `(parameters, batch of prompts, step) -> batch with completions`,
  rows split as given.

  The key of a completion is folded from the seed, the step and its place in the global batch.
  """

  def answer(arrays, batch, step):
    with rules.activate():
      B, K, N = batch["decoder_log_probabilities"].shape
      rows = flatten_rows(
        {name: x for name, x in batch.items() if name != "decoder_log_probabilities"}
      )
      key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _ROLLOUTS), step)
      keys_R = jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(B * K))
      made = rollout(
        params.with_arrays(model, arrays), rows, choose_by_keys(keys_R), new_tokens=N, ends=ends
      )
      return batch | {name: x.reshape(B, K, *x.shape[1:]) for name, x in made.items()}

  return jax.jit(answer, out_shardings=rules.batch())


def dividing(model, objective, rules, seed: int) -> Callable:
  """Return the jitted function `(parameters, answered batch, step) -> the batch of each update`, in
  order.

  The objective judges the whole batch first; then every pass divides its prompts into minibatches
  by an order of its own, whose key is folded from the seed, the step and the number of the pass.
  """
  updates = objective.updates
  number = objective.minibatches

  def divide(arrays, batch, step):
    with rules.activate():
      batch = objective.estimate_advantages(params.with_arrays(model, arrays), batch)
      if number == 1:
        return (batch,) * updates
      key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _ORDERS), step)
      made = []
      for turn in range(updates):
        order = jax.random.permutation(jax.random.fold_in(key, turn), len(batch["rewards"]))
        made += [{name: x[rows] for name, x in batch.items()} for rows in jnp.split(order, number)]
      return tuple(made)

  return jax.jit(divide, out_shardings=rules.batch())


@jax.jit
def _means(found: list[dict[str, jax.Array]]) -> dict[str, jax.Array]:
  """Return the means of metrics; of refused updates, the most."""
  every = jax.tree.map(lambda *x: jnp.stack(x), *found)
  return {name: x.max() if name == "updates_refused" else x.mean() for name, x in every.items()}


def _like(x, sharding) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


def _check_minibatches(config: ConfigDict, parts: Parts) -> None:
  """Check that the prompts of a batch divide into the objective's minibatches; raise UserError."""
  ways = parts.rules.ways("batch") * config.accumulation_steps
  number = parts.objective.minibatches
  if config.batch_size % (number * ways):
    raise UserError(
      f"config.objective.minibatches: found {number}, but {config.batch_size} prompts do not "
      f"divide into {number} minibatches of a multiple of {ways} (devices times accumulation "
      "steps); change it or --config.batch_size"
    )


def compile_run_step(config: ConfigDict, parts: Parts, task) -> tuple[RolloutStep, StepCost]:
  """Return the steps for batches of prompts, and the cost of an update.

  Raises:
    UserError: the recipe evaluates the loss of given rows, or the parts of a mixture differ in
      their lengths.
  """
  for name, values in config.evals.items():
    if values.name == "loss":
      raise UserError(
        f"config.evals.{name}: prompts have no answers whose loss could be evaluated; name the "
        "evaluator `reward`"
        ' instead: config.evals = {"reward": {}}'
      )
  for label, leaf in task.leaves.items():
    odd = [
      name for name, one in task.features.items() if name != "fields" and leaf.features[name] != one
    ]
    if odd:
      raise UserError(
        f"config.task.parts.{label}: found another length of {odd[0]} than in other parts, "
        "expected the same prompt_length, new_tokens and completions in all; set them in "
        "config.task.shared"
      )
  steps = RolloutStep(config, parts, task)
  return steps, steps.cost

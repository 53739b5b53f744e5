"""Train on the model's own completions: answer prompts, reward the answers, update the model.

All of this happens within the step. The completions and rewards that it adds to a batch of prompts
are a function of the state, the seed, the step and each row's index in the global batch, whatever
the layout of the devices. Nothing else is kept: a run that is stopped in the middle of a rollout
repeats the same rollout when it resumes.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from t5x_like.contrib.feedback import rewards
from t5x_like.contrib.feedback.completions import rollout
from t5x_like.decoding.generate import choose_by_keys
from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.objectives import flatten_rows
from t5x_like.parallel.rules import fetch, from_local_rows, local_rows
from t5x_like.runtime import process
from t5x_like.training.build import Parts
from t5x_like.training.compilation import StepCost, compile_step
from t5x_like.training.state import TrainState

# folded into the run's key; dropout has the key itself
_ROLLOUT_STREAM = 2
_ORDER_STREAM = 3


class RolloutStep:
  """The steps of a phase: `(state, batch of prompts) -> (state, metrics)`, which donates the state.

  Attributes:
    cost: the cost of one update; generation is not counted.
  """

  def __init__(self, config: ConfigDict, parts: Parts, task):
    self._parts = parts
    self._task = task
    self._batch_size = config.batch_size
    self._ends = rewards.completion_ends(task)
    batch = parts.rules.abstract_batch(task.features, config.batch_size)
    _, K, N = batch["decoder_log_probabilities"].shape
    process.log(
      f"rollouts: {K} completions of each of {config.batch_size} prompts, of at most {N} tokens, "
      f"rewarded by {parts.objective.reward}"
    )
    answer = build_answer_function(parts.model, parts.rules, seed=config.seed, ends=self._ends)
    self._answer = answer.lower(parts.state.params, batch, parts.state.step).compile()
    self._divide = None
    if hasattr(parts.objective, "estimate_advantages"):
      _check_minibatches(config, parts)
      divide = build_divide_function(parts.model, parts.objective, parts.rules, config.seed)
      lowered = divide.lower(parts.state.params, batch, parts.state.step)
      self._divide = lowered.compile()
      batch = {
        name: _with_sharding(x, parts.rules.batch()) for name, x in lowered.out_info[0].items()
      }
    self._step, self.cost = compile_step(config, parts, batch)

  def answer(self, state: TrainState, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Return a batch of prompts with their completions and rewards.

    Raises:
      UserError: the reward function fails; see `rewards.reward_texts`.
    """
    batch = self._answer(state.params, batch, state.step)
    rules = self._parts.rules
    batch_size = self._batch_size
    N = batch["decoder_log_probabilities"].shape[-1]
    rows = local_rows(rules.batch(), batch_size)
    reward = self._parts.objective.reward
    scored_rows = np.arange(batch_size) if rewards.needs_all_processes(reward) else rows
    tokens_BKN = fetch(batch["decoder_target_tokens"])[scored_rows][..., -N:]
    texts = rewards.decode_completions(tokens_BKN.reshape(-1, N), self._task.vocabulary, self._ends)
    fields = rewards.unpack_fields(fetch(batch["fields"])[scored_rows])
    examples = [example_fields for example_fields in fields for _ in range(tokens_BKN.shape[1])]
    rewards_BK = rewards.reward_texts(reward, texts, examples).reshape(tokens_BKN.shape[:2])
    return batch | {
      "rewards": from_local_rows(
        rules.batch(), rows, rewards_BK[np.searchsorted(scored_rows, rows)], batch_size
      )
    }

  def __call__(
    self, state: TrainState, batch: dict[str, jax.Array]
  ) -> tuple[TrainState, dict[str, jax.Array]]:
    """Answer a batch and update the model; several updates count as one step.

    The metrics are of the last update, or means over the minibatches of the last pass.
    """
    batch = self.answer(state, batch)
    objective = self._parts.objective
    if self._divide:
      update_batches = self._divide(state.params, batch, state.step)
    else:
      update_batches = (batch,) * objective.updates
    update_metrics = []
    for update_batch in update_batches:
      if update_metrics:
        state = dataclasses.replace(state, step=state.step - 1)
      state, metrics = self._step(state, update_batch)
      update_metrics.append(metrics)
    last_pass = update_metrics[-getattr(objective, "minibatches", 1) :]
    return state, last_pass[0] if len(last_pass) == 1 else _mean_metrics(last_pass)


def build_answer_function(model, rules, *, seed: int, ends: tuple[int, ...]) -> Callable:
  """Return the jitted function that adds completions to a batch of prompts.

  It takes (parameters, batch of prompts, step).

  The key of a completion is folded from the seed, the step and its index in the global batch.
  """

  def answer(arrays, batch, step):
    with rules.activate():
      B, K, N = batch["decoder_log_probabilities"].shape
      rows = flatten_rows(
        {name: x for name, x in batch.items() if name != "decoder_log_probabilities"}
      )
      key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _ROLLOUT_STREAM), step)
      keys_R = jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(B * K))
      completions = rollout(
        params.with_arrays(model, arrays), rows, choose_by_keys(keys_R), new_tokens=N, ends=ends
      )
      return batch | {name: x.reshape(B, K, *x.shape[1:]) for name, x in completions.items()}

  return jax.jit(answer, out_shardings=rules.batch())


def build_divide_function(model, objective, rules, seed: int) -> Callable:
  """Return the jitted function that divides an answered batch into the batches of its updates.

  It takes (parameters, answered batch, step) and returns the batches in order.

  The objective computes the advantages of the whole batch first. Then every pass divides its
  prompts into minibatches in another order, whose key is folded from the seed, the step and the
  pass.
  """
  updates = objective.updates
  num_minibatches = objective.minibatches

  def divide(arrays, batch, step):
    with rules.activate():
      batch = objective.estimate_advantages(params.with_arrays(model, arrays), batch)
      if num_minibatches == 1:
        return (batch,) * updates
      key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _ORDER_STREAM), step)
      minibatches = []
      for update in range(updates):
        order = jax.random.permutation(jax.random.fold_in(key, update), len(batch["rewards"]))
        minibatches += [
          {name: x[rows] for name, x in batch.items()} for rows in jnp.split(order, num_minibatches)
        ]
      return tuple(minibatches)

  return jax.jit(divide, out_shardings=rules.batch())


@jax.jit
def _mean_metrics(step_metrics: list[dict[str, jax.Array]]) -> dict[str, jax.Array]:
  """Return the means of metrics, but the maximum of the numbers of refused updates."""
  stacked = jax.tree.map(lambda *x: jnp.stack(x), *step_metrics)
  return {name: x.max() if name == "updates_refused" else x.mean() for name, x in stacked.items()}


def _with_sharding(x, sharding) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


def _check_minibatches(config: ConfigDict, parts: Parts) -> None:
  """Check that the prompts of a batch divide into the objective's minibatches; raise UserError."""
  ways = parts.rules.ways("batch") * config.accumulation_steps
  num_minibatches = parts.objective.minibatches
  if config.batch_size % (num_minibatches * ways):
    raise UserError(
      f"config.objective.minibatches: found {num_minibatches}, but {config.batch_size} prompts "
      f"do not divide into {num_minibatches} minibatches of a multiple of {ways} (devices times "
      "accumulation steps); change it or --config.batch_size"
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
        'evaluator `reward` instead: config.evals = {"reward": {}}'
      )
  for label, leaf in task.leaves.items():
    differing = [
      name
      for name, feature in task.features.items()
      if name != "fields" and leaf.features[name] != feature
    ]
    if differing:
      raise UserError(
        f"config.task.parts.{label}: found another length of {differing[0]} than in other parts, "
        "expected the same prompt_length, new_tokens and completions in all; set them in "
        "config.task.shared"
      )
  steps = RolloutStep(config, parts, task)
  return steps, steps.cost

"""Pipeline parallelism: microbatches pass through stages that each hold some layers of a stack.

Where the logical axis `layers` is split into S stages, each stage holds 1/S of the layers, and the
batch is cut into M microbatches. All stages compute at once, each for a different microbatch: one
`vmap` over an array [S, …] that is split over the stages and rotated by one stage between ticks (a
collective permute), as in Praxis and MaxText. A pass takes M * R + S - 1 ticks. Each stage idles in
S - 1 of them: the bubble is (S - 1) / (M * R + S - 1).

With R > 1 rounds the schedule is circular (Narayanan et al. 2021, https://arxiv.org/abs/2104.04473,
section 2.2): a stage computes R runs of layers, and a microbatch passes all stages R times, so that
the bubble is R times smaller. A stage stores neighbouring layers, in the order of the checkpoint,
but computes others. Once per pass, layers are sent to the stages that compute them.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from t5x_like.errors import UserError
from t5x_like.nn.dims import subkey
from t5x_like.nn.layer import Context, Statistics
from t5x_like.nn.remat import KEEP_ALL, Remat
from t5x_like.parallel import constrain
from t5x_like.slots import PositiveInt


@dataclasses.dataclass(frozen=True)
class Pipeline:
  """The schedule of a stack whose layers are split over stages (`mesh.stage`).

  Attributes:
    microbatches: parts of the batch; None for as many as there are stages, or fewer if the rows do
      not divide.
    rounds: times that a microbatch passes all stages; above 1, it needs at least as many
      microbatches as stages.
  """

  microbatches: PositiveInt | None = None
  rounds: PositiveInt = 1


DEFAULT_PIPELINE = Pipeline()


def run_pipeline(
  pipeline: Pipeline,
  run_layers: Callable,
  blocks,
  x_BTD: jax.Array,
  context: Context,
  key,
  remat: Remat,
  cache: None,
):
  """Run all layers, as `Stack._run`, without a cache.

  Args:
    run_layers: `(blocks, x, context, key, remat) -> (x, aux, None)`. Runs some layers in order on a
      microbatch, each wrapped by `remat`; `aux` has a leading axis of layers.
    blocks: the parameters of all layers, with a leading layers axis, split over the stages.
    context: arrays with a row per example are cut like the batch.
    key: dropout key, or None.
    remat: with several rounds it wraps a stage's whole tick.
  Returns:
    ([B, T, D], aux of every layer, None). Over microbatches, `Statistics` are summed and scalars
    averaged.
  Raises:
    UserError: the layers or the rows do not divide, or there are fewer microbatches than stages
      with several rounds.
  """
  stages = constrain.ways("layers")
  rounds = pipeline.rounds
  layers = jax.tree.leaves(blocks)[0].shape[0]
  B = x_BTD.shape[0]
  M = pipeline.microbatches or math.gcd(stages, max(1, B // constrain.ways("batch")))
  _check(stages, rounds, layers, M, B)
  rows = MicrobatchRows.divide(context, B, M)
  stage = _Stage(stages, rounds, M, run_layers, rows, context, key)
  run_all_stages = stage.run_all(remat)
  blocks = jax.tree.map(partial(_stack_stages, stages, rounds), blocks)
  stage_S = jnp.arange(stages)

  def tick(carry, t):
    # [S, b, T, D], inputs of the stages; [M, b, T, D], next inputs of the first stage
    state, waiting = carry
    first = jax.lax.dynamic_index_in_dim(waiting, t % M, keepdims=False)
    state = _split_over_stages(state.at[0].set(first))
    state, aux = run_all_stages(blocks, stage_S, t, state)
    state = jnp.roll(_split_over_stages(state), 1, axis=0)
    state = _split_over_stages(state)
    # This microbatch has left the last stage: it enters another round, or it is finished.
    finished = t - (stages - 1)
    slot = finished % M
    earlier = jax.lax.dynamic_index_in_dim(waiting, slot, keepdims=False)
    output = jnp.where(finished >= 0, state[0], earlier)
    waiting = jax.lax.dynamic_update_index_in_dim(waiting, output, slot, 0)
    return (state, waiting), aux

  x_MbTD = _divide_rows(x_BTD, M)
  state_SbTD = _split_over_stages(jnp.zeros((stages, *x_MbTD.shape[1:]), x_MbTD.dtype))
  ticks = jnp.arange(M * rounds + stages - 1)
  (_, outputs_MbTD), aux = jax.lax.scan(tick, (state_SbTD, x_MbTD), ticks)
  aux = jax.tree.map(_sum_ticks, aux)
  # Statistics now cover the tokens of all microbatches; scalars are averaged.
  for name, value in aux.items():
    if not isinstance(value, Statistics):
      aux[name] = value / M
  return _join_rows(outputs_MbTD), aux, None


def _stack_stages(stages: int, rounds: int, parameter: jax.Array) -> jax.Array:
  """Reshape [all layers, ...] to [stages, rounds, layers of a stage and round, ...]."""
  parts = parameter.reshape(rounds, stages, -1, *parameter.shape[1:])
  return _split_over_stages(parts.swapaxes(0, 1))


def _sum_ticks(aux: jax.Array) -> jax.Array:
  """Sum [ticks, stages, rounds, layers, ...] to [all layers, ...], in their order."""
  by_round = aux.sum(0).swapaxes(0, 1)
  return by_round.reshape(-1, *aux.shape[4:])


@dataclasses.dataclass(frozen=True)
class _Stage:
  """One tick of any stage, as `run_pipeline` maps it over stages.

  Attributes:
    stages, rounds, microbatches: sizes of the schedule.
    run_layers, context, key: see `run_pipeline`.
    rows: the context's arrays, cut into microbatches.
  """

  stages: int
  rounds: int
  microbatches: int
  run_layers: Callable
  rows: "MicrobatchRows"
  context: Context
  key: jax.Array | None

  def run_all(self, remat: Remat) -> Callable:
    """Return a function of one tick of all stages."""
    if self.rounds == 1:
      run_stage = partial(self.run, remat)
    else:
      run_stage = remat.wrap(partial(self.run, KEEP_ALL), prevent_cse=False)
    stage_axes = constrain.mesh_axes("layers")
    return jax.vmap(run_stage, in_axes=(0, 0, None, 0), spmd_axis_name=stage_axes)

  def run(self, remat: Remat, blocks_R, stage, tick, x):
    """Return the stage's next state and its layers' aux, [rounds, layers, ...]."""
    turns = self.microbatches * self.rounds
    turn = tick - stage  # index of this stage's turn; out of range while it idles
    is_busy = (turn >= 0) & (turn < turns)
    turn = jnp.clip(turn, 0, turns - 1)
    microbatch = turn % self.microbatches
    current_round = turn // self.microbatches
    if self.rounds == 1:
      # Every tick uses the same weights: indexing would save a copy per tick for the backward pass.
      blocks = jax.tree.map(lambda w_R: w_R[0], blocks_R)
    else:
      select = partial(jax.lax.dynamic_index_in_dim, index=current_round, keepdims=False)
      blocks = jax.tree.map(select, blocks_R)
    microbatch_key = subkey(self.key, microbatch)
    key = subkey(microbatch_key, current_round * self.stages + stage)
    context = self.rows.context(self.context, microbatch)
    x, aux, _ = self.run_layers(blocks, x, context, key, remat)
    is_round_R = (jnp.arange(self.rounds) == current_round) & is_busy

    def insert_round(value: jax.Array) -> jax.Array:
      is_round = is_round_R.reshape(-1, *[1] * value.ndim)
      return jnp.where(is_round, value, jnp.zeros_like(value))

    return x, jax.tree.map(insert_round, aux)


def _check(stages: int, rounds: int, layers: int, microbatches: int, rows: int) -> None:
  """Raise UserError if the schedule does not fit the layers or the rows."""
  if layers % (stages * rounds):
    raise UserError(
      f"config.model.pipeline: found {layers} layers (or periods of them), expected a multiple of "
      f"{stages * rounds} for {stages} stages and {rounds} rounds"
    )
  if rounds > 1 and microbatches < stages:
    raise UserError(
      f"config.model.pipeline.microbatches: found {microbatches}, expected at least the {stages} "
      f"stages for {rounds} rounds"
    )
  if rows % microbatches:
    raise UserError(
      f"config.model.pipeline.microbatches: found {microbatches}, expected a divisor of the "
      f"{rows} rows of a batch"
    )


def _divide_rows(x: jax.Array, parts: int) -> jax.Array:
  """Divide [B, ...] into [parts, B / parts, ...]; every device keeps its rows."""
  rows_by_part = x.reshape(x.shape[0] // parts, parts, *x.shape[1:])
  return constrain.constrain(jnp.swapaxes(rows_by_part, 0, 1), None, "batch")


def _join_rows(x: jax.Array) -> jax.Array:
  """Undo `_divide_rows`."""
  rows_by_part = jnp.swapaxes(x, 0, 1)
  return constrain.constrain(rows_by_part.reshape(-1, *x.shape[2:]), "batch")


def _split_over_stages(x: jax.Array) -> jax.Array:
  return constrain.constrain(x, "layers")


@dataclasses.dataclass(frozen=True)
class MicrobatchRows:
  """The arrays of a context with a row per example, each divided into [M, B / M, ...].

  Attributes:
    arrays: the arrays by their leaf index in the tree of `_fields_by_row`.
  """

  arrays: dict[int, jax.Array]

  @classmethod
  def divide(cls, context: Context, batch: int, parts: int) -> "MicrobatchRows":
    """Divide the arrays of a context that have `batch` rows into `parts` microbatches."""
    arrays = {}
    for index, leaf in enumerate(jax.tree.leaves(_fields_by_row(context))):
      if leaf.shape[0] == batch:
        arrays[index] = _divide_rows(leaf, parts)
    return cls(arrays)

  def context(self, context: Context, part) -> Context:
    """Return the context of one microbatch."""
    leaves, treedef = jax.tree.flatten(_fields_by_row(context))
    for index, rows in self.arrays.items():
      leaves[index] = jax.lax.dynamic_index_in_dim(rows, part, keepdims=False)
    return dataclasses.replace(context, **treedef.unflatten(leaves))


def _fields_by_row(context: Context) -> dict:
  """Return the fields of a context whose arrays have the batch (or 1) as first axis."""
  names = ["mask", "memory", "memory_mask", "valid", "position_vectors", "memory_position_vectors"]
  # not the vectors of disentangled attention
  if isinstance(context.bias, jax.Array) and context.bias.ndim == 4:
    names.append("bias")
  return {name: getattr(context, name) for name in names}

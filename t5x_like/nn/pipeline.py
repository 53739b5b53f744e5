"""Pipeline parallelism: stages hold the layers of a stack, and microbatches pass from stage to
stage.

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
  _,
):
  """Run all layers.

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
  blocks = jax.tree.map(
    lambda w: _staged(w.reshape(rounds, stages, -1, *w.shape[1:]).swapaxes(0, 1)), blocks
  )
  x = _cut(x_BTD, M)
  rows = _Rows.of(context, B, M)
  stage_S = jnp.arange(stages)

  def stage(blocks_R, stage, tick, x):
    """Run one tick of one stage; return its next state and its layers' aux, [rounds, layers,
    ...]."""
    turn = tick - stage  # index of this stage's turn; out of range while it idles
    busy = (turn >= 0) & (turn < M * rounds)
    turn = jnp.clip(turn, 0, M * rounds - 1)
    m = turn % M
    r = turn // M
    # With one round, every tick uses the same weights: indexing would save a copy per tick for the
    # backward pass.
    own = jax.tree.map(
      lambda w: w[0] if rounds == 1 else jax.lax.dynamic_index_in_dim(w, r, keepdims=False),
      blocks_R,
    )
    own_key = subkey(subkey(key, m), r * stages + stage)
    x, aux, _ = run_layers(
      own, x, rows.context(context, m), own_key, remat if rounds == 1 else KEEP_ALL
    )
    here = (jnp.arange(rounds) == r) & busy
    return x, jax.tree.map(
      lambda a: jnp.where(here.reshape(-1, *[1] * a.ndim), a, jnp.zeros_like(a)), aux
    )

  if rounds > 1:
    stage = remat.wrap(stage, prevent_cse=False)
  all_stages = jax.vmap(
    stage, in_axes=(0, 0, None, 0), spmd_axis_name=constrain.mesh_axes("layers")
  )

  def tick(carry, t):
    # [S, b, T, D], inputs of the stages; [M, b, T, D], next inputs of the first stage
    state, waiting = carry
    first = jax.lax.dynamic_index_in_dim(waiting, t % M, keepdims=False)
    state = _staged(state.at[0].set(first))
    state, aux = all_stages(blocks, stage_S, t, state)
    state = _staged(jnp.roll(_staged(state), 1, axis=0))
    # Microbatch t - (S - 1) has left the last stage, for another round or for good.
    left = t - (stages - 1)
    place = left % M
    kept = jax.lax.dynamic_index_in_dim(waiting, place, keepdims=False)
    waiting = jax.lax.dynamic_update_index_in_dim(
      waiting, jnp.where(left >= 0, state[0], kept), place, 0
    )
    return (state, waiting), aux

  state = _staged(jnp.zeros((stages, *x.shape[1:]), x.dtype))
  (_, x), aux = jax.lax.scan(tick, (state, x), jnp.arange(M * rounds + stages - 1))
  # [ticks, stages, rounds, layers, ...] -> [all layers, ...], in their order
  aux = jax.tree.map(lambda a: a.sum(0).swapaxes(0, 1).reshape(-1, *a.shape[4:]), aux)
  # Statistics now cover the tokens of all microbatches; scalars are averaged.
  return _joined(x), {n: a if isinstance(a, Statistics) else a / M for n, a in aux.items()}, None


def _check(stages: int, rounds: int, layers: int, microbatches: int, rows: int) -> None:
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


def _cut(x: jax.Array, parts: int) -> jax.Array:
  """Cut [B, ...] into [parts, B / parts, ...]; every device keeps its rows."""
  x = jnp.swapaxes(x.reshape(x.shape[0] // parts, parts, *x.shape[1:]), 0, 1)
  return constrain.constrain(x, None, "batch")


def _joined(x: jax.Array) -> jax.Array:
  """Undo `_cut`."""
  return constrain.constrain(jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:]), "batch")


def _staged(x: jax.Array) -> jax.Array:
  return constrain.constrain(x, "layers")


@dataclasses.dataclass(frozen=True)
class _Rows:
  """The arrays of a context with a row per example, each cut to [M, B / M, ...], by leaf index in
  its tree."""

  arrays: dict[int, jax.Array]

  @classmethod
  def of(cls, context: Context, batch: int, parts: int) -> "_Rows":
    leaves = jax.tree.leaves(_per_row(context))
    return cls({i: _cut(x, parts) for i, x in enumerate(leaves) if x.shape[0] == batch})

  def context(self, context: Context, part) -> Context:
    """Return the context of one microbatch."""
    leaves, treedef = jax.tree.flatten(_per_row(context))
    for i, x in self.arrays.items():
      leaves[i] = jax.lax.dynamic_index_in_dim(x, part, keepdims=False)
    return dataclasses.replace(context, **treedef.unflatten(leaves))


def _per_row(context: Context) -> dict:
  """Return the fields of a context whose arrays have the batch (or 1) as first axis."""
  names = ["mask", "memory", "memory_mask", "valid", "position_vectors", "memory_position_vectors"]
  # not the vectors of disentangled attention
  if isinstance(context.bias, jax.Array) and context.bias.ndim == 4:
    names.append("bias")
  return {name: getattr(context, name) for name in names}

"""The state of a run: what a step reads and writes, and what a checkpoint holds. It contains no random keys."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from t5x_like.nn import params
from t5x_like.parallel.rules import Rules
from t5x_like.training.checkpoint_manifest import flatten, nest
from t5x_like.training.optimizer import state_axes


@dataclasses.dataclass(frozen=True)
class TrainState:
  """Attributes:
  step: int32 scalar, number of finished steps.
  params: float32 arrays by name.
  opt_state: the optimizer's state over the same names.
  """

  step: jax.Array
  params: dict[str, jax.Array]
  opt_state: Any


jax.tree_util.register_dataclass(TrainState)


def abstract_state(model, optimizer: optax.GradientTransformation, rules: Rules) -> TrainState:
  """Shapes, dtypes and shardings of a run's state, without allocating anything.

  Args:
    model: the abstract model (`jax.eval_shape` of its constructor).
  """
  named = params.named_params(model)
  shardings = rules.of_params(named)
  arrays = params.arrays(model)
  opt_state = jax.eval_shape(optimizer.init, arrays)
  opt_axes = state_axes(opt_state, named)
  sharded = jax.tree.map(
    lambda leaf, axes: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=rules.sharding(axes)), opt_state, opt_axes
  )
  return TrainState(
    step=jax.ShapeDtypeStruct((), jnp.int32, sharding=rules.replicated),
    params={n: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=shardings[n]) for n, a in arrays.items()},
    opt_state=sharded,
  )


def shardings(state: TrainState):
  """The shardings of an abstract state, as a tree of the same structure."""
  return jax.tree.map(lambda leaf: leaf.sharding, state)


def to_tree(state: TrainState) -> dict:
  """The state as nested dicts with string keys, as in a checkpoint."""
  return nest(_named(state))


def from_tree(tree: dict, like: TrainState) -> TrainState:
  """The inverse of `to_tree`; `like` is an abstract state of the same structure."""
  named = flatten(tree)
  return jax.tree.unflatten(jax.tree.structure(like), [named[name] for name in _named(like)])


def _named(state: TrainState) -> dict:
  leaves, _ = jax.tree_util.tree_flatten_with_path(state)
  return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def init_state(make_model, optimizer: optax.GradientTransformation, abstract: TrainState, seed: int) -> TrainState:
  """A fresh state, made in place on the mesh: each device draws only its part, and the values are the same on any mesh.

  Args:
    make_model: `key -> model`.
  """

  def init(key):
    arrays = params.arrays(make_model(key))
    return TrainState(jnp.int32(0), arrays, optimizer.init(arrays))

  return jax.jit(init, out_shardings=shardings(abstract))(jax.random.key(seed))

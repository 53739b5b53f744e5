"""The state of a run, which a step updates and a checkpoint holds; it has no random keys."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from t5x_like.checkpoints.manifest import flatten, nest
from t5x_like.nn import params
from t5x_like.parallel.rules import Rules
from t5x_like.training import guard
from t5x_like.training.optimizer import from_named, state_axes, to_named

REFERENCE = "reference/"  # prefix of the names of a reference model's parameters


@dataclasses.dataclass(frozen=True)
class TrainState:
  """State of training: all that a checkpoint holds of the model and the optimizer.

  Attributes:
    step: int32 scalar, the number of finished steps.
    params: float32 arrays by name.
    opt_state: the optimizer's state over the same names.
    watch: the guard's record of past losses; scalars.
  """

  step: jax.Array
  params: dict[str, jax.Array]
  opt_state: Any
  watch: guard.LossRecord = dataclasses.field(default_factory=guard.new_loss_record)


jax.tree_util.register_dataclass(TrainState)


def abstract_state(model, optimizer: optax.GradientTransformation, rules: Rules) -> TrainState:
  """Return shapes, dtypes and shardings of a run's state, without allocating anything.

  Args:
    model: the abstract model (`jax.eval_shape` of its constructor).
  """
  named = params.named_params(model)
  arrays = rules.abstract_params(named)
  opt_state = jax.eval_shape(optimizer.init, arrays)
  opt_axes = state_axes(opt_state, named)

  def add_sharding(leaf, axes):
    split_axes = []
    for axis, size in zip(rules.optimizer_axes(axes), leaf.shape):
      # The size of a statistic, such as SOAP's square matrices, may not divide.
      divides = axis is None or size % rules.ways(axis) == 0
      split_axes.append(axis if divides else None)
    sharding = rules.sharding(tuple(split_axes))
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

  return TrainState(
    step=jax.ShapeDtypeStruct((), jnp.int32, sharding=rules.replicated),
    params=arrays,
    opt_state=jax.tree.map(add_sharding, opt_state, opt_axes),
    watch={
      name: jax.ShapeDtypeStruct((), x.dtype, sharding=rules.replicated)
      for name, x in guard.new_loss_record().items()
    },
  )


def shardings(state):
  """Return the shardings of an abstract state, or part of one, as a tree of the same structure."""
  return jax.tree.map(lambda leaf: leaf.sharding, state)


def to_tree(state: TrainState) -> dict:
  """Return the state as nested dicts with string keys, as in a checkpoint.

  See `optimizer.to_named`.
  """
  named = {"step": state.step} | {f"params/{name}": x for name, x in state.params.items()}
  named |= {f"guard/{name}": x for name, x in state.watch.items()}
  return nest(named | to_named(state.opt_state))


def from_tree(tree: dict, like: TrainState, optimizer: optax.GradientTransformation) -> TrainState:
  """Invert `to_tree`, and initialise what the tree lacks of the optimizer, the EMA and the guard.

  If any statistic of the optimizer is missing, all of its state is initialised.

  Args:
    like: an abstract state of the same structure.
  """
  named = flatten(tree)
  state_shardings = shardings(like)
  params = {name: named[f"params/{name}"] for name in like.params}
  watch = guard.new_loss_record() | {
    name: named[f"guard/{name}"] for name in like.watch if f"guard/{name}" in named
  }
  abstract_tensors = to_named(like.opt_state)
  missing = abstract_tensors.keys() - named.keys()
  if missing and all(name.startswith("ema/") for name in missing):

    def init_missing(params):
      tensors = to_named(optimizer.init(params))
      return {name: tensors[name] for name in missing}

    missing_shardings = {name: abstract_tensors[name].sharding for name in missing}
    named |= jax.jit(init_missing, out_shardings=missing_shardings)(params)
    missing = set()
  if not missing:
    opt_state = from_named(named, like.opt_state)
  else:
    opt_state = jax.jit(optimizer.init, out_shardings=state_shardings.opt_state)(params)
  place_watch = jax.jit(lambda watch: watch, out_shardings=state_shardings.watch)
  return TrainState(named["step"], params, opt_state, place_watch(watch))


def init_state(
  make_model, optimizer: optax.GradientTransformation, abstract: TrainState, seed: int
) -> TrainState:
  """Initialise a state in place on the mesh, with the same values on any mesh.

  Each device draws only its part.

  Args:
    make_model: `key -> model`.
  """

  def init(key):
    arrays = params.arrays(make_model(key))
    return TrainState(jnp.int32(0), arrays, optimizer.init(arrays))

  return jax.jit(init, out_shardings=shardings(abstract))(jax.random.key(seed))

"""Build optimizers by name: `config.optimizer = {"name": …, …}`; each is a file of `optimizers/`.

A stack keeps the parameters of its layers in one array with a leading axis. Statistics such as
Adafactor's must not mix layers, so the optimizer is mapped over that axis, once for every depth of
stack.

The learning rate depends on the step of the run, an argument of `update`, and not on the
optimizer's own count of updates. Skipping an update, or restarting an optimizer, therefore does not
shift the rates of later steps.

A tensor of an optimizer state is named by the statistic's owner, the statistic and the parameter
(`to_named`): `adam/mu/encoder/kernel`, `adafactor/v_row/…`, `sgd/trace/…`. Tuples, groups of layers
and wrappers do not appear in names. A count of updates (`adam/count`) is one scalar for all
parameters, although each group of layers keeps a copy.
"""

import abc
import dataclasses
import functools
import re
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from t5x_like import slots
from t5x_like.training.schedule import Schedule

Named = dict[str, jax.Array]
# The dtype of first moments. Second moments change by smaller amounts and stay float32.
Moments = Literal["float32", "bfloat16"]
# Owners that do not follow from the name of a state's class (`_owner_name`).
_OWNERS = {"FactoredState": "adafactor", "TraceState": "sgd"}
_TABLE = re.compile(r"(^|/)(position/|(table|tokens)$)")
_BIAS = re.compile("bias$")  # recognised by name, because the biases of experts are matrices
# Fields of wrappers that hold the state of the wrapped optimizer.
_WRAPPED = ("inner_state", "inner_states", "inner_opt_state")


@dataclasses.dataclass(frozen=True)
class OptimizerArguments(abc.ABC):
  """The arguments of an optimizer, from which it is built."""

  @abc.abstractmethod
  def build(self, schedule: Schedule) -> optax.GradientTransformation:
    """Return the optimizer.

    Args:
      schedule: the learning rate by the run's step, the argument `step` of `update`.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatrixDecay(OptimizerArguments):
  """The arguments of an optimizer with weight decay of matrices only.

  Attributes:
    weight_decay: the share of a parameter that a step subtracts, multiplied by the learning rate.
  """

  undecayed: ClassVar[str] = "vectors"

  weight_decay: slots.NonNegativeFloat = 0.1

  def decay_mask(self, params: Named) -> dict[str, bool]:
    """Return whether each parameter decays."""
    return decay_mask(params, self.undecayed)

  def decay_weights(self) -> optax.GradientTransformation:
    """Return the transformation that adds the decay to directions, before the learning rate."""
    return optax.add_decayed_weights(self.weight_decay, self.decay_mask)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decay(MatrixDecay):
  """The arguments of an optimizer with weight decay, of matrices only by default.

  Attributes:
    undecayed: the parameters that do not decay: "vectors" (biases of experts are among them);
      "embeddings" (tables of tokens and positions, and class tokens); "tables", which means vectors
      and embeddings; or "nothing".
  """

  weight_decay: slots.NonNegativeFloat = 0.01
  undecayed: Literal["vectors", "tables", "embeddings", "nothing"] = "vectors"


def decay_mask(params: Named, undecayed: str = "vectors") -> dict[str, bool]:
  """Return whether each parameter decays; `undecayed` as in `Decay`."""
  keeps_vectors = undecayed in ("vectors", "tables")
  keeps_tables = undecayed in ("tables", "embeddings")
  decays = {}
  for name, p in params.items():
    is_vector = p.ndim < 2 or bool(_BIAS.search(name))
    is_table = bool(_TABLE.search(name))
    decays[name] = not (keeps_vectors and is_vector) and not (keeps_tables and is_table)
  return decays


OPTIMIZERS = slots.Slot(
  "t5x_like.training.optimizers",
  "Arguments",
  base=OptimizerArguments,
  guide="t5x_like/training/optimizer.py",
)


def build_optimizer(
  name: str, schedule: Schedule, **arguments: Any
) -> optax.GradientTransformation:
  """Build the optimizer of a name in `optimizers/`; raise UserError as `Slot.make`."""
  return OPTIMIZERS.make("config.optimizer", {"name": name} | arguments).build(schedule)


def with_upper_bounds(
  optimizer: optax.GradientTransformation, upper_bounds: dict[str, float]
) -> optax.GradientTransformation:
  """Return an optimizer whose updates leave each parameter at or below its upper bound."""
  if not upper_bounds:
    return optimizer

  def update(updates, state, params, **_):
    bounded = dict(updates)
    for name, upper_bound in upper_bounds.items():
      if name in updates:
        bounded[name] = jnp.minimum(updates[name], upper_bound - params[name])
    return bounded, state

  bound = optax.GradientTransformationExtraArgs(lambda _: optax.EmptyState(), update)
  return optax.chain(optimizer, bound)


def with_sign_steps(
  optimizer: optax.GradientTransformation, steps: dict[str, float]
) -> optax.GradientTransformationExtraArgs:
  """Take fixed-size sign steps on the parameters in `steps`; update the rest with `optimizer`.

  Those parameters have no state, weight decay or learning rate.
  """

  def without_steps(named: Named) -> Named:
    return {name: x for name, x in named.items() if name not in steps}

  def update(grads: Named, state, params: Named, **extra):
    updates, state = optimizer.update(without_steps(grads), state, without_steps(params), **extra)
    signed = {name: -step * jnp.sign(grads[name]) for name, step in steps.items() if name in grads}
    return updates | signed, state

  return optax.GradientTransformationExtraArgs(
    lambda params: optimizer.init(without_steps(params)), update
  )


def at_rate(schedule: Schedule) -> optax.GradientTransformationExtraArgs:
  """Turn directions into updates by the learning rate of the schedule at `step`."""

  def update(updates, state, params=None, *, step, **_):
    rate = -schedule(step)
    return jax.tree.map(lambda u: jnp.asarray(rate, u.dtype) * u, updates), state

  return optax.GradientTransformationExtraArgs(lambda _: optax.EmptyState(), update)


def update_layerwise(
  optimizer: optax.GradientTransformation, axes: dict[str, tuple]
) -> optax.GradientTransformation:
  """Apply `optimizer` to each layer of stacked parameters separately.

  Args:
    optimizer: a transformation of `{name: array}`.
    axes: logical axes by parameter name; a leading "layers" marks a stacked parameter.
  Returns:
    A transformation with one inner state for parameters outside stacks and one per depth of stack;
    its `update` takes the `step` of the run.
  """

  def groups(named: Named) -> dict[str, Named]:
    split: dict[str, Named] = {}
    for name, array in named.items():
      group = f"layers_{array.shape[0]}" if axes[name][:1] == ("layers",) else "whole"
      split.setdefault(group, {})[name] = array
    return split

  def init(params: Named):
    state = {}
    for group, group_params in groups(params).items():
      group_init = optimizer.init if group == "whole" else jax.vmap(optimizer.init)
      state[group] = group_init(group_params)
    return state

  def update(grads: Named, state, params: Named, *, step, **_):
    params_by_group = groups(params)
    updates = {}
    new_state = {}
    update_group = functools.partial(optimizer.update, step=step)
    for group, group_grads in groups(grads).items():
      apply = update_group if group == "whole" else functools.partial(_each_layer, update_group)
      group_updates, new_state[group] = apply(group_grads, state[group], params_by_group[group])
      updates.update(group_updates)
    return {name: updates[name] for name in grads}, new_state

  return optax.GradientTransformationExtraArgs(init, update)


def _each_layer(update, grads: Named, state, params: Named):
  """Map `update` over the leading axis of its arguments, except counts, which all layers share.

  If each layer had its own count, the factors computed from counts would be arrays over layers,
  which the partitioner would move between devices.
  """
  counts = jax.tree.map(lambda x: x.ndim == 1 and jnp.issubdtype(x.dtype, jnp.integer), state)
  axes = jax.tree.map(lambda is_count: None if is_count else 0, counts)
  common = jax.tree.map(lambda is_count, x: x[0] if is_count else x, counts, state)
  updates, new_state = jax.vmap(update, (0, axes, 0), (0, axes))(grads, common, params)
  return updates, jax.tree.map(lambda x, old: jnp.broadcast_to(x, old.shape), new_state, state)


def state_axes(opt_state, params: dict) -> object:
  """Return the logical axes of every array of an optimizer state, from the axes of its parameter.

  An array with the name and shape of a parameter has the parameter's axes, and so has a square
  matrix over one side of a parameter (SOAP). Adafactor's factored statistics lack one axis, chosen
  as in optax: `v_row` the largest, `v_col` the second largest (of equal axes, the last). Every
  other array is replicated.

  Args:
    opt_state: abstract or concrete state over `{name: array}`.
    params: objects with `.shape` and `.axes`, by name.
  """

  def axes_of(path, leaf):
    keys = [getattr(entry, "key", getattr(entry, "name", None)) for entry in path]
    name = next((k for k in reversed(keys) if k in params), None)
    replicated = (None,) * leaf.ndim
    if name is None:
      return replicated
    shape = params[name].shape
    axes = params[name].axes
    if leaf.shape == shape or (leaf.ndim == len(shape) > 1 and min(leaf.shape[-2:]) > 1):
      return axes
    if leaf.ndim != len(shape) - 1:
      return replicated
    first = 1 if axes[:1] == ("layers",) else 0
    axes_by_size = first + np.argsort(shape[first:])
    if "v_row" in keys:
      dropped = axes_by_size[-1]
    elif "v_col" in keys:
      dropped = axes_by_size[-2]
    else:
      return replicated
    if leaf.shape != tuple(np.delete(shape, dropped)):
      return replicated
    return tuple(axis for i, axis in enumerate(axes) if i != dropped)

  return jax.tree_util.tree_map_with_path(axes_of, opt_state)


def to_named(opt_state) -> dict[str, Any]:
  """Return the tensors of a state, abstract or not, by name.

  Raises:
    TypeError: two tensors of parameters have the same name.
  """
  named: dict[str, Any] = {}
  for name, per_parameter, leaf in _walk(opt_state):
    if name in named and per_parameter:
      raise TypeError(f"two tensors of the optimizer would be named {name}")
    if name not in named or not leaf.ndim:
      named[name] = leaf
  for name, array in named.items():
    if not _belongs_to_parameter(name):
      named[name] = _first_copy(array)
  return named


def from_named(named: dict[str, Any], like):
  """Invert `to_named`; `like` is an abstract state."""
  leaves = []
  for name, per_parameter, leaf in _walk(like):
    array = named[name]
    if not per_parameter and leaf.ndim:
      array = _repeat_scalar(array, leaf)
    leaves.append(array)
  return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _walk(node, name: str = "") -> Iterator[tuple[str, bool, Any]]:
  """Yield (name, whether it belongs to one parameter, leaf), in the order of `jax.tree.leaves`."""
  if hasattr(node, "_fields"):
    for field in node._fields:
      field_name = f"{_owner_name(type(node).__name__)}/{field}"
      yield from _walk(getattr(node, field), name if field in _WRAPPED else field_name)
  elif isinstance(node, tuple | list):
    for child in node:
      yield from _walk(child, name)
  elif isinstance(node, dict):  # its keys are parameters within a statistic, otherwise groups
    for key in sorted(node):
      yield from _walk(node[key], f"{name}/{key}" if name else "")
  elif node is not None:
    yield name, _belongs_to_parameter(name), node


def _belongs_to_parameter(name: str) -> bool:
  """Return whether a tensor's name has a part for the parameter: `owner/statistic/parameter`."""
  return name.count("/") > 1


def _owner_name(state: str) -> str:
  """Name a state's owner: `ScaleByAdamState` -> `adam`."""
  if state in _OWNERS:
    return _OWNERS[state]
  stem = state.removeprefix("ScaleBy").removesuffix("State")
  return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", stem).lower()


def _first_copy(copies):
  """Return the scalar that every entry of `copies` holds."""
  if not copies.ndim:
    return copies
  sharding = copies.sharding
  if isinstance(sharding, NamedSharding):
    sharding = NamedSharding(sharding.mesh, PartitionSpec())
  if isinstance(copies, jax.ShapeDtypeStruct):
    return jax.ShapeDtypeStruct((), copies.dtype, sharding=sharding)
  return jax.jit(lambda x: x.reshape(-1)[0], out_shardings=sharding)(copies)


def _repeat_scalar(scalar: jax.Array, like) -> jax.Array:
  """Fill an array of the shape and sharding of `like` with a scalar."""
  copies = np.full(like.shape, scalar.addressable_data(0))
  return jax.make_array_from_callback(like.shape, like.sharding, lambda index: copies[index])

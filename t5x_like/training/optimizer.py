"""Build optimizers by name: `config.optimizer = {"name": ..., ...}`.

See also `training.adafactor` and `optimizers/`.

A stack keeps the parameters of its layers in one array with a leading axis. Statistics such as
Adafactor's must not mix layers, so the optimizer is mapped over that axis, once for every depth of
stack.

Learning rates follow the step of the run, an argument of `update`; an optimizer counts only its own
updates. So a schedule can be changed, an update skipped, or an optimizer started afresh, without a
change of the rate at a step.

A tensor of a state is named by its content, the statistic's owner, the statistic and the parameter
(`to_named`): `adam/mu/encoder/kernel`, `adafactor/v_row/…`, `sgd/trace/…`. Tuples, groups of layers
and wrappers leave no trace. A count for all parameters together (`adam/count`) is one scalar,
however many groups keep a copy.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from t5x_like import slots
from t5x_like.training.adafactor import adafactor
from t5x_like.training.schedule import Schedule

Named = dict[str, jax.Array]
# of first moments; second ones, whose changes are smaller, stay float32
Moments = Literal["float32", "bfloat16"]
_OWNERS = {"FactoredState": "adafactor", "TraceState": "sgd"}
# experts' biases are matrices
_TABLE = re.compile(r"(^|/)(position/|(table|tokens)$)")
_BIAS = re.compile("bias$")
_WRAPPED = ("inner_state", "inner_states", "inner_opt_state")


@dataclasses.dataclass(frozen=True)
class Decay:
  """Weight decay, of matrices only by default.

  Attributes:
    weight_decay: share of a parameter that a step takes away, times the rate.
    undecayed: "vectors", among them biases of experts; "tables", which are vectors and positions,
      class tokens and embeddings; "embeddings", which are these tables alone; or "nothing".
  """

  weight_decay: slots.NonNegativeFloat = 0.01
  undecayed: Literal["vectors", "tables", "embeddings", "nothing"] = "vectors"

  def mask(self, params: Named) -> dict[str, bool]:
    """Return whether each parameter decays."""
    keeps_vectors = self.undecayed in ("vectors", "tables")
    keeps_tables = self.undecayed in ("tables", "embeddings")
    decays = {}
    for name, p in params.items():
      is_vector = p.ndim < 2 or bool(_BIAS.search(name))
      is_table = bool(_TABLE.search(name))
      decays[name] = not (keeps_vectors and is_vector) and not (keeps_tables and is_table)
    return decays

  def transformation(self) -> optax.GradientTransformation:
    return optax.add_decayed_weights(self.weight_decay, self.mask)


def adamw(
  schedule: Schedule,
  *,
  b1: slots.Rate = 0.9,
  b2: slots.Rate = 0.999,
  eps: slots.NonNegativeFloat = 1e-8,
  mu_dtype: Moments = "float32",
  **decay: Unpack[Decay],
) -> optax.GradientTransformation:
  """AdamW (Loshchilov & Hutter 2019). By default it decays matrices only: not norm scales, biases
  or other vectors."""
  return optax.chain(
    optax.scale_by_adam(b1, b2, eps, mu_dtype=mu_dtype),
    Decay(**decay).transformation(),
    at_rate(schedule),
  )


class _Optimizers(Mapping):
  """The optimizers here, and one for each file of `training/optimizers/`, by name."""

  _here = {"adafactor": adafactor, "adamw": adamw}
  _others = "t5x_like.training.optimizers"

  def __getitem__(self, name: str) -> Callable[..., optax.GradientTransformation]:
    return self._here.get(name) or slots.find("config.optimizer.name", name, self._others, "make")

  def __iter__(self) -> Iterator[str]:
    return iter(sorted({*self._here, *slots.names(self._others)}))

  def __len__(self) -> int:
    return len(list(iter(self)))


OPTIMIZERS = _Optimizers()


def with_upper_bounds(
  optimizer: optax.GradientTransformation, upper_bounds: dict[str, float]
) -> optax.GradientTransformation:
  """Return an optimizer whose updates take no parameter beyond its upper bound."""

  def update(updates, state, params, **_):
    return updates | {
      n: jnp.minimum(updates[n], upper_bounds[n] - params[n]) for n in upper_bounds if n in updates
    }, state

  bound = optax.GradientTransformationExtraArgs(lambda _: optax.EmptyState(), update)
  return optax.chain(optimizer, bound) if upper_bounds else optimizer


def at_rate(schedule: Schedule) -> optax.GradientTransformationExtraArgs:
  """Turn directions into updates, of the size that the schedule has at `step`."""

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
    axes: logical axes by parameter name; a leading "layers" marks a stacked one.
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
    params_of = groups(params)
    updates = {}
    new_state = {}
    update_group = functools.partial(optimizer.update, step=step)
    for group, group_grads in groups(grads).items():
      apply = update_group if group == "whole" else functools.partial(_each_layer, update_group)
      group_updates, new_state[group] = apply(group_grads, state[group], params_of[group])
      updates.update(group_updates)
    return {name: updates[name] for name in grads}, new_state

  return optax.GradientTransformationExtraArgs(init, update)


def _each_layer(update, grads: Named, state, params: Named):
  """Map `update` over the leading axis of its arguments, except counts, which all layers share.

  A count of each layer would make an array of factors for each, which the partitioner moves between
  devices.
  """
  counts = jax.tree.map(lambda x: x.ndim == 1 and jnp.issubdtype(x.dtype, jnp.integer), state)
  axes = jax.tree.map(lambda is_count: None if is_count else 0, counts)
  common = jax.tree.map(lambda is_count, x: x[0] if is_count else x, counts, state)
  updates, new_state = jax.vmap(update, (0, axes, 0), (0, axes))(grads, common, params)
  return updates, jax.tree.map(lambda x, old: jnp.broadcast_to(x, old.shape), new_state, state)


def state_axes(opt_state, params: dict) -> object:
  """Return the logical axes of every array of an optimizer state, from the axes of its parameter.

  An array with the name and shape of a parameter is split like it, and so is a square one of a
  matrix's side (SOAP). Adafactor's factored statistics lack one axis: `v_row` the largest, `v_col`
  the second largest (the last of equals). optax chooses them so; their other axes are split like
  the parameter's. Everything else is replicated.

  Args:
    opt_state: abstract or concrete state over `{name: array}`.
    params: objects with `.shape` and `.axes`, by name.
  """

  def axes_of(path, leaf):
    keys = [getattr(entry, "key", getattr(entry, "name", None)) for entry in path]
    name = next((k for k in reversed(keys) if k in params), None)
    none = (None,) * leaf.ndim
    if name is None:
      return none
    shape = params[name].shape
    axes = params[name].axes
    if leaf.shape == shape or (leaf.ndim == len(shape) > 1 and min(leaf.shape[-2:]) > 1):
      return axes
    if leaf.ndim != len(shape) - 1:
      return none
    first = 1 if axes[:1] == ("layers",) else 0
    order = first + np.argsort(shape[first:])
    dropped = next((order[i] for key, i in (("v_row", -1), ("v_col", -2)) if key in keys), None)
    fits = dropped is not None and leaf.shape == tuple(np.delete(shape, dropped))
    return tuple(a for i, a in enumerate(axes) if i != dropped) if fits else none

  return jax.tree_util.tree_map_with_path(axes_of, opt_state)


def to_named(opt_state) -> dict[str, Any]:
  """Return the tensors of a state, abstract or not, by name.

  Raises:
    TypeError: two have the same name.
  """
  named: dict[str, Any] = {}
  for name, per_parameter, leaf in _walk(opt_state):
    if name in named and per_parameter:
      raise TypeError(f"two tensors of the optimizer would be named {name}")
    if name not in named or not leaf.ndim:
      named[name] = leaf
  return {name: x if name.count("/") > 1 else _first_copy(x) for name, x in named.items()}


def from_named(named: dict[str, Any], like):
  """Invert `to_named`; `like` is an abstract state."""
  leaves = [
    named[name] if per_parameter or not leaf.ndim else _repeat_scalar(named[name], leaf)
    for name, per_parameter, leaf in _walk(like)
  ]
  return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _walk(node, name: str = "") -> Iterator[tuple[str, bool, Any]]:
  """Yield (name, whether it belongs to one parameter, leaf), in the order of `jax.tree.leaves`."""
  if hasattr(node, "_fields"):
    for field in node._fields:
      field_name = f"{_owner_name(type(node).__name__)}/{field}"
      yield from _walk(getattr(node, field), name if field in _WRAPPED else field_name)
  elif isinstance(node, tuple | list):
    for item in node:
      yield from _walk(item, name)
  elif isinstance(node, dict):  # by parameter below a statistic, by group above
    for key in sorted(node):
      yield from _walk(node[key], f"{name}/{key}" if name else "")
  elif node is not None:
    yield name, name.count("/") > 1, node


def _owner_name(state: str) -> str:
  """Name a state's owner: `ScaleByAdamState` -> `adam`."""
  if state in _OWNERS:
    return _OWNERS[state]
  return re.sub(
    r"(?<=[a-z0-9])(?=[A-Z])", "_", state.removeprefix("ScaleBy").removesuffix("State")
  ).lower()


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
  copies = np.full(like.shape, scalar.addressable_data(0))
  return jax.make_array_from_callback(like.shape, like.sharding, lambda index: copies[index])

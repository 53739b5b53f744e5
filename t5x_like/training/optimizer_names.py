"""Names for the tensors of an optimizer's state that do not depend on how it was put together.

optax nests states as their transformations are nested, so that clipping or another wrapper would rename every tensor.
Here a tensor is named by what it is: the statistic's owner, the statistic, the parameter (`adam/mu/encoder/kernel`,
`adafactor/v_row/…`, `sgd/trace/…`). Tuples, groups of layers and wrappers leave no trace. What is counted for all
parameters together (`adam/count`) is one scalar, however many groups keep a copy.
"""

import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

_OWNERS = {"FactoredState": "adafactor", "TraceState": "sgd"}
_WRAPPED = ("inner_state", "inner_states", "inner_opt_state")


def to_named(opt_state) -> dict[str, Any]:
  """The tensors of a state, abstract or not, by name.

  Raises:
    TypeError: two tensors have the same name.
  """
  named: dict[str, Any] = {}
  for name, per_parameter, leaf in _walk(opt_state):
    if name in named and per_parameter:
      raise TypeError(f"two tensors of the optimizer would be named {name}")
    if name not in named or not leaf.ndim:
      named[name] = leaf
  return {name: x if name.count("/") > 1 else _first(x) for name, x in named.items()}


def from_named(named: dict[str, Any], like):
  """The inverse of `to_named`; `like` is an abstract state."""
  leaves = [
    named[name] if per_parameter or not leaf.ndim else _repeated(named[name], leaf)
    for name, per_parameter, leaf in _walk(like)
  ]
  return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _walk(node, name: str = "") -> Iterator[tuple[str, bool, Any]]:
  """(name, whether it belongs to one parameter, leaf), in the order of `jax.tree.leaves`."""
  if hasattr(node, "_fields"):
    for field in node._fields:
      wraps = field in _WRAPPED
      yield from _walk(getattr(node, field), name if wraps else f"{_owner(type(node).__name__)}/{field}")
  elif isinstance(node, tuple | list):
    for item in node:
      yield from _walk(item, name)
  elif isinstance(node, dict):  # by parameter below a statistic, by group above
    for key in sorted(node):
      yield from _walk(node[key], f"{name}/{key}" if name else "")
  elif node is not None:
    yield name, name.count("/") > 1, node


def _owner(state: str) -> str:
  """`ScaleByAdamState` -> `adam`."""
  if state in _OWNERS:
    return _OWNERS[state]
  bare = state.removeprefix("ScaleBy").removesuffix("State")
  return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", bare).lower()


def _scalar_sharding(sharding):
  return NamedSharding(sharding.mesh, PartitionSpec()) if isinstance(sharding, NamedSharding) else sharding


def _first(copies):
  """The scalar of which `copies` holds one or more."""
  if not copies.ndim:
    return copies
  sharding = _scalar_sharding(copies.sharding)
  if isinstance(copies, jax.ShapeDtypeStruct):
    return jax.ShapeDtypeStruct((), copies.dtype, sharding=sharding)
  return jax.jit(lambda x: x.reshape(-1)[0], out_shardings=sharding)(copies)


def _repeated(scalar: jax.Array, like) -> jax.Array:
  copies = np.full(like.shape, scalar.addressable_data(0))
  return jax.make_array_from_callback(like.shape, like.sharding, lambda index: copies[index])

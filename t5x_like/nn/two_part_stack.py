"""Two stacks, one after the other: first layers with an MLP, the others with experts
(DeepSeek-V3)."""

import copy
import dataclasses

import jax
from flax import nnx

from t5x_like.errors import UserError
from t5x_like.nn.block import add_aux
from t5x_like.nn.dims import NO_DROPOUT, subkey
from t5x_like.nn.layer import CacheStart, Context
from t5x_like.nn.norm import Identity
from t5x_like.nn.stack import Stack


class TwoPartStack(nnx.Module):
  """A stack in two parts, called like one; its cache has one for each."""

  def __init__(self, first: Stack, rest: Stack):
    self.first = first
    self.rest = rest

  def __call__(
    self,
    x_BTD: jax.Array,
    context: Context,
    *,
    cache: dict | None = None,
    key: jax.Array | None = None,
  ):
    total = {}
    caches = {}
    for index, name in enumerate(("first", "rest")):
      own = None if cache is None else cache[name]
      x_BTD, aux, caches[name] = getattr(self, name)(
        x_BTD, context, cache=own, key=subkey(key, index)
      )
      add_aux(total, name, aux)
    return x_BTD, total, (None if cache is None else caches)

  def start_cache(self, start: CacheStart) -> dict:
    return {"first": self.first.start_cache(start), "rest": self.rest.start_cache(start)}

  def without(self, *names: str, **changes) -> "TwoPartStack":
    """Return stacks that share these parameters; see `Stack.without`."""
    other = copy.copy(self)
    other.first, other.rest = (part.without(*names, **changes) for part in (self.first, self.rest))
    return other


def build_two_part_stack(parts, rngs: nnx.Rngs) -> TwoPartStack:
  """Build the stacks of a design whose first layers have an MLP.

  Args:
    parts: an `architectures.build.StackBuilder`.
  Raises:
    UserError: there are not more layers than that, or initial kernels depend on the number of
      layers.
  """
  design = parts.design
  layers = parts.dims.layers
  dense = parts.design.dense_layers
  if dense >= layers:
    raise UserError(
      f"config.model.design.dense_layers: found {dense}, expected fewer than the {layers} layers"
    )
  if design.residual_init:
    raise UserError(
      "config.model.design.residual_init: found True, expected False with dense_layers"
    )
  without = dataclasses.replace(design, experts=None, dense_layers=0)
  first = dataclasses.replace(
    parts, design=without, dims=dataclasses.replace(parts.dims, layers=dense)
  ).stack(rngs)
  first.final_norm = Identity()
  first.dropout = NO_DROPOUT
  after = dataclasses.replace(design, dense_layers=0)
  dims = dataclasses.replace(parts.dims, layers=layers - dense)
  return TwoPartStack(first, dataclasses.replace(parts, design=after, dims=dims).stack(rngs))

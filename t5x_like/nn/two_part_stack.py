"""Two stacks, one after the other: first layers with an MLP, then with experts (DeepSeek-V3)."""

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
  """A stack in two parts, called like one; its cache has an entry for each."""

  def __init__(self, first: Stack, second: Stack):
    self.first = first
    self.rest = second  # a name in checkpoints

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
      part_cache = None if cache is None else cache[name]
      x_BTD, aux, caches[name] = getattr(self, name)(
        x_BTD, context, cache=part_cache, key=subkey(key, index)
      )
      add_aux(total, name, aux)
    return x_BTD, total, (None if cache is None else caches)

  def start_cache(self, start: CacheStart) -> dict:
    return {"first": self.first.start_cache(start), "rest": self.rest.start_cache(start)}

  def without(self, *names: str, **changes) -> "TwoPartStack":
    """Return stacks that share these parameters; see `Stack.without`."""
    stack = copy.copy(self)
    stack.first = self.first.without(*names, **changes)
    stack.rest = self.rest.without(*names, **changes)
    return stack


def build_two_part_stack(parts, rngs: nnx.Rngs) -> TwoPartStack:
  """Build the stacks of a design whose first layers have an MLP.

  Args:
    parts: an `architectures.build.StackBuilder`.
  Raises:
    UserError: all layers would have an MLP, or initial kernels depend on the number of
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
  dense_design = dataclasses.replace(design, experts=None, dense_layers=0)
  dense_dims = dataclasses.replace(parts.dims, layers=dense)
  dense_stack = dataclasses.replace(parts, design=dense_design, dims=dense_dims).stack(rngs)
  dense_stack.final_norm = Identity()
  dense_stack.dropout = NO_DROPOUT
  expert_design = dataclasses.replace(design, dense_layers=0)
  expert_dims = dataclasses.replace(parts.dims, layers=layers - dense)
  expert_stack = dataclasses.replace(parts, design=expert_design, dims=expert_dims).stack(rngs)
  return TwoPartStack(dense_stack, expert_stack)

"""Prepare a model for generation, which runs it once per new token: compute the invariants of the
loop beforehand.

Kernels are cast to the compute dtype. If layers are a Python loop (`nn.stack.Stack.layers`), each
gets its own arrays and its own cache. A `Stack` would slice stacked parameters and caches in every
call and join the caches again; for few tokens, that costs more than the layers themselves.
"""

import copy
import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.architectures.heads.lm import LmHead
from t5x_like.decoding.cpu import KernelFirstLogits, is_left_factor, prepare_for_loop
from t5x_like.nn.block import Block
from t5x_like.nn.embed import Embed
from t5x_like.nn.layer import CacheStart, Context
from t5x_like.nn.stack import Stack
from t5x_like.nn.two_part_stack import TwoPartStack
from t5x_like.nn.vocabulary_logits import VocabularyLogits


class Unrolled(nnx.Module):
  """A `Stack` split into its layers, called like it; its cache is a list of the layers' caches."""

  def __init__(self, stack: Stack | TwoPartStack, dtype: jnp.dtype):
    parts = [stack.first, stack.rest] if isinstance(stack, TwoPartStack) else [stack]
    self.rest = copy.copy(parts[-1])
    self.rest.blocks = None
    self.blocks = nnx.List(
      [prepare_for_loop(block, dtype) for part in parts for block in _unstack_layers(part.blocks)]
    )

  def __call__(
    self, x_BTD: jax.Array, context: Context, *, cache: list | None = None, key: None = None
  ):
    """Return ([B, T, D], {} for the auxiliary scalars, cache)."""
    context = dataclasses.replace(context, bias=self.rest.bias(context.mask, x_BTD.shape[0]))
    after = []
    for block, layer_cache in zip(self.blocks, cache or [None] * len(self.blocks), strict=True):
      x_BTD, _, layer_cache = block(x_BTD, context, layer_cache, None)
      after.append(layer_cache)
    return self.rest.final_norm(x_BTD), {}, cache and after

  def start_cache(self, start: CacheStart) -> list:
    return [block.start_cache(start) for block in self.blocks]

  def without(self, *names: str) -> "Unrolled":
    stack = copy.copy(self)
    sublayers_of_blocks = [
      {name: getattr(block, name) for name in block.names if name not in names}
      for block in self.blocks
    ]
    stack.blocks = nnx.List([Block(**sublayers) for sublayers in sublayers_of_blocks])
    return stack


class CastHead(nnx.Module):
  """A language model head with its kernel in the compute dtype, called like the original."""

  def __init__(self, head: LmHead, embed: Embed, dtype: jnp.dtype):
    tied = head.kernel is None
    kernel = embed.table if tied else head.kernel
    values = kernel[...].astype(dtype)
    first = is_left_factor(kernel.axes)
    self.logits = KernelFirstLogits if first else VocabularyLogits
    self.tied = tied or first
    self.kernel = nnx.Param(
      values.T if self.tied != tied else values, axes=kernel.axes, unit=kernel.unit
    )
    self.bias = head.bias
    self.scale = head.scale
    self.softcap = head.softcap

  def __call__(
    self, x_BTD: jax.Array, embed: Embed, valid_BT=None, key=None
  ) -> dict[str, VocabularyLogits]:
    bias = None if self.bias is None else self.bias[...]
    x_BTD = x_BTD if self.scale == 1.0 else x_BTD * self.scale
    return {"logits": self.logits(x_BTD, self.kernel[...], bias, self.tied, self.softcap)}


def prepare_for_decoding(model):
  """Return a model for a loop over steps, which computes the same function.

  A prepared model is returned unchanged.
  """
  if getattr(model, "prepared_for_decoding", False):
    return model
  prepared = copy.copy(model)
  for name in ("encoder", "decoder"):
    stack = getattr(model, name, None)
    if isinstance(stack, Stack | TwoPartStack):
      setattr(prepared, name, _prepare_stack(stack, model.dtype))
  prepared.head = copy.copy(model.head)
  # OPT 350M projects before it
  owner, name = (prepared.head, "inner") if hasattr(prepared.head, "inner") else (prepared, "head")
  setattr(owner, name, CastHead(getattr(owner, name), model.embed, model.dtype))
  prepared.prepared_for_decoding = True
  return prepared


def _prepare_stack(stack: Stack | TwoPartStack, dtype: jnp.dtype) -> nnx.Module:
  """Return a stack for decoding; if its layers are a loop, each has its own cache."""
  last_part = stack.rest if isinstance(stack, TwoPartStack) else stack
  if last_part.layers == "loop":
    return Unrolled(stack, dtype)
  return prepare_for_loop(stack, dtype)


def _unstack_layers(blocks: Block) -> list[Block]:
  """Split blocks with a leading layers axis into one block per layer."""
  leaves, treedef = jax.tree.flatten(blocks)
  layers_of_leaves = []
  for x in leaves:
    layers_of_leaves.append([layer.squeeze(0) for layer in jax.lax.split(x, [1] * x.shape[0])])
  return [treedef.unflatten(layer) for layer in zip(*layers_of_leaves, strict=True)]

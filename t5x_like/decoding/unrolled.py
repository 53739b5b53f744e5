"""Prepare a model for generation: compute once what its loop over tokens reads at every step.

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
    parts = [stack]
    if isinstance(stack, TwoPartStack):
      parts = [stack.first, stack.rest]
    self.rest = copy.copy(parts[-1])
    self.rest.blocks = None
    blocks = []
    for part in parts:
      for block in _unstack_layers(part.blocks):
        blocks.append(prepare_for_loop(block, dtype))
    self.blocks = nnx.List(blocks)

  def __call__(
    self, x_BTD: jax.Array, context: Context, *, cache: list | None = None, key: None = None
  ):
    """Return ([B, T, D], {} for the auxiliary scalars, cache)."""
    bias = self.rest.bias(context.mask, x_BTD.shape[0])
    context = dataclasses.replace(context, bias=bias)
    layer_caches = cache or [None] * len(self.blocks)
    new_caches = []
    for block, layer_cache in zip(self.blocks, layer_caches, strict=True):
      x_BTD, _, new_cache = block(x_BTD, context, layer_cache, None)
      new_caches.append(new_cache)
    return self.rest.final_norm(x_BTD), {}, (new_caches if cache else cache)

  def start_cache(self, start: CacheStart) -> list:
    return [block.start_cache(start) for block in self.blocks]

  def without(self, *names: str) -> "Unrolled":
    """Return a stack that shares these layers, without the named sublayers."""
    stack = copy.copy(self)
    blocks = []
    for block in self.blocks:
      kept_names = [name for name in block.names if name not in names]
      blocks.append(Block(**{name: getattr(block, name) for name in kept_names}))
    stack.blocks = nnx.List(blocks)
    return stack


class CastHead(nnx.Module):
  """A language model head with its kernel in the compute dtype, called like the original."""

  def __init__(self, head: LmHead, embed: Embed, dtype: jnp.dtype):
    is_tied = head.kernel is None
    kernel = embed.table if is_tied else head.kernel
    values = kernel[...].astype(dtype)
    is_kernel_first = is_left_factor(kernel.axes)
    if is_kernel_first and not is_tied:
      values = values.T
    self.logits = KernelFirstLogits if is_kernel_first else VocabularyLogits
    self.tied = is_tied or is_kernel_first
    self.kernel = nnx.Param(values, axes=kernel.axes, unit=kernel.unit)
    self.bias = head.bias
    self.scale = head.scale
    self.softcap = head.softcap

  def __call__(
    self, x_BTD: jax.Array, embed: Embed, valid_BT=None, key=None
  ) -> dict[str, VocabularyLogits]:
    bias = None if self.bias is None else self.bias[...]
    if self.scale != 1.0:
      x_BTD = x_BTD * self.scale
    logits = self.logits(x_BTD, self.kernel[...], bias, self.tied, self.softcap)
    return {"logits": logits}


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
  if hasattr(model.head, "inner"):  # OPT 350M's head has a projection before it
    prepared.head = copy.copy(model.head)
    prepared.head.inner = CastHead(model.head.inner, model.embed, model.dtype)
  else:
    prepared.head = CastHead(model.head, model.embed, model.dtype)
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
  for leaf in leaves:
    slices = jax.lax.split(leaf, [1] * leaf.shape[0])
    layers_of_leaves.append([layer.squeeze(0) for layer in slices])
  return [treedef.unflatten(layer) for layer in zip(*layers_of_leaves, strict=True)]

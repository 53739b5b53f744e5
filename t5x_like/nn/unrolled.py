"""A stack as generation runs it, once for every new token: with the arrays of each layer by themselves.

Where layers are a Python loop (`nn.stack.Stack.layers`), a call slices the stacked parameters and the cache, and joins
the caches again. In a program of one step, that is free or cheap; in a loop over steps it copies everything anew at
every step, which for a few tokens costs more than the layers themselves.
"""

import dataclasses

import jax

from t5x_like.nn.layer import Context
from t5x_like.nn.stack import Stack


class Unrolled:
  """Called as the `Stack` that it is made of; its cache is a list of the layers' caches."""

  def __init__(self, stack: Stack):
    self._stack = stack
    self._blocks = _split(stack.blocks)

  def __call__(self, x_BTD: jax.Array, context: Context, *, cache: list):
    """Returns ([B, T, D], no auxiliary scalars, cache)."""
    stack, after = self._stack, []
    context = dataclasses.replace(context, bias=stack.bias(context.mask, x_BTD.shape[0]))
    for block, layer_cache in zip(self._blocks, cache, strict=True):
      x_BTD, _, layer_cache = block(x_BTD, context, layer_cache, None)
      after.append(layer_cache)
    return stack.final_norm(x_BTD), {}, after


def unrolled(stack: Stack, cache: dict) -> tuple[Stack | Unrolled, dict | list]:
  """The stack and its cache for a loop over steps: as they are where layers are scanned."""
  return (Unrolled(stack), _split(cache)) if stack.layers == "loop" else (stack, cache)


def _split(layers) -> list:
  """A tree of stacked arrays as one for each layer."""
  leaves, treedef = jax.tree.flatten(layers)
  layers_of = ([part.squeeze(0) for part in jax.lax.split(x, [1] * x.shape[0])] for x in leaves)
  return [treedef.unflatten(layer) for layer in zip(*layers_of, strict=True)]

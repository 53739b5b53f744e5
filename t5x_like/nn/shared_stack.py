"""A stack whose layers share their parameters (Lan et al. 2020, section 3.1)."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.nn.remat import Remat
from t5x_like.nn.stack import Stack


def take_over(module: nnx.Module, other: nnx.Module) -> None:
  """Give a module the parts and settings of another, whose parameters keep their names."""
  for name, value in vars(other).items():
    if not name.startswith("_"):  # flax's own
      setattr(module, name, value)


class SharedStack(Stack):
  """A stack of one block, run `times` times; its parameters have a layers axis of length 1.

  Args:
    stack: the stack of one block, whose parts this one takes over.
    times: number of layers.
  """

  def __init__(self, stack: Stack, times: int):
    take_over(self, stack)
    self.times = times

  def _run(self, blocks: tuple, x_BTD: jax.Array, context, key: jax.Array | None, remat: Remat, cache=None):
    block, _ = jax.tree.map(lambda leaf: leaf[0], blocks)
    keys_L = None if key is None else jax.random.split(key, self.times)

    def body(x_BTD, layer):
      x_BTD, *made = block(x_BTD, dataclasses.replace(context, depth=None), None, layer[1])
      return x_BTD, made

    x_BTD, (aux_L, cache) = self.over(body, x_BTD, (jnp.arange(self.times), keys_L), remat)
    return x_BTD, aux_L, cache

"""A stack whose layers share their parameters (Lan et al. 2020, section 3.1)."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.errors import UserError
from t5x_like.nn.remat import Remat
from t5x_like.nn.stack import Stack


def copy_attributes(target: nnx.Module, source: nnx.Module) -> None:
  """Copy the parts and settings of a module to another; parameters keep their names."""
  for name, value in vars(source).items():
    if not name.startswith("_"):  # not flax's own
      setattr(target, name, value)


class SharedStack(Stack):
  """A stack of a few blocks in groups of equal size, of which each runs several times in a row.

  Args:
    stack: the stack of the blocks, in their order, whose parts this one takes over.
    times: how often each group runs; 0 for a group whose parameters are not used. With one group of
      one block, all layers have the same parameters.
  """

  def __init__(self, stack: Stack, times: tuple[int, ...]):
    copy_attributes(self, stack)
    self.times = times

  def _run(
    self, blocks: tuple, x_BTD: jax.Array, context, key: jax.Array | None, remat: Remat, cache=None
  ):
    """Run the groups of blocks in order, each as often as `times` says; as `Stack._run`."""
    if jax.tree.leaves(blocks)[0].shape[0] != self.repeats:
      raise UserError(
        "config.mesh.stage: layers that share parameters are not split over stages; set it to 1"
      )
    size = self.repeats // len(self.times)
    keys_L = None
    if key is not None:
      keys_L = jax.random.split(key, sum(self.times) * size)
    outputs = []
    first_layer = 0
    for group, times in enumerate(self.times):
      if times == 0:
        continue
      layers = times * size
      keys_NG = None
      if keys_L is not None:
        group_keys_L = keys_L[first_layer : first_layer + layers]
        keys_NG = group_keys_L.reshape(times, size)
      first_block = group * size
      group_blocks = [_block(blocks, index) for index in range(first_block, first_block + size)]
      x_BTD, output = self._repeat(group_blocks, x_BTD, context, keys_NG, times, remat)
      outputs.append(output)
      first_layer += layers
    aux_L, cache = jax.tree.map(lambda *groups: jnp.concatenate(groups), *outputs)
    return x_BTD, aux_L, cache

  def _repeat(self, group: list, x_BTD, context, keys_NG, times: int, remat: Remat):
    """Run blocks one after another, several times; return (x, their outputs, one a layer)."""

    context = dataclasses.replace(context, depth=None)

    def body(x_BTD, repetition):
      _, keys_G = repetition
      outputs = []
      for number, block in enumerate(group):
        layer_key = None if keys_G is None else keys_G[number]
        x_BTD, *output = block(x_BTD, context, None, layer_key)
        outputs.append(output)
      return x_BTD, jax.tree.map(lambda *layers: jnp.stack(layers), *outputs)

    repetitions = (jnp.arange(times), keys_NG)
    x_BTD, outputs = self.scan_layers(body, x_BTD, repetitions, remat)
    return x_BTD, jax.tree.map(_join_repetitions, outputs)


def _join_repetitions(leaf: jax.Array) -> jax.Array:
  """Reshape [repetitions, layers of a group, ...] to [layers, ...]."""
  return leaf.reshape(-1, *leaf.shape[2:])


def _block(blocks: tuple, index: int) -> nnx.Module:
  """Return one of several stacked blocks, without its depths."""
  block, _ = jax.tree.map(lambda leaf: leaf[index], blocks)
  return block

"""A stack: identical blocks whose parameters have a leading layers axis, run by one scan."""

import copy
import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.nn import params
from t5x_like.nn.block import Block, scalars
from t5x_like.nn.dims import NO_DROPOUT, Dropout, subkey
from t5x_like.nn.layer import CacheStart, Context
from t5x_like.nn.mask import Mask
from t5x_like.nn.norm import Identity
from t5x_like.nn.pipeline import DEFAULT_PIPELINE, Pipeline, run_pipeline
from t5x_like.nn.positions import Position
from t5x_like.nn.remat import KEEP_ALL, Remat
from t5x_like.parallel.constrain import ways


class Stack(nnx.Module):
  """Blocks from embeddings to normalised activations.

  Args:
    make_block: builds one block from its own `nnx.Rngs`.
    repeats: number of blocks; if layers differ, a block holds one period of them.
    position: the scheme that the layers share.
    piecewise_bias_above: number of logits (T * S) above which layers receive the scheme itself
      instead of its bias, for cores that compute it piece by piece; None for never.
    final_norm: applied to the output of the last block.
    remat: activations kept for the backward pass.
    pipeline: schedule of microbatches, where layers are split over stages.
    layers: "scan" compiles one block and loops over it; "loop" unrolls, for debugging and for small
      models on CPU.
    depths: for each block, `Context.depth` of its layers.
  """

  def __init__(
    self,
    make_block: Callable[[nnx.Rngs], Block],
    repeats: int,
    rngs: nnx.Rngs,
    *,
    position: Position | None = None,
    piecewise_bias_above: int | None = None,
    final_norm: nnx.Module | None = None,
    dropout: Dropout = NO_DROPOUT,
    remat: Remat = KEEP_ALL,
    layers: str = "scan",
    pipeline: Pipeline = DEFAULT_PIPELINE,
    depths: tuple[tuple[float, ...], ...] | None = None,
  ):
    keys_L = jax.random.split(rngs.params(), repeats)
    blocks = jax.vmap(lambda key: make_block(nnx.Rngs(params=key)))(keys_L)
    self.blocks = jax.tree.map(_add_layers_axis, blocks, is_leaf=params.is_param)
    self.position = position or Position()
    self.piecewise_bias_above = piecewise_bias_above
    self.final_norm = final_norm or Identity()
    self.repeats = repeats
    self.dropout = dropout
    self.remat = remat
    self.layers = layers
    self.pipeline = pipeline
    self.depths = depths

  def __call__(
    self,
    x_BTD: jax.Array,
    context: Context,
    *,
    cache: dict | None = None,
    key: jax.Array | None = None,
  ):
    """Run all blocks.

    Args:
      x_BTD: output of `Inputs`.
      context: masks, memory and cache slot; its `bias` is filled in here from the shared position
        scheme.
      cache: pytree with a leading layers axis, or None.
      key: dropout key, or None for no dropout.
    Returns:
      ([B, T, D], summed auxiliary scalars, cache)
    """
    context = dataclasses.replace(context, bias=self.bias(context.mask, x_BTD.shape[0]))
    run = self._run
    remat = self.remat if cache is None else KEEP_ALL
    if cache is None and ways("layers") > 1:
      run = partial(run_pipeline, self.pipeline, self._run)
    depths = None if self.depths is None else jnp.asarray(self.depths, jnp.float32)
    x_BTD, aux, cache = run((self.blocks, depths), x_BTD, context, subkey(key, 0), remat, cache)
    if aux:
      aux = jax.tree.map(jnp.sum, jax.vmap(scalars)(aux))
    x_BTD = self.dropout(self.final_norm(x_BTD), subkey(key, 1))
    return x_BTD, aux, cache

  def _run(
    self,
    blocks: tuple,
    x_BTD: jax.Array,
    context: Context,
    key: jax.Array | None,
    remat: Remat,
    cache=None,
  ):
    """Run some of the blocks, with their depths, in order.

    Returns:
      ([B, T, D], the auxiliary values of every layer, cache)
    """
    repeats = jax.tree.leaves(blocks)[0].shape[0]
    keys_L = None if key is None else jax.random.split(key, repeats)
    is_unrolled = self.layers == "loop" or repeats == 1  # see `scan_layers`
    wrap = partial(remat.wrap, prevent_cse=is_unrolled)

    def body(x_BTD, layer):
      (block, depth), layer_cache, layer_key = layer
      block_context = dataclasses.replace(context, depth=depth)
      x_BTD, aux, layer_cache = block(x_BTD, block_context, layer_cache, layer_key, wrap)
      return x_BTD, (aux, layer_cache)

    x_BTD, (aux_L, cache) = self.scan_layers(body, x_BTD, (blocks, cache, keys_L))
    return x_BTD, aux_L, cache

  def scan_layers(self, body: Callable, carry, layers, remat: Remat = KEEP_ALL):
    """Fold `body` over layers as `jax.lax.scan` does, in a scan or in a Python loop.

    Args:
      remat: wraps the body.
    """
    run = jax.lax.scan if self.layers == "scan" else _loop
    repeats = jax.tree.leaves(layers)[0].shape[0]
    # A scan of one block is no loop in the compiled program either.
    is_unrolled = self.layers == "loop" or repeats == 1
    return run(remat.wrap(body, prevent_cse=is_unrolled), carry, layers)

  def bias(self, mask: Mask, batch: int):
    """Return the shared bias, [B or 1, N, T, S]; None without a bias.

    Above `piecewise_bias_above` logits, return the scheme itself. For a loop, the bias is broadcast
    to the whole batch, so that the layers' gradients are added first and summed over the batch once
    instead of once per layer.
    """
    if not self.position.biased:
      return None
    logits = mask.q_pos.shape[1] * mask.k_pos.shape[1]
    if self.piecewise_bias_above is not None and logits > self.piecewise_bias_above:
      return self.position
    bias = self.position.bias(mask.q_pos, mask.k_pos)
    if self.layers == "scan":
      return bias
    return jnp.broadcast_to(bias, (batch, *bias.shape[1:]))

  def start_cache(self, start: CacheStart) -> dict:
    """Return the empty cache of every layer, with a leading layers axis."""
    return jax.vmap(lambda block: block.start_cache(start))(self.blocks)

  def without(self, *names: str, **changes) -> "Stack":
    """Return a stack that shares this one's parameters, without the named sublayers.

    Args:
      changes: attributes of the new stack.
    """
    sublayers = {
      name: getattr(self.blocks, name) for name in self.blocks.names if name not in names
    }
    stack = copy.copy(self)
    stack.blocks = Block(self.blocks.num_layers, **sublayers)
    for name, value in changes.items():
      setattr(stack, name, value)
    return stack


def _add_layers_axis(param: nnx.Param) -> nnx.Param:
  return param.replace(axes=("layers", *param.axes), unit=(1, *param.unit))


def _loop(body, carry, layers):
  """Do the work of `jax.lax.scan` in a Python loop."""
  leaves, treedef = jax.tree.flatten(layers)
  # The gradient of a split is one concatenation; the gradient of indexing would add up L
  # zero-padded arrays.
  split_leaves = [jax.lax.split(leaf, [1] * leaf.shape[0]) for leaf in leaves]
  outputs = []
  for layer_leaves in zip(*split_leaves, strict=True):
    layer = treedef.unflatten([leaf.squeeze(0) for leaf in layer_leaves])
    carry, output = body(carry, layer)
    outputs.append(output)
  return carry, jax.tree.map(lambda *leaves: jnp.stack(leaves), *outputs)

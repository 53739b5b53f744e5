"""A stack: L equal blocks whose parameters are stored with a leading layers axis, run by one scan."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.nn import params
from t5x_like.nn.attention import Context
from t5x_like.nn.block import Block
from t5x_like.nn.dims import Dims, dropout, subkey
from t5x_like.nn.mask import Mask
from t5x_like.nn.position import Position

REMAT = {
  "none": None,
  "dots": jax.checkpoint_policies.checkpoint_dots_with_no_batch_dims,
  "full": jax.checkpoint_policies.nothing_saveable,
}


class Stack(nnx.Module):
  """Embeddings in, normalised activations out.

  Args:
    make_block: builds one block from its own `nnx.Rngs`.
    position: the scheme the layers share; a table in it belongs to the stack, not to a layer.
    final_norm: applied to the output of the last block.
    remat: what the backward pass keeps: "none" keeps all activations, "dots" the matrix products, "full" only the
      input of each block.
    layers: "scan" compiles one block and loops over it; "loop" unrolls, for debugging and for small models on CPU.
  """

  def __init__(
    self,
    dims: Dims,
    make_block: Callable[[nnx.Rngs], Block],
    rngs: nnx.Rngs,
    *,
    position: Position,
    final_norm: nnx.Module,
    dropout_rate: float = 0.0,
    remat: str = "none",
    layers: str = "scan",
  ):
    keys_L = jax.random.split(rngs.params(), dims.layers)
    self.blocks = _add_layers_axis(jax.vmap(lambda key: make_block(nnx.Rngs(params=key)))(keys_L))
    self.position = position
    self.final_norm = final_norm
    self.dims = dims
    self.dropout_rate = dropout_rate
    self.remat = remat
    self.layers = layers

  def __call__(self, x_BTD: jax.Array, context: Context, *, cache: dict | None = None, key: jax.Array | None = None):
    """Runs all blocks.

    Args:
      x_BTD: token embeddings.
      context: masks, memory and cache slot; its `bias` is filled in here from the shared position table.
      cache: pytree with a leading layers axis, or None.
      key: dropout key, or None for no dropout.
    Returns:
      ([B, T, D], summed auxiliary losses, cache)
    """
    mask = context.mask
    context = dataclasses.replace(context, bias=self._bias(mask, x_BTD.shape[0]))
    x_BTD = dropout(self.position.embed(x_BTD, mask.q_pos), self.dropout_rate, subkey(key, 0))
    keys_L = None if key is None else jax.random.split(subkey(key, 1), self.dims.layers)

    def body(x_BTD, layer):
      block, layer_cache, layer_key = layer
      x_BTD, aux, layer_cache = block(x_BTD, context, layer_cache, layer_key)
      return x_BTD, (aux, layer_cache)

    if REMAT[self.remat] is not None and cache is None:
      body = jax.checkpoint(body, policy=REMAT[self.remat], prevent_cse=self.layers == "loop")
    run = jax.lax.scan if self.layers == "scan" else _loop
    x_BTD, (aux_L, cache) = run(body, x_BTD, (self.blocks, cache, keys_L))
    x_BTD = dropout(self.final_norm(x_BTD), self.dropout_rate, subkey(key, 2))
    return x_BTD, jax.tree.map(jnp.sum, aux_L), cache

  def _bias(self, mask: Mask, batch: int) -> jax.Array | None:
    """What the layers share, [B or 1, N, T, S]. A loop gets it for the whole batch: so its layers' gradients are
    added first and summed over the batch once, instead of once for each layer."""
    bias = self.position.bias(mask.q_pos, mask.k_pos)
    return bias if bias is None or self.layers == "scan" else jnp.broadcast_to(bias, (batch, *bias.shape[1:]))

  def self_cache(self, batch: int, slots: int, dtype: jnp.dtype) -> dict[str, jax.Array]:
    """Zeroed keys and values for `slots` tokens: {"k", "v"} of [L, B, slots, K, H]."""
    shape = (self.dims.layers, batch, slots, self.dims.kv_heads, self.dims.head_dim)
    return {"k": jnp.zeros(shape, dtype), "v": jnp.zeros(shape, dtype)}


def _add_layers_axis(blocks: Block) -> Block:
  return jax.tree.map(
    lambda p: nnx.Param(p.get_value(), axes=("layers", *p.axes), unit=(1, *p.unit)), blocks, is_leaf=params.is_param
  )


def _loop(body, carry, layers):
  """`jax.lax.scan` as a Python loop."""
  leaves, treedef = jax.tree.flatten(layers)
  # A split, whose gradient is one concatenation: indexing each layer would add up L arrays of zeros around it.
  layers_of = [[x.squeeze(0) for x in jax.lax.split(a, [1] * a.shape[0])] for a in leaves]
  outs = []
  for layer in zip(*layers_of, strict=True):
    carry, out = body(carry, treedef.unflatten(layer))
    outs.append(out)
  return carry, jax.tree.map(lambda *leaves: jnp.stack(leaves), *outs)

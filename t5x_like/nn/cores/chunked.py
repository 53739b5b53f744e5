"""Exact attention in linear memory: a running softmax over blocks of logits.

A block has `query_chunk` x `key_chunk` logits. The core is plain XLA and runs on every backend; see
`_blockwise.py`. Blocks that causality or a window hides entirely are not computed. Other blocks
without a visible pair (other segments, padding, empty slots of a cache) are skipped at run time.

Cost: 4 H FLOPs per head for each logit of the computed blocks in the forward pass, 2.5 times as
  many in the backward pass, which recomputes the logits from the saved log-sums. Memory: O(T + S),
  and one block of logits for each head. Position biases are computed block by block; if they depend
  only on the distance, from a vector of at most T + S values.
"""

import jax

from t5x_like.nn.cores import _blockwise as blockwise
from t5x_like.nn.cores._devices import PerDevice
from t5x_like.slots import PositiveInt


class Chunked(PerDevice):
  """Equal to the dense core, except that it refuses Shaw's positions.

  It takes every mask, position bias, cap and grouping of heads. A query that sees no key at all
  gets zeros (the mean of all values from the dense core).

  Args:
    query_chunk, key_chunk: tokens in a block; sequences are padded to a multiple, and shorter ones
      are one block.
  """

  refuses = ("query_bias",)
  piecewise_bias_above = 0
  exact = True

  def __init__(self, *, query_chunk: PositiveInt = 512, key_chunk: PositiveInt = 512):
    self.query_chunk = query_chunk
    self.key_chunk = key_chunk

  def attend(self, q, k, v, mask, softmax):
    if isinstance(softmax.bias, jax.Array):
      raise self.refusal("a position bias that is an array already")
    grid, arguments = blockwise.plan_blocks(
      q, k, v, mask, softmax, self.query_chunk, self.key_chunk
    )
    out = blockwise.attend(grid, *arguments)
    return out.reshape(q.shape[0], -1, q.shape[2], v.shape[-1])[:, : q.shape[1]]

  def for_decoding(self) -> "Chunked":
    return self


make = Chunked

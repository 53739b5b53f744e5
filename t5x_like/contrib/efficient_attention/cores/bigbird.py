"""BigBird: block-sparse attention.

It follows Zaheer et al. 2020 (https://arxiv.org/abs/2007.14062, section 2 and appendix D). This is
the internal transformer construction (ITC), whose global tokens are tokens of the sequence. The
first and the last block of queries see every key. Each block between them sees the first and the
last block of keys, itself, its two neighbours and `random_blocks` others.

Cost, with blocks of b tokens and r random blocks: T * (5 + r) * b logits per head, and 4 * b * T
for the two global blocks of queries, in FLOPs and in memory: linear in the length.
"""

import dataclasses
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like.errors import UserError
from t5x_like.nn.cores import Core
from t5x_like.nn.cores._blocks import pad_to, split_blocks
from t5x_like.nn.cores.dense import Dense
from t5x_like.nn.linear import wide_einsum
from t5x_like.nn.mask import Mask
from t5x_like.slots import Condition, PositiveInt


class BigBird(Core):
  """Bidirectional attention within one long sequence.

  Sequences of up to `(5 + 2 * random_blocks) * block` tokens are refused; other implementations
  switch to full attention there. The core pads to a multiple of the block, and returns zeros for
  padding (where the mask's keys are not valid).

  The random blocks depend on the seed, the length and the key/value head. They are the same in
  training and evaluation, and in all layers, which are one scanned program. (In training, Hugging
  Face seeds each layer's plan by its index. In evaluation, it replaces every random block by the
  first, which then counts `1 + random_blocks` times in the softmax; `plan="first"` computes that.)

  Args:
    block: tokens in a block.
    random_blocks: number of random blocks that each block of queries sees, in addition to window
      and global blocks.
    seed: seed of the random plan.
    plan: "random", or "first" for Hugging Face's evaluation.
  """

  refuses = ("causal", "window", "segments", "prefix", "bias", "query_bias", "lengths")

  def __init__(
    self,
    *,
    block: PositiveInt = 64,
    random_blocks: Annotated[int, Condition("a whole number, at least 0", lambda n: n >= 0)] = 3,
    seed: int = 0,
    plan: Literal["random", "first"] = "random",
  ):
    self.block = block
    self.random_blocks = random_blocks
    self.seed = seed
    self.plan = plan

  def attend(self, q, k, v, mask, softmax):
    B, T, N, H = q.shape
    K = k.shape[2]
    b = self.block
    min_length = (5 + 2 * self.random_blocks) * b + 1
    if T < min_length:
      raise UserError(
        f"attention core 'bigbird': found a length of {T}, expected at least {min_length} with "
        f"block={b} and random_blocks={self.random_blocks}; use core='dense' for short sequences"
      )
    n = -(-T // b)
    valid_BT = jnp.ones((1, T), bool) if mask.k_valid is None else mask.k_valid
    valid_BT = jnp.broadcast_to(valid_BT, (B, T))
    q = pad_to(q, n * b)
    k = pad_to(k, n * b)
    v = pad_to(v, n * b)
    valid_BS = pad_to(valid_BT, n * b)
    global_key = None
    sparse_key = None
    if softmax.key is not None:
      global_key, sparse_key = jax.random.split(softmax.key)

    # Global rows: the first and the last block of queries attend to every key.
    ends = jnp.concatenate([q[:, :b], q[:, -b:]], axis=1)
    slots = jnp.arange(n * b, dtype=jnp.int32)[None]
    all_keys = Mask(slots[:, : 2 * b], slots, k_valid=valid_BS)
    ends = Dense().attend(ends, k, v, all_keys, dataclasses.replace(softmax, key=global_key))

    middle_q = split_blocks(q, n, b)[:, 1:-1].reshape(B, n - 2, b, K, N // K, H)
    sparse_softmax = dataclasses.replace(softmax, key=sparse_key)
    middle = self._attend_sparsely(middle_q, k, v, valid_BS, sparse_softmax)
    out = jnp.concatenate([ends[:, :b], middle.reshape(B, -1, N, H), ends[:, b:]], axis=1)[:, :T]
    return jnp.where(valid_BT[:, :, None, None], out, jnp.zeros_like(out))

  def _attend_sparsely(
    self, q_BnTKGH: jax.Array, k_BSKH: jax.Array, v_BSKH: jax.Array, valid_BS: jax.Array, softmax
  ) -> jax.Array:
    """Attend from each block between first and last to its (5 + r) * b keys."""
    b = self.block
    n = k_BSKH.shape[1] // b
    random_blocks = self._random_blocks(n, k_BSKH.shape[2])
    has_random = random_blocks.shape[-1] > 0
    k_global, k_window, k_random = _gather_blocks(k_BSKH, n, random_blocks)
    v_global, v_window, v_random = _gather_blocks(v_BSKH, n, random_blocks)
    logits = [
      wide_einsum("BnTKGH,BSKH->BnKGTS", q_BnTKGH, k_global),
      wide_einsum("BnTKGH,BnSKH->BnKGTS", q_BnTKGH, k_window),
    ]
    if has_random:
      logits.append(wide_einsum("BnTKGH,BKnSH->BnKGTS", q_BnTKGH, k_random))
    logits = softmax.cap(jnp.concatenate(logits, axis=-1))
    if self.plan == "first":
      in_first_block = jnp.arange(logits.shape[-1]) < b
      log_repeats = np.float32(np.log1p(self.random_blocks))
      logits = logits + jnp.where(in_first_block, log_repeats, np.float32(0))
    weights = Dense.weights(logits, _visible(valid_BS, n, b, random_blocks), v_BSKH.dtype)
    weights = softmax.dropout(weights, softmax.key)
    to_global, to_window, to_random = jnp.split(weights, [2 * b, 5 * b], axis=-1)
    out = jnp.einsum("BnKGTS,BSKH->BnTKGH", to_global, v_global)
    out = out + jnp.einsum("BnKGTS,BnSKH->BnTKGH", to_window, v_window)
    if has_random:
      out = out + jnp.einsum("BnKGTS,BKnSH->BnTKGH", to_random, v_random)
    return out

  def _random_blocks(self, n: int, kv_heads: int) -> np.ndarray:
    """Return the random blocks of each block between first and last: int32 [K, n - 2, r]."""
    if self.plan == "first":
      return np.zeros((kv_heads, n - 2, 0), np.int32)
    return draw_random_blocks(n, kv_heads, self.random_blocks, self.seed)


def draw_random_blocks(blocks: int, heads: int, random_blocks: int, seed: int) -> np.ndarray:
  """Draw distinct blocks for each block between first and last, neither global nor adjacent to it.

  Returns:
    int32 [heads, blocks - 2, random_blocks]
  """
  generator = np.random.default_rng([seed, blocks])
  plan = np.zeros((heads, blocks - 2, random_blocks), np.int32)
  for head, row in np.ndindex(heads, blocks - 2):
    free = [j for j in range(1, blocks - 1) if abs(j - (row + 1)) > 1]
    plan[head, row] = generator.choice(free, random_blocks, replace=False)
  return plan


def _gather_blocks(x_BSKH: jax.Array, n: int, random_blocks: np.ndarray):
  """Gather the keys (or values) of each block of queries.

  Returns:
    (the global blocks [B, 2b, K, H], the windows [B, n - 2, 3b, K, H], the random blocks [B, K,
    n - 2, rb, H])
  """
  B, S, K, H = x_BSKH.shape
  b = S // n
  x = split_blocks(x_BSKH, n, b)
  global_blocks = jnp.concatenate([x[:, 0], x[:, -1]], axis=1)
  windows = jnp.concatenate([x[:, :-2], x[:, 1:-1], x[:, 2:]], axis=2)
  gather_head = jax.vmap(lambda x, ids: x[:, ids], in_axes=(3, 0), out_axes=1)
  drawn = gather_head(x, jnp.asarray(random_blocks))  # [B, K, n - 2, r, b, H]
  return global_blocks, windows, drawn.reshape(B, K, n - 2, -1, H)


def _visible(valid_BS: jax.Array, n: int, b: int, random_blocks: np.ndarray) -> jax.Array:
  """Return the mask in the order of the logits, bool [B, n - 2, K, 1, 1, (5 + r) * b].

  A block that is global and in the window counts once.
  """
  B = valid_BS.shape[0]
  K = random_blocks.shape[0]
  valid = split_blocks(valid_BS, n, b)
  global_blocks = jnp.concatenate([valid[:, 0], valid[:, -1]], axis=1)[:, None]
  global_blocks = jnp.broadcast_to(global_blocks, (B, n - 2, 2 * b))
  window_ids = np.arange(1, n - 1)[:, None] + np.asarray([[-1, 0, 1]])
  is_not_global = np.repeat((window_ids > 0) & (window_ids < n - 1), b, axis=1)
  windows = jnp.concatenate([valid[:, :-2], valid[:, 1:-1], valid[:, 2:]], axis=2) & is_not_global
  shared = jnp.concatenate([global_blocks, windows], axis=2)[:, :, None]
  shared = jnp.broadcast_to(shared, (B, n - 2, K, 5 * b))
  drawn = jnp.moveaxis(valid[:, jnp.asarray(random_blocks)], 1, 2).reshape(B, n - 2, K, -1)
  return jnp.concatenate([shared, drawn], axis=-1)[:, :, :, None, None]


make = BigBird

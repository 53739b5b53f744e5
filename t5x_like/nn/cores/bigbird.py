"""BigBird: block-sparse attention (Zaheer et al. 2020, https://arxiv.org/abs/2007.14062, section 2
and appendix D).

This is the internal transformer construction (ITC), whose global tokens are tokens of the sequence.
The first and the last block of queries see every key. Each block between them sees the first and
the last block of keys, itself, its two neighbours and `random_blocks` others.

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
  """Bidirectional attention within one sequence longer than `(5 + 2 * random_blocks) * block`
  tokens.

  Shorter sequences are refused; other implementations switch to full attention there. The core pads
  to a multiple of the block, and returns zeros for padding (where the mask's keys are not valid).

  The random blocks depend on the seed, the length and the key/value head. They are the same in
  training and evaluation, and in all layers, which are one scanned program. (In training, Hugging
  Face seeds each layer's plan by its index. In evaluation, it replaces every random block by the
  first, which so counts `1 + random_blocks` times in the softmax; `plan="first"` computes that.)

  Args:
    block: tokens in a block.
    random_blocks: number of random blocks that each block of queries sees, besides window and
      global blocks.
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
    (B, T, N, H), K, b = q.shape, k.shape[2], self.block
    least = (5 + 2 * self.random_blocks) * b + 1
    if T < least:
      raise UserError(
        f"attention core 'bigbird': found a length of {T}, expected at least {least} with "
        f"block={b} and random_blocks={self.random_blocks}; use core='dense' for short sequences"
      )
    n = -(-T // b)
    valid_BS = jnp.broadcast_to(
      jnp.ones((1, T), bool) if mask.k_valid is None else mask.k_valid, (B, T)
    )
    q, k, v, valid = (pad_to(x, n * b) for x in (q, k, v, valid_BS))
    keys = (None, None) if softmax.key is None else jax.random.split(softmax.key)

    # Global rows: the first and the last block of queries attend to every key.
    ends = jnp.concatenate([q[:, :b], q[:, -b:]], axis=1)
    slots = jnp.arange(n * b, dtype=jnp.int32)[None]
    all_keys = Mask(slots[:, : 2 * b], slots, k_valid=valid)
    ends = Dense().attend(ends, k, v, all_keys, dataclasses.replace(softmax, key=keys[0]))

    # Each block between them attends to its (5 + r) * b keys.
    q = split_blocks(q, n, b)[:, 1:-1].reshape(B, n - 2, b, K, N // K, H)
    sights = self._sights(n, K)
    (k_ends, k_near, k_far), (v_ends, v_near, v_far) = _sparse(k, n, sights), _sparse(v, n, sights)
    far = sights.shape[-1] > 0
    logits = [
      wide_einsum("BnTKGH,BSKH->BnKGTS", q, k_ends),
      wide_einsum("BnTKGH,BnSKH->BnKGTS", q, k_near),
    ]
    if far:
      logits.append(wide_einsum("BnTKGH,BKnSH->BnKGTS", q, k_far))
    logits = softmax.cap(jnp.concatenate(logits, axis=-1))
    if self.plan == "first":
      first = jnp.arange(logits.shape[-1]) < b
      logits = logits + jnp.where(first, np.float32(np.log1p(self.random_blocks)), np.float32(0))
    probs = softmax.dropout(Dense.weights(logits, _visible(valid, n, b, sights), v.dtype), keys[1])
    at_ends, at_near, at_far = jnp.split(probs, [2 * b, 5 * b], axis=-1)
    middle = jnp.einsum("BnKGTS,BSKH->BnTKGH", at_ends, v_ends) + jnp.einsum(
      "BnKGTS,BnSKH->BnTKGH", at_near, v_near
    )
    if far:
      middle = middle + jnp.einsum("BnKGTS,BKnSH->BnTKGH", at_far, v_far)
    out = jnp.concatenate([ends[:, :b], middle.reshape(B, -1, N, H), ends[:, b:]], axis=1)[:, :T]
    return jnp.where(valid_BS[:, :, None, None], out, jnp.zeros_like(out))

  def _sights(self, n: int, kv_heads: int) -> np.ndarray:
    """Return the random blocks of each block of queries between first and last: int32 [K, n - 2,
    r]."""
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


def _sparse(x_BSKH: jax.Array, n: int, sights: np.ndarray):
  """Gather the global blocks [B, 2b, K, H], the windows [B, n - 2, 3b, K, H] and the random blocks
  [B, K, n - 2, rb, H] of the rows."""
  B, S, K, H = x_BSKH.shape
  b = S // n
  x = split_blocks(x_BSKH, n, b)
  ends = jnp.concatenate([x[:, 0], x[:, -1]], axis=1)
  near = jnp.concatenate([x[:, :-2], x[:, 1:-1], x[:, 2:]], axis=2)
  # [B, K, n-2, r, b, H]
  far = jax.vmap(lambda x, ids: x[:, ids], in_axes=(3, 0), out_axes=1)(x, jnp.asarray(sights))
  return ends, near, far.reshape(B, K, n - 2, -1, H)


def _visible(valid_BS: jax.Array, n: int, b: int, sights: np.ndarray) -> jax.Array:
  """Return the mask in the order of the logits, bool [B, n - 2, K, 1, 1, (5 + r) * b]; a repeated
  block counts once."""
  B = valid_BS.shape[0]
  K = sights.shape[0]
  valid = split_blocks(valid_BS, n, b)
  ends = jnp.broadcast_to(
    jnp.concatenate([valid[:, 0], valid[:, -1]], axis=1)[:, None], (B, n - 2, 2 * b)
  )
  row = np.arange(1, n - 1)[:, None]
  window = row + np.asarray([[-1, 0, 1]])
  once = np.repeat((window > 0) & (window < n - 1), b, axis=1)
  near = jnp.concatenate([valid[:, :-2], valid[:, 1:-1], valid[:, 2:]], axis=2) & once
  shared = jnp.concatenate([ends, near], axis=2)[:, :, None]
  shared = jnp.broadcast_to(shared, (B, n - 2, K, 5 * b))
  far = jnp.moveaxis(valid[:, jnp.asarray(sights)], 1, 2).reshape(B, n - 2, K, -1)
  return jnp.concatenate([shared, far], axis=-1)[:, :, :, None, None]


make = BigBird

"""The statistics of vocabulary logits that cross-entropy needs, without materialising all logits.

The vocabulary is cut into chunks, and so are sequences if a device has very many tokens. The
forward pass keeps a running maximum and sum (Milakov and Gimelshein 2018). The backward pass
recomputes each chunk of logits (Wijmans et al. 2024, https://arxiv.org/abs/2411.09009), which costs
a third more products than keeping them. Logits that fit into one chunk are kept.

On a mesh, each device computes the logits of its part of the vocabulary (`activation_vocab`), and
the parts' results are combined once. A kernel split over `fsdp` is gathered chunk by chunk, and its
gradient is scattered in the same way.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from t5x_like.nn.vocabulary_logits import VocabularyLogits
from t5x_like.parallel.constrain import constrain, gather, reduce_scatter, ways

MAX_CHUNK_LOGITS = 2**24  # the most logits of a chunk on one device
# Unless all logits fit, the most columns of a chunk on one device lie between these bounds.
MIN_CHUNK_COLUMNS = 1024
MAX_CHUNK_COLUMNS = 8192
# The named scope of a product is `columns_<columns of the vocabulary>_of_<computed columns>`, from
# which `training.jaxpr_flops` counts the columns of overlapping chunks once.
COLUMNS_SCOPE = "columns_"
LANES = 128  # columns are a multiple of this, the width of an accelerator's registers


class Statistics(NamedTuple):
  """Statistics of each token's V logits, float32 [B, T].

  Attributes:
    log_z_BT: log-sum-exp of the logits.
    target_BT: the target's logit.
    total_BT: sum of the logits.
    peak_BT: the largest logit.
  """

  log_z_BT: jax.Array
  target_BT: jax.Array
  total_BT: jax.Array
  peak_BT: jax.Array


def statistics(
  logits: jax.Array | VocabularyLogits, targets_BT: jax.Array, *, total: bool = False
) -> Statistics:
  """Compute the statistics of logits; all but the maximum are differentiable.

  Args:
    logits: [B, T, V], any float dtype.
    targets_BT: int32.
    total: whether the sum is needed; otherwise it may be zero.
  """
  if isinstance(logits, VocabularyLogits):
    chunks = Chunking.for_logits(logits)
    if chunks.is_chunked:
      return Statistics(
        *_statistics(chunks, total, logits.x, logits.kernel, logits.bias, targets_BT)
      )
    logits = logits.dense()
  logits_BTV = logits.astype(jnp.float32)
  # A masked sum rather than a gather: it fuses, and its gradient needs no scatter when the
  # vocabulary is split.
  at_target_BTV = jax.lax.broadcasted_iota(jnp.int32, logits_BTV.shape, 2) == targets_BT[..., None]
  target_BT = jnp.sum(jnp.where(at_target_BTV, logits_BTV, 0.0), axis=-1)
  log_z_BT = jax.nn.logsumexp(logits_BTV, axis=-1)
  peak_BT = jnp.max(logits_BTV, axis=-1)
  return Statistics(log_z_BT, target_BT, jnp.sum(logits_BTV, axis=-1), peak_BT)


def sample_tokens(
  logits: jax.Array | VocabularyLogits, key: jax.Array, temperature: float
) -> jax.Array:
  """Sample one id per token from softmax(logits / temperature): int32 [B, T], without gradient.

  The sample is the argmax of the logits plus Gumbel noise.
  """
  logits = jax.lax.stop_gradient(logits)

  def add_noise(logits, key):
    return logits / temperature + jax.random.gumbel(key, logits.shape)

  chunks = Chunking.for_logits(logits) if isinstance(logits, VocabularyLogits) else None
  if chunks is None or not chunks.is_chunked:
    logits_BTV = logits if chunks is None else logits.dense()
    return jnp.argmax(add_noise(logits_BTV.astype(jnp.float32), key), axis=-1).astype(jnp.int32)

  def add_chunk(best, index):
    chunk = chunks.vocabulary_chunk(logits.kernel, logits.bias, index, logits.x.dtype)
    noisy_BTpc = add_noise(chunks.logits(logits.x, chunk), jax.random.fold_in(key, index))
    peak_BT, sampled_BT = best
    new_BT = jnp.max(noisy_BTpc, axis=(-2, -1))
    ids_BT = jnp.min(
      jnp.where(noisy_BTpc == new_BT[..., None, None], chunk.ids_pc, chunks.vocab), axis=(-2, -1)
    )
    return jnp.maximum(peak_BT, new_BT), jnp.where(new_BT > peak_BT, ids_BT, sampled_BT)

  shape = logits.shape[:2]
  initial = (jnp.full(shape, -math.inf, jnp.float32), jnp.zeros(shape, jnp.int32))
  _, sampled_BT = chunks.scan(add_chunk, initial)
  return sampled_BT


def count_chunks(length: int, num_logits: int, max_logits: int) -> int:
  """Return the least number of equal chunks of a sequence, each with at most `max_logits` logits.

  Args:
    length: the number of tokens, which the number of chunks divides.
    num_logits: the logits of all tokens.
    max_logits: the most logits of a chunk, unless a chunk is a single token.
  """
  for num_chunks in range(1, length):
    if length % num_chunks == 0 and num_logits <= num_chunks * max_logits:
      return num_chunks
  return length


class VocabularyChunk(NamedTuple):
  """A chunk of the vocabulary: c columns of each of p parts.

  Attributes:
    kernel: in the compute dtype, [p, c, D] if tied, else [D, p, c].
    bias_pc: float32, or None.
    start: int32, the index of the first column within each part.
    ids_pc: int32; -1 for columns that were in the previous chunk.
  """

  kernel: jax.Array
  bias_pc: jax.Array | None
  start: jax.Array
  ids_pc: jax.Array


@dataclasses.dataclass(frozen=True)
class Chunking:
  """The division of logits into chunks.

  Attributes:
    vocab, tied, softcap: see `VocabularyLogits`.
    vocab_shards: the number of parts of the vocabulary over the mesh; every chunk has columns of
      each part.
    columns: columns of each part in a chunk. The last chunk ends where the part ends. If it
      overlaps the previous chunk, the columns in both are masked in the last chunk.
    sequence_shards: the number of parts of a sequence over the mesh.
    token_chunks: the number of chunks in each of these parts.
  """

  vocab: int
  tied: bool
  softcap: float | None
  vocab_shards: int
  columns: int
  sequence_shards: int
  token_chunks: int

  @classmethod
  def for_logits(cls, logits: VocabularyLogits) -> "Chunking":
    """Return a division into few chunks of at most `MAX_CHUNK_LOGITS` logits on each device."""
    B, T, V = logits.shape
    vocab_shards = max(ways("vocab"), ways("activation_vocab"))
    sequence_shards = ways("length")
    if V % vocab_shards:
      vocab_shards = 1
    if T % sequence_shards:
      sequence_shards = 1
    tokens = max(1, B * T // (ways("batch") * sequence_shards))
    width = V // vocab_shards
    length = T // sequence_shards
    # A kernel that is split over the mesh is gathered in chunks, even if all logits fit.
    fits = tokens * width <= MAX_CHUNK_LOGITS and vocab_shards * ways("embed") == 1
    max_columns = width
    if not fits:
      max_columns = max(MAX_CHUNK_LOGITS // tokens, MIN_CHUNK_COLUMNS)
      max_columns = min(max_columns, MAX_CHUNK_COLUMNS)
    num_chunks = -(-width // max_columns)
    even_columns = -(-width // num_chunks)
    columns = min(-(-even_columns // LANES) * LANES, width)
    token_chunks = count_chunks(length, tokens * columns, MAX_CHUNK_LOGITS)
    return cls(V, logits.tied, logits.softcap, vocab_shards, columns, sequence_shards, token_chunks)

  @property
  def is_chunked(self) -> bool:
    return self.vocab_shards * self.columns < self.vocab or self.token_chunks > 1

  @property
  def overlaps(self) -> bool:
    """Whether the last chunk has columns of the previous chunk."""
    return self.vocab // self.vocab_shards % self.columns > 0

  @property
  def count(self) -> int:
    """The number of chunks of the vocabulary."""
    return -(-self.vocab // self.vocab_shards // self.columns)

  def scan(self, body: Callable, carry):
    """Run `carry = body(carry, index)` for every chunk of the vocabulary; return the last carry."""
    return jax.lax.scan(
      lambda carry, index: (body(carry, index), None), carry, jnp.arange(self.count)
    )[0]

  @property
  def column_axis(self) -> int:
    """The axis of the columns within a part, in a kernel cut into parts."""
    return 1 if self.tied else 2

  @property
  def logical_axes(self) -> tuple[str | None, ...]:
    """The logical axes of a kernel cut into parts."""
    return ("vocab", None, "embed") if self.tied else ("embed", "vocab", None)

  def split_kernel(self, kernel: jax.Array) -> jax.Array:
    """Reshape a kernel [V, D] or [D, V] into parts."""
    parts = (self.vocab_shards, self.vocab // self.vocab_shards)
    return kernel.reshape(*parts, -1) if self.tied else kernel.reshape(-1, *parts)

  def split_tokens(self, x: jax.Array) -> jax.Array:
    """Reshape [B, T, ...] to [chunks, B, T / chunks, ...]; every device keeps its tokens."""
    B, T, *trailing = x.shape
    x = x.reshape(
      B,
      self.sequence_shards,
      self.token_chunks,
      T // (self.sequence_shards * self.token_chunks),
      *trailing,
    )
    return jnp.moveaxis(x, 2, 0).reshape(self.token_chunks, B, T // self.token_chunks, *trailing)

  def merge_tokens(self, x: jax.Array) -> jax.Array:
    """Undo `split_tokens`."""
    chunks, B, length, *trailing = x.shape
    x = x.reshape(chunks, B, self.sequence_shards, length // self.sequence_shards, *trailing)
    return jnp.moveaxis(x, 0, 2).reshape(B, chunks * length, *trailing)

  def add_gradient(
    self, total: jax.Array, chunk: jax.Array, start: jax.Array, axis: int
  ) -> jax.Array:
    """Write a chunk of gradients into `total`.

    The gradients of masked columns are zero, so the sums from the previous chunk remain.
    """
    chunk = chunk.astype(total.dtype)
    if self.overlaps:
      chunk += jax.lax.dynamic_slice_in_dim(total, start, self.columns, axis)
    return jax.lax.dynamic_update_slice_in_dim(total, chunk, start, axis)

  def vocabulary_chunk(
    self, kernel: jax.Array, bias: jax.Array | None, index: jax.Array, dtype: jnp.dtype
  ) -> VocabularyChunk:
    """Return a chunk of a kernel and a bias, gathered, in `dtype`."""
    width = self.vocab // self.vocab_shards
    first = index * self.columns
    start = jnp.minimum(first, width - self.columns)
    w = jax.lax.dynamic_slice_in_dim(
      self.split_kernel(kernel), start, self.columns, self.column_axis
    ).astype(dtype)
    bias_pc = None
    if bias is not None:
      bias_pc = jax.lax.dynamic_slice_in_dim(
        bias.reshape(self.vocab_shards, width), start, self.columns, 1
      )
    columns_c = start + jnp.arange(self.columns)
    ids_pc = jnp.where(
      columns_c < first, -1, columns_c + width * jnp.arange(self.vocab_shards)[:, None]
    )
    return VocabularyChunk(gather(w, self.logical_axes), bias_pc, start, ids_pc)

  def logits(self, x: jax.Array, chunk: VocabularyChunk) -> jax.Array:
    """Compute the logits of the chunk's columns, float32 [B, T, p, c].

    Masked columns, which are also in the previous chunk, get -inf.
    """
    product = "BTD,pcD->BTpc" if self.tied else "BTD,Dpc->BTpc"
    with jax.named_scope(
      f"{COLUMNS_SCOPE}{self.vocab}_of_{self.vocab_shards * self.columns * self.count}"
    ):
      logits = jnp.einsum(product, x, chunk.kernel, preferred_element_type=jnp.float32)
    logits = constrain(logits, "batch", "length", "activation_vocab", None)
    if chunk.bias_pc is not None:
      logits = logits + chunk.bias_pc
    if self.softcap is not None:
      logits = self.softcap * jnp.tanh(logits / self.softcap)
    return jnp.where(chunk.ids_pc < 0, -jnp.inf, logits) if self.overlaps else logits


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _statistics(
  chunks: Chunking,
  sum_up: bool,
  x: jax.Array,
  kernel: jax.Array,
  bias: jax.Array | None,
  targets: jax.Array,
):
  """Return the four fields of `Statistics`."""
  return _forward(chunks, sum_up, x, kernel, bias, targets)[0]


def _forward(chunks: Chunking, sum_up: bool, x, kernel, bias, targets):
  """Return the statistics and the residuals of the backward pass, as `jax.custom_vjp` needs them.

  Each chunk of the vocabulary updates a running maximum and sum for each part. Within it, a scan
  goes over the chunks of tokens.
  """
  inputs = chunks.split_tokens(x), chunks.split_tokens(targets)

  def add_chunk(statistics_so_far, index):
    chunk = chunks.vocabulary_chunk(kernel, bias, index, x.dtype)

    def add_tokens(_, token_chunk):
      (x, targets), (peak, z, target, total) = token_chunk
      logits = chunks.logits(x, chunk)
      new_peak = jnp.maximum(peak, logits.max(-1))
      z = z * jnp.exp(peak - new_peak) + jnp.exp(logits - new_peak[..., None]).sum(-1)
      target += jnp.where(chunk.ids_pc == targets[..., None, None], logits, 0.0).sum(-1)
      if sum_up:
        total += jnp.where(chunk.ids_pc < 0, 0.0, logits).sum(-1)
      return None, (new_peak, z, target, total)

    return jax.lax.scan(add_tokens, None, (inputs, statistics_so_far))[1]

  zeros = constrain(
    jnp.zeros((*inputs[1].shape, chunks.vocab_shards)), None, "batch", "length", "activation_vocab"
  )
  peaks, z, target, total = chunks.scan(add_chunk, (zeros - math.inf, zeros, zeros, zeros))
  peak = peaks.max(-1)
  log_z = peak + jnp.log(jnp.sum(z * jnp.exp(peaks - peak[..., None]), axis=-1))
  chunked_statistics = (log_z, target.sum(-1), total.sum(-1), peak)
  outputs = tuple(chunks.merge_tokens(statistic) for statistic in chunked_statistics)
  return outputs, (x, kernel, bias, targets, outputs[0])


def _backward(chunks: Chunking, sum_up: bool, residuals, gradients):
  """Return the gradients of x, kernel, bias and targets; the logits of a chunk are recomputed.

  The gradient of a token's logits is `d log_z * softmax + d target * one-hot + d total`. The
  gradient of the maximum is ignored.
  """
  x, kernel, bias, targets, log_z = residuals
  inputs = [chunks.split_tokens(a) for a in (x, targets, log_z, *gradients[:3])]
  to_x = "BTpc,pcD->BTpD" if chunks.tied else "BTpc,Dpc->BTpD"
  to_kernel = partial(
    jnp.einsum, "BTpc,BTD->pcD" if chunks.tied else "BTD,BTpc->Dpc", preferred_element_type=x.dtype
  )

  def add_chunk(gradients_so_far, index):
    dx, d_kernel, d_bias = gradients_so_far
    chunk = chunks.vocabulary_chunk(kernel, bias, index, x.dtype)

    def token_chunk_gradients(token_chunk, dx):
      x, targets, *statistics_BT = token_chunk
      log_z, d_log_z, d_target, d_total = (s_BT[..., None, None] for s_BT in statistics_BT)
      logits = chunks.logits(x, chunk)
      is_target = chunk.ids_pc == targets[..., None, None]
      d_logits = d_log_z * jnp.exp(logits - log_z) + jnp.where(is_target, d_target, 0.0)
      if sum_up:
        d_logits = d_logits + d_total
      if chunks.softcap is not None:
        d_logits *= 1.0 - jnp.square(logits / chunks.softcap)
      if chunks.overlaps:
        d_logits = jnp.where(chunk.ids_pc < 0, 0.0, d_logits)
      factor = d_logits.astype(x.dtype)  # in the compute dtype, for the products
      dx += jnp.einsum(to_x, factor, chunk.kernel, preferred_element_type=jnp.float32)
      factors = (factor, x) if chunks.tied else (x, factor)
      d_kernel = reduce_scatter(to_kernel, *factors, chunks.logical_axes)
      return dx, d_kernel, d_logits.sum((0, 1))

    def add_tokens(sums, token_chunk_and_dx):
      dx, *kernel_and_bias = token_chunk_gradients(*token_chunk_and_dx)
      return jax.tree.map(jnp.add, sums, tuple(kernel_and_bias)), dx

    if chunks.token_chunks == 1:
      dx, kernel_chunk, bias_chunk = token_chunk_gradients([a[0] for a in inputs], dx[0])
      dx = dx[None]
    else:
      zeros = (jnp.zeros(a.shape, jnp.float32) for a in (chunk.kernel, chunk.ids_pc))
      sums, dx = jax.lax.scan(add_tokens, tuple(zeros), (inputs, dx))
      kernel_chunk, bias_chunk = sums
    d_kernel = chunks.add_gradient(d_kernel, kernel_chunk, chunk.start, chunks.column_axis)
    if bias is not None:
      d_bias = chunks.add_gradient(d_bias, bias_chunk, chunk.start, 1)
    return dx, d_kernel, d_bias

  dx = jnp.zeros((*inputs[1].shape, chunks.vocab_shards, x.shape[-1]))
  dx = constrain(dx, None, "batch", "length", "activation_vocab", None)
  layout = ["optimizer_embed" if axis == "embed" else axis for axis in chunks.logical_axes]
  d_kernel = constrain(jnp.zeros_like(chunks.split_kernel(kernel)), *layout)
  d_bias = None if bias is None else jnp.zeros_like(bias).reshape(chunks.vocab_shards, -1)
  dx, d_kernel, d_bias = chunks.scan(add_chunk, (dx, d_kernel, d_bias))
  dx = chunks.merge_tokens(dx.sum(-2)).astype(x.dtype)
  if bias is not None:
    d_bias = d_bias.reshape(-1)
  return dx, d_kernel.reshape(kernel.shape), d_bias, None


_statistics.defvjp(_forward, _backward)

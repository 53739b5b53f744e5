"""Fingerprints of the tensors to save, and copies, so that training continues during writing.

A fingerprint is 64 bits over every bit and its position, computed where the tensor lives. A
checkpoint stores one per tensor, so that corruption on disk is detected. It is a sum (modulo 2**32)
of mixed words, each word mixed with the linear index of its element: integer addition is
associative and commutative, so the sum is the same for any mesh, sharding and number of processes,
and no tensor leaves its devices. The mixing step is the finaliser of MurmurHash3 (A. Appleby,
public domain), a bijection of 32-bit words, so a single changed word always changes the first sum.
"""

import functools
import logging
import math

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from t5x_like.errors import one_line

HOST = "pinned_host"  # the memory of a device's host that the device reaches
# Half of the 64 GB of pinned memory that XLA gives a process on GPUs, as orbax may copy once more.
_MAX_PINNED_BYTES = 2**35
_log = logging.getLogger("t5x_like.checkpoint")
_copy_tree = functools.partial(jax.tree.map, jnp.copy)
_UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}  # 8 bytes are two words
_POSITION_SEED = 0x9E3779B9  # 2**32 / golden ratio, so that position 0 is mixed too


def _mix(bits):
  """Mix uint32 words of any shape by the finaliser of MurmurHash3, with its constants."""
  bits = bits ^ (bits >> jnp.uint32(16))
  bits = bits * jnp.uint32(0x85EBCA6B)
  bits = bits ^ (bits >> jnp.uint32(13))
  bits = bits * jnp.uint32(0xC2B2AE35)
  return bits ^ (bits >> jnp.uint32(16))


def _words(x: jax.Array) -> jax.Array:
  """Return the bits of `x` as uint32, one word per element.

  64-bit types have two along a new last axis.
  """
  if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
    x = jax.random.key_data(x)
  if x.dtype == jnp.bool_:
    x = x.astype(jnp.uint8)
  if jnp.issubdtype(x.dtype, jnp.complexfloating):
    raise TypeError(f"no fingerprint for tensors of type {x.dtype}")
  return jax.lax.bitcast_convert_type(x, _UNSIGNED[x.dtype.itemsize]).astype(jnp.uint32)


def _sums(x: jax.Array) -> jax.Array:
  """Return the fingerprint of a tensor, and whether a value is not finite, as uint32 [3]."""
  bits = _words(x)
  index = jnp.zeros(bits.shape, jnp.uint32)
  for axis in range(bits.ndim):
    stride = math.prod(bits.shape[axis + 1 :]) & 0xFFFFFFFF
    index = index + jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis) * jnp.uint32(stride)
  position = _mix(index + jnp.uint32(_POSITION_SEED))
  mixed = _mix(bits ^ position)
  nonfinite = ~jnp.isfinite(x).all() if jnp.issubdtype(x.dtype, jnp.floating) else jnp.bool_(False)
  sums = jnp.sum(mixed, dtype=jnp.uint32), jnp.sum(_mix(mixed + position), dtype=jnp.uint32)
  return jnp.stack((*sums, nonfinite.astype(jnp.uint32)))


@functools.lru_cache(maxsize=16)
def _compile_sums(sharding: NamedSharding | None):
  """Compile one program per tensor, shared by tensors of equal shape and sharding.

  A state has a hundred tensors of a dozen shapes; one program for all would take several times as
  long to compile.
  """
  if sharding is None:
    return jax.jit(_sums)
  return jax.jit(_sums, out_shardings=sharding)


def fingerprints(tensors: dict[str, jax.Array]) -> dict[str, str]:
  """Return the fingerprint of every tensor; see `fingerprints_and_nonfinite`."""
  fingerprint_by_name, _ = fingerprints_and_nonfinite(tensors)
  return fingerprint_by_name


def fingerprints_and_nonfinite(tensors: dict[str, jax.Array]) -> tuple[dict[str, str], list[str]]:
  """Return the fingerprint of every tensor, and the names of those with NaN or infinity.

  A fingerprint has 16 hexadecimal digits. All processes must call it with the same tensors, in the
  same order.

  Args:
    tensors: arrays of any shape (scalars and empty ones too) of a boolean, integer, floating or
      random-key type, with any sharding.

  Raises:
    TypeError: for a complex tensor.
  """
  sums = {}
  for name, x in tensors.items():
    mesh = x.sharding.mesh if isinstance(x.sharding, NamedSharding) else None
    sums[name] = _compile_sums(mesh and NamedSharding(mesh, PartitionSpec()))(x).addressable_data(0)
    if mesh is not None and mesh.size > 1 and jax.default_backend() == "cpu":
      # One at a time: on CPU, collectives of programs that run concurrently can wait for each other
      # forever.
      jax.block_until_ready(sums[name])
  fingerprint_by_name = {}
  nonfinite_names = []
  for name, (first, second, nonfinite) in jax.device_get(sums).items():
    fingerprint_by_name[name] = f"{int(first):08x}{int(second):08x}"
    if nonfinite:
      nonfinite_names.append(name)
  return fingerprint_by_name, nonfinite_names


class HostCopies:
  """A function that copies tensors to the hosts' memory, so that they may be donated.

  It does not wait for the copies. It makes none if the memory is too small, or on a platform
  without such memory.
  """

  def __init__(self):
    self._is_supported: bool | None = None  # not tried yet

  def __call__(self, tensors: dict[str, jax.Array]) -> dict[str, jax.Array] | None:
    if not tensors or self._is_supported is False:
      return None
    shardings = {name: x.sharding for name, x in tensors.items()}
    if jax.default_backend() == "cpu":
      return jax.jit(_copy_tree, out_shardings=shardings)(tensors)
    num_bytes = 0
    for x in tensors.values():
      num_bytes += sum(shard.data.nbytes for shard in x.addressable_shards)
    if num_bytes > _MAX_PINNED_BYTES:
      return None
    try:
      copies = jax.device_put(
        tensors, {name: s.with_memory_kind(HOST) for name, s in shardings.items()}
      )
      if self._is_supported is None:
        jax.block_until_ready(copies)
    except (ValueError, RuntimeError) as error:
      _log.warning(
        "checkpoints are written without copies in pinned memory, steps wait longer: %s",
        one_line(error),
      )
      copies = None
    self._is_supported = copies is not None
    return copies

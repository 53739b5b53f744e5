"""Ring attention equals the dense core, and no device holds all keys."""

import core_cases as cases
import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from t5x_like.nn.cores import record_cores, ring
from t5x_like.nn.cores.ring import Ring
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules

CORE = Ring(query_chunk=4, key_chunk=4)
T = 40  # ten tokens on a device, in blocks of four, the last of which is padded


def mesh(**axes):
  """Return a mesh whose devices are not in the order of their ids, as on a slice."""
  devices = np.array(jax.devices())[[0, 4, 1, 5, 2, 6, 3, 7]]
  return make_mesh(axes, list(devices))


@pytest.mark.parametrize(
  "kind, bias, options",
  [
    ("packed_causal", "alibi_layer", {}),
    ("causal", "table", {}),
    ("prefix", "table", {"softcap": 3.0}),
    ("full_w5", None, {}),
  ],
)
def test_ring_over_a_split_length_equals_the_dense_core(kind, bias, options):
  with Rules.make(mesh(data=2, sequence=4)).activate(), record_cores() as used:
    cases.assert_equals_dense(
      CORE, cases.mask(kind, T), (*cases.qkv(T=T), *cases.bias(bias, T)), **options
    )
  assert used == {"attention": {"ring", "dense"}}


def test_no_device_holds_all_keys():
  ring_mesh = mesh(data=2, sequence=4)
  q, k, v = cases.qkv(T=T)
  mask = cases.mask("causal", T)
  with Rules.make(ring_mesh).activate():
    split = [
      jax.device_put(x, NamedSharding(ring_mesh, PartitionSpec("data", "sequence")))
      for x in (q, k, v)
    ]
    run = jax.jit(lambda q, k, v: CORE(q, k, v, mask, scale=0.4))
    program = run.lower(*split).compile().as_text()
  assert "collective-permute" in program
  assert "all-gather" not in program
  assert f"f32[1,{T}," not in program
  assert "f32[1,10," in program


@pytest.mark.parametrize("n", [4, 5, 8])
def test_zigzag_order_balances_causal_work(n):
  """The order is invertible, and all devices have equally many visible pairs."""
  mesh = Mesh(np.array(jax.devices()[:n]), ("sequence",))
  device_ring = ring.DeviceRing(("sequence",), n)
  split = PartitionSpec(None, "sequence")

  def run(exchange, x):
    return jax.shard_map(exchange, mesh=mesh, in_specs=split, out_specs=split)(x)

  pos = np.arange(6 * n)[None]
  zigzag = run(device_ring.to_zigzag, pos)
  np.testing.assert_array_equal(run(device_ring.from_zigzag, zigzag), pos)
  visible_keys = (np.asarray(zigzag).reshape(n, -1) + 1).sum(1)  # of the queries of a device
  assert np.ptp(visible_keys) == 0
  assert not np.array_equal(zigzag, pos)


def test_ring_over_an_unsplit_length_uses_the_chunked_core():
  q, k, v = cases.qkv(T=T)
  mask = cases.mask("causal", T)
  with record_cores() as used:
    CORE(q, k, v, mask, scale=0.4)
  assert used == {"attention": {"chunked"}}

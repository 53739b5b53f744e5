"""Ring attention: what the dense core computes, without any device holding all keys."""

from functools import partial

import core_cases as cases
import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from t5x_like.errors import UserError
from t5x_like.nn.cores import record_cores, ring
from t5x_like.nn.cores.ring import Ring
from t5x_like.nn.dims import Dropout
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules

CORE = Ring(query_chunk=4, key_chunk=4)
T = 40  # ten tokens a device, in blocks of four: the last one is padded


def mesh(**axes):
  """Devices in an order of their own, as on a slice."""
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
def test_it_equals_dense_on_a_split_length(kind, bias, options):
  with Rules.make(mesh(data=2, sequence=4)).activate(), record_cores() as used:
    cases.assert_equals_dense(
      CORE, cases.mask(kind, T), (*cases.qkv(T=T), *cases.bias(bias, T)), **options
    )
  assert used == {"attention": {"ring", "dense"}}


def test_no_device_holds_all_keys():
  on = mesh(data=2, sequence=4)
  (q, k, v), mask = cases.qkv(T=T), cases.mask("causal", T)
  with Rules.make(on).activate():
    split = [
      jax.device_put(x, NamedSharding(on, PartitionSpec("data", "sequence"))) for x in (q, k, v)
    ]
    run = jax.jit(lambda q, k, v: CORE(q, k, v, mask, scale=0.4))
    program = run.lower(*split).compile().as_text()
  assert "collective-permute" in program and "all-gather" not in program
  assert f"f32[1,{T}," not in program and "f32[1,10," in program


@pytest.mark.parametrize("n", [4, 5, 8])
def test_causal_work_is_the_same_on_every_device(n):
  """Pieces are whole again after they have changed places, and no device has more visible pairs
  than another."""
  on = Mesh(np.array(jax.devices()[:n]), ("sequence",))

  def moved(x, back):
    local = partial(ring._zigzag, (("sequence",), n), back=back)
    return jax.shard_map(
      local,
      mesh=on,
      in_specs=PartitionSpec(None, "sequence"),
      out_specs=PartitionSpec(None, "sequence"),
    )(x)

  pos = np.arange(6 * n)[None]
  there = moved(pos, False)
  np.testing.assert_array_equal(moved(there, True), pos)
  seen = (np.asarray(there).reshape(n, -1) + 1).sum(1)  # keys that the queries of a device see
  assert np.ptp(seen) == 0 and not np.array_equal(there, pos)


def test_it_is_the_chunked_core_where_nothing_goes_around():
  (q, k, v), mask = cases.qkv(T=T), cases.mask("causal", T)
  with record_cores() as used:
    CORE(q, k, v, mask, scale=0.4)
  assert used == {"attention": {"chunked"}}
  with pytest.raises(UserError, match="core 'ring' cannot do dropout of attention probabilities"):
    CORE(q, k, v, mask, scale=0.4, dropout=Dropout(0.1), key=jax.random.key(0))

"""Small training states on meshes, `make_mesh(8, 1)` by default, and checkpoints of them."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from t5x_like.checkpoints.manager import Checkpoints


def make_mesh(fsdp: int, tensor: int) -> Mesh:
  return jax.make_mesh((fsdp, tensor), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)


def state_shardings(mesh: Mesh | None) -> dict:
  mesh = mesh or make_mesh(8, 1)
  return {
    "params": {
      "embed": NamedSharding(mesh, P("fsdp", "tensor")),
      "scale": NamedSharding(mesh, P()),
    },
    "opt": {
      "moment": NamedSharding(mesh, P(None, "fsdp")),
      "count": NamedSharding(mesh, P()),
      "empty": {},
    },
    "step": NamedSharding(mesh, P()),
    "key": NamedSharding(mesh, P()),
  }


def make_state(seed: int, mesh: Mesh | None = None) -> dict:
  """Return a random state, whose embedding has random bits: also NaNs, infinities, subnormals."""
  random = np.random.default_rng(seed)
  bits = random.integers(0, 2**32, (64, 32), dtype=np.uint32)
  state = {
    "params": {
      "embed": bits.view(np.float32),
      "scale": jnp.asarray(random.standard_normal(24), jnp.bfloat16),
    },
    "opt": {
      "moment": random.standard_normal((16, 64)).astype(np.float32),
      "count": np.int32(seed),
      "empty": {},
    },
    "step": np.int32(seed),
    "key": random.integers(0, 2**32, (2,), dtype=np.uint32),
  }
  return jax.tree.map(jax.device_put, state, state_shardings(mesh))


def abstract_state(mesh: Mesh | None = None) -> dict:
  """Return the shapes, dtypes and shardings of the states on a mesh."""
  return jax.tree.map(
    lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
    make_state(0, mesh),
    state_shardings(mesh),
  )


def assert_is_state(state: dict, seed: int) -> None:
  """Assert that a state has the bits of `make_state(seed, ...)`, on any mesh."""
  expected = make_state(seed)
  assert jax.tree.structure(state) == jax.tree.structure(expected)
  for array, expected_array in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
    assert np.asarray(array).tobytes() == np.asarray(expected_array).tobytes()


def save_steps(directory, steps, mesh: Mesh | None = None, **options) -> None:
  """Save the state of each step, which is its seed, with the metadata {"step": step}."""
  with Checkpoints(directory, **options) as checkpoints:
    for step in steps:
      save_step(checkpoints, step, mesh)


def save_step(checkpoints: Checkpoints, step: int, mesh: Mesh | None = None) -> None:
  checkpoints.save(step, make_state(step, mesh), {"step": step}, finite=False)


def assert_restores(
  directory, step: int, mesh: Mesh | None = None, requested_step: int | None = None
) -> None:
  """Assert that restoring the requested step, or else the newest intact one, gives `step` exactly."""
  with Checkpoints(directory) as checkpoints:
    restored_step, state, metadata = checkpoints.restore(abstract_state(mesh), requested_step)
  assert restored_step == step
  assert metadata == {"step": step}
  assert_is_state(state, step)

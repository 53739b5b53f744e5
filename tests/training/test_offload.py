"""Training with optimizer state in host memory has the same losses; devices without it refuse."""

import types

import jax
import numpy as np
import pytest

from t5x_like import recipes
from t5x_like.errors import UserError
from t5x_like.training import offload
from t5x_like.training.build import build_parts
from t5x_like.training.resolve import resolve
from t5x_like.training.state import init_state, shardings
from t5x_like.training.step import make_step

NANO = ("mesh.data=2", "mesh.fsdp=4", "optimizer.name=adamw", "model.layers=scan")


def train_three_steps(*overrides):
  """Return (the losses of three steps, the state after them)."""
  config = resolve(recipes.load("tests/recipes/nano.py", NANO + overrides))
  parts = build_parts(config)
  state = init_state(parts.make_model, parts.optimizer, parts.state, seed=1)
  step = make_step(
    parts.model, parts.objective, parts.optimizer, parts.schedule, parts.rules, seed=1
  )
  step = jax.jit(step, donate_argnums=0, out_shardings=(shardings(parts.state), None))
  generator = np.random.default_rng(0)
  tokens = generator.integers(2, 300, (8, 16)).astype(np.int32)
  batch = {
    name: tokens
    for name in ("encoder_input_tokens", "decoder_input_tokens", "decoder_target_tokens")
  }
  batch["decoder_loss_weights"] = np.ones((8, 16), np.float32)
  losses = []
  for _ in range(3):
    state, metrics = step(state, jax.device_put(batch, parts.rules.batch()))
    losses.append(float(metrics["loss"]))
  return losses, state


@pytest.mark.more
def test_training_with_offloaded_state_has_the_same_losses():
  losses, state = train_three_steps("optimizer.offload=True")
  expected, _ = train_three_steps()
  np.testing.assert_allclose(losses, expected, rtol=1e-6)
  kinds = {(leaf.ndim > 0, leaf.sharding.memory_kind) for leaf in jax.tree.leaves(state.opt_state)}
  assert kinds == {(True, offload.HOST), (False, "device")}
  assert {leaf.sharding.memory_kind for leaf in jax.tree.leaves(state.params)} == {"device"}


def test_devices_without_host_memory_are_refused():
  memory = types.SimpleNamespace(kind="device")
  device = types.SimpleNamespace(addressable_memories=lambda: [memory], device_kind="Abacus")
  mesh = types.SimpleNamespace(local_devices=[device], devices=np.array([device]))
  with pytest.raises(
    UserError, match="config.optimizer.offload: found devices .Abacus. with the memories device"
  ):
    offload.check_host_memory("config.optimizer.offload", mesh)

"""Tensors of an optimizer's state have names that do not depend on the optimizer's wrappers."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5x_like import train
from t5x_like.checkpoints import manager, manifest
from t5x_like.training import optimizer
from t5x_like.training.optimizer import build_optimizer, update_layerwise
from tests.runs import NANO, fingerprints
from tests.training.test_optimizer import AXES, SHAPES

RATE = optax.constant_schedule(0.1)
CASES = {
  "adafactor": build_optimizer("adafactor", RATE),
  "adafactor_decay": build_optimizer("adafactor", RATE, weight_decay=0.1),
  "adamw": build_optimizer("adamw", RATE),
  "lion": build_optimizer("lion", RATE),
  "muon": build_optimizer("muon", RATE),
  "sgd": build_optimizer("sgd", RATE, momentum=0.9),
  "sgd_plain": build_optimizer("sgd", RATE),
}


def make_wrapped_optimizers(optimizer):
  """Return the optimizer in several wrappers, by name."""
  return {
    "bare": update_layerwise(optimizer, AXES),
    "clipped": optax.chain(optax.clip_by_global_norm(1.0), update_layerwise(optimizer, AXES)),
    "masked": optax.chain(
      optax.masked(update_layerwise(optimizer, AXES), True), optax.add_decayed_weights(0.0)
    ),
  }


def make_state(optimizer):
  """Return a state with random float32 statistics and counts of one."""
  generator = np.random.default_rng(0)
  empty = jax.eval_shape(
    optimizer.init, {n: jax.ShapeDtypeStruct(s, jnp.float32) for n, s in SHAPES.items()}
  )

  def fill(tensor):
    if tensor.dtype == jnp.float32:
      return jnp.asarray(generator.random(tensor.shape, np.float32))
    return jnp.ones(tensor.shape, tensor.dtype)

  return jax.tree.map(fill, empty)


@pytest.mark.parametrize("case", CASES)
def test_names_follow_the_statistics_and_not_the_wrappers(case):
  states = {
    name: make_state(optimizer) for name, optimizer in make_wrapped_optimizers(CASES[case]).items()
  }
  named = {name: optimizer.to_named(state) for name, state in states.items()}
  statistics = {
    "adafactor": ("adafactor/v", "adafactor/v_row", "adafactor/v_col"),
    "adamw": ("adam/mu", "adam/nu"),
    "lion": ("lion/mu",),
    "muon": ("adam/mu", "adam/nu"),
    "sgd": ("sgd/trace",),
    "sgd_plain": (),
  }[case.removesuffix("_decay")]
  orthogonal = set()  # the matrices that muon itself updates
  if case == "muon":
    orthogonal = {"blocks/mlp", "blocks/square"}
  expected = {
    f"{statistic}/{name}" for statistic in statistics for name in SHAPES.keys() - orthogonal
  }
  expected |= {f"sgd/trace/{name}" for name in orthogonal}
  if not case.startswith("sgd"):
    owner = statistics[0].split("/")[0]
    expected.add(f"{owner}/count")
  for wrapper, tensors in named.items():
    assert set(tensors) == expected
    for name, tensor in tensors.items():
      assert np.array_equal(tensor, named["bare"][name])
    restored = optimizer.from_named(tensors, states[wrapper])
    assert jax.tree.structure(restored) == jax.tree.structure(states[wrapper])
    for restored_leaf, leaf in zip(jax.tree.leaves(restored), jax.tree.leaves(states[wrapper])):
      assert np.array_equal(restored_leaf, leaf)


@pytest.mark.more
def test_resumed_run_may_change_clipping_schedule_and_optimizer(compiled, tmp_path, capsys):
  def train_run(steps, *flags):
    shared = ("--config.checkpoint.every=2", "--config.evals={}", f"--config.total_steps={steps}")
    code = train.main([f"--config={NANO}", f"--workdir={tmp_path}", *shared, *flags])
    return code, capsys.readouterr()

  assert train_run(2)[0] == 0
  assert "adafactor/count" in fingerprints(tmp_path, 2)
  other_optimizer = ("--config.clip_norm=1.0", '--config.optimizer={"name": "adamw"}')
  other_optimizer += ('--config.schedule={"name": "constant", "learning_rate": 0.01}',)
  code, output = train_run(4, *other_optimizer)
  assert code == 2
  assert "optimizer.name: 'adafactor' there, 'adamw' here" in output.err
  fresh = (*other_optimizer, "--config.checkpoint.fresh_optimizer=true")
  code, output = train_run(4, *fresh)
  assert code == 0
  assert "adamw starts without a state at step 2" in output.out
  assert "clip_norm: 0.0 -> 1.0" in output.out
  # A repeated command keeps the new optimizer's state, also if it stops clipping.
  code, output = train_run(6, *fresh, "--config.clip_norm=0.0")
  assert code == 0
  assert "without a state" not in output.out
  assert "from step 4 of 6" in output.out
  assert [checkpoint_count(tmp_path, step) for step in (2, 4, 6)] == [
    ("adafactor", 2),
    ("adam", 2),
    ("adam", 4),
  ]
  rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
  assert [row["train/learning_rate"] for row in rows[2:]] == [pytest.approx(0.01)] * 4


def checkpoint_count(workdir, step):
  """Return (owner, number of updates) of the optimizer state saved at a step."""

  def build_template(saved):
    (count_name,) = [name for name in saved if name.endswith("/count")]
    owner = count_name.split("/")[0]
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    template = {}
    for name, entry in saved.items():
      if name.startswith(owner):
        template[name] = jax.ShapeDtypeStruct(entry["shape"], entry["dtype"], sharding=sharding)
    return manifest.nest(template)

  _, tree, _ = manager.Checkpoints(workdir / "checkpoints").restore(build_template, step)
  (owner,) = tree
  return owner, int(tree[owner]["count"])

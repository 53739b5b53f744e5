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


def make_wrapped_optimizer(optimizer):
  return {
    "bare": update_layerwise(optimizer, AXES),
    "clipped": optax.chain(optax.clip_by_global_norm(1.0), update_layerwise(optimizer, AXES)),
    "masked": optax.chain(
      optax.masked(update_layerwise(optimizer, AXES), True), optax.add_decayed_weights(0.0)
    ),
  }


def state_of(optimizer):
  """Return random state after one update and the numbers of updates in it."""
  generator = np.random.default_rng(0)
  empty = jax.eval_shape(
    optimizer.init, {n: jax.ShapeDtypeStruct(s, jnp.float32) for n, s in SHAPES.items()}
  )

  def values(x):
    return (
      generator.random(x.shape, np.float32) if x.dtype == jnp.float32 else np.ones(x.shape, x.dtype)
    )

  return jax.tree.map(lambda x: jnp.asarray(values(x)), empty)


@pytest.mark.parametrize("case", CASES)
def test_names_are_those_of_the_statistics_and_wrappers_leave_no_trace(case):
  states = {
    name: state_of(optimizer) for name, optimizer in make_wrapped_optimizer(CASES[case]).items()
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
  orthogonal = {"blocks/mlp", "blocks/square"} if case == "muon" else set()
  expected = {
    f"{statistic}/{name}" for statistic in statistics for name in SHAPES.keys() - orthogonal
  }
  expected |= {f"sgd/trace/{name}" for name in orthogonal}
  expected |= {f"{statistics[0].split('/')[0]}/count"} if case[:3] != "sgd" else set()
  for name, tensors in named.items():
    assert set(tensors) == expected
    assert all(np.array_equal(x, named["bare"][n]) for n, x in tensors.items())
    back = optimizer.from_named(tensors, states[name])
    assert jax.tree.structure(back) == jax.tree.structure(states[name])
    for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(states[name])):
      assert np.array_equal(a, b)


@pytest.mark.more
def test_clipping_the_schedule_and_the_optimizer_may_change(compiled, tmp_path, capsys):
  def train_run(steps, *flags):
    shared = ("--config.checkpoint.every=2", "--config.evals={}", f"--config.total_steps={steps}")
    code = train.main([f"--config={NANO}", f"--workdir={tmp_path}", *shared, *flags])
    return code, capsys.readouterr()

  assert train_run(2)[0] == 0
  assert "adafactor/count" in fingerprints(tmp_path, 2)
  other_optimizer = ("--config.clip_norm=1.0", '--config.optimizer={"name": "adamw"}')
  other_optimizer += ('--config.schedule={"name": "constant", "learning_rate": 0.01}',)
  code, said = train_run(4, *other_optimizer)
  assert code == 2
  assert "optimizer.name: 'adafactor' there, 'adamw' here" in said.err
  fresh = (*other_optimizer, "--config.checkpoint.fresh_optimizer=true")
  code, said = train_run(4, *fresh)
  assert code == 0
  assert "adamw starts without a state at step 2" in said.out
  assert ("clip_norm: 0.0 -> 1.0") in said.out
  # the same again keeps the state, without clipping too
  code, said = train_run(6, *fresh, "--config.clip_norm=0.0")
  assert code == 0
  assert "without a state" not in said.out
  assert "from step 4 of 6" in said.out
  assert [checkpoint_count(tmp_path, step) for step in (2, 4, 6)] == [
    ("adafactor", 2),
    ("adam", 2),
    ("adam", 4),
  ]
  rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
  assert [row["train/learning_rate"] for row in rows[2:]] == [pytest.approx(0.01)] * 4


def checkpoint_count(workdir, step):
  """(owner, number of updates) of the optimizer state saved at a step."""
  counts_by_name = {}

  def counts(saved):
    (name,) = (name for name in saved if name.endswith("/count"))
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    counts_by_name["owner"] = name.split("/")[0]
    expected = {
      n: jax.ShapeDtypeStruct(e["shape"], e["dtype"], sharding=sharding) for n, e in saved.items()
    }
    return manifest.nest(
      {n: x for n, x in expected.items() if n.startswith(counts_by_name["owner"])}
    )

  _, tree, _ = manager.Checkpoints(workdir / "checkpoints").restore(counts, step)
  return counts_by_name["owner"], int(tree[counts_by_name["owner"]]["count"])

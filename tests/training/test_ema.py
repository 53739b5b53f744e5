"""A moving average of the weights follows its formula, and runs, evaluations and exports use it."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import evaluate, train, tunings
from t5x_like.checkpoints.manifest import flatten
from t5x_like.library.model import load
from t5x_like.report.writer import read_metrics
from t5x_like.training import ema, guard, restoring
from t5x_like.training.optimizer import build_optimizer, to_named
from t5x_like.training.state import TrainState, from_tree, to_tree
from tests.runs import assert_same_bits, load_tensors

pytestmark = pytest.mark.runs

NANO = "tests/recipes/nano_image.py"


def test_the_average_starts_at_the_weights_and_skips_refused_updates_and_frozen_parameters():
  sgd = ema.with_ema(build_optimizer("sgd", lambda step: 0.5), 0.9)
  optimizer = guard.skip_refused_updates(tunings.freeze_others(sgd, ["a"]))
  arrays = {"a": jnp.array([1.0, 2.0]), "b": jnp.array([5.0])}
  state = optimizer.init({**arrays, "a": jnp.zeros(2)})
  mean = np.array([1.0, 2.0])
  weights = np.array([1.0, 2.0])
  for accepted, gradient in ((True, 1.0), (False, 7.0), (True, -2.0)):
    grads = {name: jnp.full_like(x, gradient) for name, x in arrays.items()}
    updates, state = optimizer.update(
      grads, state, arrays, step=jnp.int32(0), accepted=jnp.bool_(accepted)
    )
    if accepted:
      arrays["a"] = arrays["a"] + updates["a"]
      weights = weights - 0.5 * gradient
      mean = 0.9 * mean + 0.1 * weights
    named = to_named(state)
    np.testing.assert_allclose(named["ema/mean/a"], mean, rtol=1e-6)
  assert int(named["ema/count"]) == 2
  assert "ema/mean/b" not in named


def test_a_warm_up_forgets_the_first_weights_as_timms_does():
  optimizer = ema.with_ema(build_optimizer("sgd", lambda step: 1.0), 0.7, warmup=True)
  arrays = {"a": jnp.array([9.0])}
  mean = None
  state = optimizer.init(arrays)
  for n in range(12):
    updates, state = optimizer.update({"a": jnp.array([1.0])}, state, arrays, step=jnp.int32(n))
    arrays = {"a": arrays["a"] + updates["a"]}
    decay = min(0.7, 1 - (1 + n) ** (-2 / 3))  # `ModelEmaV3.get_decay(n + 1)`
    mean = float(arrays["a"][0]) if n == 0 else decay * mean + (1 - decay) * float(arrays["a"][0])
    assert float(to_named(state)["ema/mean/a"][0]) == pytest.approx(mean, rel=1e-6)


def run(workdir, cache, *flags) -> int:
  defaults = [
    "--config.optimizer.ema=0.5",
    f"--config.task.cache={cache}",
    "--config.schedule.total_steps=3",
  ]
  steps = [
    "--config.total_steps=3",
    "--config.eval_every=3",
    '--config.checkpoint={"every": 1, "keep_last": 3}',
  ]
  evals = {"loss": {}, "image_classification": {}}
  evals = [
    f"--config.evals={json.dumps(evals)}",
    "--config.mesh.fsdp=2",
    "--config.schedule.warmup_steps=0",
  ]
  return train.main([f"--config={NANO}", f"--workdir={workdir}", *defaults, *steps, *evals, *flags])


@pytest.mark.usefixtures("compiled")
def test_a_run_saves_evaluates_resumes_and_exports_its_average(tmp_path, capsys):
  uninterrupted = tmp_path / "whole"
  parts = tmp_path / "parts"
  cache = tmp_path / "cache"
  assert run(uninterrupted, cache) == 0
  assert run(parts, cache, "--config.total_steps=2") == 0
  assert run(parts, cache) == 0
  assert_same_bits(
    parts, uninterrupted, 3
  )  # on two ways of sharding, with the mean among the tensors
  saved = {step: load_tensors(uninterrupted, step) for step in (1, 2, 3)}
  named = [name.removeprefix("ema/mean/") for name in saved[3] if name.startswith("ema/mean/")]
  assert sorted(f"params/{name}" for name in named) == sorted(
    n for n in saved[3] if n.startswith("params/")
  )
  for step in (2, 3):
    for name in named:
      mean = 0.5 * saved[step - 1][f"ema/mean/{name}"] + 0.5 * saved[step][f"params/{name}"]
      np.testing.assert_allclose(saved[step][f"ema/mean/{name}"], mean, rtol=1e-5, atol=1e-7)
  # Evaluations in the run and after it, and the model that others load, have the mean; a flag takes
  # the weights.
  (during,) = [
    row for row in read_metrics(uninterrupted) if "eval/digits_image_classification/loss" in row
  ]
  losses = []
  for use in ("True", "False"):
    flags = [f"--workdir={uninterrupted}", "--evals=loss", f"--config.optimizer.use_ema={use}"]
    assert evaluate.main(flags) == 0
    (path,) = (uninterrupted / "evaluations").glob("3_digits*.json")
    losses.append(json.loads(path.read_text())["metrics"]["loss"])
  assert (
    losses[0]
    == pytest.approx(during["eval/digits_image_classification/loss"], rel=1e-6)
    != losses[1]
  )
  arrays = jax.device_get(load(str(uninterrupted), batch_size=8).run.arrays)
  assert all(np.array_equal(arrays[name], saved[3][f"ema/mean/{name}"]) for name in named)


def test_starting_or_dropping_the_average_keeps_the_optimizers_state():
  """The tensors of a checkpoint are matched by name."""
  arrays = {"a": jnp.array([1.0, 2.0])}
  adam = build_optimizer("adamw", lambda step: 0.5)
  averaged_adam = ema.with_ema(adam, 0.9)
  _, moved = adam.update(
    {"a": jnp.array([3.0, -1.0])}, adam.init(arrays), arrays, step=jnp.int32(0)
  )

  def state(optimizer, opt_state):
    train_state = TrainState(jnp.int32(1), arrays, opt_state)
    replicated = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    abstract = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated), train_state
    )
    saved = {
      n: {"shape": list(x.shape), "dtype": str(x.dtype)}
      for n, x in flatten(to_tree(train_state)).items()
    }
    return train_state, abstract, saved

  plain, plain_abstract, plain_saved = state(adam, moved)
  averaged, averaged_abstract, averaged_saved = state(averaged_adam, averaged_adam.init(arrays))
  tensors = restoring._tensors_to_restore(plain_saved, averaged_abstract, False)
  assert flatten(tensors).keys() == plain_saved.keys()
  restored = from_tree(to_tree(plain), averaged_abstract, averaged_adam)
  named = to_named(restored.opt_state)
  before = to_named(moved)
  assert int(named["ema/count"]) == 0
  assert np.array_equal(named["ema/mean/a"], arrays["a"])
  assert all(np.array_equal(named[name], x) for name, x in before.items())
  assert np.abs(before["adam/mu/a"]).max() > 0
  assert (
    flatten(restoring._tensors_to_restore(averaged_saved, plain_abstract, False)).keys()
    == plain_saved.keys()
  )
  assert (
    flatten(restoring._tensors_to_restore(averaged_saved, averaged_abstract, False)).keys()
    == averaged_saved.keys()
  )

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


def test_average_starts_at_the_weights_and_ignores_refused_updates_and_frozen_parameters():
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


def test_warm_up_of_the_average_equals_timms():
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
  shared = [
    f"--config={NANO}",
    f"--workdir={workdir}",
    f"--config.task.cache={cache}",
    "--config.optimizer.ema=0.5",
    "--config.schedule.total_steps=3",
    "--config.schedule.warmup_steps=0",
    "--config.total_steps=3",
    "--config.eval_every=3",
    '--config.checkpoint={"every": 1, "keep_last": 3}',
    '--config.evals={"loss": {}, "image_classification": {}}',
    "--config.mesh.fsdp=2",
  ]
  return train.main([*shared, *flags])


@pytest.fixture(scope="module")
def averaged(tmp_path_factory, compiled):
  """Return a folder with the run `whole`, and the cache of its data."""
  folder = tmp_path_factory.mktemp("averaged")
  assert run(folder / "whole", folder / "cache") == 0
  return folder


def test_run_saves_the_average_of_every_parameter_and_resumes_it(averaged):
  assert run(averaged / "parts", averaged / "cache", "--config.total_steps=2") == 0
  assert run(averaged / "parts", averaged / "cache") == 0
  assert_same_bits(averaged / "parts", averaged / "whole", 3)
  saved = {step: load_tensors(averaged / "whole", step) for step in (1, 2, 3)}
  named = [name.removeprefix("params/") for name in saved[3] if name.startswith("params/")]
  for step in (2, 3):
    for name in named:
      mean = 0.5 * saved[step - 1][f"ema/mean/{name}"] + 0.5 * saved[step][f"params/{name}"]
      np.testing.assert_allclose(saved[step][f"ema/mean/{name}"], mean, rtol=1e-5, atol=1e-7)


def test_evaluations_and_exports_use_the_average_by_default(averaged):
  workdir = averaged / "whole"
  key = "eval/digits_image_classification/loss"
  (loss_of_run,) = [row[key] for row in read_metrics(workdir) if key in row]
  losses = []
  for use in ("True", "False"):
    flags = [f"--workdir={workdir}", "--evals=loss", f"--config.optimizer.use_ema={use}"]
    assert evaluate.main(flags) == 0
    (path,) = (workdir / "evaluations").glob("3_digits*.json")
    losses.append(json.loads(path.read_text())["metrics"]["loss"])
  assert losses[0] == pytest.approx(loss_of_run, rel=1e-6)
  assert losses[1] != losses[0]
  saved = load_tensors(workdir, 3)
  for name, array in load(str(workdir), batch_size=8).run.arrays.items():
    assert np.array_equal(array, saved[f"ema/mean/{name}"]), name


def test_adding_or_removing_the_average_keeps_the_state_of_the_optimizer():
  """The tensors of a checkpoint are matched by name."""
  arrays = {"a": jnp.array([1.0, 2.0])}
  adam = build_optimizer("adamw", lambda step: 0.5)
  averaged_adam = ema.with_ema(adam, 0.9)
  grads = {"a": jnp.array([3.0, -1.0])}
  _, adam_state = adam.update(grads, adam.init(arrays), arrays, step=jnp.int32(0))
  plain = TrainState(jnp.int32(1), arrays, adam_state)
  averaged = TrainState(jnp.int32(1), arrays, averaged_adam.init(arrays))
  assert restored_names(plain, averaged) == describe_tensors(plain).keys()
  assert restored_names(averaged, plain) == describe_tensors(plain).keys()
  assert restored_names(averaged, averaged) == describe_tensors(averaged).keys()
  restored = to_named(from_tree(to_tree(plain), make_abstract(averaged), averaged_adam).opt_state)
  assert int(restored["ema/count"]) == 0
  assert np.array_equal(restored["ema/mean/a"], arrays["a"])
  assert np.abs(restored["adam/mu/a"]).max() > 0
  for name, tensor in to_named(adam_state).items():
    assert np.array_equal(restored[name], tensor), name


def describe_tensors(state) -> dict:
  """Return shape and dtype of the tensors of a state, as a checkpoint's manifest has them."""
  descriptions = {}
  for name, tensor in flatten(to_tree(state)).items():
    descriptions[name] = {"shape": list(tensor.shape), "dtype": str(tensor.dtype)}
  return descriptions


def make_abstract(state):
  device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), state)


def restored_names(saved, wanted):
  """Return the names of the tensors of a saved state that are read for a wanted state."""
  return flatten(
    restoring.tensors_to_restore(describe_tensors(saved), make_abstract(wanted), False)
  ).keys()

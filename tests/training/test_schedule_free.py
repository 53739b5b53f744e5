"""Schedule-free learning equals optax's at the rates of a schedule, and evaluates mean weights."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ml_collections import ConfigDict

from t5x_like import train, tunings
from t5x_like.errors import UserError
from t5x_like.library.model import load
from t5x_like.training import ema, guard
from t5x_like.training.optimizer import build_optimizer, to_named, update_layerwise
from t5x_like.training.state import TrainState
from tests.runs import NANO, assert_same_bits, load_tensors

RATE = optax.linear_schedule(0.0, 0.1, 3)
AXES = {"blocks/kernel": ("layers", "embed", "mlp"), "table": ("vocab", "embed")}


def test_updates_and_mean_equal_optaxs():
  values = ConfigDict({"schedule_free": 0.9, "ema": 0.0, "b1": 0.0})
  our_optimizer = update_layerwise(build_optimizer("adamw", RATE, b1=0.0, weight_decay=0.0), AXES)
  optimizer = guard.skip_refused_updates(
    tunings.freeze_others(ema.with_average(our_optimizer, RATE, values), list(AXES))
  )
  optax_optimizer = optax.contrib.schedule_free(
    optax.adam(RATE, b1=0.0), lambda count: RATE(count - 1), 0.9
  )
  draw = np.random.default_rng(0)
  shapes = {"blocks/kernel": (2, 3, 4), "table": (5, 3)}
  first = {
    name: jnp.asarray(draw.normal(size=shape), jnp.float32) for name, shape in shapes.items()
  }
  state = optimizer.init({name: jnp.zeros_like(x) for name, x in first.items()})
  optax_state = optax_optimizer.init(first)
  params = first | {"frozen": jnp.ones(2)}
  optax_params = first
  for step in range(6):
    grads = {
      name: jnp.asarray(draw.normal(size=x.shape), jnp.float32) for name, x in params.items()
    }
    # A refused update has no effect.
    _, state = optimizer.update(
      grads, state, params, step=jnp.int32(step), accepted=jnp.bool_(False)
    )
    updates, state = optimizer.update(
      grads, state, params, step=jnp.int32(step), accepted=jnp.bool_(True)
    )
    params = params | optax.apply_updates({name: params[name] for name in first}, updates)
    updates, optax_state = optax_optimizer.update(
      {name: grads[name] for name in first}, optax_state, optax_params
    )
    optax_params = optax.apply_updates(optax_params, updates)
  evaluated = ema.evaluation_weights(TrainState(step=jnp.int32(6), params=params, opt_state=state))
  expected = optax.contrib.schedule_free_eval_params(optax_state, optax_params)
  for name in first:
    np.testing.assert_allclose(params[name], optax_params[name], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(evaluated[name], expected[name], rtol=1e-5, atol=1e-6)
    assert not np.allclose(evaluated[name], params[name], atol=1e-3)
  assert np.array_equal(evaluated["frozen"], params["frozen"])
  assert {"schedule_free/z/table", "schedule_free/step_count", "adam/nu/table"} <= to_named(
    state
  ).keys()


@pytest.mark.parametrize("key, value", [("b1", 0.9), ("momentum", 0.9), ("ema", 0.99)])
def test_momentum_and_another_average_are_refused(key, value):
  with pytest.raises(
    UserError, match=f"config.optimizer.{key}: found {value}, expected 0 with schedule_free"
  ):
    ema.with_average(optax.identity(), RATE, ConfigDict({"schedule_free": 0.9, key: value}))


@pytest.mark.more
@pytest.mark.usefixtures("compiled")
def test_run_resumes_and_exports_its_mean(tmp_path):
  adam = json.dumps({"name": "adamw", "b1": 0.0, "mu_dtype": "bfloat16", "schedule_free": 0.9})
  schedule = json.dumps({"name": "constant", "learning_rate": 0.01})
  flags = [f"--config={NANO}", f"--config.optimizer={adam}", f"--config.schedule={schedule}"]

  def run(name, steps):
    return train.main([*flags, f"--workdir={tmp_path / name}", f"--config.total_steps={steps}"])

  assert run("whole", 3) == 0
  assert run("parts", 2) == 0
  assert run("parts", 3) == 0
  assert_same_bits(tmp_path / "parts", tmp_path / "whole", 3)
  saved = load_tensors(tmp_path / "whole", 3)
  arrays = jax.device_get(load(str(tmp_path / "whole"), batch_size=8).run.arrays)
  for name, x in arrays.items():
    mean = (saved[f"params/{name}"] - 0.1 * saved[f"schedule_free/z/{name}"]) / 0.9
    np.testing.assert_allclose(x, mean, rtol=1e-4, atol=1e-6)

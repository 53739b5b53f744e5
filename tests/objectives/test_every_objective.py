"""Every registered objective gives, on a recipe's data, finite sums over rows and gradients."""

import pathlib

import jax
import numpy as np
import pytest

from t5x_like import objectives, recipes, slots
from t5x_like.data import loader
from t5x_like.data import task as tasks
from t5x_like.nn import params
from t5x_like.training.build import build_parts
from t5x_like.training.resolve import resolve
from tests import topics
from tests.fine_tuning import FINE_TUNING, fine_tuning

pytestmark = pytest.mark.runs

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECIPES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "configs").rglob("[!_]*.py"))
# The recipe for objectives that have none of their own, by the first feature that they read.
DEFAULT_RECIPES = {
  "decoder_input_tokens": "configs/gpt/gpt2_124m.py:debug",
  "encoder_input_tokens": "configs/roberta/base.py:debug",
}
RECIPES_BY_OBJECTIVE = {"cached_distillation": "configs/qwen/distil.py:cached,debug"}
RECIPES_BY_OBJECTIVE |= topics.cases("OBJECTIVE_RECIPES")
# Near a temperature of zero, ELECTRA samples the same tokens in any order of the rows.
OVERRIDES = {"electra": ["objective.temperature=1e-4"]}


def fill_in_rollout(batch):
  """Fill in random passages, or completions and rewards, where a rollout would."""
  generator = np.random.default_rng(0)
  filled = {name: x.copy() for name, x in batch.items()}
  if "passage_tokens" in batch:
    passages = filled["passage_tokens"][:, 1:]
    passages[...] = generator.integers(3, 250, passages.shape)
    return filled
  N = batch["decoder_log_probabilities"].shape[-1]
  completions = filled["decoder_target_tokens"][..., -N:]
  completions[...] = generator.integers(3, 250, completions.shape)
  for name in ("decoder_loss_weights", "decoder_segment_ids"):
    filled[name][..., -N:] = 1
  filled["decoder_log_probabilities"] -= 6.0
  filled["rewards"] = generator.normal(size=batch["rewards"].shape).astype(np.float32)
  return filled


def config_for(name, folder):
  """Return a laptop recipe that trains by the objective."""
  overrides = OVERRIDES.get(name, [])
  if name in FINE_TUNING:
    return recipes.load("configs/roberta/base.py:debug", fine_tuning(name, folder))
  if name in RECIPES_BY_OBJECTIVE:
    return recipes.load(RECIPES_BY_OBJECTIVE[name])
  for recipe in RECIPES:
    if recipes.load(recipe).objective.name == name:
      return recipes.load(f"{recipe}:debug", overrides)
  model_inputs = slots.find("objective", name, objectives, "Objective").model_inputs
  return recipes.load(DEFAULT_RECIPES[model_inputs[0]], [f"objective.name={name}", *overrides])


@pytest.mark.parametrize("name", slots.names(objectives))
def test_objective_sums_over_rows_and_has_gradients(name, tmp_path):
  config = config_for(name, tmp_path)
  config.model.layers = "scan"
  config.mesh = {"data": 1}
  parts = build_parts(resolve(config), jax.devices()[:1])
  task = tasks.build(split="train", **config.task.to_dict())
  objective = parts.objective
  assert not objective.missing_features(task.features)
  batch = next(loader.train_batches(task, batch_size=4, seed=1))
  arrays = params.arrays(jax.jit(parts.make_model)(jax.random.key(0)))
  if objective.step_module:
    batch = fill_in_rollout(batch)
  else:
    batch = objective.prepare(batch, parts.model)
  if hasattr(objective, "estimate_advantages"):
    model = params.with_arrays(parts.model, arrays)
    batch = jax.jit(objective.estimate_advantages)(model, batch)

  @jax.jit
  def sums_and_gradients(arrays, batch):
    def loss(arrays):
      return objective(params.with_arrays(parts.model, arrays), batch)

    gradients, sums = jax.grad(loss, has_aux=True)(arrays)
    return sums, gradients

  sums, gradients = sums_and_gradients(arrays, batch)
  assert "loss" in objective.reported_sums
  assert sums["weights"] > 0
  assert np.isfinite(sums["loss"])
  assert sums["loss"] > 0 or objective.step_module and sums["loss"] != 0
  largest = [float(np.abs(g).max()) for g in gradients.values()]
  assert np.isfinite(largest).all()
  assert max(largest) > 0

  weights = {key: x for key, x in batch.items() if key.endswith("_weights")}
  no_weights = {key: np.zeros_like(x) for key, x in weights.items()}
  sums, gradients = sums_and_gradients(arrays, batch | no_weights)
  assert sums["weights"] == 0
  assert sums["loss"] == 0
  assert not any(np.any(g) for g in gradients.values())

  half = {key: np.concatenate([x[:2], np.zeros_like(x[2:])]) for key, x in weights.items()}
  sums_of_half, _ = sums_and_gradients(arrays, batch | half)
  repeated = {key: np.concatenate([x[:2], x[:2]]) for key, x in batch.items()}
  sums_of_repeated, _ = sums_and_gradients(arrays, repeated)
  keys = [key for key in sums if key in objective.reported_sums or key.endswith("weights")]
  if getattr(objective, "uses_batch_negatives", False):
    keys = ["weights"]
  for key in keys:
    expected = 2 * sums_of_half[key]
    np.testing.assert_allclose(sums_of_repeated[key], expected, rtol=1e-4, atol=1e-4, err_msg=key)

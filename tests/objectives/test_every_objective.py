"""Every registered objective is finite, sums over parts and has gradients, on a recipe's data."""

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
RECIPES = sorted(
  str(path.relative_to(ROOT))
  for path in (ROOT / "configs").rglob("*.py")
  if path.stem != "__init__"
)
# for an objective without a recipe of its own, by the tokens that its outputs stand beside
USUAL = {
  "decoder_input_tokens": "configs/gpt/gpt2_124m.py",
  "encoder_input_tokens": "configs/roberta/base.py",
}


BY_ARGUMENT = {"cached_distillation": "configs/qwen/distil.py:cached,debug"}
BY_ARGUMENT |= topics.cases("OBJECTIVE_RECIPES")


def with_answers(batch):
  """Fill in random completions and rewards, or passages, where a rollout would."""
  generator = np.random.default_rng(0)
  made = {name: x.copy() for name, x in batch.items()}
  if "passage_tokens" in batch:
    made["passage_tokens"][:, 1:] = generator.integers(3, 250, made["passage_tokens"][:, 1:].shape)
    return made
  N = batch["decoder_log_probabilities"].shape[-1]
  made["decoder_target_tokens"][..., -N:] = generator.integers(
    3, 250, made["decoder_target_tokens"][..., -N:].shape
  )
  for name in ("decoder_loss_weights", "decoder_segment_ids"):
    made[name][..., -N:] = 1
  made["decoder_log_probabilities"] -= 6.0
  return made | {"rewards": generator.normal(size=batch["rewards"].shape).astype(np.float32)}


def config_for(name, folder):
  """Return a laptop recipe that trains by the objective."""
  if name in FINE_TUNING:
    return recipes.load("configs/roberta/base.py:debug", fine_tuning(name, folder))
  if name in BY_ARGUMENT:
    return recipes.load(BY_ARGUMENT[name])
  for recipe in RECIPES:
    if recipes.load(recipe).objective.name == name:
      return recipes.load(f"{recipe}:debug")
  model_inputs = slots.find("objective", name, objectives, "Objective").model_inputs
  return recipes.load(f"{USUAL[model_inputs[0]]}:debug", [f"objective.name={name}"])


@pytest.mark.parametrize("name", slots.names(objectives))
def test_objective(name, tmp_path):
  config = config_for(name, tmp_path)
  config.model.layers = "scan"
  config.mesh = {"data": 1}
  parts = build_parts(resolve(config), jax.devices()[:1])
  task = tasks.build(split="train", **config.task.to_dict())
  batch = next(loader.train_batches(task, batch_size=4, seed=1))
  objective = parts.objective
  arrays = params.arrays(jax.jit(parts.make_model)(jax.random.key(0)))
  assert not objective.missing_features(task.features), (
    "it needs features that its own recipe does not have"
  )
  batch = with_answers(batch) if objective.step_module else objective.prepare(batch, parts.model)
  if hasattr(objective, "estimate_advantages"):
    batch = jax.jit(
      lambda arrays, b: objective.estimate_advantages(params.with_arrays(parts.model, arrays), b)
    )(arrays, batch)

  @jax.jit
  def sums_and_gradients(arrays, batch):
    def loss(arrays):
      return objective(params.with_arrays(parts.model, arrays), batch)

    gradients, sums = jax.grad(loss, has_aux=True)(arrays)
    return sums, gradients

  full_sums, gradients = sums_and_gradients(arrays, batch)
  assert {"weights", *objective.reported_sums} >= {"weights", "loss"}
  assert set(full_sums) >= {
    "weights",
    "loss",
  }
  assert full_sums["weights"] > 0
  assert np.isfinite(full_sums["loss"])
  assert full_sums["loss"] > 0 or objective.step_module and full_sums["loss"] != 0
  norms = [float(np.abs(g).max()) for g in jax.tree.leaves(gradients)]
  assert np.isfinite(norms).all()
  assert max(norms) > 0

  weights = {key: x for key, x in batch.items() if key.endswith("_weights")}
  empty, no_gradients = sums_and_gradients(
    arrays, batch | {key: np.zeros_like(x) for key, x in weights.items()}
  )
  assert empty["weights"] == 0, "what has no weight counts all the same"
  assert empty["loss"] == 0, "what has no weight counts all the same"
  assert max(float(np.abs(g).max()) for g in jax.tree.leaves(no_gradients)) == 0

  half = {key: np.concatenate([x[:2], np.zeros_like(x[2:])]) for key, x in weights.items()}
  half, _ = sums_and_gradients(arrays, batch | half)
  repeated, _ = sums_and_gradients(
    arrays, {key: np.concatenate([x[:2], x[:2]]) for key, x in batch.items()}
  )
  for key in (
    {"weights"} if getattr(objective, "uses_batch_negatives", False) else {"weights", "loss"}
  ):
    np.testing.assert_allclose(
      repeated[key], 2 * half[key], rtol=1e-4, err_msg=f"{key}: a mean and no sum"
    )

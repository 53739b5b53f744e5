"""Evaluators of images: against plain numpy, on one device and eight, whatever the batch."""

import jax
import numpy as np
import pytest

from t5x_like import evals, recipes, slots
from t5x_like.data import loader
from t5x_like.data import task as tasks
from t5x_like.errors import UserError
from t5x_like.evals import EvalContext, few_shot, knn
from t5x_like.nn import params
from t5x_like.training import assembly
from t5x_like.training.build import build_parts
from t5x_like.training.resolve import resolve

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled")]
RECIPE = "tests/recipes/nano_image.py"


def made(name: str, folder, devices: int, batch_size: int, extra=(), **arguments):
  """(evaluator, parameters, task, parts)."""
  overrides = [f"batch_size={batch_size}", f"task.cache={folder}", *extra]
  config = resolve(recipes.load(RECIPE, overrides))
  parts = build_parts(config, jax.devices()[:devices])
  arrays = params.arrays(parts.make_model(jax.random.key(1)))
  arrays["head/out/kernel"] = np.random.default_rng(0).standard_normal(
    arrays["head/out/kernel"].shape, np.float32
  )
  placed = {
    n: jax.device_put(np.asarray(a), parts.state.params[n].sharding) for n, a in arrays.items()
  }

  def on(split: str) -> EvalContext:
    task = tasks.build(split=split, **config.task.to_dict())
    batches = lambda most: loader.eval_batches(task, batch_size=batch_size, max_examples=most)  # noqa: E731
    return EvalContext(parts.model, parts.objective, task, batches, batch_size, parts.rules, on)

  setting = on("validation")
  evaluator = slots.make(
    "config.evals.x", {"name": name, **arguments}, evals, "Evaluator", context=setting
  )
  return evaluator, placed, setting.task, parts


@pytest.mark.parametrize("name", ["image_classification", "few_shot", "knn"])
def test_scores_are_the_same_on_eight_devices_and_one_and_in_any_batch(name, tmp_path):
  most = {"max_examples": 21} | ({"shots": 2} if name == "few_shot" else {})
  one, alone, *_ = made(name, tmp_path, 1, 5, **most)
  eight, sharded, *_ = made(name, tmp_path, 8, 16, **most)
  first = one(alone)
  second = eight(sharded)
  assert first.metrics == second.metrics and first.predictions == second.predictions
  assert first.metrics.get("images", 21) == 21


def test_top1_and_top5_against_numpy(tmp_path):
  evaluator, arrays, task, parts = made("image_classification", tmp_path, 1, 8)
  result = evaluator(arrays)
  model = params.with_arrays(parts.model, arrays)
  right = np.zeros(5)
  for batch in loader.eval_batches(task, batch_size=99):
    logits = np.asarray(model(batch)["logits"])
    best = np.argsort(-logits, axis=1, kind="stable")[batch["example_index"] >= 0]
    right += (best[:, :5] == batch["label"][batch["example_index"] >= 0, None]).sum(0)
  assert result.metrics["images"] == task.num_examples == len(result.predictions)
  assert result.metrics["top1"] == pytest.approx(100 * right[0] / task.num_examples)
  assert result.metrics["top5"] == pytest.approx(100 * right.sum() / task.num_examples)
  agreed = [row["target"] == row["prediction"] for row in result.predictions]
  assert 100 * np.mean(agreed) == pytest.approx(result.metrics["top1"])


def test_ridge_is_scikit_learns():
  from sklearn.linear_model import Ridge

  generator = np.random.default_rng(0)
  few = generator.standard_normal((12, 30))
  labels = np.arange(12) % 3
  test = generator.standard_normal((40, 30))
  mean = few.mean(0)
  std = few.std(0) + 1e-5
  reference = Ridge(alpha=7.0).fit(
    (few - mean) / std, np.where(labels[:, None] == np.arange(3), 1.0, -1.0)
  )
  expected = reference.predict((test - mean) / std).argmax(1)
  np.testing.assert_array_equal(few_shot.classify_by_ridge(few, labels, test, 3, 7.0), expected)


def test_few_shots_are_as_many_of_each_class_and_tell_digits_apart_by_their_pixels(tmp_path):
  evaluator, arrays, task, _ = made("few_shot", tmp_path, 1, 64, shots=10)
  for draw in evaluator._draws:
    labels = evaluator._features.support.task.labels[draw]
    assert np.bincount(labels).tolist() == [10] * 10 and len(set(draw)) == 100
  found = evaluator(arrays).metrics
  assert 30 < found["10_shot_top1"] <= 100  # of a random network; guessing gives 10
  each = []
  for seed in range(3):
    alone, *_ = made("few_shot", tmp_path, 1, 64, shots=10, draws=1, seed=seed)
    each.append(alone(arrays).metrics["10_shot_top1"])
  assert len(set(each)) > 1 and found["10_shot_top1"] == pytest.approx(np.mean(each), abs=1e-9)
  assert found["10_shot_spread"] == pytest.approx(np.std(each), abs=1e-9)
  with pytest.raises(
    UserError, match="class '8' has 145 images|has 1.. images in .*, expected 400"
  ):
    made("few_shot", tmp_path, 1, 64, shots=400)


def test_neighbours_vote_as_scikit_learns():
  from sklearn.neighbors import KNeighborsClassifier

  generator = np.random.default_rng(0)
  known = generator.standard_normal((70, 8))
  labels = np.arange(70) % 4
  test = generator.standard_normal((300, 8))
  weigh = lambda distances: np.exp((1 - distances) / 0.5)  # noqa: E731
  reference = KNeighborsClassifier(9, metric="cosine", weights=weigh, algorithm="brute").fit(
    known, labels
  )
  np.testing.assert_array_equal(
    knn.classify_by_neighbours(known, labels, test, 4, 9, 0.5), reference.predict(test)
  )
  likely = (test / np.linalg.norm(test, axis=1, keepdims=True)) @ (
    known / np.linalg.norm(known, axis=1, keepdims=True)
  ).T
  # whose weights vanish
  nearest = knn.classify_by_neighbours(
    known.astype(np.float32), labels, test.astype(np.float32), 4, 9, 0.001
  )
  np.testing.assert_array_equal(nearest, labels[likely.argmax(1)])
  everyone = knn.classify_by_neighbours(known[:3], np.array([2, 2, 1]), test, 4, 9, 100.0)
  assert set(everyone) == {2}


def test_a_head_with_too_few_classes_is_refused_before_anything_runs(tmp_path):
  config = resolve(recipes.load(RECIPE, [f"task.cache={tmp_path}", "model.head.labels=9"]))
  parts = build_parts(config, jax.devices()[:1])
  task = tasks.build(split="train", **config.task.to_dict())
  with pytest.raises(
    UserError,
    match="config.model.head.labels: found 9, but task image_classification has 10 classes",
  ):
    assembly.check_task(config, parts, task)


def test_a_head_with_more_classes_than_the_data_is_told(tmp_path, capsys):
  config = resolve(recipes.load(RECIPE, [f"task.cache={tmp_path}", "model.head.labels=12"]))
  task = tasks.build(split="train", **config.task.to_dict())
  assembly.check_task(config, build_parts(config, jax.devices()[:1]), task)
  assert (
    "config.model.head.labels: found 12, but task image_classification has 10 classes"
    in capsys.readouterr().out
  )

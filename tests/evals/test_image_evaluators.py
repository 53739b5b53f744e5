"""Image evaluators give NumPy's and scikit-learn's scores on any number of devices."""

import jax
import numpy as np
import pytest

from t5x_like import recipes
from t5x_like.data import loader
from t5x_like.data import task as tasks
from t5x_like.errors import UserError
from t5x_like.evals import EVALUATORS, EvalContext, few_shot, knn
from t5x_like.nn import params
from t5x_like.training import checks
from t5x_like.training.build import build_parts
from t5x_like.training.resolve import resolve

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled")]
RECIPE = "tests/recipes/nano_image.py"


def make_evaluator(name: str, folder, devices: int, batch_size: int, extra=(), **arguments):
  """Return (evaluator, parameters, task, parts) of a random model."""
  overrides = [f"batch_size={batch_size}", f"task.cache={folder}", *extra]
  config = resolve(recipes.load(RECIPE, overrides))
  parts = build_parts(config, jax.devices()[:devices])
  arrays = params.arrays(parts.make_model(jax.random.key(1)))
  generator = np.random.default_rng(0)
  kernel_shape = arrays["head/out/kernel"].shape
  arrays["head/out/kernel"] = generator.standard_normal(kernel_shape, np.float32)
  placed = {}
  for key, array in arrays.items():
    placed[key] = jax.device_put(np.asarray(array), parts.state.params[key].sharding)

  def make_context(split: str) -> EvalContext:
    task = tasks.build(split=split, **config.task.to_dict())

    def batches(max_examples):
      return loader.eval_batches(task, batch_size=batch_size, max_examples=max_examples)

    return EvalContext(
      parts.model, parts.objective, task, batches, batch_size, parts.rules, make_context
    )

  context = make_context("validation")
  spec = {"name": name, **arguments}
  evaluator = EVALUATORS.make("config.evals.x", spec, context=context)
  return evaluator, placed, context.task, parts


@pytest.mark.parametrize("name", ["image_classification", "few_shot", "knn"])
def test_scores_are_the_same_on_any_devices_and_in_any_batch(name, tmp_path):
  arguments = {"max_examples": 21}
  if name == "few_shot":
    arguments["shots"] = 2
  evaluator, arrays, *_ = make_evaluator(name, tmp_path, 1, 5, **arguments)
  sharded_evaluator, sharded_arrays, *_ = make_evaluator(name, tmp_path, 8, 16, **arguments)
  first = evaluator(arrays)
  second = sharded_evaluator(sharded_arrays)
  assert first.metrics == second.metrics
  assert first.predictions == second.predictions
  assert first.metrics.get("images", 21) == 21


def test_top1_and_top5_equal_numpys(tmp_path):
  evaluator, arrays, task, parts = make_evaluator("image_classification", tmp_path, 1, 8)
  result = evaluator(arrays)
  model = params.with_arrays(parts.model, arrays)
  right_by_rank = np.zeros(5)
  for batch in loader.eval_batches(task, batch_size=99):
    logits = np.asarray(model(batch)["logits"])
    is_example = batch["example_index"] >= 0
    best = np.argsort(-logits, axis=1, kind="stable")[is_example]
    right_by_rank += (best[:, :5] == batch["label"][is_example, None]).sum(0)
  assert result.metrics["images"] == task.num_examples == len(result.predictions)
  assert result.metrics["top1"] == pytest.approx(100 * right_by_rank[0] / task.num_examples)
  assert result.metrics["top5"] == pytest.approx(100 * right_by_rank.sum() / task.num_examples)
  agreed = [row["target"] == row["prediction"] for row in result.predictions]
  assert 100 * np.mean(agreed) == pytest.approx(result.metrics["top1"])


def test_ridge_classifies_as_scikit_learns():
  from sklearn.linear_model import Ridge

  generator = np.random.default_rng(0)
  train = generator.standard_normal((12, 30))
  labels = np.arange(12) % 3
  test = generator.standard_normal((40, 30))
  mean = train.mean(0)
  std = train.std(0) + 1e-5
  targets = np.where(labels[:, None] == np.arange(3), 1.0, -1.0)
  reference = Ridge(alpha=7.0).fit((train - mean) / std, targets)
  expected = reference.predict((test - mean) / std).argmax(1)
  np.testing.assert_array_equal(few_shot.classify_by_ridge(train, labels, test, 3, 7.0), expected)


def test_few_shot_draws_as_many_images_of_each_class_and_averages_its_draws(tmp_path):
  evaluator, arrays, task, _ = make_evaluator("few_shot", tmp_path, 1, 64, shots=10)
  for draw in evaluator._drawn_examples:
    labels = evaluator._features.support.task.labels[draw]
    assert np.bincount(labels).tolist() == [10] * 10
    assert len(set(draw)) == 100
  metrics = evaluator(arrays).metrics
  # Features of a random network still tell digits apart; guessing gives 10.
  assert 30 < metrics["10_shot_top1"] <= 100
  scores = []
  for seed in range(3):
    single_draw, *_ = make_evaluator("few_shot", tmp_path, 1, 64, shots=10, draws=1, seed=seed)
    scores.append(single_draw(arrays).metrics["10_shot_top1"])
  assert len(set(scores)) > 1
  assert metrics["10_shot_top1"] == pytest.approx(np.mean(scores), abs=1e-9)
  assert metrics["10_shot_spread"] == pytest.approx(np.std(scores), abs=1e-9)


def test_more_shots_than_a_class_has_images_are_refused(tmp_path):
  with pytest.raises(UserError, match="has 1.. images in .*, expected 400"):
    make_evaluator("few_shot", tmp_path, 1, 64, shots=400)


def test_neighbours_vote_as_scikit_learns():
  from sklearn.neighbors import KNeighborsClassifier

  generator = np.random.default_rng(0)
  train = generator.standard_normal((70, 8))
  labels = np.arange(70) % 4
  test = generator.standard_normal((300, 8))

  def weigh(distances):
    return np.exp((1 - distances) / 0.5)

  reference = KNeighborsClassifier(9, metric="cosine", weights=weigh, algorithm="brute")
  reference.fit(train, labels)
  predictions = knn.classify_by_neighbours(train, labels, test, 4, 9, 0.5)
  np.testing.assert_array_equal(predictions, reference.predict(test))


def test_at_a_low_temperature_only_the_nearest_neighbour_votes():
  """The weights of the others vanish in float32."""
  generator = np.random.default_rng(0)
  train = generator.standard_normal((70, 8)).astype(np.float32)
  labels = np.arange(70) % 4
  test = generator.standard_normal((300, 8)).astype(np.float32)
  predictions = knn.classify_by_neighbours(train, labels, test, 4, 9, 0.001)
  unit_train = train / np.linalg.norm(train, axis=1, keepdims=True)
  nearest = (test @ unit_train.T).argmax(1)
  np.testing.assert_array_equal(predictions, labels[nearest])


def test_more_neighbours_than_images_let_all_images_vote():
  generator = np.random.default_rng(0)
  train = generator.standard_normal((3, 8))
  test = generator.standard_normal((300, 8))
  predictions = knn.classify_by_neighbours(train, np.array([2, 2, 1]), test, 4, 9, 100.0)
  assert set(predictions) == {2}


def check_head(folder, labels: int) -> None:
  """Check a head of so many classes against the data, which has ten."""
  config = resolve(recipes.load(RECIPE, [f"task.cache={folder}", f"model.head.labels={labels}"]))
  task = tasks.build(split="train", **config.task.to_dict())
  checks.check_task(config, build_parts(config, jax.devices()[:1]), task)


def test_a_head_with_too_few_classes_is_refused_before_anything_runs(tmp_path):
  words = "config.model.head.labels: found 9, but task image_classification has 10 classes"
  with pytest.raises(UserError, match=words):
    check_head(tmp_path, labels=9)


def test_a_head_with_more_classes_than_the_data_is_reported(tmp_path, capsys):
  check_head(tmp_path, labels=12)
  words = "config.model.head.labels: found 12, but task image_classification has 10 classes"
  assert words in capsys.readouterr().out

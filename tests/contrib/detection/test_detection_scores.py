"""Detection's evaluator: pycocotools' own numbers on given detections, and every image once on any
mesh."""

import contextlib
import dataclasses
import io
import json
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from t5x_like import recipes
from t5x_like.contrib.detection.data.boxes import Boxes
from t5x_like.contrib.detection.evals import _best_boxes, detection
from t5x_like.data import loader
from t5x_like.data import task as tasks
from t5x_like.errors import UserError
from t5x_like.evals import EVALUATORS, EvalContext
from t5x_like.nn import params
from t5x_like.training.build import build_parts
from t5x_like.training.resolve import resolve

pytestmark = pytest.mark.runs

CLASSES = ("cat", "dog", "bat")


def scenes(generator, N=12):
  """Images of their own sizes with boxes, some of them crowds, and detections of which many are
  near."""
  counts = generator.integers(0, 7, N)
  K = counts.sum()
  pixels = generator.integers(60, 400, (N, 2)).astype(np.int32)
  low = generator.uniform(0, 0.7, (K, 2))
  boxes = np.concatenate([low, low + generator.uniform(0.02, 0.3, (K, 2))], 1).astype(np.float32)
  sizes = np.repeat(pixels, counts, axis=0)
  areas = (np.prod(boxes[:, 2:] - boxes[:, :2], 1) * sizes.prod(1)).astype(np.float32)
  labels = generator.integers(0, 3, K).astype(np.int32)
  crowds = generator.random(K) < 0.1
  truth = Boxes(np.cumsum(counts), pixels, boxes, labels, areas, crowds, np.zeros(K, bool), {})
  detections = []
  for n in range(N):
    objects = truth.slice_of_image(n)
    near = boxes[objects] + generator.normal(0, 0.02, (counts[n], 4))
    far = generator.uniform(0, 0.5, (5, 4)) + [0, 0, 0.5, 0.5]
    both = np.concatenate([near, far]) * np.tile(pixels[n], 2)
    names = np.concatenate([labels[objects], generator.integers(0, 3, 5)])
    detections.append((n, both, names, generator.random(len(names))))
  return truth, detections


def from_files(truth: Boxes, detections, folder) -> np.ndarray:
  """pycocotools as its users call it: COCO's JSON files in, its twelve numbers out."""
  from pycocotools.coco import COCO
  from pycocotools.cocoeval import COCOeval

  image_K = np.searchsorted(truth.ends, np.arange(len(truth.labels)), side="right")
  annotations = []
  for k, n in enumerate(image_K):
    y0, x0, y1, x1 = (
      float(edge) * float(side) for edge, side in zip(truth.boxes[k], np.tile(truth.pixels[n], 2))
    )
    about = {
      "area": float(truth.areas[k]),
      "iscrowd": int(truth.crowds[k]),
      "bbox": [x0, y0, x1 - x0, y1 - y0],
    }
    annotations.append(
      about | {"id": k + 1, "image_id": int(n), "category_id": int(truth.labels[k])}
    )
  images = [{"id": n, "height": int(y), "width": int(x)} for n, (y, x) in enumerate(truth.pixels)]
  categories = [{"id": i, "name": name} for i, name in enumerate(CLASSES)]
  content = {"images": images, "annotations": annotations, "categories": categories}
  (folder / "truth.json").write_text(json.dumps(content))
  results = [
    {
      "image_id": n,
      "category_id": int(c),
      "score": float(s),
      "bbox": [b[1], b[0], b[3] - b[1], b[2] - b[0]],
    }
    for n, boxes, names, scores in detections
    for b, c, s in zip(boxes.tolist(), names, scores)
  ]
  (folder / "results.json").write_text(json.dumps(results))
  with contextlib.redirect_stdout(io.StringIO()):
    ground_truth = COCO(str(folder / "truth.json"))
    judge = COCOeval(ground_truth, ground_truth.loadRes(str(folder / "results.json")), "bbox")
    judge.evaluate()
    judge.accumulate()
    judge.summarize()
  return judge.stats


def test_the_numbers_are_those_of_pycocotools(tmp_path):
  generator = np.random.default_rng(0)
  for _ in range(3):
    truth, detections = scenes(generator)
    scores = detection.average_precision(truth, detections, CLASSES)
    expected = from_files(truth, detections, tmp_path)
    assert 5 < scores["AP"] < 95
    for name, value in zip(
      (*detection.PRECISION_METRICS, *detection.recall_metrics(100)), expected, strict=True
    ):
      assert scores.get(name, -100) == pytest.approx(100 * value, abs=1e-9), name


def test_a_class_by_itself_has_the_precision_of_its_own_objects_alone():
  truth, detections = scenes(np.random.default_rng(4), 30)
  scores = detection.average_precision(truth, detections, CLASSES)
  each = []
  for number, name in enumerate(CLASSES):
    of_label = truth.labels == number
    ends = np.cumsum(of_label)[truth.ends - 1] * (truth.ends > 0)
    of_class = (
      truth.boxes[of_label],
      truth.labels[of_label],
      truth.areas[of_label],
      truth.crowds[of_label],
      truth.difficult[of_label],
    )
    alone = Boxes(ends, truth.pixels, *of_class, {})
    of_class = [
      (n, boxes[c == number], c[c == number], s[c == number]) for n, boxes, c, s in detections
    ]
    each.append(detection.average_precision(alone, of_class, CLASSES)["AP"])
    assert scores[f"AP_of_{name}"] == pytest.approx(each[-1])
  assert scores["AP"] == pytest.approx(np.mean(each))
  names = detection.class_metrics(("sea lion/2", "猫", "犬", "a b", "a_b"))
  assert names == ("AP_of_sea_lion_2", "AP_of_猫", "AP_of_犬", "AP_of_a_b_3", "AP_of_a_b_4")


def test_detections_of_another_image_tell_whether_boxes_depend_on_the_image():
  truth, detections = scenes(np.random.default_rng(3), 30)
  names = np.array([0, 1, 2, 0])
  boxes = np.array(
    [[0.1, 0.1, 0.4, 0.4], [0.5, 0.5, 0.9, 0.9], [0.1, 0.5, 0.4, 0.9], [0.3, 0.3, 0.7, 0.7]]
  )
  blind = [
    (n, boxes * np.tile(truth.pixels[n], 2), names, np.array([0.9, 0.8, 0.7, 0.6]))
    for n, *_ in detections
  ]
  same, swapped_blind = (
    detection.average_precision(truth, x, CLASSES)
    for x in (blind, detection.swap_detections(truth, blind))
  )
  assert same["AP"] == pytest.approx(swapped_blind["AP"])
  sees, swapped = (
    detection.average_precision(truth, x, CLASSES)
    for x in (detections, detection.swap_detections(truth, detections))
  )
  assert swapped["AP"] < 0.2 * sees["AP"]


def test_no_box_that_stays_where_it_is_beats_the_constant_box_and_boxes_that_see_do():
  from scipy.optimize import differential_evolution

  truth, detections = scenes(np.random.default_rng(5), 25)
  truth = dataclasses.replace(truth, crowds=np.zeros_like(truth.crowds))
  scores = _best_boxes.mean_overlaps(truth, detections, CLASSES)
  by_class = []
  for label in range(3):
    objects = [
      truth.boxes[truth.slice_of_image(n)][truth.labels[truth.slice_of_image(n)] == label]
      for n, *_ in detections
    ]

    def worse(box_4):
      return -np.mean(
        [_best_boxes.iou(box_4[None], boxes).max() for boxes in objects if len(boxes)]
      )

    by_class.append(
      -differential_evolution(worse, [(0, 1)] * 4, seed=0, maxiter=30, popsize=10).fun
    )
  assert scores["IoU_constant"] >= 100 * np.mean(by_class) - 0.5
  # the other search need not end at the best either
  assert scores["IoU_constant"] <= 100 * np.mean(by_class) + 3
  # the near ones first
  sure = [(n, boxes, names, np.arange(len(names), 0.0, -1)) for n, boxes, names, _ in detections]
  assert _best_boxes.mean_overlaps(truth, sure, CLASSES)["IoU_best"] > scores["IoU_constant"] + 10
  for box in np.random.default_rng(6).uniform(0, 1, (20, 2, 2)):
    still = np.sort(box, axis=0).reshape(1, 4).repeat(3, axis=0)
    blind = [
      (n, still * np.tile(truth.pixels[n], 2), np.arange(3), np.ones(3)) for n, *_ in detections
    ]
    again = _best_boxes.mean_overlaps(truth, blind, CLASSES)
    assert again["IoU_best"] <= again["IoU_constant"] == scores["IoU_constant"]


def test_the_likeliest_box_is_of_its_class_and_near_one_object():
  boxes = np.array([[0.0, 0.0, 0.5, 0.5], [0.5, 0.5, 1.0, 1.0], [0.0, 0.5, 0.5, 1.0]], np.float32)
  none = np.zeros(3, bool)
  sizes = np.array([[40, 80], [10, 10]])
  truth = Boxes(np.array([2, 3]), sizes, boxes, np.array([0, 0, 1]), boxes[:, 0], none, none, {})
  first = (
    0,
    np.array([[20.0, 40, 40, 80], [0, 0, 40, 40]]),
    np.array([0, 0]),
    np.array([0.4, 0.3]),
  )
  other = (1, np.array([[0.0, 5, 5, 10], [0, 5, 10, 10]]), np.array([0, 1]), np.array([0.9, 0.1]))
  # Class 0: exact, though another is half as near. Class 1: its own box, twice the object, not the
  # likelier one.
  assert _best_boxes.mean_overlaps(truth, [first, other], CLASSES)["IoU_best"] == pytest.approx(
    100 * (1 + 0.5) / 2
  )
  none = [(n, np.zeros((0, 4)), np.zeros(0, int), np.zeros(0)) for n in range(2)]
  assert _best_boxes.mean_overlaps(truth, none, CLASSES) == {
    "IoU_best": 0.0,
    "IoU_constant": pytest.approx(100),
  }
  assert not _best_boxes.mean_overlaps(truth, [], CLASSES)


def test_a_part_of_a_difficult_object_is_a_mistake_and_the_whole_of_it_is_neither_right_nor_wrong():
  boxes = np.array([[0.0, 0.0, 0.2, 0.2], [0.3, 0.3, 1.0, 1.0]], np.float32)
  areas = np.array([400.0, 4900.0])
  none = np.zeros(2, bool)
  second = np.array([False, True])
  truth = Boxes(
    np.array([2]), np.array([[100, 100]]), boxes, np.zeros(2, np.int32), areas, none, second, {}
  )

  def precision(*more, truth=truth):
    corners = np.array([*more, [0, 0, 20, 20]], np.float64)
    detections = [(0, corners, np.zeros(len(corners), int), np.linspace(0.9, 0.5, len(corners)))]
    return detection.average_precision(truth, detections, CLASSES)["AP50"]

  whole_box = [30, 30, 100, 99]
  part = [40, 40, 70, 70]
  assert precision(whole_box, whole_box) == pytest.approx(100) and precision(part) == pytest.approx(
    50
  )
  group = dataclasses.replace(truth, crowds=second, difficult=none)
  assert precision(part, truth=group) == pytest.approx(100)
  assert truth.pad_learned(1)[1].tolist() == [[0]] == group.pad_learned(1)[1].tolist()


def test_what_is_exact_is_perfect_and_what_is_not_there_is_nothing():
  truth, _ = scenes(np.random.default_rng(1))
  exact = [
    (
      n,
      truth.boxes[truth.slice_of_image(n)] * np.tile(truth.pixels[n], 2),
      truth.labels[truth.slice_of_image(n)],
      np.ones(100),
    )
    for n in range(len(truth.ends))
  ]
  exact = [(n, boxes, names, scores[: len(names)]) for n, boxes, names, scores in exact]
  scores = detection.average_precision(truth, exact, CLASSES)
  assert scores["AP"] == pytest.approx(100) and scores["AP50"] == pytest.approx(100)
  none = [(n, np.zeros((0, 4)), np.zeros(0, int), np.zeros(0)) for n in range(len(truth.ends))]
  assert detection.average_precision(truth, none, CLASSES) == {"AP": 0.0}


def test_boxes_beyond_the_image_are_scored_as_they_are_and_shown_within_it():
  """As in `PostProcess` of the authors' code, half of this box lies beyond and counts as missed."""
  corners_Q4 = detection.to_corners(np.array([[0.0, 0.25, 1.0, 0.5]])) * 100
  np.testing.assert_array_equal(corners_Q4, [[0, -50, 50, 50]])
  none = np.zeros(1, bool)
  boxes = np.array([[0.0, 0.0, 0.5, 0.5]], np.float32)
  labels = np.zeros(1, np.int32)
  truth = Boxes(
    np.array([1]), np.full((1, 2), 100), boxes, labels, np.array([2500.0]), none, none, {}
  )
  detections = [(0, corners_Q4, labels, np.ones(1))]
  # an IoU of exactly 0.5
  assert detection.average_precision(truth, detections, CLASSES)["AP"] == pytest.approx(10)
  row = detection.describe_image(detections[0], truth, CLASSES)
  assert row["detections"][0]["box"] == row["objects"][0]["box"] == [0, 0, 50, 50]


def made(folder, devices: int, batch_size: int):
  """(evaluator, parameters, task, parts) of a small random DETR on scenes of digits."""
  overrides = [f"batch_size={batch_size}", f"task.cache={folder}", "model.labels=10"]
  config = resolve(recipes.load("configs/detr/base.py:debug", overrides))
  parts = build_parts(config, jax.devices()[:devices])
  arrays = params.arrays(parts.make_model(jax.random.key(1)))
  placed = {
    n: jax.device_put(np.asarray(a), parts.state.params[n].sharding) for n, a in arrays.items()
  }
  task = tasks.build(split="validation", **config.task.to_dict())
  batches = lambda most: loader.eval_batches(task, batch_size=batch_size, max_examples=most)  # noqa: E731
  setting = EvalContext(parts.model, parts.objective, task, batches, batch_size, parts.rules)
  arguments = {"name": "detection", "max_examples": 21}
  return EVALUATORS.make("config.evals.x", arguments, context=setting), placed


def test_scores_are_the_same_on_eight_devices_and_one_and_in_any_batch(tmp_path):
  single, alone = made(tmp_path, 1, 7)
  eight, sharded = made(tmp_path, 8, 16)
  first = single(alone)
  second = eight(sharded)
  assert first.metrics["images"] == second.metrics["images"] == 21
  assert (
    [row["image"] for row in first.predictions]
    == [row["image"] for row in second.predictions]
    == list(range(21))
  )
  expected = {"AP", "AP50", "AP75", "AR_100", "AP_of_3", "AP_swapped", "IoU_best", "IoU_constant"}
  assert first.metrics.keys() == second.metrics.keys() >= expected
  for name, value in first.metrics.items():
    assert second.metrics[name] == pytest.approx(value, abs=0.05)
  for row, sharded_row in zip(first.predictions, second.predictions):
    assert row["objects"] == sharded_row["objects"] and len(row["detections"]) == 100
    np.testing.assert_allclose(
      row["detections"][0]["score"], sharded_row["detections"][0]["score"], atol=2e-4
    )


def test_scores_without_pycocotools_are_refused_with_the_package_to_install(monkeypatch):
  monkeypatch.setitem(sys.modules, "pycocotools", None)
  model = SimpleNamespace(REQUIRED_FEATURES=("image", "image_size"))
  context = SimpleNamespace(task=SimpleNamespace(boxes=(), classes=CLASSES), model=model)
  with pytest.raises(UserError, match=r"pip install 't5x-like\[detection\]'"):
    detection.Evaluator(context)

"""Detection's scores are those of pycocotools, and of every image once on any mesh."""

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
from t5x_like.evals import EVALUATORS, EvalContext
from t5x_like.nn import params
from t5x_like.training.build import build_parts
from t5x_like.training.resolve import resolve
from tests.refusals import refuses

pytestmark = pytest.mark.runs

CLASSES = ("cat", "dog", "bat")


def truth_of(boxes_K4, labels_K, counts_N, pixels_N2, **arrays) -> Boxes:
  """Return the boxes of N images, of which `counts_N` belong to each; no crowds."""
  boxes_K4 = np.asarray(boxes_K4, np.float32)
  pixels_N2 = np.asarray(pixels_N2, np.int32)
  sizes_K2 = np.repeat(pixels_N2, counts_N, axis=0)
  areas_K = np.prod(boxes_K4[:, 2:] - boxes_K4[:, :2], axis=1) * sizes_K2.prod(1)
  is_crowd_K = np.zeros(len(boxes_K4), bool)
  truth = Boxes(
    ends=np.cumsum(counts_N),
    pixels=pixels_N2,
    boxes=boxes_K4,
    labels=np.asarray(labels_K, np.int32),
    areas=areas_K.astype(np.float32),
    crowds=is_crowd_K,
    difficult=is_crowd_K,
    left_out={},
  )
  return dataclasses.replace(truth, **arrays)


def scenes(seed, N=12):
  """Return random boxes, some of them crowds, and detections of which many are near."""
  generator = np.random.default_rng(seed)
  counts = generator.integers(0, 7, N)
  K = counts.sum()
  pixels = generator.integers(60, 400, (N, 2))
  low = generator.uniform(0, 0.7, (K, 2))
  boxes = np.concatenate([low, low + generator.uniform(0.02, 0.3, (K, 2))], 1)
  labels = generator.integers(0, 3, K)
  truth = truth_of(boxes, labels, counts, pixels, crowds=generator.random(K) < 0.1)
  detections = []
  for n in range(N):
    objects = truth.slice_of_image(n)
    near = truth.boxes[objects] + generator.normal(0, 0.02, (counts[n], 4))
    far = generator.uniform(0, 0.5, (5, 4)) + [0, 0, 0.5, 0.5]
    names = np.concatenate([labels[objects], generator.integers(0, 3, 5)])
    detections.append(detection_of(truth, n, [*near, *far], names, generator.random(len(names))))
  return truth, detections


def detection_of(truth, image, shares_Q4, labels, scores):
  """Return the detections of an image, whose boxes are given as shares of it."""
  boxes_Q4 = np.reshape(shares_Q4, (-1, 4)) * np.tile(truth.pixels[image], 2)
  return image, boxes_Q4, np.asarray(labels), np.asarray(scores, np.float64)


def average_precision(truth, detections) -> dict[str, float]:
  return detection.average_precision(truth, detections, CLASSES)


def scores_of_pycocotools(truth: Boxes, detections, folder) -> tuple[np.ndarray, np.ndarray]:
  """Return (twelve scores, precision of each class) that pycocotools finds by COCO's files."""
  from pycocotools.coco import COCO
  from pycocotools.cocoeval import COCOeval

  def box_of(box_4):
    y0, x0, y1, x1 = map(float, box_4)
    return [x0, y0, x1 - x0, y1 - y0]

  annotations = []
  for image, (y, x) in enumerate(truth.pixels):
    objects = truth.slice_of_image(image)
    for k in range(objects.start, objects.stop):
      annotation = {"id": k + 1, "image_id": image, "category_id": int(truth.labels[k])}
      annotation |= {"area": float(truth.areas[k]), "iscrowd": int(truth.crowds[k])}
      box = truth.boxes[k].astype(np.float64) * [y, x, y, x]
      annotations.append(annotation | {"bbox": box_of(box)})
  content = {
    "images": [
      {"id": n, "height": int(y), "width": int(x)} for n, (y, x) in enumerate(truth.pixels)
    ],
    "annotations": annotations,
    "categories": [{"id": number, "name": name} for number, name in enumerate(CLASSES)],
  }
  (folder / "truth.json").write_text(json.dumps(content))
  results = []
  for image, boxes, labels, scores in detections:
    for box, label, score in zip(boxes, labels, scores):
      result = {"image_id": image, "category_id": int(label), "score": float(score)}
      results.append(result | {"bbox": box_of(box)})
  (folder / "results.json").write_text(json.dumps(results))
  with contextlib.redirect_stdout(io.StringIO()):
    coco = COCO(str(folder / "truth.json"))
    evaluation = COCOeval(coco, coco.loadRes(str(folder / "results.json")), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
  precision_IRCAM = evaluation.eval["precision"]
  return evaluation.stats, precision_IRCAM[:, :, :, 0, -1].mean(axis=(0, 1))


@pytest.mark.parametrize("seed", range(3))
def test_the_numbers_are_those_of_pycocotools(seed, tmp_path):
  truth, detections = scenes(seed)
  scores = average_precision(truth, detections)
  expected, class_precisions = scores_of_pycocotools(truth, detections, tmp_path)
  assert 5 < scores["AP"] < 95
  names = (*detection.PRECISION_METRICS, *detection.recall_metrics(100))
  for name, value in zip(names, expected, strict=True):
    assert scores.get(name, -100) == pytest.approx(100 * value, abs=1e-9), name
  for name, value in zip(CLASSES, class_precisions, strict=True):
    assert scores[f"AP_of_{name}"] == pytest.approx(100 * value)


def test_names_of_classes_become_names_of_metrics():
  names = detection.class_metrics(("sea lion/2", "猫", "犬", "a b", "a_b"))
  assert names == ("AP_of_sea_lion_2", "AP_of_猫", "AP_of_犬", "AP_of_a_b_3", "AP_of_a_b_4")


def test_detections_of_another_image_show_whether_boxes_depend_on_the_image():
  truth, detections = scenes(3, 30)
  boxes = [[0.1, 0.1, 0.4, 0.4], [0.5, 0.5, 0.9, 0.9], [0.1, 0.5, 0.4, 0.9], [0.3, 0.3, 0.7, 0.7]]
  blind = []
  for n in range(len(detections)):
    blind.append(detection_of(truth, n, boxes, [0, 1, 2, 0], [0.9, 0.8, 0.7, 0.6]))

  def precisions(detections):
    swapped = detection.swap_detections(truth, detections)
    return [average_precision(truth, x)["AP"] for x in (detections, swapped)]

  original, swapped = precisions(blind)
  assert original == pytest.approx(swapped)
  original, swapped = precisions(detections)
  assert swapped < 0.2 * original


def mean_overlaps(truth, detections) -> dict[str, float]:
  return _best_boxes.mean_overlaps(truth, detections, CLASSES)


def test_no_box_that_stays_where_it_is_beats_the_constant_box():
  from scipy.optimize import differential_evolution

  truth, detections = scenes(5, 25)
  truth = dataclasses.replace(truth, crowds=np.zeros_like(truth.crowds))
  scores = mean_overlaps(truth, detections)
  best_overlaps = []
  for label in range(3):
    boxes_of_images = []
    for n in range(len(detections)):
      objects = truth.slice_of_image(n)
      boxes_of_images.append(truth.boxes[objects][truth.labels[objects] == label])

    def loss(box_4):
      overlaps = [_best_boxes.iou(box_4[None], x).max() for x in boxes_of_images if len(x)]
      return -np.mean(overlaps)

    search = differential_evolution(loss, [(0, 1)] * 4, seed=0, maxiter=30, popsize=10)
    best_overlaps.append(-search.fun)
  assert scores["IoU_constant"] >= 100 * np.mean(best_overlaps) - 0.5
  # scipy's search may also miss the best box.
  assert scores["IoU_constant"] <= 100 * np.mean(best_overlaps) + 3
  near_first = [(n, boxes, x, np.arange(len(x), 0.0, -1)) for n, boxes, x, _ in detections]
  assert mean_overlaps(truth, near_first)["IoU_best"] > scores["IoU_constant"] + 10
  for box in np.random.default_rng(6).uniform(0, 1, (20, 2, 2)):
    still = [np.sort(box, axis=0).ravel()] * 3
    blind = [detection_of(truth, n, still, range(3), np.ones(3)) for n in range(len(detections))]
    overlaps = mean_overlaps(truth, blind)
    assert overlaps["IoU_best"] <= overlaps["IoU_constant"] == scores["IoU_constant"]


def test_the_likeliest_box_is_of_its_class_and_near_one_object():
  boxes = [[0, 0, 0.5, 0.5], [0.5, 0.5, 1, 1], [0, 0.5, 0.5, 1]]
  truth = truth_of(boxes, [0, 0, 1], [2, 1], [[40, 80], [10, 10]])
  detections = [
    detection_of(truth, 0, [[0.5, 0.5, 1, 1], [0, 0, 1, 0.5]], [0, 0], [0.4, 0.3]),
    detection_of(truth, 1, [[0, 0.5, 0.5, 1], [0, 0.5, 1, 1]], [0, 1], [0.9, 0.1]),
  ]
  # Class 0: exact, though another is half as near. Class 1: its own box, twice the object, not the
  # likelier one.
  assert mean_overlaps(truth, detections)["IoU_best"] == pytest.approx(100 * (1 + 0.5) / 2)
  none = [detection_of(truth, n, [], [], []) for n in range(2)]
  assert mean_overlaps(truth, none) == {"IoU_best": 0.0, "IoU_constant": pytest.approx(100)}
  assert not mean_overlaps(truth, [])


def test_detections_of_difficult_objects_and_parts_of_crowds_are_neither_right_nor_wrong():
  small = [0, 0, 0.2, 0.2]
  is_second = np.array([False, True])
  boxes = [small, [0.3, 0.3, 1, 1]]
  difficult = truth_of(boxes, [0, 0], [2], [[100, 100]], difficult=is_second)
  crowd = truth_of(boxes, [0, 0], [2], [[100, 100]], crowds=is_second)
  whole = [0.3, 0.3, 1, 0.99]
  part = [0.4, 0.4, 0.7, 0.7]

  def precision(truth, *boxes):
    scores = np.linspace(0.9, 0.5, len(boxes) + 1)
    detections = [detection_of(truth, 0, [*boxes, small], np.zeros(len(scores), int), scores)]
    return average_precision(truth, detections)["AP50"]

  assert precision(difficult, whole, whole) == pytest.approx(100)
  assert precision(difficult, part) == pytest.approx(50)
  assert precision(crowd, part) == pytest.approx(100)
  for truth in (difficult, crowd):
    assert truth.pad_learned(1)[1].tolist() == [[0]]


def test_exact_detections_are_perfect_and_none_score_zero():
  truth, _ = scenes(1)
  exact = []
  for n in range(len(truth.ends)):
    objects = truth.slice_of_image(n)
    labels = truth.labels[objects]
    exact.append(detection_of(truth, n, truth.boxes[objects], labels, np.ones(len(labels))))
  scores = average_precision(truth, exact)
  assert scores["AP"] == pytest.approx(100)
  assert scores["AP50"] == pytest.approx(100)
  none = [detection_of(truth, n, [], np.zeros(0, int), []) for n in range(len(truth.ends))]
  assert average_precision(truth, none) == {"AP": 0.0}


def test_boxes_beyond_the_image_are_scored_as_they_are_and_shown_within_it():
  """As in `PostProcess` of the authors' code, half of this box lies beyond and counts as missed."""
  shares_Q4 = detection.to_corners(np.array([[0.0, 0.25, 1.0, 0.5]]))
  np.testing.assert_array_equal(shares_Q4, [[0, -0.5, 0.5, 0.5]])
  truth = truth_of([[0, 0, 0.5, 0.5]], [0], [1], [[100, 100]])
  detections = [detection_of(truth, 0, shares_Q4, [0], [1])]
  # An IoU of exactly 0.5.
  assert average_precision(truth, detections)["AP"] == pytest.approx(10)
  row = detection.describe_image(detections[0], truth, CLASSES)
  assert row["detections"][0]["box"] == [0, 0, 50, 50]
  assert row["objects"][0]["box"] == [0, 0, 50, 50]


def evaluate(folder, devices: int, batch_size: int):
  """Return the scores of a small random DETR on scenes of digits."""
  overrides = [f"batch_size={batch_size}", f"task.cache={folder}", "model.labels=10"]
  config = resolve(recipes.load("configs/detr/base.py:debug", overrides))
  parts = build_parts(config, jax.devices()[:devices])
  placed = {}
  for name, array in params.arrays(parts.make_model(jax.random.key(1))).items():
    placed[name] = jax.device_put(np.asarray(array), parts.state.params[name].sharding)
  task = tasks.build(split="validation", **config.task.to_dict())

  def batches(max_examples):
    return loader.eval_batches(task, batch_size=batch_size, max_examples=max_examples)

  context = EvalContext(parts.model, parts.objective, task, batches, batch_size, parts.rules)
  arguments = {"name": "detection", "max_examples": 21}
  return EVALUATORS.make("config.evals.x", arguments, context=context)(placed)


def test_scores_are_the_same_on_eight_devices_and_one_and_in_any_batch(tmp_path):
  single = evaluate(tmp_path, 1, 7)
  eight = evaluate(tmp_path, 8, 16)
  assert single.metrics["images"] == 21
  names = {"AP", "AP50", "AP75", "AR_100", "AP_of_3", "AP_swapped", "IoU_best", "IoU_constant"}
  assert names <= single.metrics.keys()
  assert eight.metrics == pytest.approx(single.metrics, abs=0.05)
  assert [row["image"] for row in single.predictions] == list(range(21))
  for row, row_of_eight in zip(single.predictions, eight.predictions, strict=True):
    assert row["image"] == row_of_eight["image"]
    assert row["objects"] == row_of_eight["objects"]
    assert len(row["detections"]) == 100
    score = row["detections"][0]["score"]
    assert row_of_eight["detections"][0]["score"] == pytest.approx(score, rel=1e-7, abs=2e-4)


def test_scores_without_pycocotools_are_refused_with_the_package_to_install(monkeypatch):
  monkeypatch.setitem(sys.modules, "pycocotools", None)
  model = SimpleNamespace(REQUIRED_FEATURES=("image", "image_size"))
  context = SimpleNamespace(task=SimpleNamespace(boxes=(), classes=CLASSES), model=model)
  with refuses("pip install 't5x-like[detection]'"):
    detection.Evaluator(context)

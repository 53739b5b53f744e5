"""A recipe without a number of classes takes it from the data."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from refusals import refuses
from t5x_like import recipes
from t5x_like.objectives import classification
from t5x_like.saved_model.workdir import WorkdirModel
from t5x_like.training import class_count
from t5x_like.training.open_with_recipe import check_vocabulary
from t5x_like.training.resolve import resolve
from t5x_like.vocabularies.kinds.labels import LabelVocabulary

NAMES = ("cat", "dog", "owl")


def resolve_class_count(recipe: str, *overrides: str):
  config = resolve(recipes.load(f"configs/{recipe}", overrides))
  return class_count.fill_class_count(config, len(NAMES))


@pytest.mark.parametrize("recipe", ["vit/base.py", "swin/base.py", "deit/base.py:debug"])
def test_head_without_labels_gets_the_number_of_the_data(recipe):
  config = resolve_class_count(recipe)
  assert config.model.head.labels == 3
  assert not config.teacher or config.teacher.model.head.labels == 3
  unresolved = recipes.load(f"configs/{recipe}")
  adopted = class_count.adopt_class_count(unresolved, config.model.to_dict())
  assert adopted.model.head.labels == 3


def test_number_in_the_recipe_is_not_replaced():
  config = resolve_class_count("vit/base.py", "model.head.labels=1000")
  assert config.model.head.labels == 1000
  distilled = resolve_class_count("deit/base.py:debug", "model.head.labels=7")
  assert distilled.model.head.labels == distilled.teacher.model.head.labels == 7


def test_head_that_does_not_classify_is_not_changed():
  expected = resolve(recipes.load("configs/vit/mae.py")).model.head
  assert resolve_class_count("vit/mae.py").model.head == expected


def test_auto_is_refused_for_data_without_classes():
  config = resolve(recipes.load("configs/vit/base.py", ["model.head.labels=auto"]))
  assert class_count.drop_automatic_labels(config).model.head.get("labels") is None
  with refuses("config.model.head.labels: found 'auto'", "task image_classification has no"):
    class_count.fill_class_count(config, 0)


def check_classes(names, labels) -> None:
  """Call the check of a task with these names of classes and labels of examples."""
  task = SimpleNamespace(name="pets", classes=names, labels=np.array(labels, np.int32))
  config = resolve(recipes.load("configs/vit/base.py"))
  outputs = {"logits": jax.ShapeDtypeStruct((2, len(names)), np.float32)}
  class_count.check_class_count(config, classification.Objective(), outputs, task)


def test_classes_without_examples_are_reported(capsys):
  check_classes(NAMES, [0, 1, 2, 1])
  assert capsys.readouterr().out == ""
  check_classes(NAMES, [1, 1])
  report = "task pets: no example for training has 2 of the 3 classes: cat, owl"
  assert report in capsys.readouterr().out


def test_single_class_is_refused():
  with refuses("config.task: found one class, 'cat', in task image_classification"):
    check_classes(("cat",), [0])


@pytest.mark.parametrize(
  "names, parts",
  [
    (("cat", "owl"), ("learned 3; name all of them, --config.task.classes=",)),
    (NAMES[::-1], ("learned 3; name all of them",)),
    (("cat", "yak"), ("the class 'yak'", "learned cat, dog, owl; take data of these")),
  ],
)
def test_data_with_other_classes_than_the_run_are_refused(names, parts, tmp_path):
  learned = LabelVocabulary(NAMES)
  (tmp_path / "vocabulary").mkdir()
  learned.save(tmp_path / "vocabulary")
  saved = {"model": {}, "fingerprints": {"vocabulary": learned.fingerprint}}
  run = WorkdirModel(str(tmp_path), saved)
  check_vocabulary(run, LabelVocabulary(NAMES))
  with refuses(*parts):
    check_vocabulary(run, LabelVocabulary(names))

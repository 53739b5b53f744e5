"""A recipe that leaves the number of classes open takes it from the data."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from t5x_like import recipes
from t5x_like.errors import UserError
from t5x_like.objectives import classification
from t5x_like.saved_model.workdir import WorkdirModel
from t5x_like.training import class_count
from t5x_like.training.open_with_recipe import check_vocabulary
from t5x_like.training.resolve import resolve
from t5x_like.vocabularies.kinds.labels import LabelVocabulary

NAMES = ("cat", "dog", "owl")


def resolve_class_count(recipe: str, *overrides: str):
  return class_count.fill_class_count(resolve(recipes.load(recipe, overrides)), len(NAMES))


@pytest.mark.parametrize(
  "recipe", ["configs/vit/base.py", "configs/swin/base.py", "configs/deit/base.py:debug"]
)
def test_a_head_without_labels_has_as_many_as_the_data(recipe):
  config = resolve_class_count(recipe)
  assert config.model.head.labels == 3
  assert not config.teacher or config.teacher.model.head.labels == 3
  assert (
    class_count.adopt_class_count(recipes.load(recipe), config.model.to_dict()).model.head.labels
    == 3
  )


def test_a_stated_number_stays():
  assert (
    resolve_class_count("configs/vit/base.py", "model.head.labels=1000").model.head.labels == 1000
  )
  taught = resolve_class_count("configs/deit/base.py:debug", "model.head.labels=7")
  assert taught.model.head.labels == taught.teacher.model.head.labels == 7
  assert (
    resolve_class_count("configs/vit/mae.py").model.head
    == resolve(recipes.load("configs/vit/mae.py")).model.head
  )


def test_auto_is_refused_for_data_without_classes():
  config = resolve(recipes.load("configs/vit/base.py", ["model.head.labels=auto"]))
  assert class_count.drop_automatic_labels(config).model.head.get("labels") is None
  with pytest.raises(
    UserError, match="config.model.head.labels: found 'auto', but task image_classification has no"
  ):
    class_count.fill_class_count(config, 0)


def test_one_class_is_refused_and_classes_without_examples_are_reported(capsys):
  objective = classification.Objective()
  config = resolve(recipes.load("configs/vit/base.py"))

  def printed_by_check(names, labels):
    task = SimpleNamespace(name="pets", classes=names, labels=np.array(labels, np.int32))
    class_count.check_class_count(
      config, objective, {"logits": jax.ShapeDtypeStruct((2, len(names)), np.float32)}, task
    )
    return capsys.readouterr().out

  assert printed_by_check(NAMES, [0, 1, 2, 1]) == ""
  assert "task pets: no example for training has 2 of the 3 classes: cat, owl" in printed_by_check(
    NAMES, [1, 1]
  )
  with pytest.raises(
    UserError, match="config.task: found one class, 'cat', in task image_classification, from which"
  ):
    printed_by_check(("cat",), [0])


def test_data_with_fewer_classes_than_the_run_are_refused_with_a_remedy(tmp_path):
  learned = LabelVocabulary(NAMES)
  (tmp_path / "vocabulary").mkdir()
  learned.save(tmp_path / "vocabulary")
  saved = {"model": {}, "fingerprints": {"vocabulary": learned.fingerprint}}
  run = WorkdirModel(str(tmp_path), saved)
  check_vocabulary(run, LabelVocabulary(NAMES))
  with pytest.raises(
    UserError, match="learned 3; name all of them, --config.task.classes=...cat., .dog., .owl...$"
  ):
    check_vocabulary(run, LabelVocabulary(("cat", "owl")))
  with pytest.raises(UserError, match="learned 3; name all of them"):
    check_vocabulary(run, LabelVocabulary(NAMES[::-1]))
  with pytest.raises(
    UserError, match="data of the class 'yak', but .* learned cat, dog, owl; take data of these"
  ):
    check_vocabulary(run, LabelVocabulary(("cat", "yak")))

"""Preprocessors in a user's file change examples of any task; their errors are one line each."""

import itertools
import re
import sys

import numpy as np
import pytest

from refusals import refuses
from t5x_like import trust
from t5x_like.data import loader, task
from t5x_like.data.dataset import dataset
from t5x_like.data.preprocessors import user_defined
from t5x_like.quiet_tensorflow import tf
from tools import inspect_data

USER_FILE = """
import tensorflow as tf

INPUTS = "encoder_input_tokens"

def lowercase(example):
  ids = example[INPUTS]
  return {**example, INPUTS: tf.where((ids >= 68) & (ids <= 93), ids + 32, ids)}

def drop(batch, seed, rate: float = 0.5):
  ids = batch[INPUTS]
  keep = tf.map_fn(lambda s: tf.random.stateless_uniform([ids.shape[1]], s) >= rate, seed, fn_output_signature=tf.bool)
  return batch | {INPUTS: tf.where(keep, ids, 2)}

def noisy(example, seed):
  add = tf.random.stateless_uniform([], seed, maxval=50, dtype=tf.int32)
  return example | {INPUTS: example[INPUTS] + add}

def shorter(example): return {**example, INPUTS: example[INPUTS][:-1]}
def wider(batch): return {**batch, INPUTS: tf.cast(batch[INPUTS], tf.int64)}
def fewer(example): return {INPUTS: example[INPUTS]}
def more(example): return {**example, "extra": 1}
def nothing(example): pass
def raising(example): return {**example, INPUTS: example["no_such"]}
def features(features): return features
def chance(example): return {**example, INPUTS: example[INPUTS] + tf.random.uniform([], maxval=1000, dtype=tf.int32)}
def mixing(batch): return {**batch, INPUTS: tf.cumsum(batch[INPUTS], axis=0, reverse=True)}
def _python(ids):
  raise RuntimeError("a " + "fault")
def late(example):
  return {**example, INPUTS: tf.numpy_function(_python, [example[INPUTS]], tf.int32)}
def failing(example):
  with tf.control_dependencies([tf.debugging.assert_less(example[INPUTS], 3)]):
    return {**example, INPUTS: tf.identity(example[INPUTS])}
"""
INPUTS = "encoder_input_tokens"


@pytest.fixture
def user_file(tmp_path, monkeypatch):
  """Write the user's file and trust the functions in it; return its path."""
  (tmp_path / "mine.py").write_text(USER_FILE)
  monkeypatch.chdir(tmp_path)
  # The loader makes several steps at once; these tests read one.
  monkeypatch.setattr(loader, "_MAX_STEPS_PER_CALL", 1)
  monkeypatch.setattr(sys, "path", sys.path.copy())
  names = [*re.findall(r"^def (\w+)", USER_FILE, re.MULTILINE), "missing"]
  trust.begin_command([f"mine:{name}" for name in names])
  yield tmp_path / "mine.py"
  sys.modules.pop("mine", None)


def build_task(*preprocessors, **arguments):
  """Return span corruption on the built-in corpus, with preprocessors."""
  arguments = {"store": "builtin", "inputs_length": 64} | arguments
  if preprocessors:
    arguments["preprocessors"] = preprocessors
  return task.build("span_corruption", "train", **arguments)


def read_batch(span_task, start=0, rows=None):
  return next(loader.train_batches(span_task, batch_size=4, seed=5, start_step=start, rows=rows))


def test_preprocessors_of_examples_and_batches_are_applied_in_order(user_file):
  plain = build_task()
  both = build_task("mine:lowercase", {"name": "mine:drop", "rate": 0.25})
  assert both.numbering == plain.numbering
  assert both.features == plain.features
  assert len({both.fingerprint, plain.fingerprint, build_task("mine:lowercase").fingerprint}) == 3
  ids = read_batch(plain, 3)[INPUTS]
  lowercase_ids = np.where((ids >= 68) & (ids <= 93), ids + 32, ids)
  batches = list(itertools.islice(loader.train_batches(both, batch_size=4, seed=5), 4))
  ids_of_both = batches[3][INPUTS]
  is_kept = ids_of_both != 2
  np.testing.assert_array_equal(ids_of_both[is_kept], lowercase_ids[is_kept])
  assert 0.15 < 1 - is_kept.mean() < 0.35
  # Rows 1 and 3 only, as another host reads them from this step.
  np.testing.assert_array_equal(read_batch(both, 3, [1, 3])[INPUTS], ids_of_both[[1, 3]])


def test_seed_depends_on_run_epoch_and_example(user_file):
  noisy = build_task("mine:noisy")
  plain = build_task()
  index_B = tf.constant([0, 1, 2, 3], tf.int64)

  def read_noise(epoch, seed):
    epoch_B = tf.fill([4], tf.constant(epoch, tf.int64))
    difference = (
      noisy.batch(index_B, epoch_B, seed)[INPUTS] - plain.batch(index_B, epoch_B, seed)[INPUTS]
    )
    return difference.numpy()[:, 0].tolist()

  first = read_noise(epoch=0, seed=1)
  assert len(set(first)) > 1
  assert read_noise(epoch=0, seed=1) == first
  assert read_noise(epoch=0, seed=2) != first
  assert read_noise(epoch=1, seed=1) != first


def test_preprocessors_of_a_mixture_apply_to_parts_without_preprocessors(user_file):
  parts = {"a": {"inputs_length": 64}, "b": {"inputs_length": 48, "preprocessors": ["mine:drop"]}}
  mixture = task.build(
    "mixture",
    "train",
    preprocessors="mine:lowercase",
    shared={"name": "span_corruption", "store": "builtin"},
    parts=parts,
    period=10,
  )
  assert mixture.parts["a"].fingerprint == build_task("mine:lowercase").fingerprint
  assert mixture.parts["b"].fingerprint == build_task("mine:drop", inputs_length=48).fingerprint
  assert not np.isin(read_batch(mixture)[INPUTS], range(68, 94)).all()


def test_fingerprint_follows_the_users_file_or_the_version_of_the_function(user_file):
  before = build_task("mine:lowercase").fingerprint
  user_file.write_text(USER_FILE + "\n# a comment\n")
  assert build_task("mine:lowercase").fingerprint != before
  sys.modules["mine"].lowercase.version = 1
  first = build_task("mine:lowercase").fingerprint
  user_file.write_text(USER_FILE + "\n# another\n")
  assert build_task("mine:lowercase").fingerprint == first
  sys.modules["mine"].lowercase.version = 2
  assert build_task("mine:lowercase").fingerprint != first


@pytest.mark.parametrize(
  "name, problem",
  [
    ("shorter", "returned encoder_input_tokens as int32 [63], expected int32 [64]"),
    ("wider", "returned encoder_input_tokens as int64 [B, 64], expected int32 [B, 64]"),
    ("fewer", "returned features without 'decoder_input_tokens'"),
    ("more", "returned features with the unknown feature 'extra'"),
    ("nothing", "returned a NoneType, expected a dict"),
    ("raising", "raised KeyError: 'no_such'"),
    ("features", "found 'features' as its first parameter, expected `example` or `batch`"),
    ("chance", "a different encoder_input_tokens for the same examples"),
    ("mixing", "depends on the other rows"),
    ("failing", "failed: "),
    ("missing", "cannot be used: AttributeError"),
  ],
)
def test_error_is_one_line_that_names_the_function(user_file, name, problem):
  with refuses("config.task.preprocessors", f"mine:{name}", problem):
    build_task(f"mine:{name}")


def test_error_during_training_names_the_function(user_file, monkeypatch):
  monkeypatch.setattr(user_defined, "_check", lambda *_: None)  # the check of the first examples
  with refuses("config.task.preprocessors: mine:late failed: ", "a fault"):
    read_batch(build_task("mine:late"))


@pytest.mark.parametrize(
  "preprocessors, problem",
  [
    (3, ": found 3, expected a list"),
    (["lowercase"], "[0]: found 'lowercase', expected a function"),
    ([{"name": "mine:drop", "rat": 0.1}], "[0].rat: unknown key (did you mean 'rate'"),
  ],
)
def test_bad_lists_of_preprocessors_are_refused(user_file, preprocessors, problem):
  with refuses(f"config.task.preprocessors{problem}"):
    task.build("span_corruption", "train", store="builtin", preprocessors=preprocessors)


def test_inspect_data_shows_features_before_and_after(user_file, capsys, request):
  recipe = f"--config={request.config.rootpath}/configs/t5/base.py:debug"
  flag = '--config.task.preprocessors=["mine:drop"]'
  assert inspect_data.main([recipe, "--examples=1", flag]) == 0
  output = capsys.readouterr().out
  assert "encoder_input_tokens before preprocessors int32[64]" in output
  assert "decoder_target_tokens before" not in output
  assert inspect_data.main([recipe, "--examples=1"]) == 0
  assert "before" not in capsys.readouterr().out


def test_dataset_has_the_batches_of_the_loader():
  span_task = build_task()
  batches = dataset(span_task, 5, 3, batch_size=4)
  assert isinstance(batches, tf.data.Dataset)
  assert batches.element_spec[INPUTS] == tf.TensorSpec([4, 64], tf.int32)
  expected = loader.train_batches(span_task, batch_size=4, seed=5, start_step=3)
  for batch in batches.take(3):
    for name, value in next(expected).items():
      np.testing.assert_array_equal(batch[name].numpy(), value, strict=True)
  for _ in range(5):
    next(iter(batches))  # dropping the iterator at once does no harm


def test_dataset_from_a_negative_step_is_refused():
  span_task = build_task()
  with refuses("start_step: found -1"):
    dataset(span_task, 0, -1)

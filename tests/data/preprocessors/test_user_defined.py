"""Preprocessors in a file of a user's own, on any task: their effect, their seeds, and their
faults, each one line."""

import itertools
import re
import sys

import numpy as np
import pytest

from t5x_like import trust
from t5x_like.data import loader, task
from t5x_like.data.dataset import dataset
from t5x_like.data.preprocessors import user_defined
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.errors import UserError
from tools import inspect_data

MINE = """
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
N = "encoder_input_tokens"


@pytest.fixture
def mine(tmp_path, monkeypatch):
  (tmp_path / "mine.py").write_text(MINE)
  monkeypatch.chdir(tmp_path)
  # made together, of which no more than one is read here
  monkeypatch.setattr(loader, "_MAX_STEPS_PER_CALL", 1)
  monkeypatch.setattr(sys, "path", sys.path.copy())
  trust.begin_command(
    [f"mine:{name}" for name in re.findall(r"^def (\w+)", MINE, re.MULTILINE)] + ["mine:missing"]
  )
  yield tmp_path / "mine.py"
  sys.modules.pop("mine", None)


def build(*preprocessors, name="span_corruption", **arguments):
  given = {"preprocessors": preprocessors} if preprocessors else {}
  arguments = {"inputs_length": 64} | arguments if name == "span_corruption" else arguments
  return task.build(name, "train", store="builtin", **given, **arguments)


def read(built, start=0, rows=None):
  return next(loader.train_batches(built, batch_size=4, seed=5, start_step=start, rows=rows))


def test_of_an_example_and_of_a_batch(mine):
  plain = build()
  both = build("mine:lowercase", {"name": "mine:drop", "rate": 0.25})
  assert both.numbering == plain.numbering and both.features == plain.features
  assert len({both.fingerprint, plain.fingerprint, build("mine:lowercase").fingerprint}) == 3
  ids = read(plain, 3)[N]
  *_, made = (
    batch[N] for batch in itertools.islice(loader.train_batches(both, batch_size=4, seed=5), 4)
  )
  kept = made != 2
  np.testing.assert_array_equal(
    made[kept], np.where((ids >= 68) & (ids <= 93), ids + 32, ids)[kept]
  )
  assert 0.15 < 1 - kept.mean() < 0.35
  np.testing.assert_array_equal(read(both, 3, [1, 3])[N], made[[1, 3]])  # at any step, on any host


def test_seeds_are_of_run_epoch_and_example(mine):
  noisy = build("mine:noisy")
  plain = build()
  index_B = tf.constant([0, 1, 2, 3], tf.int64)

  def added(epoch, seed):
    epoch_B = tf.fill([4], tf.constant(epoch, tf.int64))
    found = noisy.batch(index_B, epoch_B, seed)[N] - plain.batch(index_B, epoch_B, seed)[N]
    return found.numpy()[:, 0].tolist()

  assert added(0, 1) == added(0, 1) and len(set(added(0, 1))) > 1
  assert added(0, 1) != added(0, 2) and added(0, 1) != added(1, 1)


def test_those_of_a_mixture_are_its_parts(mine):
  parts = {"a": {"inputs_length": 64}, "b": {"inputs_length": 48, "preprocessors": ["mine:drop"]}}
  mixed = task.build(
    "mixture",
    "train",
    preprocessors="mine:lowercase",
    shared={"name": "span_corruption", "store": "builtin"},
    parts=parts,
    period=10,
  )
  assert mixed.parts["a"].fingerprint == build("mine:lowercase").fingerprint
  assert mixed.parts["b"].fingerprint == build("mine:drop", inputs_length=48).fingerprint
  assert not np.isin(read(mixed)[N], range(68, 94)).all()


def test_a_changed_file_is_another_fingerprint_unless_it_has_a_version(mine):
  before = build("mine:lowercase").fingerprint
  mine.write_text(MINE + "\n# a comment\n")
  assert build("mine:lowercase").fingerprint != before
  sys.modules["mine"].lowercase.version = 1
  first = build("mine:lowercase").fingerprint
  mine.write_text(MINE + "\n# another\n")
  assert build("mine:lowercase").fingerprint == first
  sys.modules["mine"].lowercase.version = 2
  assert build("mine:lowercase").fingerprint != first


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("shorter", r"returned encoder_input_tokens as int32 \[63\], expected int32 \[64\]"),
    ("wider", r"returned encoder_input_tokens as int64 \[B, 64\], expected int32 \[B, 64\]"),
    ("fewer", "returned features without 'decoder_input_tokens'"),
    ("more", "returned features with the unknown feature 'extra'"),
    ("nothing", "returned a NoneType, expected a dict"),
    ("raising", "raised KeyError: 'no_such'"),
    ("features", "found 'features' as its first parameter, expected `example` or `batch`"),
    ("chance", "another encoder_input_tokens for the same examples"),
    ("mixing", "depends on the other rows"),
    ("failing", "failed: .*assert"),
    ("missing", "cannot be used: AttributeError"),
  ],
)
def test_faults_are_one_line_that_names_it(mine, name, message):
  with pytest.raises(
    UserError, match=rf"config.task.preprocessors.*mine:{name}.*{message}"
  ) as refused:
    build(f"mine:{name}")
  assert "\n" not in str(refused.value)


def test_a_fault_in_the_middle_of_training_names_it_too(mine, monkeypatch):
  monkeypatch.setattr(user_defined, "_check", lambda *_: None)  # the first examples have none
  with pytest.raises(
    UserError, match=r"config.task.preprocessors: mine:late failed: .*a fault"
  ) as refused:
    read(build("mine:late"))
  assert "\n" not in str(refused.value)


def test_other_refusals(mine):
  for value, message in (
    (3, "found 3, expected a list"),
    (["lowercase"], r"\[0\]: found 'lowercase', expected a function"),
  ):
    with pytest.raises(UserError, match=message):
      task.build("span_corruption", "train", store="builtin", preprocessors=value)
  with pytest.raises(
    UserError,
    match=r"config.task.preprocessors\[0\].rat: unknown key \(did you "
    r"mean 'rate'",
  ):
    build({"name": "mine:drop", "rat": 0.1})


def test_inspect_data_shows_before_and_after(mine, capsys, request):
  recipe = f"--config={request.config.rootpath}/configs/t5/base.py:debug"
  assert (
    inspect_data.main([recipe, "--examples=1", '--config.task.preprocessors=["mine:drop"]']) == 0
  )
  said = capsys.readouterr().out
  assert (
    "encoder_input_tokens before preprocessors int32[64]" in said
    and ("decoder_target_tokens before") not in said
  )
  assert (
    inspect_data.main([recipe, "--examples=1"]) == 0 and "before" not in capsys.readouterr().out
  )


def test_a_dataset_anyone_can_iterate():
  built = build()
  batches = dataset(built, 5, 3, batch_size=4)
  assert isinstance(batches, tf.data.Dataset) and batches.element_spec[N] == tf.TensorSpec(
    [4, 64], tf.int32
  )
  expected = loader.train_batches(built, batch_size=4, seed=5, start_step=3)
  for found in batches.take(3):
    for name, value in next(expected).items():
      np.testing.assert_array_equal(found[name].numpy(), value, strict=True)
  for _ in range(5):
    next(iter(batches))  # dropped at once
  with pytest.raises(UserError, match="start_step: found -1"):
    dataset(built, 0, -1)

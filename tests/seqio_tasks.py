"""Tasks written as SeqIO's are, of `tf.data` functions alone; SeqIO need not be installed."""

import functools
import types

import tensorflow as tf


def translate(dataset, target="German"):
  def one(record):
    return {
      "inputs": tf.strings.join([f"translate English to {target}: ", record["en"]]),
      "targets": record["de"],
    }

  return dataset.map(one)


def both_ways(dataset):
  """Two examples of each record."""

  def two(record):
    pair = [record["inputs"], record["targets"]]
    return tf.data.Dataset.from_tensor_slices({"inputs": pair, "targets": pair[::-1]})

  return dataset.flat_map(two)


def long_ones(dataset, shortest=12):
  return dataset.filter(lambda record: tf.strings.length(record["inputs"]) >= shortest)


def tokenize(dataset, output_features):
  raise AssertionError("tokens are made by the task that reads the records")


def shuffled(dataset):
  return dataset.map(lambda record: {**record, "draw": tf.timestamp()})


def trimmed(dataset, sequence_length):
  return dataset


def failing(dataset):
  return dataset.map(lambda record: {"inputs": tf.strings.substr(record["en"], 100, 5)})


def task(*preprocessors, source=None):
  return types.SimpleNamespace(preprocessors=list(preprocessors), output_features={}, source=source)


class Own:
  """A data source like SeqIO's."""

  splits = ("train", "validation")

  def get_dataset(self, split, shuffle=True, seed=None):
    assert not shuffle
    return tf.data.Dataset.from_tensor_slices(
      {"en": [f"{split} one", "two"], "de": ["eins", "zwei"]}
    )


translation = task(
  functools.partial(translate, target="French"), both_ways, long_ones, tokenize, trimmed
)
owned = task(translate, source=Own())
unsteady = task(translate, shuffled)
by_length = task(trimmed)
broken = task(failing)
nothing = task()
steps = [translate]


def made():
  return owned

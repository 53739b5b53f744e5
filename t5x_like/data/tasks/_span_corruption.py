"""Span corruption of a store that is open: what `span_corruption` is, and each denoiser of `ul2`."""

from t5x_like.data import random
from t5x_like.data.preprocessors.encoder_decoder import encoder_decoder, features
from t5x_like.data.preprocessors.span_corruption import SpanCorruption
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.store.reader import TokenStore
from t5x_like.data.store.windows import Windows
from t5x_like.data.task import Task, fingerprint


def over(
  tokens: TokenStore,
  *,
  inputs_length: int,
  targets_length: int | None = None,
  noise_density: float = 0.15,
  mean_noise_span_length: float = 3.0,
  random_roll: bool = False,
  prefix: str = "",
  label: str | None = None,
) -> Task:
  """The task; arguments as in `span_corruption.task`."""
  vocabulary = tokens.vocabulary
  prefix_ids = vocabulary.encode(prefix) if prefix else []
  corruption = SpanCorruption(
    vocabulary_size=vocabulary.size,
    extra_ids=vocabulary.extra_ids,
    inputs_length=inputs_length - len(prefix_ids),
    targets_length=targets_length,
    noise_density=float(noise_density),
    mean_noise_span_length=float(mean_noise_span_length),
    eos_id=vocabulary.eos_id,
    random_roll=random_roll,
  )
  windows = Windows(tokens, "", corruption.window)

  def batch(example_index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
    window_BW = windows.read(example_index_B)
    corrupted = corruption(window_BW, random.row_keys(seed, epoch_B, example_index_B))
    inputs = corrupted["inputs"]
    if prefix_ids:
      inputs = tf.concat([tf.tile(tf.constant([prefix_ids], tf.int32), [tf.shape(inputs)[0], 1]), inputs], axis=1)
    return encoder_decoder(inputs, corrupted["targets"])

  options = {"random_roll": random_roll, "prefix": prefix_ids}
  return Task(
    name=label or f"{tokens.name}_span_corruption",
    vocabulary=vocabulary,
    fingerprint=fingerprint(
      "span_corruption.v1",
      tokens,
      inputs_length=inputs_length,
      targets_length=corruption.targets_length,
      noise_density=corruption.noise_density,
      mean_noise_span_length=corruption.mean_noise_span_length,
      **{name: value for name, value in options.items() if value},
    ),  # absent where off: older runs resume
    num_examples=windows.num_examples,
    features=features(inputs_length, corruption.targets_length),
    batch=batch,
  )

"""T5's pretraining task: span corruption of consecutive windows of a token store, as encoder-decoder features.

Example i is the corrupted window of raw tokens [i * W, (i + 1) * W), W = 568 for 512 inputs; the tokens after the last
whole window are not used. The noise is drawn anew for every (seed, epoch, example).
"""

import hashlib
import json
import os

from t5x_like.data import builtin, random
from t5x_like.data.preprocessors.encoder_decoder import encoder_decoder
from t5x_like.data.preprocessors.span_corruption import SpanCorruption
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.task import Feature, Task
from t5x_like.data.token_store import TokenStore, Verify
from t5x_like.errors import UserError


def task(*, store: str, split: str, inputs_length: int = 512, targets_length: int | None = None,
         noise_density: float = 0.15, mean_noise_span_length: float = 3.0, label: str | None = None,
         verify: Verify = "auto") -> Task:
  """Makes the task.

  Args:
    store: the directory or address that holds a token store per split (the `--output` of tools.prepare_data), or
      `builtin` for the small corpus of `data/builtin.py`.
    split: which of them.
    inputs_length: encoder length, EOS included; the raw window follows from it.
    targets_length: decoder length, EOS included; None derives it (114 for 512).
    noise_density: fraction of tokens that is noise.
    mean_noise_span_length: mean noise tokens per span.
    label: the name in metrics; by default `<corpus>_span_corruption`.
    verify: what opening the store checks: `size`, `full` (all checksums) or `auto`, see `TokenStore.open`.

  Raises:
    UserError: the store cannot be used, is shorter than one window, or its vocabulary lacks sentinels; impossible
      lengths or densities.
  """
  store = builtin.prepared() if store == builtin.NAME else store
  path = f"{store}/{split}" if "://" in store else os.path.join(store, split)
  tokens = TokenStore.open(path, verify=verify)
  print(f"data: {path}: {tokens.num_tokens:,} tokens in {tokens.num_documents:,} documents, {tokens.verification}",
        flush=True)
  vocabulary = tokens.vocabulary
  corruption = SpanCorruption(
    vocabulary_size=vocabulary.size, extra_ids=vocabulary.extra_ids, inputs_length=inputs_length,
    targets_length=targets_length, noise_density=float(noise_density),
    mean_noise_span_length=float(mean_noise_span_length), eos_id=vocabulary.eos_id)
  num_examples = tokens.num_tokens // corruption.window
  if not num_examples:
    raise UserError(
      f"{path}: {tokens.num_tokens} tokens are no example: inputs_length={inputs_length} needs windows of "
      f"{corruption.window} tokens: shorten task.inputs_length or prepare a larger corpus")

  def batch(example_index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
    window_BW = tf.numpy_function(
      lambda starts_B: tokens.windows(starts_B, corruption.window), [example_index_B * corruption.window], tf.int32,
      stateful=False)
    window_BW = tf.ensure_shape(window_BW, [example_index_B.shape[0], corruption.window])
    corrupted = corruption(window_BW, random.row_keys(seed, epoch_B, example_index_B))
    return encoder_decoder(corrupted["inputs"], corrupted["targets"])

  targets = Feature((corruption.targets_length,), "int32")
  return Task(
    name=label or f"{tokens.name}_span_corruption", vocabulary=vocabulary,
    fingerprint=_fingerprint(tokens, corruption), num_examples=num_examples,
    features={
      "encoder_input_tokens": Feature((corruption.inputs_length,), "int32"),
      "decoder_input_tokens": targets, "decoder_target_tokens": targets,
      "decoder_loss_weights": Feature((corruption.targets_length,), "float32"),
    },
    batch=batch)


def _fingerprint(tokens: TokenStore, corruption: SpanCorruption) -> str:
  content = {
    "task": "span_corruption.v1", "store": tokens.fingerprint, "inputs_length": corruption.inputs_length,
    "targets_length": corruption.targets_length, "noise_density": corruption.noise_density,
    "mean_noise_span_length": corruption.mean_noise_span_length,
  }
  return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

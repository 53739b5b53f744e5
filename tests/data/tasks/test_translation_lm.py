"""Translation language modelling masks rows of a sentence and its translation."""

import numpy as np

from refusals import refuses
from t5x_like import vocabularies
from t5x_like.architectures.architecture import has_aligned_positions
from t5x_like.data import task
from t5x_like.quiet_tensorflow import tf

BYTES = vocabularies.load("bytes")
CLS = vocabularies.special_id(BYTES, "cls")
SEP = vocabularies.special_id(BYTES, "sep")


def write_translations(tmp_path, **changes):
  """Write two sentences and their translations; return the arguments of a task on them."""
  (tmp_path / "train.en").write_text("the cat sleeps\na much longer sentence than that\n")
  (tmp_path / "train.de").write_text("die Katze\nkurz\n")
  return {
    "name": "translation_lm",
    "text": "{en}",
    "pair": "{de}",
    "length": 32,
    "source": f"parallel:{tmp_path}/{{split}}.{{field}}",
    "cache": str(tmp_path / "cache"),
    **changes,
  }


def read_all(translation_task, epoch=0):
  """Return the features of all examples in one batch."""
  index_B = tf.range(translation_task.num_examples, dtype=tf.int64)
  epoch_B = tf.fill(tf.shape(index_B), tf.constant(epoch, tf.int64))
  batch = translation_task.batch(index_B, epoch_B, 0)
  return {name: feature.numpy() for name, feature in batch.items()}


def test_a_sentence_and_its_translation_share_a_row(tmp_path):
  task_arguments = write_translations(tmp_path, too_long="truncate", languages=[3, 5])
  translation_task = task.build(split="train", **task_arguments)
  batch = read_all(translation_task)
  next_epoch = read_all(translation_task, epoch=1)
  is_masked = batch["encoder_loss_weights"] > 0
  tokens = np.where(is_masked, batch["encoder_target_tokens"], batch["encoder_input_tokens"])
  english = BYTES.encode("the cat sleeps")
  german = BYTES.encode("die Katze")
  assert tokens[0].tolist() == [CLS, *english, SEP, CLS, *german, SEP] + [BYTES.pad_id] * 5
  # 14 and 9 bytes, each with CLS and SEP, and padding, which has the type of the first language.
  assert batch["encoder_token_types"][0].tolist() == [3] * 16 + [5] * 11 + [3] * 5
  assert batch["encoder_positions"][0].tolist() == [*range(16), *range(16)]
  truncated = BYTES.encode("a much longer sentence than that")[:24]
  assert tokens[1].tolist() == [CLS, *truncated, SEP, CLS, *BYTES.encode("kurz"), SEP]
  assert is_masked.sum(1).tolist() == [3, 4]
  assert not np.isin(tokens[is_masked], [CLS, SEP, BYTES.pad_id]).any()
  for row, positions in enumerate(batch["encoder_masked_positions"]):
    assert np.flatnonzero(is_masked[row]).tolist() == positions[: is_masked[row].sum()].tolist()
  assert (is_masked != (next_epoch["encoder_loss_weights"] > 0)).any()
  assert not has_aligned_positions(batch, "encoder")  # positions restart at the translation


def test_monolingual_task_has_the_same_features(tmp_path):
  single = task.build(split="train", **write_translations(tmp_path, pair=None))
  pairs = task.build(split="train", **write_translations(tmp_path))
  assert single.features == pairs.features
  assert single.fingerprint != pairs.fingerprint
  batch = read_all(single)
  assert batch["encoder_positions"][0].tolist() == list(range(32))
  assert not batch["encoder_token_types"].any()


def test_too_few_language_numbers_are_refused(tmp_path):
  with refuses("config.task.languages: found [1] ", "expected a number"):
    task.build(split="train", **write_translations(tmp_path, languages=[1]))

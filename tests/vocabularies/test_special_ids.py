"""Special ids of a vocabulary change nothing else in the examples of tasks."""

import json

import numpy as np
import pytest

from refusals import refuses
from stores import TokenStoreWriter
from t5x_like.data import task as tasks
from t5x_like.quiet_tensorflow import tf
from t5x_like.vocabularies.kinds.published import PublishedIds, PublishedVocabulary

# The ids of text are FIRST to 239.
SIZE = 300
FIRST = 80
SHARED = dict(eos_id=1, unk_id=2, bos_id=None, mask_id=3, cls_id=4, sep_id=5, specials_in_text=True)
USUAL = PublishedIds(pad_id=0, decoder_start_id=0, sentinels=tuple(range(299, 239, -1)), **SHARED)
# In these two, id 0 is an ordinary token.
OTHER = PublishedIds(pad_id=6, decoder_start_id=1, sentinels=tuple(range(10, 70)), **SHARED)
WITHOUT_PADDING = PublishedIds(
  pad_id=None, decoder_start_id=1, sentinels=tuple(range(10, 70)), **SHARED
)


def build_vocabulary(facts: PublishedIds) -> PublishedVocabulary:
  pieces = {f" w{i}" if i % 3 else f" w{i}." for i in range(SIZE)}
  model = {
    "type": "WordLevel",
    "unk_token": " w1",
    "vocab": {piece: i for i, piece in enumerate(sorted(pieces))},
  }
  empty_parts = dict.fromkeys(
    ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
  )
  return PublishedVocabulary(
    json.dumps(empty_parts | {"version": "1.0", "added_tokens": [], "model": model}).encode(),
    facts,
    {},
  )


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
  root = tmp_path_factory.mktemp("stores")
  lengths = np.tile([150, 40, 333, 9], 6)
  text = np.random.default_rng(0).integers(FIRST, 240, lengths.sum())
  for name, facts in (("usual", USUAL), ("other", OTHER), ("none", WITHOUT_PADDING)):
    header = dict(name="c", split="train", vocabulary=build_vocabulary(facts), append_eos=False)
    with TokenStoreWriter(root / name / "train", **header) as writer:
      writer.add(text, lengths)
  return root


MLM = {"length": 48, "mask_share": 1.0, "random_share": 0.0}
TASKS = {
  "span_corruption": {"inputs_length": 40, "targets_length": 20},
  "span_corruption rolled": {"inputs_length": 40, "random_roll": True},
  "denoising mass_style": {"inputs_length": 40, "style": "mass_style"},
  "denoising replace_spans": {"inputs_length": 40, "style": "replace_spans"},
  "denoising drop_tokens": {"inputs_length": 40, "style": "drop_tokens"},
  "denoising deshuffling": {"inputs_length": 40, "style": "deshuffling"},
  "prefix_lm": {"length": 40, "architecture": "encoder_decoder"},
  "bart": {"length": 40},
  "ul2": {"length": 64},
  "mlm full_sentences": MLM | {"input_format": "full_sentences"},
  "mlm doc_sentences": MLM | {"input_format": "doc_sentences"},
  "mlm segment_pair": MLM | {"input_format": "segment_pair"},
  "mixture": {
    "parts": {
      "short": {"name": "span_corruption", "inputs_length": 20},
      "long": {"name": "span_corruption", "inputs_length": 40},
    },
    "rates": {"short": 1.0, "long": 1.0},
  },
}


def read_batch(name: str, store) -> dict[str, np.ndarray]:
  values = json.loads(json.dumps(TASKS[name]))
  for part in values.get("parts", {"": values}).values():
    part["store"] = str(store)
  task = tasks.build(name.split()[0], "train", **values)
  index_B = tf.range(6, dtype=tf.int64) % task.num_examples
  batch = task.batch(index_B, tf.zeros_like(index_B), 3)
  assert {n: tuple(f.shape) for n, f in task.features.items()} == {
    n: tuple(x.shape[1:]) for n, x in batch.items()
  }
  return {n: x.numpy() for n, x in batch.items()}


def replace_ids(usual_batch: dict[str, np.ndarray], facts: PublishedIds) -> dict[str, np.ndarray]:
  """Return a batch of USUAL, in which 0 is always padding, with other special ids."""
  encoder_only = "decoder_input_tokens" not in usual_batch
  pad = (facts.eos_id if encoder_only else 0) if facts.pad_id is None else facts.pad_id
  ids = np.arange(SIZE)
  ids[list(USUAL.sentinels)] = facts.sentinels
  ids[0] = pad
  out = {
    n: ids[x] if n.endswith("_tokens") and n != "encoder_target_tokens" else x
    for n, x in usual_batch.items()
  }
  if not encoder_only:
    out["decoder_input_tokens"][:, 0] = facts.decoder_start_id
    if facts.pad_id is None:
      out["encoder_segment_ids"] = (usual_batch["encoder_input_tokens"] != 0).astype(np.int32)
  return out


@pytest.mark.parametrize("name", TASKS)
def test_examples_differ_only_in_special_ids(stores, name):
  usual_batch = read_batch(name, stores / "usual")
  # Otherwise the ids of padding would not be tested.
  assert any((usual_batch[n] == 0).any() for n in usual_batch if n.endswith("_input_tokens"))
  for store, facts in (("other", OTHER), ("none", WITHOUT_PADDING)):
    actual = read_batch(name, stores / store)
    expected = replace_ids(usual_batch, facts)
    assert actual.keys() == expected.keys()
    for feature in expected:
      np.testing.assert_array_equal(
        actual[feature], expected[feature], err_msg=f"{store}: {feature}"
      )


@pytest.mark.parametrize(
  "name, changes, words",
  [
    ("span_corruption", {"inputs_length": 40}, ("0 sentinels", "--sentinels")),
    ("mlm", {"length": 48}, ("mask piece", "0 sentinels")),
    ("bart", {"length": 48}, ("mask piece", "0 sentinels")),
    ("causal_lm", {"length": 48}, ("expected eos",)),
  ],
)
def test_vocabulary_without_a_needed_piece_is_refused(tmp_path, name, changes, words):
  ids_without_pieces = PublishedIds(
    **vars(WITHOUT_PADDING) | {"mask_id": None, "cls_id": None, "sep_id": None, "sentinels": ()}
  )
  header = dict(
    name="c", split="train", vocabulary=build_vocabulary(ids_without_pieces), append_eos=False
  )
  with TokenStoreWriter(tmp_path / "train", **header) as writer:
    writer.add(np.full(500, FIRST), [250, 250])
  with refuses(*words):
    tasks.build(name, "train", store=str(tmp_path), **changes)


def test_rows_without_segments_need_a_padding_piece(stores):
  with refuses("config.task.segment_ids", "found False", "padding"):
    tasks.build("mlm", "train", store=str(stores / "none"), length=48, segment_ids=False)

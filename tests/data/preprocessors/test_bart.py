"""BART's noise: nothing but noise is lost, and lengths, places and orders are those asked for."""

import math
import re

import numpy as np
import pytest

from chances import assert_fits, expected_spans
from t5x_like.data import loader, random, task
from t5x_like.data.preprocessors import bart
from t5x_like.data.preprocessors.sentences import Sentences
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.errors import UserError
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary

VOCABULARY = ByteVocabulary()
MASK = 383


def keys(n):
  return random.row_keys(0, tf.range(n, dtype=tf.int64))


POISSON = np.array([math.exp(-3) * 3**k / math.factorial(k) for k in range(30)])


def test_spans_of_infilling():
  rows = 10_000
  W = 100
  noise = 30
  tokens = np.tile(np.arange(1000, 1000 + W, dtype=np.int32), (rows, 1))
  out, size = (x.numpy() for x in bart.infill(tf.constant(tokens), 0.3, 3.0, MASK, keys(rows)))
  places = np.zeros(W - noise + 1)
  lengths = np.zeros(31)
  outermost = np.zeros((rows, 2))
  missing = np.ones((rows, W), bool)
  for row in range(rows):
    text = out[row, : size[row]]
    assert not out[row, size[row] :].any()
    kept = text[text != MASK] - 1000
    assert (np.diff(kept) > 0).all() and len(kept) == W - noise
    assert not ((text[1:] == MASK) & (text[:-1] == MASK)).any()
    padded = np.concatenate([[999], text, [1000 + W]])
    at = np.flatnonzero(padded == MASK)
    spans = padded[at + 1] - padded[at - 1] - 1
    assert spans.sum() == noise
    missing[row, kept] = False
    outermost[row] = spans[[0, -1]]
    lengths += np.bincount(spans, minlength=31)
    places += np.bincount(
      np.searchsorted(kept, padded[at - 1] - 1000, side="right"), minlength=len(places)
    )
  assert_fits(places)
  expected = expected_spans(POISSON / POISSON.sum(), noise)
  cells = lambda x: [*x[:9], x[9:].sum()]  # noqa: E731
  assert_fits(cells(lengths), cells(expected))
  assert lengths.sum() / rows == pytest.approx(expected.sum(), rel=0.01)
  # The one cut to reach the sum is not always the last: both ends are alike, within four standard
  # deviations.
  ends = [
    (missing[:, :reach].sum(axis=1), missing[:, -reach:].sum(axis=1)) for reach in (5, 20, 50)
  ]
  for left, right in [outermost.T, *ends]:
    assert abs((left - right).mean()) < 4 * (left - right).std() / math.sqrt(rows)


def test_poisson():
  drawn = bart.poisson(random.bits(keys(2000), 200), 3.0).numpy().ravel()
  counts = np.bincount(drawn, minlength=30)
  assert_fits([*counts[:11], counts[11:].sum()], [*POISSON[:11], POISSON[11:].sum()])


@pytest.mark.parametrize(
  "W, rate, mean", [(3, 0.4, 3.0), (10, 0.3, 1.0), (100, 0.3, 1.0), (100, 0.9, 1.5)]
)
def test_infilling_never_makes_the_text_longer(W, rate, mean):
  tokens = np.tile(np.arange(1000, 1000 + W, dtype=np.int32), (500, 1))
  out, size = (x.numpy() for x in bart.infill(tf.constant(tokens), rate, mean, MASK, keys(500)))
  assert size.max() <= W and ((out >= 1000).sum(axis=1) == W - round(rate * W)).all()


def test_masking_deletion_and_rotation():
  rows = 4000
  W = 100
  tokens = np.tile(np.arange(1000, 1000 + W, dtype=np.int32), (rows, 1))
  masked = bart.mask(tf.constant(tokens), 0.15, MASK, keys(rows)).numpy()
  assert ((masked == MASK).sum(axis=1) == 15).all() and (
    (masked == MASK) | (masked == tokens)
  ).all()
  deleted = bart.delete(tf.constant(tokens), 0.15, keys(rows)).numpy()
  assert deleted.shape == (rows, 85) and (np.diff(deleted, axis=1) > 0).all()
  for counts in (
    (masked == MASK).sum(axis=0),
    rows - np.bincount(deleted.ravel() - 1000, minlength=W),
  ):
    assert_fits(counts, drawn=0.15)
  rotated = bart.rotate(tf.constant(np.tile(tokens, (5, 1))), keys(5 * rows)).numpy()
  assert (np.diff(rotated - 1000, axis=1) % W == 1).all()
  assert_fits(np.bincount(rotated[:, 0] - 1000, minlength=W))


def test_sentences_are_permuted_whole_and_uniformly():
  text = "One two. Three! Four five six? 3.14 seven."
  tokens = np.tile(np.array(VOCABULARY.encode(text), np.int32), (6000, 1))
  out = bart.permute_sentences(tf.constant(tokens), Sentences(VOCABULARY), keys(6000)).numpy()
  found, counts = np.unique(out, axis=0, return_counts=True)
  pieces = ["One two.", " Three!", " Four five six?", " 3.14 seven."]
  assert len(found) == 24
  assert_fits(counts)
  for row in found:
    assert sorted(re.findall(r" ?[^.!?]*(?:\.14)?[^.!?]*[.!?]", VOCABULARY.decode(row))) == sorted(
      pieces
    )


@pytest.mark.parametrize(
  "arguments",
  [
    {},
    {"infill": 0.0, "delete": 0.2},
    {"infill": 0.0, "mask": 0.2, "rotate": True, "permute_sentences": False},
  ],
  ids=str,
)
def test_the_task(arguments):
  built_task = task.build("bart", "train", store="builtin", length=64, **arguments)
  whole = loader.train_batches(built_task, batch_size=8, seed=1)
  batches = [next(whole) for _ in range(20)]
  again = next(
    loader.train_batches(built_task, batch_size=8, seed=1, start_step=19, rows=range(2, 6))
  )
  for name, value in batches[19].items():
    assert np.array_equal(value[2:6], again[name])
    assert (value.shape, value.dtype) == (
      (8, *built_task.features[name].shape),
      built_task.features[name].dtype,
    )
  for batch in batches:
    targets = batch["decoder_target_tokens"]
    inputs = batch["encoder_input_tokens"]
    assert (targets[:, -1] == 1).all() and (targets[:, :-1] > 1).all()
    assert ((inputs == 1).sum(axis=1) == 1).all()
    assert (batch["encoder_segment_ids"] == (inputs != 0)).all()


def test_bart_refuses_two_noises():
  with pytest.raises(UserError, match="infill=0.3, mask=0.1"):
    task.build("bart", "train", store="builtin", mask=0.1)

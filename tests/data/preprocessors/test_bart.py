"""BART's noise removes only noise tokens, and has the distributions of the paper."""

import math
import re

import numpy as np
import pytest

from chances import assert_fits, expected_spans
from refusals import refuses
from t5x_like.data import loader, random, task
from t5x_like.data.preprocessors import bart
from t5x_like.data.preprocessors.sentences import Sentences
from t5x_like.quiet_tensorflow import tf
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary

VOCABULARY = ByteVocabulary()
MASK = 383
FIRST = 1000  # the first token of `numbered_rows`, larger than MASK


def row_keys(n):
  return random.row_keys(0, tf.range(n, dtype=tf.int64))


def numbered_rows(rows: int, W: int) -> np.ndarray:
  """Return equal rows of the ids FIRST, FIRST + 1, …, so that an id identifies its position."""
  return np.tile(np.arange(FIRST, FIRST + W, dtype=np.int32), (rows, 1))


# Probabilities of the Poisson distribution of mean 3.
POISSON = np.array([math.exp(-3) * 3**k / math.factorial(k) for k in range(30)])


def merge_tail(counts, cells: int) -> list[float]:
  """Return the first counts, followed by the sum of all others."""
  return [*counts[:cells], counts[cells:].sum()]


def test_infilled_spans_have_poisson_lengths_and_uniform_positions():
  rows = 10_000
  W = 100
  noise = 30
  infilled = bart.infill(tf.constant(numbered_rows(rows, W)), 0.3, 3.0, MASK, row_keys(rows))
  out = infilled[0].numpy()
  size = infilled[1].numpy()
  span_positions = np.zeros(W - noise + 1)
  span_lengths = np.zeros(31)
  outermost = np.zeros((rows, 2))
  missing = np.ones((rows, W), bool)
  for row in range(rows):
    text = out[row, : size[row]]
    assert not out[row, size[row] :].any()
    kept_tokens = text[text != MASK] - FIRST
    assert (np.diff(kept_tokens) > 0).all()
    assert len(kept_tokens) == W - noise
    assert not ((text[1:] == MASK) & (text[:-1] == MASK)).any()
    padded = np.concatenate([[FIRST - 1], text, [FIRST + W]])
    masks = np.flatnonzero(padded == MASK)
    spans = padded[masks + 1] - padded[masks - 1] - 1  # the lengths of this row's spans
    assert spans.sum() == noise
    missing[row, kept_tokens] = False
    outermost[row] = spans[[0, -1]]
    span_lengths += np.bincount(spans, minlength=len(span_lengths))
    kept_before = np.searchsorted(kept_tokens, padded[masks - 1] - FIRST, side="right")
    span_positions += np.bincount(kept_before, minlength=len(span_positions))
  assert_fits(span_positions)
  expected = expected_spans(POISSON / POISSON.sum(), noise)
  assert_fits(merge_tail(span_lengths, 9), merge_tail(expected, 9))
  assert span_lengths.sum() / rows == pytest.approx(expected.sum(), rel=0.01)
  # The last span drawn is cut so that the lengths sum to `noise`. It may be anywhere in the row, so
  # both ends of a row have the same statistics, within four standard deviations.
  ends = [outermost.T]
  for reach in (5, 20, 50):
    ends.append((missing[:, :reach].sum(axis=1), missing[:, -reach:].sum(axis=1)))
  for at_begin, at_end in ends:
    assert abs((at_begin - at_end).mean()) < 4 * (at_begin - at_end).std() / math.sqrt(rows)


def test_poisson_draws_fit_the_poisson_distribution():
  drawn = bart.poisson(random.bits(row_keys(2000), 200), 3.0).numpy().ravel()
  counts = np.bincount(drawn, minlength=30)
  assert_fits(merge_tail(counts, 11), merge_tail(POISSON, 11))


@pytest.mark.parametrize(
  "W, rate, mean", [(3, 0.4, 3.0), (10, 0.3, 1.0), (100, 0.3, 1.0), (100, 0.9, 1.5)]
)
def test_infilling_never_lengthens_a_text(W, rate, mean):
  out, size = bart.infill(tf.constant(numbered_rows(500, W)), rate, mean, MASK, row_keys(500))
  assert size.numpy().max() <= W
  assert ((out.numpy() >= FIRST).sum(axis=1) == W - round(rate * W)).all()


def test_masking_deletion_and_rotation_choose_uniformly():
  rows = 4000
  W = 100
  tokens = numbered_rows(rows, W)
  masked = bart.mask(tf.constant(tokens), 0.15, MASK, row_keys(rows)).numpy()
  is_masked = masked == MASK
  assert (is_masked.sum(axis=1) == 15).all()
  assert (is_masked | (masked == tokens)).all()
  assert_fits(is_masked.sum(axis=0), drawn=0.15)
  deleted = bart.delete(tf.constant(tokens), 0.15, row_keys(rows)).numpy()
  assert deleted.shape == (rows, 85)
  assert (np.diff(deleted, axis=1) > 0).all()
  assert_fits(rows - np.bincount(deleted.ravel() - FIRST, minlength=W), drawn=0.15)
  rotated = bart.rotate(tf.constant(numbered_rows(5 * rows, W)), row_keys(5 * rows)).numpy()
  assert (np.diff(rotated - FIRST, axis=1) % W == 1).all()
  assert_fits(np.bincount(rotated[:, 0] - FIRST, minlength=W))


def test_sentences_are_permuted_whole_and_uniformly():
  text = "One two. Three! Four five six? 3.14 seven."
  tokens = np.tile(np.array(VOCABULARY.encode(text), np.int32), (6000, 1))
  out = bart.permute_sentences(tf.constant(tokens), Sentences(VOCABULARY), row_keys(6000)).numpy()
  orders, counts = np.unique(out, axis=0, return_counts=True)
  sentences = ["One two.", " Three!", " Four five six?", " 3.14 seven."]
  assert len(orders) == math.factorial(len(sentences))
  assert_fits(counts)
  for order in orders:
    permuted = re.findall(r" ?[^.!?]*(?:\.14)?[^.!?]*[.!?]", VOCABULARY.decode(order))
    assert sorted(permuted) == sorted(sentences)


@pytest.mark.parametrize(
  "arguments",
  [
    {},
    {"infill": 0.0, "delete": 0.2},
    {"infill": 0.0, "mask": 0.2, "rotate": True, "permute_sentences": False},
  ],
  ids=str,
)
def test_inputs_and_targets_of_the_task_end_with_one_eos(arguments):
  bart_task = task.build("bart", "train", store="builtin", length=64, **arguments)
  batch = next(loader.train_batches(bart_task, batch_size=160, seed=1))
  targets = batch["decoder_target_tokens"]
  inputs = batch["encoder_input_tokens"]
  assert (targets[:, -1] == VOCABULARY.eos_id).all()
  assert (targets[:, :-1] > VOCABULARY.eos_id).all()
  assert ((inputs == VOCABULARY.eos_id).sum(axis=1) == 1).all()
  assert (batch["encoder_segment_ids"] == (inputs != 0)).all()


def test_the_task_refuses_infilling_together_with_masking():
  with refuses("infill=0.3, mask=0.1"):
    task.build("bart", "train", store="builtin", mask=0.1)

"""BART's noise and salient spans: nothing but noise is lost, and lengths, places and orders are those asked for."""

import math
import re

import numpy as np
import pytest

from t5x_like.data import loader, random, task
from t5x_like.data.preprocessors import bart
from t5x_like.data.preprocessors.salient_spans import dates_numbers_and_names
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.sentences import Sentences
from t5x_like.data.vocabularies import ByteVocabulary
from t5x_like.errors import UserError

VOCABULARY, MASK = ByteVocabulary(), 383


def keys(n):
  return random.row_keys(0, tf.range(n, dtype=tf.int64))


def close(counts, expected):
  """Chi-square within five standard deviations."""
  return ((counts - expected) ** 2 / expected).sum() < len(counts) + 5 * math.sqrt(2 * len(counts))


def test_spans_of_infilling():
  rows, W, noise = 4000, 200, 60
  tokens = np.tile(np.arange(1000, 1000 + W, dtype=np.int32), (rows, 1))
  out, size = (x.numpy() for x in bart.infill(tf.constant(tokens), 0.3, 3.0, MASK, keys(rows)))
  places, begun = np.zeros(W + 1), []
  for row in range(rows):
    text = out[row, : size[row]]
    assert not out[row, size[row]:].any()
    kept = text[text != MASK]
    assert (np.diff(kept) > 0).all() and len(kept) == W - noise
    assert not ((text[1:] == MASK) & (text[:-1] == MASK)).any()
    padded = np.concatenate([[999], text, [1000 + W]])
    at = np.flatnonzero(padded == MASK)
    lengths = padded[at + 1] - padded[at - 1] - 1
    assert lengths.sum() == noise
    places[padded[at - 1] - 999] += 1
    begun.append(len(at))
  assert np.mean(begun) == pytest.approx(noise / 3 + 0.5, abs=0.5)
  inner = places[5:-5]
  assert abs(inner / inner.mean() - 1).max() < 0.25
  drawn = bart.poisson(random.bits(keys(2000), 200), 3.0).numpy().ravel()
  expected = np.array([math.exp(-3) * 3**k / math.factorial(k) for k in range(12)]) * drawn.size
  assert (drawn == 0).any() and close(np.bincount(drawn, minlength=12)[:12], expected)


def test_masking_deletion_and_rotation():
  tokens = np.tile(np.arange(1000, 1100, dtype=np.int32), (2000, 1))
  masked = bart.mask(tf.constant(tokens), 0.15, MASK, keys(2000)).numpy()
  assert ((masked == MASK).sum(axis=1) == 15).all() and ((masked == MASK) | (masked == tokens)).all()
  deleted = bart.delete(tf.constant(tokens), 0.15, keys(2000)).numpy()
  assert deleted.shape == (2000, 85) and (np.diff(deleted, axis=1) > 0).all()
  for counts in ((masked == MASK).sum(axis=0), 2000 - np.bincount(deleted.ravel() - 1000, minlength=100)):
    assert close(counts, 300.0)
  rotated = bart.rotate(tf.constant(tokens), keys(2000)).numpy()
  assert (np.diff(rotated - 1000, axis=1) % 100 == 1).all()
  assert close(np.bincount(rotated[:, 0] - 1000, minlength=100), 20.0)


def test_sentences_are_permuted_whole_and_uniformly():
  text = "One two. Three! Four five six? 3.14 seven."
  tokens = np.tile(np.array(VOCABULARY.encode(text), np.int32), (6000, 1))
  out = bart.permute_sentences(tf.constant(tokens), Sentences(VOCABULARY), keys(6000)).numpy()
  found, counts = np.unique(out, axis=0, return_counts=True)
  pieces = ["One two.", " Three!", " Four five six?", " 3.14 seven."]
  assert len(found) == 24 and close(counts, 250.0)
  for row in found:
    assert sorted(re.findall(r" ?[^.!?]*(?:\.14)?[^.!?]*[.!?]", VOCABULARY.decode(row))) == sorted(pieces)


@pytest.mark.parametrize("arguments", [
  {}, {"infill": 0.0, "delete": 0.2}, {"infill": 0.0, "mask": 0.2, "rotate": True, "permute_sentences": False},
], ids=str)  # fmt: skip
def test_the_task(arguments):
  made = task.build("bart", "train", store="builtin", length=64, **arguments)
  whole = loader.train_batches(made, batch_size=8, seed=1)
  batches = [next(whole) for _ in range(20)]
  again = next(loader.train_batches(made, batch_size=8, seed=1, start_step=19, rows=(2, 6)))
  for name, value in batches[19].items():
    assert np.array_equal(value[2:6], again[name])
    assert (value.shape, value.dtype) == ((8, *made.features[name].shape), made.features[name].dtype)
  for batch in batches:
    targets, inputs = batch["decoder_target_tokens"], batch["encoder_input_tokens"]
    assert (targets[:, -1] == 1).all() and (targets[:, :-1] > 1).all()
    assert ((inputs == 1).sum(axis=1) == 1).all()
    assert (batch["encoder_segment_ids"] == (inputs != 0)).all()


def test_bart_refuses_two_noises():
  with pytest.raises(UserError, match="infill=0.3, mask=0.1"):
    task.build("bart", "train", store="builtin", mask=0.1)


def test_dates_numbers_and_names():
  text = "In Paris the tower of Gustave Eiffel rose by May 6, 1889. It is 330.5 m tall, say the U.S. since 2020-01-02."
  found = [text[a:b] for a, b in dates_numbers_and_names(text)]
  assert found == ["Paris", "Gustave Eiffel", "May 6, 1889", "330.5", "U.S.", "2020-01-02"]


def finder(text):
  """Every word of three letters."""
  return [match.span() for match in re.finditer(r"\b[a-z]{3}\b", text)]


def test_salient_spans_task():
  made = task.build("salient_spans", "train", store="builtin", inputs_length=128, finder="tests.data.test_bart:finder")
  vocabulary = made.vocabulary
  spans = 0
  for index in range(5):
    at = tf.range(index * 20, index * 20 + 20, dtype=tf.int64)
    out = {name: x.numpy() for name, x in made.batch(at, tf.zeros_like(at), 0).items()}
    for inputs, targets in zip(out["encoder_input_tokens"].tolist(), out["decoder_target_tokens"].tolist()):
      assert inputs.count(383) == 1 and targets[0] == 383 and targets.count(1) == 1
      span = targets[1:targets.index(1)]
      text = inputs[:inputs.index(1)]
      place = text.index(383)
      text[place:place + 1] = span
      assert len(text) == 127
      spans += bool(re.fullmatch("[a-z]{3}", vocabulary.decode(span)))
  assert spans >= 95  # a few windows have no such word
  with pytest.raises(UserError, match="finder=nowhere:none"):
    task.build("salient_spans", "train", store="builtin", finder="nowhere:none")

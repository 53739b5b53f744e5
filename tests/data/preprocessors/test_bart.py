"""BART's noise and salient spans: nothing but noise is lost, and lengths, places and orders are those asked for."""

import json
import math
import re

import numpy as np
import pytest

from chances import assert_fits, expected_spans
from stores import TokenStoreWriter
from t5x_like import trust
from t5x_like.data import loader, random, task
from t5x_like.data.preprocessors import bart, named_spans
from t5x_like.data.preprocessors.salient_spans import dates_numbers_and_names
from t5x_like.data.preprocessors.sentences import Sentences
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.errors import UserError
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary
from tools import train_tokenizer

VOCABULARY, MASK = ByteVocabulary(), 383


def keys(n):
  return random.row_keys(0, tf.range(n, dtype=tf.int64))


POISSON = np.array([math.exp(-3) * 3**k / math.factorial(k) for k in range(30)])


def test_spans_of_infilling():
  rows, W, noise = 10_000, 100, 30
  tokens = np.tile(np.arange(1000, 1000 + W, dtype=np.int32), (rows, 1))
  out, size = (x.numpy() for x in bart.infill(tf.constant(tokens), 0.3, 3.0, MASK, keys(rows)))
  places, lengths, outermost = np.zeros(W - noise + 1), np.zeros(31), np.zeros((rows, 2))
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
    places += np.bincount(np.searchsorted(kept, padded[at - 1] - 1000, side="right"), minlength=len(places))
  assert_fits(places)
  expected = expected_spans(POISSON / POISSON.sum(), noise)
  cells = lambda x: [*x[:9], x[9:].sum()]  # noqa: E731
  assert_fits(cells(lengths), cells(expected))
  assert lengths.sum() / rows == pytest.approx(expected.sum(), rel=0.01)
  # The one cut to reach the sum is not always the last: both ends are alike, within four standard deviations.
  ends = [(missing[:, :reach].sum(axis=1), missing[:, -reach:].sum(axis=1)) for reach in (5, 20, 50)]
  for left, right in [outermost.T, *ends]:
    assert abs((left - right).mean()) < 4 * (left - right).std() / math.sqrt(rows)


def test_poisson():
  drawn = bart.poisson(random.bits(keys(2000), 200), 3.0).numpy().ravel()
  counts = np.bincount(drawn, minlength=30)
  assert_fits([*counts[:11], counts[11:].sum()], [*POISSON[:11], POISSON[11:].sum()])


@pytest.mark.parametrize("W, rate, mean", [(3, 0.4, 3.0), (10, 0.3, 1.0), (100, 0.3, 1.0), (100, 0.9, 1.5)])
def test_infilling_never_makes_the_text_longer(W, rate, mean):
  tokens = np.tile(np.arange(1000, 1000 + W, dtype=np.int32), (500, 1))
  out, size = (x.numpy() for x in bart.infill(tf.constant(tokens), rate, mean, MASK, keys(500)))
  assert size.max() <= W and ((out >= 1000).sum(axis=1) == W - round(rate * W)).all()


def test_masking_deletion_and_rotation():
  rows, W = 4000, 100
  tokens = np.tile(np.arange(1000, 1000 + W, dtype=np.int32), (rows, 1))
  masked = bart.mask(tf.constant(tokens), 0.15, MASK, keys(rows)).numpy()
  assert ((masked == MASK).sum(axis=1) == 15).all() and ((masked == MASK) | (masked == tokens)).all()
  deleted = bart.delete(tf.constant(tokens), 0.15, keys(rows)).numpy()
  assert deleted.shape == (rows, 85) and (np.diff(deleted, axis=1) > 0).all()
  for counts in ((masked == MASK).sum(axis=0), rows - np.bincount(deleted.ravel() - 1000, minlength=W)):
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
    assert sorted(re.findall(r" ?[^.!?]*(?:\.14)?[^.!?]*[.!?]", VOCABULARY.decode(row))) == sorted(pieces)


@pytest.mark.parametrize(
  "arguments",
  [{}, {"infill": 0.0, "delete": 0.2}, {"infill": 0.0, "mask": 0.2, "rotate": True, "permute_sentences": False}],
  ids=str,
)
def test_the_task(arguments):
  made = task.build("bart", "train", store="builtin", length=64, **arguments)
  whole = loader.train_batches(made, batch_size=8, seed=1)
  batches = [next(whole) for _ in range(20)]
  again = next(loader.train_batches(made, batch_size=8, seed=1, start_step=19, rows=range(2, 6)))
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


def test_titles_and_spaces_before_punctuation():
  text = "Then Mr. Darcy met Mrs . Bennet . Tea at 4 on May 6 , 1889 was I think for Lady Anne I met."
  found = [text[a:b] for a, b in dates_numbers_and_names(text)]
  assert found == ["Mr. Darcy", "Mrs . Bennet", "4", "May 6 , 1889", "Lady Anne"]


def test_a_salient_span_has_all_pieces_of_its_words(tmp_path):
  """With WordPiece, whose pieces inside a word are spelled ##thur."""
  text = "they saw sir Arthur Pendragon in Camelot . "
  lines = [text.encode(), b"artists artists", b"thursday thursday"]
  vocabulary = train_tokenizer.train(lines, size=60, kind="wordpiece", with_mask=True)
  ids = vocabulary.encode(text)
  assert len(ids) > 12  # names are in pieces
  with TokenStoreWriter(tmp_path / "train", name="names", split="train", vocabulary=vocabulary) as writer:
    writer.add(np.tile(ids, 40).astype(np.int32), [len(ids) * 40])
  made = task.build("salient_spans", "train", store=str(tmp_path), inputs_length=len(ids) + 1)
  index = tf.range(40, dtype=tf.int64)
  targets = made.batch(index, tf.zeros_like(index), 0)["decoder_target_tokens"].numpy().tolist()
  assert {vocabulary.decode(row[1 : row.index(1)]) for row in targets} == {"Arthur Pendragon", "Camelot"}


def test_a_finder_from_a_file_of_names(tmp_path):
  """Spans as pairs and as objects; whole words only, the longest name first, as WordPiece spaces them."""
  file = tmp_path / "names.jsonl"
  lines = [
    {"text": "J. R. Hartley of York", "spans": [[0, 13], [17, 21]]},
    {"text": "New York", "entities": [{"start": 0, "end": 8, "label": "GPE"}]},
    {"text": "nobody", "ents": []},
  ]
  file.write_text("".join(json.dumps(line) + "\n" for line in lines))
  find, facts = named_spans.load("config.task.finder", str(file))
  text = "York's yorkers saw J . R . Hartley in New  York."
  assert [text[start:end] for start, end in find(text)] == ["York", "J . R . Hartley", "New  York"]
  file.write_text("".join(json.dumps(line) + "\n" for line in reversed(lines)))
  assert named_spans.load("", str(file))[1] == facts
  built = {f: task.build("salient_spans", "train", store="builtin", finder=str(file)).fingerprint for f in (0, 1)}
  file.write_text(json.dumps(lines[0]) + "\n")
  assert task.build("salient_spans", "train", store="builtin", finder=str(file)).fingerprint not in built.values()
  for line, message in (
    ('{"text": "a"}', "names.jsonl:1: found keys text, expected 'text' and a list under spans or entities or ents"),
    ('{"text": "a", "spans": [[0, 2]]}', r"names.jsonl:1: found the span \[0, 2\], .* in a text of 1 characters"),
    ('{"text": "a", "spans": []}', "found no spans"),
  ):
    file.write_text(line + "\n")
    with pytest.raises(UserError, match=message):
      named_spans.load("config.task.finder", str(file))


def test_salient_spans_are_drawn_uniformly(tmp_path):
  text = " he went to Paris in 1889 and met Gustave Eiffel there on 6 May 1890 again."
  ids = np.array(VOCABULARY.encode(text), np.int32)
  with TokenStoreWriter(tmp_path / "train", name="four", split="train", vocabulary=VOCABULARY) as writer:
    writer.add(np.tile(ids, 20), [len(ids) * 20])
  made = task.build("salient_spans", "train", store=str(tmp_path), inputs_length=len(ids) + 1, dynamic_offsets=False)
  index = np.arange(4000)
  targets = made.batch(tf.constant(index % 20), tf.constant(index // 20), 0)["decoder_target_tokens"].numpy()
  found, counts = np.unique(targets, axis=0, return_counts=True)
  assert {VOCABULARY.decode(row[1:]) for row in found} == {"Paris", "1889", "Gustave Eiffel", "6 May 1890"}
  assert_fits(counts)


def finder(text):
  """Every word of three letters."""
  return [match.span() for match in re.finditer(r"\b[a-z]{3}\b", text)]


def test_salient_spans_task():
  trust.begin(["tests.data.preprocessors.test_bart:finder", "nowhere:none"])
  made = task.build(
    "salient_spans", "train", store="builtin", inputs_length=128, finder="tests.data.preprocessors.test_bart:finder"
  )
  vocabulary = made.vocabulary
  spans = 0
  for index in range(5):
    at = tf.range(index * 20, index * 20 + 20, dtype=tf.int64)
    out = {name: x.numpy() for name, x in made.batch(at, tf.zeros_like(at), 0).items()}
    for inputs, targets in zip(out["encoder_input_tokens"].tolist(), out["decoder_target_tokens"].tolist()):
      assert inputs.count(383) == 1 and targets[0] == 383 and targets.count(1) == 1
      span = targets[1 : targets.index(1)]
      text = inputs[: inputs.index(1)]
      place = text.index(383)
      text[place : place + 1] = span
      assert len(text) == 127
      whole = vocabulary.decode(text)
      words = {whole[first:last] for first, last in finder(whole)}
      assert vocabulary.decode(span) in words if words else len(span) == 3  # a few windows have no such word
      spans += bool(words)
  assert 80 <= spans < 100
  with pytest.raises(UserError, match="config.task.finder: 'nowhere:none' cannot be used"):
    task.build("salient_spans", "train", store="builtin", finder="nowhere:none")

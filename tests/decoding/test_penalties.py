"""Transforms that read the tokens so far, and ends at strings, against plain lists and in every
kind of generation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generate_cases import EOS, L, V, decoder, draw, encoder_decoder, inputs, prompts, run

import more
from t5x_like.decoding.beam_search import beam_search
from t5x_like.decoding.generate import choose_likeliest, generate, greedy
from t5x_like.decoding.penalties import BannedWords, NoRepeatNgrams, RepetitionPenalty
from t5x_like.decoding.sampling import DecodingStep, Typical
from t5x_like.decoding.stops import StopStrings
from t5x_like.errors import UserError

ROWS = 40
HEAD = 4
MADE = 5
WORDS = ((3,), (1, 2), (2, 2, 0), (EOS,), (0, 3))


def step_and_lists():
  """Random histories of few words, of every length: as a step, and as lists."""
  generator = np.random.default_rng(0)
  tokens = generator.integers(0, 4, (ROWS, HEAD + MADE)).astype(np.int32)
  heads = generator.integers(1, HEAD + 1, ROWS)
  prompt = np.where(np.arange(HEAD) < HEAD - heads[:, None], -1, tokens[:, :HEAD])
  # the last places are not made yet
  made = np.concatenate([tokens[:, HEAD:], np.full((ROWS, 2), 1, np.int32)], axis=1)
  lists = [row[HEAD - head :].tolist() for row, head in zip(tokens, heads)]
  return DecodingStep(
    jnp.int32(MADE), MADE + 2, (EOS,), jnp.asarray(prompt), jnp.asarray(made)
  ), lists


def banned_by(transform, history):
  found = set()
  if isinstance(transform, NoRepeatNgrams):
    n = transform.n
    grams = [tuple(history[i : i + n]) for i in range(len(history) - n + 1)]
    found = {gram[-1] for gram in grams if list(gram[:-1]) == history[len(history) - n + 1 :]}
  else:
    for *before, last in WORDS:
      if history[len(history) - len(before) :] == before and (before or last != EOS):
        found.add(last)
  return found


@pytest.mark.parametrize(
  "transform", [*map(NoRepeatNgrams, (1, 2, 3, 20)), BannedWords(WORDS)], ids=str
)
def test_bans_are_those_of_plain_lists(transform):
  step, lists = step_and_lists()
  scores = jax.random.normal(jax.random.key(0), (ROWS, 6))
  got = np.asarray(transform(scores, step))
  expected = [banned_by(transform, history) for history in lists]
  assert [set(np.flatnonzero(np.isneginf(row))) for row in got] == expected
  assert any(expected) == (transform != NoRepeatNgrams(20))
  np.testing.assert_array_equal(np.where(np.isneginf(got), scores, got), scores)


def test_repetitions_are_penalised_by_their_sign():
  step, lists = step_and_lists()
  scores = np.asarray(jax.random.normal(jax.random.key(1), (ROWS, 6)))
  seen = np.array([[i in history for i in range(6)] for history in lists])
  expected = np.where(seen, np.where(scores < 0, scores * 1.5, scores / 1.5), scores)
  np.testing.assert_allclose(RepetitionPenalty(1.5)(jnp.asarray(scores), step), expected, rtol=1e-6)
  assert seen.any() and not seen.all()


def test_typical_tokens_are_nearest_the_entropy():
  p = np.array([0.5, 0.2, 0.15, 0.1, 0.05])
  distance = np.abs(-np.log(p) + (p * np.log(p)).sum())
  order = np.argsort(distance)
  assert order[0] != 0  # the likeliest token is not the most typical
  for mass, count in ((0.1, 1), (0.3, 2), (1.0, 5)):
    scores = jnp.asarray(np.append(np.log(p), -np.inf), jnp.float32)[None]
    kept = np.flatnonzero(np.isfinite(np.asarray(Typical(mass)(scores, None))[0]))
    assert set(kept) == set(order[:count]), mass


def repeats(head, tokens):
  """Whether a new token completes a pair that was there before."""
  row = [*head, *tokens]
  pairs = list(zip(row, row[1:]))
  return any(pairs[i] in pairs[:i] for i in range(len(head) - 1, len(pairs)))


@pytest.mark.parametrize(
  "make, side", more.beyond(2, [(encoder_decoder, None), (decoder, "left"), (decoder, "right")])
)
def test_no_hypothesis_repeats_what_it_or_its_prompt_has(make, side):
  """Greedy, drawn and every beam: hypotheses take their histories along when they are reordered."""
  m = make()
  batch = inputs() if side is None else prompts(side=side)
  heads = (
    [[0]] * 5 if side is None else [row[row != 0].tolist() for row in batch["decoder_input_tokens"]]
  )
  options = dict(max_length=L, eos=(), transforms=(NoRepeatNgrams(2),))
  found = [run(greedy, m, batch, **options)[:, None]]
  found += [run(draw, m, batch, transforms=(NoRepeatNgrams(2),), eos=())[:, None]]
  found += [run(beam_search, m, batch, beams=3, **options)[0]]
  free = run(greedy, m, batch, max_length=L, eos=())
  rows = 4
  assert any(repeats(heads[row], free[row]) for row in range(rows))
  for tokens in found:
    assert not any(repeats(heads[row], one) for row in range(rows) for one in tokens[row])
  if side is not None:
    other = prompts(side="left" if side == "right" else "right")
    np.testing.assert_array_equal(found[0][:, 0], run(greedy, m, other, **options))


def test_steps_without_such_transforms_have_no_history(monkeypatch):
  """The loop carries the same with and without them, and reads the prompt only with them."""

  def loop(function, **options):
    made = jax.make_jaxpr(lambda model, batch: function(model, batch, max_length=L, **options))(
      decoder(), prompts()
    )
    (eqn,) = [eqn for eqn in made.eqns if eqn.primitive.name == "while"]
    constants = eqn.params["body_nconsts"]
    return constants, eqn.params["body_jaxpr"].in_avals[constants:]

  with_history = {n: loop(f, transforms=(NoRepeatNgrams(2),), **o) for n, f, o in KINDS}
  monkeypatch.setattr(DecodingStep, "history", None)
  for name, function, options in KINDS:
    constants, carried = loop(function, **options)
    assert with_history[name] == (constants + 1, carried)


KINDS = [("greedy", greedy, {}), ("beams", beam_search, {"beams": 2})]


# Strings that end a row

TEXTS = [b"", b"a", b"b", b"ab", b"ba", b"aab", b"bb", b"c", b"abc", b"ca", b"", b"bca"]


@pytest.mark.parametrize(
  "strings", [(b"b",), (b"abc",), (b"aab", b"ca"), (b"bb", b"abba", b"cc")], ids=str
)
def test_strings_are_found_at_the_token_that_completes_them(strings):
  generator = np.random.default_rng(1)
  tokens = generator.integers(1, 14, (60, 8)).astype(np.int32)  # two ids are beyond the vocabulary
  texts = [[TEXTS[i] if i < len(TEXTS) else b"" for i in row] for row in tokens]
  stop = StopStrings(strings, TEXTS)
  for row, parts in zip(tokens, texts):
    ends = [n for n in range(1, 9) if any(one in b"".join(parts[:n]) for one in strings)]
    assert len(stop.through_stop(row)) == (ends[0] if ends else 8)
  # ids without text would hide a string from the device
  whole = np.where((tokens == 10) | (tokens > 11), 1, tokens)
  found = np.stack([np.asarray(jax.jit(stop)(whole, jnp.int32(n))) for n in range(8)], axis=1)
  for row, ids in zip(found, whole):
    end = len(stop.through_stop([*ids, 0, 0])) - 1
    assert np.flatnonzero(row)[:1].tolist() == ([end] if end < 8 else [])


def test_rows_end_at_strings_in_every_kind_of_generation():
  m = decoder()
  batch = prompts()
  texts = [bytes([65 + i]) for i in range(V)]
  free = run(greedy, m, batch, max_length=L, eos=())
  wanted = bytes(65 + i for i in free[0, 2:4])  # two tokens that do come
  stop = StopStrings((wanted,), texts)
  got, log_p = run(generate, m, batch, choose=choose_likeliest, max_length=L, eos=(), stop=stop)
  for row, before, scores in zip(got, free, log_p):
    kept = stop.through_stop(before)
    assert row.tolist() == [*kept, *[0] * (L - len(kept))] and (scores[len(kept) :] == 0).all()
  assert (got[0, 4:] == 0).all()
  tokens, scores = run(
    beam_search, m, batch, max_length=L, beams=3, eos=(), stop=stop, length_penalty=None
  )
  for row in tokens.reshape(-1, L).tolist():
    text = b"".join(texts[i] for i in row).rstrip(b"A")
    assert text.find(wanted) in (-1, len(text) - 2)
  assert any(wanted in b"".join(texts[i] for i in row) for row in tokens.reshape(-1, L).tolist())


@pytest.mark.parametrize(
  "call, words",
  [
    (lambda: RepetitionPenalty(0.0), "RepetitionPenalty: found 0.0"),
    (lambda: NoRepeatNgrams(0), "NoRepeatNgrams: found 0"),
    (lambda: BannedWords(((),)), "BannedWords: found an empty"),
    (lambda: Typical(0.0), "Typical: found 0.0"),
  ],
)
def test_refusals(call, words):
  with pytest.raises(UserError, match=words):
    call()

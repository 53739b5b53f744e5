"""Transforms of the history, and strings that end a row, equal plain Python on lists."""

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

ROWS = 40
PROMPT_LENGTH = 4  # of the longest prompt
NUM_GENERATED = 5
BANNED = ((3,), (1, 2), (2, 2, 0), (EOS,), (0, 3))


def make_histories():
  """Return random histories of few distinct ids, as a `DecodingStep` and as lists."""
  generator = np.random.default_rng(0)
  tokens = generator.integers(0, 4, (ROWS, PROMPT_LENGTH + NUM_GENERATED)).astype(np.int32)
  prompt_lengths = generator.integers(1, PROMPT_LENGTH + 1, ROWS)
  is_padding = np.arange(PROMPT_LENGTH) < PROMPT_LENGTH - prompt_lengths[:, None]
  prompt = np.where(is_padding, -1, tokens[:, :PROMPT_LENGTH])
  # Two tokens have not been generated yet.
  generated = np.concatenate([tokens[:, PROMPT_LENGTH:], np.full((ROWS, 2), 1, np.int32)], axis=1)
  lists = [row[PROMPT_LENGTH - length :].tolist() for row, length in zip(tokens, prompt_lengths)]
  step = DecodingStep(
    jnp.int32(NUM_GENERATED), NUM_GENERATED + 2, (EOS,), jnp.asarray(prompt), jnp.asarray(generated)
  )
  return step, lists


def find_banned_ids(transform, history):
  """Return the ids that may not follow a history."""
  banned_ids = set()
  if isinstance(transform, NoRepeatNgrams):
    n = transform.n
    last_ids = history[len(history) - n + 1 :]
    for start in range(len(history) - n + 1):
      *first_ids, following = history[start : start + n]
      if first_ids == last_ids:
        banned_ids.add(following)
    return banned_ids
  for *before, last in BANNED:
    if history[len(history) - len(before) :] == before and (before or last != EOS):
      banned_ids.add(last)
  return banned_ids


@pytest.mark.parametrize(
  "transform", [*map(NoRepeatNgrams, (1, 2, 3, 20)), BannedWords(BANNED)], ids=str
)
def test_banned_ids_equal_plain_python(transform):
  step, lists = make_histories()
  scores = jax.random.normal(jax.random.key(0), (ROWS, 6))
  transformed = np.asarray(transform(scores, step))
  expected = [find_banned_ids(transform, history) for history in lists]
  assert [set(np.flatnonzero(np.isneginf(row))) for row in transformed] == expected
  # No history is long enough to repeat 20 ids.
  assert any(expected) == (transform != NoRepeatNgrams(20))
  np.testing.assert_array_equal(np.where(np.isneginf(transformed), scores, transformed), scores)


def test_repetition_penalty_divides_positive_and_multiplies_negative_scores():
  step, lists = make_histories()
  scores = np.asarray(jax.random.normal(jax.random.key(1), (ROWS, 6)))
  is_repeated = np.array([[i in history for i in range(6)] for history in lists])
  expected = np.where(is_repeated, np.where(scores < 0, scores * 1.5, scores / 1.5), scores)
  np.testing.assert_allclose(RepetitionPenalty(1.5)(jnp.asarray(scores), step), expected, rtol=1e-6)
  assert is_repeated.any()
  assert not is_repeated.all()


def test_typical_tokens_are_nearest_the_entropy():
  p = np.array([0.5, 0.2, 0.15, 0.1, 0.05])
  distance = np.abs(-np.log(p) + (p * np.log(p)).sum())
  order = np.argsort(distance)
  assert order[0] != 0  # the likeliest token is not the most typical
  for mass, count in ((0.1, 1), (0.3, 2), (1.0, 5)):
    scores = jnp.asarray(np.append(np.log(p), -np.inf), jnp.float32)[None]
    kept_ids = np.flatnonzero(np.isfinite(np.asarray(Typical(mass)(scores, None))[0]))
    assert set(kept_ids) == set(order[:count]), mass


def repeats_a_pair(prompt, tokens):
  """Return whether a generated token completes a pair that occurred before."""
  history = [*prompt, *tokens]
  pairs = list(zip(history, history[1:]))
  return any(pairs[i] in pairs[:i] for i in range(len(prompt) - 1, len(pairs)))


@pytest.mark.parametrize(
  "make, side", more.beyond(2, [(encoder_decoder, None), (decoder, "left"), (decoder, "right")])
)
def test_no_hypothesis_repeats_a_pair_of_itself_or_its_prompt(make, side):
  """This holds in greedy search, sampling and beam search, where hypotheses are reordered."""
  m = make()
  if side is None:
    batch = inputs()
    heads = [[0]] * 5
  else:
    batch = prompts(side=side)
    heads = [row[row != 0].tolist() for row in batch["decoder_input_tokens"]]
  options = dict(max_length=L, eos=(), transforms=(NoRepeatNgrams(2),))
  greedy_tokens = run(greedy, m, batch, **options)
  samples = run(draw, m, batch, transforms=(NoRepeatNgrams(2),), eos=())
  beams = run(beam_search, m, batch, beams=3, **options)[0]
  free_tokens = run(greedy, m, batch, max_length=L, eos=())
  rows = range(4)  # the fifth row of `inputs` is padding
  assert any(repeats_a_pair(heads[row], free_tokens[row]) for row in rows)
  for row in rows:
    for hypothesis in [greedy_tokens[row], samples[row], *beams[row]]:
      assert not repeats_a_pair(heads[row], hypothesis)
  if side is not None:
    other_side = prompts(side="left" if side == "right" else "right")
    np.testing.assert_array_equal(greedy_tokens, run(greedy, m, other_side, **options))


@pytest.mark.parametrize(
  "function, options", [(greedy, {}), (beam_search, {"beams": 2})], ids=["greedy", "beams"]
)
def test_loop_reads_the_prompt_only_for_transforms_of_the_history(function, options, monkeypatch):
  """The loop carries the same arrays with and without such transforms."""

  def constants_and_carry(**transforms):
    program = jax.make_jaxpr(
      lambda model, batch: function(model, batch, max_length=L, **options, **transforms)
    )(decoder(), prompts())
    (loop,) = [eqn for eqn in program.eqns if eqn.primitive.name == "while"]
    constants = loop.params["body_nconsts"]
    return constants, loop.params["body_jaxpr"].in_avals[constants:]

  with_history = constants_and_carry(transforms=(NoRepeatNgrams(2),))
  monkeypatch.setattr(DecodingStep, "history", None)
  constants, carry = constants_and_carry()
  assert with_history == (constants + 1, carry)


# Strings that end a row

TEXTS = [b"", b"a", b"b", b"ab", b"ba", b"aab", b"bb", b"c", b"abc", b"ca", b"", b"bca"]


@pytest.mark.parametrize(
  "strings", [(b"b",), (b"abc",), (b"aab", b"ca"), (b"bb", b"abba", b"cc")], ids=str
)
def test_row_ends_at_the_token_that_completes_a_stop_string(strings):
  generator = np.random.default_rng(1)
  tokens = generator.integers(1, 14, (60, 8)).astype(np.int32)  # ids 12 and 13 have no text
  texts = [[TEXTS[i] if i < len(TEXTS) else b"" for i in row] for row in tokens]
  stop = StopStrings(strings, TEXTS)
  for row, parts in zip(tokens, texts):
    prefixes = [b"".join(parts[:n]) for n in range(1, 9)]
    ends = [n for n, text in enumerate(prefixes, 1) if any(string in text for string in strings)]
    assert len(stop.through_stop(row)) == (ends[0] if ends else 8)
  # On the device only few tokens are compared, so an id without text inside a string would hide it.
  with_text = np.where((tokens == 10) | (tokens > 11), 1, tokens)
  stops = np.stack([np.asarray(jax.jit(stop)(with_text, jnp.int32(n))) for n in range(8)], axis=1)
  for row, ids in zip(stops, with_text):
    end = len(stop.through_stop([*ids, 0, 0])) - 1
    assert np.flatnonzero(row)[:1].tolist() == ([end] if end < 8 else [])


def test_rows_end_at_stop_strings_in_greedy_and_beam_search():
  m = decoder()
  batch = prompts()
  texts = [bytes([65 + i]) for i in range(V)]
  free_tokens = run(greedy, m, batch, max_length=L, eos=())
  string = bytes(65 + i for i in free_tokens[0, 2:4])  # two tokens that occur
  stop = StopStrings((string,), texts)
  greedy_tokens, log_p = run(
    generate, m, batch, choose=choose_likeliest, max_length=L, eos=(), stop=stop
  )
  for row, free_row, scores in zip(greedy_tokens, free_tokens, log_p):
    tokens_to_stop = stop.through_stop(free_row)
    length = len(tokens_to_stop)
    assert row[:length].tolist() == list(tokens_to_stop)
    assert (row[length:] == 0).all()
    assert (scores[length:] == 0).all()
  assert (greedy_tokens[0, 4:] == 0).all()
  tokens, _ = run(
    beam_search, m, batch, max_length=L, beams=3, eos=(), stop=stop, length_penalty=None
  )
  beam_texts = [b"".join(texts[i] for i in row) for row in tokens.reshape(-1, L)]
  for text in beam_texts:
    text = text.rstrip(b"A")  # padding
    assert text.find(string) in (-1, len(text) - 2)
  assert any(string in text for text in beam_texts)

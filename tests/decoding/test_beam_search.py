"""Beam search against plain lists and exhaustive search, over a table of all that a small model
says."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generate_cases import EOS, L, decoder, encoder_decoder, inputs, logits, prompts, run

from t5x_like.decoding.beam_search import (
  AttainableScore,
  GnmtPenalty,
  PowerPenalty,
  TransformersRule,
  beam_search,
)
from t5x_like.decoding.generate import greedy


@pytest.mark.parametrize(
  "make, batch", [(encoder_decoder, inputs()), (decoder, prompts())], ids=["t5", "decoder"]
)
def test_one_beam_is_greedy(make, batch):
  tokens, scores = run(
    beam_search,
    make(),
    batch,
    max_length=L,
    beams=1,
    rule=TransformersRule(True),
    length_penalty=None,
  )
  np.testing.assert_array_equal(tokens[:, 0], run(greedy, make(), batch, max_length=L))
  assert scores.shape == (len(tokens), 1) and scores.dtype == np.float32


def test_formulas_of_the_penalties():
  for length in (1, 7, 30):
    np.testing.assert_allclose(GnmtPenalty(0.6)(length), ((5 + length) / 6) ** 0.6)
    np.testing.assert_allclose(PowerPenalty(1.5)(jnp.float32(length)), length**1.5, rtol=1e-6)


# of the searches that are compared with all there is
WORDS = 5
STEPS = 4


@functools.cache
def table():
  """For three prompts: the log-probabilities of what follows every sequence of up to STEPS - 1
  tokens."""
  m = decoder(vocab=WORDS)
  tokens = prompts(3, vocab=WORDS)["decoder_input_tokens"]
  tails = np.array(list(itertools.product(range(WORDS), repeat=STEPS - 1)), np.int32)
  tables = []
  for row in tokens:
    head = row[row != 0]
    fed = np.concatenate([np.repeat(head[None], len(tails), 0), tails], axis=1)
    scores = logits(m, {"decoder_input_tokens": fed, "decoder_segment_ids": np.ones_like(fed)})
    logprobs = np.asarray(jax.nn.log_softmax(scores, axis=-1))[:, len(head) - 1 :]
    tables.append(
      {tuple(tail[:n]): logprobs[i, n] for i, tail in enumerate(tails) for n in range(STEPS)}
    )
  return m, {"decoder_input_tokens": tokens}, tables


def reference(logprobs, beams, penalty, rule):
  """Beam search over lists: what has finished as (score, tokens), best first."""
  running = [(0.0, ())]
  done = []
  theirs = isinstance(rule, TransformersRule)
  for step in range(STEPS):
    candidates = [
      (score + float(p), seq + (id,))
      for score, seq in running
      for id, p in enumerate(logprobs[seq])
    ]
    candidates = sorted(candidates, reverse=True)[: 2 * beams]
    last = step == STEPS - 1
    for rank, (score, seq) in enumerate(candidates):
      if (seq[-1] == EOS or (theirs and last)) and (rank < beams or not theirs):
        done.append((score / penalty(step + 1), seq))
    done = sorted(done, reverse=True)[:beams]
    running = [(score, seq) for score, seq in candidates if seq[-1] != EOS][:beams]
    if theirs and len(done) == beams and not last:
      if rule.early_stopping is True or (
        rule.early_stopping is False and running[0][0] / penalty(step + 1) <= done[-1][0]
      ):
        break
  return done or [(score / penalty(STEPS), seq) for score, seq in running]


RULES = [AttainableScore(), *map(TransformersRule, (False, True, "never"))]
SEARCHES = [
  *itertools.product(RULES, [2], [PowerPenalty(1.0)]),
  *itertools.product(RULES[:3:2], [3], [GnmtPenalty(0.6)]),
  (AttainableScore(), 2, PowerPenalty(-1.0)),
  (TransformersRule(), 2, None),
]


@pytest.mark.parametrize("rule, beams, penalty", SEARCHES, ids=str)
def test_beam_search_is_that_of_plain_lists(rule, beams, penalty):
  m, batch, tables = table()
  tokens, scores = run(
    beam_search, m, batch, max_length=STEPS, beams=beams, length_penalty=penalty, rule=rule
  )
  compare(tokens, scores, [reference(t, beams, penalty or (lambda n: 1.0), rule) for t in tables])


@pytest.mark.parametrize("penalty", [GnmtPenalty(0.6), PowerPenalty(-1.0), None], ids=str)
def test_enough_beams_find_all_there_is(penalty):
  """Every sequence that ends, in the order of its score, and no duplicates."""
  m, batch, tables = table()
  tokens, scores = run(beam_search, m, batch, max_length=STEPS, beams=160, length_penalty=penalty)
  expected = []
  for logprobs in tables:
    found = []
    for seq, following in logprobs.items():
      if EOS not in seq:
        total = sum(float(logprobs[seq[:i]][id]) for i, id in enumerate(seq)) + float(
          following[EOS]
        )
        found.append((total / (penalty(len(seq) + 1) if penalty else 1.0), seq + (EOS,)))
    expected.append(sorted(found, reverse=True))
  assert len(expected[0]) == 1 + 4 + 16 + 64
  compare(tokens, scores, expected)
  assert np.isneginf(scores[:, 85:]).all() and (tokens[:, 85:] == 0).all()


def compare(tokens, scores, expected):
  for row, found in enumerate(expected):
    np.testing.assert_allclose(
      scores[row, : len(found)], [score for score, _ in found], rtol=1e-4, atol=1e-4
    )
    want = np.array([seq + (0,) * (STEPS - len(seq)) for _, seq in found])
    np.testing.assert_array_equal(tokens[row, : len(found)], want)


def test_beams_of_an_encoder_decoder_keep_their_own_cache():
  """Scores are those of the returned tokens run through the whole model; rows do not see each
  other."""
  m = encoder_decoder()
  batch = inputs()
  K = 3
  options = dict(max_length=L, beams=K, rule=TransformersRule(), length_penalty=PowerPenalty(1.0))
  tokens, scores = run(beam_search, m, batch, **options)
  for row in range(4):
    fed = np.pad(tokens[row, :, :-1], ((0, 0), (1, 0)))
    encoder = np.repeat(batch["encoder_input_tokens"][row : row + 1], K, axis=0)
    full = logits(m, {"encoder_input_tokens": encoder, "decoder_input_tokens": fed})
    each = np.take_along_axis(
      np.asarray(jax.nn.log_softmax(full)), tokens[row][..., None], axis=-1
    )[..., 0]
    lengths = [list(seq).index(EOS) + 1 if EOS in seq else L for seq in tokens[row]]
    np.testing.assert_allclose(
      scores[row], [each[k, :n].sum() / n for k, n in enumerate(lengths)], rtol=1e-4
    )
  assert (
    (np.diff(scores[:4], axis=1) <= 0).all()
    and np.isneginf(scores[4]).all()
    and (tokens[4] == 0).all()
  )

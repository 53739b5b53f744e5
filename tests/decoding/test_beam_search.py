"""Beam search equals a search in plain Python and, with enough beams, an exhaustive search."""

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
def test_one_beam_equals_greedy_search(make, batch):
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
  assert scores.shape == (len(tokens), 1)
  assert scores.dtype == np.float32


def test_length_penalties_follow_their_formulas():
  for length in (1, 7, 30):
    np.testing.assert_allclose(GnmtPenalty(0.6)(length), ((5 + length) / 6) ** 0.6)
    np.testing.assert_allclose(PowerPenalty(1.5)(jnp.float32(length)), length**1.5, rtol=1e-6)


# The sizes of the searches that are compared with references.
VOCAB_SIZE = 5
STEPS = 4


@functools.cache
def model_batch_and_tables():
  """Return a model, a batch of three prompts, and a table for each prompt.

  A table maps every sequence of up to STEPS - 1 tokens to the log-probabilities of the next token.
  """
  m = decoder(vocab=VOCAB_SIZE)
  tokens = prompts(3, vocab=VOCAB_SIZE)["decoder_input_tokens"]
  tails = np.array(list(itertools.product(range(VOCAB_SIZE), repeat=STEPS - 1)), np.int32)
  tables = []
  for row in tokens:
    head = row[row != 0]
    ids = np.concatenate([np.repeat(head[None], len(tails), 0), tails], axis=1)
    scores = logits(m, {"decoder_input_tokens": ids, "decoder_segment_ids": np.ones_like(ids)})
    logprobs = np.asarray(jax.nn.log_softmax(scores, axis=-1))[:, len(head) - 1 :]
    table = {}
    for i, tail in enumerate(tails):
      for n in range(STEPS):
        table[tuple(tail[:n])] = logprobs[i, n]
    tables.append(table)
  return m, {"decoder_input_tokens": tokens}, tables


def search_in_python(logprobs, beams, penalty, rule):
  """Return finished hypotheses of a beam search in plain Python as (score, tokens), best first."""
  running = [(0.0, ())]
  finished = []
  stops_as_transformers = isinstance(rule, TransformersRule)
  for step in range(STEPS):
    candidates = []
    for score, seq in running:
      candidates += [(score + float(p), seq + (id,)) for id, p in enumerate(logprobs[seq])]
    candidates = sorted(candidates, reverse=True)[: 2 * beams]
    last = step == STEPS - 1
    for rank, (score, seq) in enumerate(candidates):
      is_finished = seq[-1] == EOS or (stops_as_transformers and last)
      is_considered = rank < beams or not stops_as_transformers
      if is_finished and is_considered:
        finished.append((score / penalty(step + 1), seq))
    finished = sorted(finished, reverse=True)[:beams]
    running = [(score, seq) for score, seq in candidates if seq[-1] != EOS][:beams]
    if stops_as_transformers and len(finished) == beams and not last:
      if rule.early_stopping is True or (
        rule.early_stopping is False and running[0][0] / penalty(step + 1) <= finished[-1][0]
      ):
        break
  return finished or [(score / penalty(STEPS), seq) for score, seq in running]


RULES = [AttainableScore(), *map(TransformersRule, (False, True, "never"))]
SEARCHES = [
  *itertools.product(RULES, [2], [PowerPenalty(1.0)]),
  *itertools.product(RULES[:3:2], [3], [GnmtPenalty(0.6)]),
  (AttainableScore(), 2, PowerPenalty(-1.0)),
  (TransformersRule(), 2, None),
]


@pytest.mark.parametrize("rule, beams, penalty", SEARCHES, ids=str)
def test_beam_search_equals_plain_python(rule, beams, penalty):
  m, batch, tables = model_batch_and_tables()
  tokens, scores = run(
    beam_search, m, batch, max_length=STEPS, beams=beams, length_penalty=penalty, rule=rule
  )
  divisor = penalty or (lambda length: 1.0)
  assert_hypotheses(
    tokens, scores, [search_in_python(table, beams, divisor, rule) for table in tables]
  )


@pytest.mark.parametrize("penalty", [GnmtPenalty(0.6), PowerPenalty(-1.0), None], ids=str)
def test_search_with_enough_beams_is_exhaustive(penalty):
  m, batch, tables = model_batch_and_tables()
  tokens, scores = run(beam_search, m, batch, max_length=STEPS, beams=160, length_penalty=penalty)
  expected = []
  for logprobs in tables:
    hypotheses = []
    for seq, next_logprobs in logprobs.items():
      if EOS not in seq:
        total = sum(float(logprobs[seq[:i]][id]) for i, id in enumerate(seq))
        total += float(next_logprobs[EOS])
        divisor = penalty(len(seq) + 1) if penalty else 1.0
        hypotheses.append((total / divisor, seq + (EOS,)))
    expected.append(sorted(hypotheses, reverse=True))
  assert len(expected[0]) == 1 + 4 + 16 + 64  # 0 to 3 of the other four tokens, then EOS
  assert_hypotheses(tokens, scores, expected)
  assert np.isneginf(scores[:, 85:]).all()
  assert (tokens[:, 85:] == 0).all()


def assert_hypotheses(tokens, scores, expected):
  """Assert that the first hypotheses of each row are the expected (score, tokens)."""
  for row, hypotheses in enumerate(expected):
    np.testing.assert_allclose(
      scores[row, : len(hypotheses)], [score for score, _ in hypotheses], rtol=1e-4, atol=1e-4
    )
    expected_tokens = np.array([seq + (0,) * (STEPS - len(seq)) for _, seq in hypotheses])
    np.testing.assert_array_equal(tokens[row, : len(hypotheses)], expected_tokens)


def test_scores_of_beams_equal_the_whole_models_log_probabilities():
  """So each beam of an encoder-decoder has the right cache after reordering."""
  m = encoder_decoder()
  batch = inputs()
  K = 3
  options = dict(max_length=L, beams=K, rule=TransformersRule(), length_penalty=PowerPenalty(1.0))
  tokens, scores = run(beam_search, m, batch, **options)
  for row in range(4):
    shifted = np.pad(tokens[row, :, :-1], ((0, 0), (1, 0)))
    encoder = np.repeat(batch["encoder_input_tokens"][row : row + 1], K, axis=0)
    scores_KLV = logits(m, {"encoder_input_tokens": encoder, "decoder_input_tokens": shifted})
    logprobs_KLV = np.asarray(jax.nn.log_softmax(scores_KLV))
    logprobs_KL = np.take_along_axis(logprobs_KLV, tokens[row][..., None], axis=-1)[..., 0]
    lengths = [list(seq).index(EOS) + 1 if EOS in seq else L for seq in tokens[row]]
    means = [logprobs_KL[k, :n].sum() / n for k, n in enumerate(lengths)]
    np.testing.assert_allclose(scores[row], means, rtol=1e-4)
  assert (np.diff(scores[:4], axis=1) <= 0).all()
  # The last row of the inputs is only padding.
  assert np.isneginf(scores[4]).all()
  assert (tokens[4] == 0).all()

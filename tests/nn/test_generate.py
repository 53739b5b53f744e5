"""Generation against the full model run again at every step, exhaustive search and the formulas of what is sampled."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import nnx

from t5x_like.errors import UserError
from t5x_like.models import t5
from t5x_like.nn import params
from t5x_like.nn.architectures import Decoder, EncoderDecoder, Tokens, Variant
from t5x_like.nn.beam_search import Attainable, GnmtPenalty, PowerPenalty, Transformers, beam_search
from t5x_like.nn.dims import Dims
from t5x_like.nn.generate import greedy, sample
from t5x_like.nn.sampling import ForcedBos, ForcedEos, MinLength, MinP, Step, Temperature, TopK, TopP
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules

V, S, P, L, EOS = 12, 6, 5, 7, 1


@functools.cache
def model(kind, position, vocab=V, eos=EOS, **design):
  """A random encoder-decoder or decoder whose rows end at different steps."""
  dims = Dims(embed=16, heads=4, kv_heads=4 if kind is EncoderDecoder else 2, head_dim=4, mlp=32, layers=2)
  variant = Variant(dims, t5.V1_1, vocab, tokens=Tokens(eos=eos))
  design = {"position": dict(position) if isinstance(position, tuple) else position, **design}
  made = jax.jit(lambda key: kind(nnx.Rngs(params=key), variant=variant, design=design))(jax.random.key(5))
  made = tiny.noised(made)
  arrays = params.arrays(made)
  # More of the context and less of the last token in what comes next, and far from uniform.
  arrays |= {"embed/table": arrays["embed/table"] * 0.2, "head/kernel": arrays["head/kernel"] * 4}
  return params.with_arrays(made, arrays)


def decoder(position="rope", **options):
  return model(Decoder, position, **options)


def encoder_decoder(position="relative_bias", **options):
  return model(EncoderDecoder, position, **options)


def inputs(rows=5, seed=0):
  """Encoder inputs of unequal length; the last row is padding only."""
  tokens = tiny.batch(rows, S, 2, vocab=V, seed=seed)["encoder_input_tokens"]
  return {"encoder_input_tokens": np.concatenate([tokens[:-1], np.zeros_like(tokens[:1])])}


def prompts(rows=4, side="right", seed=0, vocab=V):
  """Prompts of unequal length, padded on one side to P."""
  generator = np.random.default_rng(seed)
  tokens = np.zeros((rows, P), np.int32)
  for row in range(rows):
    n = P - row % (P - 1)
    tokens[row, slice(0, n) if side == "right" else slice(P - n, P)] = generator.integers(2, vocab, n)
  return {"decoder_input_tokens": tokens}


@jax.jit
def logits(model, batch):
  return model(batch)["logits"]


def run(function, model, batch, **options):
  return jax.tree.map(np.asarray, program(function, tuple(options.items()))(model, batch))


@functools.cache
def program(function, options):
  return jax.jit(functools.partial(function, **dict(options)))


def draw(m, batch, seed=3, **options):
  return sample(m, batch, jax.random.key(seed), max_length=L, **options)


def rerun_greedily(m, batch, length, prompt_BP, prefix_BP=None, eos=(EOS,)):
  """The whole model on prompt and tokens so far, at every step, row by row padded right."""
  rows = [[id for id in row if id >= 0] for row in prompt_BP]
  starts, ends = [len(row) for row in rows], [not row for row in rows]
  if "encoder_input_tokens" in batch:
    ends = (batch["encoder_input_tokens"] == 0).all(1).tolist()
  out = np.zeros((len(rows), length), np.int32)
  fed = np.zeros((len(rows), prompt_BP.shape[1] + length), np.int32)
  for t in range(length):
    segments = np.zeros_like(fed)
    for i, row in enumerate(rows):
      fed[i, : len(row)], segments[i, : len(row)] = row, 1
    features = {**batch, "decoder_input_tokens": fed}
    if "encoder_input_tokens" not in batch:
      features["decoder_segment_ids"] = segments
    if prefix_BP is not None:
      features["decoder_causal_attention"] = np.pad(prefix_BP, ((0, 0), (0, length)))
    best = np.asarray(logits(m, features))
    for i, row in enumerate(rows):
      out[i, t] = 0 if ends[i] else best[i, starts[i] + t - 1].argmax()
      ends[i] |= out[i, t] in eos
      row.append(out[i, t])
  return out


# Greedy

POSITIONS = ["relative_bias", "sinusoidal", (("name", "learned"), ("length", 64)), "rope", "alibi", "shaw"]


@pytest.mark.parametrize("position", POSITIONS, ids=str)
def test_greedy_of_an_encoder_decoder_is_the_argmax_of_the_full_model(position):
  m, batch = encoder_decoder(position), inputs()
  ends = (EOS, int(run(greedy, m, batch, max_length=L)[0, 3]))  # one that does come
  got = run(greedy, m, batch, max_length=L, eos=ends)
  np.testing.assert_array_equal(got, rerun_greedily(m, batch, L, np.zeros((5, 1), np.int32), eos=ends))
  assert np.isin(got, ends).any() and (got[-1] == 0).all() and len({tuple(row) for row in got}) > 1


@pytest.mark.parametrize("position", [*POSITIONS[2:5], "windowed"], ids=str)
def test_prompts_padded_left_or_right_are_those_alone(position):
  m = decoder("rope", windows=(3,)) if position == "windowed" else decoder(position)
  right, left = prompts(side="right"), prompts(side="left")
  got = run(greedy, m, right, max_length=L)
  tokens = right["decoder_input_tokens"]
  np.testing.assert_array_equal(got, rerun_greedily(m, {}, L, np.where(tokens == 0, -1, tokens)))
  np.testing.assert_array_equal(got, run(greedy, m, left, max_length=L))
  alone = {"decoder_input_tokens": tokens[3:, : P - 3]}
  np.testing.assert_array_equal(got[3:], run(greedy, m, alone, max_length=L))
  assert len({tuple(row) for row in got}) > 2


def test_a_prefix_sees_itself_whole():
  m, batch = decoder(), prompts(side="right")
  tokens = batch["decoder_input_tokens"]
  prefix = (tokens != 0).astype(np.int32)
  prefix[2] = 0  # a row without
  got = run(greedy, m, {**batch, "decoder_causal_attention": prefix}, max_length=L)
  np.testing.assert_array_equal(got, rerun_greedily(m, {}, L, np.where(tokens == 0, -1, tokens), prefix))
  causal = run(greedy, m, batch, max_length=L)
  assert (got[2] == causal[2]).all() and (got != causal).any()


def test_forced_prefixes_of_unequal_length():
  m, batch = encoder_decoder(), inputs()
  prefix = prompts(5)["decoder_input_tokens"][:, :3]
  got = run(greedy, m, {**batch, "decoder_prefix_tokens": prefix}, max_length=L)
  prompt = np.concatenate([np.zeros((5, 1), np.int32), np.where(prefix == 0, -1, prefix)], axis=1)
  np.testing.assert_array_equal(got, rerun_greedily(m, batch, L, prompt))
  assert (got != run(greedy, m, batch, max_length=L)).any()


def test_a_row_may_end_with_one_of_several_ids():
  m, batch = decoder(), prompts()
  got = run(greedy, m, batch, max_length=L, eos=())
  other = next(id for id in got[0] if id != EOS)
  stopped = run(greedy, m, batch, max_length=L, eos=(EOS, int(other)))
  for free, row in zip(got, stopped):
    at = [i for i, id in enumerate(free) if id in (EOS, other)]
    end = at[0] + 1 if at else L
    assert (row[:end] == free[:end]).all() and (row[end:] == 0).all()


def test_generation_stops_when_all_rows_have_ended():
  """Seen in the steps a transform of one's own is asked for: as many as the longest row has tokens."""
  asked = []

  def end_third(scores_BV, step):
    jax.debug.callback(lambda index: asked.append(int(index)), step.index)
    return jnp.where(step.index == 2, ForcedBos(EOS)(scores_BV, Step(0, L, (EOS,))), scores_BV)

  got = run(greedy, encoder_decoder(), inputs(), max_length=L, transforms=(end_third,))
  jax.effects_barrier()
  assert sorted(asked) == [0, 1, 2] and (got[:, 3:] == 0).all() and (got[:-1, :3] == EOS).any(1).all()


def test_forced_tokens_and_the_least_length():
  m, batch = encoder_decoder(), inputs()
  got = run(greedy, m, batch, max_length=L, transforms=(ForcedBos(7), ForcedEos(EOS), MinLength(4)))[:-1]
  assert (got[:, 0] == 7).all() and (got[:, :4] != EOS).all() and ((got == EOS).sum(1) == 1).all()


# Sampling

LOGITS = np.log(np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.04], np.float32))


def kept(*transforms):
  scores = jnp.asarray(np.stack([LOGITS, LOGITS[::-1]]))
  for transform in transforms:
    scores = transform(scores, Step(jnp.int32(0), L, (EOS,)))
  first, second = np.isfinite(np.asarray(scores))
  assert (first == second[::-1]).all()
  return int(first.sum())


@pytest.mark.parametrize(
  "transforms, tokens",
  [
    ((TopK(1),), 1),
    ((TopK(4),), 4),
    ((TopK(99),), 6),
    ((TopP(0.39),), 1),
    ((TopP(0.41),), 2),
    ((TopP(0.66),), 3),
    ((TopP(0.95),), 5),
    ((TopP(1.0),), 6),
    ((MinP(1.0),), 1),
    ((MinP(0.6),), 2),
    ((MinP(0.24),), 4),
    ((MinP(0.05),), 6),
    ((TopK(2), TopP(0.62)), 2),
    ((TopK(2), TopP(0.6)), 1),
    ((TopP(0.9), MinP(0.3)), 3),
  ],
)
def test_filters_keep_what_their_definitions_say(transforms, tokens):
  assert kept(*transforms) == tokens


def test_samples_have_the_frequencies_of_the_model():
  """Chi-square of the first token of 4,000 equal rows, plain and at another temperature, with tokens cut off."""
  m, rows = decoder(), 4_000
  one = prompts(1)["decoder_input_tokens"]
  batch = {"decoder_input_tokens": np.repeat(one, rows, axis=0)}
  scores = np.asarray(logits(m, {"decoder_input_tokens": one}))[0, -1].astype(np.float64)
  for transforms, temperature, tokens in (((), 1.0, V), ((Temperature(2.0), TopK(6)), 2.0, 6)):
    probs = np.exp((scores - scores.max()) / temperature)
    probs[np.argsort(probs)[: V - tokens]] = 0
    expected = rows * probs / probs.sum()
    got = np.bincount(run(draw, m, batch, transforms=transforms)[:, 0], minlength=V)
    assert (got[expected == 0] == 0).all()
    rare = expected < 5  # pooled, as the test wants
    got_pooled, pooled = (np.append(x[~rare], x[rare].sum() + 1e-9) for x in (got, expected))
    chi = ((got_pooled - pooled) ** 2 / pooled).sum()
    assert chi < 31.3  # p = 0.001 at 11 degrees of freedom
    assert (got > 0).sum() > 2


def test_a_sampled_row_does_not_depend_on_the_others():
  m, batch = decoder(), prompts(4)
  whole = run(draw, m, batch)
  np.testing.assert_array_equal(whole[:2], run(draw, m, {"decoder_input_tokens": batch["decoder_input_tokens"][:2]}))
  np.testing.assert_array_equal(whole, run(draw, m, prompts(4, side="left")))
  assert (whole != run(draw, m, batch, seed=4)).any()
  np.testing.assert_array_equal(run(draw, m, batch, transforms=(TopK(1),)), run(greedy, m, batch, max_length=L))


# Beam search


@pytest.mark.parametrize("make, batch", [(encoder_decoder, inputs()), (decoder, prompts())], ids=["t5", "decoder"])
def test_one_beam_is_greedy(make, batch):
  tokens, scores = run(beam_search, make(), batch, max_length=L, beams=1, rule=Transformers(True), length_penalty=None)
  np.testing.assert_array_equal(tokens[:, 0], run(greedy, make(), batch, max_length=L))
  assert scores.shape == (len(tokens), 1) and scores.dtype == np.float32


def test_formulas_of_the_penalties():
  for length in (1, 7, 30):
    np.testing.assert_allclose(GnmtPenalty(0.6)(length), ((5 + length) / 6) ** 0.6)
    np.testing.assert_allclose(PowerPenalty(1.5)(jnp.float32(length)), length**1.5, rtol=1e-6)


WORDS, STEPS = 5, 4  # of the searches that are compared with all there is


@functools.cache
def table():
  """For three prompts: the log-probabilities of what follows every sequence of up to STEPS - 1 tokens."""
  m, tokens = decoder(vocab=WORDS), prompts(3, vocab=WORDS)["decoder_input_tokens"]
  tails = np.array(list(itertools.product(range(WORDS), repeat=STEPS - 1)), np.int32)
  tables = []
  for row in tokens:
    head = row[row != 0]
    fed = np.concatenate([np.repeat(head[None], len(tails), 0), tails], axis=1)
    scores = logits(m, {"decoder_input_tokens": fed, "decoder_segment_ids": np.ones_like(fed)})
    logprobs = np.asarray(jax.nn.log_softmax(scores, axis=-1))[:, len(head) - 1 :]
    tables.append({tuple(tail[:n]): logprobs[i, n] for i, tail in enumerate(tails) for n in range(STEPS)})
  return m, {"decoder_input_tokens": tokens}, tables


def reference(logprobs, beams, penalty, rule):
  """Beam search over lists: what has finished as (score, tokens), best first."""
  running, done = [(0.0, ())], []
  theirs = isinstance(rule, Transformers)
  for step in range(STEPS):
    candidates = [(score + float(p), seq + (id,)) for score, seq in running for id, p in enumerate(logprobs[seq])]
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


RULES = [Attainable(), *map(Transformers, (False, True, "never"))]
SEARCHES = [
  *itertools.product(RULES, [2], [PowerPenalty(1.0)]),
  *itertools.product(RULES[:3:2], [3], [GnmtPenalty(0.6)]),
  (Attainable(), 2, PowerPenalty(-1.0)),
  (Transformers(), 2, None),
]


@pytest.mark.parametrize("rule, beams, penalty", SEARCHES, ids=str)
def test_beam_search_is_that_of_plain_lists(rule, beams, penalty):
  m, batch, tables = table()
  tokens, scores = run(beam_search, m, batch, max_length=STEPS, beams=beams, length_penalty=penalty, rule=rule)
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
        total = sum(float(logprobs[seq[:i]][id]) for i, id in enumerate(seq)) + float(following[EOS])
        found.append((total / (penalty(len(seq) + 1) if penalty else 1.0), seq + (EOS,)))
    expected.append(sorted(found, reverse=True))
  assert len(expected[0]) == 1 + 4 + 16 + 64
  compare(tokens, scores, expected)
  assert np.isneginf(scores[:, 85:]).all() and (tokens[:, 85:] == 0).all()


def compare(tokens, scores, expected):
  for row, found in enumerate(expected):
    np.testing.assert_allclose(scores[row, : len(found)], [score for score, _ in found], rtol=1e-4, atol=1e-4)
    want = np.array([seq + (0,) * (STEPS - len(seq)) for _, seq in found])
    np.testing.assert_array_equal(tokens[row, : len(found)], want)


def test_beams_of_an_encoder_decoder_keep_their_own_cache():
  """Scores are those of the returned tokens run through the whole model; rows do not see each other."""
  m, batch, K = encoder_decoder(), inputs(), 3
  options = dict(max_length=L, beams=K, rule=Transformers(), length_penalty=PowerPenalty(1.0))
  tokens, scores = run(beam_search, m, batch, **options)
  for row in range(4):
    fed = np.pad(tokens[row, :, :-1], ((0, 0), (1, 0)))
    encoder = np.repeat(batch["encoder_input_tokens"][row : row + 1], K, axis=0)
    full = logits(m, {"encoder_input_tokens": encoder, "decoder_input_tokens": fed})
    each = np.take_along_axis(np.asarray(jax.nn.log_softmax(full)), tokens[row][..., None], axis=-1)[..., 0]
    lengths = [list(seq).index(EOS) + 1 if EOS in seq else L for seq in tokens[row]]
    np.testing.assert_allclose(scores[row], [each[k, :n].sum() / n for k, n in enumerate(lengths)], rtol=1e-4)
  assert (np.diff(scores[:4], axis=1) <= 0).all() and np.isneginf(scores[4]).all() and (tokens[4] == 0).all()


# Layouts and refusals


@pytest.mark.parametrize("make, mesh", [(encoder_decoder, {"data": 4, "tensor": 2}), (decoder, {"data": 8})])
def test_sharded_is_single(make, mesh):
  """Data and tensor parallelism: the same tokens. Rows stay where they are: data parallelism moves no array."""
  rules = Rules.make(make_mesh(mesh))
  m, batch = make(), inputs(8) if make is encoder_decoder else prompts(8)
  arrays = params.arrays(m)
  placed = jax.device_put(arrays, rules.of_params(params.named_params(m)))
  rows = jax.device_put(batch, rules.batch())

  def all_ways(arrays, batch):
    m = params.with_arrays(make(), arrays)
    return (
      greedy(m, batch, max_length=L),
      sample(m, batch, jax.random.key(0), max_length=L, transforms=(TopP(0.9),)),
      *beam_search(m, batch, max_length=L, beams=3),
    )

  def sharded(arrays, batch):
    with rules.activate():
      return all_ways(arrays, batch)

  program = jax.jit(sharded).lower(placed, rows).compile()
  expected, got = jax.jit(all_ways)(arrays, batch), program(placed, rows)
  for a, b in zip(expected[:3], got[:3]):
    np.testing.assert_array_equal(a, b)
    assert b.sharding.shard_shape(b.shape)[0] == 8 // mesh["data"]
  np.testing.assert_allclose(expected[3], got[3], rtol=1e-4)
  if "tensor" not in mesh:
    assert not re.search("all-gather|all-to-all|collective-permute", program.as_text())


@pytest.mark.parametrize(
  "call, words",
  [
    (lambda: Temperature(0), "Temperature: found 0"),
    (lambda: TopK(0), "TopK: found 0"),
    (lambda: TopP(1.5), "TopP: found 1.5"),
    (lambda: MinP(0.0), "MinP: found 0.0"),
    (lambda: greedy(decoder(), prompts(), max_length=0), "max_length: found 0"),
    (lambda: greedy(decoder(), prompts(), max_length=2, eos=(V,)), f"eos: found {V}"),
    (lambda: beam_search(decoder(), prompts(), max_length=2, beams=0), "beams: found 0"),
  ],
)
def test_refusals(call, words):
  with pytest.raises(UserError, match=words):
    call()

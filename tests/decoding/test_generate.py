"""Generation against the full model run again at every step and the formulas of what is sampled."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generate_cases import (
  EOS,
  L,
  P,
  V,
  decoder,
  draw,
  encoder_decoder,
  inputs,
  logits,
  prompts,
  rerun_greedily,
  run,
)

import more
from t5x_like.decoding.beam_search import beam_search
from t5x_like.decoding.generate import greedy, sample
from t5x_like.decoding.penalties import NoRepeatNgrams, RepetitionPenalty
from t5x_like.decoding.sampling import (
  DecodingStep,
  ForcedBos,
  ForcedEos,
  MinLength,
  MinP,
  Temperature,
  TopK,
  TopP,
)
from t5x_like.decoding.stops import StopStrings
from t5x_like.decoding.unrolled import prepare_for_decoding
from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules

# Greedy

POSITIONS = [
  (("name", "learned"), ("length", 64)),
  "rope",
  "alibi",
  "relative_bias",
  "shaw",
  "sinusoidal",
]


@pytest.mark.parametrize("position", more.beyond(2, POSITIONS), ids=str)
def test_greedy_of_an_encoder_decoder_is_the_argmax_of_the_full_model(position):
  m = encoder_decoder(position)
  batch = inputs()
  ends = (EOS, int(run(greedy, m, batch, max_length=L)[0, 3]))  # one that does come
  got = run(greedy, m, batch, max_length=L, eos=ends)
  np.testing.assert_array_equal(
    got, rerun_greedily(m, batch, L, np.zeros((5, 1), np.int32), eos=ends)
  )
  assert np.isin(got, ends).any() and (got[-1] == 0).all() and len({tuple(row) for row in got}) > 1


@pytest.mark.parametrize(
  "position", more.beyond(2, [POSITIONS[0], "windowed", *POSITIONS[1:3]]), ids=str
)
def test_prompts_padded_left_or_right_are_those_alone(position):
  m = decoder("rope", windows=(3,)) if position == "windowed" else decoder(position)
  right = prompts(side="right")
  left = prompts(side="left")
  got = run(greedy, m, right, max_length=L)
  tokens = right["decoder_input_tokens"]
  np.testing.assert_array_equal(got, rerun_greedily(m, {}, L, np.where(tokens == 0, -1, tokens)))
  np.testing.assert_array_equal(got, run(greedy, m, left, max_length=L))
  alone = {"decoder_input_tokens": tokens[3:, : P - 3]}
  np.testing.assert_array_equal(got[3:], run(greedy, m, alone, max_length=L))
  assert len({tuple(row) for row in got}) > 2


def test_a_prefix_sees_itself_whole():
  m = decoder()
  batch = prompts(side="right")
  tokens = batch["decoder_input_tokens"]
  prefix = (tokens != 0).astype(np.int32)
  prefix[2] = 0  # a row without
  got = run(greedy, m, {**batch, "decoder_causal_attention": prefix}, max_length=L)
  np.testing.assert_array_equal(
    got, rerun_greedily(m, {}, L, np.where(tokens == 0, -1, tokens), prefix)
  )
  causal = run(greedy, m, batch, max_length=L)
  assert (got[2] == causal[2]).all() and (got != causal).any()


def test_forced_prefixes_of_unequal_length():
  m = encoder_decoder()
  batch = inputs()
  prefix = prompts(5)["decoder_input_tokens"][:, :3]
  got = run(greedy, m, {**batch, "decoder_prefix_tokens": prefix}, max_length=L)
  prompt = np.concatenate([np.zeros((5, 1), np.int32), np.where(prefix == 0, -1, prefix)], axis=1)
  np.testing.assert_array_equal(got, rerun_greedily(m, batch, L, prompt))
  assert (got != run(greedy, m, batch, max_length=L)).any()


def test_a_row_may_end_with_one_of_several_ids():
  m = decoder()
  batch = prompts()
  got = run(greedy, m, batch, max_length=L, eos=())
  other = next(id for id in got[0] if id != EOS)
  stopped = run(greedy, m, batch, max_length=L, eos=(EOS, int(other)))
  for free, row in zip(got, stopped):
    at = [i for i, id in enumerate(free) if id in (EOS, other)]
    end = at[0] + 1 if at else L
    assert (row[:end] == free[:end]).all() and (row[end:] == 0).all()


@pytest.mark.parametrize("make, batch", [(encoder_decoder, inputs), (decoder, prompts)])
def test_a_model_made_for_decoding_gives_the_same_and_its_kernels_are_ready(make, batch):
  made = make()
  made = jax.tree.map(lambda x: x, made)
  made.dtype = jnp.dtype("bfloat16")
  for name in ("encoder", "decoder"):
    if hasattr(made, name):
      getattr(made, name).layers = "loop"
  ready = prepare_for_decoding(made)
  assert prepare_for_decoding(ready) is ready
  np.testing.assert_array_equal(
    run(greedy, ready, batch(), max_length=L), run(greedy, made, batch(), max_length=L)
  )
  kernels = {name: x for name, x in params.arrays(ready).items() if name.endswith("kernel")}
  assert len(kernels) > 8 and {x.dtype for x in kernels.values()} == {made.dtype}
  made = jax.make_jaxpr(lambda model: greedy(model, batch(), max_length=L))(ready)
  (loop,) = [str(eqn.params["body_jaxpr"]) for eqn in made.eqns if eqn.primitive.name == "while"]
  assert loop.count("dot_general") > 8 and not re.search(
    r"bf16\[(16,16|16,32|32,16|12,16)\] = "
    r"convert_element",
    loop,
  )


def test_generation_stops_when_all_rows_have_ended():
  """Seen in the steps a transform of one's own is asked for: as many as the longest row has
  tokens."""
  asked = []

  def end_third(scores_BV, step):
    jax.debug.callback(lambda index: asked.append(int(index)), step.index)
    return jnp.where(
      step.index == 2, ForcedBos(EOS)(scores_BV, DecodingStep(0, L, (EOS,))), scores_BV
    )

  got = run(greedy, encoder_decoder(), inputs(), max_length=L, transforms=(end_third,))
  jax.effects_barrier()
  assert (
    sorted(asked) == [0, 1, 2] and (got[:, 3:] == 0).all() and (got[:-1, :3] == EOS).any(1).all()
  )


def test_forced_tokens_and_the_least_length():
  m = encoder_decoder()
  batch = inputs()
  got = run(
    greedy, m, batch, max_length=L, transforms=(ForcedBos(7), ForcedEos(EOS), MinLength(4))
  )[:-1]
  assert (got[:, 0] == 7).all() and (got[:, :4] != EOS).all() and ((got == EOS).sum(1) == 1).all()


# Sampling

LOGITS = np.log(np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.04], np.float32))


def kept(*transforms):
  scores = jnp.asarray(np.stack([LOGITS, LOGITS[::-1]]))
  for transform in transforms:
    scores = transform(scores, DecodingStep(jnp.int32(0), L, (EOS,)))
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
    ((TopP(1e-300),), 1),
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
  """Chi-square of the first token of 4,000 equal rows, plain and at another temperature, with
  tokens cut off."""
  m = decoder()
  rows = 4_000
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
  m = decoder()
  batch = prompts(4)
  whole = run(draw, m, batch)
  np.testing.assert_array_equal(
    whole[:2], run(draw, m, {"decoder_input_tokens": batch["decoder_input_tokens"][:2]})
  )
  np.testing.assert_array_equal(whole, run(draw, m, prompts(4, side="left")))
  assert (whole != run(draw, m, batch, seed=4)).any()
  np.testing.assert_array_equal(
    run(draw, m, batch, transforms=(TopK(1),)), run(greedy, m, batch, max_length=L)
  )


# Layouts and refusals


@pytest.mark.parametrize(
  "make, mesh",
  more.beyond(1, [(encoder_decoder, {"data": 4, "tensor": 2}), (decoder, {"data": 8})]),
)
def test_sharded_is_single(make, mesh):
  """Data and tensor parallelism: the same tokens. Rows stay where they are: data parallelism moves
  no array."""
  rules = Rules.make(make_mesh(mesh))
  m = make()
  batch = inputs(8) if make is encoder_decoder else prompts(8)
  arrays = params.arrays(m)
  placed = jax.device_put(arrays, rules.param_shardings(params.named_params(m)))
  rows = jax.device_put(batch, rules.batch())
  stop = StopStrings([b"aa", b"bcd"], [b"", b"", b"a", b"ab", b"b", b"cd"])

  def all_ways(arrays, batch):
    m = params.with_arrays(make(), arrays)
    return (
      greedy(m, batch, max_length=L),
      sample(
        m, batch, jax.random.key(0), max_length=L, transforms=(RepetitionPenalty(1.2), TopP(0.9))
      ),
      *beam_search(m, batch, max_length=L, beams=3, transforms=(NoRepeatNgrams(2),), stop=stop),
    )

  def sharded(arrays, batch):
    with rules.activate():
      return all_ways(arrays, batch)

  program = jax.jit(sharded).lower(placed, rows).compile()
  expected = jax.jit(all_ways)(arrays, batch)
  got = program(placed, rows)
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

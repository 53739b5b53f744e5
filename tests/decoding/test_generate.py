"""Generation equals running the whole model at every step; sampling follows its formulas."""

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
from refusals import refuses
from t5x_like.decoding.beam_search import beam_search
from t5x_like.decoding.generate import greedy, sample
from t5x_like.decoding.penalties import BannedWords, NoRepeatNgrams, RepetitionPenalty
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
def test_greedy_tokens_of_an_encoder_decoder_are_the_argmax_of_the_full_model(position):
  m = encoder_decoder(position)
  batch = inputs()
  ends = (EOS, int(run(greedy, m, batch, max_length=L)[0, 3]))  # and a token that occurs
  tokens = run(greedy, m, batch, max_length=L, eos=ends)
  expected = rerun_greedily(m, batch, L, np.zeros((5, 1), np.int32), eos=ends)
  np.testing.assert_array_equal(tokens, expected)
  assert np.isin(tokens, ends).any()
  assert (tokens[-1] == 0).all()
  assert len(np.unique(tokens, axis=0)) > 1


@pytest.mark.parametrize(
  "position", more.beyond(2, [POSITIONS[0], "windowed", *POSITIONS[1:3]]), ids=str
)
def test_tokens_do_not_depend_on_the_side_of_padding_or_other_rows(position):
  m = decoder("rope", windows=(3,)) if position == "windowed" else decoder(position)
  right = prompts(side="right")
  left = prompts(side="left")
  tokens = run(greedy, m, right, max_length=L)
  prompt = right["decoder_input_tokens"]
  expected = rerun_greedily(m, {}, L, np.where(prompt == 0, -1, prompt))
  np.testing.assert_array_equal(tokens, expected)
  np.testing.assert_array_equal(tokens, run(greedy, m, left, max_length=L))
  last_row = {"decoder_input_tokens": prompt[3:, : P - 3]}
  np.testing.assert_array_equal(tokens[3:], run(greedy, m, last_row, max_length=L))
  assert len(np.unique(tokens, axis=0)) > 2


def test_attention_is_bidirectional_in_a_prefix():
  m = decoder()
  batch = prompts(side="right")
  prompt = batch["decoder_input_tokens"]
  prefix = (prompt != 0).astype(np.int32)
  prefix[2] = 0  # a causal row
  tokens = run(greedy, m, {**batch, "decoder_causal_attention": prefix}, max_length=L)
  expected = rerun_greedily(m, {}, L, np.where(prompt == 0, -1, prompt), prefix)
  np.testing.assert_array_equal(tokens, expected)
  causal = run(greedy, m, batch, max_length=L)
  assert (tokens[2] == causal[2]).all()
  assert (tokens != causal).any()


def test_generation_continues_forced_prefixes_of_unequal_length():
  m = encoder_decoder()
  batch = inputs()
  prefix = prompts(5)["decoder_input_tokens"][:, :3]
  tokens = run(greedy, m, {**batch, "decoder_prefix_tokens": prefix}, max_length=L)
  prompt = np.concatenate([np.zeros((5, 1), np.int32), np.where(prefix == 0, -1, prefix)], axis=1)
  np.testing.assert_array_equal(tokens, rerun_greedily(m, batch, L, prompt))
  assert (tokens != run(greedy, m, batch, max_length=L)).any()


@pytest.mark.parametrize("make, batch", [(encoder_decoder, inputs), (decoder, prompts)])
def test_model_prepared_for_decoding_has_cast_kernels_and_the_same_tokens(make, batch):
  m = jax.tree.map(lambda x: x, make())  # a copy, because the next lines change its fields
  m.dtype = jnp.dtype("bfloat16")
  for name in ("encoder", "decoder"):
    if hasattr(m, name):
      getattr(m, name).layers = "loop"
  prepared = prepare_for_decoding(m)

  assert prepare_for_decoding(prepared) is prepared
  np.testing.assert_array_equal(
    run(greedy, prepared, batch(), max_length=L), run(greedy, m, batch(), max_length=L)
  )
  kernels = {name: x for name, x in params.arrays(prepared).items() if name.endswith("kernel")}
  assert len(kernels) > 8
  assert {x.dtype for x in kernels.values()} == {m.dtype}
  program = jax.make_jaxpr(lambda model: greedy(model, batch(), max_length=L))(prepared)
  (loop,) = [eqn.params["body_jaxpr"] for eqn in program.eqns if eqn.primitive.name == "while"]
  assert str(loop).count("dot_general") > 8
  # No array of a kernel's shape is cast inside the loop.
  assert not re.search(r"bf16\[(16,16|16,32|32,16|12,16)\] = convert_element", str(loop))


def test_generation_stops_when_all_rows_have_ended():
  """A transform is called once for each token of the longest row."""
  called_steps = []

  def end_third(scores_BV, step):
    jax.debug.callback(lambda index: called_steps.append(int(index)), step.index)
    only_eos_BV = ForcedBos(EOS)(scores_BV, DecodingStep(0, L, (EOS,)))
    return jnp.where(step.index == 2, only_eos_BV, scores_BV)

  tokens = run(greedy, encoder_decoder(), inputs(), max_length=L, transforms=(end_third,))
  jax.effects_barrier()
  assert sorted(called_steps) == [0, 1, 2]
  assert (tokens[:, 3:] == 0).all()
  assert (tokens[:-1, :3] == EOS).any(1).all()


def test_forced_tokens_and_the_minimum_length_apply_to_all_rows():
  m = encoder_decoder()
  transforms = (ForcedBos(7), ForcedEos(EOS), MinLength(4))
  tokens = run(greedy, m, inputs(), max_length=L, transforms=transforms)[:-1]
  assert (tokens[:, 0] == 7).all()
  assert (tokens[:, :4] != EOS).all()
  assert ((tokens == EOS).sum(1) == 1).all()


# Sampling

LOGITS = np.log(np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.04], np.float32))


def count_kept(*transforms):
  """Return the number of tokens that the transforms keep, for tokens in either order."""
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
def test_filters_keep_the_expected_number_of_tokens(transforms, tokens):
  assert count_kept(*transforms) == tokens


def test_samples_have_the_frequencies_of_the_model():
  """The first tokens of 4,000 equal rows pass a chi-square test, with and without filters."""
  m = decoder()
  rows = 4_000
  prompt = prompts(1)["decoder_input_tokens"]
  batch = {"decoder_input_tokens": np.repeat(prompt, rows, axis=0)}
  scores = np.asarray(logits(m, {"decoder_input_tokens": prompt}))[0, -1].astype(np.float64)
  for transforms, temperature, kept_tokens in (((), 1.0, V), ((Temperature(2.0), TopK(6)), 2.0, 6)):
    probs = np.exp((scores - scores.max()) / temperature)
    probs[np.argsort(probs)[: V - kept_tokens]] = 0
    expected = rows * probs / probs.sum()
    counts = np.bincount(run(draw, m, batch, transforms=transforms)[:, 0], minlength=V)
    assert (counts[expected == 0] == 0).all()
    # A chi-square test needs five expected draws in every class, so rarer tokens are pooled.
    rare = expected < 5
    pooled_counts = np.append(counts[~rare], counts[rare].sum() + 1e-9)
    pooled_expected = np.append(expected[~rare], expected[rare].sum() + 1e-9)
    chi_square = ((pooled_counts - pooled_expected) ** 2 / pooled_expected).sum()
    assert chi_square < 31.3  # p = 0.001 at 11 degrees of freedom
    assert (counts > 0).sum() > 2


def test_samples_of_a_row_do_not_depend_on_other_rows():
  m = decoder()
  batch = prompts(4)
  tokens = run(draw, m, batch)
  first_rows = {"decoder_input_tokens": batch["decoder_input_tokens"][:2]}
  np.testing.assert_array_equal(tokens[:2], run(draw, m, first_rows))
  np.testing.assert_array_equal(tokens, run(draw, m, prompts(4, side="left")))
  assert (tokens != run(draw, m, batch, seed=4)).any()
  np.testing.assert_array_equal(
    run(draw, m, batch, transforms=(TopK(1),)), run(greedy, m, batch, max_length=L)
  )


# Layouts and refusals


@pytest.mark.parametrize(
  "make, mesh",
  more.beyond(1, [(encoder_decoder, {"data": 4, "tensor": 2}), (decoder, {"data": 8})]),
)
def test_sharded_generation_equals_one_device(make, mesh):
  """With only data parallelism, no array moves between devices."""
  rules = Rules.make(make_mesh(mesh))
  m = make()
  batch = inputs(8) if make is encoder_decoder else prompts(8)
  arrays = params.arrays(m)
  placed = jax.device_put(arrays, rules.param_shardings(params.named_params(m)))
  rows = jax.device_put(batch, rules.batch())
  stop = StopStrings([b"aa", b"bcd"], [b"", b"", b"a", b"ab", b"b", b"cd"])

  def generate_in_every_way(arrays, batch):
    m = params.with_arrays(make(), arrays)
    greedy_tokens = greedy(m, batch, max_length=L)
    transforms = (RepetitionPenalty(1.2), TopP(0.9))
    samples = sample(m, batch, jax.random.key(0), max_length=L, transforms=transforms)
    beams, scores = beam_search(
      m, batch, max_length=L, beams=3, transforms=(NoRepeatNgrams(2),), stop=stop
    )
    return (greedy_tokens, samples, beams), scores

  def generate_sharded(arrays, batch):
    with rules.activate():
      return generate_in_every_way(arrays, batch)

  program = jax.jit(generate_sharded).lower(placed, rows).compile()
  expected_tokens, expected_scores = jax.jit(generate_in_every_way)(arrays, batch)
  sharded_tokens, scores = program(placed, rows)
  for expected, tokens in zip(expected_tokens, sharded_tokens):
    np.testing.assert_array_equal(expected, tokens)
    assert tokens.sharding.shard_shape(tokens.shape)[0] == 8 // mesh["data"]
  np.testing.assert_allclose(expected_scores, scores, rtol=1e-4)
  if "tensor" not in mesh:
    assert not re.search("all-gather|all-to-all|collective-permute", program.as_text())


@pytest.mark.parametrize(
  "call, words",
  [
    (lambda: greedy(decoder(), prompts(), max_length=0), "max_length: found 0"),
    (lambda: greedy(decoder(), prompts(), max_length=2, eos=(V,)), f"eos: found {V}"),
    (lambda: beam_search(decoder(), prompts(), max_length=2, beams=0), "beams: found 0"),
    (lambda: BannedWords(((),)), "BannedWords: found an empty"),
  ],
)
def test_arguments_out_of_range_are_refused(call, words):
  with refuses(words):
    call()

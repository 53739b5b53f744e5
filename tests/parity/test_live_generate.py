"""Greedy and beam search write the tokens of `transformers.generate`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers.generation import logits_process

from parity import cases, reference
from t5x_like.decoding.beam_search import PowerPenalty, TransformersRule, beam_search
from t5x_like.decoding.generate import greedy
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
  Typical,
)
from t5x_like.interop import hf

pytestmark = pytest.mark.parity

NEW = 10
ROWS = 4
LENGTH = 9
GPT2 = dict(
  vocab_size=cases.VOCAB,
  n_embd=16,
  n_layer=2,
  n_head=4,
  n_positions=32,
  bos_token_id=0,
  eos_token_id=0,
)
LLAMA = dict(
  vocab_size=cases.VOCAB,
  hidden_size=16,
  intermediate_size=32,
  num_hidden_layers=2,
  num_attention_heads=4,
  num_key_value_heads=2,
  max_position_embeddings=32,
)
FAMILIES = {
  "t5-v1_1": cases.CASES["t5-v1_1"],
  "bart": cases.CASES["bart"],
  "gpt2": cases.Case("GPT2LMHeadModel", "GPT2Config", GPT2, "decoder"),
  "llama": cases.Case("LlamaForCausalLM", "LlamaConfig", LLAMA, "decoder", untied=True),
}
SEARCHES = [
  dict(num_beams=1),
  dict(num_beams=2, length_penalty=1.0, early_stopping=False),
  dict(num_beams=4, length_penalty=0.0, early_stopping="never"),
  dict(num_beams=3, length_penalty=2.0, early_stopping="never"),
  dict(num_beams=3, length_penalty=-1.0, early_stopping=True),
  dict(num_beams=4, length_penalty=0.6, early_stopping=True),
  dict(num_beams=4, length_penalty=0.6, early_stopping=False),
]


@functools.cache
def make_model_pair(name, directory):
  """Return (model of `transformers`, our model) with the same random parameters."""
  case = FAMILIES[name]
  hf_model = reference.make(case, directory)
  hf_model.generation_config.forced_eos_token_id = None  # BART's; its own test sets it
  return hf_model, hf.load(str(directory))


@pytest.fixture(scope="module", params=FAMILIES)
def models_and_inputs(request, tmp_path_factory):
  """Return (model of `transformers`, our model, inputs of its generate, our batch).

  Prompts have unequal lengths; those of decoders are padded on the left.
  """
  name = request.param
  hf_model, model = make_model_pair(name, tmp_path_factory.mktemp(name))
  pad = reference.ids(hf_model)[0]
  generator = np.random.default_rng(1)
  tokens = np.full((ROWS, LENGTH), pad, np.int32)
  mask = np.zeros((ROWS, LENGTH), np.int32)
  decoder = FAMILIES[name].kind == "decoder"
  for row in range(ROWS):
    n = LENGTH - 2 * row
    positions = slice(LENGTH - n, LENGTH) if decoder else slice(0, n)
    tokens[row, positions] = generator.integers(3, cases.VOCAB, n)
    mask[row, positions] = 1
  inputs = {
    "input_ids": torch.tensor(tokens, dtype=torch.long),
    "attention_mask": torch.tensor(mask, dtype=torch.long),
  }
  if decoder:
    return hf_model, model, inputs, {"decoder_input_tokens": tokens, "decoder_segment_ids": mask}
  return hf_model, model, inputs, {"encoder_input_tokens": tokens}


def compare(models_and_inputs, eos, options, transforms=(), **hf_options):
  """Generate with both models, compare tokens and scores, return the tokens [B, beams, NEW]."""
  hf_model, model, inputs, batch = models_and_inputs
  K = options["num_beams"]
  fill = 0 if model.variant.tokens.pad is None else model.variant.tokens.pad
  out = hf_model.generate(
    **inputs,
    **options,
    **hf_options,
    max_new_tokens=NEW,
    num_return_sequences=K,
    do_sample=False,
    pad_token_id=fill,
    eos_token_id=list(eos),
    return_dict_in_generate=True,
    output_scores=True,
  )
  prompt = inputs["input_ids"].shape[1] if "decoder_input_tokens" in batch else 1
  sequences = out.sequences[:, prompt:].numpy()
  padding = ((0, 0), (0, NEW - sequences.shape[1]))
  expected = np.pad(sequences, padding, constant_values=fill).reshape(ROWS, K, NEW)
  is_eos = np.isin(expected, eos)
  after_eos = np.cumsum(is_eos, axis=-1) - is_eos > 0
  expected[after_eos] = fill  # the library fills with EOS where padding is 0
  common = dict(max_length=NEW, transforms=transforms, eos=eos)
  if K == 1:
    tokens = jax.jit(functools.partial(greedy, **common))(model, batch)[:, None]
  else:
    penalty = PowerPenalty(options["length_penalty"])
    rule = TransformersRule(options["early_stopping"])
    search = functools.partial(beam_search, **common, beams=K, length_penalty=penalty, rule=rule)
    tokens, scores = jax.jit(search)(model, batch)
    np.testing.assert_allclose(
      scores.reshape(-1), out.sequences_scores.numpy(), rtol=1e-4, atol=1e-4
    )
  np.testing.assert_array_equal(tokens, expected)
  return expected


@pytest.mark.parametrize("options", SEARCHES, ids=lambda o: "-".join(map(str, o.values())))
def test_tokens_are_those_of_transformers(models_and_inputs, options):
  """EOS is an id that is hardly ever generated, then ids that end some rows early."""
  tokens = compare(models_and_inputs, (2,), options)
  frequent_ids = [int(id) for id in tokens[:, 0, 2] if id > 2][:2] or [5]
  shorter = compare(models_and_inputs, tuple(frequent_ids), options)
  assert np.isin(shorter, frequent_ids).any()


@pytest.mark.parametrize("options", [SEARCHES[0], SEARCHES[1]], ids=["greedy", "beams"])
def test_forced_tokens_and_a_minimum_length_are_those_of_transformers(models_and_inputs, options):
  transforms = (ForcedEos(5), MinLength(4))
  compare(models_and_inputs, (5,), options, transforms, forced_eos_token_id=5, min_new_tokens=4)
  *_, batch = models_and_inputs
  if "encoder_input_tokens" in batch:
    tokens = compare(models_and_inputs, (5,), options, (ForcedBos(9),), forced_bos_token_id=9)
    assert (tokens[:, :, 0] == 9).all()


@pytest.mark.parametrize(
  "options", [SEARCHES[0], SEARCHES[1], SEARCHES[5]], ids=["greedy", "beams", "early"]
)
def test_penalties_of_repetitions_and_banned_words_are_those_of_transformers(
  models_and_inputs, options
):
  """A decoder's history is the prompt and the new tokens; a T5's or BART's begins at its start."""
  eos = (2,)
  pad = reference.ids(models_and_inputs[0])[0]
  unconstrained = compare(models_and_inputs, eos, options)[:, 0]
  words = [[pad]]  # always banned, because the library never generates it either
  for word in (unconstrained[0, :1].tolist(), unconstrained[1, :2].tolist(), [2]):
    if word not in words:
      words.append(word)
  no_padding = BannedWords(((pad,),))
  repetition = RepetitionPenalty(1.4)
  no_bigrams = NoRepeatNgrams(2)
  banned = BannedWords(tuple(map(tuple, words)))

  def check(*transforms, bad_words_ids, **hf_options):
    hf_options["bad_words_ids"] = bad_words_ids
    return compare(models_and_inputs, eos, options, transforms, **hf_options)

  check(repetition, no_padding, bad_words_ids=[[pad]], repetition_penalty=1.4)
  check(no_bigrams, no_padding, bad_words_ids=[[pad]], no_repeat_ngram_size=2)
  check(banned, bad_words_ids=words)
  tokens = check(
    repetition,
    no_bigrams,
    banned,
    bad_words_ids=words,
    repetition_penalty=1.4,
    no_repeat_ngram_size=2,
  )
  assert (tokens[:, 0] != unconstrained).any()


PROCESSORS = [
  (RepetitionPenalty(1.3), logits_process.RepetitionPenaltyLogitsProcessor(1.3)),
  (RepetitionPenalty(0.7), logits_process.RepetitionPenaltyLogitsProcessor(0.7)),
  *((NoRepeatNgrams(n), logits_process.NoRepeatNGramLogitsProcessor(n)) for n in (1, 2, 3)),
  (
    BannedWords(((3,), (2,), (1, 4), (5, 5, 0))),
    logits_process.NoBadWordsLogitsProcessor([[3], [2], [1, 4], [5, 5, 0]], eos_token_id=2),
  ),
  *((MinP(p), logits_process.MinPLogitsWarper(p)) for p in (0.05, 0.5)),
  *((Typical(mass), logits_process.TypicalLogitsWarper(mass)) for mass in (0.1, 0.5, 0.95)),
  *((TopP(p), logits_process.TopPLogitsWarper(p)) for p in (0.3, 0.9)),
  (TopK(3), logits_process.TopKLogitsWarper(3)),
  (Temperature(0.6), logits_process.TemperatureLogitsWarper(0.6)),
  *(
    (MinLength(n), logits_process.MinNewTokensLengthLogitsProcessor(4, n, 2, device="cpu"))
    for n in (6, 7)
  ),
]


@pytest.mark.parametrize("transform, processor", PROCESSORS, ids=lambda case: type(case).__name__)
def test_a_transform_changes_logits_as_the_librarys_processor_does(transform, processor):
  generator = np.random.default_rng(2)
  tokens = generator.integers(0, 7, (50, 10)).astype(np.int32)  # 4 of the prompt, 6 new
  scores = (3 * generator.normal(size=(50, 9))).astype(np.float32)
  step = DecodingStep(
    jnp.int32(6),
    8,
    (2,),
    jnp.asarray(tokens[:, :4]),
    jnp.asarray(np.pad(tokens[:, 4:], ((0, 0), (0, 2)))),
  )
  expected = processor(torch.tensor(tokens, dtype=torch.long), torch.tensor(scores)).numpy()
  np.testing.assert_allclose(transform(jnp.asarray(scores), step), expected, rtol=1e-6)

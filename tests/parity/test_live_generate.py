"""Greedy and beam search against `transformers.generate`, token for token (`make parity`)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from transformers.generation import logits_process, stopping_criteria

import published
from parity import cases, reference
from t5x_like import vocabularies
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
from t5x_like.decoding.stops import StopStrings
from t5x_like.inference.stops import token_bytes
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
def pair(name, directory):
  case = FAMILIES[name]
  theirs = reference.make(case, directory)
  theirs.generation_config.forced_eos_token_id = None  # BART's; it is asked for where it is tested
  return theirs, hf.load(str(directory))


@pytest.fixture(scope="module", params=FAMILIES)
def both(request, tmp_path_factory):
  """(their model, ours, the inputs of generate, our batch): prompts of unequal length, padded left
  for decoders."""
  name = request.param
  if name not in hf.model_types() and name != "t5-v1_1":
    pytest.skip(f"{name} is not read from Hugging Face directories")
  theirs, ours = pair(name, tmp_path_factory.mktemp(name))
  pad = reference.ids(theirs)[0]
  generator = np.random.default_rng(1)
  tokens = np.full((ROWS, LENGTH), pad, np.int32)
  mask = np.zeros((ROWS, LENGTH), np.int32)
  decoder = FAMILIES[name].kind == "decoder"
  for row in range(ROWS):
    n = LENGTH - 2 * row
    at = slice(LENGTH - n, LENGTH) if decoder else slice(0, n)
    tokens[row, at], mask[row, at] = generator.integers(3, cases.VOCAB, n), 1
  inputs = {
    "input_ids": torch.tensor(tokens, dtype=torch.long),
    "attention_mask": torch.tensor(mask, dtype=torch.long),
  }
  if decoder:
    return theirs, ours, inputs, {"decoder_input_tokens": tokens, "decoder_segment_ids": mask}
  return theirs, ours, inputs, {"encoder_input_tokens": tokens}


def compare(both, eos, options, transforms=(), **forced):
  """Both generate; tokens must be equal and scores close. Returns the tokens, [B, beams, NEW]."""
  theirs, ours, inputs, batch = both
  K = options["num_beams"]
  fill = 0 if ours.variant.tokens.pad is None else ours.variant.tokens.pad
  out = theirs.generate(
    **inputs,
    **options,
    **forced,
    max_new_tokens=NEW,
    num_return_sequences=K,
    do_sample=False,
    pad_token_id=fill,
    eos_token_id=list(eos),
    return_dict_in_generate=True,
    output_scores=True,
  )
  prompt = inputs["input_ids"].shape[1] if "decoder_input_tokens" in batch else 1
  expected = out.sequences[:, prompt:].numpy()
  expected = np.pad(expected, ((0, 0), (0, NEW - expected.shape[1])), constant_values=fill).reshape(
    ROWS, K, NEW
  )
  after = np.cumsum(np.isin(expected, eos), axis=-1) - np.isin(expected, eos) > 0
  expected[after] = fill  # theirs fills with the end of sequence where padding is 0
  common = dict(max_length=NEW, transforms=transforms, eos=eos)
  if K == 1:
    got = jax.jit(functools.partial(greedy, **common))(ours, batch)[:, None]
  else:
    penalty = PowerPenalty(options["length_penalty"])
    rule = TransformersRule(options["early_stopping"])
    search = functools.partial(beam_search, **common, beams=K, length_penalty=penalty, rule=rule)
    got, scores = jax.jit(search)(ours, batch)
    np.testing.assert_allclose(
      scores.reshape(-1), out.sequences_scores.numpy(), rtol=1e-4, atol=1e-4
    )
  np.testing.assert_array_equal(got, expected)
  return expected


@pytest.mark.parametrize("options", SEARCHES, ids=lambda o: "-".join(map(str, o.values())))
def test_tokens_are_those_of_transformers(both, options):
  """With ids that end rows early, and with one that hardly comes."""
  free = compare(both, (2,), options)
  # ids that do come, in the third place of some row
  often = [int(id) for id in free[:, 0, 2] if id > 2][:2] or [5]
  ended = compare(both, tuple(often), options)
  assert np.isin(ended, often).any()


@pytest.mark.parametrize("options", [SEARCHES[0], SEARCHES[1]], ids=["greedy", "beams"])
def test_forced_tokens_and_the_least_length(both, options):
  transforms = (ForcedEos(5), MinLength(4))
  compare(both, (5,), options, transforms, forced_eos_token_id=5, min_new_tokens=4)
  if "encoder_input_tokens" in both[3]:
    got = compare(both, (5,), options, (ForcedBos(9),), forced_bos_token_id=9)
    assert (got[:, :, 0] == 9).all()


@pytest.mark.parametrize(
  "options", [SEARCHES[0], SEARCHES[1], SEARCHES[5]], ids=["greedy", "beams", "early"]
)
def test_penalties_of_repetitions_and_banned_words(both, options):
  """The history is the prompt and the new tokens, of a T5 and a BART the start token and the new
  tokens."""
  pad = reference.ids(both[0])[0]
  free = compare(both, (2,), options)[:, 0]
  words = [[pad], free[0, :1].tolist(), free[1, :2].tolist(), [2]]
  words = [word for n, word in enumerate(words) if word not in words[:n]]
  transforms = RepetitionPenalty(1.4), NoRepeatNgrams(2), BannedWords(tuple(map(tuple, words)))
  theirs = dict(repetition_penalty=1.4, no_repeat_ngram_size=2, bad_words_ids=words)
  for number, (name, value) in enumerate(theirs.items()):
    compare(
      both,
      (2,),
      options,
      (*transforms[number : number + 1], BannedWords(((pad,),))),
      **{
        "bad_words_ids": [[pad]],
        name: [*value, [pad]] if name == "bad_words_ids" and [pad] not in value else value,
      },
    )
  got = compare(both, (2,), options, transforms, **theirs)
  assert (got[:, 0] != free).any()


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


@pytest.mark.parametrize("ours, theirs", PROCESSORS, ids=lambda one: type(one).__name__)
def test_a_transform_is_a_processor(ours, theirs):
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
  expected = theirs(torch.tensor(tokens, dtype=torch.long), torch.tensor(scores)).numpy()
  np.testing.assert_allclose(ours(jnp.asarray(scores), step), expected, rtol=1e-6)


def test_strings_end_rows_where_the_criterion_of_transformers_does(tmp_path):
  """Without a prompt, which belongs to their text and not to ours."""
  tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=published.byte_level(["<|endoftext|>"]), eos_token="<|endoftext|>"
  )
  tokenizer.save_pretrained(tmp_path)
  texts = token_bytes(vocabularies.load(str(tmp_path)))
  strings = ["he", " t", "\n\n", "é", "the quick"]
  generator = np.random.default_rng(3)
  near = [i for i, text in enumerate(texts) if text and text in "the quick\n\n é h".encode()]
  whole = tokenizer("the quick fox: so é", add_special_tokens=False)["input_ids"]
  tokens = generator.choice(near, (200, 9)).astype(np.int32)
  tokens[0, : len(whole[:9])] = whole[:9]
  for some in (strings[:1], strings[2:4], strings):
    criterion = stopping_criteria.StopStringCriteria(tokenizer, some)
    stop = jax.jit(StopStrings([*map(str.encode, some)], texts))
    found = [
      criterion(torch.tensor(tokens[:, : n + 1], dtype=torch.long), None).numpy() for n in range(9)
    ]
    ours = [np.asarray(stop(tokens, jnp.int32(n))) for n in range(9)]
    first = [np.argmax(np.vstack([one, np.ones((1, 200), bool)]), axis=0) for one in (found, ours)]
    np.testing.assert_array_equal(*first)
    assert (first[0] < 9).any()

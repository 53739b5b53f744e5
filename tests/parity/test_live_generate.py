"""Greedy and beam search against `transformers.generate`, token for token (`make parity`)."""

import functools

import jax
import numpy as np
import pytest
import torch

from parity import cases, reference
from t5x_like.decoding.beam_search import PowerPenalty, Transformers, beam_search
from t5x_like.decoding.generate import greedy
from t5x_like.decoding.sampling import ForcedBos, ForcedEos, MinLength
from t5x_like.interop import hf

pytestmark = pytest.mark.parity

NEW, ROWS, LENGTH = 10, 4, 9
GPT2 = dict(vocab_size=cases.VOCAB, n_embd=16, n_layer=2, n_head=4, n_positions=32, bos_token_id=0, eos_token_id=0)
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
  """(their model, ours, the inputs of generate, our batch): prompts of unequal length, padded left for decoders."""
  name = request.param
  if name not in hf.model_types() and name != "t5-v1_1":
    pytest.skip(f"{name} is not read from Hugging Face directories")
  theirs, ours = pair(name, tmp_path_factory.mktemp(name))
  pad = reference.ids(theirs)[0]
  generator = np.random.default_rng(1)
  tokens, mask = np.full((ROWS, LENGTH), pad, np.int32), np.zeros((ROWS, LENGTH), np.int32)
  decoder = FAMILIES[name].kind == "decoder"
  for row in range(ROWS):
    n = LENGTH - 2 * row
    at = slice(LENGTH - n, LENGTH) if decoder else slice(0, n)
    tokens[row, at], mask[row, at] = generator.integers(3, cases.VOCAB, n), 1
  inputs = {"input_ids": torch.tensor(tokens, dtype=torch.long), "attention_mask": torch.tensor(mask, dtype=torch.long)}
  if decoder:
    return theirs, ours, inputs, {"decoder_input_tokens": tokens, "decoder_segment_ids": mask}
  return theirs, ours, inputs, {"encoder_input_tokens": tokens}


def compare(both, eos, options, transforms=(), **forced):
  """Both generate; tokens must be equal and scores close. Returns the tokens, [B, beams, NEW]."""
  theirs, ours, inputs, batch = both
  K, fill = options["num_beams"], 0 if ours.variant.tokens.pad is None else ours.variant.tokens.pad
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
  expected = np.pad(expected, ((0, 0), (0, NEW - expected.shape[1])), constant_values=fill).reshape(ROWS, K, NEW)
  after = np.cumsum(np.isin(expected, eos), axis=-1) - np.isin(expected, eos) > 0
  expected[after] = fill  # theirs fills with the end of sequence where padding is 0
  common = dict(max_length=NEW, transforms=transforms, eos=eos)
  if K == 1:
    got = jax.jit(functools.partial(greedy, **common))(ours, batch)[:, None]
  else:
    penalty, rule = PowerPenalty(options["length_penalty"]), Transformers(options["early_stopping"])
    search = functools.partial(beam_search, **common, beams=K, length_penalty=penalty, rule=rule)
    got, scores = jax.jit(search)(ours, batch)
    np.testing.assert_allclose(scores.reshape(-1), out.sequences_scores.numpy(), rtol=1e-4, atol=1e-4)
  np.testing.assert_array_equal(got, expected)
  return expected


@pytest.mark.parametrize("options", SEARCHES, ids=lambda o: "-".join(map(str, o.values())))
def test_tokens_are_those_of_transformers(both, options):
  """With ids that end rows early, and with one that hardly comes."""
  free = compare(both, (2,), options)
  often = [int(id) for id in free[:, 0, 2] if id > 2][:2] or [5]  # ids that do come, in the third place of some row
  ended = compare(both, tuple(often), options)
  assert np.isin(ended, often).any()


@pytest.mark.parametrize("options", [SEARCHES[0], SEARCHES[1]], ids=["greedy", "beams"])
def test_forced_tokens_and_the_least_length(both, options):
  transforms = (ForcedEos(5), MinLength(4))
  compare(both, (5,), options, transforms, forced_eos_token_id=5, min_new_tokens=4)
  if "encoder_input_tokens" in both[3]:
    got = compare(both, (5,), options, (ForcedBos(9),), forced_bos_token_id=9)
    assert (got[:, :, 0] == 9).all()

"""`generate` of a Hugging Face directory writes the texts of `transformers`."""

import json

import pytest
import torch
import transformers
from tokenizers import processors

import published
import t5x_like as t5x
from parity import cases, reference

pytestmark = pytest.mark.parity

TABLE = 384
TEXTS = ["the quick brown", "fox", "seven wizards box with jugs of liquid quartz"]
NEW = 7
GPT2 = dict(
  vocab_size=TABLE, n_embd=16, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0
)
LLAMA = cases.decoders.LLAMA | dict(
  vocab_size=TABLE, bos_token_id=0, eos_token_id=1, pad_token_id=None
)
BART = cases.BART | dict(vocab_size=TABLE, max_position_embeddings=64, forced_eos_token_id=None)
REPEATS = dict(repetition_penalty=1.3, no_repeat_ngram_size=2, suppress_tokens=[11, 12])
MASKED = ["<s>", "<pad>", "</s>", "<unk>"]
# Model, special pieces, tokens that its tokenizer adds to a text, settings of generation.
FAMILIES = {
  "gpt2": (
    cases.Case("GPT2LMHeadModel", "GPT2Config", GPT2, "decoder"),
    ["<|endoftext|>"],
    "$A",
    REPEATS,
  ),
  "llama": (
    cases.Case("LlamaForCausalLM", "LlamaConfig", LLAMA, "decoder"),
    ["<s>", "</s>"],
    "<s> $A",
    {},
  ),
  "t5": (
    cases.Case(
      "T5ForConditionalGeneration", "T5Config", cases.T5 | dict(vocab_size=TABLE), "encoder_decoder"
    ),
    ["<pad>", "</s>", "<unk>"],
    "$A </s>",
    dict(num_beams=3, length_penalty=2.0, early_stopping=True, max_length=9),
  ),
  "bart": (
    cases.Case("BartForConditionalGeneration", "BartConfig", BART, "encoder_decoder"),
    MASKED,
    "<s> $A </s>",
    dict(
      forced_bos_token_id=0,
      forced_eos_token_id=2,
      min_length=6,
      no_repeat_ngram_size=2,
      bad_words_ids=[[7], [8, 9]],
    ),
  ),
  "mbart": (
    cases.Case(
      "MBartForConditionalGeneration",
      "MBartConfig",
      BART | dict(decoder_start_token_id=2),
      "encoder_decoder",
    ),
    [*MASKED, "<de>"],
    "<de> $A </s>",
    dict(forced_bos_token_id=4, num_beams=2, repetition_penalty=1.2),
  ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_texts_are_those_of_transformers(name, tmp_path):
  """The tokenizer's template and the directory's generation settings are followed."""
  case, special, template, settings = FAMILIES[name]
  hf_model = reference.make(case, tmp_path)
  tokenizer = published.byte_level(special)
  ids = [(piece, tokenizer.token_to_id(piece)) for piece in special]
  tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=ids)
  special_tokens = {"eos_token": "</s>" if "</s>" in special else special[0]}
  if "<s>" in special:
    special_tokens["bos_token"] = "<s>"
  if "<pad>" in special:
    special_tokens["pad_token"] = "<pad>"
  tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, additional_special_tokens=special[4:], **special_tokens
  )
  tokenizer.save_pretrained(tmp_path)

  def generate(text):
    encoding = tokenizer(text, return_tensors="pt")
    inputs = {name: encoding[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
      out = hf_model.generate(**inputs, max_new_tokens=NEW, do_sample=False)[0]
    if case.kind == "encoder_decoder":
      return out
    return out[inputs["input_ids"].shape[1] :]

  hf_model.generation_config = transformers.GenerationConfig(
    eos_token_id=tokenizer.eos_token_id,
    pad_token_id=tokenizer.pad_token_id or 0,
    decoder_start_token_id=hf_model.generation_config.decoder_start_token_id,
    **settings,
  )
  frequent_id = int(generate(TEXTS[0])[3])
  hf_model.generation_config.eos_token_id = [tokenizer.eos_token_id, frequent_id]
  hf_model.generation_config.save_pretrained(tmp_path)
  assert (
    frequent_id in json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"]
  )
  answers = t5x.load(str(tmp_path)).generate(TEXTS, max_new_tokens=NEW)
  hidden_ids = {frequent_id, *tokenizer.all_special_ids}
  for text, answer in zip(TEXTS, answers, strict=True):
    expected_ids = [i for i in generate(text).tolist() if i not in hidden_ids]
    assert answer == tokenizer.decode(expected_ids)


@pytest.mark.parametrize("beams", [1, 3])
def test_strings_end_texts_where_they_do_in_transformers(beams, tmp_path):
  """The library's texts include the string, and ours do not."""
  case, special, *_ = FAMILIES["gpt2"]
  hf_model = reference.make(case, tmp_path)
  tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=published.byte_level(special), eos_token=special[0], pad_token=special[0]
  )
  tokenizer.save_pretrained(tmp_path)
  model = t5x.load(str(tmp_path))
  search = {} if beams == 1 else {"beams": beams, "length_power": 1.0}
  for text in TEXTS:
    (full_answer,) = model.generate([text], max_new_tokens=NEW, **search)
    stop = full_answer[2:5]
    inputs = tokenizer(text, return_tensors="pt")
    options = dict(
      num_beams=beams, early_stopping="never", do_sample=False, max_new_tokens=NEW, pad_token_id=0
    )
    with torch.no_grad():
      out = hf_model.generate(**inputs, **options, stop_strings=[stop], tokenizer=tokenizer)[0]
    expected = tokenizer.decode(out[inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    answer = model.generate(text, max_new_tokens=NEW, stop=stop, **search)
    assert answer == expected.partition(stop)[0]

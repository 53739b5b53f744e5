"""An exported tokenizer puts around a text what stands around it in training."""

import json

import jinja2.sandbox
import pytest
from tokenizers import Tokenizer

import published
from t5x_like import vocabularies
from t5x_like.data.supervised.chat import Chat, Message
from t5x_like.interop import enclosing
from t5x_like.vocabularies.kinds.sentencepiece import SentencePieceVocabulary
from tools import train_tokenizer

LENGTH = [16]
DECODER = {"decoder_input_tokens": LENGTH, "decoder_target_tokens": LENGTH}
MODELS = {  # features, ids before and after a text in a vocabulary with [CLS] and [SEP], and in one without
  "encoder": ({"encoder_input_tokens": LENGTH}, ([3], [4]), ([183], [182])),
  "captions": ({"text_input_tokens": LENGTH}, ([], [1]), ([], [1])),
  "encoder-decoder": ({"encoder_input_tokens": LENGTH} | DECODER, ([], [1]), ([], [1])),
  "decoder": (DECODER, ([1], []), ([1], [])),
}


@pytest.fixture(scope="module", params=["pieces", "unigram"])
def vocabulary(request):
  if request.param == "unigram":
    return SentencePieceVocabulary(published.t5())
  lines = [line.encode() for line in published.LINES]
  return train_tokenizer.train(lines, size=300, kind="bytelevel_bpe", with_mask=True)


@pytest.mark.parametrize("kind", MODELS)
def test_a_tokenizer_made_here_encloses_texts(kind, vocabulary, tmp_path):
  features, *around = MODELS[kind]
  before, after = around[isinstance(vocabulary, SentencePieceVocabulary)]
  for name, data in enclosing.files(vocabulary, features).items():
    (tmp_path / name).write_bytes(data)
  a, b = (vocabulary.encode(text) for text in ("the quick", "fox"))
  again = vocabularies.load(str(tmp_path))
  assert again.around() == (before, after) and again.encode("the quick") == a
  assert enclosing.files(again, features) == again.exported()
  if (tmp_path / "tokenizer.json").exists():
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode("the quick").ids == [*before, *a, *after]
    assert tokenizer.encode("the quick", "fox").ids == [*before, *a, *after, *b, *after]
    ids = [again.pad_id, again.eos_id, again.unk_id, *again.sentinels]
    assert ids == [0, 1, 2, *vocabulary.sentinels] and again.size == vocabulary.size


def test_a_conversation_ends_and_is_written_as_in_training(tmp_path):
  pieces = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
  published.byte_level(pieces).save(str(tmp_path / "tokenizer.json"))
  (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>"}')
  (tmp_path / "generation_config.json").write_text('{"eos_token_id": 0, "temperature": 0.6}')
  vocabulary = vocabularies.load(str(tmp_path))
  found = enclosing.conversation(vocabulary, "chatml")
  assert json.loads(found["generation_config.json"]) == {"eos_token_id": [0, 2], "temperature": 0.6}
  environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
  messages = [Message("system", "Be brief."), Message("user", " the quick fox?")]
  template = environment.from_string(found["chat_template.jinja"].decode())
  text = template.render(messages=[one._asdict() for one in messages], add_generation_prompt=True)
  assert vocabulary.encode(text) == [0, *Chat("chatml", vocabulary).prompt(messages)]
  assert list(enclosing.conversation(vocabulary, "plain")) == []

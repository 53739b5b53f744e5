"""An exported tokenizer puts around a text what stands around it in training."""

import json

import jinja2.sandbox
import pytest
from tokenizers import Tokenizer

import hostile_texts
import published
from t5x_like import vocabularies
from t5x_like.data.supervised.chat import EOS, TEMPLATES, Chat, Message
from t5x_like.errors import UserError
from t5x_like.interop import tokenizer_export
from t5x_like.vocabularies.kinds.sentencepiece import SentencePieceVocabulary
from tools import train_tokenizer

LENGTH = [16]
DECODER = {"decoder_input_tokens": LENGTH, "decoder_target_tokens": LENGTH}
# features, ids before and after a text in a vocabulary with [CLS] and [SEP], and in one without
MODELS = {
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
  for name, data in tokenizer_export.tokenizer_files(vocabulary, features).items():
    (tmp_path / name).write_bytes(data)
  a, b = (vocabulary.encode(text) for text in ("the quick", "fox"))
  again = vocabularies.load(str(tmp_path))
  assert again.enclosing_ids() == (before, after) and again.encode("the quick") == a
  assert tokenizer_export.tokenizer_files(again, features) == again.export_files()
  if (tmp_path / "tokenizer.json").exists():
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode("the quick").ids == [*before, *a, *after]
    assert tokenizer.encode("the quick", "fox").ids == [*before, *a, *after, *b, *after]
    ids = [again.pad_id, again.eos_id, again.unk_id, *again.sentinels]
    assert ids == [0, 1, 2, *vocabulary.sentinels] and again.size == vocabulary.size


@pytest.mark.parametrize("kind", hostile_texts.KINDS)
def test_an_exported_tokenizer_gives_the_ids_of_training(kind, tmp_path):
  """Texts of twenty scripts, in the tokenizers library and read here again; `make parity` has more
  of them."""
  vocabulary = hostile_texts.vocabulary(kind)
  files = tokenizer_export.tokenizer_files(vocabulary, DECODER)
  for name, data in files.items():
    (tmp_path / name).write_bytes(data)
  again = vocabularies.load(str(tmp_path))
  tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode())
  for text in hostile_texts.texts(150):
    ids = list(vocabulary.encode(text))
    assert tokenizer.encode(text, add_special_tokens=False).ids == ids, repr(text)
    assert again.encode(text) == ids, repr(text)
  assert again.size == vocabulary.size
  assert again.pad_id == 0
  assert again.eos_id == 1
  assert again.unk_id == 2
  assert again.sentinels == vocabulary.sentinels
  assert again.enclosing_ids() == ([1], [])


@pytest.mark.parametrize("name", ["nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity"])
def test_models_with_other_normalisers_give_the_ids_of_training(name):
  lines = [*hostile_texts.SCRIPTS.values()] * 3
  ids = dict(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
  model = published.sentence_piece(
    lines, vocab_size=272, hard_vocab_limit=False, normalization_rule_name=name, **ids
  )
  vocabulary = SentencePieceVocabulary(model)
  files = tokenizer_export.tokenizer_files(vocabulary, DECODER)
  tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode())
  for text in hostile_texts.texts(300):
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert ids == vocabulary.encode(text), repr(text)


def test_bytes_of_rare_letters_are_exported():
  vocabulary = hostile_texts.vocabulary("english_bytes")
  (ids,) = vocabulary.encode_batch(["Å"])
  tokenizer = Tokenizer.from_str(
    tokenizer_export.tokenizer_files(vocabulary, DECODER)["tokenizer.json"].decode()
  )
  assert vocabulary.unk_id not in ids
  assert tokenizer.encode("Å", add_special_tokens=False).ids == ids.tolist()
  assert tokenizer.decode(ids.tolist()) == "Å"


def test_a_model_of_words_has_no_form_and_is_refused():
  ids = dict(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
  model = published.sentence_piece(model_type="word", vocab_size=25, **ids)
  with pytest.raises(
    UserError, match="words or characters as pieces, which has no equal tokenizer.json"
  ):
    tokenizer_export.tokenizer_files(SentencePieceVocabulary(model), DECODER)


def chat_vocabulary(folder, template):
  """Return a vocabulary with the pieces of a template."""
  pieces = ["<|endoftext|>", *(piece for piece in TEMPLATES[template].pieces if piece != EOS)]
  published.byte_level(pieces).save(str(folder / "tokenizer.json"))
  (folder / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>"}')
  (folder / "generation_config.json").write_text('{"eos_token_id": 0, "temperature": 0.6}')
  return vocabularies.load(str(folder))


@pytest.mark.parametrize("template", ["chatml", "llama3", "gemma", "deepseek"])
def test_a_conversation_is_written_as_in_training(template, tmp_path):
  """`transformers` renders templates in such an environment."""
  vocabulary = chat_vocabulary(tmp_path, template)
  files = tokenizer_export.chat_files(vocabulary, template)
  environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
  jinja_template = environment.from_string(files["chat_template.jinja"].decode())
  texts = [("user", " the quick fox? "), ("assistant", "jumps."), ("user", "over")]
  messages = [Message(*text) for text in texts]
  conversation = [message._asdict() for message in messages]
  text = jinja_template.render(messages=conversation, add_generation_prompt=True)
  assert vocabulary.encode(text) == [0, *Chat(template, vocabulary).prompt(messages)]


def test_a_conversation_ends_at_the_end_of_a_turn(tmp_path):
  vocabulary = chat_vocabulary(tmp_path, "chatml")
  files = tokenizer_export.chat_files(vocabulary, "chatml")
  assert json.loads(files["generation_config.json"]) == {"eos_token_id": [0, 2], "temperature": 0.6}
  assert not tokenizer_export.chat_files(vocabulary, "plain")

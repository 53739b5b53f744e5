"""Ids of published tokenizers against `transformers`, on hostile text, from every form of their
files."""

import json
import random

import pytest
import transformers
from transformers import AddedToken, AutoTokenizer

import hostile_texts
import published
from t5x_like import vocabularies
from t5x_like.data.supervised.chat import EOS, TEMPLATES, Chat, Message
from t5x_like.interop import tokenizer_export
from t5x_like.vocabularies.kinds._tokenizer_files import NAMES
from t5x_like.vocabularies.kinds.sentencepiece import SentencePieceVocabulary

pytestmark = pytest.mark.parity
CLASSES = {
  "gpt2": "GPT2Tokenizer",
  "roberta": "RobertaTokenizer",
  "bart": "BartTokenizer",
  "llama": "LlamaTokenizer",
  "gemma2": "GemmaTokenizer",
  "t5": "T5Tokenizer",
  "bert": "BertTokenizer",
}
LETTERS = [*"ab the fox\n\t  .,'\u2581<>/s[]|", "\u0301", "\u200d", "世", "é", "\U0001f44d", "\0"]
LETTERS += [
  "</s>",
  "<s>",
  "<mask>",
  "<|endoftext|>",
  "<extra_id_1>",
  "<pad>",
  "[MASK]",
  "<unused1>",
]


def texts() -> list[str]:
  draw = random.Random(0)
  mixed = ["".join(draw.choices(LETTERS, k=draw.randrange(1, 40))) for _ in range(300)]
  return [*published.HOSTILE, *published.LINES[:20], *mixed]


def check(path) -> None:
  theirs = AutoTokenizer.from_pretrained(str(path))
  ours = vocabularies.load(str(path))
  for text in texts():
    assert ours.encode(text) == theirs(text, add_special_tokens=False).input_ids, repr(text)
  for name in NAMES:
    i = getattr(theirs, f"{name}_token_id")
    if i is not None and name not in ("eos", "unk"):  # these have stand-ins where there are none
      assert getattr(ours, f"{name}_id") == i


def saved(path, kind: str, **options):
  """The directory that the library's own class saves, made from our pieces and merges."""
  model = json.loads(vocabularies.load(str(published.write(path / "files", kind))).model)["model"]
  vocab = [tuple(pair) for pair in model["vocab"]] if kind == "t5" else model["vocab"]
  merges = {"merges": [tuple(pair) for pair in model["merges"]]} if "merges" in model else {}
  tokenizer = getattr(transformers, CLASSES[kind])(vocab=vocab, **merges, **options)
  tokenizer.save_pretrained(str(path / "saved"))
  (path / "saved" / "config.json").write_bytes((path / "files" / "config.json").read_bytes())
  return path / "saved"


@pytest.mark.parametrize("kind", ["gpt2", "roberta", "bart", "bert"])
def test_the_files_of_the_first_models(tmp_path, kind):
  check(published.write(tmp_path, kind))


def check_marian(path) -> None:
  theirs = AutoTokenizer.from_pretrained(str(path))
  ours = vocabularies.load(str(path))
  for text in [
    *texts(),
    *(f">>fra<<{text}" for text in texts()),
    ">>xyz<< fox",
    "a >>deu<< fox",
    ">> fox",
  ]:
    assert ours.encode(text) == theirs(text, add_special_tokens=False).input_ids, repr(text)
    ids = theirs(text_target=text, add_special_tokens=False).input_ids
    assert ours.for_targets().encode(text) == ids, repr(text)
    ids = [i for i in ids if i not in (ours.pad_id, ours.eos_id)]
    assert ours.decode(ids) == theirs.decode(ids), repr(text)
  assert ours.enclosing_ids() == ([], theirs("").input_ids)
  assert (ours.pad_id, ours.eos_id, ours.unk_id) == (
    theirs.pad_token_id,
    theirs.eos_token_id,
    theirs.unk_token_id,
  )


@pytest.mark.parametrize("options", [{}, {"split_special_tokens": True}])
def test_marian_with_its_two_models(tmp_path, options):
  check_marian(published.marian(tmp_path / "files", **options))
  AutoTokenizer.from_pretrained(str(tmp_path / "files")).save_pretrained(str(tmp_path / "saved"))
  (tmp_path / "saved" / "config.json").write_bytes(
    (tmp_path / "files" / "config.json").read_bytes()
  )
  check_marian(tmp_path / "saved")


@pytest.mark.parametrize("kind", CLASSES)
def test_what_the_library_saves(tmp_path, kind):
  check(saved(tmp_path, kind))


@pytest.mark.parametrize(
  "kind, options",
  [
    ("gpt2", {"add_prefix_space": True}),
    ("gpt2", {"split_special_tokens": True}),
    ("gpt2", {"pad_token": "<|pad|>"}),
    ("roberta", {"mask_token": AddedToken("<mask>", lstrip=True)}),
    ("llama", {"legacy": True}),
    ("llama", {"add_prefix_space": False}),
    ("bert", {"do_lower_case": False}),
    ("bert", {"tokenize_chinese_chars": False, "strip_accents": True}),
  ],
)
def test_options_of_the_classes(tmp_path, kind, options):
  check(saved(tmp_path, kind, **options))


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_a_tokenizer_of_the_users_own(tmp_path, kind):
  made = published.byte_level(["<|endoftext|>"]) if kind == "gpt2" else published.word_piece()
  named = (
    {"eos_token": "<|endoftext|>"}
    if kind == "gpt2"
    else {"sep_token": "[SEP]", "mask_token": "[MASK]"}
  )
  transformers.PreTrainedTokenizerFast(tokenizer_object=made, **named).save_pretrained(
    str(tmp_path)
  )
  (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
  check(tmp_path)


@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_pieces_added_later(tmp_path, kind):
  path = saved(tmp_path, kind)
  tokenizer = AutoTokenizer.from_pretrained(str(path))
  tokenizer.add_tokens(["fox", "wiz ard"])
  tokenizer.add_special_tokens({"additional_special_tokens": ["<note>"]})
  tokenizer.save_pretrained(str(path))
  check(path)


@pytest.mark.parametrize("kind", ["unigram", "wordpiece", "bytelevel_bpe"])
def test_vocabularies_made_here_open_in_the_library(tmp_path, kind):
  """The files that `convert_hf` writes beside a model."""
  lines = [line.encode() for line in published.LINES]
  if kind == "unigram":
    from tools import train_vocabulary

    vocabulary = SentencePieceVocabulary(train_vocabulary.train(lines, size=85))
  else:
    from tools import train_tokenizer

    vocabulary = train_tokenizer.train(lines, size=300, kind=kind, with_mask=True)
  for name, data in tokenizer_export.tokenizer_files(
    vocabulary, {"decoder_target_tokens": [8]}
  ).items():
    (tmp_path / name).write_bytes(data)
  theirs = AutoTokenizer.from_pretrained(str(tmp_path))
  for text in published.LINES[:40]:
    assert theirs(text, add_special_tokens=False).input_ids == vocabulary.encode(text)
    assert theirs(text).input_ids == [1, *vocabulary.encode(text)]
  assert (theirs.pad_token_id, theirs.eos_token_id) == (0, 1)


@pytest.mark.parametrize("model_type", ["gpt2", "t5", "bert"])
@pytest.mark.parametrize("kind", hostile_texts.KINDS)
def test_ten_thousand_texts_of_twenty_scripts(tmp_path, kind, model_type):
  vocabulary = hostile_texts.vocabulary(kind)
  features = {"gpt2": ["decoder_target_tokens"], "bert": ["encoder_input_tokens"]}
  names = features.get(model_type, ["encoder_input_tokens", "decoder_target_tokens"])
  for name, data in tokenizer_export.tokenizer_files(vocabulary, dict.fromkeys(names, [8])).items():
    (tmp_path / name).write_bytes(data)
  (tmp_path / "config.json").write_text(
    json.dumps({"model_type": model_type, "vocab_size": vocabulary.size})
  )
  theirs = AutoTokenizer.from_pretrained(str(tmp_path))
  texts = hostile_texts.texts(10_000)
  expected = [ids.tolist() for ids in vocabulary.encode_batch(texts)]
  assert theirs(texts, add_special_tokens=False).input_ids == expected


@pytest.mark.parametrize("template", ["chatml", "llama3", "gemma", "deepseek"])
def test_conversations_are_written_as_in_training(tmp_path, template):
  pieces = ["<|endoftext|>", *(piece for piece in TEMPLATES[template].pieces if piece != EOS)]
  published.byte_level(pieces).save(str(tmp_path / "tokenizer.json"))
  (tmp_path / "tokenizer_config.json").write_text(
    '{"eos_token": "<|endoftext|>", "chat_template": "another"}'
  )
  vocabulary = vocabularies.load(str(tmp_path))
  for name, data in tokenizer_export.chat_files(vocabulary, template).items():
    (tmp_path / name).write_bytes(data)
  messages = [
    Message("user", "the quick fox? "),
    Message("assistant", "jumps."),
    Message("user", "over"),
  ]
  theirs = AutoTokenizer.from_pretrained(str(tmp_path))
  found = theirs.apply_chat_template(
    [one._asdict() for one in messages], add_generation_prompt=True, return_dict=False
  )
  assert found == [0, *Chat(template, vocabulary).prompt(messages)]


@pytest.mark.parametrize("name", ["GPT2Tokenizer", "PreTrainedTokenizerFast", None])
@pytest.mark.parametrize(
  "model_type",
  ["gpt2", "opt", "llama", "mistral", "olmo2", "olmo3", "qwen2", "falcon", "modernbert"],
)
def test_a_class_that_the_library_overrides_or_not(tmp_path, model_type, name):
  """A file that cuts numbers into digits, which GPT-2's class does not."""
  described = json.loads(published.byte_level(["<|endoftext|>"]).to_str())
  digits = {"type": "Digits", "individual_digits": True}
  described["pre_tokenizer"] = {
    "type": "Sequence",
    "pretokenizers": [digits, described["pre_tokenizer"]],
  }
  (tmp_path / "tokenizer.json").write_text(json.dumps(described))
  named = {"tokenizer_class": name} if name else {}
  (tmp_path / "tokenizer_config.json").write_text(
    json.dumps({"eos_token": "<|endoftext|>"} | named)
  )
  (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
  theirs = AutoTokenizer.from_pretrained(str(tmp_path))
  ours = vocabularies.load(str(tmp_path))
  text = "the 17 foxes of 123"
  assert ours.encode(text) == theirs(text, add_special_tokens=False).input_ids

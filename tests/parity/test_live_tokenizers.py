"""Tokenizers read from every form of their files give the ids of `transformers`."""

import json
import random

import pytest
import transformers
from transformers import AddedToken, AutoTokenizer

import hostile_texts
import published
from t5x_like import vocabularies
from t5x_like.interop import tokenizer_export
from t5x_like.vocabularies.kinds._tokenizer_files import NAMES

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


def hostile_and_plain_texts() -> list[str]:
  draw = random.Random(0)
  mixed = ["".join(draw.choices(LETTERS, k=draw.randrange(1, 40))) for _ in range(300)]
  return [*published.HOSTILE, *published.LINES[:20], *mixed]


def check_ids(path) -> None:
  hf_tokenizer = AutoTokenizer.from_pretrained(str(path))
  vocabulary = vocabularies.load(str(path))
  for text in hostile_and_plain_texts():
    assert vocabulary.encode(text) == hf_tokenizer(text, add_special_tokens=False).input_ids, repr(
      text
    )
  for name in NAMES:
    special_id = getattr(hf_tokenizer, f"{name}_token_id")
    if special_id is not None and name not in (
      "eos",
      "unk",
    ):  # these have stand-ins where there are none
      assert getattr(vocabulary, f"{name}_id") == special_id


def save_tokenizer(path, kind: str, **options):
  """Save the library's tokenizer of this kind with our pieces and merges; return its directory."""
  model = json.loads(vocabularies.load(str(published.write(path / "files", kind))).model)["model"]
  vocab = [tuple(pair) for pair in model["vocab"]] if kind == "t5" else model["vocab"]
  merges = {"merges": [tuple(pair) for pair in model["merges"]]} if "merges" in model else {}
  tokenizer = getattr(transformers, CLASSES[kind])(vocab=vocab, **merges, **options)
  tokenizer.save_pretrained(str(path / "save_tokenizer"))
  (path / "save_tokenizer" / "config.json").write_bytes(
    (path / "files" / "config.json").read_bytes()
  )
  return path / "save_tokenizer"


@pytest.mark.parametrize("kind", ["gpt2", "roberta", "bart", "bert"])
def test_ids_from_the_files_of_the_first_models_equal_the_librarys(tmp_path, kind):
  check_ids(published.write(tmp_path, kind))


def check_marian_ids(path) -> None:
  hf_tokenizer = AutoTokenizer.from_pretrained(str(path))
  vocabulary = vocabularies.load(str(path))
  for text in [
    *hostile_and_plain_texts(),
    *(f">>fra<<{text}" for text in hostile_and_plain_texts()),
    ">>xyz<< fox",
    "a >>deu<< fox",
    ">> fox",
  ]:
    assert vocabulary.encode(text) == hf_tokenizer(text, add_special_tokens=False).input_ids, repr(
      text
    )
    ids = hf_tokenizer(text_target=text, add_special_tokens=False).input_ids
    assert vocabulary.for_targets().encode(text) == ids, repr(text)
    ids = [
      special_id for special_id in ids if special_id not in (vocabulary.pad_id, vocabulary.eos_id)
    ]
    assert vocabulary.decode(ids) == hf_tokenizer.decode(ids), repr(text)
  assert vocabulary.enclosing_ids() == ([], hf_tokenizer("").input_ids)
  assert vocabulary.pad_id == hf_tokenizer.pad_token_id
  assert vocabulary.eos_id == hf_tokenizer.eos_token_id
  assert vocabulary.unk_id == hf_tokenizer.unk_token_id


@pytest.mark.parametrize("options", [{}, {"split_special_tokens": True}])
def test_ids_from_marians_two_models_equal_the_librarys(tmp_path, options):
  check_marian_ids(published.marian(tmp_path / "files", **options))
  AutoTokenizer.from_pretrained(str(tmp_path / "files")).save_pretrained(
    str(tmp_path / "save_tokenizer")
  )
  (tmp_path / "save_tokenizer" / "config.json").write_bytes(
    (tmp_path / "files" / "config.json").read_bytes()
  )
  check_marian_ids(tmp_path / "save_tokenizer")


@pytest.mark.parametrize("kind", CLASSES)
def test_ids_from_files_that_the_library_saved_equal_the_librarys(tmp_path, kind):
  check_ids(save_tokenizer(tmp_path, kind))


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
def test_options_of_the_librarys_classes_are_followed(tmp_path, kind, options):
  check_ids(save_tokenizer(tmp_path, kind, **options))


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_ids_from_a_users_tokenizer_equal_the_librarys(tmp_path, kind):
  if kind == "gpt2":
    tokenizer = published.byte_level(["<|endoftext|>"])
    special_tokens = {"eos_token": "<|endoftext|>"}
  else:
    tokenizer = published.word_piece()
    special_tokens = {"sep_token": "[SEP]", "mask_token": "[MASK]"}
  fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special_tokens)
  fast.save_pretrained(str(tmp_path))
  (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
  check_ids(tmp_path)


@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_pieces_added_later_are_read(tmp_path, kind):
  path = save_tokenizer(tmp_path, kind)
  tokenizer = AutoTokenizer.from_pretrained(str(path))
  tokenizer.add_tokens(["fox", "wiz ard"])
  tokenizer.add_special_tokens({"additional_special_tokens": ["<note>"]})
  tokenizer.save_pretrained(str(path))
  check_ids(path)


@pytest.mark.parametrize("model_type", ["gpt2", "t5", "bert"])
@pytest.mark.parametrize("kind", hostile_texts.KINDS)
def test_the_library_encodes_texts_of_twenty_scripts_as_our_vocabularies_do(
  tmp_path, kind, model_type
):
  vocabulary = hostile_texts.vocabulary(kind)
  features = {"gpt2": ["decoder_target_tokens"], "bert": ["encoder_input_tokens"]}
  names = features.get(model_type, ["encoder_input_tokens", "decoder_target_tokens"])
  for name, data in tokenizer_export.tokenizer_files(vocabulary, dict.fromkeys(names, [8])).items():
    (tmp_path / name).write_bytes(data)
  (tmp_path / "config.json").write_text(
    json.dumps({"model_type": model_type, "vocab_size": vocabulary.size})
  )
  hf_tokenizer = AutoTokenizer.from_pretrained(str(tmp_path))
  scripts = hostile_texts.texts(10_000)
  expected = [ids.tolist() for ids in vocabulary.encode_batch(scripts)]
  assert hf_tokenizer(scripts, add_special_tokens=False).input_ids == expected


@pytest.mark.parametrize("name", ["GPT2Tokenizer", "PreTrainedTokenizerFast", None])
@pytest.mark.parametrize(
  "model_type",
  ["gpt2", "opt", "llama", "mistral", "olmo2", "olmo3", "qwen2", "falcon", "modernbert"],
)
def test_a_file_is_read_or_overridden_by_its_class_as_in_the_library(tmp_path, model_type, name):
  """The file cuts numbers into digits, and GPT-2's class does not."""
  tokenizer_json = json.loads(published.byte_level(["<|endoftext|>"]).to_str())
  digits = {"type": "Digits", "individual_digits": True}
  tokenizer_json["pre_tokenizer"] = {
    "type": "Sequence",
    "pretokenizers": [digits, tokenizer_json["pre_tokenizer"]],
  }
  (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json))
  special_tokens = {"tokenizer_class": name} if name else {}
  (tmp_path / "tokenizer_config.json").write_text(
    json.dumps({"eos_token": "<|endoftext|>"} | special_tokens)
  )
  (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
  hf_tokenizer = AutoTokenizer.from_pretrained(str(tmp_path))
  vocabulary = vocabularies.load(str(tmp_path))
  text = "the 17 foxes of 123"
  assert vocabulary.encode(text) == hf_tokenizer(text, add_special_tokens=False).input_ids

"""Published tokenizers have the same ids when loaded from any of their files, saved or exported."""

import json
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

import published
from refusals import refuses
from t5x_like import vocabularies
from t5x_like.errors import UserError
from t5x_like.training import imported_weights
from t5x_like.vocabularies.kinds import _pipelines as pipelines
from t5x_like.vocabularies.kinds import tokenizer as tokenizers_kind
from t5x_like.vocabularies.kinds.published import PublishedVocabulary
from tools import convert_hf

KINDS = list(published.CONFIGS)
CHARACTERS = st.characters(exclude_categories=["Cs"])
TEXT = st.lists(
  CHARACTERS | st.sampled_from([*"ab  \t'", "</s>", "<mask>", "<s>", "fox"]), max_size=40
).map("".join)


@pytest.fixture(scope="session")
def directories(tmp_path_factory):
  root = tmp_path_factory.mktemp("published")
  return {kind: published.write(root / kind, kind) for kind in KINDS}


@pytest.fixture(scope="session")
def loaded(directories):
  return {kind: vocabularies.load(str(path)) for kind, path in directories.items()}


@pytest.mark.parametrize("file", ["tokenizer_config.json", "config.json"])
def test_sentinels_of_byt5_are_the_last_bytes(tmp_path, file):
  """As in the documentation of `transformers`: "The dog [258]a ball [257]park."

  The directory of ByT5 has no file of pieces.
  """
  (tmp_path / file).write_text(json.dumps({"tokenizer_class": "ByT5Tokenizer", "model_type": "t5"}))
  vocabulary = vocabularies.load(str(tmp_path))
  text = "Thé dog <extra_id_0>a ball <extra_id_1>park."
  ids = vocabularies.encode_sentinels(vocabulary, text)
  assert vocabulary.size == 384
  assert vocabulary.sentinels == tuple(range(258, 247, -1))
  assert vocabulary.decode(ids) == text
  assert [i for i in ids if i > 247] == [258, 257]
  assert not set(vocabulary.sentinels) & set(vocabulary.encode("\U0010ffff\xff"))
  vocabulary.save(tmp_path / "saved")
  saved = vocabularies.load(str(tmp_path / "saved"))
  assert saved.fingerprint == vocabulary.fingerprint
  assert saved.sentinels == vocabulary.sentinels
  assert vocabulary.fingerprint != vocabularies.load("bytes").fingerprint


# Ids of pad, bos, eos, unk, mask, cls and sep, and the first decoder token of encoder-decoders.
SPECIAL_IDS = {
  "gpt2": (None, 0, 0, 0, None, None, None, 0),
  "roberta": (1, 0, 2, 3, 4, 0, 2, 1),
  "bart": (1, 0, 2, 3, 4, 0, 2, 2),
  "llama": (None, 1, 2, 0, None, None, None, 2),
  "gemma2": (0, 2, 1, 3, 4, None, None, 0),
  "t5": (0, None, 1, 2, None, None, None, 0),
  "bert": (0, None, 3, 1, 4, 2, 3, 0),
}


@pytest.mark.parametrize("kind", KINDS)
def test_special_ids_equal_the_tokenizers(loaded, kind):
  names = (
    "pad_id",
    "bos_id",
    "eos_id",
    "unk_id",
    "mask_id",
    "cls_id",
    "sep_id",
    "decoder_start_id",
  )
  assert tuple(getattr(loaded[kind], name) for name in names) == SPECIAL_IDS[kind]
  assert loaded[kind].extra_ids == (100 if kind == "t5" else 0)
  ids = {loaded[kind].pad_id, loaded[kind].mask_id} - {None}
  assert ids <= loaded[kind].special_ids


@pytest.mark.parametrize("kind", KINDS)
def test_older_files_enclose_a_text_as_their_tokenizer_classes_do(loaded, kind):
  _, bos, eos, _, _, cls, sep, _ = SPECIAL_IDS[kind]
  expected = {
    "roberta": ([bos], [eos]),
    "bart": ([bos], [eos]),
    "t5": ([], [eos]),
    "bert": ([cls], [sep]),
  }
  assert loaded[kind].enclosing_ids() == expected.get(kind, ([] if kind == "gpt2" else [bos], []))


def test_special_pieces_of_xlm_roberta_are_found_without_a_file_that_names_them(tmp_path):
  published.byte_level(published.BART).save(str(tmp_path / "tokenizer.json"))
  (tmp_path / "config.json").write_text(
    '{"model_type": "xlm-roberta", "bos_token_id": 0, "eos_token_id": 2}'
  )
  vocabulary = vocabularies.load(str(tmp_path))
  assert vocabulary.cls_id == 0
  assert vocabulary.sep_id == 2
  assert vocabulary.mask_id == 4
  assert vocabulary.pad_id == 1


def build_reference_tokenizer(kind, directory) -> Tokenizer:
  """Return the tokenizer of a directory, built from objects of the tokenizers library."""
  if kind in ("gpt2", "roberta", "bart"):
    tokenizer = Tokenizer(
      models.BPE.from_file(str(directory / "vocab.json"), str(directory / "merges.txt"))
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    specials = ["<|endoftext|>"] if kind == "gpt2" else published.BART
  else:
    tokenizer = Tokenizer(
      models.WordPiece.from_file(str(directory / "vocab.txt"), unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"]
  tokenizer.decoder = decoders.ByteLevel()
  tokenizer.add_special_tokens(
    [AddedToken(token, special=True, normalized=False) for token in specials]
  )
  return tokenizer


@pytest.mark.parametrize("kind", ["gpt2", "roberta", "bart", "bert"])
def test_ids_from_text_files_equal_the_tokenizers_library(directories, loaded, kind):
  tokenizer = build_reference_tokenizer(kind, directories[kind])
  for text in published.HOSTILE:
    expected = tokenizer.encode(text, add_special_tokens=False).ids
    assert loaded[kind].encode(text) == expected, repr(text)


@pytest.mark.parametrize("kind", ["llama", "gemma2", "t5"])
def test_ids_from_sentencepiece_files_equal_sentencepiece(directories, loaded, kind):
  """The texts have no special pieces, unusual spaces or characters that need normalisation."""
  import sentencepiece

  processor = sentencepiece.SentencePieceProcessor()
  processor.LoadFromSerializedProto(
    b"".join(path.read_bytes() for path in directories[kind].glob("*.model"))
  )
  texts = [*published.LINES[:50], "the quick fox, wizards' jugs", "naïve 世界", "zebra & yak"]
  if kind != "t5":  # the others encode unknown characters as bytes
    texts += ["\U0001f600 \u05e9", "x" * 50]
  for text in texts:
    assert loaded[kind].encode(text) == processor.encode(text), repr(text)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(texts=st.lists(TEXT, max_size=4))
def test_batches_and_saved_copies_have_the_same_ids(loaded, saved, kind, texts):
  original = loaded[kind]
  saved_copy = saved[kind]
  assert saved_copy.fingerprint == original.fingerprint
  assert saved_copy.size == original.size
  assert saved_copy.sentinels == original.sentinels
  ids = [original.encode(text) for text in texts]
  assert [row.tolist() for row in saved_copy.encode_batch(texts)] == ids
  with pytest.MonkeyPatch.context() as patch:  # long texts are encoded in pieces
    patch.setattr(tokenizers_kind, "_MAX_ENCODED", 3)
    assert [row.tolist() for row in original.encode_batch(texts)] == ids
  assert all(
    isinstance(original.decode(row), str) and len(original.pieces_of(row)) == len(row)
    for row in ids
  )


def test_olmo2_uses_its_pre_tokenizer_despite_the_class_of_gpt2(tmp_path):
  tokenizer_json = json.loads(published.byte_level(["<|endoftext|>"]).to_str())
  digits = {"type": "Digits", "individual_digits": True}
  tokenizer_json["pre_tokenizer"] = {
    "type": "Sequence",
    "pretokenizers": [digits, tokenizer_json["pre_tokenizer"]],
  }
  (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json))
  (tmp_path / "tokenizer_config.json").write_text(
    '{"eos_token": "<|endoftext|>", "tokenizer_class": "GPT2Tokenizer"}'
  )
  ids = {}
  for kind in ("olmo2", "gpt2"):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    ids[kind] = vocabularies.load(str(tmp_path)).encode("the 17 foxes")
  assert (
    ids["olmo2"]
    == Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("the 17 foxes").ids
    != ids["gpt2"]
  )


@pytest.mark.parametrize("special", [True, False])
def test_special_piece_beyond_the_models_vocabulary_is_left_out(directories, tmp_path, special):
  shutil.copytree(directories["gpt2"], tmp_path / "gpt2")
  (tmp_path / "gpt2" / "config.json").write_text('{"model_type": "gpt2", "vocab_size": 360}')
  added = {
    "0": {"content": "<|endoftext|>", "special": True},
    "360": {"content": "<image>", "special": special},
  }
  (tmp_path / "gpt2" / "tokenizer_config.json").write_text(
    json.dumps({"added_tokens_decoder": added})
  )
  vocabulary = vocabularies.load(str(tmp_path / "gpt2"))
  assert vocabulary.size == (360 if special else 361)
  assert (360 in vocabulary.encode("a <image>")) == (not special)


@pytest.fixture(scope="session")
def saved(loaded, tmp_path_factory):
  root = tmp_path_factory.mktemp("saved")
  for kind, vocabulary in loaded.items():
    vocabulary.save(root / kind)
  return {kind: vocabularies.load(str(root / kind)) for kind in loaded}


@pytest.mark.parametrize("kind", KINDS)
def test_export_has_the_original_files(directories, saved, kind):
  exported = saved[kind].export_files()
  original = {
    path.name: path.read_bytes()
    for path in directories[kind].iterdir()
    if path.name != "config.json"
  }
  assert exported == original
  assert exported


@pytest.mark.parametrize("kind", ["gpt2", "roberta", "llama", "gemma2"])
def test_byte_level_vocabularies_restore_text(loaded, kind):
  """Texts without special pieces are decoded exactly."""
  for text in ("the quick  fox ", "\U0001f469\u200d世界 e\u0301", "\tx\n"):
    assert loaded[kind].decode(loaded[kind].encode(text)) == text
  lone = "a\ud800b"
  assert loaded[kind].decode(loaded[kind].encode(lone)) == "a\ufffdb"


def test_special_pieces_in_a_text_are_ids_unless_the_config_splits_them(directories, tmp_path):
  path = published.write(tmp_path / "split", "gpt2")
  (path / "tokenizer_config.json").write_text(json.dumps({"split_special_tokens": True}))
  split = vocabularies.load(str(path))
  default = vocabularies.load(str(directories["gpt2"]))
  text = "a<|endoftext|>b"
  assert 0 in default.encode(text)
  assert 0 not in split.encode(text)
  assert split.decode(split.encode(text)) == text
  assert split.fingerprint != default.fingerprint
  default.with_text_only().save(tmp_path / "saved")
  saved = vocabularies.load(str(tmp_path / "saved"))
  assert saved.encode(text) == split.encode(text)
  shutil.copytree(directories["gpt2"], tmp_path / "exported")
  for name, data in saved.export_files().items():
    (tmp_path / "exported" / name).write_bytes(data)
  assert vocabularies.load(str(tmp_path / "exported")).encode(text) == split.encode(text)


def test_tokenizer_json_of_an_unknown_class_is_used_unchanged(tmp_path):
  tokenizer = published.byte_level([])
  tokenizer.normalizer = normalizers.Lowercase()
  tokenizer.add_special_tokens(["<|begin|>", "<|end|>", "<|fill|>"])
  tokenizer.add_tokens([AddedToken("quick fox", normalized=False)])
  tokenizer.save(str(tmp_path / "tokenizer.json"))
  special_tokens = {
    "bos_token": "<|begin|>",
    "eos_token": {"content": "<|end|>"},
    "pad_token": "<|end|>",
  }
  (tmp_path / "tokenizer_config.json").write_text(
    json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"} | special_tokens)
  )
  vocabulary = vocabularies.load(str(tmp_path))
  assert isinstance(vocabulary, PublishedVocabulary)
  assert vocabulary.bos_id == 360
  assert vocabulary.eos_id == 361
  assert vocabulary.pad_id is None  # EOS is not used as padding
  for text in ("The QUICK fox <|fill|>", "quick fox<|end|>"):
    assert vocabulary.encode(text) == tokenizer.encode(text, add_special_tokens=False).ids


def test_unused_pieces_can_be_sentinels(directories):
  vocabulary = vocabularies.load(str(directories["gemma2"]), sentinels="<unused{}>")
  assert vocabulary.extra_ids == 40
  assert vocabulary.sentinels == tuple(range(vocabulary.sentinels[0], vocabulary.sentinels[0] + 40))
  ids = vocabularies.encode_sentinels(vocabulary, "the <extra_id_1> fox")
  assert vocabulary.sentinels[1] in ids
  assert vocabulary.decode(ids).split() == ["the", "<extra_id_1>", "fox"]
  assert set(vocabulary.sentinels) < vocabulary.special_ids
  assert vocabularies.special_id(vocabulary, "cls") == vocabulary.sentinels[1]


@pytest.mark.parametrize(
  "sentinels, words", [("<spare{}>", ("'<spare0>'", "<unused{}>")), ("unused", ("unused", "{}"))]
)
def test_missing_sentinel_pieces_are_refused(sentinels, words, directories):
  with refuses(*words):
    vocabularies.load(str(directories["gemma2"]), sentinels=sentinels)


@pytest.mark.parametrize(
  "kind, file, content, words",
  [
    ("gpt2", "vocab.json", b"{", ("vocab.json", "JSON")),
    ("gpt2", "vocab.json", b"[]", ("vocab.json", "JSON array")),
    ("gpt2", "merges.txt", b"\xff", ("merges.txt", "byte 0")),
    ("t5", "spiece.model", b"\xff\xff", ("2 bytes", "SentencePiece")),
    (
      "bert",
      "tokenizer_config.json",
      b'{"tokenizer_class": "FancyTokenizer"}',
      ("FancyTokenizer",),
    ),
    ("roberta", "tokenizer.json", b"{}", ("tokenizer.json without pieces",)),
  ],
)
def test_damaged_files_are_refused(tmp_path, kind, file, content, words):
  path = published.write(tmp_path / kind, kind)
  (path / file).write_bytes(content)
  with refuses(*words):
    vocabularies.load(str(path))


def test_directory_with_only_the_pieces_of_deberta_v3_is_refused_with_a_remedy(tmp_path):
  """Its files on the Hub have no `tokenizer.json`, and must not be ignored either."""
  (tmp_path / "spm.model").write_bytes(published.t5())
  (tmp_path / "config.json").write_text('{"model_type": "deberta-v2"}')
  assert vocabularies.has_tokenizer(tmp_path)
  with refuses("found no tokenizer.json", "save_pretr"):
    vocabularies.load(str(tmp_path))


def test_tokenizer_without_an_eos_token_is_refused(tmp_path):
  published.byte_level([]).save(str(tmp_path / "tokenizer.json"))
  with refuses("eos_token", "tokenizer_config.json"):
    vocabularies.load(str(tmp_path))


@pytest.mark.parametrize("kind", ["gpt2", "llama", "t5", "bert"])
def test_pieces_know_where_words_start(kind, loaded):
  vocabulary = loaded[kind]
  # The first word may lack its space.
  assert vocabulary.starts_word[vocabulary.encode("the fox box")].sum() in (2, 3)


def test_a_special_id_without_a_piece_or_sentinels_is_refused(loaded):
  with refuses("mask piece", "0 sentinels", "--sentinels"):
    vocabularies.special_id(loaded["gpt2"], "mask")


def test_sentinels_of_t5_count_down_from_its_size(loaded):
  size = loaded["t5"].size
  assert np.array_equal(loaded["t5"].sentinels, np.arange(size - 1, size - 101, -1))


@pytest.mark.parametrize("named", [True, False])
def test_a_class_that_is_a_program_is_refused_and_its_weights_can_be_taken(
  named, tmp_path, monkeypatch
):
  """As `save_pretrained` of the library writes them, or older files, whose model type tells the
  class."""
  (tmp_path / "vocab.json").write_text('{"</s>": 0, "<unk>": 1, "a</w>": 2, "<pad>": 3}')
  (tmp_path / "merges.txt").write_text("")
  (tmp_path / "config.json").write_text(json.dumps({"model_type": "xlm"}))
  if named:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "XLMTokenizer"}))
  with pytest.raises(UserError, match="XLMTokenizer.*tools.convert_hf") as refusal:
    vocabularies.load(str(tmp_path))
  assert "save_pretrained" not in str(refusal.value)
  vocabulary = vocabularies.load("bytes")
  monkeypatch.setattr(imported_weights, "load_task_vocabulary", lambda config: vocabulary)
  assert convert_hf._vocabulary(None, str(tmp_path), None) is vocabulary


PADDINGS = [
  {"strategy": {"Fixed": 16}, "direction": "Right"},
  {"strategy": "BatchLongest", "direction": "Left", "pad_to_multiple_of": 8},
]
TRUNCATION = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}


def load_with_post_processor(directory, tmp_path, **changes):
  """Return a RoBERTa vocabulary whose `tokenizer.json` has a post-processor and some changes."""
  shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
  tokenizer_json = json.loads(vocabularies.load(str(directory)).model)
  ends = {"sep": ["</s>", 2], "cls": ["<s>", 0]}
  tokenizer_json["post_processor"] = {
    "type": "RobertaProcessing",
    **ends,
    "trim_offsets": True,
    "add_prefix_space": False,
  }
  (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json | changes))
  return vocabularies.load(str(tmp_path))


@pytest.mark.parametrize("padding", PADDINGS)
def test_saved_padding_and_truncation_are_ignored(directories, loaded, tmp_path, padding):
  padding = {
    "pad_id": 1,
    "pad_type_id": 0,
    "pad_token": "<pad>",
    "pad_to_multiple_of": None,
  } | padding
  vocabulary = load_with_post_processor(
    directories["roberta"], tmp_path, padding=padding, truncation=TRUNCATION
  )
  assert vocabulary.enclosing_ids() == ([0], [2])
  assert vocabulary.count_pair_separators() == 2
  for text in published.LINES[:5]:
    assert vocabulary.encode(text) == loaded["roberta"].encode(text)


def test_enclosing_ids_are_found_without_a_piece_for_the_letter_a(directories, tmp_path):
  tokenizer_json = json.loads(vocabularies.load(str(directories["roberta"])).model)
  model = tokenizer_json["model"]
  vocab = {("\u0251" if piece == "a" else piece): i for piece, i in model["vocab"].items()}
  merges = [pair for pair in model["merges"] if "a" not in pair]
  model = model | {"vocab": vocab, "merges": merges, "unk_token": None}
  vocabulary = load_with_post_processor(directories["roberta"], tmp_path, model=model)
  assert vocabulary.encode("a") == []
  assert vocabulary.enclosing_ids() == ([0], [2])


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_pieces_longer_than_sentencepieces_limit_are_refused(directories, tmp_path, kind):
  """The tokenizers library would take quadratic time."""
  for path in directories[kind].iterdir():
    data = path.read_bytes()
    if path.suffix == ".model":
      proto = pipelines.model_proto(data, kind)
      proto.pieces.add(piece="ab" * 1_000_000, score=-50.0)
      data = proto.SerializeToString()
    (tmp_path / path.name).write_bytes(data)
  with refuses("found a piece of 2000000 bytes", "8000"):
    vocabularies.load(str(tmp_path))


def test_long_piece_of_a_unigram_tokenizer_json_is_refused(loaded, tmp_path):
  tokenizer_json = json.loads(loaded["t5"].model)
  tokenizer_json["model"]["vocab"].append(["ab" * 4000, -50.0])
  (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json))
  (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
  with refuses("found a piece of 8000 bytes"):
    vocabularies.load(str(tmp_path))

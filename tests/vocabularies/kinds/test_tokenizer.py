"""Trained WordPiece and byte-level BPE vocabularies handle hostile Unicode texts and files."""

import base64
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refusals import refuses
from t5x_like import vocabularies
from t5x_like.vocabularies import encode_sentinels
from t5x_like.vocabularies.kinds import _growth
from t5x_like.vocabularies.kinds import tokenizer as tokenizers_kind
from t5x_like.vocabularies.kinds.tokenizer import TokenizerVocabulary
from tools import train_tokenizer

WORDS = (
  "the quick brown fox jumps over a lazy dog while seven wizards box with jugs of liquid quartz"
).split()
LINES = []
for i in range(300):
  words = [*WORDS[i % len(WORDS) :], *WORDS[: i % 7], str(i)]
  LINES.append(" ".join(words).encode())
HOSTILE = {
  "NULs": "a\0b\0\0",
  "combining": "e\u0301\u0323\u0308o\u0308",
  "emoji": "\U0001f469\u200d\U0001f469\u200d\U0001f467",
  "right to left": "\u05e9\u05dc\u05d5\u05dd \u202eabc\u202c \u0645",
  "long word": "x" * 10_000,
  "Latin-1": bytes(range(256)).decode("latin-1"),
  "spaces": "  a \t\n\r\n b\u00a0\u3000 ",
  "empty": "",
  "planes": "\U0010ffff\ufeff\ufffd\u2028",
  "specials": "[MASK] </s> <extra_id_0>[PAD][UNK] <extra_id_99>",
}


@pytest.fixture(scope="module")
def trained():
  return {
    "wordpiece": train_tokenizer.train(LINES, size=120, kind="wordpiece", with_mask=True),
    "bytelevel_bpe": train_tokenizer.train(LINES, size=300, kind="bytelevel_bpe", with_mask=True),
  }


@pytest.fixture(scope="module")
def lowercase():
  return train_tokenizer.train(LINES, size=120, kind="wordpiece", lowercase=True)


@pytest.mark.parametrize("kind", train_tokenizer.KINDS)
def test_special_ids_and_sentinels_are_as_documented(trained, kind):
  vocabulary = trained[kind]
  assert vocabulary.size == {"wordpiece": 220, "bytelevel_bpe": 400}[kind]
  assert vocabulary.extra_ids == 100
  assert vocabulary.pad_id == 0
  assert vocabulary.eos_id == 1
  assert vocabulary.unk_id == 2
  assert vocabulary.cls_id == 3
  assert vocabulary.sep_id == 4
  assert vocabulary.mask_id == 5
  assert vocabulary.bos_id is None
  assert vocabulary.special_ids == {0, 1, 3, 4, 5, *range(vocabulary.size - 100, vocabulary.size)}
  ids = encode_sentinels(vocabulary, "<extra_id_0> the fox<extra_id_99>")
  assert ids[0] == vocabulary.size - 1
  assert ids[-1] == vocabulary.size - 100
  text = vocabulary.decode([3, *ids, 5, 4, 1, 0])
  if kind == "wordpiece":
    assert text.split() == ["<extra_id_0>", "the", "fox", "<extra_id_99>", "[MASK]"]
  else:
    assert text.split() == ["<extra_id_0>", "the", "fox<extra_id_99>[MASK]"]
  assert vocabulary.pieces_of([0, 5, vocabulary.size - 1]) == ["[PAD]", "[MASK]", "<extra_id_0>"]


@pytest.mark.parametrize("kind", train_tokenizer.KINDS)
def test_training_again_gives_the_same_vocabulary(trained, kind):
  vocabulary = trained[kind]
  size = vocabulary.size - vocabulary.extra_ids
  again = train_tokenizer.train(LINES, size=size, kind=kind, with_mask=True)
  assert again.fingerprint == vocabulary.fingerprint


@pytest.mark.parametrize("kind", train_tokenizer.KINDS)
def test_saved_vocabulary_is_loaded_and_refused_after_damage(trained, kind, tmp_path):
  vocabulary = trained[kind]
  vocabulary.save(tmp_path)
  for path in (tmp_path, tmp_path / "tokenizer.json"):
    loaded = vocabularies.load(str(path))
    assert loaded.fingerprint == vocabulary.fingerprint
    assert loaded.encode("a lazy fox") == vocabulary.encode("a lazy fox")
  file = tmp_path / "tokenizer.json"
  file.write_bytes(file.read_bytes() + b" ")
  with refuses(str(tmp_path), "damaged"):
    vocabularies.load(str(tmp_path))


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_are_encoded_without_special_ids(trained, name):
  """Byte-level BPE also decodes them exactly."""
  text = HOSTILE[name]
  assert trained["bytelevel_bpe"].decode(trained["bytelevel_bpe"].encode(text)) == text
  for vocabulary in trained.values():
    ids = vocabulary.encode_batch([text, "fox", text])
    assert ids[0].dtype == np.int32
    assert ids[0].tolist() == ids[2].tolist() == vocabulary.encode(text)
    assert not set(ids[0].tolist()) & vocabulary.special_ids
    assert isinstance(vocabulary.decode(ids[0]), str)


@settings(max_examples=100)
@given(
  st.text(
    st.characters(exclude_categories=[])
    | st.sampled_from("ab'1\u00e9\u0301\u4e2d.   \t\x1c\u00a0"),
    max_size=80,
  )
)
def test_long_texts_have_the_same_ids_when_encoded_in_parts(trained, lowercase, text):
  for vocabulary in (*trained.values(), lowercase):
    whole = vocabulary.encode(text)
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(tokenizers_kind, "_MAX_ENCODED", 3)
      assert vocabulary.encode(text) == whole
      first, _, last = vocabulary.encode_batch([text, "a b", text])
      assert first.tolist() == last.tolist() == whole


def test_texts_are_divided_only_where_ids_do_not_change(trained, tmp_path, monkeypatch):
  monkeypatch.setattr(tokenizers_kind, "_MAX_ENCODED", 3)
  calls = []
  for vocabulary in trained.values():
    encode_short = vocabulary._encode_short

    def record_call(texts, encode_short=encode_short):
      calls.append(texts)
      return encode_short(texts)

    monkeypatch.setattr(vocabulary, "_encode_short", record_call)
    vocabulary.encode("lazy fox jumps")
  assert calls == [["lazy"], [" fox"], [" jumps"]] * 2

  def add_prefix_space(data):
    data["pre_tokenizer"]["add_prefix_space"] = True

  vocabulary = TokenizerVocabulary(
    edit_tokenizer(trained["bytelevel_bpe"], tmp_path, add_prefix_space)
  )
  assert vocabulary.decode(vocabulary.encode("lazy fox jumps")) == " lazy fox jumps"


@settings(max_examples=60)
@given(st.text(st.characters(exclude_categories=[]), max_size=60))
def test_byte_level_decodes_every_text_exactly(trained, text):
  vocabulary = trained["bytelevel_bpe"]
  # A surrogate without its pair, which UTF-8 cannot express, becomes the replacement character.
  utf16 = text.encode("utf-16-le", "surrogatepass")
  assert vocabulary.decode(vocabulary.encode(text)) == utf16.decode("utf-16-le", "replace")


@given(st.lists(st.integers(0, 500), max_size=20))
def test_every_id_can_be_decoded(trained, ids):
  for vocabulary in trained.values():
    assert isinstance(vocabulary.decode(ids), str)
    assert len(vocabulary.pieces_of(ids)) == len(ids)


def test_starts_word_marks_the_beginnings_of_words(trained):
  for kind, text, count in (
    ("wordpiece", "the zebra, fox", 4),
    ("bytelevel_bpe", "the zebra, fox", 2),
  ):
    vocabulary = trained[kind]
    ids = vocabulary.encode(text)
    assert vocabulary.starts_word[ids].sum() == count, vocabulary.pieces_of(ids)
    assert vocabulary.starts_word.shape == (vocabulary.size,)


def edit_tokenizer(vocabulary, tmp_path, edit) -> bytes:
  """Return the `tokenizer.json` of a vocabulary after a change of its content."""
  vocabulary.save(tmp_path)
  data = json.loads((tmp_path / "tokenizer.json").read_text())
  edit(data)
  return json.dumps(data).encode()


def swap_pad_and_eos(data):
  ids = data["model"]["vocab"]
  ids["[PAD]"] = 1
  ids["</s>"] = 0
  for token in data["added_tokens"]:
    token["id"] = ids.get(token["content"], token["id"])


@pytest.mark.parametrize("data", [b"", b"{}", b'{"model": 3}', b"\xff\0"])
def test_files_that_are_not_tokenizers_are_refused(data):
  with refuses("x.json", f"{len(data)} bytes", "tokenizer"):
    TokenizerVocabulary(data, origin="x.json")


def test_padding_id_other_than_0_is_refused(trained, tmp_path):
  with refuses("padding at id 1", "'</s>' at id 0"):
    TokenizerVocabulary(edit_tokenizer(trained["wordpiece"], tmp_path, swap_pad_and_eos))


@pytest.mark.parametrize("size, kind", [(5000, "wordpiece"), (100, "bytelevel_bpe")])
def test_unreachable_sizes_are_refused(size, kind):
  with refuses(f"found {size} ids"):
    train_tokenizer.train(LINES, size=size, kind=kind)


def replace_step(pattern, content):
  """Return the JSON of a tokenizer's step that replaces a pattern."""
  return {"type": "Replace", "pattern": pattern, "content": content}


# A table of normalised texts (its size in four bytes, then the texts), with one of 200 characters.
CHARSMAP = base64.b64encode(bytes(4) + b"x" * 200).decode()
TWENTYFOLD = replace_step({"String": "a"}, "a" * 20)


@pytest.mark.parametrize("key", ["normalizer", "decoder"])
@pytest.mark.parametrize(
  "steps",
  [
    [replace_step({"String": "a"}, "a" * 101)],
    [TWENTYFOLD, TWENTYFOLD],
    [{"type": "Sequence", "normalizers": [replace_step({"Regex": "a*"}, "b" * 300)]}],
    [replace_step({"Regex": ""}, "ab")] * 5,
    [{"type": "Precompiled", "precompiled_charsmap": CHARSMAP}],
  ],
)
def test_tokenizer_that_multiplies_text_is_refused(tmp_path, steps, key):
  parts = {"normalizer": "normalizers", "decoder": "decoders"}
  model = {
    "type": "WordLevel",
    "vocab": {"[PAD]": 0, "</s>": 1, "[UNK]": 2, "a": 3},
    "unk_token": "[UNK]",
  }
  tokenizer = {
    "version": "1.0",
    "added_tokens": [],
    "model": model,
    key: {"type": "Sequence", parts[key]: steps},
  }
  (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
  with refuses(f"found a {key} that may make", "characters of one"):
    vocabularies.load(str(tmp_path))


def test_sentencepiece_model_that_multiplies_text_is_refused():
  table = bytes(4) + b"x" * 200 + b"\0"
  with refuses("a model", "200 characters of one"):
    _growth.check_charsmap(table, "a model")
  _growth.check_charsmap(bytes(4) + b"x" * 18 + b"\0", "a model")

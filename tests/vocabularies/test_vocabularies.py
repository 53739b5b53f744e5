"""Vocabularies decode what they encode, encode no text as special ids, and refuse damaged files."""

import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from refusals import refuses
from t5x_like import vocabularies
from t5x_like.vocabularies import encode_sentinels
from t5x_like.vocabularies.kinds._pipelines import USER_DEFINED, model_proto
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary
from t5x_like.vocabularies.kinds.sentencepiece import SentencePieceVocabulary

WORDS = (
  "the quick brown fox jumps over a lazy dog while seven wizards box with jugs of liquid quartz"
).split()
TEXT = [" ".join(WORDS[i % 18 :] + WORDS[: i % 7] + [str(i)]) for i in range(400)]
ANY_TEXT = st.text(st.characters(exclude_categories=[]), max_size=60)  # surrogates and NUL included


def sentencepiece_model(**options) -> bytes:
  special = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "vocab_size": 80, **options}
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(TEXT), model_writer=model, minloglevel=2, num_threads=1, **special
  )
  return model.getvalue()


@pytest.fixture(scope="module")
def model() -> bytes:
  return sentencepiece_model()


@pytest.fixture(scope="module")
def pieces(model) -> SentencePieceVocabulary:
  return SentencePieceVocabulary(model)


@pytest.fixture(params=["bytes", "sentencepiece"])
def vocabulary(request, pieces):
  return ByteVocabulary() if request.param == "bytes" else pieces


def test_special_ids_and_sentinels_equal_t5s(pieces):
  assert pieces.size == 80 + 100
  assert pieces.extra_ids == 100
  assert pieces.pad_id == 0
  assert pieces.eos_id == 1
  assert pieces.unk_id == 2
  assert encode_sentinels(pieces, "<extra_id_0><extra_id_99>") == [179, 80]
  assert pieces.decode([179, 80]) == "<extra_id_0> <extra_id_99>"
  assert max(max(ids) for ids in pieces.encode_batch(TEXT)) < 80


def test_ids_of_bytes_equal_byt5():
  byt5 = ByteVocabulary()
  assert byt5.size == 384
  assert byt5.extra_ids == 125
  assert byt5.encode("hé") == [104 + 3, 0xC3 + 3, 0xA9 + 3]
  assert encode_sentinels(byt5, "<extra_id_0>") == [383]
  assert encode_sentinels(byt5, "<extra_id_124>") == [259]


@given(ANY_TEXT)
def test_bytes_decode_every_text_exactly(text):
  byt5 = ByteVocabulary()
  well_formed = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
  assert byt5.decode(byt5.encode(text)) == well_formed
  assert byt5.decode(encode_sentinels(byt5, text)) == well_formed


SENTINEL_TEXTS = st.integers(0, 130).map("<extra_id_{}>".format)
BYT5_SENTINELS = {f"<extra_id_{number}>" for number in range(125)}


@given(st.lists(st.one_of(st.text(max_size=8), SENTINEL_TEXTS), max_size=8))
def test_bytes_decode_text_with_sentinels_exactly(parts):
  byt5 = ByteVocabulary()
  text = "".join(parts)
  ids = encode_sentinels(byt5, text)
  sentinel_parts = [part for part in parts if part in BYT5_SENTINELS]
  assert byt5.decode(ids) == text
  assert sum(i >= 259 for i in ids) >= len(sentinel_parts)


WORDS_AND_SENTINELS = st.sampled_from([*WORDS, "<extra_id_0>", "<extra_id_7>", "<extra_id_99>"])


@given(st.lists(WORDS_AND_SENTINELS, max_size=12))
def test_sentencepiece_decodes_text_with_sentinels(pieces, words):
  text = " ".join(words)
  ids = encode_sentinels(pieces, text)
  assert pieces.decode(ids) == text
  assert sum(i >= 80 for i in ids) == text.count("<extra_id_")


@settings(max_examples=50)
@given(texts=st.lists(ANY_TEXT, max_size=5))
def test_batches_equal_single_texts_and_have_no_special_ids(pieces, texts):
  texts = [*texts, "<extra_id_0> </s> <pad> <unk>", ""]
  for vocabulary in (pieces, ByteVocabulary()):
    batch = vocabulary.encode_batch(texts)
    assert all(ids.dtype == np.int32 and ids.ndim == 1 for ids in batch)
    assert [ids.tolist() for ids in batch] == [vocabulary.encode(text) for text in texts]
    all_ids = {i for ids in batch for i in ids.tolist()}
    assert not all_ids & {0, 1}
    assert max(all_ids) < vocabulary.size - vocabulary.extra_ids


@given(ids=st.lists(st.integers(0, 1000), max_size=20))
def test_every_id_of_a_padded_table_can_be_decoded(pieces, ids):
  for vocabulary in (pieces, ByteVocabulary()):
    assert isinstance(vocabulary.decode(ids), str)
    assert vocabulary.decode(np.asarray(ids, np.int32)) == vocabulary.decode([0, *ids, 1, 0])


def test_ids_without_text_are_decoded_as_unknown(pieces):
  assert pieces.decode([1000]) == pieces.decode([2]) == pieces.decode([180])
  assert ByteVocabulary().decode([2, 104 + 3, 500, 0xFF + 3]) == "\ufffdh\ufffd\ufffd"


def test_negative_id_is_refused(vocabulary):
  with refuses("id -1", f"0..{vocabulary.size - 1}"):
    vocabulary.decode([5, -1])


def test_loaded_vocabulary_equals_the_saved_one(vocabulary, tmp_path):
  first = tmp_path / "a" / "b"
  second = tmp_path / "again"
  vocabulary.save(first)
  vocabulary.save(second)
  loaded = vocabularies.load(str(first))
  assert type(loaded) is type(vocabulary)
  assert loaded.fingerprint == vocabulary.fingerprint
  assert loaded.size == vocabulary.size
  assert loaded.extra_ids == vocabulary.extra_ids
  assert loaded.encode(TEXT[0]) == vocabulary.encode(TEXT[0])
  for path in second.iterdir():
    assert path.read_bytes() == (first / path.name).read_bytes()


def test_vocabulary_can_be_a_model_file_or_the_name_bytes(model, pieces, tmp_path):
  (tmp_path / "spiece.model").write_bytes(model)
  assert vocabularies.load(str(tmp_path / "spiece.model")).fingerprint == pieces.fingerprint
  assert vocabularies.load("bytes").fingerprint == ByteVocabulary().fingerprint


def test_fingerprints_differ_by_kind_model_and_sentinels(model, pieces):
  other_vocabularies = [
    SentencePieceVocabulary(model, 99),
    SentencePieceVocabulary(sentencepiece_model(vocab_size=70)),
    ByteVocabulary(),
    ByteVocabulary(100),
  ]
  assert len({v.fingerprint for v in [pieces, *other_vocabularies]}) == 5
  assert SentencePieceVocabulary(model).fingerprint == pieces.fingerprint


@pytest.mark.parametrize(
  "options, name",
  [
    ({"pad_id": -1, "eos_id": 1, "unk_id": 0, "bos_id": 2}, "pad id -1, expected 0"),
    ({"pad_id": 0, "eos_id": 2, "unk_id": 1}, "eos id 2, expected 1"),
    ({"pad_id": 0, "eos_id": 1, "unk_id": 3, "bos_id": 2}, "unk id 3, expected 2"),
  ],
)
def test_models_with_other_special_ids_are_refused(options, name):
  with refuses("x.model", name):
    SentencePieceVocabulary(sentencepiece_model(**options), origin="x.model")


@pytest.mark.parametrize("form", ["\u2581<extra_id_{}>", "<extra_id_{}>"])
def test_sentinels_at_the_end_of_a_model_keep_their_ids(tmp_path, model, form):
  """In T5X's `cc_all.32000.100extra`, sentinel i has the id `size - 1 - i`."""
  proto = model_proto(model, "test")
  for number in reversed(range(10)):
    proto.pieces.add(piece=form.format(number), score=0.0, type=USER_DEFINED)
  (tmp_path / "sentencepiece.model").write_bytes(proto.SerializeToString())
  with_sentinels = vocabularies.load(str(tmp_path / "sentencepiece.model"))
  with_added_sentinels = SentencePieceVocabulary(model, 10)
  assert with_sentinels.size == 90
  assert with_sentinels.sentinels == tuple(range(89, 79, -1))
  for text in [*TEXT[:20], "the <extra_id_0> fox <extra_id_9>", "a<extra_id_1>"]:
    ids = encode_sentinels(with_sentinels, text)
    assert ids == encode_sentinels(with_added_sentinels, text)
    assert with_sentinels.decode(ids) == with_added_sentinels.decode(ids)
    text_ids = with_sentinels.encode(text)
    assert text_ids == with_added_sentinels.encode(text)
    assert not set(text_ids) & set(with_sentinels.sentinels)


def test_sentinels_among_the_pieces_of_a_model_keep_their_ids(tmp_path):
  symbols = [f"<extra_id_{number}>" for number in range(5)]
  original = SentencePieceVocabulary(sentencepiece_model(user_defined_symbols=symbols))
  original.save(tmp_path)
  loaded = vocabularies.load(str(tmp_path))
  for vocabulary in (original, loaded):
    assert vocabulary.size == 80
    assert vocabulary.sentinels == (3, 4, 5, 6, 7)
    ids = encode_sentinels(vocabulary, "the <extra_id_0> fox <extra_id_4>")
    assert [i for i in ids if i in vocabulary.sentinels] == [3, 7]
    assert vocabulary.decode(ids) == "the <extra_id_0> fox <extra_id_4>"
    assert not set(vocabulary.encode("the <extra_id_0>")) & set(vocabulary.sentinels)
  assert loaded.fingerprint == original.fingerprint


MANIFEST = vocabularies.MANIFEST
MODEL = "sentencepiece.model"
# name: (file, its content or None for no file, part of the error)
DAMAGED_FILES = {
  "no manifest": (MANIFEST, None, "found no vocabulary.json"),
  "no model": (MODEL, None, "sentencepiece.model: cannot be read"),
  "empty manifest": (MANIFEST, b"", "invalid JSON"),
  "manifest not UTF-8": (MANIFEST, b'{"a": "\xff"}', "invalid JSON"),
  "cut manifest": (MANIFEST, b'{"format": "t5x_like', "invalid JSON"),
  "deep manifest": (MANIFEST, b"[" * 100_000, "invalid JSON"),
  "manifest a list": (MANIFEST, b"[]", "found a JSON array"),
  "cut model": (MODEL, b"\n\x0e\n\x07", "damaged"),
}


@pytest.mark.parametrize("case", DAMAGED_FILES)
def test_directory_with_a_damaged_file_is_refused(case, pieces, tmp_path):
  pieces.save(tmp_path)
  name, content, message = DAMAGED_FILES[case]
  if content is None:
    (tmp_path / name).unlink()
  else:
    (tmp_path / name).write_bytes(content)
  with refuses(str(tmp_path), message):
    vocabularies.load(str(tmp_path))


def test_pipe_instead_of_a_manifest_is_refused(tmp_path):
  os.mkfifo(tmp_path / MANIFEST)
  with refuses(MANIFEST, "found a pipe, expected a file"):
    vocabularies.load(str(tmp_path))


KINDS = "expected one of bytes, labels, marian, published, sentencepiece, tokenizer"


@pytest.mark.parametrize(
  "key, value, message",
  [
    ("format", "v9", "found format 'v9'"),
    ("kind", "wordpiece", f"found kind 'wordpiece', {KINDS}"),
    ("kind", "_pipelines", f"found kind '_pipelines', {KINDS}"),
    ("kind", ["bytes"], KINDS),
    ("size", 32100, "found size 32100, expected 180"),
    ("size", None, "'size'"),
    ("fingerprint", "00", "fingerprint"),
    ("extra_ids", 99, "fingerprint"),
    ("extra_ids", -1, "found extra_ids -1"),
    ("extra_ids", "100", "found extra_ids '100'"),
  ],
)
def test_manifest_with_a_wrong_or_missing_value_is_refused(key, value, message, pieces, tmp_path):
  pieces.save(tmp_path)
  manifest = json.loads((tmp_path / MANIFEST).read_text())
  manifest[key] = value
  if value is None:
    del manifest[key]
  (tmp_path / MANIFEST).write_text(json.dumps(manifest))
  with refuses(str(tmp_path), message):
    vocabularies.load(str(tmp_path))


@pytest.mark.parametrize("content", [b"", b"not a model"])
def test_file_that_is_not_a_model_is_refused(content, tmp_path):
  (tmp_path / "spiece.model").write_bytes(content)
  with refuses("spiece.model: found", "SentencePiece model"):
    vocabularies.load(str(tmp_path / "spiece.model"))


@settings(max_examples=30)
@given(cut=st.floats(0.01, 0.99))
def test_truncated_model_is_refused(model, cut):
  with refuses("SentencePiece model"):
    SentencePieceVocabulary(model[: int(len(model) * cut)])


def test_missing_path_is_refused():
  with refuses("vocabulary nowhere: found nothing there"):
    vocabularies.load("nowhere")


def test_vocabulary_imports_only_the_libraries_of_its_kind():
  program = (
    "import sys; from t5x_like import vocabularies; vocabularies.load('bytes').encode('x');"
    "libraries = {'tensorflow', 'tensorflow_datasets', 'sentencepiece', 'tokenizers'};"
    "assert not libraries & {*sys.modules}"
  )
  subprocess.run([sys.executable, "-c", program], check=True)


def test_missing_special_pieces_are_replaced_by_the_first_sentinels(pieces):
  for vocabulary in (pieces, ByteVocabulary()):
    ids = [vocabularies.special_id(vocabulary, name) for name in ("mask", "cls", "sep", "bos")]
    sentinels = list(range(vocabulary.size - vocabulary.extra_ids, vocabulary.size))
    assert ids == sentinels[:-5:-1]
    assert vocabulary.mask_id is None
    assert vocabulary.bos_id is None
    assert vocabulary.special_ids == {0, 1, *sentinels}


@pytest.fixture(scope="module")
def vocabulary_with_mask():
  """Return a vocabulary whose model has the pieces CLS, SEP and MASK."""
  return SentencePieceVocabulary(sentencepiece_model(control_symbols=["[CLS]", "[SEP]", "[MASK]"]))


def test_special_pieces_of_a_model_are_its_special_ids(vocabulary_with_mask):
  for number, name in enumerate(("cls", "sep", "mask"), start=3):
    assert getattr(vocabulary_with_mask, f"{name}_id") == number
    assert vocabularies.special_id(vocabulary_with_mask, name) == number
    assert number in vocabulary_with_mask.special_ids


def test_special_pieces_of_a_model_are_decoded_but_not_encoded(vocabulary_with_mask):
  assert (
    not set(vocabulary_with_mask.encode("[CLS] the [MASK] fox[SEP]"))
    & vocabulary_with_mask.special_ids
  )
  fox = vocabulary_with_mask.encode("fox")
  assert vocabulary_with_mask.decode([3, *fox, 5, *fox, 4, 1]) == "fox [MASK] fox"
  size = vocabulary_with_mask.size
  shown_pieces = ["<pad>", "[CLS]", "<extra_id_0>", f"<{size}?>"]
  assert vocabulary_with_mask.pieces_of([0, 3, size - 1, size]) == shown_pieces


@pytest.mark.parametrize(
  "name, words", [("mask", ("mask piece", "0 sentinels", "--with_mask")), ("msk", ("'msk'",))]
)
def test_missing_special_piece_is_refused(name, words):
  with refuses(*words):
    vocabularies.special_id(ByteVocabulary(0), name)


def test_starts_word_marks_pieces_that_begin_a_word(pieces):
  ids = pieces.encode("the quick brown fox")
  assert pieces.starts_word.dtype == bool
  assert pieces.starts_word.shape == (pieces.size,)
  assert pieces.starts_word[ids].sum() == 4
  assert pieces.starts_word[ids[0]]
  assert pieces.starts_word[sorted(pieces.special_ids)].all()
  byt5 = ByteVocabulary()
  assert byt5.starts_word[byt5.encode("a b\nc")].tolist() == [False, True, False, True, False]

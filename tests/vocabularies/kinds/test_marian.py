"""Marian's tokenizers encode sources and targets by their SentencePiece models."""

import json

import pytest
import sentencepiece

import published
from refusals import refuses
from t5x_like import vocabularies


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
  return published.marian(tmp_path_factory.mktemp("marian") / "files")


def expected_ids(directory, side, text):
  """Return the ids of a text without special pieces, computed from the files."""
  ids = json.loads((directory / "vocab.json").read_text())
  processor = sentencepiece.SentencePieceProcessor(model_file=str(directory / f"{side}.spm"))
  return [ids.get(piece, ids["<unk>"]) for piece in processor.encode(text, out_type=str)]


def test_source_and_target_have_different_models_and_common_ids(directory):
  vocabulary = vocabularies.load(str(directory))
  plain = [text for text in published.HOSTILE if "</s>" not in text and "<pad>" not in text]
  for text in [*plain, "XOF NWORB", "the quick brown fox"]:
    assert vocabulary.encode(text) == expected_ids(directory, "source", text)
    assert vocabulary.for_targets().encode(text) == expected_ids(directory, "target", text)
  assert vocabulary.encode("the quick brown fox") != vocabulary.for_targets().encode(
    "the quick brown fox"
  )
  assert vocabulary.unk_id in vocabulary.encode("世 £")
  assert vocabulary.decode(vocabulary.for_targets().encode("XOF NWORB")) == "XOF NWORB"
  assert vocabulary.eos_id == 0
  assert vocabulary.unk_id == 1
  assert vocabulary.pad_id == vocabulary.size - 1
  assert vocabulary.decoder_start_id == vocabulary.pad_id
  assert vocabulary.enclosing_ids() == (
    [],
    [0],
  )


def test_pieces_of_added_tokens_json_are_special(directory, tmp_path):
  for file in directory.iterdir():
    (tmp_path / file.name).write_bytes(file.read_bytes())
  (tmp_path / "added_tokens.json").write_text('{">>fra<<": 2}')
  vocabulary = vocabularies.load(str(tmp_path))
  the = expected_ids(directory, "source", "the ")
  fox = expected_ids(directory, "source", " fox")
  assert vocabulary.encode("the >>fra<< fox") == [*the, 2, *fox]


def test_words_begin_at_sentencepieces_space_mark(directory):
  vocabulary = vocabularies.load(str(directory))
  for encoder, text in (
    (vocabulary, "the quick brown fox"),
    (vocabulary.for_targets(), "XOF NWORB KCIUQ EHT"),
  ):
    ids = encoder.encode(text)
    assert vocabulary.starts_word[ids].sum() == 4
    assert b"".join(vocabulary.bytes_of(ids)).decode() == f" {text}"
  assert vocabulary.bytes_of([vocabulary.eos_id, vocabulary.unk_id]) == [b"", "\ufffd".encode()]


def test_special_pieces_and_language_codes_are_encoded_as_pieces(directory):
  vocabulary = vocabularies.load(str(directory))
  the = expected_ids(directory, "source", "the ")
  fox = expected_ids(directory, "source", " fox")
  assert vocabulary.encode("the </s> fox") == [*the, 0, *fox]
  assert vocabulary.encode(">>deu<< fox") == [3, *fox]
  assert vocabulary.encode(">>xyz<< fox") == [1, *fox]
  assert vocabulary.encode("the >>deu<<") == expected_ids(directory, "source", "the >>deu<<")
  text_only = vocabulary.with_text_only()
  assert text_only.encode("the </s> fox") == expected_ids(directory, "source", "the </s> fox")
  assert not text_only.specials_in_text
  assert text_only.fingerprint != vocabulary.fingerprint


def test_saved_vocabulary_is_equal_and_exports_the_original_files(directory, tmp_path):
  vocabulary = vocabularies.load(str(directory))
  vocabulary.save(tmp_path)
  loaded = vocabularies.load(str(tmp_path))
  assert loaded.fingerprint == vocabulary.fingerprint
  assert loaded.for_targets().encode("XOF") == vocabulary.for_targets().encode("XOF")
  files = ("source.spm", "target.spm", "vocab.json", "tokenizer_config.json")
  assert loaded.export_files() == {name: (directory / name).read_bytes() for name in files}


@pytest.mark.parametrize(
  "name, content, words",
  [
    ("target.spm", None, ("found no target.spm",)),
    ("source.spm", b"\xff", ("source.spm: found 1 bytes", "SentencePiece")),
    (
      "vocab.json",
      b'{"</s>": 0, "<unk>": 1, "<pad>": 99}',
      ("vocab.json", "3 pieces with ids up to 99"),
    ),
    ("vocab.json", b'{"</s>": 0, "<unk>": 1}', ("'<pad>'", "vocab.json")),
    (
      "vocab.json",
      b'{"</s>": 0, "<unk>": 1, "<pad>": 2, "a": null}',
      ("vocab.json", "4 pieces with ids up to 2"),
    ),
    ("vocab.json", b'{"</s>": -1}', ("expected an id from 0 to",)),
    (
      "tokenizer_config.json",
      b'{"added_tokens_decoder": {"7": {"content": "<unk>"}}}',
      ("'<unk>' with id 7", "vocab.json"),
    ),
    ("added_tokens.json", b'{"</s>": null}', ("'</s>' with id None",)),
    ("added_tokens.json", b'{"<sep>": 500}', ("'<sep>' with id 500",)),
    (
      "tokenizer_config.json",
      b'{"separate_vocabs": true}',
      ("found True", "'separate_vocabs'"),
    ),
    (
      "tokenizer_config.json",
      b'{"sp_model_kwargs": {"enable_sampling": true}}',
      ("'sp_model_kwargs'",),
    ),
    (
      "tokenizer_config.json",
      b'{"eos_token": {"content": "</s>", "lstrip": true}}',
      ("'</s>'", "'lstrip'"),
    ),
  ],
)
def test_unreadable_tokenizers_are_refused(directory, tmp_path, name, content, words):
  for file in directory.iterdir():
    (tmp_path / file.name).write_bytes(file.read_bytes())
  if content is None:
    (tmp_path / name).unlink()
  else:
    (tmp_path / name).write_bytes(content)
  with refuses(*words):
    vocabularies.load(str(tmp_path))

"""Marian's tokenizers give the ids of their SentencePiece models."""

import json

import pytest
import sentencepiece

import published
from refusals import refuses
from t5x_like import vocabularies


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
  return published.marian(tmp_path_factory.mktemp("marian") / "files")


def numbered(directory, side, text):
  """The ids of a text without special pieces, by the definition."""
  ids = json.loads((directory / "vocab.json").read_text())
  processor = sentencepiece.SentencePieceProcessor(model_file=str(directory / f"{side}.spm"))
  return [ids.get(piece, ids["<unk>"]) for piece in processor.encode(text, out_type=str)]


def test_each_side_has_its_model_and_both_have_the_same_ids(directory):
  vocabulary = vocabularies.load(str(directory))
  plain = [text for text in published.HOSTILE if "</s>" not in text and "<pad>" not in text]
  for text in [*plain, "XOF NWORB", "the quick brown fox"]:
    assert vocabulary.encode(text) == numbered(directory, "source", text)
    assert vocabulary.for_targets().encode(text) == numbered(directory, "target", text)
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


def test_pieces_that_older_files_add_are_special(directory, tmp_path):
  for file in directory.iterdir():
    (tmp_path / file.name).write_bytes(file.read_bytes())
  (tmp_path / "added_tokens.json").write_text('{">>fra<<": 2}')
  vocabulary = vocabularies.load(str(tmp_path))
  the = numbered(directory, "source", "the ")
  fox = numbered(directory, "source", " fox")
  assert vocabulary.encode("the >>fra<< fox") == [*the, 2, *fox]


def test_words_begin_at_the_mark_of_a_space(directory):
  vocabulary = vocabularies.load(str(directory))
  for encoder, text in (
    (vocabulary, "the quick brown fox"),
    (vocabulary.for_targets(), "XOF NWORB KCIUQ EHT"),
  ):
    ids = encoder.encode(text)
    assert vocabulary.starts_word[ids].sum() == 4
    assert b"".join(vocabulary.bytes_of(ids)).decode() == f" {text}"
  assert vocabulary.bytes_of([vocabulary.eos_id, vocabulary.unk_id]) == [b"", "\ufffd".encode()]


def test_special_pieces_and_codes_of_languages_are_pieces(directory):
  vocabulary = vocabularies.load(str(directory))
  the = numbered(directory, "source", "the ")
  fox = numbered(directory, "source", " fox")
  assert vocabulary.encode("the </s> fox") == [*the, 0, *fox]
  assert vocabulary.encode(">>deu<< fox") == [3, *fox]
  assert vocabulary.encode(">>xyz<< fox") == [1, *fox]
  assert vocabulary.encode("the >>deu<<") == numbered(directory, "source", "the >>deu<<")
  text_only = vocabulary.with_text_only()
  assert text_only.encode("the </s> fox") == numbered(directory, "source", "the </s> fox")
  assert not text_only.specials_in_text
  assert text_only.fingerprint != vocabulary.fingerprint


def test_a_saved_vocabulary_is_the_same_and_brings_its_files(directory, tmp_path):
  vocabulary = vocabularies.load(str(directory))
  vocabulary.save(tmp_path)
  again = vocabularies.load(str(tmp_path))
  assert again.fingerprint == vocabulary.fingerprint
  assert again.for_targets().encode("XOF") == vocabulary.for_targets().encode("XOF")
  files = ("source.spm", "target.spm", "vocab.json", "tokenizer_config.json")
  assert again.export_files() == {name: (directory / name).read_bytes() for name in files}


@pytest.mark.parametrize(
  "name, content, names",
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
def test_unreadable_tokenizers_are_refused(directory, tmp_path, name, content, names):
  for file in directory.iterdir():
    (tmp_path / file.name).write_bytes(file.read_bytes())
  if content is None:
    (tmp_path / name).unlink()
  else:
    (tmp_path / name).write_bytes(content)
  with refuses(*names):
    vocabularies.load(str(tmp_path))

"""A damaged tokenizer ends in a one-line error or encodes and decodes without loss."""

import functools
import json
import pathlib
import random
import tempfile

import pytest

import published
from t5x_like import vocabularies
from t5x_like.vocabularies.kinds._pipelines import _model_proto
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary
from t5x_like.vocabularies.kinds.labels import LabelVocabulary
from t5x_like.vocabularies.kinds.sentencepiece import SentencePieceVocabulary
from t5x_like.vocabularies.kinds.tokenizer import TokenizerVocabulary
from tests.fuzz import harness, mutations

TEXTS = ["the quick brown fox", "naïve 世界 <extra_id_0> </s>", ""]
# Directories as Hugging Face publishes them; "complete" has all of Llama 3's files.
PUBLISHED = ("gpt2", "bart", "llama", "gemma2", "t5", "bert", "complete")
# Directories that this package saves.
SAVED = ("sentencepiece", "tokenizer", "bytes", "labels", "saved")


@functools.cache
def files_of(kind: str) -> dict[str, bytes]:
  """Return the files of a valid vocabulary directory, by name."""
  with tempfile.TemporaryDirectory() as root:
    path = pathlib.Path(root) / "vocabulary"
    if kind == "sentencepiece":
      SentencePieceVocabulary(published.t5(), 10).save(path)
    elif kind == "tokenizer":
      model = published.byte_level(["[PAD]", "</s>", "[UNK]"]).to_str().encode()
      TokenizerVocabulary(model).save(path)
    elif kind == "bytes":
      ByteVocabulary().save(path)
    elif kind == "labels":
      LabelVocabulary(["cat", "dog"]).save(path)
    elif kind == "saved":
      vocabularies.load(str(published.write(pathlib.Path(root) / "from", "bert"))).save(path)
    elif kind == "complete":
      path.mkdir()
      published.byte_level(["<|begin_of_text|>", "<|end_of_text|>"]).save(
        str(path / "tokenizer.json")
      )
      tokens = {
        "bos_token": "<|begin_of_text|>",
        "eos_token": "<|end_of_text|>",
        "tokenizer_class": "PreTrainedTokenizer",
      }
      processor = {
        "added_tokens_decoder": {
          "0": {"content": "<|begin_of_text|>", "special": True, "normalized": False}
        }
      }
      (path / "tokenizer_config.json").write_text(json.dumps(tokens | processor))
      (path / "config.json").write_text(
        json.dumps({"model_type": "llama", "eos_token_id": [1, 2], "vocab_size": 400})
      )
    else:
      published.write(path, kind)
      config = {"model_max_length": 512, "extra_ids": 100, "add_prefix_space": True}
      (path / "tokenizer_config.json").write_text(json.dumps(config))
      special = {
        "eos_token": {"content": "</s>", "lstrip": False},
        "additional_special_tokens": ["<a>", "<b>"],
      }
      (path / "special_tokens_map.json").write_text(json.dumps(special))
      (path / "added_tokens.json").write_text(json.dumps({"<a>": 500, "<b>": 501}))
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


def mutate_model(data: bytes, rng: random.Random) -> tuple[bytes, str]:
  """Return a SentencePiece model with one random change, and a description of the change."""
  proto = _model_proto().FromString(data)
  piece = rng.choice(proto.pieces)
  kind = rng.randint(0, 7)
  if kind == 0:
    change = rng.choice(["", "\0", "<extra_id_0>", "x" * 3000, proto.pieces[0].piece])
    piece.piece = change
  elif kind == 1:
    change = rng.choice([float("nan"), float("inf"), -float("inf"), 1e38])
    piece.score = change
  elif kind == 2:
    change = rng.choice([0, 1, 2, 3, 4, 5, 6, 77, -1])
    piece.type = change
  elif kind == 3:
    change = rng.randint(0, len(proto.pieces))
    del proto.pieces[change:]
  elif kind == 4:
    change = "the same pieces again"
    proto.pieces.extend([*proto.pieces])
  elif kind == 5:
    charsmap, change = mutations.mutate_bytes(proto.normalizer_spec.precompiled_charsmap, rng)
    proto.normalizer_spec.precompiled_charsmap = charsmap
  elif kind == 6:
    change = rng.choice([0, 1, 2, 3, 4, 9, -1])
    proto.trainer_spec.model_type = change
  else:
    change = rng.choice([b"", b"\xff\xff\xff\x7f", b"\0" * 50, rng.randbytes(99)])
    proto.normalizer_spec.precompiled_charsmap = change
  return proto.SerializeToString(), f"model {kind}: {change!r}"[:100]


def make_case(rng: random.Random, root):
  """Write a vocabulary with one damaged file; return a description and the call to check."""
  kind = rng.choice((*PUBLISHED, *SAVED))
  files = dict(files_of(kind))
  name = rng.choice(sorted(files))
  draw = rng.random()
  if name.endswith(".json") and draw < 0.75:
    num_changes = rng.choice((1, 1, 2))
    tree, change = mutations.mutate_json(json.loads(files[name]), rng, num_changes)
    files[name] = mutations.json_text(tree)
  elif name.endswith(".model") and draw < 0.6:
    files[name], change = mutate_model(files[name], rng)
  elif draw > 0.97:
    files[name] = mutations.DEEP
    change = "deep"
  elif draw > 0.94:
    del files[name]
    change = "removed"
  else:
    files[name], change = mutations.mutate_bytes(files[name], rng)
  directory = root / "vocabulary"
  directory.mkdir()
  for file, data in files.items():
    (directory / file).write_bytes(data)

  def call(out):
    vocabulary = vocabularies.load(str(directory))
    if not isinstance(vocabulary, LabelVocabulary):
      ids = vocabulary.encode_batch(TEXTS)
      assert all(0 <= i < vocabulary.size for row in ids for i in row.tolist())
      for row in ids:
        vocabulary.decode(row.tolist())
      vocabularies.encode_sentinels(vocabulary, TEXTS[1])
    vocabulary.export_files()
    vocabulary.enclosing_ids()
    vocabulary.save(out / "again")
    assert vocabularies.load(str(out / "again")).fingerprint == vocabulary.fingerprint

  return f"{kind}, {name}: {change}", call


def test_a_few_mutated_tokenizers_are_read_or_refused(tmp_path):
  harness.run_cases(make_case, tmp_path, range(15))


@pytest.mark.fuzz
@pytest.mark.parametrize("first", range(1000, 1300, 60))
def test_many_mutated_tokenizers_are_read_or_refused(first, tmp_path):
  harness.run_cases(make_case, tmp_path, range(first, first + 60))

"""A trained vocabulary has the size and special ids of its flags and is the same each time."""

import collections
import itertools
import json
import random
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refusals import refuses
from t5x_like import vocabularies
from tools import train_vocabulary

_PARTS = [
  ("con", "re", "trans", "pro"),
  ("form", "port", "duct", "claim", "view", "stitut"),
  ("", "ed", "ing", "er"),
]
WORDS = ["".join(parts) for parts in itertools.product(*_PARTS)]


@pytest.fixture
def corpus(tmp_path):
  generator = random.Random(0)
  random_words = ["".join(generator.choices(string.ascii_lowercase, k=5)) for _ in range(200)]
  words = WORDS + random_words
  texts = [" ".join(generator.choices(words, k=40)) + "\nß" for _ in range(200)]
  path = tmp_path / "corpus.jsonl"
  path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
  return path


def run(corpus, output, *options) -> int:
  return train_vocabulary.main(
    [f"--source=jsonl:{corpus}", f"--output={output}", "--kind=unigram", *options]
  )


CODE = "def f(x):\n    if x:\n\t\treturn  x  # \U0001f600 na\u00efve, \ufb01\r\n\n\n"


def test_the_default_kind_loses_no_character_and_others_report_their_loss(tmp_path, capsys):
  """Indentation is learned with the line end before it, as one token."""
  (tmp_path / "code.txt").write_text(CODE * 400)
  flags = [f"--source=text:{tmp_path}/code.txt", "--extra_ids=0"]
  assert train_vocabulary.main([*flags, "--size=290", f"--output={tmp_path}/default"]) == 0
  assert "it loses" not in capsys.readouterr().out
  vocabulary = vocabularies.load(str(tmp_path / "default"))
  assert vocabulary.decode(vocabulary.encode(CODE + "\u4e2d")) == CODE + "\u4e2d"
  assert len(vocabulary.encode("\n    if")) <= 3
  assert (
    train_vocabulary.main([*flags, "--size=24", "--kind=unigram", f"--output={tmp_path}/t5"]) == 0
  )
  match = re.search(
    r"it loses (\d+) % of the characters .*--kind=bytelevel_bpe loses none", capsys.readouterr().out
  )
  line_ends = CODE.count("\n") + CODE.count("\r")
  indentation = 4 + CODE.count("\t")
  emoji = 1
  ligature = 2
  lost = line_ends + indentation + emoji + ligature
  assert abs(int(match[1]) - 100 * lost / len(CODE)) <= 4


@given(
  st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), max_size=5),
  st.integers(8, 40),
)
def test_cutting_into_runs_loses_nothing(documents, max_bytes):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(train_vocabulary, "LONGEST_LINE", max_bytes)
    runs = list(train_vocabulary.split_into_runs(documents))
  for run_bytes in runs:
    assert 0 < len(run_bytes) <= max_bytes
    assert run_bytes.decode()
  assert b"".join(runs).decode() == "".join(documents)


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_the_size_counts_sentinels_and_the_special_ids_are_t5s(model_type, corpus, tmp_path):
  assert run(corpus, tmp_path / "v", "--size=160", f"--model_type={model_type}") == 0
  vocabulary = vocabularies.load(str(tmp_path / "v"))
  assert vocabulary.size == 160
  assert vocabulary.extra_ids == 100
  assert vocabulary.pieces == 60
  assert vocabulary.pad_id == 0
  assert vocabulary.eos_id == 1
  assert vocabulary.unk_id == 2
  text = "transformed reporting conductor"
  assert vocabulary.decode(vocabulary.encode(text)) == text
  assert vocabulary.unk_id not in vocabulary.encode(text)


def test_skipped_documents_are_reported(corpus, tmp_path, capsys):
  corpus.write_text('{"text": ""}\n{"text": "a\\u0000b"}\n' + corpus.read_text())
  assert run(corpus, tmp_path / "v", "--size=160") == 0
  assert "1 skipped (NUL character), 1 skipped (empty) ..." in capsys.readouterr().out


def test_the_same_input_gives_the_same_vocabulary_and_is_not_trained_twice(
  corpus, tmp_path, capsys
):
  for name in ("one", "two"):
    assert run(corpus, tmp_path / name, "--size=160", "--max_bytes=20000") == 0
  first_files = sorted(path.read_bytes() for path in (tmp_path / "one").iterdir())
  second_files = sorted(path.read_bytes() for path in (tmp_path / "two").iterdir())
  assert first_files == second_files
  capsys.readouterr()
  assert run(corpus, tmp_path / "one", "--size=160", "--max_bytes=20000") == 0
  assert "exists already" in capsys.readouterr().out
  assert run(corpus, tmp_path / "one", "--size=150", "--max_bytes=20000") == 2
  assert "found a vocabulary trained with other size, expected" in capsys.readouterr().err
  corpus.write_text(corpus.read_text() + "\n")
  assert run(corpus, tmp_path / "one", "--size=160", "--max_bytes=20000") == 2
  assert "trained with other source" in capsys.readouterr().err
  assert sorted(path.read_bytes() for path in (tmp_path / "one").iterdir()) == first_files


def test_byte_fallback_leaves_nothing_unknown(corpus, tmp_path):
  assert run(corpus, tmp_path / "v", "--size=360", "--byte_fallback", "--extra_ids=10") == 0
  vocabulary = vocabularies.load(str(tmp_path / "v"))
  assert vocabulary.decode(vocabulary.encode("port 日本 \U0001f600")) == "port 日本 \U0001f600"
  assert vocabulary.unk_id not in vocabulary.encode("日本")


@pytest.mark.parametrize(
  ("options", "message"),
  [
    (["--size=32100"], "--size: found 32000 pieces"),
    (["--size=32100", "--model_type=bpe"], "--size: found 32000 pieces"),
    (["--size=110"], "too few for the characters"),
    (["--size=100"], "--size: found 100 with 100 sentinels, expected at least 108"),
    (["--size=160", "--split=validation"], "found no split 'validation'"),
    (["--size=160", "--text_field=txt"], "found no field 'txt'"),
    (["--size=160", "--threads=0"], "--threads: found 0"),
    (["--size=160", "--max_bytes=0"], "--max_bytes: found 0"),
    (["--size=160", "--extra_ids=-1"], "--extra_ids: found -1"),
    (["--size=160", "--character_coverage=2"], "--character_coverage: found 2.0"),
  ],
)
def test_impossible_training_is_refused_in_one_line(options, message, corpus, tmp_path, capfd):
  assert run(corpus, tmp_path / "v", *options) == 2
  error = capfd.readouterr().err
  assert error.startswith("error: ")
  assert error.count("\n") == 1
  assert message in error
  assert not (tmp_path / "v").exists()


def test_an_output_that_cannot_be_written_is_refused(corpus, tmp_path, capsys):
  (tmp_path / "file").write_text("")
  assert run(corpus, tmp_path / "file" / "v", "--size=160") == 2
  assert f"{tmp_path}/file/v: cannot be written" in capsys.readouterr().err


def test_the_progress_of_reading_is_reported(monkeypatch, capsys):
  monkeypatch.setattr(train_vocabulary, "_PROGRESS_SECONDS", 0)
  assert train_vocabulary.sample([b"a" * 1_000_000] * 3, 10**7)[1] == 3_000_000
  assert "read 3 MB so far ..." in capsys.readouterr().out


def test_a_tokenizer_of_another_program_is_not_overwritten(corpus, tmp_path, capsys):
  (tmp_path / "tokenizer.json").write_text("{}")
  assert run(corpus, tmp_path, "--size=160") == 2
  assert "found the tokenizer.json of another tokenizer" in capsys.readouterr().err


def test_a_vocabulary_is_written_to_an_address(corpus, tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  for message in ("vocabulary memory://trained/v: 160 ids", "exists already"):
    assert run(corpus, "memory://trained/v", "--size=160") == 0
    assert message in capsys.readouterr().out
  assert vocabularies.load("memory://trained/v").size == 160
  assert not (tmp_path / "memory:").exists()


def test_a_damaged_output_is_not_taken_for_a_vocabulary(corpus, tmp_path, capsys):
  assert run(corpus, tmp_path / "v", "--size=160") == 0
  (tmp_path / "v" / "sentencepiece.model").write_bytes(b"damaged")
  assert run(corpus, tmp_path / "v", "--size=160") == 2
  assert "the directory is damaged" in capsys.readouterr().err


@given(
  st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), max_size=5),
  st.integers(8, 40),
)
def test_cutting_into_lines_loses_nothing_but_white_space(documents, max_bytes):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(train_vocabulary, "LONGEST_LINE", max_bytes)
    lines = list(train_vocabulary.split_into_lines(documents))
  for line in lines:
    assert 0 < len(line) <= max_bytes
    assert line.decode()
  assert _remove_white_space(b"".join(lines).decode()) == _remove_white_space("".join(documents))


def _remove_white_space(text: str) -> str:
  return "".join(text.split())


@given(st.lists(st.binary(min_size=1, max_size=20), max_size=60), st.integers(1, 400))
def test_a_sample_is_bounded_in_order_and_always_the_same(lines, max_bytes):
  sampled_lines, total = train_vocabulary.sample(iter(lines), max_bytes)
  assert total == len(b"".join(lines))
  longest = max((len(line) for line in sampled_lines), default=0)
  assert len(b"".join(sampled_lines)) <= max(max_bytes, longest)
  remaining = iter(lines)
  assert all(line in remaining for line in sampled_lines)  # a subsequence
  assert (sampled_lines, total) == train_vocabulary.sample(iter(lines), max_bytes)
  if total <= max_bytes:
    assert sampled_lines == lines
  else:
    assert sampled_lines


def test_a_sample_covers_the_whole_corpus():
  lines = [b"%08d" % i for i in range(10_000)]
  sampled_lines, _ = train_vocabulary.sample(lines, 8 * 1000)
  assert len(sampled_lines) == 1000
  counts = collections.Counter(int(line) // 1000 for line in sampled_lines)
  for tenth in range(10):
    assert 60 < counts[tenth] < 150


def test_a_model_of_too_many_pieces_is_refused():
  with refuses("found 5000 pieces"):
    train_vocabulary.train([b"few words"], size=5000)


@pytest.mark.parametrize(
  "kind, size", [("unigram", 170), ("bpe", 170), ("wordpiece", 250), ("bytelevel_bpe", 400)]
)
def test_every_kind_has_special_ids_and_is_not_trained_twice(kind, size, corpus, tmp_path, capsys):
  flags = (f"--size={size}", f"--kind={kind}", "--with_mask")
  assert run(corpus, tmp_path / "v", *flags) == 0
  vocabulary = vocabularies.load(str(tmp_path / "v"))
  assert vocabulary.size == size
  assert vocabulary.extra_ids == 100
  assert vocabulary.cls_id == 3
  assert vocabulary.sep_id == 4
  assert vocabulary.mask_id == 5
  assert vocabulary.decode(vocabulary.encode("transformed reporting")) == "transformed reporting"
  assert run(corpus, tmp_path / "v", *flags) == 0
  assert "exists already" in capsys.readouterr().out
  assert run(corpus, tmp_path / "v", *flags[:2]) == 2
  assert "trained with other with_mask" in capsys.readouterr().err


def test_a_record_without_a_kind_is_still_read(corpus, tmp_path, capsys):
  assert run(corpus, tmp_path / "v", "--size=160") == 0
  path = tmp_path / "v" / train_vocabulary.RECORD
  record = json.loads(path.read_text())
  record["model_type"] = record.pop("kind")
  del record["with_mask"]
  del record["lowercase"]
  path.write_text(json.dumps(record))
  capsys.readouterr()
  assert run(corpus, tmp_path / "v", "--size=160") == 0
  assert "exists already" in capsys.readouterr().out


def test_only_wordpiece_lowercases(corpus, tmp_path, capsys):
  assert run(corpus, tmp_path / "v", "--size=400", "--kind=bytelevel_bpe", "--lowercase") == 2
  assert "--lowercase" in capsys.readouterr().err
  assert run(corpus, tmp_path / "w", "--size=250", "--kind=wordpiece", "--lowercase") == 0
  vocabulary = vocabularies.load(str(tmp_path / "w"))
  assert vocabulary.encode("RÉPORTED") == vocabulary.encode("reported")
  assert run(corpus, tmp_path / "x", "--size=160", "--lowercase") == 2
  assert "--lowercase: found it with --kind=unigram" in capsys.readouterr().err

"""A trained vocabulary has the size and special ids of its flags and is deterministic."""

import collections
import itertools
import json
import random
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5x_like import vocabularies
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary
from tools import train_vocabulary

_PARTS = [
  ("con", "re", "trans", "pro"),
  ("form", "port", "duct", "claim", "view", "stitut"),
  ("", "ed", "ing", "er"),
]
WORDS = ["".join(parts) for parts in itertools.product(*_PARTS)]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


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


def test_default_kind_loses_no_character_and_others_report_their_loss(tmp_path, capsys):
  """The default kind learns a line end and the following indentation as one token."""
  (tmp_path / "code.txt").write_text(CODE * 400)
  flags = [f"--source=text:{tmp_path}/code.txt", "--extra_ids=0"]
  assert train_vocabulary.main([*flags, "--size=290", f"--output={tmp_path}/default"]) == 0
  assert "it loses" not in capsys.readouterr().out
  vocabulary = vocabularies.load(str(tmp_path / "default"))
  assert vocabulary.decode(vocabulary.encode(CODE + "\u4e2d")) == CODE + "\u4e2d"
  assert len(vocabulary.encode("\n    if")) <= 3
  unigram = [*flags, "--size=24", "--kind=unigram", f"--output={tmp_path}/unigram"]
  assert train_vocabulary.main(unigram) == 0
  report = r"it loses (\d+) % of the characters .*--kind=bytelevel_bpe loses none"
  match = re.search(report, capsys.readouterr().out)
  line_ends = CODE.count("\n") + CODE.count("\r")
  indentation = 4 + CODE.count("\t")
  emoji = 1
  ligature = 2
  lost = line_ends + indentation + emoji + ligature
  assert abs(int(match[1]) - 100 * lost / len(CODE)) <= 4


def test_skipped_documents_are_reported(corpus, tmp_path, capsys):
  corpus.write_text('{"text": ""}\n{"text": "a\\u0000b"}\n' + corpus.read_text())
  assert run(corpus, tmp_path / "v", "--size=160") == 0
  assert "1 skipped (NUL character), 1 skipped (empty) ..." in capsys.readouterr().out


def read_files(directory):
  return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_training_twice_gives_the_same_vocabulary(corpus, tmp_path):
  for name in ("first", "second"):
    assert run(corpus, tmp_path / name, "--size=160", "--max_bytes=20000") == 0
  assert read_files(tmp_path / "first") == read_files(tmp_path / "second")


def test_existing_vocabulary_is_kept_and_other_flags_are_refused(corpus, tmp_path, capsys):
  output = tmp_path / "v"
  assert run(corpus, output, "--size=160") == 0
  trained_files = read_files(output)
  capsys.readouterr()
  assert run(corpus, output, "--size=160") == 0
  assert "exists already" in capsys.readouterr().out
  for flags, key in ((["--size=150"], "size"), (["--size=160", "--with_mask"], "with_mask")):
    assert run(corpus, output, *flags) == 2
    assert f"found a vocabulary trained with other {key}, expected" in capsys.readouterr().err
  corpus.write_text(corpus.read_text() + "\n")
  assert run(corpus, output, "--size=160") == 2
  assert "trained with other source" in capsys.readouterr().err
  assert read_files(output) == trained_files


def test_vocabulary_with_byte_fallback_has_no_unknown_text(corpus, tmp_path):
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
    (["--size=160", "--lowercase"], "--lowercase: found it with --kind=unigram"),
    (["--size=400", "--lowercase", "--kind=bytelevel_bpe"], "--lowercase"),
  ],
)
def test_bad_flags_are_refused_in_one_line(options, message, corpus, tmp_path, capfd):
  assert run(corpus, tmp_path / "v", *options) == 2
  error = capfd.readouterr().err
  assert error.startswith("error: ")
  assert error.count("\n") == 1
  assert message in error
  assert not (tmp_path / "v").exists()


def write_file_at_parent(output):
  output.parent.write_text("")


def write_another_tokenizer(output):
  output.mkdir(parents=True)
  (output / "tokenizer.json").write_text("{}")


def write_damaged_vocabulary(output):
  ByteVocabulary().save(output)
  path = output / vocabularies.MANIFEST
  path.write_text(path.read_text().replace("384", "385"))


@pytest.mark.parametrize(
  "write, message",
  [
    (write_file_at_parent, "cannot be written"),
    (write_another_tokenizer, "found the tokenizer.json of another tokenizer"),
    (write_damaged_vocabulary, "the file is damaged"),
  ],
)
def test_output_with_other_files_is_refused(write, message, corpus, tmp_path, capsys):
  output = tmp_path / "a" / "v"
  write(output)
  assert run(corpus, output, "--size=160") == 2
  error = capsys.readouterr().err
  assert str(output) in error
  assert message in error


def test_progress_of_reading_is_reported(monkeypatch, capsys):
  monkeypatch.setattr(train_vocabulary, "_PROGRESS_SECONDS", 0)
  assert train_vocabulary.sample([b"a" * 1_000_000] * 3, 10**7)[1] == 3_000_000
  assert "read 3 MB so far ..." in capsys.readouterr().out


def test_vocabulary_can_be_written_to_a_remote_path(corpus, tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  for message in ("vocabulary memory://trained/v: 160 ids", "exists already"):
    assert run(corpus, "memory://trained/v", "--size=160") == 0
    assert message in capsys.readouterr().out
  assert vocabularies.load("memory://trained/v").size == 160
  assert not (tmp_path / "memory:").exists()


def remove_white_space(text: str) -> str:
  return "".join(text.split())


@pytest.mark.parametrize(
  "split, kept_text",
  [
    (train_vocabulary.split_into_runs, str),
    (train_vocabulary.split_into_lines, remove_white_space),
  ],
)
@given(documents=st.lists(TEXTS, max_size=5), max_bytes=st.integers(8, 40))
def test_splitting_into_runs_loses_nothing_and_into_lines_only_white_space(
  split, kept_text, documents, max_bytes
):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(train_vocabulary, "LONGEST_LINE", max_bytes)
    parts = list(split(documents))
  for part in parts:
    assert 0 < len(part) <= max_bytes
    assert part.decode()
  assert kept_text(b"".join(parts).decode()) == kept_text("".join(documents))


@given(st.lists(st.binary(min_size=1, max_size=20), max_size=60), st.integers(1, 400))
def test_sample_is_a_bounded_deterministic_subsequence(lines, max_bytes):
  sampled_lines, total = train_vocabulary.sample(iter(lines), max_bytes)
  assert total == len(b"".join(lines))
  longest = max((len(line) for line in sampled_lines), default=0)
  assert len(b"".join(sampled_lines)) <= max(max_bytes, longest)
  remaining = iter(lines)
  assert all(line in remaining for line in sampled_lines)  # consumes `remaining`: a subsequence
  assert (sampled_lines, total) == train_vocabulary.sample(iter(lines), max_bytes)
  if total <= max_bytes:
    assert sampled_lines == lines
  else:
    assert sampled_lines


def test_sample_covers_the_whole_corpus():
  lines = [b"%08d" % i for i in range(10_000)]
  sampled_lines, _ = train_vocabulary.sample(lines, 8 * 1000)
  assert len(sampled_lines) == 1000
  counts = collections.Counter(int(line) // 1000 for line in sampled_lines)
  for tenth in range(10):
    assert 60 < counts[tenth] < 150


@pytest.mark.parametrize(
  "kind, size", [("unigram", 170), ("bpe", 170), ("wordpiece", 250), ("bytelevel_bpe", 400)]
)
def test_every_kind_has_the_requested_size_and_its_special_ids_first(kind, size, corpus, tmp_path):
  assert run(corpus, tmp_path / "v", f"--size={size}", f"--kind={kind}", "--with_mask") == 0
  vocabulary = vocabularies.load(str(tmp_path / "v"))
  assert vocabulary.size == size
  assert vocabulary.extra_ids == 100
  special_names = ("pad", "eos", "unk", "cls", "sep", "mask")
  assert [getattr(vocabulary, f"{name}_id") for name in special_names] == [0, 1, 2, 3, 4, 5]
  text = "transformed reporting"
  assert vocabulary.decode(vocabulary.encode(text)) == text
  assert vocabulary.unk_id not in vocabulary.encode(text)


def test_record_of_an_older_version_without_a_kind_is_read(corpus, tmp_path, capsys):
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


def test_wordpiece_folds_case_and_accents(corpus, tmp_path):
  assert run(corpus, tmp_path / "v", "--size=250", "--kind=wordpiece", "--lowercase") == 0
  vocabulary = vocabularies.load(str(tmp_path / "v"))
  assert vocabulary.encode("RÉPORTED") == vocabulary.encode("reported")

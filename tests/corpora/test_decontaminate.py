"""Decontamination removes the planted copies of an evaluation set and nothing else."""

import gzip
import json
import pickle

import numpy as np
import pytest

from t5x_like.corpora.cleaning import decontaminate
from t5x_like.errors import UserError
from t5x_like.store.tokens import TokenStore
from tools import prepare_data

RNG = np.random.default_rng(20)
WORDS = ["".join(chr(97 + letter) for letter in RNG.integers(0, 26, 6)) for _ in range(500)]


def sentence(words):
  return " ".join(RNG.choice(WORDS, words)).capitalize() + "."


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
  """(files, texts of 20, 10 and 5 words)."""
  root = tmp_path_factory.mktemp("questions")
  long = sentence(20)
  short = sentence(10)
  tiny = sentence(5)
  (root / "long.jsonl").write_text(json.dumps({"id": 1, "choices": [{"text": long}]}) + "\n")
  (root / "short.tsv").write_text(f"a\t{short}\t1\nb\t{tiny}\t0\n")
  return (str(root / "*.jsonl"), str(root / "short.tsv")), (long, short, tiny)


def test_pages_with_rows_of_words_are_removed_and_named(questions):
  files, (long, short, tiny) = questions
  step = pickle.loads(pickle.dumps(decontaminate.Step(against=files)))
  words = long.rstrip(".").split()
  leaks = {
    f"{sentence(30)} {long.upper().replace(' ', ', ')} {sentence(9)}": "text of long.jsonl",
    " ".join(words[3:16]): "text of long.jsonl",  # 13 words of it
    f"So: {short} Yes.": "text of short.tsv",
  }
  for text, reason in leaks.items():
    assert step.clean(text)[:2] == (None, reason)
  for text in (" ".join(words[3:15]), f"{tiny} {sentence(40)}", sentence(400), "", "one"):
    assert step.clean(text)[:2] == (text, None)


@pytest.mark.parametrize(
  "question, page",
  [
    (
      " ".join(f"Caf\u00e9 STRASSE{n}" for n in range(9)),
      " ".join(f"Cafe\u0301 stra\u00dfe{n}" for n in range(9)),
    ),
    ("".join(map(chr, range(0x4E00, 0x4E1C))) + "\uff1f", "".join(map(chr, range(0x4E00, 0x4E1C)))),
    ("".join(map(chr, range(0x0E01, 0x0E1D))), "".join(map(chr, range(0x0E01, 0x0E1D)))),
    (
      " ".join(f"emphasised{n}" for n in range(9)),
      " ".join(f"_emphas\u00adised{n}_" for n in range(9)),
    ),
    (
      " ".join(f"word{n}" for n in range(9)) + " \u5c71",
      " ".join(f"word{n}" for n in range(9)) + " \u5c71",
    ),
  ],
  ids=["accents", "han", "thai", "marks", "mixed"],
)
def test_a_leak_is_found_in_other_spellings_and_scripts(question, page, tmp_path):
  (tmp_path / "asked.jsonl").write_text(json.dumps({"question": question}) + "\n")
  step = decontaminate.Step(against=(str(tmp_path / "asked.jsonl"),))
  assert step.clean(f"{sentence(9)} \u4f60{page}\u597d {sentence(9)}")[1] == "text of asked.jsonl"
  assert step.clean(page[: len(page) // 2])[1] is None


def test_vowel_signs_belong_to_words(tmp_path):
  """Three words of Hindi, which have nine letters, are too few to look for."""
  question = "हिन्दी किताबें पढ़नी"
  (tmp_path / "asked.jsonl").write_text(json.dumps([question, " ".join([question] * 3)]) + "\n")
  step = decontaminate.Step(against=(str(tmp_path / "asked.jsonl"),))
  assert step.clean(question)[1] is None
  assert step.clean(" ".join([question] * 3))[1] == ("text of asked.jsonl")


def test_a_planted_leak_leaves_the_store_and_is_counted(questions, tmp_path, capsys):
  files, (long, short, _) = questions
  clean = [sentence(30) for _ in range(20)]
  pages = clean[:10] + [f"{clean[0]} {long}", f"{short} {clean[1]}"] + clean[10:]
  (tmp_path / "corpus.jsonl").write_text(
    "".join(json.dumps({"text": page}) + "\n" for page in pages)
  )
  flags = [
    f"--source=jsonl:{tmp_path}/corpus.jsonl",
    "--vocabulary=bytes",
    "--validation_fraction=0",
    "--workers=1",
  ]
  against = [f"--against={pattern}" for pattern in files]
  assert prepare_data.main(
    [*flags, f"--output={tmp_path}/out", "--clean=decontaminate", *against]
  ) in (0, None)
  store = TokenStore.open(f"{tmp_path}/out/train")
  assert store.num_documents == len(clean)
  assert store.manifest.skipped == {"text of long.jsonl": 1, "text of short.tsv": 1}
  assert "text of long.jsonl" in capsys.readouterr().out


@pytest.mark.parametrize(
  "content, problem",
  [
    ("{", "cannot be read as evaluation texts"),
    ('"too short"\n', "found no text of 8 words"),
    (None, "no such file"),
  ],
)
def test_unusable_evaluation_files_are_refused(content, problem, tmp_path):
  if content is not None:
    (tmp_path / "bad.jsonl").write_text(content)
  with pytest.raises(UserError, match=problem):
    decontaminate.Step(against=(str(tmp_path / "bad.jsonl"),))


def test_truncated_files_and_missing_numbers_are_refused(tmp_path):
  (tmp_path / "cut-0.jsonl.gz").write_bytes(
    gzip.compress(b'"one two three four five six seven eight"')[:40]
  )
  for pattern, problem in (
    ("cut-0.jsonl.gz", "cannot be read as evaluation texts"),
    ("cut-{0..1}.jsonl.gz", "cut-1"),
  ):
    with pytest.raises(UserError, match=problem):
      decontaminate.Step(against=(f"{tmp_path}/{pattern}",))


def test_files_need_the_step_and_the_step_needs_files(tmp_path, capsys):
  flags = ["--source=builtin:docstrings", "--vocabulary=bytes", f"--output={tmp_path}/out"]
  assert prepare_data.main([*flags, "--against=x.jsonl"]) == 2
  assert "expected --clean with decontaminate" in capsys.readouterr().err
  (tmp_path / "words").write_text("bad")
  assert prepare_data.main([*flags, "--clean=exact", f"--bad_words={tmp_path}/words"]) == 2
  assert "expected --clean with c4, found --clean=exact" in capsys.readouterr().err
  assert prepare_data.main([*flags, "--clean=c4", "--language=de"]) == 2
  assert "--language=de: expected --language_id" in capsys.readouterr().err
  assert prepare_data.main([*flags, "--clean=decontaminate"]) == 2
  assert "found no --against" in capsys.readouterr().err

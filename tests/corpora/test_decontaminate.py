"""Decontamination removes the pages that contain evaluation texts, and no others."""

import gzip
import json
import pickle

import numpy as np
import pytest

import json_lines
from preparations import decode_documents, prepare
from refusals import refuses
from t5x_like.corpora.cleaning import decontaminate
from t5x_like.store.tokens import TokenStore

RNG = np.random.default_rng(20)
WORDS = ["".join(chr(97 + letter) for letter in RNG.integers(0, 26, 6)) for _ in range(500)]


def random_sentence(words):
  return " ".join(RNG.choice(WORDS, words)).capitalize() + "."


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
  """Return (patterns of files, their texts of 20, 10 and 5 words)."""
  root = tmp_path_factory.mktemp("questions")
  long = random_sentence(20)
  short = random_sentence(10)
  tiny = random_sentence(5)
  (root / "long.jsonl").write_text(json.dumps({"id": 1, "choices": [{"text": long}]}) + "\n")
  (root / "short.tsv").write_text(f"a\t{short}\t1\nb\t{tiny}\t0\n")
  return (str(root / "*.jsonl"), str(root / "short.tsv")), (long, short, tiny)


def test_pages_with_parts_of_evaluation_texts_are_removed_with_a_reason(questions):
  files, (long, short, tiny) = questions
  step = pickle.loads(pickle.dumps(decontaminate.Step(against=files)))
  words = long.rstrip(".").split()
  respelled = long.upper().replace(" ", ", ")
  leaks = {
    f"{random_sentence(30)} {respelled} {random_sentence(9)}": "text of long.jsonl",
    " ".join(words[3:16]): "text of long.jsonl",  # 13 of its words
    f"So: {short} Yes.": "text of short.tsv",
  }
  for text, reason in leaks.items():
    assert step.clean(text)[:2] == (None, reason)
  for text in (
    " ".join(words[3:15]),
    f"{tiny} {random_sentence(40)}",
    random_sentence(400),
    "",
    "one",
  ):
    assert step.clean(text)[:2] == (text, None)


NUMBERS = range(9)
HAN = "".join(map(chr, range(0x4E00, 0x4E1C)))
THAI = "".join(map(chr, range(0x0E01, 0x0E1D)))
MIXED = " ".join(f"word{n}" for n in NUMBERS) + " \u5c71"


@pytest.mark.parametrize(
  "question, page",
  [
    (
      " ".join(f"Caf\u00e9 STRASSE{n}" for n in NUMBERS),
      " ".join(f"Cafe\u0301 stra\u00dfe{n}" for n in NUMBERS),
    ),
    (HAN + "\uff1f", HAN),
    (THAI, THAI),
    (
      " ".join(f"emphasised{n}" for n in NUMBERS),
      " ".join(f"_emphas\u00adised{n}_" for n in NUMBERS),
    ),
    (MIXED, MIXED),
  ],
  ids=["accents", "han", "thai", "marks", "mixed"],
)
def test_leaks_in_other_spellings_and_scripts_are_found(question, page, tmp_path):
  step = step_against(tmp_path, {"question": question})
  assert (
    step.clean(f"{random_sentence(9)} \u4f60{page}\u597d {random_sentence(9)}")[1]
    == "text of asked.jsonl"
  )
  assert step.clean(page[: len(page) // 2])[1] is None


def step_against(folder, *rows) -> decontaminate.Step:
  """Return the step that removes pages with the texts of these rows."""
  json_lines.write(folder / "asked.jsonl", rows)
  return decontaminate.Step(against=(str(folder / "asked.jsonl"),))


def test_vowel_signs_belong_to_words(tmp_path):
  """Three words of Hindi have nine letters, but are too few words for a leak."""
  question = "हिन्दी किताबें पढ़नी"
  step = step_against(tmp_path, [question, " ".join([question] * 3)])
  assert step.clean(question)[1] is None
  assert step.clean(" ".join([question] * 3))[1] == ("text of asked.jsonl")


def test_leaks_are_removed_from_a_store_and_counted(questions, tmp_path):
  files, (long, short, _) = questions
  clean = [random_sentence(30) for _ in range(20)]
  pages = clean[:10] + [f"{clean[0]} {long}", f"{short} {clean[1]}"] + clean[10:]
  json_lines.write(tmp_path / "corpus.jsonl", [{"text": page} for page in pages])
  flags = ["--validation_fraction=0", "--clean=decontaminate"]
  flags += [f"--against={pattern}" for pattern in files]
  assert prepare(f"jsonl:{tmp_path}/corpus.jsonl", tmp_path / "out", *flags) == 0
  store = TokenStore.open(tmp_path / "out" / "train")
  assert decode_documents(store) == clean
  assert store.manifest.skipped == {"text of long.jsonl": 1, "text of short.tsv": 1}


@pytest.mark.parametrize(
  "pattern, name",
  [
    ("bad.jsonl", "cannot be read as evaluation texts"),
    ("short.jsonl", "found no text of 8 words"),
    ("none.jsonl", "no such file"),
    ("cut-0.jsonl.gz", "cannot be read as evaluation texts"),
    ("cut-{0..1}.jsonl.gz", "cut-1"),
  ],
)
def test_bad_evaluation_files_are_refused(pattern, name, tmp_path):
  (tmp_path / "bad.jsonl").write_text("{")
  (tmp_path / "short.jsonl").write_text('"too short"\n')
  compressed = gzip.compress(b'"one two three four five six seven eight"')
  (tmp_path / "cut-0.jsonl.gz").write_bytes(compressed[:40])
  with refuses(name):
    decontaminate.Step(against=(f"{tmp_path}/{pattern}",))

"""The command holds out a validation split of any corpus: whole documents, or the end of one."""

import pytest

from preparations import decode_documents, prepare
from t5x_like.corpora import building
from t5x_like.errors import UserError
from t5x_like.store.tokens import TokenStore
from tools import train_vocabulary

BOOK = "".join(f"Line {i} of the book, and it goes on. So it does.\n" for i in range(400))
LINE = "One sentence stands here. " * 200 + "And the last one."


def prepare_texts(folder, *flags, workers=1):
  """Prepare the text files of a folder into stores below it."""
  return prepare(f"text:{folder}/*.txt", folder / "out", *flags, workers=workers)


def read_split(folder, split) -> list[str]:
  return decode_documents(TokenStore.open(folder / "out" / split))


@pytest.mark.parametrize(
  "text, end, last",
  [
    (BOOK, "a line", "\n"),
    (LINE, "a sentence", ". "),
    (LINE.replace(".", ","), "a word", " "),
    ("\u4e00\u4e8c\u4e09\u3002" * 300, "a sentence", "\u3002"),
    ("x" * 1_000, "a character", "x"),
    ("\U0001f600\u00e9", "a character", "\U0001f600"),
  ],
)
def test_single_document_is_cut_at_a_natural_end_near_the_fraction(
  text, end, last, tmp_path, capsys
):
  (tmp_path / "a.txt").write_text(text)
  assert prepare_texts(tmp_path, "--validation_fraction=0.02") == 0
  output = capsys.readouterr().out
  (train,) = read_split(tmp_path, "train")
  (validation,) = read_split(tmp_path, "validation")
  assert train + validation == text
  assert train.endswith(last)
  assert len(text) < 9 or 0.01 <= len(validation) / len(text) <= 0.03
  assert (
    f"it gets the last {len(validation):,} of {len(text):,} characters, cut after {end}" in output
  )
  assert prepare_texts(tmp_path, "--validation_fraction=0.02") == 0
  assert capsys.readouterr().out.count("exists already") == 2


def test_validation_does_not_depend_on_the_order_and_copies_are_cut_equally(tmp_path):
  """Otherwise the second copy of a document would leak the end of the first into training."""
  names = {"a": BOOK, "b": BOOK[1_000:], "c": "Short.\n", "d": BOOK}
  for order in (sorted(names), sorted(names, reverse=True)):
    folder = tmp_path / order[0]
    folder.mkdir()
    for number, name in enumerate(order):
      (folder / f"{number}.txt").write_text(names[name])
    assert prepare_texts(folder, "--validation_fraction=0.01") == 0
  splits = ("train", "validation")
  first = {split: read_split(tmp_path / "a", split) for split in splits}
  second = {split: read_split(tmp_path / "d", split) for split in splits}
  for split in splits:
    assert sorted(first[split]) == sorted(second[split])
  validation_size = sum(map(len, first["validation"]))
  assert 0.005 * len(BOOK) < validation_size
  assert sum(map(len, first["train"])) + validation_size == sum(map(len, names.values()))
  assert not set(first["validation"]) & set(first["train"])


def test_cut_does_not_depend_on_cleaning_and_workers(tmp_path):
  (tmp_path / "a.txt").write_text(BOOK)
  assert prepare_texts(tmp_path, "--clean=exact,near", workers=2) == 0
  assert "".join(read_split(tmp_path, "train") + read_split(tmp_path, "validation")) == BOOK


def test_single_character_cannot_be_divided(tmp_path, capsys):
  (tmp_path / "a.txt").write_text("x")
  assert prepare_texts(tmp_path) == 2
  assert "split 'validation': found 0 documents, expected at least one" in capsys.readouterr().err
  assert prepare_texts(tmp_path, "--validation_fraction=0") == 0
  assert read_split(tmp_path, "train") == ["x"]


def test_failed_preparation_leaves_no_store_and_is_resumed_or_discarded(
  tmp_path, capsys, monkeypatch
):
  (tmp_path / "a.txt").write_text(BOOK)
  build_contents = building.build_contents

  def refuse_validation(job, *arguments):
    if job.split == "validation":
      raise UserError("no space")
    return build_contents(job, *arguments)

  with monkeypatch.context() as patched:
    patched.setattr(building, "build_contents", refuse_validation)
    assert prepare_texts(tmp_path) == 2
    assert not (tmp_path / "out" / "train").exists()
    capsys.readouterr()
    assert prepare_texts(tmp_path) == 2
  output = capsys.readouterr().out
  assert output.count("left by an interrupted run with the same inputs; going on from there") == 2
  assert prepare_texts(tmp_path, "--validation_fraction=0.3", "--append_eos") == 0
  assert capsys.readouterr().out.count("left by a run with other inputs") == 2
  assert TokenStore.open(tmp_path / "out" / "train").append_eos
  assert sorted(child.name for child in (tmp_path / "out").iterdir()) == ["train", "validation"]


def test_preparation_reports_characters_that_the_vocabulary_loses(tmp_path, capsys):
  (tmp_path / "a.txt").write_text(BOOK)
  flags = ["--size=60", "--extra_ids=0", "--kind=bpe", f"--output={tmp_path}/v"]
  assert train_vocabulary.main([f"--source=text:{tmp_path}/a.txt", *flags]) == 0
  capsys.readouterr()
  assert prepare_texts(tmp_path, f"--vocabulary={tmp_path}/v") == 0
  share = 100 * BOOK.count("\n") / len(BOOK)
  assert (
    f"loses {share:.2g} % of the characters (400 x '\\n' of the first {len(BOOK):,})"
    in capsys.readouterr().out
  )


def test_file_in_two_splits_is_refused(tmp_path, capsys):
  for name in ("a", "valid"):
    (tmp_path / f"{name}.txt").write_text(f"{name} document.\n")
  source = f"text:train={tmp_path}/*.txt,validation={tmp_path}/valid.txt"
  assert prepare(source, tmp_path / "out") == 2
  assert f"found {tmp_path}/valid.txt in two splits" in capsys.readouterr().err
  # A single split is accepted.
  assert prepare(source, tmp_path / "out", "--split=train") == 0


def test_split_named_valid_is_the_validation_split(tmp_path):
  for name in ("a", "b"):
    (tmp_path / f"{name}.txt").write_text(f"{name} document.\n")
  source = f"text:train={tmp_path}/a.txt,valid={tmp_path}/b.txt"
  assert prepare(source, tmp_path / "out") == 0
  assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["train", "valid"]

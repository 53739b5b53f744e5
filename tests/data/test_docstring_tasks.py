"""Tasks made of docstrings: exact answers, balanced classes, and no document in two splits."""

import collections
import random

import pytest

from t5x_like.benchmarks.suites.docstrings import SUITE
from t5x_like.corpora.sources import open_source
from t5x_like.corpora.sources._docstrings import benchmark
from t5x_like.errors import UserError

GOOGLE = """Return the mean.

Args:
  values (Array): The numbers to take the mean of. They are not changed.
  axis: Along which axis
    the mean is taken.
  *rest: Passed on.

    A second paragraph.

Returns:
  value: The mean of the numbers."""
NUMPY = """Return the mean.

Parameters
----------
values : array_like
    The numbers to take the mean of.
axis : int, optional
    Along which axis the mean is taken.

Returns
-------
mean : float
    The mean of the numbers."""


def documents(number: int = 60) -> list[dict[str, str]]:
  packages = ("scipy", "jax", "stdlib", "other")
  return [
    {
      "text": f"The mean number {n} of numpy "
      f"arrays{', as mean_of_6 is' * (n == 6)}.\n\n{(GOOGLE, NUMPY)[n % 2]}",
      "package": packages[n % 7 % 4],
      "module": f"module_{n}",
      "qualname": ("mean", f"mean_of_{n}", "Mean", "Mean.__init__", "Mean._fastMean")[n % 5],
    }
    for n in range(number)
  ]


@pytest.mark.parametrize("task", benchmark.TASKS)
def test_the_records_follow_from_the_documents_alone(task):
  made = benchmark.records(task, documents())
  shuffled = random.Random(0).sample(documents(), 60)
  assert made == benchmark.records(task, shuffled) != []
  assert len({record["id"] for record in made}) == len(made) and all(
    all(record.values()) for record in made
  )


def test_classes_are_balanced_and_packages_unnamed():
  made = benchmark.records("package", documents())
  counts = collections.Counter(record["label"] for record in made)
  assert set(counts) == {"scipy", "jax", "stdlib"} and len(set(counts.values())) == 1
  assert all(
    "numpy" not in record["text"] and "package arrays" in record["text"] for record in made
  )
  labels = SUITE.tasks["package"].encoder.task["labels"]
  assert tuple(labels) == benchmark.PACKAGES


def test_halves_belong_together_exactly_where_the_label_says_so():
  texts = [" ".join(document["text"].split()) for document in documents(61)]
  made = benchmark.records("halves", documents(61))
  counts = collections.Counter(record["label"] for record in made)
  assert counts["together"] == counts["apart"] == 30 and tuple(
    SUITE.tasks["halves"].encoder.task["labels"]
  ) == (
    "apart",
    "together",
  )
  for record in made:
    joined = any(text.startswith(f"{record['first']} {record['second']}") for text in texts)
    assert joined == (record["label"] == "together") or record["second"] in " ".join(texts)
    assert any(record["first"] in text for text in texts) and any(
      record["second"] in text for text in texts
    )


def test_functions_are_named_by_their_words_which_the_summary_does_not_give():
  made = benchmark.records("name", documents())
  names = [record["name"] for record in made]
  assert (
    "mean" in names and "mean of 1" in names and "fast mean" in names and "mean of 6" not in names
  )
  assert not any("init" in name for name in names) and len(made) == 3 * 60 // 5 - 1


@pytest.mark.parametrize("text", [GOOGLE, NUMPY])
def test_parameters_are_read_in_both_forms(text):
  actual = benchmark.parameters(text)
  assert [name for name, _ in actual][:2] == ["values", "axis"] and ("rest" in dict(actual)) == (
    text is GOOGLE
  )
  assert dict(actual)["axis"] == "Along which axis the mean is taken."
  assert dict(actual)["values"].startswith("The numbers to take the mean of.")
  assert benchmark.parameters("Nothing.\n\nReturns:\n  x: nothing") == []


def test_an_answer_is_the_description_of_its_parameter():
  made = benchmark.records("parameter", documents())
  assert {record["question"] for record in made} >= {"values", "axis"}
  for record in made:
    ((text, start),) = [(one["text"], one["answer_start"]) for one in record["answers"]]
    assert (
      record["context"][start:].startswith(text)
      and f"{record['question']}: {text}" in record["context"]
    )


def test_no_text_of_the_test_split_is_in_the_corpus_that_pretraining_reads(tmp_path):
  corpus = open_source("docstrings:tiny", data_dir=str(tmp_path))
  seen, held_out = (
    " ".join(" ".join(record["text"].split()) for _, record in corpus.records(split))
    for split in ("train", "validation")
  )
  source = open_source("docstring_tasks:halves/tiny", data_dir=str(tmp_path))
  splits = {split: [record for _, record in source.records(split)] for split in source.splits}
  assert splits["test"] and splits["train"]
  for split, records in splits.items():
    read, other = (held_out, seen) if split == "test" else (seen, held_out)
    for record in records:
      assert record["first"] in read and record["second"] in read and record["first"] not in other
  facts = [source.split_facts(split) for split in source.splits]
  assert len({str(one) for one in facts}) == 3 and "sha256" in str(facts[0])


def test_an_unknown_task_is_refused(tmp_path):
  with pytest.raises(
    UserError,
    match=r"found 'nmae', expected one of .* \(did you mean 'name'\?\)|did you mean "
    r"'name'",
  ):
    open_source("docstring_tasks:nmae", data_dir=str(tmp_path))

"""Tasks of docstrings have exact answers, balanced classes and disjoint splits."""

import collections
import random

import pytest

from refusals import refuses
from t5x_like.benchmarks.suites.docstrings import SUITE
from t5x_like.corpora.sources import open_source
from t5x_like.corpora.sources._docstrings import benchmark

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


def make_documents(number: int = 60) -> list[dict[str, str]]:
  """Return docstrings of four packages, half in Google's form and half in NumPy's.

  The summary of number 6 contains the name of its function.
  """
  packages = ("scipy", "jax", "stdlib", "other")
  rows = []
  for n in range(number):
    ending = ", as mean_of_6 is" if n == 6 else ""
    summary = f"The mean number {n} of numpy arrays{ending}."
    names = ("mean", f"mean_of_{n}", "Mean", "Mean.__init__", "Mean._fastMean")
    row = {
      "text": f"{summary}\n\n{(GOOGLE, NUMPY)[n % 2]}",
      "package": packages[n % 7 % 4],
      "module": f"module_{n}",
      "qualname": names[n % 5],
    }
    rows.append(row)
  return rows


@pytest.mark.parametrize("task", benchmark.TASKS)
def test_records_depend_only_on_the_set_of_documents(task):
  records = benchmark.records(task, make_documents())
  shuffled = random.Random(0).sample(make_documents(), 60)
  assert records
  assert records == benchmark.records(task, shuffled)
  assert len({record["id"] for record in records}) == len(records)
  for record in records:
    assert all(record.values())


def test_classes_are_balanced_and_texts_do_not_name_their_package():
  records = benchmark.records("package", make_documents())
  counts = collections.Counter(record["label"] for record in records)
  assert set(counts) == {"scipy", "jax", "stdlib"}
  assert len(set(counts.values())) == 1
  for record in records:
    assert "numpy" not in record["text"]
    assert "package arrays" in record["text"]
  labels = SUITE.tasks["package"].encoder.task["labels"]
  assert tuple(labels) == benchmark.PACKAGES


def test_label_of_halves_states_whether_they_belong_together():
  texts = [" ".join(document["text"].split()) for document in make_documents(61)]
  records = benchmark.records("halves", make_documents(61))
  counts = collections.Counter(record["label"] for record in records)
  assert counts["together"] == counts["apart"] == 30
  assert tuple(SUITE.tasks["halves"].encoder.task["labels"]) == ("apart", "together")
  for record in records:
    joined = any(text.startswith(f"{record['first']} {record['second']}") for text in texts)
    assert joined == (record["label"] == "together") or record["second"] in " ".join(texts)
    assert any(record["first"] in text for text in texts)
    assert any(record["second"] in text for text in texts)


def test_names_are_the_words_of_functions_and_not_in_the_summary():
  records = benchmark.records("name", make_documents())
  names = [record["name"] for record in records]
  assert {"mean", "mean of 1", "fast mean"} <= set(names)
  assert "mean of 6" not in names
  assert not any("init" in name for name in names)
  assert len(records) == 3 * 60 // 5 - 1  # functions only, without number 6


@pytest.mark.parametrize("text", [GOOGLE, NUMPY])
def test_parameters_are_read_in_both_forms(text):
  pairs = benchmark.parameters(text)
  descriptions = dict(pairs)
  assert [name for name, _ in pairs][:2] == ["values", "axis"]
  assert ("rest" in descriptions) == (text is GOOGLE)
  assert descriptions["axis"] == "Along which axis the mean is taken."
  assert descriptions["values"].startswith("The numbers to take the mean of.")
  assert benchmark.parameters("Nothing.\n\nReturns:\n  x: nothing") == []


def test_an_answer_is_the_description_of_its_parameter():
  records = benchmark.records("parameter", make_documents())
  assert {record["question"] for record in records} >= {"values", "axis"}
  for record in records:
    (answer,) = record["answers"]
    text = answer["text"]
    assert record["context"][answer["answer_start"] :].startswith(text)
    assert f"{record['question']}: {text}" in record["context"]


def join_texts(source, split: str) -> str:
  """Return all texts of a split, joined and with single spaces."""
  return " ".join(" ".join(record["text"].split()) for _, record in source.records(split))


def test_texts_of_the_test_split_are_not_in_the_pretraining_corpus(tmp_path):
  corpus = open_source("docstrings:tiny", data_dir=str(tmp_path))
  pretraining_text = join_texts(corpus, "train")
  held_out_text = join_texts(corpus, "validation")
  source = open_source("docstring_tasks:halves/tiny", data_dir=str(tmp_path))
  splits = {split: [record for _, record in source.records(split)] for split in source.splits}
  assert splits["test"]
  assert splits["train"]
  for split, records in splits.items():
    if split == "test":
      text = held_out_text
      other_text = pretraining_text
    else:
      text = pretraining_text
      other_text = held_out_text
    for record in records:
      assert record["first"] in text
      assert record["second"] in text
      assert record["first"] not in other_text
  facts = [str(source.split_facts(split)) for split in source.splits]
  assert len(set(facts)) == 3
  assert "sha256" in facts[0]


def test_an_unknown_task_is_refused(tmp_path):
  with refuses("did you mean 'name'"):
    open_source("docstring_tasks:nmae", data_dir=str(tmp_path))

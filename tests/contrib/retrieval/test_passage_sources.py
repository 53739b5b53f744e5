"""Sources about passages: sentences with the rest of their text, and a world of facts."""

import json

import pytest

from t5x_like.corpora.sources import open_source
from t5x_like.errors import UserError


def records(spelled: str, split: str = "train") -> list[dict]:
  return [record for _, record in open_source(spelled).records(split)]


def test_a_sentence_is_the_query_of_the_rest_of_its_text(tmp_path):
  texts = [f"One is {n}. Two is {n + 1}. Three is {n + 2}." for n in range(50)] + [
    "One sentence alone."
  ]
  (tmp_path / "texts.jsonl").write_text(
    "".join(json.dumps({"text": text}) + "\n" for text in texts)
  )
  rows = records(f"cloze:jsonl:{tmp_path}/texts.jsonl")
  assert rows[1] == {"inputs": "Two is 1.", "passage": "One is 0. Three is 2."} and len(rows) == 150
  num_kept = sum(row["inputs"] in row["passage"] for row in rows)
  assert 5 <= num_kept <= 25, "about a tenth of the sentences stay in their passages"
  (tmp_path / "other.jsonl").write_text('{"words": "x"}\n')
  with pytest.raises(UserError, match="'text'"):
    records(f"cloze:jsonl:{tmp_path}/other.jsonl")


def test_every_question_is_answered_by_one_passage_and_asked_in_one_split():
  passages = {record["text"][:2]: record["text"] for record in records("facts:300", "passages")}
  train, validation = (records("facts:300", split) for split in ("train", "validation"))
  assert len(passages) == 100 and len(train) + len(validation) == 300 and 40 < len(validation) < 80
  assert not {row["question"] for row in train} & {row["question"] for row in validation}
  for row in (*train, *validation):
    assert f"{row['question'][:-1]} {row['answer']}." in passages[row["question"][:2]]
  assert records("facts:300") == train and records("facts:300:1") != train

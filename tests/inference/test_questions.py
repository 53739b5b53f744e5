"""The published prompts of questions without training."""

import json

import pytest

from t5x_like.errors import UserError
from t5x_like.inference import questions

SUBJECT = "abstract_algebra"
ROWS = [
  {"subject": SUBJECT, "split": "test", "question": " Find it. ", "choices": ["0", "4", "2", "6"], "answer": "B"},
  {"subject": SUBJECT, "split": "dev", "question": "Is it?", "choices": ["yes", "no"], "answer": "A"},
  {"subject": SUBJECT, "split": "dev", "question": "Was it?", "choices": ["yes", "no"], "answer": "B"},
  {"subject": "law", "split": "dev", "question": "Another subject's.", "choices": ["x", "y"], "answer": "A"},
]
HEADER = "The following are multiple choice questions (with answers) about abstract algebra.\n\n"
ASKED = "Find it.\nA. 0\nB. 4\nC. 2\nD. 6\nAnswer:"


def asked(folder, rows: list[dict], shots: int = 0):
  (folder / "mmlu.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  file = questions.read(str(folder / "mmlu.jsonl"))
  return questions.lettered(file, file, questions.Options(shots=shots))


@pytest.mark.parametrize(
  ("shots", "before"),
  [(0, ""), (1, "Is it?\nA. yes\nB. no\nAnswer: A\n\n")]
  + [(5, "Is it?\nA. yes\nB. no\nAnswer: A\n\nWas it?\nA. yes\nB. no\nAnswer: B\n\n")],
)
def test_mmlu_names_the_subject_and_shows_its_first_examples(shots, before, tmp_path):
  ((_, pairs, right),) = asked(tmp_path, ROWS, shots)
  assert pairs == [(HEADER + before + ASKED, f" {letter}") for letter in "ABCD"] and right == 1


def test_a_question_without_a_subject_has_no_header(tmp_path):
  ((_, pairs, _),) = asked(tmp_path, [{key: value for key, value in ROWS[0].items() if key != "subject"}])
  assert pairs[0][0] == ASKED
  with pytest.raises(UserError, match="all rows are of the split dev"):
    asked(tmp_path, ROWS[1:])

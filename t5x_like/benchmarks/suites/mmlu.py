"""MMLU: 57 subjects in four lettered choices, with five examples (Hendrycks et al. 2021).

The prompts are those of `inference/questions.py`: a header names the subject, the five examples of
the subject's split dev follow in their order, and the likeliest letter is the answer. The summary
averages questions, as in the authors' code.
"""

import csv
import functools
import io
from collections.abc import Mapping

from t5x_like.benchmarks.question_suites import (
  Formulation,
  QuestionSuite,
  QuestionTask,
  file_name,
  read_records,
)
from t5x_like.corpora.sources import Record, Skip
from t5x_like.corpora.sources._files import lines
from t5x_like.errors import UserError
from t5x_like.inference import questions
from t5x_like.inference.questions import PromptSet

SUBJECTS = (
  "abstract_algebra anatomy astronomy business_ethics clinical_knowledge college_biology "
  "college_chemistry college_computer_science college_mathematics college_medicine college_physics "
  "computer_security conceptual_physics econometrics electrical_engineering elementary_mathematics "
  "formal_logic global_facts high_school_biology high_school_chemistry "
  "high_school_computer_science high_school_european_history high_school_geography "
  "high_school_government_and_politics high_school_macroeconomics high_school_mathematics "
  "high_school_microeconomics high_school_physics high_school_psychology high_school_statistics "
  "high_school_us_history high_school_world_history human_aging human_sexuality international_law "
  "jurisprudence logical_fallacies machine_learning management marketing medical_genetics "
  "miscellaneous moral_disputes moral_scenarios nutrition philosophy prehistory "
  "professional_accounting professional_law professional_medicine professional_psychology "
  "public_relations security_studies sociology us_foreign_policy virology world_religions"
).split()
SHOTS = 5
_NUM_CHOICES = 4
_JOINED = "mmlu_dev_test.jsonl"  # all subjects and splits in one file
DATA = (
  "data.tar of https://github.com/hendrycks/test (dev/SUBJECT_dev.csv, test/SUBJECT_test.csv), or "
  f"{_JOINED} with split, subject, question, choices and answer"
)


def files(subject: str) -> dict[str, tuple[str, ...]]:
  """Return the names of a subject's files, as `QuestionTask.files`."""
  return {
    "examples": (f"{subject}_dev.csv", _JOINED),
    "questions": (f"{subject}_test.csv", _JOINED),
  }


def read_subject(
  paths: Mapping[str, list[str]], subject: str
) -> tuple[questions.Questions, questions.Questions]:
  """Return (examples, questions) of a subject.

  Raises:
    UserError: a file is damaged, or has no questions of the subject.
  """
  splits = {"examples": "dev", "questions": "test"}
  selections = []
  for role, split in splits.items():
    (path,) = paths[role]
    located_rows = _read_csv(path) if ".csv" in file_name(path) else _read_joined(path)
    selected = []
    for where, row in located_rows:
      if row.get("subject", subject) == subject and row.get("split", split) == split:
        selected.append((where, row | {"subject": subject, "split": split}))
    if not selected:
      raise UserError(f"{path}: found no questions of the subject {subject} and the split {split}")
    locations = [where for where, _ in selected]
    rows = [row for _, row in selected]
    selections.append(questions.check_questions(path, "letters", rows, locations))
  return selections[0], selections[1]


@functools.lru_cache(maxsize=2)
def _read_joined(path: str) -> list[tuple[str, Record]]:
  """Read the file of all subjects once for all of them."""
  return read_records(path)


def _read_csv(path: str) -> list[tuple[str, Record]]:
  """Read a CSV file of question, four choices and letter, without a header."""
  texts = []
  for _, line in lines(path):
    if isinstance(line, Skip):
      raise UserError(f"{path}: found a line that cannot be read, expected CSV in UTF-8")
    texts.append(line)
  rows = []
  for number, cells in enumerate(csv.reader(io.StringIO("\n".join(texts))), start=1):
    where = f"{path}:{number}"
    if len(cells) != _NUM_CHOICES + 2:
      raise UserError(
        f"{where}: found {len(cells)} columns, expected a question, {_NUM_CHOICES} choices and a "
        "letter"
      )
    rows.append((where, {"question": cells[0], "choices": cells[1:-1], "answer": cells[-1]}))
  return rows


def _build(
  paths: Mapping[str, list[str]], limit: int | None, subject: str
) -> dict[str, Formulation]:
  """Return the prompts of a subject."""
  examples, subject_questions = read_subject(paths, subject)
  options = questions.Options(shots=SHOTS, limit=limit)
  prompts = questions.build_letter_prompts(subject_questions, examples, options)
  prompt_set = PromptSet(subject_questions.path, prompts, "likeliest")
  return {f"{SHOTS}-shot": Formulation("accuracy", {"": prompt_set})}


SUITE = QuestionSuite(
  {
    subject: QuestionTask(files(subject), functools.partial(_build, subject=subject), 25.0)
    for subject in SUBJECTS
  },
  version="1",
  summary="MMLU",
  is_weighted=True,
  data=DATA,
)

"""CORE: 22 tasks answered without training, centred on the scores of guessing.

The tasks, shots and scores of guessing are those of DataComp-LM (Li et al. 2024, arXiv:2406.11794,
`eval/mmlu_and_lowvar.yaml` without MMLU, `eval/eval_meta_data_v1.csv`). Prompts, the draw of
examples and the division of tokens are nanochat's (`nanochat/core_eval.py`, July 2026):

- The rows of a file are shuffled with seed 1337; with --max_examples the first rows remain. The
  examples of row i are drawn from the other rows with seed 1234 + i.
- Multiple choice and schemas: the choice whose tokens have the highest mean log-probability. The
  tokens after the first difference count, for schemas those at the common end.
- Next words: right if each token is the likeliest.
- nanochat puts its start token before each prompt; here only models trained here read one.
- A task's centred score is (accuracy - chance) / (1 - chance), and CORE is the mean of them.

nanochat reports SQuAD 6 points below DataComp-LM's own code, and the reason is unknown.
"""

import functools
import random
from collections.abc import Mapping

from t5x_like.benchmarks.question_suites import (
  Formulation,
  QuestionSuite,
  QuestionTask,
  check_gold,
  field,
  read_records,
)
from t5x_like.corpora.sources import Record
from t5x_like.errors import UserError
from t5x_like.inference.questions import Prompt, PromptSet

_SHUFFLE_SEED = 1337
_EXAMPLES_SEED = 1234
_ANSWER = "\nAnswer: "
_RULES = {"choices": "per token", "schema": "per token", "words": "greedy"}
_DIVISIONS = {
  "choices": "at the first difference",
  "schema": "at the common end",
  "words": "after the context",
}


def _read_rows(path: str, kind: str) -> list[tuple[str, Record]]:
  """Return the checked rows of a file, in its order."""
  rows = read_records(path)
  for where, row in rows:
    if kind == "words":
      field(where, row, "context", str)
      field(where, row, "continuation", str)
      continue
    if kind == "schema":
      choices = field(where, row, "context_options", list)
      field(where, row, "continuation", str)
    else:
      field(where, row, "query", str)
      choices = field(where, row, "choices", list)
    if not choices or not all(isinstance(choice, str) for choice in choices):
      raise UserError(f"{where}: found the choices {choices!r}, expected at least one, all strings")
    check_gold(where, field(where, row, "gold", int), len(choices))
  return rows


def _split_text(row: Record, kind: str, choice: int, delimiter: str) -> tuple[str, str]:
  """Return the context and the continuation of a choice, with the delimiter between them."""
  if kind == "choices":
    return row["query"] + delimiter, row["choices"][choice]
  if kind == "schema":
    return row["context_options"][choice] + delimiter, row["continuation"]
  return row["context"].strip() + delimiter, row["continuation"]


def _build(
  paths: Mapping[str, list[str]], limit: int | None, kind: str, shots: int, delimiter: str
) -> dict[str, Formulation]:
  """Return the prompts of a task, as the top of this file says."""
  (path,) = paths["questions"]
  rows = _read_rows(path, kind)
  random.Random(_SHUFFLE_SEED).shuffle(rows)
  rows = rows[:limit]
  if len(rows) <= shots:
    raise UserError(
      f"{path}: found {len(rows)} questions, expected more than {shots}, the examples before each; "
      "give the whole file, or a higher --max_examples"
    )
  prompts = []
  for number, (where, row) in enumerate(rows):
    context = ""
    if shots:
      rng = random.Random(_EXAMPLES_SEED + number)
      other_numbers = [index for index in range(len(rows)) if index != number]
      for index in rng.sample(other_numbers, shots):
        example = rows[index][1]
        context += "".join(_split_text(example, kind, example.get("gold", 0), delimiter)) + "\n\n"
    num_choices = len(row.get("choices") or row.get("context_options") or ("",))
    pairs = []
    for choice in range(num_choices):
      before, after = _split_text(row, kind, choice, delimiter)
      pairs.append((context + before, after))
    prompts.append(Prompt(where, pairs, row.get("gold", 0), row))
  prompt_set = PromptSet(path, prompts, _RULES[kind], _DIVISIONS[kind])
  return {f"{shots}-shot": Formulation("accuracy", {"": prompt_set})}


def _task(
  folder_and_file: str, kind: str, shots: int, chance: float = 0.0, delimiter: str = " "
) -> QuestionTask:
  """Return the task of a file, which may stand in its folder or by itself."""
  file = folder_and_file.partition("/")[2]
  names = (f"{folder_and_file}.jsonl", f"{file}.jsonl")
  build = functools.partial(_build, kind=kind, shots=shots, delimiter=delimiter)
  return QuestionTask({"questions": names}, build, chance)


SUITE = QuestionSuite(
  {
    "hellaswag_zeroshot": _task("language_understanding/hellaswag", "choices", 0, 25.0),
    "jeopardy": _task("world_knowledge/jeopardy_all", "words", 10, delimiter=_ANSWER),
    "bigbench_qa_wikidata": _task("world_knowledge/bigbench_qa_wikidata", "words", 10),
    "arc_easy": _task("world_knowledge/arc_easy", "choices", 10, 25.0, _ANSWER),
    "arc_challenge": _task("world_knowledge/arc_challenge", "choices", 10, 25.0, _ANSWER),
    "copa": _task("commonsense_reasoning/copa", "choices", 0, 50.0),
    "commonsense_qa": _task("commonsense_reasoning/commonsense_qa", "choices", 10, 20.0),
    "piqa": _task("commonsense_reasoning/piqa", "choices", 10, 50.0, _ANSWER),
    "openbook_qa": _task("commonsense_reasoning/openbook_qa", "choices", 0, 25.0),
    "lambada_openai": _task("language_understanding/lambada_openai", "words", 0),
    "hellaswag": _task("language_understanding/hellaswag", "choices", 10, 25.0),
    "winograd": _task("language_understanding/winograd_wsc", "schema", 0, 50.0),
    "winogrande": _task("language_understanding/winogrande", "schema", 0, 50.0),
    "bigbench_dyck_languages": _task(
      "symbolic_problem_solving/bigbench_dyck_languages", "words", 10
    ),
    "agi_eval_lsat_ar": _task("symbolic_problem_solving/agi_eval_lsat_ar", "choices", 3, 20.0),
    "bigbench_cs_algorithms": _task("symbolic_problem_solving/bigbench_cs_algorithms", "words", 10),
    "bigbench_operators": _task("symbolic_problem_solving/bigbench_operators", "words", 10),
    "bigbench_repeat_copy_logic": _task(
      "symbolic_problem_solving/bigbench_repeat_copy_logic", "words", 10
    ),
    "squad": _task("reading_comprehension/squad", "words", 10),
    "coqa": _task("reading_comprehension/coqa", "words", 0),
    "boolq": _task("reading_comprehension/boolq", "choices", 10, 62.0, _ANSWER),
    "bigbench_language_identification": _task(
      "language_understanding/bigbench_language_identification", "choices", 10, 9.1
    ),
  },
  version="1",
  summary="CORE",
  is_centred=True,
  data=(
    "eval_data/ of nanochat's bundle "
    "(https://karpathy-public.s3.us-west-2.amazonaws.com/eval_bundle.zip), which are the files "
    "below scripts/eval/local_data/ of https://github.com/mosaicml/llm-foundry"
  ),
)

"""Frozen suites ask their published prompts, and judge and average as published."""

import dataclasses
import json
import pathlib
import random

import numpy as np
import pytest

import json_lines
from t5x_like import evaluate
from t5x_like.benchmarks import comparison, custom_suites, question_runs, tables
from t5x_like.benchmarks.data import Unavailable
from t5x_like.benchmarks.question_suites import find_files
from t5x_like.benchmarks.suites import core, mmlu, olmes
from t5x_like.errors import UserError
from t5x_like.inference import asking
from t5x_like.inference.questions import LETTERS
from t5x_like.metrics import questions as question_metrics


def build(suite, task: str, folder, limit: int | None = None):
  """Return the formulations of a task, with files below a folder."""
  question_task = suite.tasks[task]
  return question_task.build(find_files(question_task, str(folder)), limit)


def only_prompts(formulations):
  ((_, formulation),) = formulations.items()
  return formulation.prompt_sets[""].prompts


ARC = [
  {"query": f"Question: Q{n}?", "choices": [f"a{n}", f"b{n}"], "gold": n % 2} for n in range(14)
]


def test_cores_examples_are_nanochats(tmp_path):
  """The rows are shuffled with seed 1337, and examples drawn with seed 1234 + number."""
  json_lines.write(tmp_path / "arc_easy.jsonl", ARC)
  rows = list(ARC)
  random.Random(1337).shuffle(rows)
  prompts = only_prompts(build(core.SUITE, "arc_easy", tmp_path))
  for number, (prompt, row) in enumerate(zip(prompts, rows, strict=True)):
    others = [index for index in range(14) if index != number]
    context = ""
    for index in random.Random(1234 + number).sample(others, 10):
      example = rows[index]
      context += f"{example['query']}\nAnswer: {example['choices'][example['gold']]}\n\n"
    context += f"{row['query']}\nAnswer: "
    assert prompt.pairs == [(context, choice) for choice in row["choices"]]
    assert prompt.gold == row["gold"]
  limited = only_prompts(build(core.SUITE, "arc_easy", tmp_path, limit=12))
  assert [prompt.row for prompt in limited] == rows[:12]
  with pytest.raises(UserError, match="found 10 questions, expected more than 10"):
    build(core.SUITE, "arc_easy", tmp_path, limit=10)


def test_cores_schemas_and_next_words_have_their_texts(tmp_path):
  schema = {"context_options": ["The man saw the dog because the man", "… the dog"]}
  schema |= {"continuation": "looked.", "gold": 0}
  json_lines.write(tmp_path / "winograd_wsc.jsonl", [schema])
  (prompt,) = only_prompts(build(core.SUITE, "winograd", tmp_path))
  assert prompt.pairs == [(f"{text} ", "looked.") for text in schema["context_options"]]
  words = [{"context": f" Clue {n}: ", "continuation": f"word {n}"} for n in range(11)]
  json_lines.write(tmp_path / "jeopardy_all.jsonl", words)
  prompts = only_prompts(build(core.SUITE, "jeopardy", tmp_path))
  ((context, continuation),) = prompts[0].pairs
  assert continuation == prompts[0].row["continuation"]
  assert context.endswith(f"\n\n{prompts[0].row['context'].strip()}\nAnswer: ")
  assert context.count("\n\n") == 10


class Bytes:
  """Stands in for `Prompts` with one token for each character and a start token."""

  is_encoder_decoder = False

  def encode(self, text, special=True):
    return [0, *map(ord, text)]


def test_core_divides_tokens_as_nanochat():
  pairs = [("Q: ", "the cat"), ("Q: ", "the dog sat")]
  first, second = asking.DIVISIONS["at the first difference"](Bytes(), pairs)
  assert first == ([0, *map(ord, "Q: the ")], [*map(ord, "cat")])
  assert second[1] == [*map(ord, "dog sat")]
  pairs = [("the man ", "ran"), ("the dog ", "ran")]
  first, second = asking.DIVISIONS["at the common end"](Bytes(), pairs)
  assert first[1] == second[1] == [*map(ord, " ran")]
  ((context, continuation),) = asking.DIVISIONS["after the context"](Bytes(), [("Say: ", "yes")])
  assert context == [0, *map(ord, "Say:")]
  assert continuation == [*map(ord, " yes")]
  pairs = [("Q", "a"), ("Q", "ab")]  # one text is the beginning of the other
  first, second = asking.DIVISIONS["at the first difference"](Bytes(), pairs)
  assert first == ([0, ord("Q")], [ord("a")])
  assert second == ([0, ord("Q")], [ord("a"), ord("b")])


def test_core_has_22_tasks_and_its_scores_are_centred():
  """The centred score of guessing is 0, and that of right answers 100."""
  assert len(core.SUITE.tasks) == 22
  results = {task: {"examples": 1} for task in core.SUITE.tasks}
  chances = {task: np.array(part.chance) for task, part in core.SUITE.tasks.items()}
  assert question_runs.summary_score(core.SUITE, results, chances) == pytest.approx(0)
  perfect = {task: np.array(100.0) for task in core.SUITE.tasks}
  assert question_runs.summary_score(core.SUITE, results, perfect) == pytest.approx(100)
  row = {"score": 62.0 + 0.5 * 38.0, "chance": core.SUITE.tasks["boolq"].chance}
  assert tables.centred_score(row) == pytest.approx(50)


def write_mmlu(folder: pathlib.Path, subjects=("anatomy", "virology")) -> None:
  for split, number in (("dev", 5), ("test", 4)):
    (folder / split).mkdir(exist_ok=True)
    for subject in subjects:
      lines = [
        f'"{subject} {split} {n}, which?",w{n},x{n},"y, {n}",z{n},{LETTERS[n % 4]}'
        for n in range(number)
      ]
      (folder / split / f"{subject}_{split}.csv").write_text("\n".join(lines) + "\n")


def test_mmlu_is_read_from_the_authors_files_and_from_a_joined_file(tmp_path):
  write_mmlu(tmp_path)
  with pytest.raises(Unavailable, match="found no astronomy_dev.csv"):
    build(mmlu.SUITE, "astronomy", tmp_path)
  prompts = only_prompts(build(mmlu.SUITE, "anatomy", tmp_path))
  assert len(prompts) == 4
  context, letter = prompts[1].pairs[1]
  assert letter == " B"
  assert prompts[1].gold == 1
  assert context.startswith(
    "The following are multiple choice questions (with answers) about anatomy.\n\n"
    "anatomy dev 0, which?\nA. w0\nB. x0\nC. y, 0\nD. z0\nAnswer: A\n\nanatomy dev 1"
  )
  assert context.endswith(
    "Answer: A\n\nanatomy test 1, which?\nA. w1\nB. x1\nC. y, 1\nD. z1\nAnswer:"
  )
  rows = []
  for split, number in (("dev", 5), ("test", 4)):
    for n in range(number):
      choices = [f"w{n}", f"x{n}", f"y, {n}", f"z{n}"]
      row = {"split": split, "subject": "anatomy", "question": f"anatomy {split} {n}, which?"}
      rows.append(row | {"choices": choices, "answer": LETTERS[n % 4]})
  (tmp_path / "joined").mkdir()
  json_lines.write(tmp_path / "joined" / "mmlu_dev_test.jsonl", rows)
  joined = only_prompts(build(mmlu.SUITE, "anatomy", tmp_path / "joined"))
  assert [prompt.pairs for prompt in joined] == [prompt.pairs for prompt in prompts]


def test_a_damaged_row_of_mmlu_is_one_line(tmp_path):
  write_mmlu(tmp_path)
  (tmp_path / "test" / "anatomy_test.csv").write_text("question,a,b,c,d\n")
  with pytest.raises(UserError, match="anatomy_test.csv:1: found 5 columns, expected a question"):
    build(mmlu.SUITE, "anatomy", tmp_path)


def arc_row(number: int, identity: str | None = None) -> dict:
  choices = [{"text": f"{letter} {number}", "label": letter} for letter in "ABCD"]
  question = {"stem": f"What is {number}", "choices": choices}
  return {"id": identity or f"id {number}", "question": question, "answerKey": "ABCD"[number % 4]}


ARC_SHOTS = olmes.SUITE.tasks["arc_challenge"].build.keywords["benchmark"].shots


def write_arc(folder: pathlib.Path, shots=ARC_SHOTS) -> None:
  train = [arc_row(50 + n, identity) for n, identity in enumerate(reversed(shots))]
  json_lines.write(folder / "ARC-Challenge-Train.jsonl", [arc_row(90), *train])
  json_lines.write(folder / "ARC-Challenge-Test.jsonl", [arc_row(n) for n in range(3)])


def test_olmes_shows_its_five_examples_in_order_in_both_formulations(tmp_path):
  write_arc(tmp_path)
  formulations = build(olmes.SUITE, "arc_challenge", tmp_path)
  assert list(formulations) == ["5-shot MCF", "5-shot CF"]
  listed = formulations["5-shot MCF"].prompt_sets[""]
  context, letter = listed.prompts[1].pairs[0]
  assert listed.rule == "likeliest"
  assert letter == " A"
  assert context.startswith(
    "Question: What is 54\n A. A 54\n B. B 54\n C. C 54\n D. D 54\nAnswer: C\n\n"
    "Question: What is 53\n"
  )
  assert context.endswith("\n\nQuestion: What is 1\n A. A 1\n B. B 1\n C. C 1\n D. D 1\nAnswer:")
  cloze = formulations["5-shot CF"].prompt_sets[""]
  assert cloze.rule == "against unconditional"
  context, choice = cloze.prompts[1].pairs[2]
  assert context.startswith(
    "Question: What is 54\nAnswer: C 54\n\nQuestion: What is 53\nAnswer: B 53"
  )
  assert context.endswith("\n\nQuestion: What is 1\nAnswer:")
  assert choice == " C 1"
  assert cloze.prompts[1].unconditional[2] == ("Answer:", " C 1")
  identities = [question_runs.question_id(prompt) for prompt in cloze.prompts]
  assert identities == [question_runs.question_id(prompt) for prompt in listed.prompts]


def test_olmes_refuses_a_training_file_without_its_examples(tmp_path):
  write_arc(tmp_path, ARC_SHOTS[1:])
  with pytest.raises(UserError, match=f"found no row {ARC_SHOTS[0]}, expected OLMES's 5 examples"):
    build(olmes.SUITE, "arc_challenge", tmp_path)


OTHER_ROWS = {
  "boolq": {"question": "is it", "passage": "It is.", "label": True},
  "hellaswag": {
    "activity_label": "Health",
    "ctx_a": "[header] How to rest [title] Sleep. [step] Lie down",
    "ctx_b": "he Then",
    "endings": ["[substeps] sleeps.", "runs."],
    "label": 1,
    "source_id": "s",
  },
  "piqa": {"goal": "To rest,", "sol1": "sleep", "sol2": "run"},
  "socialiqa": {"context": "Ann ran.", "question": "Why?", "answerA": "a", "answerB": "b"},
  "winogrande": {"sentence": "The _ is big.", "option1": "cup", "option2": "sea", "answer": "2"},
}
CLOZE = {
  "boolq": ("It is.\nQuestion: is it?\nAnswer:", [" yes", " no"], 0),
  "hellaswag": (
    "Health: How to rest. Sleep. Lie down He then",
    ["  sleeps.", " runs."],
    1,
  ),
  "piqa": ("Goal: To rest,\nAnswer:", [" sleep", " run"], 1),
  "socialiqa": ("Question: Ann ran. Why?\nAnswer:", [" a", " b", " c"], 2),
}
LISTED = {
  "boolq": "It is.\nQuestion: is it?\n A. yes\n B. no\nAnswer:",
  "piqa": "Goal: To rest,\n A. sleep\n B. run\nAnswer:",
  "socialiqa": "Question: Ann ran. Why?\n A. a\n B. b\n C. c\nAnswer:",
  "winogrande": "Fill in the blank: The ___ is big.\n A. cup\n B. sea\nAnswer:",
}


def build_olmes_row(task: str):
  """Return (CF, MCF) pairs of a row, without examples."""
  benchmark = olmes.SUITE.tasks[task].build.keywords["benchmark"]
  row = OTHER_ROWS[task] | {"idx": 3, "ind": 4}
  row |= {"piqa": {"label": "1"}, "socialiqa": {"label": "3", "answerC": "c"}}.get(task, {})
  example = benchmark.read("f:1", row)
  return olmes._write_cloze(benchmark, example), olmes._write_list(benchmark, example), example


@pytest.mark.parametrize("task", OTHER_ROWS)
def test_olmes_writes_each_benchmark_as_published(task):
  cloze, listed, example = build_olmes_row(task)
  if task == "winogrande":
    assert cloze == [("The cup", " is big."), ("The sea", " is big.")]
    assert example.gold == 1
  else:
    context, choices, gold = CLOZE[task]
    assert cloze == [(context, choice) for choice in choices]
    assert example.gold == gold
  if task in LISTED:
    assert listed[0] == (LISTED[task], " A")
  else:
    context, _ = listed[0]
    assert "\nChoose the best continuation:\n A. " in context
    assert "[" not in context


def test_olmes_asks_1000_questions_of_a_large_task(tmp_path):
  benchmark = olmes.SUITE.tasks["arc_easy"].build.keywords["benchmark"]
  rows = [arc_row(n) for n in range(1_501)]
  json_lines.write(tmp_path / "ARC-Easy-Test.jsonl", rows)
  json_lines.write(
    tmp_path / "ARC-Easy-Train.jsonl", [arc_row(n, shot) for n, shot in enumerate(benchmark.shots)]
  )
  formulations = build(olmes.SUITE, "arc_easy", tmp_path)
  prompts = formulations["5-shot CF"].prompt_sets[""].prompts
  sampled = random.Random(1234).sample(rows, 1_000)
  questions = [prompt.row["question"] for prompt in prompts]
  assert questions == [row["question"]["stem"] for row in sampled]


def test_labels_apart_must_be_as_many_as_rows(tmp_path):
  folder = tmp_path / "physicaliqa-train-dev"
  folder.mkdir()
  row = {"goal": "g", "sol1": "a", "sol2": "b"}
  for split in ("dev", "train"):
    json_lines.write(folder / f"{split}.jsonl", [row, row])
    (folder / f"{split}-labels.lst").write_text("0\n")
  with pytest.raises(UserError, match="dev-labels.lst: found 1 labels, expected 2"):
    build(olmes.SUITE, "piqa", tmp_path)


RULES = {
  # Log-probabilities of "aa" and "b", and of both after "Answer:".
  "likeliest": ([-3.0, -2.0], 1),
  "per character": ([-3.0, -2.0], 0),  # -3 / 3 and -2 / 2: the first of equals
  "per token": ([-2.2, -2.0], 0),  # over 2 and 1 tokens
  "against unconditional": ([-3.0, -2.0, -9.0, -2.5], 0),
}


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_judges_as_its_suite(rule):
  log_probabilities, likeliest = RULES[rule]
  answer = [[value, False, False] for value in log_probabilities]
  for gold in (0, 1):
    prompt = asking.Prompt("f:1", [("Q", " aa"), ("Q", " b")], gold)
    question = asking._Question(prompt, [([1], [2, 3]), ([1], [4])], 32, "")
    right, truncated = asking.RULES[rule].judge(question, answer)
    assert (right, truncated) == (gold == likeliest, False)


def test_a_missing_file_is_named_with_the_source_of_the_data(tmp_path):
  options = question_runs.QuestionOptions("run", None, tmp_path / "out", data=str(tmp_path))
  with pytest.raises(
    UserError, match="--suite=core: found no language_understanding/hellaswag"
  ) as e:
    question_runs.run_suite("core", core.SUITE, options)
  assert "https://karpathy-public" in str(e.value)
  assert "\n" not in str(e.value)
  options = dataclasses.replace(options, tasks=["piqa"])
  with pytest.raises(UserError, match="core/piqa: found no commonsense_reasoning/piqa.jsonl"):
    question_runs.run_suite("core", core.SUITE, options)


def test_a_frozen_suite_is_no_model_for_a_learned_task(tmp_path):
  (tmp_path / "mine.toml").write_text('[piqa]\nlike = "core/piqa"\n')
  with pytest.raises(
    UserError, match="mine.toml: piqa.like: found 'core/piqa', a task that is not"
  ):
    custom_suites.load_suite(str(tmp_path / "mine.toml"))


@pytest.mark.parametrize("name", ["core", "mmlu", "olmes"])
def test_a_frozen_suite_has_a_version_and_the_source_of_its_data(name):
  suite = custom_suites.load_suite(name)
  assert suite.version
  assert suite.summary
  assert "https://" in suite.data


def write_table(directory: pathlib.Path, right: list[int], version: str = "1") -> None:
  """Write the table of one task of `mmlu`, with the judgement of each question."""
  metric = question_metrics.Accuracy()
  answered = asking.Results(metric, metric.rows((), [(value, 0) for value in right]), 0)
  result = {
    "score": answered.metrics["accuracy"],
    "formulation": "5-shot",
    "rule": "likeliest",
    "examples": len(right),
    "counted": ["5-shot/accuracy"],
    "intervals": {},
    "metrics": {},
    "runs": [],
  }
  summary = {"name": "MMLU", "score": result["score"], "low": 0.0, "high": 0.0, "tasks": 1}
  table = {
    "suite": "mmlu",
    "workdir": f"runs/{directory.name}",
    "from_scratch": False,
    "tasks": {"anatomy": result},
    "question_suites": {"mmlu": {"version": version, "summary": summary}},
  }
  (directory / "by_question").mkdir(parents=True)
  rows = [
    {"formulation": "5-shot", "set": "", "where": f"f:{n}", "question": f"{n}", "right": value}
    for n, value in enumerate(right)
  ]
  json_lines.write(
    directory / "by_question" / "anatomy.jsonl", [row | {"truncated": 0} for row in rows]
  )
  (directory / "results.json").write_text(json.dumps(table))


@pytest.fixture
def two_tables(tmp_path):
  """200 questions; the models differ on 20, of which the second has 18 right."""
  first = [1, 0] * 90 + [0] * 18 + [1] * 2
  second = [1, 0] * 90 + [1] * 18 + [0] * 2
  write_table(tmp_path / "a", first)
  write_table(tmp_path / "b", second)
  return tmp_path


def test_a_difference_is_paired_by_question(two_tables, capsys):
  assert evaluate.main([f"--compare={two_tables}/a,{two_tables}/b"]) == 0
  output = capsys.readouterr().out
  assert "| anatomy | 5-shot/accuracy | 46.0 | 54.0 | +8.0 (" in output
  compared = comparison.compare_directories([f"{two_tables}/a", f"{two_tables}/b"])
  task, summary = compared["rows"]
  # The standard error of a mean difference of 200 questions, of which 20 differ.
  error = 100 * np.sqrt((20 / 200 - 0.08**2) / 200)
  assert task["low"] == pytest.approx(8 - 1.96 * error, abs=0.5)
  assert task["high"] == pytest.approx(8 + 1.96 * error, abs=0.5)
  assert summary["task"] == "MMLU"
  assert summary["difference"] == pytest.approx(8)
  assert summary["low"] == pytest.approx(task["low"], abs=0.6)


def test_tables_of_other_questions_or_versions_are_not_compared(two_tables, capsys):
  path = two_tables / "b" / "by_question" / "anatomy.jsonl"
  path.write_text(path.read_text().replace('"question": "7"', '"question": "77"'))
  with pytest.raises(UserError, match="answered other questions of anatomy, expected the same"):
    comparison.compare_directories([f"{two_tables}/a", f"{two_tables}/b"])
  write_table(two_tables / "c", [1, 0], version="2")
  with pytest.raises(UserError, match="--compare: found mmlu version 1, expected 2"):
    comparison.compare_directories([f"{two_tables}/a", f"{two_tables}/c"])
  path.write_text('{"formulation": "5-shot"}\n')
  with pytest.raises(UserError, match="by_question/anatomy.jsonl: cannot be read"):
    comparison.compare_directories([f"{two_tables}/a", f"{two_tables}/b"])


@pytest.mark.parametrize(
  ("flags", "words"),
  [
    ([], "the following arguments are required: --workdir"),
    (["--compare=a"], "the following arguments are required: --workdir"),
    (["--compare=a,b"], "--compare=a: expected the directory of a finished suite"),
    (["--compare=a,b,c"], "found 3 directories, expected two"),
    (["--compare=a,b", "--suite=core"], "--suite: needs --workdir"),
  ],
)
def test_an_impossible_comparison_is_one_line(flags, words, capsys):
  assert evaluate.main(flags) == 2
  (error,) = capsys.readouterr().err.splitlines()
  assert words in error


def test_the_table_of_questions_shows_intervals_and_the_version(two_tables):
  table = json.loads((two_tables / "a" / "results.json").read_text())
  table |= {"versions": {"jax": "1"}, "missing": {"virology": "found no virology_dev.csv"}}
  table["tasks"]["anatomy"]["intervals"] = {"5-shot/accuracy": {"low": 39.04, "high": 52.96}}
  text = tables.markdown(table)
  assert "| anatomy | 46.00 | 39.0 to 53.0 | 200 | 5-shot/accuracy |" in text
  assert "| virology | – | | | found no virology_dev.csv |" in text
  assert "1 tasks, mmlu version 1" in text
  assert max(map(len, [line for line in text.splitlines() if "anatomy" in line])) <= 80

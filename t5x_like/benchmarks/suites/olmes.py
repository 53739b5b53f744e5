"""OLMES v0.1: ten tasks of multiple choice with five curated examples (Gu et al. 2024).

arXiv:2406.08446; `olmo_eval/tasks/olmes_v0_1` of https://github.com/allenai/OLMo-Eval. Each task is
asked in two formulations, and the better one counts:

- `MCF`: the choices are listed with letters, and the likeliest letter is the answer.
- `CF`: the likeliest choice in words, by log-probability as it is (BoolQ, WinoGrande), per
  character (ARC Easy, HellaSwag, MMLU, PIQA, Social IQa), or minus the log-probability of the
  choice after "Answer:" alone (ARC Challenge, CommonsenseQA, OpenBookQA).

Tasks of more than 1,500 questions, except MMLU, are asked 1,000 of them, drawn with seed 1234.
MMLU's score is the mean over its 57 subjects. The published code cuts inputs to their last 2,048
tokens; here the model's length is the limit. The examples are rows of the training files, which
this module finds by their ids or, where rows have none, by digests of their texts. The answer key
of files with labels apart (PIQA, Social IQa) is `<name>-labels.lst`.
"""

import dataclasses
import functools
import hashlib
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence

from t5x_like.benchmarks.question_suites import (
  Formulation,
  QuestionSuite,
  QuestionTask,
  check_gold,
  field,
  read_records,
)
from t5x_like.benchmarks.suites import mmlu
from t5x_like.corpora.sources import Record
from t5x_like.errors import UserError
from t5x_like.inference.questions import LETTERS, Prompt, PromptSet

SHOTS = 5
SAMPLED = 1_000  # questions of a large task
_SEED = 1234
_ANSWER = "Answer:"


@dataclasses.dataclass(frozen=True)
class Example:
  """A row of a benchmark: a question, or one of the examples before it.

  Attributes:
    where: the file and line.
    question: the text before the choices in the formulation CF.
    choices: the choices.
    gold: the index of the right one.
    id: the name in `_Benchmark.shots`.
    listed_question, listed_choices: the text before the choices and the choices in MCF; empty for
      those of CF.
    ending: the text after each choice, in WinoGrande; a choice then ends its context.
  """

  where: str
  question: str
  choices: Sequence[str]
  gold: int
  id: str = ""
  listed_question: str = ""
  listed_choices: Sequence[str] = ()
  ending: str | None = None


@dataclasses.dataclass(frozen=True)
class _Benchmark:
  """A benchmark's rows and rules.

  Attributes:
    read: `(file and line, record) -> Example`.
    questions, examples: the possible names of the files with the questions and with the examples.
    shots: the ids of the examples, in order.
    rule: the rule of the formulation CF.
    prefix, suffix: the texts before a question and, in CF, after it.
    list_prefix: the text before the listed choices.
    is_sampled: whether `SAMPLED` of the questions are asked.
    label_files: the possible names of the labels of the questions and of the examples; () if the
      rows have their labels.
  """

  read: Callable[[str, Record], Example]
  questions: tuple[str, ...]
  examples: tuple[str, ...]
  shots: tuple[str, ...]
  rule: str
  prefix: str = "Question: "
  suffix: str = f"\n{_ANSWER}"
  list_prefix: str = ""
  is_sampled: bool = False
  label_files: tuple[tuple[str, ...], ...] = ()


def _digest(*texts: str) -> str:
  """Return the id of a row that has none."""
  return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:12]


def _read_science(where: str, record: Record) -> Example:
  """Read ARC, OpenBookQA and CommonsenseQA, as their authors or the Hub write them."""
  question = record.get("question")
  if isinstance(question, dict):
    stem = field(where, record, "question.stem", str)
    options = field(where, record, "question.choices", list)
    texts = [field(where, option, "text", str) for option in options]
    labels = [field(where, option, "label", str) for option in options]
  else:
    stem = field(where, record, "question_stem" if "question_stem" in record else "question", str)
    texts = field(where, record, "choices.text", list)
    labels = field(where, record, "choices.label", list)
  key = field(where, record, "answerKey", str).strip()
  if key not in labels:
    raise UserError(f"{where}: answerKey: found {key!r}, expected one of {', '.join(labels)}")
  return Example(where, stem, texts, labels.index(key), field(where, record, "id", str))


def _read_boolq(where: str, record: Record) -> Example:
  label = record.get("label", record.get("answer"))
  if label not in (0, 1):  # also False and True
    raise UserError(f"{where}: label: found {label!r}, expected true or false")
  question = f"{field(where, record, 'question', str)}?"
  passage = field(where, record, "passage", str)
  index = field(where, record, "idx", int)
  return Example(where, f"{passage}\nQuestion: {question}", ("yes", "no"), 1 - label, str(index))


def _clean_hellaswag(text: str) -> str:
  """Return a text without WikiHow's marks in brackets."""
  text = re.sub(r"\.? \[title\]", ". ", text.strip())
  return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


def _read_hellaswag(where: str, record: Record) -> Example:
  begin = field(where, record, "ctx_a", str)
  end = field(where, record, "ctx_b", str).capitalize()
  question = f"{field(where, record, 'activity_label', str)}: {begin} {end}"
  choices = field(where, record, "endings", list)
  index = field(where, record, "ind", int)
  source = field(where, record, "source_id", str)
  return Example(
    where,
    _clean_hellaswag(question),
    [_clean_hellaswag(choice) for choice in choices],
    check_gold(where, field(where, record, "label", int), len(choices)),
    f"{source} {index}",
    listed_question=question,
    listed_choices=choices,
  )


def _read_piqa(where: str, record: Record) -> Example:
  goal = field(where, record, "goal", str)
  choices = (field(where, record, "sol1", str), field(where, record, "sol2", str))
  gold = check_gold(where, field(where, record, "label", int), 2)
  return Example(where, goal, choices, gold, _digest(goal, *choices))


def _read_siqa(where: str, record: Record) -> Example:
  context = field(where, record, "context", str)
  question = field(where, record, "question", str)
  choices = [field(where, record, f"answer{letter}", str) for letter in "ABC"]
  gold = check_gold(where, field(where, record, "label", int) - 1, 3)
  identity = _digest(context, question, *choices)
  return Example(where, f"{context} {question}", choices, gold, identity)


def _read_winogrande(where: str, record: Record) -> Example:
  sentence = field(where, record, "sentence", str)
  begin, blank, end = sentence.partition("_")
  if not blank:
    raise UserError(f"{where}: sentence: found no _, expected one where the options belong")
  choices = (field(where, record, "option1", str), field(where, record, "option2", str))
  return Example(
    where,
    begin,
    choices,
    check_gold(where, field(where, record, "answer", int) - 1, 2),
    _digest(sentence, *choices),
    listed_question=sentence.replace("_", "___"),
    ending=f" {end.strip()}",
  )


def _read_examples(path: str, read: Callable, labels_path: str | None) -> list[Example]:
  """Return the rows of a file, with the labels of another file if they have one."""
  records = read_records(path)
  if labels_path is not None:
    labels = [record["text"].strip() for _, record in read_records(labels_path, "lines")]
    if len(labels) != len(records):
      raise UserError(
        f"{labels_path}: found {len(labels)} labels, expected {len(records)}, one for each row of "
        f"{path}"
      )
    labelled = []
    for (where, record), label in zip(records, labels):
      labelled.append((where, record | {"label": label}))
    records = labelled
  return [read(where, record) for where, record in records]


def _write_cloze(benchmark: _Benchmark, example: Example) -> list[tuple[str, str]]:
  """Return (context, continuation) of each choice in the formulation CF."""
  if example.ending is not None:
    return [(example.question + choice, example.ending) for choice in example.choices]
  context = f"{benchmark.prefix}{example.question}{benchmark.suffix}"
  return [(context, f" {choice}") for choice in example.choices]


def _write_list(benchmark: _Benchmark, example: Example) -> list[tuple[str, str]]:
  """Return (context, letter) of each choice in the formulation MCF."""
  lines = []
  for letter, choice in zip(LETTERS, example.listed_choices or example.choices):
    lines.append(f" {letter}. {choice}")
  prefix = "Fill in the blank: " if example.ending is not None else benchmark.prefix
  question = example.listed_question or example.question
  context = f"{prefix}{question}\n{benchmark.list_prefix}" + "\n".join(lines) + f"\n{_ANSWER}"
  if benchmark.list_prefix:
    context = _clean_hellaswag(context)
  return [(context, f" {letter}") for letter in LETTERS[: len(example.choices)]]


def _build_prompts(
  benchmark: _Benchmark,
  write: Callable[[_Benchmark, Example], list[tuple[str, str]]],
  shots: Sequence[Example],
  examples: Sequence[Example],
  header: str = "",
) -> list[Prompt]:
  """Return the prompts of a formulation; the same shots precede every question."""
  prefix = header
  for shot in shots:
    prefix += "".join(write(benchmark, shot)[shot.gold]) + "\n\n"
  is_against_unconditional = benchmark.rule == "against unconditional" and write is _write_cloze
  prompts = []
  for example in examples:
    written = write(benchmark, example)
    pairs = [(prefix + context, continuation) for context, continuation in written]
    unconditional = []
    if is_against_unconditional:
      unconditional = [(_ANSWER, continuation) for _, continuation in written]
    question = {"question": example.question, "choices": list(example.choices)}
    row = question | {"gold": example.gold}
    prompts.append(Prompt(example.where, pairs, example.gold, row, unconditional))
  return prompts


def _formulate(
  path: str, rule: str, cloze: Mapping[str, list[Prompt]], listed: Mapping[str, list[Prompt]]
) -> dict[str, Formulation]:
  """Return both formulations, `cloze` for CF and `listed` for MCF, of prompts by set."""
  listed_sets = {name: PromptSet(path, prompts, "likeliest") for name, prompts in listed.items()}
  cloze_sets = {name: PromptSet(path, prompts, rule) for name, prompts in cloze.items()}
  return {
    f"{SHOTS}-shot MCF": Formulation("accuracy", listed_sets),
    f"{SHOTS}-shot CF": Formulation("accuracy", cloze_sets),
  }


def _build(
  paths: Mapping[str, list[str]], limit: int | None, benchmark: _Benchmark
) -> dict[str, Formulation]:
  """Return the prompts of a benchmark in both formulations."""
  (path,) = paths["questions"]
  (examples_path,) = paths["examples"]
  (labels,) = paths.get("question labels", [None])
  (example_labels,) = paths.get("example labels", [None])
  examples = _read_examples(path, benchmark.read, labels)
  if benchmark.is_sampled and len(examples) > SAMPLED:
    examples = random.Random(_SEED).sample(examples, SAMPLED)
  examples = examples[:limit]
  example_by_id = {}
  for example in _read_examples(examples_path, benchmark.read, example_labels):
    example_by_id.setdefault(example.id, example)
  missing = [shot for shot in benchmark.shots if shot not in example_by_id]
  if missing:
    raise UserError(
      f"{examples_path}: found no row {missing[0]}, expected OLMES's {SHOTS} examples; give the "
      "benchmark's unchanged training file"
    )
  shots = [example_by_id[shot] for shot in benchmark.shots]
  cloze = _build_prompts(benchmark, _write_cloze, shots, examples)
  listed = _build_prompts(benchmark, _write_list, shots, examples)
  return _formulate(path, benchmark.rule, {"": cloze}, {"": listed})


def _mmlu_example(where: str, row: Record) -> Example:
  """Convert a row that `mmlu` has read."""
  gold = LETTERS.index(row["answer"])
  return Example(where, row["question"].strip(), row["choices"], gold)


_MMLU = _Benchmark(_mmlu_example, (), (), (), "per character")


def _build_mmlu(paths: Mapping[str, list[str]], limit: int | None) -> dict[str, Formulation]:
  """Return the prompts of all subjects; a header names the subject."""
  cloze = {}
  listed = {}
  for subject in mmlu.SUBJECTS:
    subject_paths = {role: paths[f"{role} {subject}"] for role in ("examples", "questions")}
    dev, test = mmlu.read_subject(subject_paths, subject)
    shots = [_mmlu_example(*located) for located in zip(dev.locations, dev.rows)][:SHOTS]
    examples = [_mmlu_example(*located) for located in zip(test.locations, test.rows)][:limit]
    name = subject.replace("_", " ")
    header = f"The following are multiple choice questions (with answers) about {name}.\n\n"
    cloze[subject] = _build_prompts(_MMLU, _write_cloze, shots, examples, header)
    listed[subject] = _build_prompts(_MMLU, _write_list, shots, examples, header)
  return _formulate("MMLU", _MMLU.rule, cloze, listed)


def _mmlu_files() -> dict[str, tuple[str, ...]]:
  """Return the possible names of the files of all subjects."""
  files = {}
  for subject in mmlu.SUBJECTS:
    for role, names in mmlu.files(subject).items():
      files[f"{role} {subject}"] = names
  return files


def _task(benchmark: _Benchmark, chance: float) -> QuestionTask:
  files = {"questions": benchmark.questions, "examples": benchmark.examples}
  if benchmark.label_files:
    files["question labels"], files["example labels"] = benchmark.label_files
  return QuestionTask(files, functools.partial(_build, benchmark=benchmark), chance)


SUITE = QuestionSuite(
  {
    "arc_challenge": _task(
      _Benchmark(
        _read_science,
        ("ARC-Challenge/ARC-Challenge-Test.jsonl", "ARC-Challenge-Test.jsonl"),
        ("ARC-Challenge/ARC-Challenge-Train.jsonl", "ARC-Challenge-Train.jsonl"),
        (
          "Mercury_SC_415702",
          "MCAS_2009_5_6516",
          "Mercury_7233695",
          "Mercury_7041615",
          "MCAS_1998_4_3",
        ),
        "against unconditional",
      ),
      25.0,
    ),
    "arc_easy": _task(
      _Benchmark(
        _read_science,
        ("ARC-Easy/ARC-Easy-Test.jsonl", "ARC-Easy-Test.jsonl"),
        ("ARC-Easy/ARC-Easy-Train.jsonl", "ARC-Easy-Train.jsonl"),
        (
          "MCAS_2007_8_5189",
          "Mercury_SC_401169",
          "MCAS_2004_8_27",
          "NYSEDREGENTS_2006_8_10",
          "Mercury_7013388",
        ),
        "per character",
        is_sampled=True,
      ),
      25.0,
    ),
    "boolq": _task(
      _Benchmark(
        _read_boolq,
        ("BoolQ/val.jsonl",),
        ("BoolQ/train.jsonl",),
        ("0", "1", "7", "11", "3"),
        "likeliest",
        prefix="",
        is_sampled=True,
      ),
      50.0,
    ),
    "csqa": _task(
      _Benchmark(
        _read_science,
        ("dev_rand_split.jsonl",),
        ("train_rand_split.jsonl",),
        (
          "61fe6e879ff18686d7552425a36344c8",
          "02e821a3e53cb320790950aab4489e85",
          "23505889b94e880c3e89cff4ba119860",
          "a76403b4921a9281b6ee2a7241a5ec9f",
          "6dc921840aa1e5dda3333b79007f630b",
        ),
        "against unconditional",
      ),
      20.0,
    ),
    "hellaswag": _task(
      _Benchmark(
        _read_hellaswag,
        ("hellaswag_val.jsonl",),
        ("hellaswag_train.jsonl",),
        (
          "wikihow~19 12",
          "wikihow~66 39",
          "activitynet~v_-2dxp-mv2zo 9",
          "activitynet~v_-Xl95IW5H_s 47",
          "wikihow~62 38",
        ),
        "per character",
        prefix="",
        suffix="",
        list_prefix="Choose the best continuation:\n",
        is_sampled=True,
      ),
      25.0,
    ),
    "mmlu": QuestionTask(_mmlu_files(), _build_mmlu, 25.0),
    "openbookqa": _task(
      _Benchmark(
        _read_science,
        ("Main/test.jsonl",),
        ("Main/train.jsonl",),
        ("7-584", "7-870", "9-732", "9-782", "8-72"),
        "against unconditional",
      ),
      25.0,
    ),
    "piqa": _task(
      _Benchmark(
        _read_piqa,
        ("physicaliqa-train-dev/dev.jsonl", "valid.jsonl"),
        ("physicaliqa-train-dev/train.jsonl", "piqa/train.jsonl"),
        ("5489b21e00bc", "4cf0dc4db372", "d2894bc49c13", "6f7d82f6e595", "85eae557a69b"),
        "per character",
        prefix="Goal: ",
        is_sampled=True,
        label_files=(
          ("physicaliqa-train-dev/dev-labels.lst", "valid-labels.lst"),
          ("physicaliqa-train-dev/train-labels.lst", "piqa/train-labels.lst"),
        ),
      ),
      50.0,
    ),
    "socialiqa": _task(
      _Benchmark(
        _read_siqa,
        ("socialiqa-train-dev/dev.jsonl",),
        ("socialiqa-train-dev/train.jsonl",),
        ("f6cca37b9160", "57bab99ffd3e", "83f07bc58312", "18e1bf312b1c", "4732e2a3a63d"),
        "per character",
        is_sampled=True,
        label_files=(
          ("socialiqa-train-dev/dev-labels.lst",),
          ("socialiqa-train-dev/train-labels.lst",),
        ),
      ),
      100.0 / 3.0,
    ),
    "winogrande": _task(
      _Benchmark(
        _read_winogrande,
        ("winogrande_1.1/dev.jsonl",),
        ("winogrande_1.1/train_xl.jsonl",),
        ("173ff7e62175", "b14805eae4bc", "4887a4e2f287", "3d83b7c80d90", "3100074c4a5a"),
        "likeliest",
      ),
      50.0,
    ),
  },
  version="0.1",
  summary="OLMES",
  data=(
    "the authors' archives, test or development and training files: ARC and OpenBookQA "
    "(https://allenai.org/data/arc, https://allenai.org/data/open-book-qa), BoolQ of SuperGLUE "
    "(https://super.gluebenchmark.com/tasks), CommonsenseQA "
    "(https://www.tau-nlp.sites.tau.ac.il/commonsenseqa), HellaSwag "
    "(https://github.com/rowanz/hellaswag), PIQA (https://yonatanbisk.com/piqa), Social IQa "
    "(https://leaderboard.allenai.org/socialiqa), WinoGrande 1.1 "
    f"(https://winogrande.allenai.org), MMLU ({mmlu.DATA})"
  ),
)

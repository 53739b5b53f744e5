"""Ask a model the questions of a suite, and make the rows of its table.

  <output>/answers.jsonl               the answers as they are given (`inference/answer_log.py`)
  <output>/by_question/<task>.jsonl    the judgement of each question

The same command continues a suite that was killed, and asks no question again whose answer is
saved. Answers count only for the same parameters, model, prompt and settings, whatever the
processes and the mesh.
"""

import dataclasses
import json
import pathlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from t5x_like.benchmarks import question_suites
from t5x_like.benchmarks.data import Unavailable
from t5x_like.benchmarks.question_suites import Formulation, QuestionSuite
from t5x_like.errors import UserError
from t5x_like.files import checked_json, file_names
from t5x_like.inference import asking
from t5x_like.inference.answer_log import AnswerLog, LogError
from t5x_like.inference.questions import Prompt
from t5x_like.metrics import resampling
from t5x_like.runtime import process
from t5x_like.training import workdir as workdirs

_BATCH_SIZE = 32  # rows
_BY_QUESTION = "by_question"


@dataclasses.dataclass(frozen=True)
class QuestionOptions:
  """The options of a suite of questions.

  Attributes:
    workdir: the model's path, for messages.
    open_model: `(batch size) -> library.model.Model`; called when a first question is asked.
    output: the directory of the suite's answers.
    data: the directory of the suite's files.
    tasks: the names of the tasks; None is all that have data.
    limit: the number of questions of each file, from the first; None means all.
    template: the chat template of a decoder, if any.
  """

  workdir: str
  open_model: Callable[[int], Any]
  output: pathlib.Path
  data: str | None = None
  tasks: Sequence[str] | None = None
  limit: int | None = None
  template: str | None = None


@dataclasses.dataclass(frozen=True)
class QuestionTable:
  """The results of a suite of questions.

  Attributes:
    results: the rows of the table by task.
    missing: the reasons of tasks without results.
    summary: the score of all tasks: `name`, `score`, `low`, `high`, `tasks`; None if a task is
      missing or the suite has none.
  """

  results: dict[str, dict[str, Any]]
  missing: dict[str, str]
  summary: dict[str, Any] | None


def run_suite(name: str, suite: QuestionSuite, options: QuestionOptions) -> QuestionTable:
  """Ask the questions of a suite; all prompts are made before the first question is asked.

  Raises:
    UserError: a file is damaged, a chosen task has no data, saved answers are damaged, or no task
      of a frozen suite can be asked of the model.
  """
  formulations_by_task, missing = _build_prompts(name, suite, options)
  log = AnswerLog(options.output / "answers.jsonl")
  ask = None
  task_results: dict[str, dict[str, Any]] = {}
  scores_by_task: dict[str, dict[str, asking.Results]] = {}
  for task, formulations in formulations_by_task.items():
    if ask is None:
      ask = _open_asker(options, log)
    process.log(f"=== {name}/{task}")
    try:
      answered = _ask_task(f"{name}/{task}", formulations, ask)
    except LogError:
      raise
    except UserError as error:
      missing[task] = str(error)
      process.log(f"{name}/{task}: left out: {error}")
      continue
    result = _judge_task(formulations, answered)
    if suite.is_centred:
      result["chance"] = suite.tasks[task].chance
    if process.is_first():
      rows = _rows_by_question(formulations, answered)
      workdirs.write_lines(options.output / _BY_QUESTION, f"{task}.jsonl", rows)
    task_results[task] = result
    scores_by_task[task] = answered[result["formulation"]]
  if suite.version and missing and not task_results:
    raise UserError(f"--suite={name}: {next(iter(missing.values()))}")
  summary = None
  if suite.summary and not missing and not options.tasks and not options.limit:
    summary = _summarize(suite, task_results, scores_by_task)
  return QuestionTable(task_results, missing, summary)


def _build_prompts(
  name: str, suite: QuestionSuite, options: QuestionOptions
) -> tuple[dict[str, Mapping[str, Formulation]], dict[str, str]]:
  """Return the formulations of each task that has data, and why the others have none."""
  formulations_by_task = {}
  missing: dict[str, str] = {}
  for task, question_task in suite.tasks.items():
    if options.tasks and task not in options.tasks:
      continue
    try:
      paths = question_suites.find_files(question_task, options.data)
      formulations_by_task[task] = question_task.build(paths, options.limit)
    except Unavailable as error:
      if options.tasks:
        raise UserError(f"{name}/{task}: {error}; data: {suite.data}") from None
      missing[task] = str(error)
    except UserError as error:
      if suite.version:
        raise
      missing[task] = str(error)
      process.log(f"{name}/{task}: left out: {error}")
  if suite.version and missing and not formulations_by_task:
    reason = next(iter(missing.values()))
    raise UserError(f"--suite={name}: {reason}; data: {suite.data}")
  return formulations_by_task, missing


def _open_asker(options: QuestionOptions, log: AnswerLog) -> asking.Asker:
  """Open the model and return what asks it."""
  model = options.open_model(_BATCH_SIZE)
  process.log(asking.describe_template(model, options.template))
  return asking.Asker(model, options.template, log, model.fingerprint)


def _ask_task(
  where: str, formulations: Mapping[str, Formulation], ask: asking.Asker
) -> dict[str, dict[str, asking.Results]]:
  """Return the results of each set of prompts, by formulation."""
  answered: dict[str, dict[str, asking.Results]] = {}
  for label, formulation in formulations.items():
    answered[label] = {}
    num_asked = 0
    for set_name, prompt_set in formulation.prompt_sets.items():
      set_results = ask(prompt_set, asking.Progress(where))
      answered[label][set_name] = set_results
      num_asked += set_results.num_asked
      unfinished = int(set_results.metrics.get("unfinished", 0))
      if unfinished:
        process.log(
          f"{where}: {unfinished} answers reached the limit of their length before their end"
        )
    num_questions = sum(len(results.rows_NC) for results in answered[label].values())
    process.log(f"{where}: {label}: asked {num_asked} of {num_questions} questions")
  return answered


def _judge_task(
  formulations: Mapping[str, Formulation], answered: Mapping[str, Mapping[str, asking.Results]]
) -> dict[str, Any]:
  """Return the row of a task: the score of its best formulation, and all metrics."""
  metrics: dict[str, float] = {}
  intervals: dict[str, dict[str, float]] = {}
  scores = {}
  for label, results_by_set in answered.items():
    first = next(iter(results_by_set.values()))
    if len(results_by_set) == 1:
      set_metrics = first.metrics
      set_intervals = first.intervals
    else:
      set_metrics, set_intervals = _average_sets(results_by_set)
    metrics |= {f"{label}/{name}": value for name, value in set_metrics.items()}
    intervals |= {f"{label}/{name}": value for name, value in set_intervals.items()}
    scores[label] = set_metrics[formulations[label].score]
  best = max(scores, key=lambda label: scores[label])
  rule = next(iter(formulations[best].prompt_sets.values())).rule
  return {
    "score": scores[best],
    "best": scores[best],
    "spread": 0.0,
    "rate": None,
    "formulation": best,
    "rule": rule,
    "examples": sum(len(results.rows_NC) for results in answered[best].values()),
    "intervals": intervals,
    "counted": [f"{best}/{formulations[best].score}"],
    "metrics": checked_json.replace_nonfinite(metrics),
    "runs": [],
  }


def _average_sets(
  results_by_set: Mapping[str, asking.Results],
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
  """Return the mean of each score over sets, with its interval; and each set's own scores."""
  metrics: dict[str, float] = {}
  intervals = {}
  names = next(iter(results_by_set.values())).metric.names
  for name in names:
    metrics[name] = float(np.mean([results.metrics[name] for results in results_by_set.values()]))
    interval = resampling.percentile_interval(draw_mean_score(results_by_set, name))
    if interval is not None:
      intervals[name] = {
        "low": interval["low"],
        "high": interval["high"],
        "samples": resampling.SAMPLES,
      }
  for set_name, results in results_by_set.items():
    metrics |= {f"{set_name}/{name}": results.metrics[name] for name in names}
    set_intervals = results.intervals
    intervals |= {f"{set_name}/{name}": interval for name, interval in set_intervals.items()}
  return metrics, intervals


def draw_mean_score(results_by_set: Mapping[str, asking.Results], name: str) -> np.ndarray:
  """Return the mean over sets of a score of samples, [S].

  The questions of each set are drawn by a seed of its name, so two models get the same questions,
  and two sets independent ones.
  """
  draws = []
  for set_name, results in results_by_set.items():
    seed = zlib.crc32(set_name.encode())
    draws.append(
      resampling.draw_scores(results.metric, results.rows_NC, resampling.SAMPLES, seed)[name]
    )
  return np.mean(draws, axis=0)


def _rows_by_question(
  formulations: Mapping[str, Formulation], answered: Mapping[str, Mapping[str, asking.Results]]
) -> list[dict[str, Any]]:
  """Return a line for each question of each formulation."""
  lines = []
  for label, results_by_set in answered.items():
    for set_name, results in results_by_set.items():
      prompts = formulations[label].prompt_sets[set_name].prompts
      for prompt, row in zip(prompts, results.rows_NC[:, 1:].tolist()):
        lines.append(
          {
            "formulation": label,
            "set": set_name,
            "where": prompt.where,
            "question": question_id(prompt),
            **dict(zip(results.metric.columns, row)),
          }
        )
  return lines


def question_id(prompt: Prompt) -> str:
  """Return a digest of a question, which all formulations of it have."""
  question = prompt.row if prompt.row is not None else [prompt.pairs, prompt.gold]
  return checked_json.digest(question)[:16]


def read_results(
  directory: pathlib.Path, task: str, result: Mapping[str, Any]
) -> tuple[dict[str, asking.Results], list[str]]:
  """Read the judgements of a task's counted formulation.

  Args:
    directory: the directory of the suite's answers.
    task: the name of the task.
    result: the task's row of the table.

  Returns:
    The results by set, and the ids of all questions in order.

  Raises:
    UserError: the file cannot be read, or holds other lines.
  """
  remedy = "repeat the command that made the table"
  file_names.check_name(f"{directory}: the name of a task", task, remedy)
  path = directory / _BY_QUESTION / f"{task}.jsonl"
  if result.get("rule") not in asking.RULES:
    raise UserError(f"{directory}: found no rule of {task} in results.json; {remedy}")
  metric = asking.RULES[result["rule"]].metric
  judgements: dict[str, list[list[float]]] = {}
  ids = []
  try:
    lines = path.read_text(encoding="utf-8").splitlines()
    for line in lines:
      row = json.loads(line)
      if row["formulation"] == result["formulation"]:
        values = [float(row[column]) for column in metric.columns]
        judgements.setdefault(row["set"], []).append(values)
        ids.append(f"{row['set']}/{row['question']}")
  except (OSError, ValueError, TypeError, KeyError) as error:
    raise UserError(f"{path}: cannot be read ({error!r}); {remedy}") from None
  if not ids:
    raise UserError(f"{path}: found no answers of {result['formulation']}; {remedy}")
  results = {}
  for set_name, rows in judgements.items():
    results[set_name] = asking.Results(metric, metric.rows((), rows), 0)
  return results, ids


def _summarize(
  suite: QuestionSuite,
  task_results: Mapping[str, Mapping[str, Any]],
  scores_by_task: Mapping[str, Mapping[str, asking.Results]],
) -> dict[str, Any]:
  """Return the score of all tasks with its interval."""
  draws = {}
  scores = {}
  for task, results_by_set in scores_by_task.items():
    score_name = task_results[task]["counted"][0].rpartition("/")[2]
    named_sets = {f"{task}/{name}": results for name, results in results_by_set.items()}
    draws[task] = draw_mean_score(named_sets, score_name)
    scores[task] = np.array(task_results[task]["score"])
  interval = resampling.percentile_interval(summary_score(suite, task_results, draws))
  return {
    "name": suite.summary,
    "score": float(summary_score(suite, task_results, scores)),
    "low": interval["low"],
    "high": interval["high"],
    "samples": resampling.SAMPLES,
    "tasks": len(scores),
  }


def summary_score(
  suite: QuestionSuite,
  task_results: Mapping[str, Mapping[str, Any]],
  scores: Mapping[str, np.ndarray],
) -> np.ndarray:
  """Return the summary of the tasks' scores, each an array of one shape."""
  centred_scores = dict(scores)
  if suite.is_centred:
    for task, score in scores.items():
      chance = suite.tasks[task].chance
      centred_scores[task] = 100.0 * (score - chance) / (100.0 - chance)
  weights = [_weight(suite, task_results[task]) for task in scores]
  return np.average(list(centred_scores.values()), axis=0, weights=weights)


def summary_difference(
  suite: QuestionSuite,
  task_results: Mapping[str, Mapping[str, Any]],
  differences: Mapping[str, np.ndarray],
) -> np.ndarray:
  """Return the difference of two summaries from the differences of the tasks' scores."""
  zeros = {task: np.zeros_like(difference) for task, difference in differences.items()}
  before = summary_score(suite, task_results, zeros)
  return summary_score(suite, task_results, differences) - before


def _weight(suite: QuestionSuite, result: Mapping[str, Any]) -> float:
  """Return the weight of a task in the summary."""
  return float(result["examples"]) if suite.is_weighted else 1.0

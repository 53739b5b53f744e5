"""Questions without training, asked of files while a run trains: by likelihood or by generation.

  config.evals.arc = {"name": "questions", "files": ["lm_eval/arc_easy.jsonl.gz"], "shots": 5,
  "max_examples": 500}

The files, prompts and scores are those of `tools.few_shot` and `evaluate --questions`
(`inference/questions.py`).
"""

import dataclasses
from typing import Any

import jax

from t5x_like import trust
from t5x_like.evals import EvalContext, EvalResult
from t5x_like.inference import questions
from t5x_like.rows import Runner
from t5x_like.slots import NonNegativeInt, PositiveInt


@dataclasses.dataclass(frozen=True)
class _Opened:
  """The model of a run, as far as `Prompts` uses a `library.model.Model`."""

  model: Any
  vocabulary: Any
  features: dict[str, list[int]]
  ends: tuple[int, ...]
  run: Runner
  forced: tuple[None, None] = (None, None)


class Evaluator:
  """An evaluator that asks the questions of files; metrics are named `<file>/<metric>`.

  Args:
    files: files or patterns of names.
    shots: answered examples before each question, from its own file.
    seed: the seed of their choice.
    stride: the stride of windows over texts; None is their length.
    max_new_tokens: the most tokens of a generated answer; None is 64, or 256 where the file has
      worked answers, but at most half of what the model reads.
    max_examples: the number of questions of a file, from the first; None means all.

  Raises:
    UserError: there is no such file, a row is malformed, or the model is an encoder.
  """

  def __init__(
    self,
    context: EvalContext,
    *,
    files: tuple[str, ...],
    shots: NonNegativeInt = 0,
    seed: NonNegativeInt = 0,
    stride: PositiveInt | None = None,
    max_new_tokens: PositiveInt | None = None,
    max_examples: PositiveInt | None = None,
  ):
    for pattern in files:
      trust.check_location("evaluator questions: files", pattern)
    paths = questions.find_files(files)
    self._heartbeat = context.heartbeat
    self._files = {name: questions.read_questions(path) for name, path in paths.items()}
    task = context.task
    self._run = Runner(context.model, context.rules, {}, context.batch_size)
    vocabulary = context.vocabulary or task.vocabulary
    features = {name: list(feature.shape[-1:]) for name, feature in task.features.items()}
    ends = tuple({vocabulary.eos_id, *task.end_ids})
    options = questions.Options(shots, seed, max_examples, stride, max_new_tokens)
    self._ask = questions.Asker(
      _Opened(context.model, vocabulary, features, ends, self._run), options
    )
    for file in self._files.values():
      self._ask.check(file)

  def metric_names(self) -> tuple[str, ...]:
    return tuple(
      f"{name}/{metric}"
      for name, file in self._files.items()
      for metric in questions.METRICS_OF_KIND[file.kind]
    )

  def __call__(self, arrays: dict[str, jax.Array]) -> EvalResult:
    metrics = {}
    with self._run.use_arrays(arrays):
      for name, file in self._files.items():
        self._heartbeat()
        metrics |= {f"{name}/{metric}": float(value) for metric, value in self._ask(file).items()}
    return EvalResult(metrics)

"""Answer questions from files while a run trains, by likelihood or by generation.

  config.evals.arc = {"name": "questions", "files": ["lm_eval/arc_easy.jsonl.gz"], "shots": 5,
  "max_examples": 500}

The files, prompts and scores are those of `tools.few_shot` and `evaluate --questions`
(`inference/asking.py`).
"""

import dataclasses
import functools
from typing import Any

from t5x_like import trust
from t5x_like.evals import BaseEvaluator, EvalResult
from t5x_like.inference import asking, questions
from t5x_like.rows import Runner
from t5x_like.slots import NonNegativeInt, PositiveInt


@dataclasses.dataclass(frozen=True)
class _OpenedModel:
  """The model of a run, as far as `Prompts` uses a `library.model.Model`."""

  model: Any
  vocabulary: Any
  features: dict[str, list[int]]
  ends: tuple[int, ...]
  run: Runner
  forced: tuple[None, None] = (None, None)
  is_published: bool = False  # a run trains on texts after the start token


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluator(BaseEvaluator):
  """An evaluator that answers the questions of files; metrics are named `<file>/<metric>`.

  Attributes:
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

  files: tuple[str, ...]
  shots: NonNegativeInt = 0
  seed: NonNegativeInt = 0
  stride: PositiveInt | None = None
  max_new_tokens: PositiveInt | None = None
  max_examples: PositiveInt | None = None

  def __post_init__(self):
    for pattern in self.files:
      trust.check_location("evaluator questions: files", pattern)
    _ = self._prompt_sets
    _ = self._ask

  @functools.cached_property
  def _prompt_sets(self) -> dict[str, questions.PromptSet]:
    """The prompts by the name of their file."""
    options = questions.Options(
      self.shots, self.seed, self.max_examples, self.stride, self.max_new_tokens
    )
    prompt_sets = {}
    for name, path in questions.find_files(self.files).items():
      prompt_sets[name] = questions.build_prompts(questions.read_questions(path), options)
    return prompt_sets

  @functools.cached_property
  def _runner(self):
    context = self.context
    return Runner(context.model, context.rules, {}, context.batch_size)

  @functools.cached_property
  def _ask(self):
    task = self.context.task
    vocabulary = self.context.vocabulary or task.vocabulary
    features = {name: list(feature.shape[-1:]) for name, feature in task.features.items()}
    ends = tuple({vocabulary.eos_id, *task.end_ids})
    model = _OpenedModel(self.context.model, vocabulary, features, ends, self._runner)
    return asking.Asker(model)

  def metric_names(self):
    names = []
    for name, prompt_set in self._prompt_sets.items():
      metric = asking.RULES[prompt_set.rule].metric
      names += [f"{name}/{score}" for score in (*metric.names, *metric.count_names)]
    return tuple(names)

  def __call__(self, arrays):
    metrics = {}
    with self._runner.use_arrays(arrays):
      for name, prompt_set in self._prompt_sets.items():
        results = self._ask(prompt_set, lambda done, total: self.context.heartbeat())
        for metric, value in results.metrics.items():
          metrics[f"{name}/{metric}"] = float(value)
    return EvalResult(metrics)

"""Answer questions from retrieved passages: exact match, F1 and the retriever's recall."""

import dataclasses
import functools
from typing import Literal

import jax
import numpy as np

from t5x_like.contrib.retrieval.search import (
  answer_from_passages,
  build_index,
  most_probable_answer,
  open_search,
)
from t5x_like.errors import UserError
from t5x_like.evals import BaseEvaluator, EvalResult, _labelled
from t5x_like.metrics.answers import normalize_squad
from t5x_like.metrics.texts import answers, reference_texts
from t5x_like.parallel.rules import fetch
from t5x_like.slots import Length, PositiveInt


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluator(BaseEvaluator):
  """Answer greedily from each of the retrieved passages, and choose the likeliest answer.

  The index is made with the parameters that are evaluated. The probability of an answer is `sum_z
  p(z|x) p(y|x, z)` over the passages z that it was written from ("fast decoding", Lewis et al.
  2020, section 2.5).

  Attributes:
    references: the record field with the right texts, such as `answers`; None means the target of
      the task.
    normalization: how texts are normalised before they are compared.
    max_new_tokens: the most tokens of an answer; None means the length of the task's targets.
    max_examples: the number of questions, from the first; None means all.

  Raises:
    UserError: the task is not `open_qa`.
  """

  references: str | None = None
  normalization: Literal["squad", "triviaqa"] = "squad"
  max_new_tokens: Length | None = None
  max_examples: PositiveInt | None = None

  def __post_init__(self):
    task = self.context.task
    if getattr(task, "passages", None) is None:
      raise UserError(
        f"evaluator open_qa: needs the task open_qa, found {task.name}; choose another evaluator"
      )
    _ = self._gold  # refuses questions without answers
    if self._k:
      _ = self._search  # opened before the first step

  @functools.cached_property
  def _metric(self):
    return answers(normalization=self.normalization)

  @functools.cached_property
  def _examples(self):
    fields = () if self.references is None else (self.references.split(".")[0],)
    return self.context.task.examples(fields)[: self.max_examples]

  @functools.cached_property
  def _gold(self):
    """The right texts of each example."""
    return [self._right_texts(example) for example in self._examples]

  @property
  def _k(self):
    """The number of passages that are retrieved for a question."""
    return self.context.task.features["passage_tokens"].shape[0] - 1

  @functools.cached_property
  def _search(self):
    context = self.context
    kind = getattr(context.objective, "search", "device")
    rows = context.batch_size * (1 + self._k)
    return open_search(kind, context.model, context.rules, context.task.passages, rows)

  def compute(self, model, batch):
    """Return the answers from each passage, int32 [B, Z, N], and their log-probabilities [B, Z]."""
    length = self.context.task.features["decoder_target_tokens"].shape[0]
    features = {name: batch[name] for name in model.REQUIRED_FEATURES}
    return answer_from_passages(model, features, self.max_new_tokens or length)

  def metric_names(self):
    return (*self._metric.metric.names, "found", "examples")

  def __call__(self, arrays):
    """Return `exact_match`, `f1`, `found` and the number of `examples`.

    `found` is the percentage of questions with a right answer in a retrieved passage.
    """
    predictions = []
    index_NP = build_index(self._search, arrays) if self._k else None
    for batch in self.context.global_batches(self.max_examples):
      if self._k:
        batch = self._search.add_nearest(arrays, index_NP, batch)
      predictions += self._predictions(arrays, batch)
    predicted = [self._metric.prediction(row["prediction"]) for row in predictions]
    gold = [self._metric.reference(row["references"]) for row in predictions]
    scores = self._metric.metric(gold, predicted)
    scores["found"] = 100 * float(np.mean([_is_answer_retrieved(row) for row in predictions]))
    scores["examples"] = len(predictions)
    return EvalResult(scores, _labelled.sample_predictions(predictions), predictions)

  def _predictions(self, arrays: dict[str, jax.Array], batch: dict[str, jax.Array]) -> list[dict]:
    """Return the records of the examples of a batch, whose passages are in it."""
    task = self.context.task
    index_B = fetch(batch["example_index"])
    is_example_B = index_B >= 0
    tokens_BZN, log_p_BZ = (fetch(x)[is_example_B] for x in self.run(arrays, batch))
    number_Bk = np.zeros((len(tokens_BZN), 0), int)
    if self._k:
      number_Bk = fetch(batch["passages"])[is_example_B]
    rows = []
    for i, index in enumerate(index_B[is_example_B]):
      example = self._examples[index]
      answer, probability = most_probable_answer(task.vocabulary, tokens_BZN[i], log_p_BZ[i])
      rows.append(
        {
          "input": example["inputs"],
          "target": example["targets"],
          "prediction": answer,
          "passages": task.passages.texts(number_Bk[i]),
          "references": self._gold[index],
          "probability": probability,
        }
      )
    return rows

  def _right_texts(self, example: dict) -> list[str]:
    """Return the right texts of an example; raise UserError if it has none."""
    from t5x_like.corpora.sources import field_value

    name = self.context.task.name
    where = f"task {name}, input {example['inputs'][:60]!r}"
    try:
      texts = example["targets"]
      if self.references:
        texts = field_value(example["record"], self.references, name)
      right = reference_texts(texts)
    except ValueError as error:
      raise UserError(f"{where}, field {self.references!r}: {error}") from None
    if not right:
      raise UserError(f"{where}: found no texts in field {self.references!r}")
    return right


def _is_answer_retrieved(row: dict) -> bool:
  """Return whether a right answer is in a retrieved passage."""
  return any(
    _contains_answer(text, answer) for answer in row["references"] for text in row["passages"]
  )


def _contains_answer(text: str, answer: str) -> bool:
  """Return whether a text has the words of an answer in a row, both normalised."""
  return f" {normalize_squad(answer)} " in f" {normalize_squad(text)} "

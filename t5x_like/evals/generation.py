"""Score generated labels, answers, translations or summaries with their benchmarks' metrics."""

import dataclasses
import functools
from typing import Annotated, Any

import jax
import numpy as np

from t5x_like import slots
from t5x_like.decoding.beam_search import GnmtPenalty, Penalty, PowerPenalty, beam_search
from t5x_like.decoding.generate import choose_likeliest, generate
from t5x_like.decoding.transforms import PENALTIES, build_transforms
from t5x_like.errors import UserError
from t5x_like.evals import BaseEvaluator, EvalResult, _labelled
from t5x_like.metrics.classification import MultiRc
from t5x_like.metrics.texts import METRICS, reference_texts
from t5x_like.rows import merge_lengths, pad_rows, padded_length, run_in_batches
from t5x_like.slots import Condition, Length, PositiveInt

_UNLABELLED = "-1"  # marks a missing label in TFDS
Beams = Annotated[int, Condition("a whole number from 1 to 1,024", lambda n: 1 <= n <= 1024)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluator(BaseEvaluator):
  """An evaluator that generates and scores the target of every example of a text-to-text task.

  Inputs longer than the task's rows are truncated as in training, and counted as `truncated`.
  Examples without `references` are predicted but not scored, and so are those with the target -1,
  which marks a missing label in TFDS, unless a metric has a class of this name.

  Attributes:
    metrics: one or more of `metrics.texts.METRICS`, each a name or a name with its options.
    references: the record field with the correct texts, such as `answers`; None is the task's
      target.
    questions: fields that together identify an example's question; adds MultiRC's `f1a` and
      `exact_match` of the labels that the first metric reads.
    beams: the number of beams; 1 takes the likeliest token at every step.
    length_penalty: alpha of the beams' score, as in `predict`.
    length_power: instead, the power of the length that divides the beams' log-probability, as in
      fairseq.
    penalties: values of `repetition_penalty`, `no_repeat_ngram_size` and `min_new_tokens`, as in
      `predict`.
    max_new_tokens: the most tokens to generate; None is the length of the task's targets.
    ids: fields to copy to the predictions.
    max_examples: the number of examples, from the first; None means all.

  Raises:
    UserError: the task is not text-to-text, a metric or field is unknown, or a metric cannot read a
      reference.
  """

  metrics: tuple[str | dict, ...] = ("exact",)
  references: str | None = None
  questions: tuple[str, ...] = ()
  beams: Beams = 1
  length_penalty: float = 0.6
  length_power: float | None = None
  penalties: dict | None = None
  max_new_tokens: Length | None = None
  ids: tuple[str, ...] = ()
  max_examples: PositiveInt | None = None

  def __post_init__(self):
    task = self.context.task
    targets = task.features.get("decoder_target_tokens")
    if task.examples is None or targets is None or len(targets.shape) > 1:
      raise UserError(
        f"evaluator generation: found task {task.name}, expected text-to-text; choose another task "
        "or evaluator"
      )
    for i, metric in enumerate(self._text_metrics):
      metric.metric.check_references([references[i] for references in self._gold.values()])
    _ = self._decoding_options  # raises UserError for unknown penalties

  @functools.cached_property
  def _text_metrics(self):
    where = "evaluator generation: metrics"
    return [slots.make(where, metric, METRICS) for metric in self.metrics]

  @functools.cached_property
  def _examples(self):
    fields = list(self.questions)
    if self.references:
      fields.append(self.references)
    record_fields = [field.split(".")[0] for field in fields]
    examples = self.context.task.examples((*self.ids, *record_fields))
    return examples[: self.max_examples]

  @functools.cached_property
  def _missing_labels(self):
    """The targets that mark a missing label: -1, unless a metric has it as a class."""
    classes: set[str] = set()
    for metric in self.metrics:
      if isinstance(metric, dict):
        classes.update(map(str, metric.get("classes") or ()))
    return [] if _UNLABELLED in classes else [_UNLABELLED]

  @functools.cached_property
  def _gold(self):
    """The references of each example with a label, one for each metric, by the example's index."""
    gold = {}
    for n, example in enumerate(self._examples):
      references = self._read_references(example)
      if references is not None:
        gold[n] = references
    return gold

  @property
  def _has_encoder(self):
    return "encoder_input_tokens" in self.context.task.features

  @property
  def _side(self):
    """The stack whose features hold a prompt."""
    return "encoder" if self._has_encoder else "decoder"

  @property
  def _longest(self):
    """The length of the task's rows of prompts."""
    return self.context.task.features[f"{self._side}_input_tokens"].shape[0]

  @property
  def _new_tokens(self):
    """The most tokens to generate."""
    if self.max_new_tokens:
      return self.max_new_tokens
    (length,) = self.context.task.features["decoder_target_tokens"].shape
    return length if self._has_encoder else min(64, length // 2)

  @functools.cached_property
  def _decoding_options(self):
    transforms = build_transforms(
      self.penalties or {}, "evaluator generation: penalties.", PENALTIES
    )
    return {
      "max_length": self._new_tokens,
      "eos": tuple(self._end_ids()),
      "transforms": transforms,
    }

  def compute(self, model, batch):
    """Return the generated ids, int32 [B, T]."""
    features = self._features(batch)
    if self.beams == 1:
      tokens_BT, _ = generate(model, features, choose_likeliest, **self._decoding_options)
      return (tokens_BT,)
    length_penalty: Penalty = GnmtPenalty(self.length_penalty)
    if self.length_power is not None:
      length_penalty = PowerPenalty(self.length_power)
    tokens_BKT, _ = beam_search(
      model,
      features,
      beams=self.beams,
      length_penalty=length_penalty,
      **self._decoding_options,
    )
    return (tokens_BKT[:, 0],)

  def metric_names(self):
    """Return the names of all metrics it may write; no scores where no example has a label."""
    names: list[str] = []
    if self._gold:
      for metric in self._text_metrics:
        names += [name for name in metric.metric.names if name not in names]
      if self.questions:
        names += MultiRc.names
    return (*names, "examples", "empty", "truncated", "unfinished", "unlabelled")

  def __call__(self, arrays):
    """Return the metrics' scores and the numbers of `examples` and of some kinds of them.

    Kinds are `empty` predictions, `truncated` inputs, `unfinished` predictions, which reach
    `max_new_tokens` without an end, and `unlabelled` examples, if any.
    """
    batch_size = self.context.batch_size
    prompts, truncated = self._prompts
    lengths = [padded_length(len(prompt), self._longest) for prompt in prompts]
    outputs = run_in_batches(
      lambda batch: self.run(arrays, batch),
      self.context.rules,
      batch_size,
      merge_lengths(lengths, batch_size),
      self._rows,
    )
    ends = list(self._end_ids())
    texts = [self._decode(tokens.tolist()) for (tokens,) in outputs]
    scores: dict[str, float] = {
      "examples": len(texts),
      "empty": sum(not text.strip() for text in texts),
      "truncated": truncated,
      "unfinished": sum(not np.isin(tokens, ends).any() for (tokens,) in outputs),
    }
    if len(self._gold) < len(texts):
      scores["unlabelled"] = len(texts) - len(self._gold)
    if self._gold:
      scores |= self._score(texts)
    predictions = []
    for example, text in zip(self._examples, texts):
      row = {"input": example["inputs"], "target": example["targets"], "prediction": text}
      if self.references:
        row["references"] = self._reference_texts(example)
      predictions.append(_labelled.prepend_ids(row, example["record"], self.ids))
    return EvalResult(scores, _labelled.sample_predictions(predictions), predictions)

  def _score(self, texts: list[str]) -> dict[str, float]:
    """Return the scores of the metrics on the examples that have a label."""
    scores = {}
    for i, metric in enumerate(self._text_metrics):
      predicted = [metric.prediction(texts[n]) for n in self._gold]
      gold = [references[i] for references in self._gold.values()]
      scores |= metric.metric(gold, predicted)
      if self.questions and i == 0:
        records = [self._examples[n]["record"] for n in self._gold]
        scores |= _labelled.question_scores(records, self.questions, gold, predicted)
    return scores

  def _read_references(self, example: dict[str, Any]) -> list[Any] | None:
    """Return an example's reference in the form that each metric takes; None if it has no label."""
    name = self.context.task.name
    try:
      texts = self._reference_texts(example)
      if example["targets"] in self._missing_labels and texts in ([], self._missing_labels):
        return None
      if not texts:
        raise ValueError(f"found no texts in field {self.references!r}")
      references = [metric.reference(texts) for metric in self._text_metrics]
      return None if None in references else references
    except ValueError as error:
      raise UserError(f"task {name}, input {example['inputs'][:60]!r}: {error}") from None

  def _reference_texts(self, example: dict[str, Any]) -> list[str]:
    """Return the correct texts of an example."""
    from t5x_like.corpora.sources import field_value

    if not self.references:
      return reference_texts(example["targets"])
    name = self.context.task.name
    return reference_texts(field_value(example["record"], self.references, name))

  @functools.cached_property
  def _prompts(self):
    """The ids of the prompts, and the number of prompts that are too long.

    Prompts are cut at the end, or at the beginning if the task itself gives their ids.
    """
    from t5x_like import vocabularies

    vocabulary = self.context.task.vocabulary
    if self._has_encoder:
      before = vocabularies.opening_ids(vocabulary)
      after = [vocabulary.eos_id]
      max_ids = self._longest - len(before) - 1
    else:
      before = [vocabularies.start_id(vocabulary)]
      after = []
      max_ids = max(self._longest - self._new_tokens, 2)
    texts = [example["inputs"] for example in self._examples]
    if self.context.task.has_sentinels:
      encoded_texts = vocabularies.encode_sentinels_batch(vocabulary, texts)
    else:
      encoded_texts = vocabulary.encode_batch(texts)
    truncated = 0
    rows = []
    for example, encoded in zip(self._examples, encoded_texts):
      ids = example.get("ids", encoded)
      truncated += len(ids) > max_ids
      ids = ids[-max_ids:] if "ids" in example else ids[:max_ids]
      rows.append([*before, *map(int, ids), *after])
    return rows, truncated

  def _rows(self, numbers: list[int], length: int) -> dict[str, np.ndarray]:
    """Return the prompts of examples, padded to a length."""
    pad_id = self.context.task.vocabulary.pad_id or 0
    all_prompts, _ = self._prompts
    prompts = [all_prompts[number] for number in numbers]
    tokens_BP, valid_BP = pad_rows(prompts, length, pad_id)
    return {"tokens": tokens_BP, "valid": valid_BP}

  def _features(self, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Return the model's features of prompts."""
    names = self.context.task.features
    side = self._side
    features = {f"{side}_input_tokens": batch["tokens"]}
    if f"{side}_segment_ids" in names:
      features[f"{side}_segment_ids"] = batch["valid"]
    if "decoder_causal_attention" in names and not self._has_encoder:
      features["decoder_causal_attention"] = batch["valid"]
    return features

  def _end_ids(self) -> set[int]:
    return {self.context.task.vocabulary.eos_id, *self.context.task.end_ids}

  def _decode(self, ids: list[int]) -> str:
    """Decode the ids before the first end."""
    vocabulary = self.context.task.vocabulary
    ends = self._end_ids()
    answer_ids = []
    for i in ids:
      if i in ends:
        break
      if i < vocabulary.size:
        answer_ids.append(i)
    return vocabulary.decode(answer_ids).strip()

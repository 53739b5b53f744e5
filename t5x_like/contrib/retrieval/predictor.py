"""Answers to questions from passages that the model retrieves (Guu et al. 2020, REALM)."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from t5x_like.contrib.retrieval.search import (
  answer_from_passages,
  build_index,
  most_probable_answer,
  open_search,
)
from t5x_like.errors import UserError
from t5x_like.inference.texts import describe_text
from t5x_like.nn import params
from t5x_like.rows import Runner, run_in_batches

Rows = Sequence[Sequence[int]]


class PassagePredictor:
  """Answer greedily from each of a question's nearest passages, and choose the likeliest answer.

  Args:
    model: the abstract `retriever_reader.RetrieverReader`.
    task: the task of the run, which has passages.
    search: the backend of the search, `device` or `faiss`.
    max_new_tokens: the most tokens of an answer; None means the length of the task's targets.

  Raises:
    UserError: the task has no passages, or other flags are given.
  """

  def __init__(
    self, model, task, search: str, *, max_new_tokens: int | None = None, **unknown_flags: Any
  ):
    if unknown_flags:
      name, value = next(iter(unknown_flags.items()))
      raise UserError(
        f"--{name}={value}: the model answers greedily from each passage that it "
        "retrieves; leave it out"
      )
    if getattr(task, "passages", None) is None:
      raise UserError(
        f"--workdir: found the task {task.name}, expected open_qa, which answers from its passages"
      )
    self.vocabulary = task.vocabulary
    self._task = task
    self._search = search
    self._shapes = {name: task.features[name].shape for name in model.REQUIRED_FEATURES}
    self._k = self._shapes["passage_tokens"][0] - 1
    new = max_new_tokens or task.features["decoder_target_tokens"].shape[0]
    self._answer = functools.partial(answer_from_passages, new_tokens=new)
    self._functions: tuple | None = None

  def encode(self, texts: Sequence[str], origin: str) -> list[list[int]]:
    """Return the token ids of each question, up to EOS.

    Raises:
      UserError: a question is empty, or longer than in training.
    """
    (longest,) = self._shapes["encoder_input_tokens"]
    rows = []
    for number, text in enumerate(texts):
      ids = [*map(int, self.vocabulary.encode(text)), self.vocabulary.eos_id]
      if not 1 < len(ids) <= longest:
        raise UserError(
          f"{origin}: {describe_text(text, number)} has {len(ids)} tokens with its end, "
          f"expected 2 to {longest}, the length the model was trained with; shorten it"
        )
      rows.append(ids)
    return rows

  def __call__(self, run: Runner, ids: Rows, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return an answer for each text: `input`, `prediction`, `probability` and `passages`.

    The passages are sorted, the nearest first.
    """
    add_passages, answer = self._functions or self._prepare(run)
    self._functions = add_passages, answer
    (Q,) = self._shapes["encoder_input_tokens"]
    passages = self._task.passages

    def features(numbers: list[int], length: int) -> dict[str, np.ndarray]:
      shapes = {name: (len(numbers), *shape) for name, shape in self._shapes.items()}
      batch = {
        name: np.full(shape, self.vocabulary.pad_id, np.int32) for name, shape in shapes.items()
      }
      for row, number in enumerate(numbers):
        batch["encoder_input_tokens"][row, : len(ids[number])] = ids[number]
      return batch | {"own_passage": np.full(len(numbers), -1, np.int32)}

    def answer_batch(batch: dict[str, jax.Array]) -> tuple[jax.Array, ...]:
      batch = add_passages(batch)
      answers_and_log_p = answer({name: batch[name] for name in self._shapes})
      numbers = (batch["passages"],) if self._k else ()
      return (*answers_and_log_p, *numbers)

    lengths = [Q] * len(ids)
    outputs = run_in_batches(answer_batch, run.rules, run.batch_size, lengths, features)
    answers = []
    for text, (tokens_ZN, log_p_Z, *numbers) in zip(texts, outputs):
      prediction, probability = most_probable_answer(self.vocabulary, tokens_ZN, log_p_Z)
      passage_texts = passages.texts(numbers[0]) if numbers else []
      answers.append(
        {
          "input": text,
          "prediction": prediction,
          "probability": round(probability, 4),
          "passages": passage_texts,
        }
      )
    return answers

  def _prepare(self, run: Runner) -> tuple:
    """Return the functions that retrieve passages and answer from each, and index all passages.

    The first adds the passages to a batch, and the second returns the answers for such a batch.
    """

    @jax.jit
    def answer(arrays, batch):
      with run.rules.activate():
        return self._answer(params.with_arrays(run.model, arrays), batch)

    add_passages = lambda batch: batch  # noqa: E731
    if self._k:
      passages = self._task.passages
      embed_batch = run.batch_size * (1 + self._k)
      search = open_search(self._search, run.model, run.rules, passages, embed_batch)
      index = build_index(search, run.arrays)
      add_passages = functools.partial(search.add_nearest, run.arrays, index)
    return add_passages, functools.partial(answer, run.arrays)

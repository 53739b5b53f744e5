"""Generates text token by token for a reader who waits: two programs are compiled once and serve
every prompt."""

import dataclasses
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like.decoding.generate import PrefilledModel, prefill
from t5x_like.decoding.sampling import DecodingStep, Transform, apply_transforms, row_maximum
from t5x_like.decoding.unrolled import prepare_for_decoding
from t5x_like.errors import UserError
from t5x_like.inference.generation import Generation
from t5x_like.nn import params
from t5x_like.parallel.rules import from_local_rows, local_rows
from t5x_like.rows import Runner

_UNFINISHED = "\ufffd"  # the end of a text whose last character lacks bytes


class Stream:
  """Generation that yields text as it comes.

  Prompts are padded to one length, so that one program reads them all and one makes every next
  token.

  Args:
    run: a runner of the model.
    predict: encodes prompts and decodes answers; its `new_tokens` limits an answer.
    transforms: restrict the tokens to choose from; see `sampling` and `penalties`.
    context: the most tokens of a prompt.
    seed: of the draws; every answer has draws of its own.
  """

  def __init__(
    self,
    run: Runner,
    predict: Generation,
    transforms: Sequence[Transform] = (),
    context: int = 512,
    seed: int = 0,
  ):
    self._run = run.transform(prepare_for_decoding)
    self._predict = predict
    self._transforms = predict.add_constraints(transforms)
    self.context, self._key, self._answers = context, jax.random.key(seed), 0
    self._rows = run.rules.ways("batch")  # the text is the first row; the others complete a batch
    self._read, self._step = jax.jit(self._first), jax.jit(self._next, donate_argnums=1)

  def __call__(self, ids: Sequence[int], temperature: float = 0.0) -> Iterator[str]:
    """Yield the pieces of an answer to a prompt, until the model ends it or `new_tokens` are made.

    Args:
      ids: the tokens of the prompt, at most `context`.
      temperature: of the draws; 0 takes the likeliest token.
    Raises:
      UserError: the prompt is longer.
    """
    if len(ids) > self.context:
      raise UserError(
        f"the prompt has {len(ids)} tokens, expected at most {self.context}; shorten it, /reset, "
        "or raise --context"
      )
    tokens, valid = np.zeros((2, self._rows, self.context), np.int32)
    tokens[0, : len(ids)], valid[0, : len(ids)] = ids, 1
    batch = {"tokens": self._to_device(tokens), "valid": self._to_device(valid)}
    key = jax.random.fold_in(self._key, self._answers)
    self._answers = self._answers + 1
    start, last_B1 = self._read(self._run.arrays, batch)
    ids_made: list[int] = []
    # on the device only where a transform reads it
    all_BT = np.zeros((self._rows, self._predict.new_tokens), np.int32)
    stops = self._predict.stops
    yielded = ""
    text = ""
    for index in range(self._predict.new_tokens):
      options = jnp.int32(index), key, jnp.float32(temperature)
      start, last_B1 = self._step(self._run.arrays, start, last_B1, all_BT.copy(), *options)
      all_BT[:, index] = token = int(np.asarray(last_B1.addressable_data(0))[0, 0])
      if token in self._predict.ends:
        break
      if token < self._predict.vocabulary.size:  # token tables may have more rows
        ids_made.append(token)
      text = self._predict.decode_answer(ids, ids_made)
      if stops.cut(text) != text:
        break
      settled = stops.stable_prefix(text)
      if (
        not text.endswith(_UNFINISHED)
        and settled.startswith(yielded)
        and len(settled) > len(yielded)
      ):
        yield settled[len(yielded) :]
        yielded = settled
    remaining = stops.cut(text)
    if len(remaining) > len(yielded) and remaining.startswith(yielded):
      yield remaining[len(yielded) :]

  def _first(self, arrays, batch) -> tuple[PrefilledModel, jax.Array]:
    with self._run.rules.activate():
      model = params.with_arrays(self._run.model, arrays)
      features = self._predict.model_features(batch)
      start = prefill(model, features, self._predict.new_tokens, self._predict.ends)
      return dataclasses.replace(start, model=None, last_B1=None), start.last_B1

  def _next(
    self, arrays, start: PrefilledModel, last_B1, tokens_BT, index, key, temperature
  ) -> tuple[PrefilledModel, jax.Array]:
    with self._run.rules.activate():
      model = prepare_for_decoding(params.with_arrays(self._run.model, arrays))
      logits_BV, state = dataclasses.replace(start, model=model).next_logits(
        last_B1, start.state, index
      )
      step = DecodingStep(index, self._predict.new_tokens, start.eos, start.prompt_BP, tokens_BT)
      divisor = jnp.where(temperature > 0, jnp.maximum(temperature, 1e-6), 1.0)
      scores_BV = apply_transforms(self._transforms, logits_BV / divisor, step)
      drawn_B = jax.random.categorical(jax.random.fold_in(key, index), scores_BV)
      token_B = jnp.where(temperature > 0, drawn_B, row_maximum(scores_BV)[1])
      return dataclasses.replace(start, state=state), token_B.astype(jnp.int32)[:, None]

  def _to_device(self, x: np.ndarray) -> jax.Array:
    sharding = self._run.rules.batch()
    rows = local_rows(sharding, len(x))
    return from_local_rows(sharding, rows, x[rows], len(x))

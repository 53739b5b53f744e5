"""Generate text token by token for a reader, with two programs that serve every prompt."""

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
  """Generation that yields each piece of text as soon as it is complete.

  Prompts are padded to one length, so that one program reads every prompt and another program
  generates every next token.

  Args:
    run: a runner of the model.
    predict: encodes prompts and decodes answers; its `new_tokens` limits an answer.
    transforms: changes of the scores of tokens; see `decoding.sampling` and `penalties`.
    context: the most tokens of a prompt.
    seed: the seed of sampling; every answer draws different samples.
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
    self.context = context
    self._key = jax.random.key(seed)
    self._num_answers = 0
    self._rows = run.rules.ways("batch")  # the text is the first row; the others complete a batch
    self._read = jax.jit(self._read_prompt)
    self._step = jax.jit(self._next_token, donate_argnums=1)

  def __call__(self, ids: Sequence[int], temperature: float = 0.0) -> Iterator[str]:
    """Yield the pieces of an answer to a prompt, until it ends or has `new_tokens` tokens.

    Args:
      ids: the tokens of the prompt, at most `context`.
      temperature: the temperature of sampling; 0 takes the likeliest token.
    Raises:
      UserError: the prompt is longer.
    """
    if len(ids) > self.context:
      raise UserError(
        f"the prompt has {len(ids)} tokens, expected at most {self.context}; shorten it, /reset, "
        "or raise --context"
      )
    new_ids: list[int] = []
    stops = self._predict.stops
    yielded = ""
    text = ""
    for token in self._tokens(ids, temperature):
      if token < self._predict.vocabulary.size:  # token tables may have more rows
        new_ids.append(token)
      text = self._predict.decode_answer(ids, new_ids)
      if stops.cut(text) != text:
        break
      stable = stops.stable_prefix(text)
      is_longer = stable.startswith(yielded) and len(stable) > len(yielded)
      if is_longer and not text.endswith(_UNFINISHED):
        yield stable[len(yielded) :]
        yielded = stable
    answer = stops.cut(text)
    if len(answer) > len(yielded) and answer.startswith(yielded):
      yield answer[len(yielded) :]

  def _tokens(self, ids: Sequence[int], temperature: float) -> Iterator[int]:
    """Yield the tokens of an answer up to the end token, at most `new_tokens`."""
    tokens_BP = np.zeros((self._rows, self.context), np.int32)
    valid_BP = np.zeros((self._rows, self.context), np.int32)
    tokens_BP[0, : len(ids)] = ids
    valid_BP[0, : len(ids)] = 1
    batch = {"tokens": self._to_device(tokens_BP), "valid": self._to_device(valid_BP)}
    key = jax.random.fold_in(self._key, self._num_answers)
    self._num_answers += 1
    start, last_B1 = self._read(self._run.arrays, batch)
    # Kept on the host, as few transforms read the tokens so far.
    new_BT = np.zeros((self._rows, self._predict.new_tokens), np.int32)
    for index in range(self._predict.new_tokens):
      options = jnp.int32(index), key, jnp.float32(temperature)
      start, last_B1 = self._step(self._run.arrays, start, last_B1, new_BT.copy(), *options)
      token = int(np.asarray(last_B1.addressable_data(0))[0, 0])
      new_BT[:, index] = token
      if token in self._predict.ends:
        return
      yield token

  def _read_prompt(self, arrays, batch) -> tuple[PrefilledModel, jax.Array]:
    with self._run.rules.activate():
      model = params.with_arrays(self._run.model, arrays)
      features = self._predict.model_features(batch)
      start = prefill(model, features, self._predict.new_tokens, self._predict.ends)
      return dataclasses.replace(start, model=None, last_B1=None), start.last_B1

  def _next_token(
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

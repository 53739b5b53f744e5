"""Generation with a key/value cache, greedy or by sampling; see `beam_search` for beam search.

Call these functions under `jax.jit`, and on a mesh in the context of its rules. Shapes are static,
all batches of the same size share one compilation, and rows stay on their devices. A model needs
`prompt`, `start_decoding`, `decode` and `variant.tokens` (see `architectures/decoder.py`). The
prompt of an encoder-decoder is the start token, followed by `decoder_prefix_tokens` if the batch
has them.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from t5x_like.decoding.sampling import DecodingStep, Transform, apply_transforms, is_in, row_maximum
from t5x_like.decoding.stops import StopStrings
from t5x_like.decoding.unrolled import prepare_for_decoding
from t5x_like.errors import UserError
from t5x_like.nn.decode import DecodeState
from t5x_like.parallel.constrain import constrain

Batch = dict[str, jax.Array]


def greedy(
  model,
  batch: Batch,
  *,
  max_length: int,
  transforms: Sequence[Transform] = (),
  eos: Sequence[int] | None = None,
) -> jax.Array:
  """Take the most likely next token until every row has ended.

  Args:
    model: a decoder or an encoder-decoder; applying `unrolled.prepare_for_decoding` beforehand
      saves work in every call.
    batch: the features that its `prompt` and `start_decoding` read. Prompts may be padded on either
      side; a row of only padding generates nothing.
    max_length: maximal number of new tokens.
    transforms: applied to the logits before the choice; see `sampling`.
    eos: ids that end a row; None is the model's end token.
  Returns:
    int32 [B, max_length]: the new tokens up to the end token, then padding (0 if the model has
    none).
  Raises:
    UserError: `max_length` or an id of `eos` is out of range.
  """
  tokens_BT, _ = generate(
    model, batch, choose_likeliest, max_length=max_length, transforms=transforms, eos=eos
  )
  return tokens_BT


def sample(
  model,
  batch: Batch,
  key: jax.Array,
  *,
  max_length: int,
  transforms: Sequence[Transform] = (),
  eos: Sequence[int] | None = None,
) -> jax.Array:
  """Draw tokens from the model's distribution as changed by `transforms`.

  The key of each draw is folded from `key`, the row index and the step index, so a row's tokens
  depend neither on the rest of the batch nor on its layout over devices.

  Args:
    key: random key.
    transforms: such as `Temperature(0.7), TopK(40), TopP(0.9), MinP(0.05)`, applied in order.
    model, batch, max_length, eos: as for `greedy`.
  Returns:
    int32 [B, max_length], as `greedy`.
  """
  prompt_BP, _ = model.prompt(batch)
  rows_B = jnp.arange(prompt_BP.shape[0])
  keys_B = jax.vmap(lambda row: jax.random.fold_in(key, row))(rows_B)
  tokens_BT, _ = generate(
    model, batch, choose_by_keys(keys_B), max_length=max_length, transforms=transforms, eos=eos
  )
  return tokens_BT


TokenChoice = Callable[[jax.Array, DecodingStep], jax.Array]


def choose_likeliest(scores_BV: jax.Array, step: DecodingStep) -> jax.Array:
  """Return the token of the greatest score in each row, int32 [B]."""
  _, token_B = row_maximum(scores_BV)
  return token_B


def choose_by_keys(keys_B: jax.Array) -> TokenChoice:
  """Return a choice that draws each row's token with its key, folded with the step."""

  def choose(scores_BV, step):
    step_keys_B = jax.vmap(lambda key: jax.random.fold_in(key, step.index))(keys_B)
    return jax.vmap(jax.random.categorical)(step_keys_B, scores_BV)

  return choose


def generate(
  model,
  batch: Batch,
  choose: TokenChoice,
  *,
  max_length: int,
  transforms: Sequence[Transform] = (),
  eos: Sequence[int] | None = None,
  stop: StopStrings | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Generate token by token, each chosen from the transformed logits.

  Args:
    choose: `(scores_BV, step) -> int [B]`, `choose_likeliest` or `choose_by_keys(keys)`.
    stop: strings whose completion ends a row, as `eos` does.
    model, batch, max_length, transforms, eos: as for `greedy`.
  Returns:
    (int32 [B, max_length] as `greedy`, float32 [B, max_length] log-probabilities of the new tokens,
    including the end token, under the model itself, before any transform; 0 after the end).
  """
  prefilled = prefill(model, batch, max_length, eos)
  changing, join = split_state(prefilled.state)

  def is_unfinished(carry):
    *_, ended_B, index = carry
    return (index < max_length) & ~jnp.all(ended_B)

  def advance(carry):
    tokens_BT, log_p_BT, last_B1, changing, ended_B, index = carry
    logits_BV, state = prefilled.next_logits(last_B1, join(changing), index)
    step = DecodingStep(index, max_length, prefilled.eos, prefilled.prompt_BP, tokens_BT)
    scores_BV = apply_transforms(transforms, logits_BV, step)
    chosen_B = choose(scores_BV, step).astype(jnp.int32)
    log_p_BV = jax.nn.log_softmax(logits_BV)
    log_p_B1 = jnp.take_along_axis(log_p_BV, chosen_B[:, None], axis=1)
    log_p_B1 = jnp.where(ended_B[:, None], 0.0, log_p_B1)
    log_p_B1 = constrain(log_p_B1, "batch", None)
    next_B = jnp.where(ended_B, prefilled.pad, chosen_B)
    next_B1 = constrain(next_B[:, None], "batch", None)
    tokens_BT = jax.lax.dynamic_update_slice(tokens_BT, next_B1, (0, index))
    log_p_BT = jax.lax.dynamic_update_slice(log_p_BT, log_p_B1, (0, index))
    ended_B |= is_in(next_B, prefilled.eos)
    if stop is not None:
      ended_B |= stop(tokens_BT, index)
    changing, _ = split_state(state)
    return tokens_BT, log_p_BT, next_B1, changing, ended_B, index + 1

  B = prefilled.last_B1.shape[0]
  tokens_BT = constrain(jnp.full((B, max_length), prefilled.pad, jnp.int32), "batch", None)
  log_p_BT = constrain(jnp.zeros((B, max_length), jnp.float32), "batch", None)
  carry = (tokens_BT, log_p_BT, prefilled.last_B1, changing, ~prefilled.alive_B, jnp.int32(0))
  tokens_BT, log_p_BT, *_ = jax.lax.while_loop(is_unfinished, advance, carry)
  return tokens_BT, log_p_BT


@dataclasses.dataclass(frozen=True)
class PrefilledModel:
  """A model that has read its prompt.

  The last token of a prompt of two or more tokens is fed twice: with the prompt, for its keys and
  values, and in the first step, for the logits of the next token. So the logits of a whole prompt,
  [B, P, V], are never computed, and prompts of any length continue with the same step.

  Attributes:
    model: the model prepared for the loop over steps; see `unrolled.prepare_for_decoding`.
    state: the cache, with the prompt in it.
    prompt_BP: int32, the prompts, each at the end of its row without padding between; -1 before it.
    last_B1: int32, the last token of each prompt.
    alive_B: bool, rows that have any input.
    is_prompt_cached: whether `last_B1` is already in the cache.
    pad, eos: the id after the end of a row, and the ids that end it.
  """

  model: Any
  state: DecodeState
  prompt_BP: jax.Array
  last_B1: jax.Array
  alive_B: jax.Array
  is_prompt_cached: bool
  pad: int
  eos: tuple[int, ...]

  def next_logits(self, last_B1: jax.Array, state: DecodeState, index: jax.Array):
    """Return (float32 [B, V] logits of the token after `last_B1`, state)."""
    if not self.is_prompt_cached:
      logits_B1V, state = self.model.decode(last_B1, state)
      return logits_B1V[:, 0], state
    is_first = index == 0
    # The first query repeats the position of the prompt's last token, and adds no key to the cache.
    back = is_first.astype(jnp.int32)
    state = dataclasses.replace(state, next_pos=state.next_pos - back)
    valid_B1 = jnp.broadcast_to(~is_first, last_B1.shape)
    logits_B1V, state = self.model.decode(last_B1, state, valid_B1)
    state = dataclasses.replace(state, next_pos=state.next_pos + back)
    return logits_B1V[:, 0], state


jax.tree_util.register_dataclass(
  PrefilledModel,
  data_fields=["model", "state", "prompt_BP", "last_B1", "alive_B"],
  meta_fields=["is_prompt_cached", "pad", "eos"],
)


def prefill(model, batch: Batch, max_length: int, eos: Sequence[int] | None) -> PrefilledModel:
  """Read the whole prompt in one call.

  Raises:
    UserError: `max_length` or an id of `eos` is out of range.
  """
  tokens = model.variant.tokens
  eos = (tokens.eos,) if eos is None else tuple(eos)
  _check_ranges(max_length, eos, model.variant.vocab_size)
  model = prepare_for_decoding(model)
  prompt_BP, valid_BP = model.prompt(batch)
  P = prompt_BP.shape[1]
  is_prompt_cached = P > 1
  # A prompt of one token is the first input of the loop.
  num_slots = P + max_length if is_prompt_cached else max_length
  state = model.start_decoding(batch, num_slots)
  alive_B = jnp.any(valid_BP, axis=1)
  if state.memory_valid is not None:
    alive_B = alive_B & jnp.any(state.memory_valid, axis=1)
  if is_prompt_cached:
    prefix_BP = None
    if state.prefix is not None:  # a prefix LM
      prefix_BP = batch["decoder_causal_attention"] > 0
    _, state = model.decode(prompt_BP, state, valid_BP, prefix_BP)
  last_index_B1 = jnp.max(jnp.where(valid_BP, jnp.arange(P), 0), axis=1, keepdims=True)
  last_B1 = jnp.take_along_axis(prompt_BP, last_index_B1, axis=1).astype(jnp.int32)
  ids_BP = jnp.where(valid_BP, prompt_BP, -1).astype(jnp.int32)
  # A stable sort by validity moves each prompt to the end of its row.
  _, ids_BP = jax.lax.sort((valid_BP.astype(jnp.int32), ids_BP), dimension=1, num_keys=1)
  return PrefilledModel(
    model=model,
    state=state,
    prompt_BP=constrain(ids_BP, "batch", None),
    last_B1=constrain(last_B1, "batch", None),
    alive_B=alive_B,
    is_prompt_cached=is_prompt_cached,
    pad=tokens.pad or 0,
    eos=eos,
  )


def _check_ranges(max_length: int, eos: Sequence[int], vocab: int) -> None:
  """Raise UserError if `max_length` or an id of `eos` is out of range."""
  if max_length < 1:
    raise UserError(f"max_length: found {max_length}, expected at least 1")
  for token in eos:
    if not 0 <= token < vocab:
      raise UserError(f"eos: found {token}, expected ids of the vocabulary, 0 to {vocab - 1}")


def split_state(
  state: DecodeState,
) -> tuple[list[jax.Array], Callable[[list[jax.Array]], DecodeState]]:
  """Return the leaves of a state that steps change, and a function that rejoins all leaves.

  The encoder's keys and values, the larger part of many caches, stay out of the loop's carry: they
  are neither copied from step to step nor reordered with the beams.
  """
  leaves, treedef = jax.tree_util.tree_flatten_with_path(state)
  changing = [leaf for path, leaf in leaves if not is_encoder_memory(path)]

  def join(new_leaves):
    remaining = iter(new_leaves)
    all_leaves = []
    for path, leaf in leaves:
      all_leaves.append(leaf if is_encoder_memory(path) else next(remaining))
    return treedef.unflatten(all_leaves)

  return changing, join


def is_encoder_memory(path) -> bool:
  """Return whether a leaf of a `DecodeState` belongs to the encoder's output."""
  for part in path:
    name = getattr(part, "key", getattr(part, "name", ""))
    if str(name).startswith(("cross_attention", "memory_")):
      return True
  return False

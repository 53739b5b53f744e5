"""Texts for the report: a decoder continues held-out text, an encoder fills blanks in it. They are
not scored."""

import re
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like import segmentation
from t5x_like.decoding.generate import sample
from t5x_like.decoding.sampling import Temperature
from t5x_like.errors import UserError
from t5x_like.evals import EvalContext, EvalResult
from t5x_like.parallel.rules import fetch
from t5x_like.rows import padded_length, run_in_batches
from t5x_like.slots import PositiveInt
from t5x_like.vocabularies import special_id, start_id

_SEED = 0  # of the draws, so that steps differ by their weights alone
_SHORTEST = 8  # tokens of a document that is used for itself


class Evaluator:
  """An evaluator that writes a few texts.

  The prompt of a continuation is the beginning of a row, up to the end of a document. It is drawn
  at `temperature`, because the likeliest text of a small model repeats itself. In an encoder's row
  every predicted token becomes the mask, even if training leaves it or replaces it by another.

  Args:
    max_examples: the number of texts, from the first examples.
    prompt: the most tokens of a prompt.
    tokens: the most new tokens.
    temperature: of the draws.

  Raises:
    UserError: the task is for an encoder-decoder, or has neither text to continue nor masks to
      fill.
  """

  def __init__(
    self,
    context: EvalContext,
    *,
    max_examples: PositiveInt = 4,
    prompt: PositiveInt = 48,
    tokens: PositiveInt = 48,
    temperature: float = 0.7,
  ):
    self._context = context
    self._texts = max_examples
    self._most = (prompt, tokens)
    features = context.task.features
    vocabulary = context.task.vocabulary
    if "encoder_masked_positions" in features:
      self._mask = special_id(vocabulary, "mask")
      self._write = self._fill_texts
      self._run = context.jit(self._fill)
    elif "decoder_target_tokens" in features and "encoder_input_tokens" not in features:
      eos = (vocabulary.eos_id, *context.task.end_ids)
      transforms = (Temperature(temperature),)
      key = jax.random.key(_SEED)

      def continue_rows(model, batch):
        features = self._features(batch)
        ids = sample(model, features, key, max_length=tokens, transforms=transforms, eos=eos)
        return (ids,)

      self._write = self._continue_texts
      self._run = context.jit(continue_rows)
    else:
      raise UserError(
        f"evaluator samples: task {context.task.name} gives a model nothing to continue and no "
        "masks to fill; use the evaluator span_infilling for span corruption, or generation for "
        "text-to-text"
      )

  def metric_names(self) -> tuple[str, ...]:
    """Return the names of all metrics it may write: none."""
    return ()

  def __call__(self, arrays: dict[str, jax.Array]) -> EvalResult:
    """Return the texts as samples."""
    return EvalResult({}, self._write(arrays))

  def _rows(self):
    """Yield the batches of the texts, and the rows of each that hold one."""
    for batch in self._context.global_batches(self._texts):
      yield batch, np.flatnonzero(fetch(batch["example_index"]) >= 0)

  def _fill_texts(self, arrays: dict[str, jax.Array]) -> list[dict[str, str]]:
    decode = self._context.task.vocabulary.decode
    samples = []
    for batch, rows in self._rows():
      masked_BS, original_BS, filled_BS = (fetch(x) for x in self._run(arrays, batch))
      for row in rows:
        target = decode(self._without_special(original_BS[row].tolist()))
        prediction = decode(self._without_special(filled_BS[row].tolist()))
        samples.append(
          {
            "input": decode(self._without_special(masked_BS[row].tolist())),
            "target": target,
            "prediction": prediction,
            "original": target,
            "filled": prediction,
          }
        )
    return samples

  def _fill(self, model, batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return rows with masks, as they were, and as the model fills them, int32 [B, S] each."""
    hidden_BS = batch["encoder_loss_weights"] > 0
    original_BS = jnp.where(
      hidden_BS, batch["encoder_target_tokens"], batch["encoder_input_tokens"]
    )
    masked_BS = jnp.where(hidden_BS, self._mask, original_BS)
    features = batch | {"encoder_input_tokens": masked_BS}
    outputs = getattr(model, "generate", model.outputs)(features)  # ELECTRA's generator
    guess_BK = jnp.argmax(outputs["logits"].dense(), axis=-1).astype(masked_BS.dtype)
    put = jax.vmap(lambda row_S, places_K, ids_K: row_S.at[places_K].set(ids_K))
    # unused places are that of [CLS]
    guess_BS = put(masked_BS, batch["encoder_masked_positions"], guess_BK)
    return masked_BS, original_BS, jnp.where(hidden_BS, guess_BS, masked_BS)

  def _without_special(self, ids: Sequence[int]) -> list[int]:
    """Return the ids without padding, CLS and SEP."""
    vocabulary = self._context.task.vocabulary
    removed = {vocabulary.pad_id, special_id(vocabulary, "cls"), special_id(vocabulary, "sep")}
    return [i for i in ids if i not in removed and i < vocabulary.size]

  def _continue_texts(self, arrays: dict[str, jax.Array]) -> list[dict[str, str]]:
    vocabulary = self._context.task.vocabulary
    _, new = self._most
    pairs = self._prompts_and_targets()
    prompts = [[start_id(vocabulary), *prompt] for prompt, _ in pairs]
    length = padded_length(max(map(len, prompts), default=1), None)

    def features(numbers: list[int], length: int) -> dict[str, np.ndarray]:
      tokens = np.zeros((len(numbers), length), np.int32)
      valid = np.zeros((len(numbers), length), np.int32)
      for row, number in enumerate(numbers):
        ids = prompts[number]
        tokens[row, : len(ids)] = ids
        valid[row, : len(ids)] = 1
      return {"tokens": tokens, "valid": valid}

    outputs = run_in_batches(
      lambda batch: self._run(arrays, batch),
      self._context.rules,
      self._context.batch_size,
      [length] * len(prompts),
      features,
    )
    ends = {vocabulary.eos_id, *self._context.task.end_ids}
    samples = []
    for (prompt, target_ids), (ids,) in zip(pairs, outputs):
      ids = [i for i in ids.tolist() if i < vocabulary.size]
      ids = ids[: next((n for n, i in enumerate(ids) if i in ends), len(ids))]
      text = vocabulary.decode(prompt)
      # decoded after the prompt, because alone they might lose a leading space
      target = vocabulary.decode([*prompt, *target_ids])[len(text) :]
      prediction = vocabulary.decode([*prompt, *ids])[len(text) :]
      if len(ids) == new:
        prediction = _whole_words(prediction)  # cut off, without an end
      sample_texts = {"input": text, "target": _whole_words(target), "prediction": prediction}
      samples.append(sample_texts | {"shows": "more"})
    return samples

  def _prompts_and_targets(self) -> list[tuple[list[int], list[int]]]:
    """Return the ids of each prompt, and those that follow it in the text."""
    eos_id = self._context.task.vocabulary.eos_id
    max_prompt, new = self._most
    pairs = []
    for batch, rows in self._rows():
      targets = fetch(batch["decoder_target_tokens"])
      weights = fetch(batch["decoder_loss_weights"])
      for row in rows:
        ids = targets[row][weights[row] > 0].tolist()
        ends = (n for n, i in enumerate(ids) if i == eos_id and n >= _SHORTEST)
        ids = ids[: next(ends, len(ids))]
        cut = self._before_a_word(ids, min(max_prompt, len(ids) // 2))
        pairs.append((ids[:cut], ids[cut : cut + new]))
    return pairs

  def _before_a_word(self, ids: Sequence[int], cut: int) -> int:
    """Return the index nearest to `cut` at which a word begins, or `cut` if there is none."""
    texts = [self._context.task.vocabulary.decode(ids[:n]) for n in range(len(ids) + 1)]

    def begins_word(n: int) -> bool:
      following = texts[-1][len(texts[n]) :]
      if not following.strip():
        return False
      unspaced = segmentation.kind(following[0]) == segmentation.Kind.UNSPACED
      return unspaced or following[0].isspace() or texts[n][-1:].isspace()

    starts = filter(begins_word, range(1, len(ids)))
    return min(starts, key=lambda n: abs(n - cut), default=max(cut, 1))

  def _features(self, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    names = self._context.task.features
    features = {"decoder_input_tokens": batch["tokens"]}
    for name in ("decoder_segment_ids", "decoder_causal_attention"):
      if name in names:
        features[name] = batch["valid"]
    return features


def _whole_words(text: str) -> str:
  """Return a text without its last word, which may be cut, unless it is the only one."""
  return re.sub(r"(?<=\S)\s+\S+$", "", text)

"""Write texts for the report, without scores: a decoder continues text, an encoder fills blanks."""

import dataclasses
import functools
import itertools
import re
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like import segmentation
from t5x_like.decoding.generate import sample
from t5x_like.decoding.sampling import Temperature
from t5x_like.errors import UserError
from t5x_like.evals import BaseEvaluator, EvalResult
from t5x_like.parallel.rules import fetch
from t5x_like.rows import pad_rows, padded_length, run_in_batches
from t5x_like.slots import PositiveInt
from t5x_like.vocabularies import special_id, start_id

_SEED = 0  # of sampling, and fixed, so that texts of two steps differ by the weights alone
_MIN_DOCUMENT = 8  # tokens; a shorter document is joined with the next one


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluator(BaseEvaluator):
  """An evaluator that writes a few texts.

  The prompt of a continuation is the beginning of a row, up to the end of a document. The
  continuation is sampled at `temperature`, because the likeliest text of a small model repeats
  itself. In an encoder's row every predicted token becomes the mask, even if training leaves it or
  replaces it by another.

  Attributes:
    max_examples: the number of texts, from the first examples.
    prompt: the most tokens of a prompt.
    tokens: the most new tokens.
    temperature: the temperature of sampling.

  Raises:
    UserError: the task is for an encoder-decoder, or has neither text to continue nor masks to
      fill.
  """

  max_examples: PositiveInt = 4
  prompt: PositiveInt = 48
  tokens: PositiveInt = 48
  temperature: float = 0.7

  def __post_init__(self):
    features = self.context.task.features
    can_continue = "decoder_target_tokens" in features and "encoder_input_tokens" not in features
    if not self._has_masks and not can_continue:
      raise UserError(
        f"evaluator samples: found task {self.context.task.name}, expected one with text to "
        "continue or masks to fill; use the evaluator span_infilling for span corruption, or "
        "generation for text-to-text"
      )

  @property
  def _has_masks(self):
    return "encoder_masked_positions" in self.context.task.features

  @functools.cached_property
  def _ends(self):
    """The ids that end a continuation."""
    task = self.context.task
    return (task.vocabulary.eos_id, *task.end_ids)

  def metric_names(self):
    """Return the names of all metrics it may write: none."""
    return ()

  def compute(self, model, batch):
    if self._has_masks:
      return self._fill_masks(model, batch)
    ids_BT = sample(
      model,
      self._features(batch),
      jax.random.key(_SEED),
      max_length=self.tokens,
      transforms=(Temperature(self.temperature),),
      eos=self._ends,
    )
    return (ids_BT,)

  def __call__(self, arrays):
    """Return the texts as samples."""
    write_samples = self._fill_texts if self._has_masks else self._continue_texts
    return EvalResult({}, write_samples(arrays))

  def _batches(self):
    """Yield each batch with the indices of the rows that are examples."""
    for batch in self.context.global_batches(self.max_examples):
      yield batch, np.flatnonzero(fetch(batch["example_index"]) >= 0)

  def _fill_texts(self, arrays: dict[str, jax.Array]) -> list[dict[str, str]]:
    """Return an encoder's samples."""
    samples = []
    for batch, rows in self._batches():
      masked_BS, original_BS, filled_BS = self.run(arrays, batch)
      masked_BS = fetch(masked_BS)
      original_BS = fetch(original_BS)
      filled_BS = fetch(filled_BS)
      for row in rows:
        target = self._decode(original_BS[row].tolist())
        prediction = self._decode(filled_BS[row].tolist())
        samples.append(
          {
            "input": self._decode(masked_BS[row].tolist()),
            "target": target,
            "prediction": prediction,
            "original": target,
            "filled": prediction,
          }
        )
    return samples

  def _fill_masks(
    self, model, batch: dict[str, jax.Array]
  ) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return rows with masks, as they were, and as the model fills them, int32 [B, S] each."""
    mask_id = special_id(self.context.task.vocabulary, "mask")
    is_masked_BS = batch["encoder_loss_weights"] > 0
    targets_BS = batch["encoder_target_tokens"]
    original_BS = jnp.where(is_masked_BS, targets_BS, batch["encoder_input_tokens"])
    masked_BS = jnp.where(is_masked_BS, mask_id, original_BS)
    features = batch | {"encoder_input_tokens": masked_BS}
    outputs = getattr(model, "generate", model.outputs)(features)  # ELECTRA's generator
    predicted_BK = jnp.argmax(outputs["logits"].dense(), axis=-1).astype(masked_BS.dtype)
    # Unused positions point to [CLS], which is not masked.
    replace_tokens = jax.vmap(lambda row_S, positions_K, ids_K: row_S.at[positions_K].set(ids_K))
    predicted_BS = replace_tokens(masked_BS, batch["encoder_masked_positions"], predicted_BK)
    return masked_BS, original_BS, jnp.where(is_masked_BS, predicted_BS, masked_BS)

  def _decode(self, ids: Sequence[int]) -> str:
    """Decode the ids without padding, CLS and SEP."""
    vocabulary = self.context.task.vocabulary
    removed = {vocabulary.pad_id, special_id(vocabulary, "cls"), special_id(vocabulary, "sep")}
    return vocabulary.decode([i for i in ids if i not in removed and i < vocabulary.size])

  def _continue_texts(self, arrays: dict[str, jax.Array]) -> list[dict[str, str]]:
    """Return a decoder's samples."""
    vocabulary = self.context.task.vocabulary
    pairs = self._prompts_and_targets()
    prompts = [[start_id(vocabulary), *prompt] for prompt, _ in pairs]
    length = padded_length(max(map(len, prompts), default=1), None)

    def features(numbers: list[int], length: int) -> dict[str, np.ndarray]:
      tokens_BP, valid_BP = pad_rows([prompts[number] for number in numbers], length)
      return {"tokens": tokens_BP, "valid": valid_BP}

    outputs = run_in_batches(
      lambda batch: self.run(arrays, batch),
      self.context.rules,
      self.context.batch_size,
      [length] * len(prompts),
      features,
    )
    samples = []
    for (prompt, target_ids), (ids,) in zip(pairs, outputs):
      ids = [i for i in ids.tolist() if i < vocabulary.size]
      ids = list(itertools.takewhile(lambda i: i not in self._ends, ids))
      text = vocabulary.decode(prompt)
      # Decoded after the prompt, because alone they might lose a leading space.
      target = vocabulary.decode([*prompt, *target_ids])[len(text) :]
      prediction = vocabulary.decode([*prompt, *ids])[len(text) :]
      if len(ids) == self.tokens:  # ends by its length, perhaps within a word
        prediction = _drop_last_word(prediction)
      samples.append(
        {
          "input": text,
          "target": _drop_last_word(target),
          "prediction": prediction,
          "shows": "more",
        }
      )
    return samples

  def _prompts_and_targets(self) -> list[tuple[list[int], list[int]]]:
    """Return the ids of each prompt, and the ids that follow it in the text."""
    pairs = []
    for batch, rows in self._batches():
      targets = fetch(batch["decoder_target_tokens"])
      weights = fetch(batch["decoder_loss_weights"])
      for row in rows:
        ids = self._first_document(targets[row][weights[row] > 0].tolist())
        split = self._nearest_word_start(ids, min(self.prompt, len(ids) // 2))
        pairs.append((ids[:split], ids[split : split + self.tokens]))
    return pairs

  def _first_document(self, ids: list[int]) -> list[int]:
    """Return the ids before the first end of a document with `_MIN_DOCUMENT` tokens before it."""
    eos_id = self.context.task.vocabulary.eos_id
    for n, i in enumerate(ids):
      if i == eos_id and n >= _MIN_DOCUMENT:
        return ids[:n]
    return ids

  def _nearest_word_start(self, ids: Sequence[int], index: int) -> int:
    """Return the index nearest to `index` at which a word begins, or `index` if there is none."""
    texts = [self.context.task.vocabulary.decode(ids[:n]) for n in range(len(ids) + 1)]

    def begins_word(n: int) -> bool:
      following = texts[-1][len(texts[n]) :]
      if not following.strip():
        return False
      is_unspaced = segmentation.kind(following[0]) == segmentation.Kind.UNSPACED
      return is_unspaced or following[0].isspace() or texts[n][-1:].isspace()

    starts = [n for n in range(1, len(ids)) if begins_word(n)]
    return min(starts, key=lambda n: abs(n - index), default=max(index, 1))

  def _features(self, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    names = self.context.task.features
    features = {"decoder_input_tokens": batch["tokens"]}
    for name in ("decoder_segment_ids", "decoder_causal_attention"):
      if name in names:
        features[name] = batch["valid"]
    return features


def _drop_last_word(text: str) -> str:
  """Return a text without its last word, which may be cut, unless it is the only one."""
  return re.sub(r"(?<=\S)\s+\S+$", "", text)

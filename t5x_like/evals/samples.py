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
      self._write, self._run = self._filled, context.jit(self._fill)
    elif "decoder_target_tokens" in features and "encoder_input_tokens" not in features:
      eos = (vocabulary.eos_id, *context.task.end_ids)
      drawn = (Temperature(temperature),)
      key = jax.random.key(_SEED)
      self._write, self._run = (
        self._continued,
        context.jit(
          lambda model, batch: (
            sample(model, self._features(batch), key, max_length=tokens, transforms=drawn, eos=eos),
          )
        ),
      )
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

  def _filled(self, arrays: dict[str, jax.Array]) -> list[dict[str, str]]:
    decode = self._context.task.vocabulary.decode
    found = []
    for batch, rows in self._rows():
      texts = [fetch(x) for x in self._run(arrays, batch)]
      for row in rows:
        given, original, filled = (self._bare(ids[row].tolist()) for ids in texts)
        made = {"input": decode(given), "target": decode(original), "prediction": decode(filled)}
        found.append(made | {"original": made["target"], "filled": made["prediction"]})
    return found

  def _fill(self, model, batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return rows with masks, as they were, and as the model fills them, int32 [B, S] each."""
    hidden_BS = batch["encoder_loss_weights"] > 0
    original_BS = jnp.where(
      hidden_BS, batch["encoder_target_tokens"], batch["encoder_input_tokens"]
    )
    given_BS = jnp.where(hidden_BS, self._mask, original_BS)
    features = batch | {"encoder_input_tokens": given_BS}
    outputs = getattr(model, "generate", model.outputs)(features)  # ELECTRA's generator
    guess_BK = jnp.argmax(outputs["logits"].dense(), axis=-1).astype(given_BS.dtype)
    put = jax.vmap(lambda row_S, places_K, ids_K: row_S.at[places_K].set(ids_K))
    # unused places are that of [CLS]
    guess_BS = put(given_BS, batch["encoder_masked_positions"], guess_BK)
    return given_BS, original_BS, jnp.where(hidden_BS, guess_BS, given_BS)

  def _bare(self, ids: Sequence[int]) -> list[int]:
    """Return the ids without the padding, CLS and SEP around texts."""
    vocabulary = self._context.task.vocabulary
    around = {vocabulary.pad_id, *(special_id(vocabulary, name) for name in ("cls", "sep"))}
    return [i for i in ids if i not in around and i < vocabulary.size]

  def _continued(self, arrays: dict[str, jax.Array]) -> list[dict[str, str]]:
    vocabulary = self._context.task.vocabulary
    rules = self._context.rules
    most, new = self._most
    pairs = []
    for batch, rows in self._rows():
      targets, weights = (
        fetch(batch[f"decoder_{name}"]) for name in ("target_tokens", "loss_weights")
      )
      for row in rows:
        ids = targets[row][weights[row] > 0].tolist()
        ids = ids[
          : next((n for n, i in enumerate(ids) if i == vocabulary.eos_id and n >= _SHORTEST), None)
        ]
        cut = self._before_a_word(ids, min(most, len(ids) // 2))
        pairs.append((ids[:cut], ids[cut : cut + new]))
    prompts = [[start_id(vocabulary), *prompt] for prompt, _ in pairs]
    lengths = [padded_length(max(map(len, prompts), default=1), None)] * len(prompts)

    def features(chosen: list[int], length: int) -> dict[str, np.ndarray]:
      made = {name: np.zeros((len(chosen), length), np.int32) for name in ("tokens", "valid")}
      for row, number in enumerate(chosen):
        ids = prompts[number]
        made["tokens"][row, : len(ids)], made["valid"][row, : len(ids)] = ids, 1
      return made

    drawn = run_in_batches(
      lambda batch: self._run(arrays, batch), rules, self._context.batch_size, lengths, features
    )
    found = []
    for (prompt, wanted), (ids,) in zip(pairs, drawn):
      ids = [i for i in ids.tolist() if i < vocabulary.size]
      ids = ids[
        : next(
          (n for n, i in enumerate(ids) if i in {vocabulary.eos_id, *self._context.task.end_ids}),
          None,
        )
      ]
      ended = len(ids) < new
      texts = [vocabulary.decode(part) for part in (prompt, [*prompt, *wanted], [*prompt, *ids])]
      target, prediction = (text[len(texts[0]) :] for text in texts[1:])
      target = _whole_words(target)
      prediction = prediction if ended else _whole_words(prediction)
      found.append({"input": texts[0], "target": target, "prediction": prediction, "shows": "more"})
    return found

  def _before_a_word(self, ids: Sequence[int], cut: int) -> int:
    """Return the place nearest to `cut` at which a word begins, or `cut` if there is none."""
    texts = [self._context.task.vocabulary.decode(ids[:place]) for place in range(len(ids) + 1)]

    def begins(place: int) -> bool:
      rest = texts[-1][len(texts[place]) :]
      if not rest.strip():
        return False
      unspaced = segmentation.kind(rest[0]) == segmentation.Kind.UNSPACED
      return unspaced or rest[0].isspace() or texts[place][-1:].isspace()

    return min(
      filter(begins, range(1, len(ids))), key=lambda place: abs(place - cut), default=max(cut, 1)
    )

  def _features(self, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    names = self._context.task.features
    more = {"decoder_segment_ids", "decoder_causal_attention"} & names.keys()
    return {"decoder_input_tokens": batch["tokens"]} | {name: batch["valid"] for name in more}


def _whole_words(text: str) -> str:
  """Return a text without its last word, which may be cut, unless it is the only one."""
  return re.sub(r"(?<=\S)\s+\S+$", "", text)

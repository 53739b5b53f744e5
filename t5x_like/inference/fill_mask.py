"""Fill masks with encoders: find the likeliest pieces for each mask of a text."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like.architectures.heads.lm import LmHead
from t5x_like.errors import UserError
from t5x_like.inference import masks
from t5x_like.inference.texts import describe_text
from t5x_like.rows import Runner, padded_length
from t5x_like.vocabularies import special_id
from t5x_like.vocabularies.kinds._shared import SPELLINGS


def check_options(flags: dict[str, Any]) -> dict[str, Any]:
  """Return the flags; raise UserError for a flag that mask filling does not take."""
  unknown_flags = [name for name in flags if name != "top_k"]
  if unknown_flags:
    raise UserError(
      f"--{unknown_flags[0]}={flags[unknown_flags[0]]}: the model is an encoder, which "
      "fills masks and generates nothing; it takes only --top_k, the number of candidates for each "
      "mask"
    )
  return flags


class MaskFilling:
  """A predictor that fills `[MASK]`, `<mask>` or the vocabulary's own spelling of its mask.

  Args:
    model: the abstract model.
    vocabulary: the vocabulary of its training.
    features: names and shapes of its training features.
    top_k: candidates for each mask.
  Raises:
    UserError: the model has no masked language model head.
  """

  def __init__(self, model, vocabulary, features: dict[str, list[int]], *, top_k: int = 5):
    if top_k < 1:
      raise UserError(f"--top_k={top_k}: expected at least 1")
    _find_masked_lm(model)
    self.vocabulary = vocabulary
    self.features = features
    self.mask_id = special_id(vocabulary, "mask")
    spellings = (*vocabulary.pieces_of([self.mask_id]), *SPELLINGS["mask"])
    self.spellings = tuple(dict.fromkeys(spellings))
    ordinary = np.arange(model.variant.vocab_size) < vocabulary.size
    ordinary[list(vocabulary.special_ids)] = False
    self.ordinary = ordinary
    self.top_k = min(top_k, int(ordinary.sum()))
    self.dense = model.variant.design.core in ("auto", "dense")

  def encode(self, texts: Sequence[str], origin: str) -> list[list[int]]:
    """Encode each text between CLS and SEP.

    Raises:
      UserError: a text has no mask, or is longer than in training.
    """
    (longest,) = self.features["encoder_input_tokens"]
    cls_id = special_id(self.vocabulary, "cls")
    sep_id = special_id(self.vocabulary, "sep")
    rows = []
    for number, text in enumerate(texts):
      ids = masks.encode_masks(self.vocabulary, text, self.mask_id, self.spellings)
      where = f"{origin}: {describe_text(text, number)}"
      if self.mask_id not in ids:
        raise UserError(
          f"{where} has nothing to fill; write {self.spellings[0]} where a token is missing"
        )
      if len(ids) + 2 > longest:
        raise UserError(
          f"{where} has {len(ids) + 2} tokens, CLS and SEP included, expected at most "
          f"{longest}, the length the model was trained with; shorten or split it"
        )
      rows.append([cls_id, *ids, sep_id])
    return rows

  def __call__(
    self, run: Runner, ids: Sequence[Sequence[int]], texts: Sequence[str]
  ) -> list[dict[str, Any]]:
    """Return an answer for each text: `input`, `predictions` and `filled`.

    `predictions` has the candidates for each mask, likeliest first, each with `text`, `piece` and
    `probability`. `filled` is the text with its masks replaced by the likeliest candidates.
    Probabilities are over all ids of the model; special ids are not candidates.
    """
    mask_positions = [np.flatnonzero(np.asarray(row) == self.mask_id) for row in ids]
    max_masks = max(map(len, mask_positions))
    padded_masks = 1 << (max_masks - 1).bit_length()  # powers of two limit the number of shapes
    positions_nK = np.zeros((len(ids), padded_masks), np.int32)
    for row, positions in enumerate(mask_positions):
      positions_nK[row, : len(positions)] = positions
    outputs = run(self._candidates, ids, {"mask_positions": positions_nK}, self._pad_length)
    answers = []
    for text, row, positions, (ids_KC, p_KC) in zip(texts, ids, mask_positions, outputs):
      count = len(positions)
      answers.append(self._answer(text, row, positions, ids_KC[:count], p_KC[:count]))
    return answers

  def _pad_length(self, length: int) -> int:
    """Return the padded length: a power of two, or the trained length for sparse cores."""
    (longest,) = self.features["encoder_input_tokens"]
    return padded_length(length, longest) if self.dense else longest

  def _candidates(self, model, batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Return (int32 ids, float32 probabilities), both [B, K, top_k], at the masks' positions."""
    tokens_BS = batch["tokens"]
    features = {
      "encoder_input_tokens": tokens_BS,
      "encoder_masked_positions": batch["mask_positions"],
    }
    if "encoder_segment_ids" in self.features:
      features["encoder_segment_ids"] = batch["valid"]
    p_BKV = jax.nn.softmax(_find_masked_lm(model)(features)["logits"].dense(), axis=-1)
    # A sort stays sharded by rows; a `top_k` would gather all rows on every device.
    ids_BKC = jnp.argsort(jnp.where(self.ordinary, -p_BKV, 1.0), axis=-1)[..., : self.top_k]
    return ids_BKC.astype(jnp.int32), jnp.take_along_axis(p_BKV, ids_BKC, axis=-1)

  def _answer(
    self,
    text: str,
    ids: Sequence[int],
    positions: np.ndarray,
    ids_KC: np.ndarray,
    p_KC: np.ndarray,
  ) -> dict[str, Any]:
    predictions = []
    for ids_C, p_C in zip(ids_KC.tolist(), p_KC.tolist()):
      predictions.append([self._describe_candidate(i, p) for i, p in zip(ids_C, p_C)])
    filled = np.array(ids)
    filled[positions] = ids_KC[:, 0]
    filled_text = self.vocabulary.decode(filled[1:-1].tolist())
    return {"input": text, "predictions": predictions, "filled": filled_text}

  def _describe_candidate(self, i: int, p: float) -> dict[str, Any]:
    return {
      "text": self.vocabulary.decode([i]),
      "piece": self.vocabulary.pieces_of([i])[0],
      "probability": float(f"{p:.6g}"),
    }


def _find_masked_lm(model) -> Callable:
  """Return the function that computes logits at masked positions.

  It is the model itself, ELECTRA's generator or XLNet's query stream.

  Raises:
    UserError: the model has no such head.
  """
  if hasattr(model, "generator") or (hasattr(model, "generate") and isinstance(model.head, LmHead)):
    return model.generate
  head = type(model.head).__name__
  if hasattr(model.head, "lm") or hasattr(model.head, "mlm"):
    return model.outputs
  raise UserError(
    f"--workdir: the model is an encoder whose head ({head}) does not predict masked tokens; "
    "give the workdir of its pretraining, or evaluate this one with python -m t5x_like.evaluate"
  )

"""Prediction with a trained model: texts to token rows, rows to answers, answers to JSON lines.

`predictor` picks what a model can do by the features it was trained on: an encoder-decoder turns text into text, a
decoder goes on from prompts, an encoder with a masked language model's head fills masks.
"""

from typing import Any

from t5x_like.inference import fill_mask, generation, strategies


def predictor(model, vocabulary, features: dict[str, list[int]], flags: dict[str, Any]):
  """What answers texts: `encode(texts, origin)` gives token rows, and called with these, it gives answers.

  Args:
    model: the abstract model.
    vocabulary: that it was trained with.
    features: names and shapes of what it was trained on, without the batch axis.
    flags: of the door, those that were given.
  Raises:
    UserError: the model has nothing to predict text with; flags it does not take, or that exclude each other.
  """
  if "decoder_target_tokens" not in features:
    return fill_mask.MaskFilling(model, vocabulary, features, **fill_mask.options(flags))
  new_tokens = flags.pop("max_new_tokens", None)
  kind = generation.TextToText if "encoder_input_tokens" in features else generation.Continuation
  return kind(model, vocabulary, features, strategies.choose(**flags), new_tokens)

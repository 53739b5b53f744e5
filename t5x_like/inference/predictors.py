"""Choose the kind of prediction for a model of text by the features of its training.

An encoder-decoder turns text into text, a decoder continues prompts, an encoder with a masked
language model head fills masks.
"""

from typing import Any

from t5x_like.errors import UserError
from t5x_like.inference import fill_mask, generation, strategies
from t5x_like.inference.stops import Stops, as_strings


def build_predictor(
  model,
  vocabulary,
  features: dict[str, list[int]],
  flags: dict[str, Any],
  template: str | dict | None = None,
):
  """Build the predictor for a model of text.

  Its `encode(texts, origin)` returns rows of tokens; a call with the rows returns the answers.

  Args:
    model: the abstract model.
    vocabulary: the vocabulary of its training.
    features: names and shapes of its training features, without the batch axis.
    flags: the flags given on the command line.
    template: the chat template of a decoder trained on conversations, else None.
  Raises:
    UserError: the model cannot predict text, or flags do not apply to it or exclude each other.
  """
  if "decoder_target_tokens" not in features:
    return fill_mask.MaskFilling(model, vocabulary, features, **fill_mask.check_options(flags))
  new_tokens = flags.pop("max_new_tokens", None)
  stop_strings = as_strings(flags.pop("stop", ()))
  banned_texts = as_strings(flags.pop("banned_words", ()))
  if not all(banned_texts):
    raise UserError("--banned_words: found an empty string, expected text that no prediction has")
  strategy = strategies.choose_strategy(**flags)
  arguments = model, vocabulary, features, strategy, new_tokens
  target_vocabulary = vocabulary
  if "encoder_input_tokens" in features:
    predictor: generation.Generation = generation.TextToText(*arguments)
    target_vocabulary = vocabulary.for_targets()
  elif template is None:
    predictor = generation.Continuation(*arguments)
  else:
    predictor = generation.Answer(*arguments, template)
  predictor.stops = Stops(stop_strings)
  banned = set()
  for banned_text in banned_texts:
    for text in (banned_text, f" {banned_text}"):
      banned.add(tuple(map(int, target_vocabulary.encode(text))))
  predictor.banned = banned
  return predictor

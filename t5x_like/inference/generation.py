"""Generate texts with encoder-decoders and decoders."""

import dataclasses
import logging
import re
from collections.abc import Collection, Sequence
from typing import Any

import jax
import numpy as np

from t5x_like import vocabularies
from t5x_like.data.supervised.chat import Message
from t5x_like.data.supervised.published_template import build_chat, describe
from t5x_like.decoding.penalties import BannedWords
from t5x_like.decoding.sampling import ForcedBos, ForcedEos, MinLength, Transform
from t5x_like.decoding.unrolled import prepare_for_decoding
from t5x_like.errors import UserError
from t5x_like.inference import capacity, masks
from t5x_like.inference.likelihood import position_count
from t5x_like.inference.stops import NO_STOPS, Stops
from t5x_like.inference.strategies import Strategy
from t5x_like.inference.texts import describe_text
from t5x_like.rows import Runner, padded_length

Batch = dict[str, Any]
_DEFAULT_CONTEXT = 512  # tokens of a conversation


class Generation:
  """The base class of text generation with both architectures.

  Args:
    model: the abstract model.
    vocabulary: the vocabulary of its training.
    features: names and shapes of its training features.
    strategy: the decoding strategy.
    new_tokens: the most tokens to generate; None for a default that suits the architecture.

  Attributes:
    ends: the ids that end an answer.
    forced: (BOS, EOS): the ids with which an answer begins and, if it reaches the maximal length,
      ends; each may be None.
    enclosing_ids: the ids before and after a text, by default as in training.
    stops: strings that end an answer.
    banned: sequences of ids that no answer has.
  """

  def __init__(
    self,
    model,
    vocabulary,
    features: dict[str, list[int]],
    strategy: Strategy,
    new_tokens: int | None,
  ):
    if new_tokens is not None and new_tokens < 1:
      raise UserError(f"--max_new_tokens={new_tokens}: expected at least 1")
    self.vocabulary = vocabulary
    self.features = features
    self.strategy = strategy
    self.ends = (vocabulary.eos_id,)
    self.forced: tuple[int | None, int | None] = None, None
    self.enclosing_ids = self.default_enclosing_ids()
    self.stops: Stops = NO_STOPS
    self.banned: Collection[tuple[int, ...]] = ()
    (self.trained_length,) = features["decoder_target_tokens"]
    self.new_tokens = self.default_new_tokens() if new_tokens is None else new_tokens
    self.positions = position_count(self.decoder_inputs(model))
    for transform in strategy.transforms:
      if isinstance(transform, MinLength) and transform.length > self.new_tokens:
        raise UserError(
          f"--min_new_tokens={transform.length}: at most {self.new_tokens} tokens are generated; "
          "raise --max_new_tokens"
        )

  def __call__(
    self, run: Runner, ids: Sequence[Sequence[int]], texts: Sequence[str]
  ) -> list[dict[str, Any]]:
    """Return an answer for each text: `input`, `prediction` and `score`.

    If the text has sentinels, the answer also has `filled`. With several predictions per text,
    `predictions`, `scores` and `filled` are lists.

    Raises:
      UserError: memory cannot hold so many new tokens.
    """
    copies = self.strategy.rows
    longest = self.pad_length(max(map(len, ids)))
    shape = jax.ShapeDtypeStruct((1, longest), np.int32)
    capacity.check_memory(
      run,
      self.model_features({"tokens": shape, "valid": shape}),
      rows=copies * len(ids),
      beams=getattr(self.strategy, "beams", 1),
      prompt=self.prompt_cache_slots(longest),
      new_tokens=self.new_tokens,
    )
    text_numbers = np.repeat(np.arange(len(ids)), copies)
    copy_numbers = np.tile(np.arange(copies), len(ids))
    numbers = np.stack([text_numbers, copy_numbers], axis=-1).astype(np.uint32)
    repeated = [ids[text] for text in text_numbers]
    results = run.transform(prepare_for_decoding)(
      self._decode, repeated, {"numbers": numbers}, self.pad_length
    )
    answers = []
    for number, text in enumerate(texts):
      sequences = []
      for tokens_KT, score_K in results[number * copies : (number + 1) * copies]:
        for tokens, score in zip(tokens_KT.tolist(), score_K.tolist()):
          if score > -np.inf:
            sequences.append((tokens, score))
      answers.append(self._answer(text, ids[number], sequences))
    return answers

  def _decode(self, model, batch: Batch):
    transforms = self.add_constraints(self.strategy.transforms)
    strategy = dataclasses.replace(self.strategy, transforms=transforms)
    return strategy(
      model,
      self.model_features(batch),
      batch["numbers"],
      max_length=self.new_tokens,
      eos=self.ends,
      stop=self.stops.on_device(self.vocabulary),
    )

  def add_constraints(self, transforms: Sequence[Transform]) -> tuple[Transform, ...]:
    """Return transforms with the bans of `banned` before them and the tokens of `forced` after."""
    constrained = list(transforms)
    if self.banned:
      constrained.insert(0, BannedWords(tuple(sorted(self.banned))))
    bos, eos = self.forced
    if bos is not None:
      constrained.append(ForcedBos(bos))
    if eos is not None:
      constrained.append(ForcedEos(eos))
    return tuple(constrained)

  def _answer(
    self, text: str, prompt: Sequence[int], sequences: list[tuple[list[int], float]]
  ) -> dict[str, Any]:
    predictions = []
    for tokens, _ in sequences:
      answer_text = self.decode_answer(prompt, self._until_end(tokens))
      predictions.append(self.stops.cut(answer_text))
    scores = [round(score, 4) for _, score in sequences]
    answer: dict[str, Any] = {"input": text, "predictions": predictions, "scores": scores}
    if self.has_blanks(text):
      answer["filled"] = [fill(text, prediction) for prediction in predictions]
    if self.strategy.predictions > 1:
      return answer
    answer = {"input": text, "prediction": predictions[0], "score": scores[0]}
    if self.has_blanks(text):
      answer["filled"] = fill(text, predictions[0])
    return answer

  def _until_end(self, ids: list[int]) -> list[int]:
    """Return the ids before the end token, or through the one that completes a string of `stops`.

    Ids unknown to the vocabulary are left out: token tables may have more rows.
    """
    end = next((n for n, i in enumerate(ids) if i in self.ends), len(ids))
    ids = ids[:end]
    stop = self.stops.on_device(self.vocabulary)
    if stop:
      ids = stop.through_stop(ids)
    return [i for i in ids if i < self.vocabulary.size]

  def check_new_tokens(self, length: int, prompt_description: str) -> None:
    """Raise UserError if the model lacks positions for the new tokens after `length` tokens."""
    if self.positions is not None and length + self.new_tokens > self.positions:
      raise UserError(
        f"{prompt_description}--max_new_tokens={self.new_tokens}: the model has positions for "
        f"only {self.positions} tokens; generate fewer, or use a model with more positions"
      )


class TextToText(Generation):
  """Generation with an encoder-decoder: encode the text, decode the answer."""

  def default_new_tokens(self) -> int:
    return self.trained_length

  def default_enclosing_ids(self) -> tuple[list[int], list[int]]:
    return vocabularies.opening_ids(self.vocabulary), [self.vocabulary.eos_id]

  def decoder_inputs(self, model):
    return model.decoder_inputs

  def prompt_cache_slots(self, length: int) -> int:
    return 0

  def encode(self, texts: Sequence[str], origin: str) -> list[list[int]]:
    """Encode each text, with its spelled-out sentinels and masks, and the ids around it.

    Raises:
      UserError: a text is longer than in training, or the model has too few positions for the new
        tokens.
    """
    self.check_new_tokens(0, "")
    (longest,) = self.features["encoder_input_tokens"]
    before, after = self.enclosing_ids
    rows = []
    for number, text in enumerate(texts):
      ids = [*before, *masks.encode_pieces(self.vocabulary, text), *after]
      if not ids:
        ids = [self.vocabulary.eos_id]
      if len(ids) > longest:
        raise UserError(
          f"{origin}: {describe_text(text, number)} has {len(ids)} tokens, expected at most "
          f"{longest}, the length the model was trained with; shorten or split it"
        )
      rows.append(ids)
    return rows

  def max_prompt_length(self, context: int | None) -> int:
    (longest,) = self.features["encoder_input_tokens"]
    return min(context or longest, longest)

  def pad_length(self, length: int) -> int:
    (longest,) = self.features["encoder_input_tokens"]
    return padded_length(length, longest)

  def model_features(self, batch: Batch) -> Batch:
    features = {"encoder_input_tokens": batch["tokens"]}
    if "encoder_segment_ids" in self.features:
      features["encoder_segment_ids"] = batch["valid"]
    return features

  def decode_answer(self, prompt: Sequence[int], ids: list[int]) -> str:
    bos, _ = self.forced
    if ids and ids[0] == bos:
      ids = ids[1:]
    return self.vocabulary.decode(ids)

  def has_blanks(self, text: str) -> bool:
    return SENTINEL.search(text) is not None


class Continuation(Generation):
  """Generation with a decoder: continue the text.

  A prefix LM attends to the text in both directions.
  """

  def default_new_tokens(self) -> int:
    return min(64, max(1, self.trained_length // 2))

  def default_enclosing_ids(self) -> tuple[list[int], list[int]]:
    return [vocabularies.start_id(self.vocabulary)], []

  def decoder_inputs(self, model):
    return model.inputs

  def prompt_cache_slots(self, length: int) -> int:
    return length

  def encode(self, texts: Sequence[str], origin: str) -> list[list[int]]:
    """Encode each text after the first of `enclosing_ids`.

    Raises:
      UserError: the model has too few positions for a text and the new tokens.
    """
    rows = []
    longest = 0
    for number, text in enumerate(texts):
      ids = self.prepend_start(self.prompt(text))
      text_length = len(ids) - len(self.enclosing_ids[0])
      description = f"{origin}: {describe_text(text, number)} has {text_length} tokens, "
      # The model never reads the last generated token, so it needs no position.
      self.check_new_tokens(len(ids) - 1, description)
      longest = max(longest, len(ids))
      rows.append(ids)
    if longest > self.trained_length:
      logging.warning(
        "%s: the longest text has %d tokens, the model was trained on %d; its continuation "
        "may be poor",
        origin,
        longest - len(self.enclosing_ids[0]),
        self.trained_length,
      )
    return rows

  def prompt(self, text: str) -> list[int]:
    return self.vocabulary.encode(text)

  def prepend_start(self, ids: list[int]) -> list[int]:
    """Put the ids before a text; an empty prompt gets the start token."""
    return [*self.enclosing_ids[0], *ids] or [vocabularies.start_id(self.vocabulary)]

  def max_prompt_length(self, context: int | None) -> int:
    """Return the length to which prompts are padded.

    It is the requested length or, by default, the length of training up to 512, where positions
    allow.
    """
    length = context or min(self.trained_length, _DEFAULT_CONTEXT)
    if self.positions is None:
      return length
    prompt_positions = self.positions - self.new_tokens + 1
    if context is not None and context > prompt_positions:
      raise UserError(
        f"--context={context}: the model has positions for {prompt_positions} in addition to the "
        "answer's; lower one of them"
      )
    return min(length, prompt_positions)

  def pad_length(self, length: int) -> int:
    return padded_length(length, self.positions)

  def model_features(self, batch: Batch) -> Batch:
    features = {"decoder_input_tokens": batch["tokens"], "decoder_segment_ids": batch["valid"]}
    if "decoder_causal_attention" in self.features:
      features["decoder_causal_attention"] = batch["valid"]
    return features

  def decode_answer(self, prompt: Sequence[int], ids: list[int]) -> str:
    """Return the new text.

    It is decoded after the prompt, because alone it would lose a leading space.
    """
    special = self.vocabulary.special_ids
    prompt_ids = [i for i in prompt if i not in special]
    new_ids = [i for i in ids if i not in special]
    prompt_text = self.vocabulary.decode(prompt_ids)
    full_text = self.vocabulary.decode(prompt_ids + new_ids)
    if full_text.startswith(prompt_text):
      return full_text.removeprefix(prompt_text)
    return self.vocabulary.decode(new_ids)

  def has_blanks(self, text: str) -> bool:
    return False


class Answer(Continuation):
  """Generation with a decoder trained on conversations: answer the text as a user's message.

  The answer ends with the assistant's message. Instead of a text, an input may be a list of
  messages, each with `role` and `content`.

  Args:
    template: see `published_template.build_chat`.

  Attributes:
    template_description: the template's name, for messages.
  """

  def __init__(
    self, model, vocabulary, features, strategy: Strategy, new_tokens: int | None, template
  ):
    super().__init__(model, vocabulary, features, strategy, new_tokens)
    self.template_description = describe(template, vocabulary)
    self._chat = build_chat(template, vocabulary)
    self._start = vocabularies.start_id(vocabulary)
    self.ends = tuple(sorted({vocabulary.eos_id, self._chat.end}))

  def prompt(self, text: str | Sequence[dict[str, str]]) -> list[int]:
    if isinstance(text, str):
      return self._chat.prompt_with_start([Message("user", text)])
    messages = [Message(message["role"], message["content"]) for message in text]
    return self._chat.prompt_with_start(messages)

  def prepend_start(self, ids: list[int]) -> list[int]:
    """Put the ids before a conversation, unless it begins with the start token."""
    return ids if ids[:1] == [self._start] else super().prepend_start(ids)

  def conversation_ids(self, messages: Sequence[Message]) -> list[int]:
    """Return the ids of a conversation, from which its next answer is generated."""
    return self.prepend_start(self._chat.prompt_with_start(messages))

  def decode_answer(self, prompt: Sequence[int], ids: list[int]) -> str:
    return super().decode_answer(prompt, ids).strip()


SENTINEL = re.compile(r"<extra_id_\d+>")


def fill(text: str, prediction: str) -> str:
  """Replace each sentinel of a text with the text that follows it in the prediction.

  Sentinels that the prediction lacks are kept.
  """
  parts = re.split(f"({SENTINEL.pattern})", prediction)
  spans = {sentinel: span.strip() for sentinel, span in zip(parts[1::2], parts[2::2])}
  return SENTINEL.sub(lambda match: spans.get(match[0], match[0]), text)

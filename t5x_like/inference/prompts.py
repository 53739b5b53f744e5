"""Turn prompts into ids, and answer them with likelihoods or generated texts.

Questions without training (`questions.py`) and EleutherAI's harness (`tools/lm_eval.py`) use it.
"""

from collections.abc import Sequence
from typing import Any

from t5x_like.data.supervised.chat import Message
from t5x_like.data.supervised.published_template import PUBLISHED, build_chat
from t5x_like.errors import UserError
from t5x_like.inference import generation, strategies
from t5x_like.inference.likelihood import Likelihood
from t5x_like.inference.stops import NO_STOPS, Stops
from t5x_like.vocabularies import opening_ids, start_id

Ids = list[int]


class Prompts:
  """The prompts of a decoder or an encoder-decoder, which reads the context in its encoder.

  Args:
    opened: the model, a `library.model.Model`.
    longest: the most tokens that it reads, see `Likelihood`.
    start: whether the contexts of a decoder begin with the start token, as documents in training
      do. Otherwise a context has only the ids that the tokenizer of published weights adds.
    template: the chat template of a decoder: a context is a user's message, and its continuation
      the beginning of the answer. None is no template.

  Attributes:
    is_encoder_decoder: whether the model is an encoder-decoder.
    likelihood: scores pairs of ids.
    start_id: the start token.
  """

  def __init__(
    self,
    opened: Any,
    longest: int | None = None,
    start: bool = True,
    template: str | dict[str, Any] | None = None,
  ):
    self.is_encoder_decoder = "encoder_input_tokens" in opened.features
    self.likelihood = Likelihood(opened.run, opened.features, longest)
    self.start_id = start_id(opened.vocabulary)
    self._opened = opened
    self._vocabulary = opened.vocabulary
    self._predictors: dict[tuple, generation.Generation] = {}
    self._before, self._after = opened.vocabulary.enclosing_ids() or ([], [])
    if self.is_encoder_decoder and opened.vocabulary.enclosing_ids() is None:
      self._before = opening_ids(opened.vocabulary)
      self._after = [opened.vocabulary.eos_id]
    elif start and not self.is_encoder_decoder:
      self._before = [self.start_id]
      self._after = []
    self._chat = None if template is None else build_chat(template, opened.vocabulary)
    if self._chat is not None and self.is_encoder_decoder:
      raise UserError(
        "--template: the model is an encoder-decoder, which has no chat template; leave it out"
      )
    if template == PUBLISHED and opened.is_published:
      self._before = []  # the template writes them all
    first = opened.forced[0]
    self._answer_start = opening_ids(opened.vocabulary) if first is None else [first]

  def encode(self, text: str, special: bool = True) -> Ids:
    """Return the ids of a context or, without `special`, of a continuation."""
    if special and self._chat is not None:
      ids = self._chat.prompt_with_start([Message("user", text)])
      return ids if ids[:1] == [self.start_id] else [*self._before, *ids]
    ids = [int(i) for i in self._vocabulary.encode(text)]
    if special:
      ids = [*self._before, *ids, *self._after]
    return ids

  def encode_pair(self, context: str, continuation: str) -> tuple[Ids, Ids]:
    """Encode a context and its continuation.

    White space at the end of a decoder's context belongs to the continuation, as in lm_eval: a
    token may begin with it. For an encoder-decoder, the continuation is a target: it has no leading
    space and ends with EOS.
    """
    if self.is_encoder_decoder:
      ids = map(int, self._vocabulary.for_targets().encode(continuation.lstrip()))
      return self.encode(context), [*self._answer_start, *ids, self._vocabulary.eos_id]
    if self._chat is not None:
      return self.encode(context), self.encode(continuation.lstrip(), special=False)
    joint_ids = self.encode(context + continuation, special=False)
    context = context.rstrip()
    context_ids = self.encode(context, special=False)
    return self.encode(context), joint_ids[len(context_ids) :] or joint_ids[-1:]

  def generate(
    self,
    contexts: Sequence[Ids],
    new_tokens: int,
    strategy: Any = None,
    extend_by_context: bool = False,
    stops: Stops = NO_STOPS,
  ) -> tuple[list[str], list[bool], list[bool]]:
    """Continue contexts by up to `new_tokens` tokens, decoded alone and without special ids.

    Args:
      contexts: ids; contexts that leave too few positions for the new tokens lose their beginning.
      new_tokens: the most tokens to generate.
      strategy: the decoding strategy; None takes the likeliest token.
      extend_by_context: whether an encoder-decoder may generate one token less than its context
        has in addition to `new_tokens`.
      stops: strings that end the new text.

    Returns:
      The new texts; whether each context lost its beginning; and whether each text reached the
      limit without an end.

    Raises:
      UserError: the model does not read so many tokens.
    """
    extend_by_context = extend_by_context and self.is_encoder_decoder
    max_context = self.likelihood.longest
    if not self.is_encoder_decoder:
      max_context -= new_tokens
    if max_context < 1:
      raise UserError(
        f"max_new_tokens={new_tokens}: expected fewer than the {self.likelihood.longest} tokens "
        "that the model reads"
      )
    prompts = [(ids or [self.start_id])[-max_context:] for ids in contexts]
    longest = new_tokens
    if extend_by_context:
      longest += max(map(len, prompts)) - 1
    key = new_tokens, extend_by_context, longest, strategy or strategies.Greedy(), stops
    if key not in self._predictors:
      self._predictors[key] = self._build_predictor(*key)
    predict = self._predictors[key]
    predict.check_new_tokens(0, "")
    answers = predict(self._opened.run, prompts, [""] * len(prompts))
    texts = [answer["prediction"] for answer in answers]
    is_truncated = [len(ids) > max_context for ids in contexts]
    is_unfinished = [answer["is_unfinished"] for answer in answers]
    return texts, is_truncated, is_unfinished

  def _build_predictor(
    self, new_tokens: int, extend_by_context: bool, longest: int, strategy: Any, stops: Stops
  ) -> generation.Generation:
    """Return a predictor that decodes the new tokens of a prompt without the prompt."""
    opened = self._opened
    vocabulary = self._vocabulary
    skipped = {*vocabulary.special_ids, vocabulary.unk_id}

    def limit(prompt: Sequence[int]) -> int:
      return new_tokens + len(prompt) - 1 if extend_by_context else new_tokens

    class NewTokens(generation.TextToText if self.is_encoder_decoder else generation.Continuation):
      def decode_answer(self, prompt: Sequence[int], ids: Ids) -> str:
        return vocabulary.decode([i for i in ids[: limit(prompt)] if i not in skipped])

      def _answer(
        self, text: str, prompt: Sequence[int], sequences: list[tuple[Ids, float]]
      ) -> dict[str, Any]:
        answer = super()._answer(text, prompt, sequences)
        ids, _ = sequences[0]
        ids = ids[: limit(prompt)]
        _, forced_eos = self.forced
        if forced_eos is not None and len(ids) == longest:
          ids = ids[:-1]  # the end that is forced on a text that reaches the limit
        new_text = self.decode_answer(prompt, self._until_end(ids))
        has_end_token = any(i in self.ends for i in ids)
        has_stop_string = any(stop in new_text for stop in stops.strings)
        return answer | {"is_unfinished": not (has_end_token or has_stop_string)}

      def has_blanks(self, text: str) -> bool:
        return False

    predict = NewTokens(opened.model, vocabulary, opened.features, strategy, longest)
    predict.ends = opened.ends
    predict.forced = opened.forced
    predict.stops = stops
    if self._chat is not None:
      predict.ends = tuple(sorted({*opened.ends, self._chat.end}))
    return predict

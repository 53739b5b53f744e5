"""Answer the messages of a conversation with a model of text, turn by turn."""

from collections.abc import Iterator, Sequence

from t5x_like.data.supervised.chat import Message
from t5x_like.errors import UserError
from t5x_like.inference.classification import TextClassification
from t5x_like.inference.fill_mask import MaskFilling
from t5x_like.inference.generation import Answer, Generation, TextToText, fill
from t5x_like.inference.streaming import Stream
from t5x_like.rows import Runner

_CANDIDATES = 5
_ORIGIN = "the prompt"


class Talk:
  """A callable that answers messages as the kind of the model allows.

  A decoder that was trained on conversations answers the whole conversation, without its oldest
  turns where it is too long. Another decoder continues the last message, an encoder-decoder answers
  it or fills its blanks, an encoder fills its masks, and a classifier labels it.

  Args:
    run: a runner of the model.
    predict: a predictor of `predictors.build_predictor`, or a classifier.
    stream: its stream of text; None for an encoder or a classifier, which answer at once.
  """

  def __init__(
    self, run: Runner, predict: Generation | MaskFilling | TextClassification, stream: Stream | None
  ):
    self._run = run
    self._predict = predict
    self._stream = stream

  @property
  def description(self) -> str:
    """Describe the messages that it takes, in a sentence."""
    if isinstance(self._predict, TextClassification):
      return self._predict.description
    if self._stream is None:
      return f"It fills {self._predict.spellings[0]} in your text."
    if isinstance(self._predict, TextToText):
      return (
        "It answers a text in the form of its training; <extra_id_0>, <extra_id_1> … in a "
        "text are filled."
      )
    if isinstance(self._predict, Answer):
      return f"It answers you by {self._predict.template_description}."
    return "It continues your text."

  def __call__(self, messages: Sequence[Message], temperature: float = 0.0) -> Iterator[str]:
    """Yield the pieces of an answer to a conversation whose last message is the user's.

    Raises:
      UserError: the last message is too long, or has nothing to fill.
    """
    text = messages[-1].content
    if isinstance(self._predict, TextClassification):
      (answer,) = self._predict(self._run, self._predict.encode([text], _ORIGIN), [text])
      yield str(answer["prediction"])
      for candidate in answer.get("predictions", ()):
        yield f"\n  {candidate['probability']:.1%}  {candidate['label']}"
    elif self._stream is None:
      (answer,) = self._predict(self._run, self._predict.encode([text], _ORIGIN), [text])
      yield answer["filled"]
      for number, candidates in enumerate(answer["predictions"], 1):
        candidate_texts = ", ".join(
          f"{candidate['text']!r} {candidate['probability']:.1%}"
          for candidate in candidates[:_CANDIDATES]
        )
        yield f"\n  {number}: {candidate_texts}"
    elif isinstance(self._predict, Answer):
      yield from self._stream(self._conversation(messages), temperature)
    elif self._predict.has_blanks(text):
      (ids,) = self._predict.encode([text], _ORIGIN)
      yield fill(text, "".join(self._stream(ids, temperature)))
    else:
      (ids,) = self._predict.encode([text], _ORIGIN)
      yield from self._stream(ids, temperature)

  def _conversation(self, messages: Sequence[Message]) -> list[int]:
    """Return the ids of the newest turns that fit, with the system's message if there is one."""
    system = [message for message in messages[:1] if message.role == "system"]
    turns = list(messages[len(system) :])
    ids = self._predict.conversation_ids([*system, *turns])
    while len(ids) > self._stream.context and len(turns) > 2:
      turns = turns[2:]  # without the oldest question and its answer
      ids = self._predict.conversation_ids([*system, *turns])
    if len(ids) > self._stream.context:
      raise UserError(
        f"the message has {len(ids)} tokens, expected at most {self._stream.context}; shorten it"
      )
    return ids

"""Transforms by the names that flags, recipes and `transformers` give them."""

from collections.abc import Callable, Mapping

from t5x_like.decoding.penalties import NoRepeatNgrams, RepetitionPenalty
from t5x_like.decoding.sampling import MinLength, MinP, Temperature, TopK, TopP, Transform, Typical
from t5x_like.errors import UserError, did_you_mean

TransformFactory = Callable[[float], Transform]
PENALTIES: dict[str, TransformFactory] = {
  "repetition_penalty": RepetitionPenalty,
  "no_repeat_ngram_size": NoRepeatNgrams,
  "min_new_tokens": MinLength,
}  # for every kind of generation, in the order of application
FILTERS: dict[str, TransformFactory] = {
  "temperature": Temperature,
  "top_k": TopK,
  "top_p": TopP,
  "min_p": MinP,
  "typical_p": Typical,
}  # for draws, in the order of application, after penalties


def build_transforms(
  values: Mapping[str, float],
  where: str = "--",
  makers: Mapping[str, TransformFactory] | None = None,
) -> tuple[Transform, ...]:
  """Return the transforms of names and values, in their order of application.

  Args:
    values: values by name.
    where: the beginning of a name in messages.
    makers: the names allowed; None for all.
  Raises:
    UserError: a name is unknown, or a value is out of range or has the wrong type.
  """
  if makers is None:
    makers = PENALTIES | FILTERS
  for name in values:
    if name not in makers:
      raise UserError(
        f"{where}{name}: unknown{did_you_mean(name, makers)}; expected one of {', '.join(makers)}"
      )
  transforms = []
  for name, maker in makers.items():
    if name in values:
      transforms.append(_make_transform(f"{where}{name}", maker, values[name]))
  return tuple(transforms)


def _make_transform(name: str, maker: TransformFactory, value: float) -> Transform:
  """Make a transform; raise UserError with its name for a value that it refuses."""
  if isinstance(value, bool) or not isinstance(value, int | float):
    raise UserError(f"{name}: found {value!r:.80}, expected a number")
  try:
    return maker(value)
  except UserError as error:
    _, _, reason = str(error).partition(": ")
    raise UserError(f"{name}={value}: {reason}") from None

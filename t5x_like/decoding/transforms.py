"""Build transforms of logits from the names and values of flags and recipes.

`transformers` uses the same names.
"""

from collections.abc import Callable, Mapping

from t5x_like.decoding.penalties import NoRepeatNgrams, RepetitionPenalty
from t5x_like.decoding.sampling import MinLength, MinP, Temperature, TopK, TopP, Transform, Typical
from t5x_like.errors import UserError, did_you_mean

TransformFactory = Callable[[float], Transform]
# For every kind of generation, in the order of application.
PENALTIES: dict[str, TransformFactory] = {
  "repetition_penalty": RepetitionPenalty,
  "no_repeat_ngram_size": NoRepeatNgrams,
  "min_new_tokens": MinLength,
}
# For sampling only, in the order of application, after the penalties.
FILTERS: dict[str, TransformFactory] = {
  "temperature": Temperature,
  "top_k": TopK,
  "top_p": TopP,
  "min_p": MinP,
  "typical_p": Typical,
}


def build_transforms(
  values: Mapping[str, float],
  prefix: str = "--",
  factories: Mapping[str, TransformFactory] = PENALTIES | FILTERS,
) -> tuple[Transform, ...]:
  """Build the transforms with these names and values, in their order of application.

  Args:
    values: values by name.
    prefix: text before each name in messages.
    factories: the allowed names, with the transform that each builds.
  Raises:
    UserError: a name is unknown, or a value is out of range or has the wrong type.
  """
  for name in values:
    if name not in factories:
      raise UserError(
        f"{prefix}{name}: unknown{did_you_mean(name, factories)}; expected one of "
        f"{', '.join(factories)}"
      )
  transforms = []
  for name, factory in factories.items():
    if name in values:
      transforms.append(_build_transform(f"{prefix}{name}", factory, values[name]))
  return tuple(transforms)


def _build_transform(name: str, factory: TransformFactory, value: float) -> Transform:
  """Build a transform; raise UserError with its name for a value that it refuses."""
  if isinstance(value, bool) or not isinstance(value, int | float):
    raise UserError(f"{name}: found {value!r:.80}, expected a number")
  try:
    return factory(value)
  except UserError as error:
    _, _, reason = str(error).partition(": ")
    raise UserError(f"{name}={value}: {reason}") from None

"""Lengths of the inputs and targets of denoised windows: arithmetic without data."""

from t5x_like.data.preprocessors.span_corruption import noise_counts

MODE_TOKENS = {"r": "[NLU]", "s": "[S2S]", "x": "[NLG]"}  # mode tokens of UL2
QUARTER = None  # the mean span of S: all noise of the window, a quarter of it
DENOISERS = {  # label -> (mean span, noise density)
  "r_3": (3.0, 0.15),
  "r_8": (8.0, 0.15),
  "s": (QUARTER, 0.25),
  "x_3": (3.0, 0.5),
  "x_8": (8.0, 0.5),
  "x_64_low": (64.0, 0.15),
  "x_64": (64.0, 0.5),
}


def denoising_lengths(style: str, inputs_length: int, noise_density: float) -> tuple[int, int, int]:
  """Return (window, its noise tokens, targets' length) with which nothing is ever truncated.

  512 inputs at 0.15: 511, 77 and 512 if the targets are the whole window; 511, 77 and 155 for
  replace_spans, which has at most one run per noise token; 601, 90 and 91 for drop_tokens.
  """

  def count_noise(window: int) -> int:
    return min(max(round(window * noise_density), 1), window - 1)

  window = inputs_length - 1
  if style == "drop_tokens":
    while window + 1 - count_noise(window + 1) + 1 <= inputs_length:
      window += 1
  noise = count_noise(window)
  if style == "drop_tokens":
    return window, noise, noise + 1
  if style == "replace_spans":
    runs = min(noise, window - noise + 1)
    return window, noise, noise + runs + 1
  return window, noise, window + 1


def denoiser_lengths(name: str, length: int, random_roll: bool) -> tuple[int, int]:
  """Return (inputs' length, targets' length) of a denoiser on windows of `length`.

  The text of its mode is not included.
  """
  mean, density = DENOISERS[name]
  room = 0
  if mean is QUARTER:
    mean = length * density
  elif random_roll:
    room = 1  # for the sentinel of a span that the rotation of noise cuts in two
  noise, spans = noise_counts(length, density, mean)
  return length - noise + spans + 1 + room, noise + spans + 1 + room

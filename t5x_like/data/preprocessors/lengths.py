"""Lengths of the inputs and targets of corrupted windows: arithmetic without data or TensorFlow."""

from t5x_like.errors import UserError

MODES = {"r": "[NLU]", "s": "[S2S]", "x": "[NLG]"}  # mode tokens of UL2
QUARTER = None  # a mean span of a quarter of the window
DENOISERS = {  # label -> (mean span, noise density)
  "r_3": (3.0, 0.15),
  "r_8": (8.0, 0.15),
  "s": (QUARTER, 0.25),
  "x_3": (3.0, 0.5),
  "x_8": (8.0, 0.5),
  "x_64_low": (64.0, 0.15),
  "x_64": (64.0, 0.5),
}


def noise_counts(length: int, noise_density: float, mean_noise_span_length: float) -> tuple[int, int]:
  """Return (noise tokens, noise spans) of a window of `length` tokens: T5's rounding, at least one of each.

  The arithmetic is in double precision, as in the T5 library's computation of lengths. That library draws masks in
  single precision, where a few products that are exactly a half here round up (190 tokens at 0.15 give 29 noise tokens
  there and 28 here).
  """
  tokens = min(max(round(length * noise_density), 1), length - 1)
  spans = min(max(round(tokens / mean_noise_span_length), 1), length - tokens)
  return tokens, spans


def random_spans_lengths(inputs_length: int, noise_density: float, mean_noise_span_length: float) -> tuple[int, int]:
  """Return (the raw window that corrupts to `inputs_length` inputs, its targets' length); both lengths include EOS.

  512 inputs at 0.15 and 3.0 need 568 raw tokens and give 114 targets.

  Raises:
    UserError: `inputs_length` is less than 3 (a kept token, a sentinel and EOS).
  """

  def corrupted(length: int) -> tuple[int, int]:
    tokens, spans = noise_counts(length, noise_density, mean_noise_span_length)
    return length - tokens + spans + 1, tokens + spans + 1

  if inputs_length < 3:
    raise UserError(f"inputs_length: found {inputs_length}, expected at least 3 (a token, a sentinel and EOS)")
  window = max(2, inputs_length - 1)
  while corrupted(window + 1)[0] <= inputs_length:
    window += 1
  targets_length = corrupted(window)[1]
  if noise_density == 0.5 and targets_length > inputs_length:  # T5 prefers equal lengths here
    window, targets_length = window - 1, corrupted(window - 1)[1]
  return window, targets_length


def denoising(style: str, inputs_length: int, noise_density: float) -> tuple[int, int, int]:
  """Return (window, its noise tokens, targets' length) such that nothing is ever truncated.

  512 inputs at 0.15: 511, 77 and 512 if the targets are the whole window; 511, 77 and 155 for replace_spans, which has
  at most one run per noise token; 601, 90 and 91 for drop_tokens.
  """

  def noisy(window: int) -> int:
    return min(max(round(window * noise_density), 1), window - 1)

  window = inputs_length - 1
  if style == "drop_tokens":
    while window + 1 - noisy(window + 1) + 1 <= inputs_length:
      window += 1
    return window, noisy(window), noisy(window) + 1
  if style == "replace_spans":
    runs = min(noisy(window), window - noisy(window) + 1)
    return window, noisy(window), noisy(window) + runs + 1
  return window, noisy(window), window + 1


def denoiser(name: str, length: int, random_roll: bool) -> tuple[int, int]:
  """Return (inputs' length, targets' length) of a denoiser in `DENOISERS` on windows of `length`, without its mode."""
  mean, density = DENOISERS[name]
  room = int(random_roll and mean is not QUARTER)
  noise, spans = noise_counts(length, density, length * density if mean is QUARTER else mean)
  return length - noise + spans + 1 + room, noise + spans + 1 + room

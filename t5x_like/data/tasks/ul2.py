"""UL2's mixture of denoisers: seven span corruptions of one corpus (Tay et al. 2022, section 3.1 and table 1).

                  mean span  noise                       mode token
    R  regular        3, 8    15%                          [NLU]
    S  sequential     L / 4   25%, one span at the end     [S2S]
    X  extreme        3, 8    50%; 64 at 15% and at 50%    [NLG]

S is the prefix LM as the paper casts it: the window's last quarter is one span of noise. The seven are drawn equally
often unless `rates` says otherwise. Every denoiser reads windows of `length` raw tokens (or the one or two more that
make as many inputs); features have the lengths of the longest, so the encoder's come from R and the decoder's from X.
Worked example, L = 512: R (3, 0.15) has 462 inputs and 104 targets, S 386 and 130, X (3, 0.5) 342 inputs and 342
targets in 85 spans, which therefore is the number of sentinels needed.

Spans are cut as in T5 (uniformly among all cuts with this mean; the paper allows "normal or uniform"). So a denoiser
with one span, as X (64, 0.15) has at L = 512 (77 tokens), has it at the end; `random_roll` puts it anywhere.

With `mode_tokens` every input begins with the text of its mode, as in the released models' prompts; a vocabulary that
has these spellings as pieces gives one token for each, any other spells them out.
"""

from t5x_like import slots
from t5x_like.data import mixture
from t5x_like.data.preprocessors.span_corruption import noise_counts
from t5x_like.data.store.reader import Verify
from t5x_like.data.store.windows import open_tokens
from t5x_like.data.task import Task
from t5x_like.data.tasks._span_corruption import over
from t5x_like.errors import UserError, did_you_mean

MODES = {"r": "[NLU]", "s": "[S2S]", "x": "[NLG]"}
_QUARTER = None  # a mean span of a quarter of the window
DENOISERS = {  # label -> (mean span, noise density)
  "r_3": (3.0, 0.15),
  "r_8": (8.0, 0.15),
  "s": (_QUARTER, 0.25),
  "x_3": (3.0, 0.5),
  "x_8": (8.0, 0.5),
  "x_64_low": (64.0, 0.15),
  "x_64": (64.0, 0.5),
}


def task(
  *,
  store: str,
  split: str,
  length: int = 512,
  mode_tokens: bool = False,
  rates: dict = {},  # noqa: B006
  random_roll: bool = False,
  period: int = 7_000,
  label: str | None = None,
  verify: Verify = "auto",
) -> Task:
  """Makes the task.

  Args:
    store: the directory or address that holds a token store per split, or `builtin`; see `Windows`.
    split: which of them.
    length: raw tokens in a window.
    mode_tokens: begin the inputs with `MODES`.
    rates: of some of `DENOISERS`; 1 for the others, 0 leaves one out.
    random_roll: let the noise of R and X lie anywhere; see `preprocessors/span_corruption.py`.
    period: of the mixture's schedule.
    label: the name in metrics; by default `<corpus>_ul2`.
    verify: what opening the store checks, see `TokenStore.open`.

  Raises:
    UserError: the store cannot be used, is shorter than one window, or its vocabulary has too few sentinels; a window
      too short to have a quarter; rates of denoisers there are not.
  """
  if length < 8:
    raise UserError(f"length: found {length}, expected windows of at least 8 tokens")
  for name, rate in rates.items():
    if not slots.fits(rate, float) or rate < 0:
      raise UserError(f"config.task.rates.{name}: found {rate!r}, expected a number, 0 to leave it out")
    if name not in DENOISERS:
      raise UserError(
        f"config.task.rates.{name}: no such denoiser{did_you_mean(name, DENOISERS)}; there are {', '.join(DENOISERS)}"
      )
  tokens = open_tokens(store, split, verify)
  all_rates = {name: rates.get(name, 1.0) for name in DENOISERS}
  parts = {}
  for name, (mean, density) in DENOISERS.items():
    if not all_rates[name]:
      continue
    roll = random_roll and mean is not _QUARTER
    noise, spans = noise_counts(length, density, length * density if mean is _QUARTER else mean)
    prefix = MODES[name[0]] if mode_tokens else ""
    prefix_length = len(tokens.vocabulary.encode(prefix)) if prefix else 0
    parts[name] = over(
      tokens,
      inputs_length=length - noise + spans + 1 + roll + prefix_length,
      noise_density=density,
      mean_noise_span_length=noise if mean is _QUARTER else mean,
      random_roll=roll,
      prefix=prefix,
      label=name,
    )
  if not parts:
    raise UserError("config.task.rates: found 0 for every denoiser, expected at least one that is drawn")
  return mixture.mix(
    parts, {name: all_rates[name] for name in parts}, period=period, name=label or f"{tokens.name}_ul2"
  )

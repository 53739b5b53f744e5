"""Price a job before its start, and limit it by a budget and a deadline.

The flags --prices, --budget and --deadline are the same for all launchers. A launcher prints the
price of the job for an hour and the most that it can cost. It ends the job after a save, early
enough that neither limit is exceeded.
"""

import argparse
import datetime
import math
import time
from dataclasses import dataclass

from launch.commands import log
from t5x_like.errors import EXIT_USER_ERROR, UserError
from t5x_like.planning.prices import Prices, read_prices

_SECONDS_PER_HOUR = 3600.0
_UNTIL = "T5X_LIKE_UNTIL"  # variable with the end of the job, in seconds since 1970
# Kinds of chips in files of prices, by the clouds' names.
_TPU_KINDS = {
  "v5litepod": "v5e",
  "tpu-v4-podslice": "v4",
  "tpu-v5-lite-podslice": "v5e",
  "tpu-v5p-slice": "v5p",
  "tpu-v6e-slice": "v6e",
}


@dataclass(frozen=True)
class Chips:
  """The accelerators of a job.

  Attributes:
    kind: key of the prices, such as v5e or nvidia-h100-80gb.
    count: number of chips of the whole job.
  """

  kind: str
  count: int


@dataclass(frozen=True)
class Limit:
  """How long a job may use its chips.

  Attributes:
    hours: duration from the moment in which the chips exist to the save at the end; may be
      infinite.
    until: latest time of this save, in seconds since 1970; None without a deadline.
  """

  hours: float
  until: float | None = None


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Add the flags of prices and limits to a launcher's parser."""
  parser.add_argument(
    "--prices", default="", metavar="FILE", help="prices per chip and hour, in TOML; see the how-to"
  )
  parser.add_argument(
    "--budget", type=parse_amount, help="most that the job may cost, in the currency of --prices"
  )
  parser.add_argument(
    "--deadline", type=parse_time, help="latest end of the job, such as 2027-01-31T18:00+01:00"
  )
  parser.add_argument(
    "--chip", default="", help="kind of the chips in --prices (default: detected)"
  )


def parse_amount(text: str) -> float:
  """Parse the value of a flag that takes an amount of money.

  Raises:
    argparse.ArgumentTypeError: the text is not an amount above 0.
  """
  try:
    amount = float(text)
  except ValueError:
    amount = 0.0
  if not 0 < amount < math.inf:
    raise argparse.ArgumentTypeError(f"found {text!r}, expected an amount above 0, such as 250")
  return amount


def parse_time(text: str) -> float:
  """Parse a date with a time; without a time zone, it is in this machine's zone.

  Returns:
    Seconds since 1970.

  Raises:
    argparse.ArgumentTypeError: the text is not a date with a time.
  """
  try:
    moment = datetime.datetime.fromisoformat(text)
  except ValueError:
    moment = None
  if moment is None or len(text) < len("2027-01-31T18"):
    raise argparse.ArgumentTypeError(
      f"found {text!r}, expected a date and a time, such as 2027-01-31T18:00+01:00"
    )
  return moment.timestamp()


def chips_of_tpu(accelerator_type: str, slices: int) -> Chips:
  """Return the chips of a number of slices of a type of Cloud TPU.

  `v5litepod-64` and `v6e-64` count chips; `v4-64` and `v5p-64` count TensorCores, two per chip.
  """
  kind, _, size = accelerator_type.removeprefix("tpu-").rpartition("-")
  chips_per_slice = int(size)
  if kind not in ("v5litepod", "v6e"):
    chips_per_slice = max(1, chips_per_slice // 2)
  return Chips(_TPU_KINDS.get(kind, kind), chips_per_slice * slices)


def chip_kind(accelerator: str) -> str:
  """Return the kind of chip, as files of prices have it, of an accelerator of GKE."""
  return _TPU_KINDS.get(accelerator, accelerator)


def set_limit(
  args: argparse.Namespace, chips: Chips, max_hours: float, reserve_seconds: float
) -> Limit:
  """Return the limit of a job, and print its price.

  Args:
    max_hours: the launcher's own limit, or infinity.
    reserve_seconds: time for the save and for giving the chips back, which is billed too.

  Raises:
    UserError: a budget is given without prices, or no time to train is left.
  """
  hours = max_hours
  until = None
  if args.budget is not None and not args.prices:
    raise UserError(f"--budget={args.budget:g}: needs the price of the chips; give --prices=FILE")
  prices = read_prices(args.prices) if args.prices else None
  if prices is not None:
    kind = args.chip or chips.kind
    price = _price_of_hour(prices, kind, chips.count, args.prices)
    if args.budget is not None:
      hours = min(hours, _hours_of_budget(args.budget, price, prices.currency, reserve_seconds))
    _print_price(prices, kind, chips.count, price, hours, args.budget, reserve_seconds)
  if args.deadline is not None:
    until = args.deadline - reserve_seconds
    if until <= time.time():
      raise UserError(
        f"--deadline: found {_format_time(args.deadline)}, expected a time at least "
        f"{reserve_seconds / 60:.0f} minutes from now, which a save may take"
      )
    log(f"the run saves and ends before {_format_time(args.deadline)} (--deadline)")
  return Limit(hours, until)


def until_lines(limit: Limit, begin_file: str = "") -> list[str]:
  """Return lines of a shell script that export the end of the limit.

  Args:
    begin_file: file that all starts of the job share, quoted for a shell script. The first start
      writes its time to it, from which the limit counts. "" to count from now.
  """
  if math.isinf(limit.hours):
    return [f"export {_UNTIL}={math.floor(limit.until)}"]
  seconds = math.floor(_SECONDS_PER_HOUR * limit.hours)
  if begin_file:
    lines = [
      f"[ -s {begin_file} ] || date +%s > {begin_file}",
      f"export {_UNTIL}=$(($(cat {begin_file}) + {seconds}))",
    ]
  else:
    lines = [f"export {_UNTIL}={math.floor(time.time()) + seconds}"]
  if limit.until is not None:
    last = math.floor(limit.until)
    lines.append(f'if [ "${_UNTIL}" -gt {last} ]; then export {_UNTIL}={last}; fi')
  return lines


def limit_command(preflight: str, train: str, grace_seconds: float) -> str:
  """Return a line of a shell script that checks the host and trains until the exported end.

  At the end, TERM lets the command save; its exit code 75 is kept. A start after the end exits with
  2, which no launcher repeats.

  Args:
    preflight, train: commands, quoted for a shell script.
    grace_seconds: time for the save.
  """
  limited = (
    f'timeout --preserve-status --signal=TERM --kill-after={math.ceil(grace_seconds)} "$left"'
  )
  message = "[launcher] the budget or the deadline is reached; raise it to continue"
  return (
    f"left=$(({_UNTIL} - $(date +%s))); "
    f'if [ "$left" -le 0 ]; then echo "{message}" >&2; exit {EXIT_USER_ERROR}; fi; '
    f"{preflight} && exec {limited} {train}"
  )


def is_limited(args: argparse.Namespace) -> bool:
  """Return whether the job has a budget or a deadline."""
  return args.budget is not None or args.deadline is not None


def _price_of_hour(prices: Prices, kind: str, count: int, file: str) -> float:
  """Return the price of an hour of all chips.

  Raises:
    UserError: the file has no price of the kind.
  """
  try:
    return prices.price_of(kind, count)
  except UserError as error:
    raise UserError(f"--prices={file}: {error}, or give --chip") from None


def _hours_of_budget(budget: float, price: float, currency: str, reserve_seconds: float) -> float:
  """Return the hours that a budget pays for, without the reserve.

  Raises:
    UserError: no hours are left.
  """
  if price == 0:
    return math.inf
  hours = budget / price - reserve_seconds / _SECONDS_PER_HOUR
  if hours <= 0:
    least = price * reserve_seconds / _SECONDS_PER_HOUR
    raise UserError(
      f"--budget={budget:g}: found less than {least:.2f} {currency}, the price of "
      f"{reserve_seconds / 60:.0f} minutes for the save at the end; give more, or fewer chips"
    )
  return hours


def _print_price(
  prices: Prices,
  kind: str,
  count: int,
  price: float,
  hours: float,
  budget: float | None,
  reserve_seconds: float,
) -> None:
  """Print the price of an hour and of the whole job."""
  text = (
    f"{count} chips ({kind}) at {prices.per_chip_hour[kind]:g} {prices.currency} an hour each: "
    f"{price:.2f} {prices.currency} an hour"
  )
  if math.isinf(hours):
    log(f"{text}, without a limit (--budget, --deadline)")
    return
  most = price * (hours + reserve_seconds / _SECONDS_PER_HOUR)
  cause = "--budget" if budget is not None and most >= 0.999 * budget else "its longest duration"
  log(f"{text}, at most {most:.2f} {prices.currency} in {hours:.1f} hours ({cause})")


def _format_time(seconds: float) -> str:
  """Return a time as text, in the zone of this machine."""
  return datetime.datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="minutes")

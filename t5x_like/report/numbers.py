"""Format counts and durations for the console and the page."""

_UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))


def duration(seconds: float) -> str:
  """Format a duration in one or two units: "40 s", "12 min", "3 h 5 min", "2 d 4 h"."""
  seconds = round(seconds)
  if seconds < 100:
    return f"{seconds} s"
  minutes = round(seconds / 60)
  if minutes < 100:
    return f"{minutes} min"
  hours, minutes = divmod(minutes, 60)
  if hours < 48:
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"
  days, hours = divmod(hours, 24)
  return f"{days} d {hours} h" if hours else f"{days} d"


def short(count: float) -> str:
  """Format a count in three digits: "74.4 k", "1.24 B"."""
  for size, unit in _UNITS:
    if count >= size:
      return f"{count / size:.3g} {unit}"
  return f"{count:,.0f}"

"""Print the outcome of a verification on one page of 80 columns, and as JSON."""

import textwrap
from typing import Any

from t5x_like.certificate.history import Break, History, Start
from t5x_like.certificate.verification.checks import Check
from t5x_like.certificate.verification.comparison import Comparison
from t5x_like.terminal_text import escape_controls

_WIDTH = 80
_LABEL_WIDTH = 10
_MAX_LISTED = 12
_SHOWN_CHANGES = ("processes", "devices", "device_kind", "platform", "jax", "jaxlib")


def render_certificate(address: str, history: History | None, checks: list[Check]) -> str:
  """Return the page of a run.

  Args:
    history: the history of its chain; None if the chain is broken.
    checks: the outcomes of all checks, of the chain too.
  """
  holds = not any(check.failure for check in checks)
  verdict = "holds" if holds else "DOES NOT HOLD"
  lines = _paragraph("run", address)
  if history is not None:
    lines += _paragraph(
      "verdict", f"{verdict} for steps {history.begins + 1} to {history.last_step}"
    )
  else:
    lines += _paragraph("verdict", verdict)
  for check in checks:
    mark = "FAILS: " if check.failure else ""
    lines += _paragraph(check.name, f"{mark}{check.summary}")
  if history is not None:
    lines += _describe_history(history)
  return escape_controls_in(lines)


def escape_controls_in(lines: list[str]) -> str:
  """Return the lines as a text, without control characters: parts of them come from files."""
  return "\n".join(escape_controls(line) for line in lines)


def describe_chain(history: History) -> str:
  """Return a line about a chain that is one history."""
  origin = "the beginning" if history.begins == 0 else f"step {history.begins}, where it begins"
  return f"{history.num_records:,} records from {origin}, without gap or fork; head {history.head}"


def _describe_history(history: History) -> list[str]:
  """Return the lines about repeated steps, starts, rollbacks and skipped updates."""
  repeats = f"{history.repeated:,} steps were made again after a kill or a return: the same bits"
  if history.rounded:
    repeats += f"; {history.rounded:,} in another environment: rounded differently"
  lines = _paragraph("repeats", repeats)
  first = history.starts[0]
  lines += _paragraph("starts", _describe_environment(first))
  previous = None
  listed_starts = history.starts[-_MAX_LISTED:]
  for start in listed_starts:
    lines += _paragraph("", _describe_start(start, previous))
    previous = start
  if len(listed_starts) < len(history.starts):
    lines += _paragraph("", f"and {len(history.starts) - len(listed_starts)} starts before these")
  for rollback in history.rollbacks[-_MAX_LISTED:]:
    lines += _paragraph(
      "rollback", f"from step {rollback.refused_step} to {rollback.step}: {rollback.reason}"
    )
  skipped = history.skipped
  if skipped:
    numbers = ", ".join(map(str, skipped[:_MAX_LISTED]))
    ellipsis = ", …" if len(skipped) > _MAX_LISTED else ""
    lines += _paragraph("skipped", f"updates of {len(skipped)} steps: {numbers}{ellipsis}")
  for number in history.refused_once[:_MAX_LISTED]:
    lines += _paragraph(
      "refused", f"step {number} by one start, and not in the same way by another"
    )
  return lines


def _describe_environment(start: Start) -> str:
  environment = start.environment
  num_processes = environment.get("processes")
  processes = "1 process" if num_processes == 1 else f"{num_processes} processes"
  return (
    f"{environment.get('devices')} x {environment.get('device_kind')} in {processes}, "
    f"jax {environment.get('jax')}, jaxlib {environment.get('jaxlib')}, "
    f"code {environment.get('code_version')}"
  )


def _describe_start(start: Start, previous: Start | None) -> str:
  """Return a line about a start, with its differences from the one before."""
  text = f"{start.time}  from step {start.step}"
  if previous is None:
    return text
  changes = []
  if start.config != previous.config:
    changes.append("config")
  for name in sorted({*start.environment, *previous.environment}):
    before = previous.environment.get(name)
    now = start.environment.get(name)
    if before == now:
      continue
    changes.append(f"{name} {before} -> {now}" if name in _SHOWN_CHANGES else name)
  return f"{text}; changed: {', '.join(changes)}" if changes else text


def render_comparison(address: str, against: str, comparison: Comparison) -> str:
  """Return the page of two runs."""
  lines = _paragraph("run", address)
  lines += _paragraph("against", against)
  if comparison.difference is None:
    lines += _paragraph(
      "verdict",
      f"the same from step {comparison.first} to {comparison.last}, in every batch, loss and "
      f"metric, and in {comparison.num_states} saved states",
    )
  else:
    lines += _paragraph(
      "verdict",
      f"they agree up to step {comparison.last}, and then differ at {comparison.difference}",
    )
  for note in comparison.notes[:_MAX_LISTED]:
    lines += _paragraph("differs", note)
  return escape_controls_in(lines)


def to_json(history: History | None, checks: list[Check]) -> dict[str, Any]:
  """Return the outcome as JSON."""
  content: dict[str, Any] = {
    "holds": not any(check.failure for check in checks),
    "checks": [_check_to_json(check) for check in checks],
  }
  if history is None:
    return content
  starts = []
  for start in history.starts:
    starts.append(
      {
        "line": start.line,
        "step": start.step,
        "time": start.time,
        "config": start.config,
        "state": start.state,
        "batches_passed": start.batches_passed,
        "environment": start.environment,
      }
    )
  rollbacks = []
  for rollback in history.rollbacks:
    rollbacks.append(
      {"from": rollback.refused_step, "to": rollback.step, "reason": rollback.reason}
    )
  return content | {
    "first_step": history.begins + 1,
    "last_step": history.last_step,
    "records": history.num_records,
    "head": history.head,
    "repeated_steps": history.repeated,
    "rounded_steps": history.rounded,
    "starts": starts,
    "rollbacks": rollbacks,
    "skipped_updates": history.skipped,
    "refused_once": history.refused_once,
    "saved_states": {str(step): save.state for step, save in history.saves.items()},
  }


def comparison_to_json(comparison: Comparison) -> dict[str, Any]:
  """Return the comparison of two runs as JSON."""
  return {
    "same": comparison.difference is None,
    "first_step": comparison.first,
    "last_equal_step": comparison.last,
    "equal_states": comparison.num_states,
    "difference": _break_to_json(comparison.difference),
    "notes": list(comparison.notes),
  }


def _check_to_json(check: Check) -> dict[str, Any]:
  return {
    "name": check.name,
    "summary": check.summary,
    "failure": _break_to_json(check.failure),
  }


def _break_to_json(difference: Break | None) -> dict[str, Any] | None:
  if difference is None:
    return None
  return {"step": difference.step, "in": difference.aspect, "reason": difference.reason}


def _paragraph(label: str, text: str) -> list[str]:
  """Return a text after a label, wrapped to the page's width."""
  indent = " " * _LABEL_WIDTH
  return textwrap.wrap(
    text,
    _WIDTH,
    initial_indent=label.ljust(_LABEL_WIDTH),
    subsequent_indent=indent,
    break_on_hyphens=False,
  ) or [label]

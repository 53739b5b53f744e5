"""Chains of tests: made up, or read from a workdir, changed and chained anew as a forger would."""

import json
import pathlib

from t5x_like.certificate import chain
from t5x_like.certificate.chain import ORIGIN, hash_line
from t5x_like.certificate.history import BOUND_FLOAT32, History, HistoryReader

EXACT = {"platform": "cpu", "devices": 1, "jax": "0.10"}
FINGERPRINTS = {"data": "d" * 64, "vocabulary": "e" * 64}


def digest_of(text: str) -> str:
  """Return a digest that stands for a batch or a state."""
  return hash_line(text.encode())


def start(step: int = 0, *, state: str | None = None, passed: int = 0, **changes) -> dict:
  """Return the record of a start."""
  return {
    "kind": chain.START,
    "step": step,
    "time": "2026-01-01T00:00:00+00:00",
    "state": digest_of(state or f"state {step}"),
    "batches_passed": passed,
    "config": "c" * 64,
    "fingerprints": FINGERPRINTS,
    "log_every": 1,
    "total_steps": 1_000,
    "environment": EXACT,
  } | changes


def step(number: int, *, passed: int = 0, **changes) -> dict:
  """Return the record of a step; its batch and numbers follow from the index of its batch."""
  index = number - 1 + passed
  return {
    "kind": chain.STEP,
    "step": number,
    "batch": digest_of(f"batch {index}"),
    "batch_index": index,
    "loss": f"{0x40000000 + index:08x}",
    "gradient_norm": f"{0x3F000000 + index:08x}",
    "metrics": digest_of(f"metrics {index}")[:32],
  } | changes


def save(number: int, **changes) -> dict:
  """Return the record of a save."""
  return {
    "kind": chain.SAVE,
    "step": number,
    "state": digest_of(f"state {number}"),
  } | changes


def rollback(refused_step: int, target: int, passed: int, **changes) -> dict:
  """Return the record of a rollback."""
  return {
    "kind": chain.ROLLBACK,
    "step": target,
    "state": digest_of(f"state {target}"),
    "refused_step": refused_step,
    "reason": "train/loss is nan",
    "batches_passed": passed,
  } | changes


def link(records: list[dict]) -> list[bytes]:
  """Return the lines of records, each with the hash of the line before."""
  lines = []
  head = ORIGIN
  for record in records:
    content = {key: value for key, value in record.items() if key != "previous"}
    lines.append(json.dumps(content | {"previous": head}).encode())
    head = hash_line(lines[-1])
  return lines


def read(records: list[dict]) -> History:
  """Return the history of records."""
  return HistoryReader(BOUND_FLOAT32).read(link(records))


def records_of(workdir: pathlib.Path) -> list[dict]:
  """Return the records of a workdir's chain."""
  return [json.loads(line) for line in (workdir / chain.FILE).read_bytes().splitlines()]


def rewrite(workdir: pathlib.Path, records: list[dict]) -> None:
  """Replace a workdir's chain by records, with right hashes."""
  (workdir / chain.FILE).write_bytes(b"".join(line + b"\n" for line in link(records)))

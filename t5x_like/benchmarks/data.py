"""Where the records of a suite's tasks are: official files, or TensorFlow datasets. A suite
downloads nothing."""

from typing import Any

from t5x_like.benchmarks.suites import Benchmark, Form
from t5x_like.corpora.sources import open_source, parse_split, t5
from t5x_like.errors import UserError
from t5x_like.parallel import distributed


class Unavailable(Exception):
  """The data of a task are not there."""


def source_keys(
  benchmark: Benchmark, form: Form, data: str | None, data_dir: str | None
) -> dict[str, str]:
  """Return the config's keys that say where a benchmark's records are.

  Args:
    form: the form in which they are learned.
    data: the directory of official files, or the files of each split; see
      `corpora/sources/official.py`.
    data_dir: the directory of TensorFlow datasets, which serves benchmarks without official files
      or `data`.

  Raises:
    Unavailable: the benchmark has nothing but official files, and there is no `data`.
  """
  official = data is not None and benchmark.files is not None
  if not official and benchmark.source is None:
    raise Unavailable("needs its official files; give their directory with --data=DIR")
  place = data if official else data_dir
  return benchmark.sources(official, form) | ({} if place is None else {"task.data_dir": place})


def file_sizes(benchmark: Benchmark, data: str | None) -> dict[str, str]:
  """Return, as `data`, the sizes of a benchmark's official files that are learned and evaluated;
  nothing without any.

  They tell other data in the same place without reading them.
  """
  try:
    source = (
      open_source(benchmark.files.source, data_dir=data) if data and benchmark.files else None
    )
  except UserError:
    return {}
  own = [
    parse_split(where if isinstance(where, str) else where["split"])[0]
    for where in benchmark.evaluated.values()
  ]
  found = [split for split in dict.fromkeys(["train", *own]) if source and split in source.splits]
  facts = {split: source.split_facts(split) for split in found}
  told = [
    f"{split} of {_bytes(one['files']):,} bytes {one['share'] or ''}".strip()
    for split, one in facts.items()
  ]
  return {"data": ", ".join(told)} if told else {}


def _bytes(facts: Any) -> int:
  """Return the sum of all `bytes` in the facts of files."""
  if isinstance(facts, dict):
    return sum(one if key == "bytes" else _bytes(one) for key, one in facts.items())
  return sum(map(_bytes, facts)) if isinstance(facts, list) else 0


def check_available(config: Any) -> None:
  """Raise Unavailable unless the records of a config are there, in all splits that it uses."""
  data_dir = config.task.get("data_dir")
  sources = {config.task.source}
  sources |= {
    values["task"]["source"]
    for values in config.evals.values()
    if "source" in values.get("task", {})
  }
  for source in sorted(sources):
    if lacking := distributed.broadcast_from_first(
      lambda source=source: _lacking(source, data_dir)
    ):
      raise Unavailable(lacking)
  own = [values["split"] for values in config.evals.values() if "task" not in values]
  known = task_splits(config)
  for split in (config.train_split, *own):
    if parse_split(split)[0] not in known:
      raise Unavailable(
        f"has no split {parse_split(split)[0]!r}, only {', '.join(known)}; add its file"
      )


def _lacking(source: str, data_dir: str | None) -> str | None:
  """Name the missing part of a source; return None if nothing is missing."""
  source = t5.inner_source(source)
  if source.startswith("tfds:"):
    from t5x_like.corpora.sources import tfds

    name = source.removeprefix("tfds:")
    if not tfds.is_prepared(name, data_dir):
      place = data_dir or "the data_dir of TensorFlow datasets"
      return f"{name} is not in {place}; give the directory of its official files with --data=DIR"
  if source.startswith("official:"):
    try:
      open_source(source, data_dir=data_dir)
    except UserError as error:
      return str(error)
  return None


def task_splits(config: Any) -> tuple[str, ...]:
  """Return the splits of a config's task."""
  return open_source(config.task.source, data_dir=config.task.get("data_dir")).splits

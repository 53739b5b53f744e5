"""Find the records of a suite's tasks: official files or TensorFlow datasets."""

from typing import Any

from t5x_like.benchmarks.suites import Benchmark, Form
from t5x_like.corpora.sources import open_source, parse_split, t5
from t5x_like.errors import UserError
from t5x_like.parallel import distributed


class Unavailable(Exception):
  """Reports that the data of a task cannot be found."""


def source_keys(
  benchmark: Benchmark, form: Form, data: str | None, data_dir: str | None
) -> dict[str, str]:
  """Return the keys of a config that locate a benchmark's records.

  Args:
    benchmark: the benchmark.
    form: the form in which they are learned.
    data: the directory of official files, or the files of each split; see
      `corpora/sources/official.py`.
    data_dir: the directory of TensorFlow datasets, for benchmarks without official files or `data`.

  Raises:
    Unavailable: the benchmark has nothing but official files, and there is no `data`.
  """
  uses_official_files = data is not None and benchmark.files is not None
  if not uses_official_files and benchmark.source is None:
    raise Unavailable("needs its official files; give their directory with --data=DIR")
  keys = benchmark.sources(uses_official_files, form)
  directory = data if uses_official_files else data_dir
  if directory is not None:
    keys["task.data_dir"] = directory
  return keys


def file_sizes(benchmark: Benchmark, data: str | None) -> dict[str, str]:
  """Describe the sizes of a benchmark's official files, which reveal other data at the same path.

  Returns:
    The description under `data`; nothing without official files.
  """
  if not data or not benchmark.files:
    return {}
  try:
    source = open_source(benchmark.files.source, data_dir=data)
  except UserError:
    return {}
  splits = ["train"]
  for evaluation in benchmark.evaluated.values():
    split = evaluation if isinstance(evaluation, str) else evaluation["split"]
    splits.append(parse_split(split)[0])
  descriptions = []
  for split in dict.fromkeys(splits):
    if split in source.splits:
      facts = source.split_facts(split)
      size = f"{split} of {_sum_bytes(facts['files']):,} bytes"
      descriptions.append(f"{size} {facts['share']}" if facts["share"] else size)
  return {"data": ", ".join(descriptions)} if descriptions else {}


def _sum_bytes(facts: Any) -> int:
  """Return the sum of all `bytes` in the facts of files."""
  total = 0
  if isinstance(facts, dict):
    for key, value in facts.items():
      total += value if key == "bytes" else _sum_bytes(value)
  elif isinstance(facts, list):
    total = sum(map(_sum_bytes, facts))
  return total


def check_available(config: Any) -> None:
  """Raise Unavailable unless the records of a config exist, in all splits that it uses."""
  data_dir = config.task.get("data_dir")
  sources = {config.task.source}
  own_splits = []
  for evaluation in config.evals.values():
    if "source" in evaluation.get("task", {}):
      sources.add(evaluation["task"]["source"])
    if "task" not in evaluation:
      own_splits.append(evaluation["split"])
  for source in sorted(sources):
    reason = distributed.broadcast_from_first(
      lambda source=source: _unavailable_reason(source, data_dir)
    )
    if reason:
      raise Unavailable(reason)
  available = task_splits(config)
  for split in (config.train_split, *own_splits):
    name = parse_split(split)[0]
    if name not in available:
      raise Unavailable(f"has no split {name!r}, only {', '.join(available)}; add its file")


def _unavailable_reason(source: str, data_dir: str | None) -> str | None:
  """Name the missing part of a source; return None if nothing is missing."""
  source = t5.inner_source(source)
  if source.startswith("tfds:"):
    from t5x_like.corpora.sources import tfds

    name = source.removeprefix("tfds:")
    if not tfds.is_prepared(name, data_dir):
      directory = data_dir or "the data_dir of TensorFlow datasets"
      return (
        f"{name} is not in {directory}; give the directory of its official files with --data=DIR"
      )
  if source.startswith("official:"):
    try:
      open_source(source, data_dir=data_dir)
    except UserError as error:
      return str(error)
  return None


def task_splits(config: Any) -> tuple[str, ...]:
  """Return the splits of a config's task."""
  return open_source(config.task.source, data_dir=config.task.get("data_dir")).splits

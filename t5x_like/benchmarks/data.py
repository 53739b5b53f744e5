"""Where the records of a suite's tasks are: official files, or TensorFlow datasets. A suite downloads nothing."""

from typing import Any

from t5x_like.benchmarks.suites import Benchmark, Form
from t5x_like.corpora.sources import open_source, parted, t5
from t5x_like.errors import UserError
from t5x_like.parallel import distributed


class Unavailable(Exception):
  """The data of a task are not there."""


def keys(benchmark: Benchmark, form: Form, data: str | None, data_dir: str | None) -> dict[str, str]:
  """Return the config's keys that say where a benchmark's records are.

  Args:
    form: the form in which they are learned.
    data: the directory of official files, or the files of each split; see `corpora/sources/official.py`.
    data_dir: the directory of TensorFlow datasets, which serves benchmarks without official files or `data`.

  Raises:
    Unavailable: the benchmark has nothing but official files, and there is no `data`.
  """
  official = data is not None and benchmark.files is not None
  if not official and benchmark.source is None:
    raise Unavailable("needs its official files; give their directory with --data=DIR")
  place = data if official else data_dir
  return benchmark.sources(official, form) | ({} if place is None else {"task.data_dir": place})


def check(config: Any) -> None:
  """Raise Unavailable unless the records of a config are there, in all splits that it uses."""
  data_dir, sources = config.task.get("data_dir"), {config.task.source}
  sources |= {values["task"]["source"] for values in config.evals.values() if "source" in values.get("task", {})}
  for source in sorted(sources):
    if lacking := distributed.from_first(lambda source=source: _lacking(source, data_dir)):
      raise Unavailable(lacking)
  own = [values["split"] for values in config.evals.values() if "task" not in values]
  known = splits(config)
  for split in (config.train_split, *own):
    if parted(split)[0] not in known:
      raise Unavailable(f"has no split {parted(split)[0]!r}, only {', '.join(known)}; add its file")


def _lacking(source: str, data_dir: str | None) -> str | None:
  """Name the missing part of a source; return None if nothing is missing."""
  source = t5.inner(source)
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


def splits(config: Any) -> tuple[str, ...]:
  """Return the splits of a config's task."""
  return open_source(config.task.source, data_dir=config.task.get("data_dir")).splits

"""`beam`: builds the parts of a job on any runner of Apache Beam (the extra `beam`).

Beam decides which worker builds a part, and which compares the entries of a key. Workers call the
same functions as the other engines, so they write the same bytes. Pipelines use only transforms
that all runners support: Create, Reshuffle, ParDo, Flatten and GroupByKey on small integers.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from t5x_like import trust
from t5x_like.corpora import building, duplicates, engines
from t5x_like.corpora.cleaning import Comparison, Entries
from t5x_like.corpora.job import Job
from t5x_like.errors import UserError, did_you_mean, one_line
from t5x_like.files.paths import AnyPath

try:
  import apache_beam as beam
  from apache_beam.options.pipeline_options import PipelineOptions
  from apache_beam.runners.runner import create_runner
except ImportError as error:
  raise UserError(
    "--engine=beam: found no Apache Beam here; pip install 't5x-like[beam]'"
  ) from error

# By default, the workers of the local runner log every channel that they open.
_LOG_ERRORS_ONLY = "--default_sdk_harness_log_level=ERROR"
_MAX_BUCKETS = 4096
# The full name of DaskRunner, because Beam does not know the short one.
_DASK_RUNNER = "apache_beam.runners.dask.dask_runner.DaskRunner"
_DASK_PARTITIONS = ("--dask_npartitions", "--dask_partition_size")


class Engine(engines.Engine):
  """An engine that runs on a Beam runner and writes to the job's directories.

  Every worker must find the same files at the job's paths, so on a cluster these must be remote.

  Its methods raise UserError if an option is unknown to Beam, or if a part raised UserError; they
  report the first such part.

  Args:
    workers: ignored; the runner decides.
    options: options of the pipeline, for example --runner=DataflowRunner --project=…. Workers log
      only errors unless an option says otherwise.
  """

  takes_options = True

  def __init__(self, workers: int, options: Sequence[str] = ()):
    self._options = options

  def sign(self, job: Job) -> None:
    self._run_for_each_part(job, functools.partial(duplicates.sign_part, job))

  def make(self, job: Job) -> None:
    self._run_for_each_part(job, functools.partial(building.make_part, job))

  def _run_for_each_part(self, job: Job, function: Callable[[int], None]) -> None:
    errors = _error_directory(job)
    with _run_pipeline(self._options, errors) as pipeline:
      call = beam.Map(
        _call_for_part, function=function, errors=errors, trust_state=trust.current_state()
      )
      _part_numbers(pipeline, job) | "make" >> call

  def compare(self, job: Job, comparison: Comparison) -> None:
    """Compare the entries of all parts by grouping them by key.

    Keys are divided among as many buckets as there are parts, so that a bucket has about as many
    entries as a part. A worker has one part or one bucket in memory at a time.
    """
    duplicates.begin_comparison(job, comparison)
    with _run_pipeline(self._options, _error_directory(job)) as pipeline:
      numbers = _part_numbers(pipeline, job)
      divide = beam.FlatMap(
        _divide_entries,
        job=job,
        comparison=comparison,
        num_buckets=min(job.kind.num_parts, _MAX_BUCKETS),
        trust_state=trust.current_state(),
      )
      match = beam.FlatMap(_match_bucket, comparison=comparison)
      # Parts without a marked position get their file of marks too.
      pair_with_none = beam.Map(lambda number: (number, None))
      marked = (
        numbers
        | "divide" >> divide.with_output_types(tuple[int, Any])
        | beam.GroupByKey()
        | "match" >> match.with_output_types(tuple[int, Any])
      )
      every_part = numbers | "every part" >> pair_with_none.with_output_types(tuple[int, Any])
      by_part = (marked, every_part) | beam.Flatten() | "by part" >> beam.GroupByKey()
      by_part | "save" >> beam.Map(_save_marks, job=job, comparison=comparison)
    duplicates.end_comparison(job, comparison)


def _error_directory(job: Job) -> AnyPath:
  """Return the directory to which workers write the messages of their UserErrors.

  Workers do not raise them, because runners retry on any exception and log it at length.
  """
  return job.progress / "refusals"


@contextlib.contextmanager
def _run_pipeline(options: Sequence[str], errors: AnyPath) -> Iterator[beam.Pipeline]:
  """Yield an empty pipeline for the caller to fill, then run it.

  Raises:
    UserError: the pipeline cannot run; or a part raised UserError, of which the first is reported.
  """
  if errors.exists():
    errors.rmtree()
  try:
    pipeline = beam.Pipeline(options=_parse_options([_LOG_ERRORS_ONLY, *options]))
  except ValueError as error:
    raise UserError(f"--engine=beam: {one_line(error)}") from error
  try:
    with pipeline:
      yield pipeline
  except Exception as error:  # for example no scheduler, or too many lost workers
    if isinstance(error, OSError) or type(error).__module__.startswith("distributed."):
      raise UserError(f"--engine=beam: {type(error).__name__}: {one_line(error)}") from error
    raise
  if errors.exists():
    raise UserError(min(errors.iterdir()).read_text())


def _part_numbers(pipeline: beam.Pipeline, job: Job) -> beam.PCollection[int]:
  return pipeline | "parts" >> beam.Create(range(job.kind.num_parts)) | beam.Reshuffle()


def _parse_options(flags: Sequence[str]) -> PipelineOptions:
  """Parse the pipeline's options.

  Raises:
    UserError: a flag is unknown, and the runner has no job server that may define it.
  """
  runner = PipelineOptions(list(flags)).get_all_options(retain_unknown_options=True)["runner"]
  if runner in ("FlinkRunner", "PortableRunner", "SparkRunner"):
    return PipelineOptions(list(flags))
  if runner == "DaskRunner":
    runner = _DASK_RUNNER
    flags = [*flags, f"--runner={_DASK_RUNNER}"]
    if not any(flag.startswith(_DASK_PARTITIONS) for flag in flags):
      flags.append("--dask_partition_size=1")  # by default, one worker builds 128 parts
  if runner:
    try:
      create_runner(runner)  # imports the runner and thereby its options
    except (ImportError, AttributeError) as error:
      extra = "dask" if runner == _DASK_RUNNER else "the extra of this runner"
      raise UserError(
        f"--runner={runner}: {one_line(error)}; pip install 'apache-beam[{extra}]'"
      ) from error
  options = PipelineOptions(list(flags))
  given_options = options.get_all_options(retain_unknown_options=True)
  known_options = PipelineOptions([f"--runner={runner}"] if runner else []).get_all_options()
  unknown = sorted(given_options.keys() - known_options.keys())
  if unknown:
    raise UserError(
      f"--{unknown[0]}: found a flag of neither tools.prepare_data nor Apache Beam"
      f"{did_you_mean(unknown[0], known_options)}; --help lists those of the former"
    )
  return options


def _call_for_part(
  number: int, function: Callable[[int], Any], errors: AnyPath, trust_state: trust.State
) -> Any:
  """Call a function with a part's number; write the message of a UserError to a file.

  Args:
    number: the number of the part.
    function: the function to call.
    errors: the directory of messages, see `_error_directory`.
    trust_state: the names that the command admits; workers do not have its flags.
  """
  trust.set_state(trust_state)
  try:
    return function(number)
  except UserError as error:
    errors.mkdir(parents=True, exist_ok=True)
    (errors / f"{number:06d}").write_text(one_line(error))


def _divide_entries(
  number: int, job: Job, comparison: Comparison, num_buckets: int, trust_state: trust.State
) -> Iterator[tuple[int, tuple[int, Entries]]]:
  """Yield (bucket, (part, its entries)) for every bucket with entries of the part."""
  load = functools.partial(duplicates.load_entries, job, comparison)
  entries = _call_for_part(number, load, _error_directory(job), trust_state)
  if entries is None or not entries["key"].size:
    return
  bucket_n = (entries["key"] % np.uint64(num_buckets)).astype(np.int64)
  order_n = np.argsort(bucket_n, kind="stable")
  filled_buckets, starts = np.unique(bucket_n[order_n], return_index=True)
  indices_of_buckets = np.split(order_n, starts[1:])
  for bucket, index_m in zip(filled_buckets.tolist(), indices_of_buckets, strict=True):
    yield bucket, (number, {name: values[index_m] for name, values in entries.items()})


def _match_bucket(
  bucket: tuple[int, Iterable[tuple[int, Entries]]], comparison: Comparison
) -> duplicates.MarkedPositions:
  """Compare the entries of one bucket; see `duplicates.match_entries`."""
  _, entries_of_parts = bucket
  return duplicates.match_entries(comparison, entries_of_parts)


def _save_marks(part: tuple[int, Iterable], job: Job, comparison: Comparison) -> None:
  """Save the marked positions of one part; see `duplicates.save_marks`."""
  number, positions = part
  marked_positions = [marked_n for marked_n in positions if marked_n is not None]
  duplicates.save_marks(job, comparison, number, marked_positions)

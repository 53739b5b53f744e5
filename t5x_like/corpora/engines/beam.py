"""`beam`: work on any runner of Apache Beam (the extra `beam`).

Beam decides where a part is built and where entries of equal keys meet. It calls the same functions
as the other engine, so the bytes are the same. Pipelines use only transforms that all runners
support: Create, Reshuffle, ParDo, Flatten and GroupByKey on small integers.
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

# the local runner's workers log every channel they open
_QUIET = "--default_sdk_harness_log_level=ERROR"
_MAX_BUCKETS = 4096
_DASK = "apache_beam.runners.dask.dask_runner.DaskRunner"  # Beam does not know its short name
_DASK_PARTITIONS = ("--dask_npartitions", "--dask_partition_size")


class Engine(engines.Engine):
  """An engine that runs on a Beam runner; results go to the job's directories.

  The job's paths must mean the same on every worker, so they must be remote on a cluster.

  Args:
    workers: ignored.
    options: options of the pipeline: --runner=DataflowRunner --project=... and so on. Workers log
      only errors unless an option says otherwise.

  Raises:
    UserError, when it works: an option is unknown to Beam, or a part raised UserError; the first
    such part is reported.
  """

  takes_options = True

  def __init__(self, workers: int, options: Sequence[str] = ()):
    self._options = options

  def sign(self, job: Job) -> None:
    self._each(job, functools.partial(duplicates.sign_part, job))

  def make(self, job: Job) -> None:
    self._each(job, functools.partial(building.make_part, job))

  def _each(self, job: Job, work: Callable[[int], None]) -> None:
    with _pipeline(self._options, _refusals(job)) as pipeline:
      _parts(pipeline, job) | "make" >> beam.Map(
        _call, work=work, refusals=_refusals(job), admitted=trust.current_state()
      )

  def compare(self, job: Job, comparison: Comparison) -> None:
    """Make a comparison as a group-by.

    A part's entries are divided by key into as many buckets as there are parts, so that a bucket
    has about as many entries as a part. A worker holds one part or one bucket at a time.
    """
    duplicates.begin_comparison(job, comparison)
    with _pipeline(self._options, _refusals(job)) as pipeline:
      numbers = _parts(pipeline, job)
      divide = beam.FlatMap(
        _divide,
        job=job,
        comparison=comparison,
        buckets=min(job.kind.num_parts, _MAX_BUCKETS),
        admitted=trust.current_state(),
      )
      match = beam.FlatMap(_match, comparison=comparison)
      pair_with_none = beam.Map(lambda number: (number, None))
      marked = (
        numbers
        | "divide" >> divide.with_output_types(tuple[int, Any])
        | beam.GroupByKey()
        | "match" >> match.with_output_types(tuple[int, Any])
      )
      every_part = numbers | "every part" >> pair_with_none.with_output_types(tuple[int, Any])
      by_part = (marked, every_part) | beam.Flatten() | "by part" >> beam.GroupByKey()
      by_part | "save" >> beam.Map(_save, job=job, comparison=comparison)
    duplicates.end_comparison(job, comparison)


def _refusals(job: Job) -> AnyPath:
  """Return the directory where workers write the messages of their UserErrors.

  They do not raise them, because runners retry on any exception and log it at length.
  """
  return job.progress / "refusals"


@contextlib.contextmanager
def _pipeline(options: Sequence[str], refusals: AnyPath) -> Iterator[beam.Pipeline]:
  """Provide a pipeline to fill, then run it.

  Raises UserError if it cannot run, or for the first refused part.
  """
  if refusals.exists():
    refusals.rmtree()
  try:
    pipeline = beam.Pipeline(options=_options([_QUIET, *options]))
  except ValueError as error:
    raise UserError(f"--engine=beam: {one_line(error)}") from error
  try:
    with pipeline:
      yield pipeline
  except Exception as error:  # for example no scheduler, or too many lost workers
    if isinstance(error, OSError) or type(error).__module__.startswith("distributed."):
      raise UserError(f"--engine=beam: {type(error).__name__}: {one_line(error)}") from error
    raise
  if refusals.exists():
    raise UserError(min(refusals.iterdir()).read_text())


def _parts(pipeline: beam.Pipeline, job: Job) -> beam.PCollection[int]:
  return pipeline | "parts" >> beam.Create(range(job.kind.num_parts)) | beam.Reshuffle()


def _options(flags: Sequence[str]) -> PipelineOptions:
  """Parse the pipeline's options.

  Raises UserError for an unknown flag unless the runner's job server may define it.
  """
  runner = PipelineOptions(list(flags)).get_all_options(retain_unknown_options=True)["runner"]
  if runner in ("FlinkRunner", "PortableRunner", "SparkRunner"):
    return PipelineOptions(list(flags))
  if runner == "DaskRunner":
    runner = _DASK
    flags = [*flags, f"--runner={_DASK}"]
    if not any(flag.startswith(_DASK_PARTITIONS) for flag in flags):
      flags.append("--dask_partition_size=1")  # by default, one worker builds 128 parts
  if runner:
    try:
      create_runner(runner)  # imports the runner and thereby its options
    except (ImportError, AttributeError) as error:
      extra = "dask" if runner == _DASK else "the extra of this runner"
      raise UserError(
        f"--runner={runner}: {one_line(error)}; pip install 'apache-beam[{extra}]'"
      ) from error
  options = PipelineOptions(list(flags))
  given_options = options.get_all_options(retain_unknown_options=True)
  known_options = PipelineOptions([f"--runner={runner}"] if runner else []).get_all_options()
  if unknown := sorted(given_options.keys() - known_options.keys()):
    raise UserError(
      f"--{unknown[0]}: found a flag of neither tools.prepare_data nor Apache Beam"
      f"{did_you_mean(unknown[0], known_options)}; --help lists those of the former"
    )
  return options


def _call(number: int, work: Callable[[int], Any], refusals: AnyPath, admitted: trust.State) -> Any:
  """Do a part's work; write the message of a UserError among the refusals.

  Args:
    admitted: what the command admits, whose flags a worker lacks.
  """
  trust.set_state(admitted)
  try:
    return work(number)
  except UserError as error:
    refusals.mkdir(parents=True, exist_ok=True)
    (refusals / f"{number:06d}").write_text(one_line(error))


def _divide(
  number: int, job: Job, comparison: Comparison, buckets: int, admitted: trust.State
) -> Iterator[tuple[int, tuple[int, Entries]]]:
  """Yield (bucket, (part, its entries)) for every bucket with entries of the part."""
  load = functools.partial(duplicates.load_entries, job, comparison)
  entries = _call(number, load, _refusals(job), admitted)
  if entries is None or not entries["key"].size:
    return
  bucket_n = (entries["key"] % np.uint64(buckets)).astype(np.int64)
  order_n = np.argsort(bucket_n, kind="stable")
  filled_buckets, first = np.unique(bucket_n[order_n], return_index=True)
  members = np.split(order_n, first[1:])
  for bucket, member_m in zip(filled_buckets.tolist(), members, strict=True):
    yield bucket, (number, {name: values[member_m] for name, values in entries.items()})


def _match(
  bucket: tuple[int, Iterable[tuple[int, Entries]]], comparison: Comparison
) -> duplicates.MarkedPlaces:
  _, pieces = bucket
  return duplicates.match_entries(comparison, pieces)


def _save(part: tuple[int, Iterable], job: Job, comparison: Comparison) -> None:
  number, places = part
  marked_places = [marked_n for marked_n in places if marked_n is not None]
  duplicates.save_marks(job, comparison, number, marked_places)

"""The parts of a preparation job on any runner of Apache Beam (`pip install -r requirements-beam.txt`).

Beam only decides where a part is made; `data.prepare.building` determines its bytes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from etils import epath

from t5x_like.errors import UserError, did_you_mean, one_line

_QUIET = "--default_sdk_harness_log_level=ERROR"  # the local runner's workers log every channel they open


def run(work: Callable[[int], Any], parts: int, options: Sequence[str], refusals: str) -> None:
  """Calls a function for every part of a job on a Beam runner; results go to the job's directories.

  Args:
    work: `duplicates.sign` or `building.make_part` of a job, given the part's number. The job's paths must mean the
      same on every worker, so they must be remote on a cluster.
    parts: the number of parts.
    options: of the pipeline, as on a command line: --runner=DataflowRunner --project=... and so on. Workers log only
      errors unless an option says otherwise.
    refusals: a local or remote directory where workers write the messages of their UserErrors instead of raising them,
      since runners retry whatever raises and log it at length.

  Raises:
    UserError: the options are not Beam's, or some part raised one; the first part's is reported.
  """
  left = epath.Path(refusals)
  if left.exists():
    left.rmtree()
  try:
    pipeline = beam.Pipeline(options=_options([_QUIET, *options]))
  except ValueError as error:
    raise UserError(f"--engine=beam: {one_line(error)}") from error
  with pipeline:
    (
      pipeline
      | "parts" >> beam.Create(range(parts))
      | beam.Reshuffle()
      | "make" >> beam.Map(_call, work=work, refusals=refusals)
    )
  if left.exists():
    raise UserError(min(left.iterdir()).read_text())


def _options(flags: Sequence[str]) -> PipelineOptions:
  """The pipeline's options; UserError for an unknown flag, unless the runner's job server may define it."""
  options = PipelineOptions(list(flags))
  given = options.get_all_options(retain_unknown_options=True)
  if given["runner"] in ("FlinkRunner", "PortableRunner", "SparkRunner"):
    return options
  known = PipelineOptions([f"--runner={given['runner']}"] if given["runner"] else []).get_all_options()
  if unknown := sorted(given.keys() - known.keys()):
    raise UserError(
      f"--{unknown[0]}: found a flag of neither tools.prepare_data nor Apache Beam"
      f"{did_you_mean(unknown[0], known)}; --help lists those of the former"
    )
  return options


def _call(number: int, work: Callable[[int], Any], refusals: str) -> None:
  try:
    work(number)
  except UserError as error:
    left = epath.Path(refusals)
    left.mkdir(parents=True, exist_ok=True)
    (left / f"{number:06d}").write_text(one_line(error))

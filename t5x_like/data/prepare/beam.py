"""Preparation and cleaning with Apache Beam (`pip install -r requirements-beam.txt`), on any of its runners.

`run` spreads the parts of a job, `data.prepare.parts` deciding every byte; `Clean`, `WithoutDuplicates` and
`WithoutRepeatedSpans` are the steps of `data.prepare.cleaning` as transforms of (key, text), for pipelines of one's
own. Keys order the corpus: of equal texts the one with the least key stays. Each counts what goes by reason in Beam's
metrics, namespace `cleaning`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.options.pipeline_options import PipelineOptions
from etils import epath

from t5x_like.data.prepare import cleaning
from t5x_like.errors import UserError, did_you_mean, one_line

Document = tuple[str, str]  # key, text
_QUIET = "--default_sdk_harness_log_level=ERROR"  # workers of the local runner tell the terminal of every channel


def run(work: Callable[[int], Any], parts: int, options: Sequence[str], refusals: str) -> None:
  """Calls a function for every part of a job on a Beam runner; what it leaves is in the job's directories.

  Args:
    work: `preparation.sign` or `make_part` of a job, given the part's number. The job's paths must be the same on every
      worker, so remote ones on a cluster.
    parts: how many there are.
    options: of the pipeline, as on a command line: --runner=DataflowRunner --project=... and so on. Workers log errors
      only, unless an option says otherwise.
    refusals: a directory, local or remote, that workers leave the messages of their UserErrors in. They do not raise
      them: runners try again what raised, and log it over many lines.

  Raises:
    UserError: the options are not Beam's, or the first part raised one.
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
  """The pipeline's options; UserError for a flag that neither Beam nor a job server, which has its own, can know."""
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


class Clean(beam.PTransform):
  """(key, text) -> (key, text) of the pages that `c4` keeps, without the lines it drops."""

  def __init__(self, c4: cleaning.C4):
    super().__init__()
    self._c4 = c4

  def expand(self, pages):
    return pages | beam.FlatMap(self._clean)

  def _clean(self, page: Document) -> Iterable[Document]:
    text, reason, counts = self._c4.clean(page[1])
    for removed, count in counts.items():
      _counted(removed, count)
    if reason:
      _counted(reason)
    else:
      yield page[0], text


class WithoutDuplicates(beam.PTransform):
  """(key, text) -> (key, text) of all but the first of equal pages, or with `near` of pages that are like the first.

  Near duplicates are compared within each band of their MinHash with the band's first page, and of a chain of likeness
  each link goes: a page is dropped if any of its bands has an earlier page like it.
  """

  def __init__(self, near: bool = False):
    super().__init__()
    self._near = near

  def expand(self, pages):
    if not self._near:
      return (
        pages
        | beam.Map(lambda page: (cleaning.signature(page[1], ("exact",)).exact.tobytes(), page))
        | beam.GroupByKey()
        | beam.Map(lambda group: _first(group[1], "exact duplicate"))
      )
    later = (
      pages
      | beam.FlatMap(_bands)
      | "by band" >> beam.GroupByKey()
      | beam.FlatMap(_like_the_first)
      | beam.Distinct()
      | beam.Map(lambda key: (key, None))
    )
    return {"pages": pages, "later": later} | beam.CoGroupByKey() | beam.FlatMap(_not_later)


class WithoutRepeatedSpans(beam.PTransform):
  """(key, text) -> (key, text) without the three sentences in a row that this or an earlier page has before."""

  def expand(self, pages):
    repeated = (
      pages
      | beam.FlatMap(_spans)
      | "by span" >> beam.GroupByKey()
      | beam.FlatMap(lambda group: sorted(group[1])[1:])
      | "repeats by page" >> beam.GroupByKey()
    )
    return {"pages": pages, "repeated": repeated} | beam.CoGroupByKey() | beam.FlatMap(_cut)


def _counted(reason: str, count: int = 1) -> None:
  beam.metrics.Metrics.counter("cleaning", reason).inc(count)


def _first(pages: Iterable[Document], reason: str) -> Document:
  pages = sorted(pages)
  if len(pages) > 1:
    _counted(reason, len(pages) - 1)
  return pages[0]


def _bands(page: Document) -> Iterable[tuple[int, tuple[str, bytes]]]:
  minhash = cleaning.signature(page[1], ("near",)).minhash
  for band in cleaning.same_bands(minhash).view(np.int64).tolist():  # coders of Beam take no larger ones
    yield band, (page[0], minhash.tobytes())


def _like_the_first(group: tuple[int, Iterable[tuple[str, bytes]]]) -> Iterable[str]:
  (_, first), *others = sorted(group[1])
  for key, other in others:
    if np.mean(np.frombuffer(first, np.uint32) == np.frombuffer(other, np.uint32)) >= cleaning.SIMILAR:
      yield key


def _not_later(group: tuple[str, dict]) -> Iterable[Document]:
  for text in group[1]["pages"]:
    if list(group[1]["later"]):
      _counted("near duplicate")
    else:
      yield group[0], text


def _spans(page: Document) -> Iterable[tuple[bytes, tuple[str, int]]]:
  for place, span in enumerate(cleaning.signature(page[1], ("spans",)).spans):
    yield span.tobytes(), (page[0], place)


def _cut(group: tuple[str, dict]) -> Iterable[Document]:
  places = [place for several in group[1]["repeated"] for place in several]
  for text in group[1]["pages"]:
    repeated = np.zeros(max([0, *(place + 1 for place in places)]), bool)
    repeated[places] = True
    if places:
      _counted("span: repeated", len(places))
    if kept := cleaning.without_spans(text, repeated):
      yield group[0], kept

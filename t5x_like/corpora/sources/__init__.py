"""Sources of records. A source is spelled `format:rest`; each format is a file of this folder.

Texts and tables:
    jsonl:/corpus/*.jsonl.gz               one record per line, a JSON object with the fields
    jsonl:train=a/*.jsonl.gz,validation=b.jsonl.gz  several splits; works for every file format
    json:records.json                      one array per file, of objects or strings (field `text`)
    parquet:corpus/*.parquet               one record per row; fields are the columns
    arrow:corpus/*.arrow                   one record per row; or a directory of save_to_disk
    tsv:reviews.tsv                        one record per line; fields by the header, or from 0
    csv:swag/train.csv                     one record per row; cells may be quoted
    text:books/**/*.txt                    one record per file; field `text`
    text_folders:train=aclImdb/train,test=…  texts in one folder per class; `text`, `label`
    lines:news.en.gz                       one record per line; field `text`
    parallel:corpus/{split}.{field}.gz     line n of `train.en.gz` and of `train.de.gz`
    conll:ner.conll                        one record per sentence; `tokens`, and columns by number
    conllu:en_ewt.conllu                   one record per sentence; `tokens`, `text`, `sent_id`, …

Data sets of other libraries:
    webdataset:shards/{00000..00009}.tar   one record per sample; fields are the suffixes of files
    hf:OWNER/NAME[/config][@split]         a data set of the Hugging Face Hub, or a directory
    tfds:NAME[/config][:version]           any TensorFlow dataset, prepared or buildable
    seqio:module:TASK[@source]             a SeqIO task's records after its preprocessors

Benchmarks:
    squad:train=train-v2.0.json.gz         SQuAD's files; id, title, context, question, answers
    multirc: record: race: wsc: webquestions: stories: entities: sgm:  see each format's file
    official:{…}                           a benchmark's files by their usual names

Images:
    folders:train=imagenet/train,…         images in one folder per class; `image`, `label`
    idx:train=train-images-idx3-ubyte.gz,… MNIST's files of images and labels; `image`, `label`
    voc:VOC2012                            images with boxes, Pascal VOC's layout; `objects`
    coco:train=instances_train2017.json,…  images with boxes, COCO's JSON; `objects`
    boxes:train=boxes.csv@pictures,…       images with boxes, a row of a table for each; `objects`

Sources derived from another source:
    salient:[FINDER@]SOURCE                sentences with a date, number or name masked
    cloze:SOURCE                           a sentence of a text, and the rest of it
    t5:stsb:SOURCE                         T5's texts of a benchmark's records (`t5.py`)
    objects:[SIDE@]voc:VOC2012             each object as a labelled image; `image`, `label`
    held_out:10@folders:photos             moves one in 10 records of `train` to `validation`

Generated sources:
    docstrings                             the embedded corpus, built on first use
    docstring_tasks:name                   tasks from it: package, halves, name, parameter
    digits                                 1,797 tiny images of scikit-learn; `image`, `label`
    digit_scenes                           tiny images with boxes, composed of `digits`
    sums:99                                sums of two numbers up to 99; `a`, `b`, `sum`
    facts:2000                             questions about people; answers in split passages
    builtin                                a tiny corpus with a field for every task

A record is a dictionary of fields, which supervised tasks use. Pretraining takes one field as the
text of a document (`Source.documents`); CoNLL's sentences are then joined back into documents.

A pattern without split names is the split `train`. `{00000..00007}` expands to those numbers; each
file must exist. Files are local or remote (`gs://`, or any scheme that fsspec knows), read in
sorted order, and decompressed by their first bytes (gzip, bzip2, xz, zstd). Text is UTF-8. Lines
over 128 MiB are skipped; other defects raise a `UserError`.

To add a format `x`, add `x.py` here with a class `Source`; for a file format, subclass `FileSource`
and define `read`.
"""

import abc
import dataclasses
import errno
import itertools
import re
import sys
from collections.abc import Iterator
from typing import Any

from t5x_like import slots, trust
from t5x_like.errors import UserError, did_you_mean
from t5x_like.files import file_names
from t5x_like.files.checked_json import json_type_name

Record = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Skip:
  """A placeholder for an unusable record or document."""

  reason: str


class Source(abc.ABC):
  """The records of a corpus by split, always in the same order; opened by `open_source`.

  Attributes:
    name: short name of the corpus: letters, digits, `_`, `-` and `.`.
    splits: names of the splits.
  """

  name: str
  splits: tuple[str, ...]

  @abc.abstractmethod
  def records(
    self, split: str, part: tuple[int, int] | None = None
  ) -> Iterator[tuple[str, Record | Skip]]:
    """Yield (a record's location, for messages; the record) of a split or part.

    Raises:
      UserError: the data are unreadable.
    """

  def documents(
    self, split: str, field: str, part: tuple[int, int] | None = None
  ) -> Iterator[str | Skip]:
    """Yield the texts of a field, a `Skip` for null.

    Raises:
      UserError: the field is missing or not text.
    """
    for where, record in self.records(split, part):
      yield record if isinstance(record, Skip) else field_text(record, field, where)

  def classes(self, field: str) -> tuple[str, ...]:
    """Return the class names of a field, in order.

    Raises:
      UserError: the classes are not known without reading the records.
    """
    raise UserError(
      f"source {self.name}: the classes of {field!r} are not known; choose another source"
    )

  def parts(self, split: str, part_bytes: int) -> list[tuple[int, int]]:
    """Divide the split into separately readable parts of about `part_bytes`, as ranges."""
    return [(0, 1)]

  def part_size(self, split: str, part: tuple[int, int]) -> int:
    """Return the stored size of a part in bytes, for progress display."""
    return 1

  def shared_file(self) -> str | None:
    """Return a file that two splits have; None if there is none."""
    return None

  def matches_listing(self) -> bool:
    """Return whether its files at URLs still have the sizes that they had on opening."""
    return True

  def modification_times(self, split: str) -> list[int | None]:
    """Return when each file of the split was last modified, in nanoseconds; None if unknown."""
    return []

  def facts(self, field: str) -> dict[str, Any]:
    """Return the facts that define the documents of `field`, known without reading them.

    They are JSON without absolute paths.
    """
    form = type(self).__module__.rpartition(".")[2]
    return {"form": form, "splits": {split: self.split_facts(split) for split in self.splits}}

  def part_facts(self, split: str, field: str, part: tuple[int, int]) -> Any:
    """Return the facts that define the documents of `field` in a part, as JSON.

    They are None if the part's files are not known.
    """
    return None

  @abc.abstractmethod
  def split_facts(self, split: str) -> dict[str, Any]:
    """Return the facts that define the records of a split, known without reading them.

    They are JSON without absolute paths.
    """


def formats() -> list[str]:
  """Return the names of all formats."""
  return slots.names(sys.modules[__name__])


def _suggest(source: str, name: str) -> str:
  """Suggest the format of a path without one, by its suffix, or the format nearest to a name."""
  suffixes = []
  if name == source:
    suffixes = source.rpartition("/")[2].split(".")[1:]
  for suffix in reversed(suffixes):
    format = {"txt": "text"}.get(suffix, suffix)
    if format in formats():
      return f" (did you mean '{format}:{source}'?)"
  return did_you_mean(name, formats())


def open_source(
  source: str, *, fields: tuple[str, ...] = (), data_dir: str | None = None
) -> Source:
  """Open a source by its spelling; see the top of this file.

  Args:
    source: `format:rest`, or only a format.
    fields: the fields in use, so that formats can skip the others; empty means all.
    data_dir: directory for prepared TensorFlow datasets; None is TFDS's default.

  Raises:
    UserError: the format, file, dataset or field does not exist, a file is empty, or the source was
      read from a file that may not name it, see `trust`.
  """
  trust.check_source("source", source)
  name, _, spec = source.partition(":")
  if name not in formats():
    raise UserError(
      f"source {source!r}: found format {name!r}, expected one of {', '.join(formats())}"
      f"{_suggest(source, name)}; write it as format:rest, such as jsonl:corpus/*.jsonl.gz"
    )
  source_class = slots.find("source", name, sys.modules[__name__], "Source")
  try:
    opened_source = source_class(spec, fields=fields, data_dir=data_dir)
  except OSError as error:
    if error.errno != errno.ENAMETOOLONG:
      raise
    raise UserError(
      f"source {source[:80]!r}…: found a path too long for a file's name in its {len(source)} "
      "characters; correct it"
    ) from None
  file_names.check_names(
    f"source {source}: its name and splits",
    (opened_source.name, *opened_source.splits),
    "rename its files or splits",
  )
  return opened_source


_FIRST_RECORDS = re.compile(r"(.+)\[:([1-9]\d*)\]")


def parse_split(split: str) -> tuple[str, int | None]:
  """Parse a split into (name, number of records): `validation[:200]` means the first 200.

  The number is None for all records.
  """
  match = _FIRST_RECORDS.fullmatch(split)
  return (match[1], int(match[2])) if match else (split, None)


def first_records(source: Source, split: str) -> Iterator[tuple[str, Record | Skip]]:
  """Iterate over the records of a split, or over the first N of `split[:N]`; read no more."""
  name, max_records = parse_split(split)
  return itertools.islice(source.records(name), max_records)


def check_split(source: Source, split: str) -> None:
  """Raise UserError unless the source has the split."""
  if split in source.splits:
    return
  hint = did_you_mean(split, source.splits)
  if split == "validation":
    hint += "; held_out:10@SOURCE takes it out of train"
  raise UserError(
    f"source {source.name}: found no split {split!r}, expected one of {', '.join(source.splits)}"
    f"{hint}"
  )


def check_fields(fields: tuple[str, ...], names: list[str], where: str) -> None:
  """Raise UserError for a field whose column is missing from `names` or occurs more than once."""
  for field in fields:
    column = top_level_column(field, names)
    if not names.count(column):
      raise _missing_field(column, field, names, where)
  for column in {top_level_column(field, names) for field in fields} or names:
    if names.count(column) > 1:
      raise UserError(
        f"{where}: found {names.count(column)} columns {column!r}, expected one; rename the others"
      )


def top_level_column(field: str, names: list[str]) -> str:
  """Return the top-level column that holds a field: `answers` for `answers.0.text`."""
  return field if field in names else field.partition(".")[0]


def field_value(record: Record, field: str, where: str) -> Any:
  """Return the value at `field`: a name, or a path of names and indices such as `answers.0.text`.

  `*` is a whole list. An index past the end of a list gives None, and so does a path through null.
  A name on a list of records gives the list of their values, so that `answers.text.0` is the same
  as `answers.0.text`.

  Raises:
    UserError: the record lacks the field.
  """
  if field in record:
    return record[field]
  content: Any = record
  for name in field.split("."):
    if isinstance(content, dict) and name in content:
      content = content[name]
    elif isinstance(content, list) and name.isdecimal():
      if int(name) >= len(content):
        return None
      content = content[int(name)]
    elif isinstance(content, list) and name == "*":
      _, star, path = field.partition(".*.")
      if not star:
        return content
      # An element may be a list too, so it is put into a record, under the name "".
      return [field_value({"": element}, f".{path}", where) for element in content]
    elif isinstance(content, list) and all(
      isinstance(element, dict) and name in element for element in content
    ):
      content = [element[name] for element in content]
    elif content is None:
      return None
    else:
      raise _missing_field(name, field, list(record), where)
  return content


def field_text(record: Record, field: str, where: str) -> str | Skip:
  """Return the text of a field, as a document; a `Skip` for null.

  Raises:
    UserError: the field is missing or not text.
  """
  try:
    text = field_value(record, field, where)
  except UserError as error:
    raise UserError(f"{error}; choose the field with --text_field") from None
  if text is None:
    return Skip("null")
  if not isinstance(text, str):
    remedy = "; write it as text, such as by a cast to string" if isinstance(text, bytes) else ""
    raise UserError(
      f"{where}: found {json_type_name(text)} in field {field!r}, expected text{remedy}"
    )
  return text


def _missing_field(name: str, field: str, names: list, where: str) -> UserError:
  """Return the error of a record without part `name` of the path `field`."""
  available = [str(available_name) for available_name in names]
  return UserError(
    f"{where}: found no field {name!r} among {', '.join(available[:12]) or 'none'}, "
    f"expected {field!r}{did_you_mean(name, available)}"
  )

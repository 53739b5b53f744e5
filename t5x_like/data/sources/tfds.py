"""`tfds:NAME[/config][:version]`: a TensorFlow dataset, read if it is prepared in `data_dir`, else built there.

Both record formats are read, in the order of the shards: `array_record` by random access, `tfrecord` through tf.data.
Only the text feature is decoded. Runs of shards are the parts. Building never consults Google's bucket of prepared
datasets.
"""

import re
from collections import Counter
from collections.abc import Iterator

from t5x_like.data.quiet_tensorflow import tfds
from t5x_like.data.sources import check_split, wanted
from t5x_like.data.sources._files import decode
from t5x_like.errors import UserError, did_you_mean, one_line

_RECORDS_AT_ONCE = 256


def open_form(rest: str, *, data_dir: str | None, text_field: str) -> "TfdsSource":
  return TfdsSource(open_builder(rest, data_dir), text_field)


def open_builder(rest: str, data_dir: str | None) -> tfds.core.DatasetBuilder:
  """The builder of NAME[/config][:version], prepared; raises UserError if it is unknown or cannot be."""
  if not rest:
    raise UserError("source 'tfds:': found no dataset name, expected tfds:NAME[/config][:version]")
  try:
    builder = tfds.builder(rest, data_dir=data_dir)
  except tfds.core.DatasetNotFoundError:
    known = tfds.list_builders(with_community_datasets=False)  # the others' names are asked of the network
    raise UserError(
      f"source tfds:{rest}: found no such dataset, neither prepared in {data_dir or tfds.core.constants.DATA_DIR} nor "
      f"registered with TFDS{did_you_mean(re.split('[/:]', rest)[0], known)}; check the name and "
      "the data directory"
    ) from None
  except (ValueError, AssertionError, KeyError, TypeError, RuntimeError) as error:
    raise UserError(f"source tfds:{rest}: cannot be opened ({one_line(error)})") from error
  _prepare(builder)
  return builder


def _prepare(builder: tfds.core.DatasetBuilder) -> None:
  """Builds the dataset in its data directory unless it is prepared there already."""
  if builder.is_prepared():
    return
  config = tfds.download.DownloadConfig(try_download_gcs=False)
  try:
    builder.download_and_prepare(download_config=config)
  except UserError:
    raise
  except Exception as error:  # whatever the dataset's own code and its downloads raise
    raise UserError(
      f"dataset {builder.info.full_name}: cannot be built in {builder.data_dir} "
      f"({type(error).__name__}: {one_line(error)})"
    ) from error


class TfdsSource:
  """Documents of a prepared TensorFlow dataset."""

  def __init__(self, builder: tfds.core.DatasetBuilder, text_field: str):
    info = builder.info
    features = info.features
    if not isinstance(features, tfds.features.FeaturesDict) or text_field not in features:
      names = sorted(features) if isinstance(features, tfds.features.FeaturesDict) else []
      raise UserError(
        f"dataset {info.full_name}: found no feature {text_field!r} among {', '.join(names) or 'none'}, expected the "
        f"documents there{did_you_mean(text_field, names)}; choose the feature with the text field option"
      )
    if features[text_field].shape != () or features[text_field].np_dtype not in (object, str, bytes):
      found = one_line(Exception(features[text_field]))
      raise UserError(f"dataset {info.full_name}: found feature {text_field!r} of {found}, expected Text")
    self._builder, self._text_field = builder, text_field
    self.name = info.name
    self.splits = tuple(info.splits)
    self.skipped = {split: Counter() for split in self.splits}

  def documents(self, split: str) -> Iterator[str]:
    check_split(self, split)
    skipped = self.skipped[split] = Counter()
    count = 0
    for document in wanted(self.read(split), skipped):
      count += 1
      yield document
    if not count:
      raise UserError(f"dataset {self._builder.info.full_name}, split {split}: found 0 documents, expected some")

  def parts(self, split: str, part_bytes: int) -> list[tuple[int, int]]:
    """Runs of shards, as examples [first, past) of the split, of at least `part_bytes` in the shards."""
    check_split(self, split)
    parts, first, past = [], 0, 0
    for examples in self._builder.info.splits[split].shard_lengths:
      past += examples
      if self.part_size(split, (first, past)) >= part_bytes:
        parts.append((first, past))
        first = past
    return [*parts, (first, past)] if past > first else parts

  def part_size(self, split: str, part: tuple[int, int]) -> int:
    whole = self._builder.info.splits[split]  # states bytes by split only
    return int(whole.num_bytes) * (part[1] - part[0]) // max(1, whole.num_examples)

  def read(self, split: str, part: tuple[int, int] | None = None) -> Iterator[str]:
    first, past = part or (0, self._builder.info.splits[split].num_examples)
    where = f"dataset {self._builder.info.full_name}, split {split}"
    return (
      decode(text, f"{where}, example {number}") for number, text in enumerate(self._texts(split, first, past), first)
    )

  def changed(self, split: str) -> list[int | None]:
    return []  # a dataset's version says what is in it

  def fingerprint_facts(self) -> dict:
    info = self._builder.info
    return {
      "form": "tfds",
      "name": info.full_name,
      "text_field": self._text_field,
      "splits": {name: {"examples": s.num_examples, "bytes": int(s.num_bytes)} for name, s in info.splits.items()},
      "metadata": dict(info.metadata or {}),
    }

  def _texts(self, split: str, first: int, past: int) -> Iterator[bytes]:
    info = self._builder.info
    count = 0
    try:
      if info.file_format.file_suffix == "array_record":
        only_text = tfds.features.FeaturesDict({self._text_field: info.features[self._text_field]})
        raw = tfds.decode.DeserializeMethod.RAW_BYTES
        records = self._builder.as_data_source(split, deserialize_method=raw)
        for start in range(first, past, _RECORDS_AT_ONCE):
          for record in records.__getitems__(range(start, min(start + _RECORDS_AT_ONCE, past))):
            text = only_text.deserialize_example_np(record)[self._text_field]
            if text is None:
              raise ValueError(f"example {first + count} has no feature {self._text_field!r}")
            yield text
            count += 1
      else:
        only_text = tfds.decode.PartialDecoding({self._text_field: True})
        in_order = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False, skip_prefetch=True)
        dataset = self._builder.as_dataset(
          split=f"{split}[{first}:{past}]", shuffle_files=False, decoders=only_text, read_config=in_order
        )
        for record in dataset.as_numpy_iterator():
          yield record[self._text_field]
          count += 1
    except Exception as error:  # the two readers raise their own families of errors for damaged and missing files
      raise UserError(
        f"dataset {info.full_name}: cannot be read from {self._builder.data_dir} "
        f"({type(error).__name__}: {one_line(error)}); if files are damaged, delete that directory and build it again"
      ) from error
    if count != past - first:
      raise UserError(
        f"dataset {info.full_name}: found {count} examples of split {split!r}{f' from {first} on' if first else ''} in "
        f"{self._builder.data_dir}, expected {past - first} as its dataset_info.json states; delete that directory and "
        "build it again"
      )

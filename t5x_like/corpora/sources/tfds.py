"""`tfds:NAME[/config][:version]`: a TensorFlow dataset.

It is read from `data_dir`, and built there first if it is not prepared.

Both record formats are read in shard order: `array_record` by random access, `tfrecord` through
tf.data. Only the requested features are decoded; images stay encoded, as bytes. Parts are runs of
shards. Building never consults Google's bucket of prepared datasets.
"""

import functools
import re
from collections.abc import Iterator
from typing import Any

from t5x_like import trust
from t5x_like.corpora.sources import Record, check_split, top_level_column
from t5x_like.corpora.sources import Source as Base
from t5x_like.corpora.sources._files import decode
from t5x_like.errors import UserError, did_you_mean, one_line
from t5x_like.quiet_tensorflow import tfds

_EXAMPLES_AT_ONCE = 256
# The errors that TFDS raises for a damaged or unsuitable dataset.
_OPENING_ERRORS = (ValueError, AssertionError, KeyError, TypeError, RuntimeError)


def open_builder(spec: str, data_dir: str | None) -> tfds.core.DatasetBuilder:
  """Return the prepared builder of NAME[/config][:version].

  Raises:
    UserError: it is unknown or cannot be prepared.
  """
  if not spec:
    raise UserError("source 'tfds:': found no dataset name, expected tfds:NAME[/config][:version]")
  try:
    builder = _builder(spec, data_dir)
  except tfds.core.DatasetNotFoundError:
    # Listing community datasets would use the network.
    registered_names = tfds.list_builders(with_community_datasets=False)
    raise UserError(
      f"source tfds:{spec}: found no such dataset, neither prepared in "
      f"{data_dir or tfds.core.constants.DATA_DIR} nor registered with TFDS"
      f"{did_you_mean(re.split('[/:]', spec)[0], registered_names)}; check the name and the data "
      "directory"
    ) from None
  except _OPENING_ERRORS as error:
    raise UserError(f"source tfds:{spec}: cannot be opened ({one_line(error)})") from error
  _prepare(builder)
  return builder


def _builder(spec: str, data_dir: str | None) -> tfds.core.DatasetBuilder:
  """Return `tfds.builder` for datasets that need no code or whose code is installed.

  Raises:
    UserError: it is a community dataset, which has its own code, and `--trust` is not set.
      `tfds.builder` may raise other errors.
  """
  _gate_features()
  name, _ = tfds.core.naming.parse_builder_name_kwargs(spec)
  if name.namespace and not trust.allows_everything():
    raise UserError(
      f"source tfds:{spec}: names a community dataset, which runs code that it brings; prepare it "
      f"with TFDS and give its name and the data directory, or add {trust.FLAG}"
    )
  return tfds.builder(spec, data_dir=data_dir)


@functools.cache
def _gate_features() -> None:
  """Keep TFDS from importing the modules of features that a prepared dataset's files name."""
  connector = tfds.features.FeatureConnector
  find = connector.cls_from_name

  def find_allowed(cls, name: str) -> type:
    if name not in connector._registered_features and not name.startswith("tensorflow_datasets."):
      if not trust.allows_everything():
        raise ValueError(
          f"a feature has the class {name!r}, which is not one of TFDS; "
          f"{trust.FLAG} would import it"
        )
    return find(name)

  connector.cls_from_name = classmethod(find_allowed)


def is_prepared(spec: str, data_dir: str | None) -> bool:
  """Return whether the dataset can be read without building or downloading anything."""
  try:
    return _builder(spec, data_dir).is_prepared()
  except (tfds.core.DatasetNotFoundError, *_OPENING_ERRORS):
    return False


def _prepare(builder: tfds.core.DatasetBuilder) -> None:
  """Build the dataset in its data directory unless it is already prepared there."""
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


class Source(Base):
  """The records of a prepared dataset, with only the features in `fields`."""

  open_builder = staticmethod(open_builder)

  def __init__(self, spec: str, *, fields: tuple[str, ...] = (), data_dir: str | None = None):
    self._builder = self.open_builder(spec, data_dir)
    info = self._builder.info
    feature_names = []
    if isinstance(info.features, tfds.features.FeaturesDict):
      feature_names = sorted(info.features)
    for field in fields:
      if top_level_column(field, feature_names) not in feature_names:
        raise UserError(
          f"dataset {info.full_name}: found no feature {field!r} among "
          f"{', '.join(feature_names) or 'none'}{did_you_mean(field, feature_names)}"
        )
    used_names = [top_level_column(field, feature_names) for field in fields]
    self._features = dict.fromkeys(used_names or feature_names, True)
    self.name = info.name
    self.splits = tuple(info.splits)

  def classes(self, field: str) -> tuple[str, ...]:
    feature = self._builder.info.features
    for name in field.split("."):
      feature = feature[name] if hasattr(feature, "keys") and name in feature.keys() else None
    if not getattr(feature, "names", None):
      raise UserError(
        f"dataset {self._builder.info.full_name}: found no class names for "
        f"{field!r}, expected a label"
      )
    return tuple(feature.names)

  def parts(self, split: str, part_bytes: int) -> list[tuple[int, int]]:
    """Return runs of shards of at least `part_bytes` each, as ranges [first, end) of records."""
    check_split(self, split)
    parts = []
    first = 0
    end = 0
    for examples in self._builder.info.splits[split].shard_lengths:
      end += examples
      if self.part_size(split, (first, end)) >= part_bytes:
        parts.append((first, end))
        first = end
    return [*parts, (first, end)] if end > first else parts

  def part_size(self, split: str, part: tuple[int, int]) -> int:
    split_info = self._builder.info.splits[split]  # sizes are known per split only
    return int(split_info.num_bytes) * (part[1] - part[0]) // max(1, split_info.num_examples)

  def records(
    self, split: str, part: tuple[int, int] | None = None
  ) -> Iterator[tuple[str, Record]]:
    info = self._builder.info
    first, end = part or (0, info.splits[split].num_examples)
    for number, example in enumerate(self._examples(split, first, end), first):
      where = f"dataset {info.full_name}, split {split}, example {number}"
      record = {}
      for name in self._features:
        record[name] = _to_plain(example[name], info.features[name], where)
      yield where, record

  def facts(self, field: str) -> dict[str, Any]:
    info = self._builder.info
    return {
      "form": "tfds",
      "name": info.full_name,
      "text_field": field,
      "splits": {
        name: {"examples": s.num_examples, "bytes": int(s.num_bytes)}
        for name, s in info.splits.items()
      },
      "metadata": dict(info.metadata or {}),
    }

  def split_facts(self, split: str) -> dict[str, Any]:
    info = self._builder.info
    examples = info.splits[split].num_examples
    size = int(info.splits[split].num_bytes)
    return {
      "form": "tfds",
      "name": info.full_name,
      "split": split,
      "examples": examples,
      "bytes": size,
    }

  def _examples(self, split: str, first: int, end: int) -> Iterator[dict[str, Any]]:
    """Yield examples `first` to `end` - 1; raise UserError if they are damaged or incomplete."""
    info = self._builder.info
    if info.file_format.file_suffix == "array_record":
      examples = self._read_array_record(split, first, end)
    else:
      examples = self._read_with_tf_data(split, first, end)
    count = 0
    try:
      for example in examples:
        yield example
        count += 1
    # The two readers raise different errors for damaged and missing files.
    except Exception as error:
      raise UserError(
        f"dataset {info.full_name}: cannot be read from {self._builder.data_dir} "
        f"({type(error).__name__}: {one_line(error)}); if files are damaged, delete that "
        "directory and build it again"
      ) from error
    if count != end - first:
      start = f" from {first} on" if first else ""
      raise UserError(
        f"dataset {info.full_name}: found {count} examples of split {split!r}{start} in "
        f"{self._builder.data_dir}, expected {end - first} as its dataset_info.json states; "
        "delete that directory and build it again"
      )

  def _read_array_record(self, split: str, first: int, end: int) -> Iterator[dict[str, Any]]:
    features = self._builder.info.features
    used_features = {}
    for name in self._features:
      is_image = _is_image(features[name])
      used_features[name] = tfds.features.Text() if is_image else features[name]
    decoder = tfds.features.FeaturesDict(used_features)
    raw = tfds.decode.DeserializeMethod.RAW_BYTES
    data_source = self._builder.as_data_source(split, deserialize_method=raw)
    for start in range(first, end, _EXAMPLES_AT_ONCE):
      numbers = range(start, min(start + _EXAMPLES_AT_ONCE, end))
      for number, content in zip(numbers, data_source.__getitems__(numbers)):
        example = decoder.deserialize_example_np(content)
        for name, value in example.items():
          if value is None:
            raise ValueError(f"example {number} has no feature {name!r}")
        yield example

  def _read_with_tf_data(self, split: str, first: int, end: int) -> Iterator[dict[str, Any]]:
    features = self._builder.info.features
    images = [name for name in self._features if _is_image(features[name])]
    decoders = {name: tfds.decode.SkipDecoding() for name in images}
    dataset = self._builder.as_dataset(
      split=f"{split}[{first}:{end}]",
      shuffle_files=False,
      decoders=tfds.decode.PartialDecoding(self._features, decoders=decoders),
      read_config=tfds.ReadConfig(
        interleave_cycle_length=1, try_autocache=False, skip_prefetch=True
      ),
    )
    yield from dataset.as_numpy_iterator()


def _to_plain(tfds_value: Any, feature: Any, where: str) -> Any:
  """Convert a TFDS value to plain Python types: bytes to text, class labels to names."""
  if isinstance(tfds_value, dict):
    plain = {}
    for name, part in tfds_value.items():
      part_feature = feature[name] if hasattr(feature, "keys") else None
      plain[name] = _to_plain(part, part_feature, where)
    return plain
  if isinstance(tfds_value, bytes):
    return tfds_value if _is_image(feature) else decode(tfds_value, where)
  if hasattr(tfds_value, "tolist"):
    tfds_value = tfds_value.tolist()
  if isinstance(tfds_value, list):
    element_feature = getattr(feature, "feature", feature)
    return [_to_plain(part, element_feature, where) for part in tfds_value]
  if hasattr(feature, "int2str") and feature.names and int(tfds_value) >= 0:
    return feature.int2str(int(tfds_value))
  return tfds_value


def _is_image(feature: Any) -> bool:
  return isinstance(feature, tfds.features.Image)

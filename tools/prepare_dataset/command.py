"""Writes the raw files of benchmarks as TensorFlow datasets, so that recipes read them through their TFDS names.

Examples:
  python -m tools.prepare_dataset glue/cola glue/sst2 glue/rte --from_files=glue_data --data_dir=data/tfds
  python -m tools.prepare_dataset squad/v1.1 --from_files=train=train-v1.1.json,validation=dev-v1.1.json
  python -m tools.prepare_dataset glue/qqp '--from_files=train=some.tsv[:90%],validation=some.tsv[90%:]'

The dataset has TFDS's own name, version, features and labels (-1 where a test set has none), so that
`tfds:glue/sst2` in a recipe, with its `data_dir`, reads it without a download. Files may be compressed. A directory is
searched for the usual names, also in the folder of its task; splits that are not there are left out, and said. Datasets
that TFDS lacks (wnut_17, conll_2003, scitldr, multi30k/en-de) have the features of the Hugging Face hub.
"""

import contextlib
import io
import logging
import sys
from collections.abc import Iterator
from typing import Any

from etils import epath

from t5x_like import command_line
from t5x_like.errors import UserError, did_you_mean, door, one_line
from tools.prepare_dataset import raw as raws
from tools.prepare_dataset.tables import OWN_CONFIGS, READERS


@door
def main(argv: list[str] | None = None) -> None:
  parser = command_line.Parser(
    f"{__doc__}\nNAME begins with one of: {', '.join(READERS)}", opens_runs=False, prog="tools.prepare_dataset"
  )
  parser.add_argument("names", nargs="+", metavar="NAME", help="a TFDS name, with its config: glue/sst2")
  parser.add_argument("--from_files", required=True, metavar="DIR", help="a directory, or FILE by split")
  parser.add_argument("--data_dir", default="data/tfds", metavar="DIR", help="of TFDS (default: %(default)s)")
  args = parser.parse_args(sys.argv[1:] if argv is None else argv)
  for name in args.names:
    prepare(name, args.from_files, args.data_dir, skip=len(args.names) > 1)


def prepare(name: str, from_files: str, data_dir: str, skip: bool = False) -> None:
  """See the top of this file. With `skip`, a dataset that exists is left as it is, and said.

  Raises:
    UserError: an unknown name, missing files, a record that is none, or a dataset that exists.
  """
  dataset, _, config = name.partition("/")
  if dataset not in READERS:
    raise UserError(f"{name}: unknown dataset{did_you_mean(dataset, READERS)}; expected one of {', '.join(READERS)}")
  from t5x_like.data.quiet_tensorflow import tfds

  if dataset in OWN_CONFIGS:
    if bool(config) != (OWN_CONFIGS[dataset] is not None) or config.count("-") != (dataset == "multi30k"):
      usual = OWN_CONFIGS[dataset]
      raise UserError(f"{name}: expected {f'{dataset}/{usual}' if usual else dataset}")
    raw = READERS[dataset](config)
  else:
    known = tfds.builder_cls(dataset)
    configs = [one.name for one in known.BUILDER_CONFIGS]
    if configs and config not in configs:
      raise UserError(f"{name}: expected a config, one of {', '.join(configs)}{did_you_mean(config, configs)}")
    raw = READERS[dataset](known.builder_configs.get(config))
  parts = raws.found(raw, from_files)
  logging.getLogger("absl").setLevel(logging.ERROR)
  builder = _builder(tfds, dataset, config, raw, parts, data_dir)
  if builder.is_prepared():
    message = f"{builder.data_dir}: exists; delete that directory to make it again, or choose another --data_dir"
    if not skip:
      raise UserError(message)
    print(f"{name}: left as it is: {message}")
    return
  download = tfds.download.DownloadConfig(try_download_gcs=False)
  tfds.disable_progress_bar()
  try:
    with contextlib.redirect_stdout(io.StringIO()):  # TFDS announces a download
      builder.download_and_prepare(download_config=download)
  except OSError as error:
    raise UserError(f"{builder.data_dir}: cannot be written ({one_line(error)})") from error
  sizes = ", ".join(f"{split} {info.num_examples:,}" for split, info in builder.info.splits.items())
  missing = [split for split in raw.files if split not in parts]
  print(f"{builder.info.full_name}: {sizes} examples in {builder.data_dir}")
  if missing:
    print(f"  no files of the splits {', '.join(missing)} in {from_files}")


def _builder(tfds, dataset: str, config: str, raw: raws.Raw, parts: dict[str, raws.Part], data_dir: str):
  """TFDS's builder of the dataset, or one with the features of `raw`, that takes its examples from our readers."""

  def split_generators(self, manager) -> dict[str, Iterator]:
    return {split: _numbered(raws.examples(raw, split, part), split, part) for split, part in parts.items()}

  members: dict[str, Any] = {
    "name": dataset,
    "_split_generators": split_generators,
    "_generate_examples": lambda self: iter(()),
    "code_path": epath.Path(__file__),
    "__module__": __name__,
  }
  if raw.features is None:
    base = tfds.builder_cls(dataset)
    members["pkg_dir_path"] = base.pkg_dir_path
  else:
    base = tfds.core.GeneratorBasedBuilder
    features, about = tfds.features.FeaturesDict(raw.features(tfds)), raw.about
    members["VERSION"] = tfds.core.Version("1.0.0")
    members["_info"] = lambda self: tfds.core.DatasetInfo(builder=self, description=about, features=features)
    if config:
      members["BUILDER_CONFIGS"] = [tfds.core.BuilderConfig(name=config, description=about)]
  with tfds.core.registered.skip_registration():
    made = type(base)(base.__name__, (base,), members)
  return made(config=config or None, data_dir=data_dir)


def _numbered(examples: Iterator, split: str, part: raws.Part) -> Iterator:
  count = -1
  for count, example in enumerate(examples):  # noqa: B007
    yield f"{count:09d}", example
  if count < 0:
    raise UserError(f"{', '.join(part.paths)}: found no examples of the split {split}")

"""The TFDS builder `docstrings`: a corpus of English prose that is already on the machine.

Documents are the docstrings of the Python standard library and of this project's dependencies, as
installed. A hash of a module's name assigns the whole module to train or validation, and duplicate
texts are kept once, so no validation document is seen in training. The same installed files give
the same records in the same order.
"""

import contextlib
import dataclasses
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator

from absl import logging
from etils import epath

from t5x_like.corpora.sources._docstrings import extract
from t5x_like.errors import UserError, one_line
from t5x_like.quiet_tensorflow import tfds

DEPENDENCIES = (
  "numpy",
  "scipy",
  "jax",
  "jaxlib",
  "flax",
  "optax",
  "orbax",
  "ml_collections",
  "tensorflow",
  "keras",
  "tensorflow_datasets",
  "etils",
  "absl",
  "matplotlib",
  "tensorboardX",
  "jinja2",
  "tqdm",
  "h5py",
  "PIL",
  "treescope",
  "rich",
  "pyarrow",
  "einops",
  "opt_einsum",
  "optree",
  "fontTools",
  "psutil",
  "humanize",
)
VALIDATION_SHARE = 0.035
_TINY_TRAIN = ("argparse", "difflib", "logging", "socket", "subprocess", "typing")
_TINY_VALIDATION = ("statistics", "tarfile", "textwrap")

_DESCRIPTION = (
  "\nDocstrings of the Python standard library and of installed Python packages, as English "
  "technical prose: one document per\ndocstring, without indentation, at least 80 characters and "
  "mostly letters; exact duplicates removed; split by module.\n"
)


@dataclasses.dataclass
class DocstringsConfig(tfds.core.BuilderConfig):
  """The packages to read.

  Attributes:
    packages: top-level names, or `stdlib`; packages that are not installed are ignored.
    validation: the packages of the split validation; if empty, a share of all modules.
  """

  packages: tuple[str, ...] = ()
  validation: tuple[str, ...] = ()


class Docstrings(tfds.core.GeneratorBasedBuilder):
  """The docstrings of installed packages.

  The features `text`, `package`, `module` and `qualname` are strings.

  Args:
    config: a name among BUILDER_CONFIGS (`installed` by default) or another `DocstringsConfig`.
    data_dir: the directory for prepared datasets; None is TFDS's default.
    file_format: the record format to write.
    progress: `(files read, total files)`, a function to call while the packages are read.

  Raises (when prepared):
    UserError: no package is installed, or a split would be empty.
  """

  VERSION = tfds.core.Version("1.0.0")
  RELEASE_NOTES = {"1.0.0": "First version."}
  BUILDER_CONFIGS = [
    DocstringsConfig(
      name="installed",
      description="The standard library and this project's dependencies.",
      packages=(extract.STANDARD_LIBRARY, *DEPENDENCIES),
    ),
    DocstringsConfig(
      name="tiny",
      description="Nine modules of the standard library.",
      packages=(*_TINY_TRAIN, *_TINY_VALIDATION),
      validation=_TINY_VALIDATION,
    ),
  ]
  # TFDS 4.9.10 finds this path only with importlib_resources, which is not among its dependencies.
  code_path = epath.Path(__file__)

  def __init__(
    self,
    *,
    file_format: str = "array_record",
    progress: Callable[[int, int], None] | None = None,
    **arguments,
  ):
    self._progress = progress or (lambda done, total: None)
    super().__init__(file_format=file_format, **arguments)

  def _info(self) -> tfds.core.DatasetInfo:
    features = {name: tfds.features.Text() for name in extract.Docstring._fields}
    return tfds.core.DatasetInfo(
      builder=self,
      description=_DESCRIPTION,
      features=tfds.features.FeaturesDict(features),
      metadata=tfds.core.MetadataDict(),
    )

  def _split_generators(self, dl_manager: tfds.download.DownloadManager):
    del dl_manager  # nothing is downloaded
    documents = {"train": [], "validation": []}
    digests = set()
    characters = Counter()
    content = hashlib.sha256()
    for done, total, docstrings in extract.scan(self.builder_config.packages):
      for docstring in docstrings:
        digest = hashlib.sha256(docstring.text.encode()).digest()
        if digest in digests:
          continue
        digests.add(digest)
        characters[docstring.package] += len(docstring.text)
        content.update("\0".join(docstring).encode() + b"\n")
        documents[self._split_of(docstring)].append(docstring)
      self._progress(done, total)
    self.info.metadata["sha256"] = content.hexdigest()
    self.info.metadata["characters"] = dict(characters)
    return {split: self._generate_examples(docstrings) for split, docstrings in documents.items()}

  def _split_of(self, docstring: extract.Docstring) -> str:
    """Return the split of a docstring, by its package or its module; see `DocstringsConfig`."""
    validation_packages = self.builder_config.validation
    if validation_packages:
      return "validation" if docstring.package in validation_packages else "train"
    return split_of(docstring.module)

  def _generate_examples(self, docstrings: list[extract.Docstring]):
    for number, docstring in enumerate(docstrings):
      yield number, docstring._asdict()


def prepare(builder: Docstrings) -> bool:
  """Build the corpus silently in its data directory; return False if it already exists.

  Raises:
    UserError: the directory is not writable, or no package is installed.
  """
  with _quietly():
    if builder.is_prepared():
      return False
    try:
      builder.download_and_prepare(
        download_config=tfds.download.DownloadConfig(try_download_gcs=False)
      )
    except (OSError, RuntimeError) as error:  # RuntimeError if the disk is full
      raise UserError(
        f"{builder.data_dir}: cannot build the corpus there ({one_line(error)})"
      ) from error
  return True


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
  """Silence TFDS's notices, both printed and logged."""
  verbosity = logging.get_verbosity()
  logging.set_verbosity(logging.ERROR)
  try:
    with open(os.devnull, "w") as null_device, contextlib.redirect_stdout(null_device):
      tfds.display_progress_bar(False)
      yield
  finally:
    tfds.display_progress_bar(True)
    logging.set_verbosity(verbosity)


def split_of(module: str) -> str:
  """Return the split of a module's docstrings, the same on every machine."""
  draw = int.from_bytes(hashlib.sha256(module.encode()).digest()[:8], "big") / 2**64
  return "validation" if draw < VALIDATION_SHARE else "train"

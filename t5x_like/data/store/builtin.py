"""The built-in corpus: a few hundred docstrings of the standard library, as bytes.

It needs no files, no vocabulary and about a second, so that any recipe can be run (`:debug`) before there is data. It
is too small to learn from: `make quickstart` builds a real one.
"""

import contextlib
import importlib.util
import os
import pathlib
import platform
import shutil
import tempfile

import numpy as np

from t5x_like.data.docstrings import extract
from t5x_like.data.store.manifest import FORMAT
from t5x_like.data.store.writer import TokenStoreWriter
from t5x_like.data.vocabularies import ByteVocabulary

NAME = "builtin"
_MODULES = {
  "train": ("argparse", "asyncio.streams", "difflib", "email.message", "logging", "socket", "subprocess", "typing"),
  "validation": ("statistics", "tarfile", "textwrap"),
}


def prepared() -> str:
  """The directory of the corpus's token stores, made in the temporary folder when this user has none yet."""
  owner = f"{os.getuid()}_" if hasattr(os, "getuid") else ""
  root = (
    pathlib.Path(tempfile.gettempdir())
    / f"t5x_like_{owner}builtin_{FORMAT.rpartition('.')[2]}_{platform.python_version()}"
  )
  if not root.exists():
    fresh = pathlib.Path(tempfile.mkdtemp(prefix=f"{root.name}.", dir=root.parent))
    for split, modules in _MODULES.items():
      _write(fresh / split, split, modules)
    with contextlib.suppress(OSError):  # another process was first: its corpus is the same
      fresh.rename(root)
    shutil.rmtree(fresh, ignore_errors=True)
  return str(root)


def _write(path: pathlib.Path, split: str, modules: tuple[str, ...]) -> None:
  vocabulary = ByteVocabulary()
  with TokenStoreWriter(path, name=NAME, split=split, vocabulary=vocabulary, append_eos=False, source={}) as writer:
    for module in modules:
      source = pathlib.Path(importlib.util.find_spec(module).origin).read_bytes()
      documents = vocabulary.encode_batch([text for text, _ in extract.parse(source)])
      writer.add(np.concatenate(documents), np.array([len(d) for d in documents]))

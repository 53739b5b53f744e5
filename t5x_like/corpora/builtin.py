"""Build the built-in store: the source `docstrings:tiny`, as bytes.

It needs no files or vocabulary and takes a few seconds to build, so any recipe can be tried
(`:debug`) before data is prepared. It is too small to learn from; `make quickstart` builds a real
corpus. There are two versions, with and without EOS after every document. The task chooses.
"""

import contextlib
import os
import pathlib
import platform
import shutil
import tempfile

import numpy as np

from t5x_like.corpora import preparing
from t5x_like.corpora.documents import Documents
from t5x_like.corpora.engines import processes
from t5x_like.corpora.held_out import SplitPart
from t5x_like.corpora.job import Job
from t5x_like.corpora.tokens import TokenStoreKind
from t5x_like.store.manifest import FORMAT
from t5x_like.store.tokens import TokenStore

NAME = "builtin"
_VERSION = 3  # the version of the contents


def prepare_split(split: str, append_eos: bool) -> str:
  """Return the path of a split's token store; see `prepare`."""
  return f"{prepare(append_eos)}/{split}"


def prepare(append_eos: bool = False) -> str:
  """Return the directory of the token stores; build them on this user's first call.

  Args:
    append_eos: end documents with EOS.
  """
  owner = f"{os.getuid()}_" if hasattr(os, "getuid") else ""
  version = f"{FORMAT.rpartition('.')[2]}.{_VERSION}"
  if append_eos:
    version += "_eos"
  name = f"t5x_like_{owner}builtin_{version}_{platform.python_version()}"
  root = pathlib.Path(tempfile.gettempdir()) / name
  if not root.exists():
    work = pathlib.Path(tempfile.mkdtemp(prefix=f"{root.name}.", dir=root.parent))
    documents = Documents("docstrings:tiny", data_dir=str(work / "tfds"))
    for split in documents.source.splits:
      kind = TokenStoreKind.of(documents, SplitPart(split), "bytes", append_eos=append_eos)
      preparing.prepare([Job(kind, f"{work}/{split}", NAME, split, {})], processes.Engine(1))
    shutil.rmtree(work / "tfds")
    with contextlib.suppress(OSError):  # another process has already built the same stores
      work.rename(root)
    shutil.rmtree(work, ignore_errors=True)
  return str(root)


def texts(split: str) -> list[str]:
  """Return the documents of a split."""
  store = TokenStore.open(prepare_split(split, append_eos=False), verify="size")
  (tokens,) = store.windows([0], store.num_tokens)
  return [store.vocabulary.decode(ids) for ids in np.split(tokens, store.document_ends()[:-1])]

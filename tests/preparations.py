"""Token stores that tools.prepare_data makes for tests, and what is in them."""

import contextlib
import pathlib

import numpy as np
import pytest

from t5x_like.corpora import building
from t5x_like.errors import UserError
from t5x_like.store.tokens import TokenStore
from tools import prepare_data


def prepare(source: str, output, *flags: str, workers: int = 1) -> int:
  """Run tools.prepare_data with the bytes vocabulary, or another of `flags`; return its status."""
  defaults = ("--vocabulary=bytes", f"--workers={workers}")
  return prepare_data.main([f"--source={source}", f"--output={output}", *defaults, *flags])


def texts_of(store: TokenStore) -> list[str]:
  """Return the documents of a store as text."""
  stream = store.windows([0], store.num_tokens)[0]
  documents = np.split(stream, store.document_ends()[:-1])
  return [store.vocabulary.decode(ids) for ids in documents]


def files_of(root: pathlib.Path) -> dict[str, bytes]:
  """Return the content of every file below a directory, by its path from there."""
  files = (file for file in root.rglob("*") if file.is_file())
  return {str(file.relative_to(root)): file.read_bytes() for file in files}


@contextlib.contextmanager
def stopped_before_publishing():
  """Let every preparation fail when its shards are written."""

  def stop(*_):
    raise UserError("stopped here")

  with pytest.MonkeyPatch.context() as patched:
    patched.setattr(building, "publish", stop)
    yield

"""Prepare token stores by tools.prepare_data, and read their content."""

import contextlib
import pathlib

import numpy as np
import pytest

from t5x_like.corpora import building
from t5x_like.errors import UserError
from t5x_like.store.tokens import TokenStore
from tools import prepare_data


def prepare(source: str, output, *flags: str, workers: int = 1) -> int:
  """Run tools.prepare_data and return its exit code.

  Args:
    flags: further flags; `--vocabulary` replaces the default, bytes.
  """
  defaults = ("--vocabulary=bytes", f"--workers={workers}")
  return prepare_data.main([f"--source={source}", f"--output={output}", *defaults, *flags])


def decode_documents(store: TokenStore) -> list[str]:
  """Return the documents of a store as texts."""
  stream = store.windows([0], store.num_tokens)[0]
  documents = np.split(stream, store.document_ends()[:-1])
  return [store.vocabulary.decode(ids) for ids in documents]


def read_files(root: pathlib.Path) -> dict[str, bytes]:
  """Return the content of every file below a directory, by relative path."""
  files = (file for file in root.rglob("*") if file.is_file())
  return {str(file.relative_to(root)): file.read_bytes() for file in files}


@contextlib.contextmanager
def fail_before_publishing():
  """Make every preparation fail after it has written its shards."""

  def stop(*_):
    raise UserError("stopped here")

  with pytest.MonkeyPatch.context() as patched:
    patched.setattr(building, "publish", stop)
    yield

"""A token store of several shards, shared by the tests of its files, writers and readers."""

import shutil

import pytest

from stores import many_documents, write


@pytest.fixture(scope="session")
def intact_tokens(tmp_path_factory):
  """Return (path of a token store of 7 shards, its documents), which tests must not change."""
  documents = many_documents()
  path = tmp_path_factory.mktemp("intact") / "train"
  assert write(path, documents, shard_tokens=8_000).manifest.num_shards >= 6
  return path, documents


@pytest.fixture
def token_store(intact_tokens, tmp_path):
  """Return the path of a copy of the token store, which tests may damage."""
  return shutil.copytree(intact_tokens[0], tmp_path / "train")

"""A store of several shards that tests of its files, writers and readers share."""

import shutil

import pytest

from stores import many_documents, write


@pytest.fixture(scope="session")
def intact_tokens(tmp_path_factory):
  """Return (the path of a token store of 7 shards, the documents in it); do not change them."""
  documents = many_documents()
  path = tmp_path_factory.mktemp("intact") / "train"
  assert write(path, documents, shard_tokens=8_000).manifest.num_shards >= 6
  return path, documents


@pytest.fixture
def token_store(intact_tokens, tmp_path):
  """Return the path of a copy of the token store, to be damaged."""
  return shutil.copytree(intact_tokens[0], tmp_path / "train")

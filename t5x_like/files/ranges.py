"""Open the shards of a store, at a path or at a URL, to read ranges of them."""

from t5x_like.files.local import LocalPath
from t5x_like.files.local_ranges import LocalShardFiles
from t5x_like.files.paths import as_path
from t5x_like.files.shard_files import ShardFiles


def open_shard_files(path: str, remedy: str = "prepare it again") -> ShardFiles:
  """Open the files of a directory at a path or URL.

  Args:
    remedy: how to replace a damaged file, for messages.

  Raises:
    UserError: the URL cannot be opened.
  """
  root = as_path(path)
  if isinstance(root, LocalPath):
    return LocalShardFiles(root, remedy)
  from t5x_like.files.remote_ranges import RemoteShardFiles

  return RemoteShardFiles(root, remedy)

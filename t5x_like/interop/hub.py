"""Models of the Hugging Face Hub: a name such as `gpt2` or `google/t5-v1_1-small` becomes a local directory."""

import functools
import re

from t5x_like.errors import UserError, one_line
from t5x_like.files.places import is_remote, place

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_FILES = ("*.json", "*.safetensors", "*.model", "*.spm", "*.txt", "*.jinja")  # weights and tokenizers, never code


def named(path: str) -> bool:
  """Return whether a path is a name of the Hub: it has the form of one, and nothing here is called so."""
  return not is_remote(path) and _NAME.fullmatch(path) is not None and not place(path).exists()


@functools.cache
def directory(path: str) -> str:
  """Return the directory of a model: the path itself or, of a name, the Hub's files in its cache on this machine.

  Raises:
    UserError: huggingface_hub is not installed, or cannot fetch a model of this name.
  """
  if not named(path):
    return path
  found = f"{path}: found no such directory here, so it holds no run"
  try:
    from huggingface_hub import snapshot_download
  except ImportError:
    raise UserError(f"{found}; for a model of the Hub of this name, pip install 't5x-like[hf]'") from None
  try:
    return snapshot_download(path, allow_patterns=list(_FILES))
  except Exception as error:  # of the Hub, its HTTP client, the disk
    raise UserError(
      f"{found}, and the Hub gave no model of this name ({type(error).__name__}: {one_line(error)[:160]}); check the"
      f" path or, where there is a network, run: hf download {path} --local-dir DIR, and give DIR"
    ) from error

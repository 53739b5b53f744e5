"""Models of the Hugging Face Hub: a name such as `gpt2` or `google/t5-v1_1-small` becomes a local
directory."""

import functools
import re
import textwrap

from t5x_like.errors import UserError, did_you_mean, one_line
from t5x_like.files.paths import as_path, is_remote

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
# weights and tokenizers, never code
_FILES = ("*.json", "*.safetensors", "*.model", "*.spm", "*.txt", "*.jinja")
# Classes of huggingface_hub's errors, which are known only where it is installed.
_REASONS = {
  "LocalEntryNotFoundError": "cannot be reached",
  "OfflineModeIsEnabled": "cannot be reached: HF_HUB_OFFLINE is set",
  "RepositoryNotFoundError": "has no public model of this name",
  "GatedRepoError": "gives this model only after hf auth login",
}


def is_hub_name(path: str) -> bool:
  """Return whether a path is a name of the Hub and no local path.

  It has the form `name` or `owner/name`, and neither that path nor a directory `owner` exists here.
  """
  return _has_form(path) and not as_path(path.partition("/")[0]).exists()


def _has_form(path: str) -> bool:
  return not is_remote(path) and _NAME.fullmatch(path) is not None


@functools.cache
def local_directory(path: str, flag: str) -> str:
  """Return the directory of a model: the path itself or, of a name, the Hub's files in its cache on
  this machine.

  Args:
    flag: the flag or key that gave the path, for messages.
  Raises:
    UserError: huggingface_hub is not installed, or cannot fetch a model of this name.
  """
  if not is_hub_name(path):
    return path
  found = f"{flag}: {path} is neither a directory here{_near(path)}"
  fetch = f"hf download {path} --local-dir DIR"
  try:
    from huggingface_hub import snapshot_download
  except ImportError:
    raise UserError(
      f"{found} nor, without huggingface_hub, a name of the Hub; correct the path, or pip install "
      "'t5x-like[hf]'"
    ) from None
  try:
    return snapshot_download(path, allow_patterns=list(_FILES))
  except Exception as error:  # of the Hub, its HTTP client, the disk
    told = textwrap.shorten(one_line(error), 120, placeholder=" …")
    reason = _REASONS.get(type(error).__name__) or f"failed ({type(error).__name__}: {told})"
    raise UserError(
      f"{found} nor a model that the Hub gave: it {reason}; correct the path or, for a model of "
      f"the Hub, run {fetch} where there is a network, and give DIR"
    ) from error


def missing_model_error(path: str, flag: str) -> UserError:
  """Return the error for a path that holds no model.

  Args:
    flag: as in `directory`.
  """
  if not is_remote(path) and not as_path(path).exists():
    asked = (
      f"; for the Hub's model of this name run hf download {path} --local-dir DIR"
      if _has_form(path)
      else ""
    )
    return UserError(f"{flag}: found no directory {path}{_near(path)}; correct the path{asked}")
  return UserError(
    f"{flag}: {path} holds no run and no Hugging Face model: config.json is not there; give the "
    "workdir of a run that has begun, or a directory with config.json and model.safetensors"
  )


def _near(path: str) -> str:
  """Return a hint at the neighbour with the most similar name."""
  wanted = as_path(path)
  names = (
    [f"{wanted.parent}/{one.name}" for one in wanted.parent.iterdir()]
    if wanted.parent.is_dir()
    else []
  )
  return did_you_mean(f"{wanted.parent}/{wanted.name}", names)

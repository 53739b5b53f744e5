"""Download models of the Hugging Face Hub, named `gpt2` or `google/t5-v1_1-small`, for example."""

import functools
import re
import textwrap

from t5x_like.errors import UserError, did_you_mean, one_line
from t5x_like.files.gguf_file import SUFFIX, is_gguf
from t5x_like.files.paths import as_path, is_remote

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
# weights and tokenizers, never code
_FILES = ("*.json", "*.safetensors", "*.model", "*.spm", "*.txt", "*.jinja")
# Keys are names of huggingface_hub's error classes, because the package may not be installed.
_REASONS = {
  "LocalEntryNotFoundError": "cannot be reached",
  "OfflineModeIsEnabled": "cannot be reached: HF_HUB_OFFLINE is set",
  "RepositoryNotFoundError": "has no public model of this name",
  "GatedRepoError": "requires hf auth login for this model",
}


def is_hub_name(path: str) -> bool:
  """Return whether a path is a name of the Hub and no local path.

  Such a path has the form `name` or `owner/name`, and its first part does not exist here. The name
  of a GGUF file is none.
  """
  return not is_gguf(path) and _is_valid_name(path) and not as_path(path.partition("/")[0]).exists()


def results_directory(path: str) -> str:
  """Return the directory for the results of a model.

  It is the model's directory itself or, of a GGUF file, one of the same name without the ending.
  """
  return path[: -len(SUFFIX)] if is_gguf(path) else path


def _is_valid_name(path: str) -> bool:
  return not is_remote(path) and _NAME.fullmatch(path) is not None


@functools.cache
def local_directory(path: str, flag: str) -> str:
  """Return the directory of a model.

  It is the path itself or, for a name of the Hub, the Hub's cache on this machine.

  Args:
    path: a path, or the name of a model of the Hub.
    flag: the flag or key that gave the path, for messages.
  Raises:
    UserError: huggingface_hub is not installed, or cannot fetch a model of this name.
  """
  if not is_hub_name(path):
    return path
  problem = f"{flag}: {path} is neither a directory here{_suggest_neighbour(path)}"
  command = f"hf download {path} --local-dir DIR"
  try:
    from huggingface_hub import snapshot_download
  except ImportError:
    raise UserError(
      f"{problem} nor, without huggingface_hub, a name of the Hub; correct the path, or pip "
      "install 't5x-like[hf]'"
    ) from None
  try:
    return snapshot_download(path, allow_patterns=list(_FILES))
  except Exception as error:  # of the Hub, its HTTP client, the disk
    message = textwrap.shorten(one_line(error), 120, placeholder=" …")
    reason = _REASONS.get(type(error).__name__)
    if reason is None:
      reason = f"failed ({type(error).__name__}: {message})"
    raise UserError(
      f"{problem} nor a model of the Hub: the Hub {reason}; correct the path or, for a model of "
      f"the Hub, run {command} where there is a network, and give DIR"
    ) from error


def missing_model_error(path: str, flag: str) -> UserError:
  """Return the error for a path that holds no model.

  Args:
    flag: as in `local_directory`.
  """
  if not is_remote(path) and not as_path(path).exists():
    advice = "correct the path"
    if is_gguf(path):
      return UserError(f"{flag}: found no file {path}{_suggest_neighbour(path)}; {advice}")
    if _is_valid_name(path):
      advice += f"; for the Hub's model of this name run hf download {path} --local-dir DIR"
    return UserError(f"{flag}: found no directory {path}{_suggest_neighbour(path)}; {advice}")
  return UserError(
    f"{flag}: {path} holds no run and no Hugging Face model: config.json is not there; give the "
    "workdir of a run that has begun, a directory with config.json and model.safetensors, or a "
    "GGUF file"
  )


def _suggest_neighbour(path: str) -> str:
  """Return a question that names the most similar path in the same directory, or ""."""
  missing = as_path(path)
  names = []
  if missing.parent.is_dir():
    names = [f"{missing.parent}/{file.name}" for file in missing.parent.iterdir()]
  return did_you_mean(f"{missing.parent}/{missing.name}", names)

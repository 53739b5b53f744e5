"""Write, read and check the manifest of a checkpoint step, and classify errors of reading it."""

import errno
import json
import os
from collections.abc import Callable
from typing import Any, NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils

from t5x_like.errors import (
  DamageError,
  TransientError,
  UserError,
  did_you_mean,
  is_out_of_memory,
  one_line,
  retry,
)
from t5x_like.files import file_names, local
from t5x_like.files.checked_json import digest
from t5x_like.files.store_errors import error_chain

_DISK_ERRORS = (
  errno.ENOSPC,
  errno.EDQUOT,
  errno.EFBIG,
  errno.EROFS,
  errno.EACCES,
  errno.EPERM,
  errno.ENOTDIR,
)
_REFUSALS = (errno.EACCES, errno.EPERM)
_VERDICTS = ("read", "damaged", "transient", "refused", "memory", "failed")  # from best to worst
# Raised by the readers that orbax calls if a file is damaged or missing. Other errors do not mean
# that the file is damaged.
_DAMAGE = (DamageError, ValueError, KeyError, TypeError, EOFError, FileNotFoundError)
FORMAT = "t5x_like.checkpoint.v2"


class DamagedStep(Exception):
  """A step that is corrupt; the message is the reason."""


def flatten(tree: dict[str, Any]) -> dict[str, Any]:
  """Name every leaf by its path (`params/encoder/kernel`), in the order of `jax.tree.leaves`.

  Args:
    tree: nested dicts with string keys. A key may be a path: `{"params/encoder": x}` has the same
      names as `{"params": {"encoder": x}}`.
  Raises:
    TypeError: if the tree is of another form, or two leaves have the same name.
  """
  named = {}
  for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
    keys = [entry.key if isinstance(entry, jax.tree_util.DictKey) else None for entry in path]
    if not all(isinstance(key, str) and key for key in keys):
      raise TypeError(
        f"state must be nested dicts with string keys, found {jax.tree_util.keystr(path)}"
      )
    name = "/".join(keys)
    if name in named:
      raise TypeError(f"state has two leaves of the name {name}")
    named[name] = leaf
  return named


def nest(named: dict[str, Any]) -> dict[str, Any]:
  """Return the nested dicts of named leaves, without empty ones."""
  tree: dict[str, Any] = {}
  for name, leaf in named.items():
    *parents, last = name.split("/")
    node = tree
    for parent in parents:
      node = node.setdefault(parent, {})
    node[last] = leaf
  return tree


def build_manifest(
  step: int, tensors: dict[str, Any], fingerprints: dict[str, str], metadata: dict[str, Any]
) -> dict[str, Any]:
  """Return the manifest to write, with a digest over all of it.

  Args:
    tensors: arrays by name.
    fingerprints: the arrays' fingerprints by name.
  """
  manifest = {
    "format": FORMAT,
    "step": int(step),
    "metadata": metadata,
    "tensors": describe_tensors(tensors, fingerprints),
  }
  manifest["digest"] = digest(manifest)
  return manifest


def describe_tensors(tensors: dict[str, Any], fingerprints: dict[str, str]) -> dict[str, dict]:
  """Return shape, type and fingerprint of each tensor, as in a manifest."""
  return {
    name: {"shape": list(x.shape), "dtype": str(x.dtype), "fingerprint": fingerprints[name]}
    for name, x in tensors.items()
  }


def digest_tensors(entries: dict[str, dict]) -> str:
  """Return the digest of a state: of name, shape, type and fingerprint of each tensor.

  Args:
    entries: the `tensors` of a manifest.
  """
  return digest(entries)


def read_manifest(fetch: Callable[[], str], step: int) -> dict[str, Any]:
  """Read the manifest of a step, whose text `fetch` returns.

  Raises:
    DamagedStep: the manifest is missing, not a file, not JSON, of another format or step, or
      differs from its digest.
    OSError: the manifest cannot be read.
  """
  try:
    manifest = json.loads(fetch())
  except local.IrregularFile as error:
    raise DamagedStep(f"{error.filename}: {error.strerror}") from error
  except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
    raise DamagedStep(f"manifest: {error.strerror or one_line(error)}") from error
  except ValueError as error:
    raise DamagedStep(f"manifest is not JSON: {one_line(error)}") from None
  if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
    found_format = type(manifest).__name__
    if isinstance(manifest, dict):
      found_format = manifest.get("format")
    raise DamagedStep(f"manifest has format {found_format!r}, expected {FORMAT!r}")
  if manifest.pop("digest", None) != digest(manifest):
    raise DamagedStep("manifest does not match its own digest")
  if manifest["step"] != step:
    raise DamagedStep(f"manifest is of step {manifest['step']!r}, expected {step}; it was copied")
  for name in manifest["tensors"]:
    if not file_names.is_inside(name):
      raise DamagedStep(
        f"manifest has a tensor {file_names.quote_name(name)}, which no checkpoint has"
      )
  return manifest


def check_tensors(where, saved: dict[str, dict], template: dict[str, Any]) -> None:
  """Compare the tensors of a manifest with abstract ones, by name.

  Raises:
    UserError: a tensor is missing, unexpected, or of another shape or type; the first is named.
  """
  for name, x in template.items():
    expected = f"{x.dtype}{list(x.shape)}"
    advice = f"use the config it was saved with{_fresh_optimizer_advice(name)}"
    if name not in saved:
      suggestion = did_you_mean(name, set(saved) - set(template))
      raise UserError(
        f"{where}: tensor {name} is not in the checkpoint{suggestion}; expected {expected}; "
        f"{advice}"
      )
    found = f"{saved[name]['dtype']}{saved[name]['shape']}"
    if found != expected:
      raise UserError(f"{where}: tensor {name} is {found}, expected {expected}; {advice}")
  for name, entry in saved.items():
    if name not in template:
      advice = f"use the config it was saved with{_fresh_optimizer_advice(name)}"
      raise UserError(
        f"{where}: tensor {name} {entry['dtype']}{entry['shape']} is in the checkpoint, expected "
        f"no such tensor; {advice}"
      )


def _fresh_optimizer_advice(name: str) -> str:
  if name == "step" or name.startswith("params/"):
    return ""
  return ", or start this optimizer without a state: --config.checkpoint.fresh_optimizer=true"


def read_in_all_processes(path: str, read: Callable[[], Any]) -> Any:
  """Call `read`, retry transient errors, and agree on the outcome among all processes.

  Raises:
    DamagedStep: data are wrong or missing.
    UserError: reading is not permitted, the bucket is gone, or memory ran out.
    TransientError: reading still failed after the retries, in this process or another.
  """
  value = None
  error = None
  try:
    value = retry(read, path)
  except Exception as caught:
    error = caught
  verdict = _classify_error(error)
  if jax.process_count() > 1:
    severity = np.array([_VERDICTS.index(verdict)], np.int32)
    severity_P = multihost_utils.process_allgather(severity).ravel()
    worst = _VERDICTS[severity_P.max()]
    if worst != verdict:  # another process has a more severe error
      verdict = worst
      error = RuntimeError(f"process {int(severity_P.argmax())} could not read it; see its log")
  if verdict == "read":
    return value
  _raise_error(verdict, path, error)


def _raise_error(verdict: str, path: str, error: Exception) -> NoReturn:
  """Raise the error of a verdict on reading a step."""
  reason = one_line(error)[:300]
  if verdict == "damaged":
    if isinstance(error, DamagedStep | DamageError):
      raise DamagedStep(str(error))
    raise DamagedStep(f"a tensor cannot be read: {reason}")
  if verdict == "refused":
    if isinstance(error, UserError):
      raise error
    raise UserError(f"{path}: checkpoint cannot be read: {reason}; fix the permissions") from error
  if verdict == "memory":
    raise UserError(
      f"{path}: memory ran out while the checkpoint was read: {reason}; use more devices or hosts"
    ) from error
  if verdict == "transient" and not isinstance(error, TransientError):
    raise TransientError(f"{path}: {reason}") from error
  raise error


def _classify_error(error: Exception | None) -> str:
  """Return the verdict of `_VERDICTS` on an error of reading; None means no error."""
  if error is None:
    return "read"
  if isinstance(error, TransientError):
    return "transient"
  if is_out_of_memory(error):
    return "memory"
  if isinstance(error, UserError) or disk_errno(error) in _REFUSALS:
    return "refused"
  if type(error) is Exception:  # orbax wraps the reader's error in a plain Exception
    error = error.__cause__ or error
  return "damaged" if isinstance(error, (DamagedStep, *_DAMAGE)) else "failed"


def disk_errno(error: BaseException | None) -> int | None:
  """Return the errno of the first disk error in a chain of exceptions, or None.

  An exception without an errno is recognised by the system's message in its text.
  """
  for link in error_chain(error):
    if isinstance(link, OSError) and link.errno in _DISK_ERRORS:
      return link.errno
    for number in _DISK_ERRORS:
      if os.strerror(number) in str(link):
        return number
  return None

"""The sentence embeddings that a directory of the library sentence-transformers stands for, held
against ours."""

import json
from typing import Any

from t5x_like.files.file_names import is_name
from t5x_like.files.paths import as_path

_POOLINGS = {
  "cls_token": "cls",
  "mean_tokens": "mean",
  "mean_sqrt_len_tokens": "mean",
}  # at length one, both are the mean
_PLAIN = ("Transformer", "Pooling", "Normalize")


def pooling_mismatch(directory: str | None, pooling: str) -> str | None:
  """Say how a directory's embeddings differ from ours with a pooling; None if they do not, or if it
  tells nothing.

  `modules.json` lists the modules that a sentence encoder applies after its model; their configs
  lie in its folders.
  """
  modules = _read(directory, "modules.json") if directory else None
  if not isinstance(modules, list) or not all(isinstance(one, dict) for one in modules):
    return None
  kinds = {
    str(one.get("type")).rpartition(".")[2]: str(one.get("path")).rpartition("/")[2]
    for one in modules
  }
  if more := [kind for kind in kinds if kind not in _PLAIN]:
    return (
      f"{directory}: its embeddings pass {', '.join(more)} after the model (modules.json), "
      "which ours leave out"
    )
  values = (
    _read(directory, f"{kinds['Pooling']}/config.json") if is_name(kinds.get("Pooling")) else None
  )
  if not isinstance(values, dict):
    return None
  modes = [
    key.removeprefix("pooling_mode_")
    for key, value in values.items()
    if value is True and "pooling_mode_" in key
  ]
  own = [_POOLINGS.get(one, one) for one in modes] or [str(values.get("pooling_mode", pooling))]
  if own == [pooling]:
    return None
  advice = (
    f"add --embed={own[0]}"
    if own[0] in _POOLINGS.values() and not own[1:]
    else ("which --embed cannot do")
  )
  return (
    f"{directory}: its own embeddings are pooled by {' and '.join(own)}, not by {pooling}; {advice}"
  )


def _read(directory: str, name: str) -> Any:
  try:
    return json.loads((as_path(directory) / name).read_bytes())
  except (OSError, ValueError, RecursionError):
    return None

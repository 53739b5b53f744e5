"""Compare the pooling of a sentence-transformers directory with the pooling of `--embed`."""

import json
from typing import Any

from t5x_like.files.file_names import is_name
from t5x_like.files.paths import as_path

# The pooling modes of sentence-transformers and ours. The two means differ by a factor, which
# disappears when embeddings are normalised to length one.
_POOLINGS = {
  "cls_token": "cls",
  "mean_tokens": "mean",
  "mean_sqrt_len_tokens": "mean",
}
# modules that our embeddings reproduce
_SUPPORTED = ("Transformer", "Pooling", "Normalize")


def pooling_mismatch(directory: str | None, pooling: str) -> str | None:
  """Describe the difference between a directory's embeddings and ours with a pooling.

  `modules.json` lists the modules that a sentence encoder applies after its model, each with the
  folder of its config.

  Returns:
    A sentence for a warning; None if there is no difference, or if the directory has no readable
    `modules.json` or pooling config.
  """
  modules = _read_json(directory, "modules.json") if directory else None
  if not isinstance(modules, list):
    return None
  if not all(isinstance(module, dict) for module in modules):
    return None
  folders = {}
  for module in modules:
    name = str(module.get("type")).rpartition(".")[2]
    folders[name] = str(module.get("path")).rpartition("/")[2]
  unsupported = [name for name in folders if name not in _SUPPORTED]
  if unsupported:
    return (
      f"{directory}: modules.json applies {', '.join(unsupported)} after the model, which "
      "embeddings here leave out"
    )
  folder = folders.get("Pooling")
  config = _read_json(directory, f"{folder}/config.json") if is_name(folder) else None
  if not isinstance(config, dict):
    return None
  poolings = _read_poolings(config)
  if not poolings:
    poolings = [str(config.get("pooling_mode", pooling))]
  if poolings == [pooling]:
    return None
  if len(poolings) == 1 and poolings[0] in _POOLINGS.values():
    advice = f"add --embed={poolings[0]}"
  else:
    advice = "--embed does not support that"
  return (
    f"{directory}: its own embeddings are pooled by {' and '.join(poolings)}, not by {pooling}; "
    f"{advice}"
  )


def _read_poolings(config: dict[str, Any]) -> list[str]:
  """Return the poolings that a module's config switches on."""
  poolings = []
  for key, value in config.items():
    if value is True and "pooling_mode_" in key:
      mode = key.removeprefix("pooling_mode_")
      poolings.append(_POOLINGS.get(mode, mode))
  return poolings


def _read_json(directory: str, name: str) -> Any:
  """Return the content of a file of a directory, or None if it cannot be read."""
  try:
    return json.loads((as_path(directory) / name).read_bytes())
  except (OSError, ValueError, RecursionError):
    return None

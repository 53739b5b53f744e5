"""Write Hugging Face directories, which `transformers` loads."""

import json
import pathlib
import tempfile

import jax
from flax import nnx

from t5x_like.files import outputs
from t5x_like.files.paths import is_remote
from t5x_like.interop import generation_settings
from t5x_like.interop import hf as hugging_face
from t5x_like.saved_model.exports import ExportContext
from t5x_like.saved_model.exports._tokenizer_files import tokenizer_files
from t5x_like.saved_model.model import SavedModel, merge_for_export

DTYPES = ("float32", "bfloat16", "float16")
SUFFIX = ""


def write(
  model: nnx.Module, directory: str, context: ExportContext, dtype: str | None = None
) -> None:
  """Write a new directory that `transformers` loads, with the tokenizer.

  Args:
    model: the model with its arrays, without adapters; see `merge_for_export`.
    directory: a path or address; it must not exist, or be empty.
    dtype: `float32`, `bfloat16` or `float16`; None is the dtype of the published files, or float32.
  Raises:
    UserError: the directory has files, or `transformers` has no model of this kind.
  """
  output = outputs.check_new(directory)
  with tempfile.TemporaryDirectory() as temporary:
    local = pathlib.Path(temporary if is_remote(directory) else directory)
    image_task = context.config.task.to_dict() if "image" in context.features else None
    # the names of images' classes are in the vocabulary
    labels = context.labels or getattr(context.vocabulary, "names", ())
    hugging_face.save(model, str(local), dtype=dtype, labels=labels, images=image_task)
    files = tokenizer_files(context)
    settings = generation_settings.export_settings(
      context.config.get("evals") or {},
      json.loads((local / "config.json").read_text()),
      files.get(generation_settings.FILE, b"{}"),
    )
    if settings:
      files[generation_settings.FILE] = settings
    for name, content in files.items():
      (local / name).write_bytes(content)
    if is_remote(directory):
      for file in local.iterdir():
        (output / file.name).write_bytes(file.read_bytes())


def require_exportable(saved: SavedModel) -> None:
  """Raise UserError if a model has no Hugging Face form, without its parameters."""
  model = jax.eval_shape(merge_for_export, saved.model)
  hugging_face.write_config(model, None)

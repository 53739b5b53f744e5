"""Write GGUF files, which llama.cpp runs."""

from typing import Any

import jax
from flax import nnx

from t5x_like.data.supervised import published_template
from t5x_like.errors import UserError
from t5x_like.files import gguf_file
from t5x_like.interop import gguf_export
from t5x_like.saved_model.exports import ExportContext, describe
from t5x_like.saved_model.exports._tokenizer_files import tokenizer_files
from t5x_like.saved_model.model import SavedModel, merge_for_export
from t5x_like.vocabularies import TOKENIZER, start_id
from t5x_like.vocabularies.kinds import _gguf_tokenizer as gguf_tokenizer
from t5x_like.vocabularies.kinds.tokenizer import TokenizerVocabulary

DTYPES = tuple(gguf_export.DTYPES)
SUFFIX = gguf_file.SUFFIX


def write(model: nnx.Module, path: str, context: ExportContext, dtype: str | None = None) -> None:
  """Write a new GGUF file that llama.cpp runs, with the tokenizer and the chat template.

  Args:
    model: a decoder with its arrays, without adapters; see `merge_for_export`.
    path: a local path that does not exist.
    dtype: `float16` or `q8_0`; None is float16.
  Raises:
    UserError: GGUF cannot express the model or the tokenizer, or the file exists.
  """
  metadata = _describe_tokenizer(context, model.variant.vocab_size)
  length = context.features["decoder_target_tokens"][-1]
  gguf_export.save(model, path, metadata, length, dtype or "float16")


def require_exportable(saved: SavedModel) -> None:
  """Raise UserError if a model or its tokenizer has no GGUF form, without its parameters."""
  gguf_file.import_gguf(saved.path)
  model = jax.eval_shape(merge_for_export, saved.model)
  context = describe(saved)
  _describe_tokenizer(context, model.variant.vocab_size)
  gguf_export.describe(model, context.features["decoder_target_tokens"][-1])


def _describe_tokenizer(context: ExportContext, size: int) -> dict[str, Any]:
  """Return the metadata of the tokenizer and the chat template in a GGUF file.

  Args:
    size: the number of the model's token vectors.
  Raises:
    UserError: the model is no decoder, or GGUF has no such tokenizer.
  """
  if "decoder_target_tokens" not in context.features or "encoder_input_tokens" in context.features:
    raise UserError("the model is no decoder, expected one for a GGUF file")
  vocabulary = context.vocabulary
  files = tokenizer_files(context)
  tokenizer = files.get(TOKENIZER)
  if isinstance(vocabulary, TokenizerVocabulary):
    tokenizer = vocabulary.model  # of a published one: the ids of `transformers`
  enclosing = vocabulary.enclosing_ids() or ([start_id(vocabulary)], [])
  metadata = gguf_tokenizer.write_tokenizer(tokenizer, vocabulary, enclosing, size)
  template = published_template.find_template_text(vocabulary)
  if published_template.FILE in files:
    template = files[published_template.FILE].decode()
  if template is not None:
    metadata[gguf_tokenizer.TEMPLATE] = template
  return metadata

"""The files of a tokenizer in an export."""

from t5x_like.interop import tokenizer_export
from t5x_like.saved_model.exports import ExportContext


def tokenizer_files(context: ExportContext) -> dict[str, bytes]:
  """Return the files of the tokenizer, and of its conversations, by name."""
  files = tokenizer_export.tokenizer_files(context.vocabulary, context.features)
  if context.template:
    files |= tokenizer_export.chat_files(context.vocabulary, context.template)
  return files

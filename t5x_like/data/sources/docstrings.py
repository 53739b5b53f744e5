"""`docstrings`: the embedded corpus (`t5x_like.data.docstrings`), built in `data_dir` on first use."""

from t5x_like.data.docstrings.builder import Docstrings, prepare
from t5x_like.data.sources import tfds as tfds_form
from t5x_like.errors import UserError


def open_form(rest: str, *, data_dir: str | None, text_field: str) -> tfds_form.TfdsSource:
  if rest:
    raise UserError(f"source 'docstrings:{rest}': found {rest!r} after the colon, expected 'docstrings' alone")
  builder = Docstrings(data_dir=data_dir)
  prepare(builder)
  return tfds_form.TfdsSource(builder, text_field)

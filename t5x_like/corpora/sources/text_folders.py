"""`text_folders:DIR` or `text_folders:train=DIR,…`: texts in one folder per class.

The fields are `text` and `label`.

The layout is the same as for `folders`. A file is a text in UTF-8; if there are `.txt` files, all
other files are left out.
"""

from collections.abc import Iterator
from typing import Any

from t5x_like.corpora.sources import Record, Skip, folders
from t5x_like.corpora.sources._files import LONGEST, decode


class Source(folders.Source):
  """Texts and the names of their folders, from local or remote directories."""

  def __init__(self, spec: str, *, fields: tuple[str, ...] = (), data_dir: str | None = None):
    super().__init__(spec, fields=fields, data_dir=data_dir)
    for split, files in self._files.items():
      texts = {path: name for path, name in files.items() if name.lower().endswith(".txt")}
      self._files[split] = texts or files

  def records(
    self, split: str, part: tuple[int, int] | None = None
  ) -> Iterator[tuple[str, Record | Skip]]:
    for where, record in super().records(split, part):
      if isinstance(record, Skip):
        yield where, record
      elif len(record["image"]) > LONGEST:
        yield where, Skip(f"file of over {LONGEST >> 20} MiB")
      else:
        text = decode(record["image"].removeprefix(b"\xef\xbb\xbf"), where)
        yield where, {"text": text, "label": record["label"]}

  def split_facts(self, split: str) -> dict[str, Any]:
    return super().split_facts(split) | {"form": "text_folders"}

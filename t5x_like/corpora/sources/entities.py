"""`entities:PATTERN`: the columns of `conll`, and `entities`, the last column's tags in BIO.

The files may have IOB1 tags, as the official files of CoNLL-2003, BIO, or BIOES. Entities begin
where conlleval sees them begin (Tjong Kim Sang & De Meulder 2003): at a B- or S-, at another type,
and after O, E- or S-.
"""

from collections.abc import Iterator, Sequence

from t5x_like.corpora.sources import Record, conll
from t5x_like.errors import UserError


class Source(conll.Source):
  """One record per sentence."""

  def read(self, path: str) -> Iterator[tuple[str, Record]]:
    for where, record in super().read(path):
      yield where, record | {"entities": to_bio(list(record.values())[-1], where)}


def to_bio(tags: Sequence[str], where: str) -> list[str]:
  """Convert the tags of a sentence to the BIO scheme.

  Raises:
    UserError: a tag belongs to no known scheme.
  """
  bio_tags = []
  previous_mark = "O"
  previous_type = ""
  for tag in tags:
    mark, _, entity_type = tag.partition("-")
    if tag != "O" and not (mark in {*"BIES"} and entity_type):
      raise UserError(
        f"{where}: found the tag {tag!r}, expected O, or B-, I-, E- or S- and a "
        "type, in the last column"
      )
    if tag == "O":
      bio_tags.append("O")
    elif mark in "BS" or previous_mark in "OES" or entity_type != previous_type:
      bio_tags.append(f"B-{entity_type}")
    else:
      bio_tags.append(f"I-{entity_type}")
    previous_mark = mark
    previous_type = entity_type
  return bio_tags

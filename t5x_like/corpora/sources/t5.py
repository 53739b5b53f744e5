"""`t5:FORM:SOURCE`: another source's records as T5's texts (Raffel et al. 2020, appendix D).

    t5:stsb:tfds:glue/stsb                   a number rounded to the nearest 0.2
    t5:squad:squad:train=train-v1.1.json     punctuation between spaces; `squad_context_free` leaves
                                             out the context
    t5:multirc:multirc:train=train.jsonl     without HTML marks
    t5:record:record:validation=val.jsonl    a training example for each answer, otherwise one for
                                             each query
    t5:wsc:wsc:train=train.jsonl             the pronoun between asterisks, the referent as the
                                             target; for training the records whose referent is
                                             right, otherwise all
    t5:wnli:tfds:glue/wnli                   WNLI in the form of WSC, to evaluate a model of WSC and
                                             DPR
    t5:dpr:tfds:definite_pronoun_resolution  definite pronoun resolution in the form of WSC

Splits whose name begins with `train` are for training. Tasks of GLUE and SuperGLUE that are not
listed need no source of their own: their texts are the templates of `benchmarks/suites/`.
"""

from collections.abc import Iterator

from t5x_like.corpora.sources import Record, _t5_texts, open_source
from t5x_like.corpora.sources._derived import Derived
from t5x_like.errors import UserError, did_you_mean, one_line

# The version of the texts, a part of a store's fingerprint. Raise it when the texts change.
VERSION = 1


class Source(Derived):
  """Another source's records with the fields `inputs` and `targets`, and further ones for metrics.

  See `_t5_texts` for the fields of each form.
  """

  def __init__(self, spec: str, *, fields: tuple[str, ...] = (), data_dir: str | None = None):
    del fields  # the form decides the fields
    self._form, _, inner = spec.partition(":")
    forms = _t5_texts.FORMS
    if self._form not in forms or not inner:
      raise UserError(
        f"source t5:{spec[:80]}: found the form {self._form!r}, expected t5:FORM:SOURCE with one "
        f"of {', '.join(forms)}{did_you_mean(self._form, forms)}"
      )
    self._fields, self._make_texts = forms[self._form]
    self._inner = open_source(inner, fields=self._fields, data_dir=data_dir)
    self._derivation = {"form": "t5", "text": self._form, "version": VERSION}
    self.name = self._inner.name
    self.splits = self._inner.splits

  def _derive(self, record: Record, where: str, split: str) -> Iterator[tuple[str, Record]]:
    _t5_texts.check(self._form, record, where)
    try:
      texts = list(self._make_texts(record, where, split.startswith("train")))
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
      raise UserError(
        f"{where}: found values that t5:{self._form} cannot read ({one_line(error)[:99]}), "
        f"expected {self._form}'s in {', '.join(self._fields)}"
      ) from error
    for text in texts:
      yield where, text


def inner_source(source: str) -> str:
  """Return SOURCE of `t5:FORM:SOURCE`, or the given source if it has another format."""
  if source.startswith("t5:") and source.count(":") > 1:
    return source.split(":", 2)[2]
  return source

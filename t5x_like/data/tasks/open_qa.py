"""Texts to complete and questions to answer with passages that the model retrieves (Guu et al.
2020, REALM).

  config.task = {"name": "open_qa", "source": "jsonl:train=nq/train.jsonl,validation=nq/dev.jsonl",
                 "inputs": "{question}", "targets": "{answer}", "passages":
                 "jsonl:wikipedia/*.jsonl.gz", "passage": "{title} {text}", "retrieved": 8,
                 "vocabulary": "vocabulary"}

Salient spans are such texts too, with the source `salient:`, as questions are. A row has
`encoder_input_tokens`, the text up to EOS; `decoder_input_tokens`, `decoder_target_tokens` and
`decoder_loss_weights`, its answer; and places for the passages, `passage_tokens` int32 [1 +
retrieved, passage_length]: first the null document, a row of padding, then those that
`training/retrieval.py` finds. `own_passage` is the number of the passage that the text is from,
which is not to be found, or -1.

`Task.examples` gives `record`, `inputs` and `targets`.
"""

from typing import Unpack

import numpy as np

from t5x_like import vocabularies
from t5x_like.corpora.sources import Skip
from t5x_like.data import features as declared
from t5x_like.data.features import Feature, Features
from t5x_like.data.supervised.labelled import ExampleRows, LabelledSource, build_task
from t5x_like.data.supervised.passages import (
  Passages,
  check_padding,
  encode,
  read_padded,
  text_digest,
)
from t5x_like.data.supervised.templates import Template
from t5x_like.data.supervised.too_long import TooLong, fit
from t5x_like.data.task import Task
from t5x_like.errors import UserError
from t5x_like.slots import Length, NonNegativeInt

# On the built-in corpus, for `:debug`.
BUILT_IN = {
  "source": "builtin",
  "vocabulary": "bytes",
  "inputs": "{text}",
  "targets": "{label}",
  "own": None,
}
BUILT_IN |= {"passages": "builtin", "passage": "{text}", "passages_split": "validation"}


def tiny(length: int) -> dict[str, int]:
  """Return the lengths of its laptop form."""
  return {"inputs_length": 2 * length, "targets_length": 16, "passage_length": length}


def features(
  vocabulary,
  /,
  *,
  inputs_length: int,
  targets_length: int,
  passage_length: int,
  retrieved: int,
  **_,
) -> Features:
  """Return the features of the task with these arguments."""
  passages = {
    "passage_tokens": Feature((1 + retrieved, passage_length), "int32"),
    "own_passage": Feature((), "int32"),
  }
  return declared.encoder_decoder(inputs_length, targets_length) | passages


def task(
  *,
  inputs: str,
  targets: str,
  passages: str,
  passage: str = "{text}",
  passages_split: str = "train",
  retrieved: NonNegativeInt = 8,
  own: str | None = None,
  inputs_length: Length = 64,
  targets_length: Length = 32,
  passage_length: Length = 288,
  too_long: TooLong = "refuse",
  **records: Unpack[LabelledSource],
) -> Task:
  """Make the task.

  Args:
    inputs, targets: templates of a text and its answer over a record's fields.
    passages, passages_split: the source of the passages and its split.
    passage: the template of a passage; longer ones are cut.
    retrieved: k, the passages found for each text; 0 reads none but the null document.
    own: the template of the passage that a text is from, which is not to be retrieved for it, as it
      holds the answer itself (Guu et al. 2020, section 3.4): `{text}` of the source `salient:`.
    inputs_length, targets_length, passage_length: the most tokens of each, with EOS.
    too_long: treatment of examples longer than these.
    records: see `Records`.

  Raises:
    UserError: unusable templates or lengths, or fewer passages than are to be retrieved; and as
      `labelled`.
  """
  source = LabelledSource(**records)
  if source.buckets > 1:
    raise UserError(
      f"config.task.buckets: found {source.buckets}, expected 1, as passages have one length"
    )
  vocabulary = vocabularies.load(source.vocabulary)
  check_padding(vocabulary)
  given = {"inputs": inputs, "targets": targets} | ({} if own is None else {"own": own})
  templates = {name: Template(text, name) for name, text in given.items()}
  shelf = Passages.open(passages, passages_split, passage, passage_length, source, vocabulary)
  if shelf.num_passages <= retrieved:
    raise UserError(
      f"config.task.retrieved: found {retrieved}, expected less than the {shelf.num_passages} passages"
    )

  def view(record, where, _=0):
    return {name: template(record, where) for name, template in templates.items()}

  def example(record, where):
    found = view(record, where)
    if empty := next((name for name, text in found.items() if not text), None):
      return Skip(f"empty {empty}")
    return {name: encode(vocabulary, found[name]) for name in ("inputs", "targets")} | {
      "own": text_digest(found.get("own", ""))
    }

  def rows(store):
    limits = (inputs_length, targets_length)
    names = ("inputs", "targets")
    lengths_N2 = np.stack([store.lengths[name] for name in names], axis=1)
    used, _ = fit(lengths_N2, limits, too_long, store.path, [f"{name}_length" for name in names])
    own_N = (
      shelf.find_digests(np.asarray(store.arrays["own"]))
      if own
      else np.full(store.num_examples, -1)
    )
    if own:
      found = f"{(own_N >= 0).sum():,} of {own_N.size:,} texts are from a passage"
      print(
        f"data: {store.path}: {found}, which is not retrieved for them (config.task.own)",
        flush=True,
      )

    def read(index_B):
      n = used[index_B]
      asked_BQ, _ = read_padded(store, "inputs", n, inputs_length, vocabulary)
      target_BT, valid_BT = read_padded(store, "targets", n, targets_length, vocabulary)
      shifted_BT = np.pad(
        target_BT[:, :-1], ((0, 0), (1, 0)), constant_values=vocabulary.decoder_start_id
      )
      return {
        "encoder_input_tokens": asked_BQ,
        "decoder_input_tokens": shifted_BT,
        "decoder_target_tokens": target_BT,
        "decoder_loss_weights": valid_BT,
        "passage_tokens": np.full(
          (n.size, 1 + retrieved, passage_length), vocabulary.pad_id, np.int32
        ),
        "own_passage": own_N[n],
      }

    return ExampleRows(used.size, read, used, view)

  sizes = dict(
    inputs_length=inputs_length,
    targets_length=targets_length,
    passage_length=passage_length,
    retrieved=retrieved,
  )
  return build_task(
    "open_qa.v1",
    source,
    vocabulary,
    fields=tuple(
      dict.fromkeys(field for template in templates.values() for field in template.fields)
    ),
    facts=given,
    streams={"inputs": True, "targets": True},
    make_example=example,
    make_rows=rows,
    features=features(vocabulary, **sizes),
    row_facts=sizes
    | {
      "too_long": too_long,
      "passages": shelf.store.fingerprint,
      "vocabulary": vocabulary.fingerprint,
    },
    passages=shelf,
  )

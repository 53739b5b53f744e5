"""Supervised text-to-text: records, with templates for input and target (Raffel et al. 2020,
section 2.4).

  config.task = {"name": "text_to_text", "source": "parallel:corpus/{split}.{field}.gz",
                 "vocabulary": "vocabulary", "inputs": "translate English to German: {en}",
                 "targets": "{de}", "inputs_length": 512, "targets_length": 512}

The first use tokenises the split into `cache` (`python -m tools.prepare_examples --config=…` does
only that); training reads ids. See `data/supervised/` for templates, prepared examples and packing.

For an encoder-decoder a record becomes (inputs + EOS, targets + EOS). For a decoder it is one
sequence, inputs then targets + EOS, with loss on the targets only, or with `loss_on="all"` on the
inputs too (Liu et al. 2018, section
4.2.2); with `prefix`, attention is bidirectional over the start token and the inputs (Raffel et al.
2020, section
3.2.1). A packed row holds several of these, which do not attend to each other; the loader, an epoch
and an evaluation's `max_examples` then count rows as examples, and every epoch has every record
once.

`Task.examples` gives `record`, `inputs` and `targets` (texts) of every example, before packing and
whatever its length.
"""

from typing import Literal, Unpack

import numpy as np

from t5x_like import vocabularies
from t5x_like.corpora.sources import Skip
from t5x_like.data import features as declared
from t5x_like.data.features import Feature, Features
from t5x_like.data.supervised import packing
from t5x_like.data.supervised.labelled import ExampleRows, PackedSource, build_task
from t5x_like.data.supervised.templates import Template
from t5x_like.data.supervised.too_long import TooLong, fit, truncated_share
from t5x_like.data.task import Task
from t5x_like.errors import UserError
from t5x_like.slots import Length

# On the built-in corpus, for `:debug`.
BUILT_IN = {
  "source": "builtin",
  "vocabulary": "bytes",
  "inputs": "reverse: {text}",
  "targets": "{reversed}",
}


def tiny(length: int) -> dict[str, int]:
  """Return the lengths of its laptop form, independent of `length` because bytes need them."""
  return {"inputs_length": 128, "targets_length": 128}


def features(
  vocabulary,
  /,
  *,
  inputs_length: int,
  targets_length: int | None,
  architecture: str,
  prefix: bool,
  packed: bool,
  **_,
) -> Features:
  """Return the features of the task with these arguments.

  Segments mark the padding of decoders, whose start id may be any id, and of vocabularies without a
  padding id.
  """
  places = ("segment_ids", "positions")
  if architecture == "decoder":
    return declared.decoder(inputs_length, *("causal_attention",) * prefix, *places)
  sides = {
    "encoder": inputs_length,
    "decoder": inputs_length if targets_length is None else targets_length,
  }
  described = declared.encoder_decoder(*sides.values())
  for side, length in sides.items() if packed or vocabulary.pad_id is None else ():
    described |= {f"{side}_{name}": Feature((length,), "int32") for name in places}
  return described


def task(
  *,
  inputs: str,
  targets: str,
  inputs_length: Length = 512,
  targets_length: Length | None = None,
  architecture: Literal["encoder_decoder", "decoder"] = "encoder_decoder",
  prefix: bool = False,
  loss_on: Literal["targets", "all"] = "targets",
  too_long: TooLong = "refuse",
  **records: Unpack[PackedSource],
) -> Task:
  """Make the task.

  Args:
    inputs, targets: templates over a record's fields. Records where one is empty are skipped and
      counted; but only training splits, whose names begin with `train`, lack inputs where a field
      alone is empty.
    inputs_length: tokens in a row of the encoder or, for a decoder, in the whole row.
    targets_length: tokens in a row of the decoder of an encoder-decoder; None is inputs_length.
    architecture: the kind of model that the features are for.
    prefix: for a decoder, adds `decoder_causal_attention`.
    loss_on: the tokens that a decoder learns to predict: the targets, or all.
    too_long: treatment of examples longer than a row: `refuse` (an error), `skip` (with a report)
      or `truncate`.
    records: see `PackedRecords`.

  Raises:
    UserError: unusable templates or lengths; and as `labelled`.
  """
  decoder = architecture == "decoder"
  if decoder and targets_length is not None:
    raise UserError(
      f"config.task.targets_length: found {targets_length}, expected None, as a decoder's row is "
      "one sequence of inputs_length tokens"
    )
  if prefix and not decoder:
    raise UserError(
      "config.task.prefix: found True, expected architecture='decoder': encoders "
      "see their whole input"
    )
  if loss_on == "all" and (prefix or not decoder):
    raise UserError(
      "config.task.loss_on: found 'all', expected architecture='decoder' and "
      "prefix=False, or 'targets'"
    )
  source = PackedSource(**records)
  vocabulary = vocabularies.load(source.vocabulary)
  texts = {"inputs": inputs, "targets": targets}
  templates = {name: Template(text, name, vocabulary.extra_ids) for name, text in texts.items()}
  begin = np.array([] if decoder else vocabularies.opening_ids(vocabulary), np.int32)
  limits = (
    (inputs_length,)
    if decoder
    else (inputs_length, inputs_length if targets_length is None else targets_length)
  )

  encoders = {"inputs": vocabulary, "targets": vocabulary if decoder else vocabulary.for_targets()}

  def encoded(name, text):
    if templates[name].has_sentinels:
      return vocabularies.encode_sentinels(encoders[name], text)
    return encoders[name].encode(text)

  def view(record, where, _):
    gaps = {"inputs": source.allows_gaps, "targets": False}
    return {name: template(record, where, gaps[name]) for name, template in templates.items()}

  def example(record, where):
    found = view(record, where, 0)
    if empty := next((name for name, text in found.items() if text is None), None):
      return Skip(f"empty {empty}")
    ids = {name: np.asarray(encoded(name, text), np.int32) for name, text in found.items()}
    if not all(part.size for part in ids.values()):
      return Skip("no tokens")
    return {name: np.append(begin, part) for name, part in ids.items()}

  def rows(store):
    lengths_N2 = np.stack([store.lengths[name] for name in templates], axis=1)
    if decoder:  # truncation shortens the inputs, from their end
      used, sizes = fit(
        lengths_N2.sum(axis=1, keepdims=True), limits, too_long, store.path, ("inputs_length",)
      )
      targets_n1 = np.minimum(lengths_N2[used, 1:], sizes)
      lengths_n2 = np.concatenate([sizes - targets_n1, targets_n1], axis=1)
    else:
      used, sizes = fit(
        lengths_N2, limits, too_long, store.path, ("inputs_length", "targets_length")
      )
      lengths_n2 = sizes
    plan = packing.plan_examples(sizes, limits, source.packed, source.pack_seed, store.path)

    def stream(name, which_n):
      """Return (tokens, which of them are real) of examples; truncated ones end with EOS, except a
      decoder's inputs."""
      length_n = lengths_n2[which_n, int(name == "targets")]
      tokens_nL, valid_nL = store.read(name, used[which_n], length_n)
      if not decoder or name == "targets":
        cut = np.flatnonzero(length_n < store.lengths[name][used[which_n]])
        tokens_nL[cut, length_n[cut] - 1] = vocabulary.eos_id
      return tokens_nL, valid_nL

    def pairs(row_B):
      place_n, *row = plan.members(row_B)
      made = {}
      sides = {}
      for number, (side, name) in enumerate((("encoder", "inputs"), ("decoder", "targets"))):
        placed = (*row, plan.offsets[place_n, number])
        shape = (row_B.size, limits[number])
        tokens, segments, positions = packing.scatter(
          *stream(name, plan.examples[place_n]), *placed, shape
        )
        sides[name] = np.where(segments > 0, tokens, vocabulary.pad_id or 0)
        made |= {f"{side}_segment_ids": segments, f"{side}_positions": positions}
      return made | {
        "encoder_input_tokens": sides["inputs"],
        "decoder_input_tokens": packing.shift_segments(
          sides["targets"], segments, positions, vocabulary.decoder_start_id
        ),
        "decoder_target_tokens": sides["targets"],
        "decoder_loss_weights": segments > 0,
      }

    def sequences(row_B):
      place_n, *row = plan.members(row_B)
      which_n = plan.examples[place_n]
      whole_nL = np.zeros((which_n.size, max(int(sizes[which_n].max(initial=0)), 1)), np.int32)
      places_L = np.arange(whole_nL.shape[1])
      prompt_n1 = lengths_n2[which_n, :1]
      size_n1 = sizes[which_n]
      for name, (low_n1, high_n1) in {
        "inputs": (0, prompt_n1),
        "targets": (prompt_n1, size_n1),
      }.items():
        tokens_nT, valid_nT = stream(name, which_n)
        whole_nL[(places_L >= low_n1) & (places_L < high_n1)] = tokens_nT[valid_nT]
      valid_nL = places_L < size_n1
      placed = (*row, plan.offsets[place_n, 0])
      shape = (row_B.size, limits[0])
      start = vocabularies.start_id(vocabulary)
      learned_nL = valid_nL if loss_on == "all" else places_L >= prompt_n1
      made = packing.decoder_rows(whole_nL, valid_nL, learned_nL, placed, shape, start, 0)
      given, _, _ = packing.scatter(places_L <= prompt_n1, valid_nL, *placed, shape)
      return made | {"decoder_causal_attention": given}

    cut = truncated_share(lengths_N2, used, lengths_n2)
    return ExampleRows(plan.num_rows, sequences if decoder else pairs, view=view, truncated=cut)

  own = dict(architecture=architecture, prefix=prefix, packed=source.packed)
  kept = dict(
    too_long=too_long,
    loss_on=loss_on,
    pack_seed=source.pack_seed,
    vocabulary=vocabulary.fingerprint,
  )
  return build_task(
    "text_to_text.v1",
    source,
    vocabulary,
    fields=(*templates["inputs"].fields, *templates["targets"].fields),
    facts=texts | source.gap_facts,
    streams={"inputs": not decoder, "targets": True},
    make_example=example,
    make_rows=rows,
    features=features(
      vocabulary, inputs_length=inputs_length, targets_length=targets_length, **own
    ),
    row_facts={"task": "text_to_text.v2", "limits": limits, **own, **kept},
    has_sentinels=templates["inputs"].has_sentinels,
  )

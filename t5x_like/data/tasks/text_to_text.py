"""Supervised text-to-text: records with templates for input and target.

Raffel et al. 2020, section 2.4.

  config.task = {"name": "text_to_text", "source": "parallel:corpus/{split}.{field}.gz",
                 "vocabulary": "vocabulary", "inputs": "translate English to German: {en}",
                 "targets": "{de}", "inputs_length": 512, "targets_length": 512}

The first use of a split tokenises it and stores the ids in `cache`; training reads the ids.
`python -m tools.prepare_examples --config=…` does only the first step. See `data/supervised/` for
templates, prepared examples and packing.

For an encoder-decoder, a record becomes inputs + EOS and targets + EOS. For a decoder, it becomes
one sequence, inputs + targets + EOS. A decoder has loss on the targets only or, with
`loss_on="all"`, on the inputs too (Liu et al. 2018, section 4.2.2). With `prefix`, its attention is
bidirectional over the start token and the inputs (Raffel et al. 2020, section 3.2.1).

A packed row has several examples, which do not attend to each other. The loader, an epoch and an
evaluation's `max_examples` then count rows as examples; every epoch still has every record once.

`Task.examples` returns `record`, `inputs` and `targets` (texts) of every example, before packing
and truncation.
"""

import dataclasses
from typing import Literal

import numpy as np

from t5x_like import vocabularies
from t5x_like.corpora.sources import Record, Skip
from t5x_like.data import features as layouts
from t5x_like.data.features import Feature, Features
from t5x_like.data.supervised import packing
from t5x_like.data.supervised.example_store import Example, ExampleStore
from t5x_like.data.supervised.labelled import ExampleRows, PackedArguments
from t5x_like.data.supervised.templates import Template
from t5x_like.data.supervised.too_long import TooLong, fit, truncated_share
from t5x_like.data.task import Task, rows_only
from t5x_like.errors import UserError
from t5x_like.slots import Length
from t5x_like.vocabularies import Vocabulary

# The token streams of an example, in the order of the axis of size 2 below.
_STREAMS = ("inputs", "targets")
# The arguments of the task on the built-in corpus, for `:debug`.
BUILT_IN = {
  "source": "builtin",
  "vocabulary": "bytes",
  "inputs": "reverse: {text}",
  "targets": "{reversed}",
}


def tiny(length: int) -> dict[str, int]:
  """Return the lengths of the recipe form `:tiny`.

  They do not depend on `length`, because examples in bytes need this many ids.
  """
  return {"inputs_length": 128, "targets_length": 128}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(PackedArguments):
  """The arguments of text-to-text.

  Attributes:
    inputs, targets: templates over a record's fields. Records with an empty field in the targets
      are skipped and counted. So are those with an empty field in the inputs in training splits,
      whose names begin with `train`; other splits leave this field out of the inputs.
    inputs_length: tokens in a row of the encoder or, for a decoder, in the whole row.
    targets_length: tokens in a row of the decoder of an encoder-decoder; None is inputs_length.
    architecture: the kind of model that the features are for.
    prefix: whether a decoder's rows have `decoder_causal_attention`.
    loss_on: the tokens that a decoder learns to predict: the targets, or all.
    too_long: treatment of examples longer than a row: `refuse` (an error), `skip` (they are
      counted) or `truncate`.
  """

  inputs: str
  targets: str
  inputs_length: Length = rows_only(default=512)
  targets_length: Length | None = rows_only(default=None)
  architecture: Literal["encoder_decoder", "decoder"] = "encoder_decoder"
  prefix: bool = rows_only(default=False)
  loss_on: Literal["targets", "all"] = rows_only(default="targets")
  too_long: TooLong = rows_only(default="refuse")

  @property
  def is_decoder(self) -> bool:
    """Whether inputs and targets become one sequence."""
    return self.architecture == "decoder"

  @property
  def limits(self) -> tuple[int, ...]:
    """The length of a row in each stream of the rows."""
    if self.is_decoder:
      return (self.inputs_length,)
    if self.targets_length is None:
      return (self.inputs_length, self.inputs_length)
    return (self.inputs_length, self.targets_length)

  def features(self, vocabulary: Vocabulary) -> Features:
    """Return the features of the task.

    Segments distinguish padding where ids do not: for decoders, whose start id may be any id, and
    for vocabularies without a padding id.
    """
    if self.is_decoder:
      extra_names = ["segment_ids", "positions"]
      if self.prefix:
        extra_names = ["causal_attention", *extra_names]
      return layouts.decoder(self.inputs_length, *extra_names)
    task_features = layouts.encoder_decoder(*self.limits)
    if self.packed or vocabulary.pad_id is None:
      for side, length in zip(("encoder", "decoder"), self.limits, strict=True):
        task_features[f"{side}_segment_ids"] = Feature((length,), "int32")
        task_features[f"{side}_positions"] = Feature((length,), "int32")
    return task_features

  def build(self) -> Task:
    """Prepare the examples and return the task.

    Raises:
      UserError: arguments that do not fit together, unusable templates or lengths; and as
        `LabelledArguments.build_task`.
    """
    self._check()
    vocabulary = vocabularies.load(self.vocabulary)
    examples = _TextPairs(self, vocabulary)

    def make_rows(store: ExampleStore) -> ExampleRows:
      if self.is_decoder:
        rows = _Sequences(store, self, vocabulary)
      else:
        rows = _EncoderDecoderPairs(store, self, vocabulary)
      return ExampleRows(
        rows.plan.num_rows, rows.read, view=examples.view, truncated=rows.truncated_share()
      )

    return self.build_task(
      "text_to_text.v2",
      vocabulary,
      fields=examples.fields,
      streams={"inputs": not self.is_decoder, "targets": True},
      make_example=examples.make_example,
      make_rows=make_rows,
      row_facts={"limits": self.limits},
      has_sentinels=examples.has_sentinels,
    )

  def _check(self) -> None:
    """Raise UserError if arguments of the task exclude each other."""
    if self.is_decoder and self.targets_length is not None:
      raise UserError(
        f"config.task.targets_length: found {self.targets_length}, expected None, as a decoder's "
        "row is one sequence of inputs_length tokens"
      )
    if self.prefix and not self.is_decoder:
      raise UserError(
        "config.task.prefix: found True, expected architecture='decoder': encoders "
        "see their whole input"
      )
    if self.loss_on == "all" and (self.prefix or not self.is_decoder):
      raise UserError(
        "config.task.loss_on: found 'all', expected architecture='decoder' and "
        "prefix=False, or 'targets'"
      )


class _TextPairs:
  """Examples of two texts, the inputs and the targets, from records.

  Attributes:
    fields: the names of the record's fields in the templates.
    has_sentinels: whether the template of the inputs has sentinels.
  """

  def __init__(self, arguments: Arguments, vocabulary: Vocabulary):
    is_decoder = arguments.is_decoder
    self._templates = {
      "inputs": Template(arguments.inputs, "inputs", vocabulary.extra_ids),
      "targets": Template(arguments.targets, "targets", vocabulary.extra_ids),
    }
    self.fields = (*self._templates["inputs"].fields, *self._templates["targets"].fields)
    self.has_sentinels = self._templates["inputs"].has_sentinels
    self._allows_gaps = {"inputs": arguments.allows_gaps, "targets": False}
    targets_vocabulary = vocabulary if is_decoder else vocabulary.for_targets()
    self._vocabularies = {"inputs": vocabulary, "targets": targets_vocabulary}
    opening_ids = [] if is_decoder else vocabularies.opening_ids(vocabulary)
    self._opening_ids = np.array(opening_ids, np.int32)

  def view(self, record: Record, where: str, _: int = 0) -> dict[str, str | None]:
    """Return the texts of a record; see `Task.examples`."""
    texts = {}
    for name, template in self._templates.items():
      texts[name] = template(record, where, self._allows_gaps[name])
    return texts

  def make_example(self, record: Record, where: str) -> Example | Skip:
    """Return the ids of a record's texts, or the reason to skip it."""
    texts = self.view(record, where)
    for name, text in texts.items():
      if text is None:
        return Skip(f"empty {name}")
    ids = {name: self._encode(name, text) for name, text in texts.items()}
    if not all(part.size for part in ids.values()):
      return Skip("no tokens")
    return {name: np.append(self._opening_ids, part) for name, part in ids.items()}

  def _encode(self, name: str, text: str) -> np.ndarray:
    """Return the ids of the inputs or the targets."""
    vocabulary = self._vocabularies[name]
    if self._templates[name].has_sentinels:
      ids = vocabularies.encode_sentinels(vocabulary, text)
    else:
      ids = vocabulary.encode(text)
    return np.asarray(ids, np.int32)


class _Rows:
  """Rows of examples, packed by a plan.

  Args:
    store: the prepared examples.
    arguments: the arguments of the task.
    vocabulary: the vocabulary of the ids.
    used: the numbers of the n used examples among all N stored ones.
    stored_N2: the number of stored tokens of each example, in inputs and targets.
    lengths_n2: the number of tokens of each used example after truncation, in inputs and targets.
    sizes_nD: the number of positions of each used example, in each stream of the rows.

  Attributes:
    plan: the packing plan.
  """

  def __init__(
    self,
    store: ExampleStore,
    arguments: Arguments,
    vocabulary: Vocabulary,
    *,
    used: np.ndarray,
    stored_N2: np.ndarray,
    lengths_n2: np.ndarray,
    sizes_nD: np.ndarray,
  ):
    self._store = store
    self._limits = arguments.limits
    self._vocabulary = vocabulary
    self._used = used
    self._stored_N2 = stored_N2
    self._lengths_n2 = lengths_n2
    self._sizes_nD = sizes_nD
    self.plan = packing.plan_examples(
      sizes_nD, arguments.limits, arguments.packed, arguments.pack_seed, store.path
    )

  def truncated_share(self) -> float:
    """Return the share of the used examples that are shortened."""
    return truncated_share(self._stored_N2, self._used, self._lengths_n2)

  def _read_stream(
    self, name: str, index_n: np.ndarray, ends_with_eos: bool
  ) -> tuple[np.ndarray, np.ndarray]:
    """Read one stream of used examples.

    Args:
      name: `inputs` or `targets`.
      index_n: the indices of the examples in `used`.
      ends_with_eos: whether truncated examples end with EOS.

    Returns:
      (tokens int32 [n, L], validity bool [n, L]).
    """
    length_n = self._lengths_n2[index_n, _STREAMS.index(name)]
    example_n = self._used[index_n]
    tokens_nL, valid_nL = self._store.read(name, example_n, length_n)
    if ends_with_eos:
      truncated = np.flatnonzero(length_n < self._store.lengths[name][example_n])
      tokens_nL[truncated, length_n[truncated] - 1] = self._vocabulary.eos_id
    return tokens_nL, valid_nL


def _stored_lengths(store: ExampleStore) -> np.ndarray:
  """Return the number of tokens of each example in inputs and targets, int64 [N, 2]."""
  return np.stack([store.lengths[name] for name in _STREAMS], axis=1)


class _EncoderDecoderPairs(_Rows):
  """Rows for an encoder-decoder: the inputs for its encoder, the targets for its decoder."""

  def __init__(self, store: ExampleStore, arguments: Arguments, vocabulary: Vocabulary):
    stored_N2 = _stored_lengths(store)
    keys = ("inputs_length", "targets_length")
    used, lengths_n2 = fit(stored_N2, arguments.limits, arguments.too_long, store.path, keys)
    super().__init__(
      store,
      arguments,
      vocabulary,
      used=used,
      stored_N2=stored_N2,
      lengths_n2=lengths_n2,
      sizes_nD=lengths_n2,
    )

  def read(self, row_B: np.ndarray) -> dict[str, np.ndarray]:
    """Return the features of rows."""
    inputs, input_segments, input_positions = self._place("inputs", row_B)
    targets, target_segments, target_positions = self._place("targets", row_B)
    decoder_inputs = packing.shift_segments(
      targets, target_segments, target_positions, self._vocabulary.decoder_start_id
    )
    return {
      "encoder_segment_ids": input_segments,
      "encoder_positions": input_positions,
      "decoder_segment_ids": target_segments,
      "decoder_positions": target_positions,
      "encoder_input_tokens": inputs,
      "decoder_input_tokens": decoder_inputs,
      "decoder_target_tokens": targets,
      "decoder_loss_weights": target_segments > 0,
    }

  def _place(self, name: str, row_B: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the tokens, segments and positions of a stream in rows."""
    stream = _STREAMS.index(name)
    member_n, row_n, number_n = self.plan.members(row_B)
    tokens_nL, valid_nL = self._read_stream(name, self.plan.examples[member_n], ends_with_eos=True)
    offset_n = self.plan.offsets[member_n, stream]
    shape = (row_B.size, self._limits[stream])
    tokens, segments, positions = packing.scatter(
      tokens_nL, valid_nL, row_n, number_n, offset_n, shape
    )
    tokens = np.where(segments > 0, tokens, self._vocabulary.pad_id or 0)
    return tokens, segments, positions


class _Sequences(_Rows):
  """Rows for a decoder; an example is one sequence of inputs and targets."""

  def __init__(self, store: ExampleStore, arguments: Arguments, vocabulary: Vocabulary):
    self._learns_inputs = arguments.loss_on == "all"
    stored_N2 = _stored_lengths(store)
    total_N1 = stored_N2.sum(axis=1, keepdims=True)
    keys = ("inputs_length",)
    used, total_n1 = fit(total_N1, arguments.limits, arguments.too_long, store.path, keys)
    # Truncation shortens the inputs, from their end.
    targets_n1 = np.minimum(stored_N2[used, 1:], total_n1)
    super().__init__(
      store,
      arguments,
      vocabulary,
      used=used,
      stored_N2=stored_N2,
      lengths_n2=np.concatenate([total_n1 - targets_n1, targets_n1], axis=1),
      sizes_nD=total_n1,
    )

  def read(self, row_B: np.ndarray) -> dict[str, np.ndarray]:
    """Return the features of rows."""
    member_n, row_n, number_n = self.plan.members(row_B)
    index_n = self.plan.examples[member_n]
    inputs_length_n1 = self._lengths_n2[index_n, :1]
    size_n1 = self._sizes_nD[index_n]
    tokens_nL = np.zeros((index_n.size, max(int(size_n1.max(initial=0)), 1)), np.int32)
    position_L = np.arange(tokens_nL.shape[1])
    valid_nL = position_L < size_n1
    is_input_nL = position_L < inputs_length_n1
    inputs_nT, valid_nT = self._read_stream("inputs", index_n, ends_with_eos=False)
    tokens_nL[is_input_nL] = inputs_nT[valid_nT]
    targets_nT, valid_nT = self._read_stream("targets", index_n, ends_with_eos=True)
    tokens_nL[~is_input_nL & valid_nL] = targets_nT[valid_nT]
    locations = (row_n, number_n, self.plan.offsets[member_n, 0])
    shape = (row_B.size, self._limits[0])
    start_id = vocabularies.start_id(self._vocabulary)
    learned_nL = valid_nL if self._learns_inputs else ~is_input_nL
    rows = packing.decoder_rows(
      tokens_nL, valid_nL, learned_nL, locations, shape, start_id, pad_id=0
    )
    # The start token and the inputs are the prefix.
    is_prefix_nL = position_L <= inputs_length_n1
    prefix_BT, _, _ = packing.scatter(is_prefix_nL, valid_nL, *locations, shape)
    rows["decoder_causal_attention"] = prefix_BT
    return rows

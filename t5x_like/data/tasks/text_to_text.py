"""Supervised text-to-text: records, with templates for input and target (Raffel et al. 2020, section 2.4).

  config.task = {"name": "text_to_text", "source": "parallel:corpus/{split}.{field}.gz", "vocabulary": "vocabulary",
                 "inputs": "translate English to German: {en}", "targets": "{de}",
                 "inputs_length": 512, "targets_length": 512}

The first use tokenises the split into `cache` (`python -m tools.prepare_examples --config=…` does only that); training
reads ids. See `data/supervised/` for templates, prepared examples and packing.

For an encoder-decoder a record becomes (inputs + EOS, targets + EOS). For a decoder it is one sequence, inputs then
targets + EOS, with loss on the targets only; with `prefix`, attention is bidirectional over the start token and the
inputs (Raffel et al. 2020, section 3.2.1). A packed row holds several of these, which do not attend to each other; the
loader, an epoch and an evaluation's `max_examples` then count rows as examples, and every epoch has every record once.

`Task.examples` gives `record`, `inputs` and `targets` (texts) of every example, before packing and whatever its length.
"""

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from t5x_like import vocabularies
from t5x_like.corpora.sources import Record, Skip
from t5x_like.data import features as declared
from t5x_like.data.features import Feature, Features
from t5x_like.data.supervised import encoder_inputs, example_store, packing, records
from t5x_like.data.supervised.example_store import Example, ExampleStore
from t5x_like.data.supervised.templates import Template
from t5x_like.data.supervised.too_long import TooLong, fit
from t5x_like.data.task import Task, digest
from t5x_like.errors import UserError
from t5x_like.slots import Length
from t5x_like.store.reader import Verify
from t5x_like.vocabularies import Vocabulary, opening, start_id

_RECORDS_AT_ONCE = 1024


# On the built-in corpus, for `:debug`.
BUILT_IN = {"source": "builtin", "vocabulary": "bytes", "inputs": "reverse: {text}", "targets": "{reversed}"}


def tiny(length: int) -> dict[str, int]:
  """Return the lengths of its laptop form, independent of `length` because bytes need them."""
  return {"inputs_length": 128, "targets_length": 128}


def features(
  vocabulary, /, *, inputs_length: int, targets_length: int | None, architecture: str, prefix: bool, packed: bool, **_
) -> Features:
  """Return the features of the task with these arguments.

  Segments mark the padding of decoders, whose start id may be any id, and of vocabularies without a padding id.
  """
  places = ("segment_ids", "positions")
  if architecture == "decoder":
    return declared.decoder(inputs_length, *("causal_attention",) * prefix, *places)
  sides = {"encoder": inputs_length, "decoder": inputs_length if targets_length is None else targets_length}
  described = declared.encoder_decoder(*sides.values())
  for side, length in sides.items() if packed or vocabulary.pad_id is None else ():
    described |= {f"{side}_{name}": Feature((length,), "int32") for name in places}
  return described


def task(
  *,
  source: str,
  split: str,
  inputs: str,
  targets: str,
  vocabulary: str = "bytes",
  inputs_length: Length = 512,
  targets_length: Length | None = None,
  architecture: Literal["encoder_decoder", "decoder"] = "encoder_decoder",
  prefix: bool = False,
  packed: bool = True,
  too_long: TooLong = "refuse",
  pack_seed: int = 0,
  cache: str = "data/prepared",
  data_dir: str | None = None,
  label: str | None = None,
  verify: Verify = "auto",
) -> Task:
  """Make the task.

  Args:
    source, split: the source of the records, see `corpora/sources/__init__.py`.
    inputs, targets: templates over a record's fields. Records where one is empty are skipped and counted.
    vocabulary: a vocabulary's directory or file, or `bytes`.
    inputs_length: tokens in a row of the encoder or, for a decoder, in the whole row.
    targets_length: tokens in a row of the decoder of an encoder-decoder; None is inputs_length.
    architecture: the kind of model that the features are for.
    prefix: for a decoder, adds `decoder_causal_attention`.
    packed: several examples per row; otherwise one.
    too_long: treatment of examples longer than a row: `refuse` (an error), `skip` (with a report) or `truncate`.
    pack_seed: seed of the packing plan; decides which examples share a row.
    cache: the directory of prepared examples.
    data_dir: where TensorFlow datasets are prepared.
    label: the name in metrics; by default `<corpus>_text_to_text`.
    verify: the checks on opening the prepared examples, see `TokenStore.open`.

  Raises:
    UserError: unusable source, templates or lengths; no examples; a file changed since preparation.
  """
  decoder = architecture == "decoder"
  if decoder and targets_length is not None:
    raise UserError(
      f"config.task.targets_length: found {targets_length}, expected None, as a decoder's row is one "
      "sequence of inputs_length tokens"
    )
  if prefix and not decoder:
    raise UserError("config.task.prefix: found True, expected architecture='decoder': encoders see their whole input")
  encoding = vocabularies.load(vocabulary)
  templates = {
    name: Template(text, name, encoding.extra_ids) for name, text in (("inputs", inputs), ("targets", targets))
  }
  begin = [] if decoder else opening(encoding)
  fields = (*templates["inputs"].fields, *templates["targets"].fields)
  store = example_store.open_store(
    source,
    split,
    task="text_to_text.v1",
    fields=fields,
    facts={"inputs": inputs, "targets": targets},
    vocabulary=encoding,
    streams={"inputs": not decoder, "targets": True},
    examples=functools.partial(_examples, templates, encoding, begin),
    cache=cache,
    data_dir=data_dir,
    verify=verify,
  )
  limits = (inputs_length,) if decoder else (inputs_length, inputs_length if targets_length is None else targets_length)
  lengths_N2 = np.stack([store.lengths["inputs"], store.lengths["targets"]], axis=1)
  if decoder:  # truncation shortens the inputs, from their end
    used, total_n1 = fit(lengths_N2.sum(axis=1, keepdims=True), limits, too_long, store.path, ("inputs_length",))
    lengths_n2 = lengths_N2[used]
    lengths_n2[:, 0] = np.maximum(total_n1[:, 0] - lengths_n2[:, 1], 0)
    lengths_n2[:, 1] = total_n1[:, 0] - lengths_n2[:, 0]
    packing_nD = total_n1
  else:
    used, lengths_n2 = fit(lengths_N2, limits, too_long, store.path, ("inputs_length", "targets_length"))
    packing_nD = lengths_n2
  plan = packing.alone(packing_nD, limits)
  if packed:
    plan = packing.cached(packing_nD, limits, pack_seed, f"{store.path}/plans")
  _report(store, plan, packed)
  pieces = Pieces(store, plan, used, lengths_n2, encoding)

  def of_records(more: Sequence[str]) -> list[dict[str, Any]]:
    examples = functools.partial(_examples, templates, encoding, begin)
    found = records.used(source, split, fields=(*fields, *more), data_dir=data_dir, examples=examples)
    return [
      {"record": record} | {name: template(record, where) for name, template in templates.items()}
      for where, record in found
    ]

  make = pieces.decoder if decoder else pieces.encoder_decoder
  described = features(
    encoding,
    inputs_length=inputs_length,
    targets_length=targets_length,
    architecture=architecture,
    prefix=prefix,
    packed=packed,
  )
  start = start_id(encoding) if decoder else encoding.decoder_start_id

  return Task(
    name=label or f"{store.name}_text_to_text",
    vocabulary=encoding,
    fingerprint=digest(
      task="text_to_text.v2",
      examples=store.fingerprint,
      limits=limits,
      architecture=architecture,
      prefix=prefix,
      packed=packed,
      too_long=too_long,
      pack_seed=pack_seed,
      vocabulary=encoding.fingerprint,
    ),
    num_examples=plan.num_rows,
    features=described,
    batch=encoder_inputs.batch_of(lambda row_B: make(row_B, start), described),
    examples=of_records,
    marked=templates["inputs"].marked,
  )


def _examples(
  templates: dict[str, Template], vocabulary: Vocabulary, begin: list[int], rows: Iterator[tuple[str, Record]]
) -> Iterator[Example | Skip]:
  """Tokenise records in batches; every sequence starts with `begin`."""
  while held := list(itertools.islice(rows, _RECORDS_AT_ONCE)):
    texts: dict[str, list[str]] = {name: [] for name in templates}
    for where, record in held:
      made = {name: template(record, where) for name, template in templates.items()}
      empty = [name for name, text in made.items() if text is None]
      if empty:
        yield Skip(f"empty {empty[0]}")
        continue
      for name, text in made.items():
        texts[name].append(text)
    encoded = {
      name: vocabularies.encode_sentinels_batch(vocabulary, lines)
      if templates[name].marked
      else vocabulary.encode_batch(lines)
      for name, lines in texts.items()
    }
    for ids in zip(*encoded.values()):
      example = dict(zip(encoded, ids))
      if not all(len(ids) for ids in example.values()):
        yield Skip("no tokens")
      else:
        yield {name: np.append(np.int32(begin), ids) for name, ids in example.items()} if begin else example


def _report(store: ExampleStore, plan: packing.Plan, packed: bool) -> None:
  streams = [f"{100 * part:.1f}% of {limit:,}" for part, limit in zip(plan.utilisation, plan.limits)]
  how = f"packed into {plan.num_rows:,} rows" if packed else "unpacked"
  print(
    f"data: {store.path}: {plan.examples.size:,} examples {how}, {100 * plan.utilisation[-1]:.1f}% of positions "
    f"used ({', '.join(streams)})",
    flush=True,
  )


class Pieces:
  """The rows of a plan, read from the store.

  Args:
    used: int64 [n], the store's number of each example of the plan.
    lengths_n2: int64 [n, 2], the used lengths of its inputs and targets; truncated sequences end with EOS.
  """

  def __init__(
    self, store: ExampleStore, plan: packing.Plan, used: np.ndarray, lengths_n2: np.ndarray, vocabulary: Vocabulary
  ):
    self._store, self._plan, self._used, self._lengths_n2 = store, plan, used, lengths_n2
    self._eos_id, self._pad_id = vocabulary.eos_id, vocabulary.pad_id or 0

  def _stream(self, stream: int, which_n: np.ndarray, ends: bool = True) -> tuple[np.ndarray, np.ndarray]:
    name, length_n = ("inputs", "targets")[stream], self._lengths_n2[which_n, stream]
    tokens_nL, valid_nL = self._store.read(name, self._used[which_n], length_n)
    cut = np.flatnonzero(length_n < self._store.lengths[name][self._used[which_n]]) if ends else []
    tokens_nL[cut, length_n[cut] - 1] = self._eos_id
    return tokens_nL, valid_nL

  def encoder_decoder(self, row_B: np.ndarray, start: int) -> dict[str, np.ndarray]:
    """Return the features of an encoder-decoder for rows, int64 [B]."""
    place_n, row_n, number_n = self._plan.members(row_B)
    which_n, offset_n2 = self._plan.examples[place_n], self._plan.offsets[place_n]
    out = {}
    for stream, side in enumerate(("encoder", "decoder")):
      tokens, segments, positions = packing.scatter(
        *self._stream(stream, which_n), row_n, number_n, offset_n2[:, stream], (row_B.size, self._plan.limits[stream])
      )
      tokens = np.where(segments > 0, tokens, self._pad_id)
      out |= {f"{side}_segment_ids": segments, f"{side}_positions": positions}
      out["encoder_input_tokens" if side == "encoder" else "decoder_target_tokens"] = tokens
    segments = out["decoder_segment_ids"]
    inputs = packing.shifted(out["decoder_target_tokens"], segments, out["decoder_positions"], start)
    return out | {"decoder_input_tokens": inputs, "decoder_loss_weights": (segments > 0).astype(np.float32)}

  def decoder(self, row_B: np.ndarray, start: int) -> dict[str, np.ndarray]:
    """Return the features of a decoder, inputs and targets in one sequence, for rows, int64 [B]."""
    place_n, row_n, number_n = self._plan.members(row_B)
    which_n = self._plan.examples[place_n]
    inputs_nL, valid_nL = self._stream(0, which_n, ends=False)
    targets_nT, valid_nT = self._stream(1, which_n)
    prompt_n, total_n = self._lengths_n2[which_n, 0], self._lengths_n2[which_n].sum(axis=1)
    whole_nL = np.zeros((which_n.size, max(int(total_n.max(initial=0)), 1)), np.int32)
    places_L = np.arange(whole_nL.shape[1])
    whole_nL[places_L < prompt_n[:, None]] = inputs_nL[valid_nL]
    whole_nL[(places_L >= prompt_n[:, None]) & (places_L < total_n[:, None])] = targets_nT[valid_nT]
    shape = (row_B.size, self._plan.limits[0])
    tokens, segments, positions = packing.scatter(
      whole_nL, places_L < total_n[:, None], row_n, number_n, self._plan.offsets[place_n, 0], shape
    )
    prompt = np.zeros(shape, np.int32)
    prompt[segments > 0] = np.repeat(prompt_n, total_n)  # rows hold their examples in the order of `members`
    target = (segments > 0) & (positions >= prompt)
    return {
      "decoder_input_tokens": packing.shifted(tokens, segments, positions, start),
      "decoder_target_tokens": tokens,
      "decoder_loss_weights": target.astype(np.float32),
      "decoder_segment_ids": segments,
      "decoder_positions": positions,
      "decoder_causal_attention": ((segments > 0) & (positions <= prompt)).astype(np.int32),
    }

"""Classify texts or pairs of texts, or predict a number from them.

Rows are made as in training (`data/supervised/sequences.py`), from token ids in memory.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like import slots
from t5x_like.corpora import sources, tables
from t5x_like.corpora.sources import Skip
from t5x_like.data.supervised.sequences import rows_class
from t5x_like.data.supervised.templates import Template
from t5x_like.data.task import TASKS
from t5x_like.errors import UserError
from t5x_like.evals import _labelled
from t5x_like.inference import texts
from t5x_like.inference.texts import describe_text
from t5x_like.rows import Runner

TASK_NAME = "classification"
_DEFAULT_TOP_K = 5  # labels of an answer
# Formats without blank lines. JSON lines are read separately, as a blank line has an answer too.
_TABLE_FORMATS = ("csv", "tsv", "parquet", "arrow")


Input = str | Sequence[str] | Mapping[str, Any]


class InMemoryTexts:
  """The token ids of texts in memory, read as an `ExampleStore` is.

  Attributes:
    path: the origin of the texts, for messages.
    vocabulary: the vocabulary of the ids.
    lengths: tokens of each example in each stream: int64 [N].
  """

  def __init__(self, origin: str, vocabulary, streams: dict[str, list[list[int]]]):
    self.path = origin
    self.vocabulary = vocabulary
    self._streams = streams
    self.lengths = {
      name: np.array([len(ids) for ids in rows], np.int64) for name, rows in streams.items()
    }

  def read(
    self, stream: str, example_n: np.ndarray, length_n: np.ndarray, skip_n: np.ndarray | int = 0
  ) -> tuple[np.ndarray, np.ndarray]:
    """Read the first `length_n` tokens of some examples, after skipping `skip_n`.

    Returns:
      (int32 [n, L], bool [n, L]): tokens, and which of them belong to the example; L is the longest
      of `length_n`.
    """
    L = max(int(length_n.max(initial=1)), 1)
    tokens_nL = np.zeros((len(example_n), L), np.int32)
    ranges = zip(example_n, length_n, np.broadcast_to(skip_n, length_n.shape))
    for row, (example, length, skip) in enumerate(ranges):
      tokens_nL[row, :length] = self._streams[stream][example][skip : skip + length]
    return tokens_nL, np.arange(L) < length_n[:, None]


class EncodedTexts(NamedTuple):
  """Encoded texts: features of the model [N, …], and tokens of each row, int64 [N]."""

  features: dict[str, np.ndarray]
  lengths: np.ndarray


class TextClassification:
  """A predictor of labels or, for a regression model, of numbers.

  Texts are truncated as in training.

  Args:
    model: the abstract model.
    vocabulary: the vocabulary of its training.
    task: the arguments of `config.task` in its training; `labels` of None is a regression.
    flags: the flags of the command line: `top_k` is the number of labels in an answer, by default
      5.
  Raises:
    UserError: another flag is given.
  """

  def __init__(self, model, vocabulary, task: Mapping[str, Any], flags: dict[str, Any]):
    arguments_class = TASKS.find("config.task.name", TASK_NAME)
    arguments = slots.defaults(arguments_class) | dict(task)
    unknown_flags = [name for name in flags if name != "top_k"]
    if unknown_flags:
      raise UserError(
        f"--{unknown_flags[0]}={flags[unknown_flags[0]]}: the model classifies texts and "
        "generates nothing; it takes only --top_k, the number of labels"
      )
    top_k = flags.get("top_k", _DEFAULT_TOP_K)
    if top_k < 1:
      raise UserError(f"--top_k={top_k}: expected at least 1")
    self.vocabulary = vocabulary
    self.labels = arguments["labels"]
    if self.labels:
      self.labels = [str(name) for name in self.labels]
    self.templates = []
    for key in ("text", "pair"):
      if arguments.get(key):
        self.templates.append(Template(arguments[key], key))
    self._architecture = arguments["architecture"]
    self._length = arguments["length"]
    self._both_orders = arguments["both_orders"]
    # Some published models give each label a probability of its own.
    self._independent = bool(arguments.get("independent"))
    self._top_k = min(top_k, len(self.labels or ()))
    self._model = model

  @property
  def pairs(self) -> bool:
    """Whether an input is a pair of texts."""
    return len(self.templates) == 2

  @property
  def description(self) -> str:
    """Describe the messages that it takes, in a sentence."""
    text = "two texts with ' | ' between them" if self.pairs else "your text"
    if self.labels is None:
      return f"It gives a number to {text}."
    names = ", ".join(self.labels[:8])
    if len(self.labels) > 8:
      names += ", …"
    return f"It labels {text}: {names}."

  def read(self, path: str, field: str | None) -> list[Input | None]:
    """Return the inputs of a file, None for a blank line.

    Args:
      path: lines of text; or a `.jsonl`, `.csv`, `.tsv`, `.parquet` or `.arrow` file with the
        columns of training.
      field: the column of the text, if it has another name than in training.
    Raises:
      UserError: as `texts.read_texts`, or a column is missing.
    """
    file_format = tables.format_of(path)
    templates = self.templates
    if field is not None:
      if self.pairs:
        raise UserError(
          f"--text_field={field}: the model reads pairs of texts; name their columns as in training"
        )
      templates = [Template("{" + field + "}", "text")]
    if file_format in _TABLE_FORMATS:
      return self._read_table(path, file_format, templates)
    if file_format == "jsonl" or field is not None:
      return self._read_json_lines(path, templates)
    return texts.read_texts(path)

  def _read_table(
    self, path: str, file_format: str, templates: Sequence[Template]
  ) -> list[Input | None]:
    fields = tuple(name for template in templates for name in template.fields)
    has_header = not all(name.isdecimal() for name in fields)
    source = sources.open_source(f"{file_format}:{path}", fields=() if has_header else fields)
    inputs = []
    for where, record in source.records("train"):
      if not isinstance(record, Skip):
        inputs.append(self._fill_templates(record, where, templates))
    if not inputs:
      raise UserError(
        f"--input={path}: found no row below its header, expected an input in every row"
      )
    return inputs

  def _read_json_lines(self, path: str, templates: Sequence[Template]) -> list[Input | None]:
    inputs = []
    for number, record in enumerate(texts.read_objects(path), 1):
      if record is None:
        inputs.append(None)
      else:
        inputs.append(self._fill_templates(record, f"--input={path}: line {number}", templates))
    return inputs

  def _fill_templates(
    self, record: Mapping[str, Any], where: str, templates: Sequence[Template]
  ) -> Input | None:
    """Return the text or texts of a record, None if they are blank."""
    try:
      parts = [template(record, where, gaps=True) for template in templates]
    except UserError as error:
      if self.pairs:
        advice = "name the columns as in training"
      else:
        advice = "name the column of the text with --text_field"
      raise UserError(f"{error}; {advice}") from None
    if not any(part.strip() for part in parts):
      return None
    return tuple(parts) if self.pairs else parts[0]  # a list would be a conversation

  def encode(self, inputs: Sequence[Input], origin: str) -> EncodedTexts:
    """Encode inputs as rows of the model.

    Args:
      inputs: texts; pairs of texts, as sequences of two or as strings with a tab or ` | ` between
        them; or records with the fields of training.
      origin: the origin of the inputs, for messages.
    Raises:
      UserError: an input has another number of texts.
    """
    names = ("text", "pair")[: len(self.templates)]
    streams: dict[str, list[list[int]]] = {name: [] for name in names}
    for number, entry in enumerate(inputs, 1):
      for name, text in zip(names, self._split_input(entry, f"{origin}: input {number}")):
        streams[name].append(list(self.vocabulary.encode(text)))
    store = InMemoryTexts(origin, self.vocabulary, streams)
    make_rows = rows_class(self._architecture)

    rows = make_rows(store, names, self._length)
    used_N, lengths_ND = rows.fit("truncate")
    by_order = [rows(used_N, lengths_ND)]
    if self._both_orders:
      reversed_rows = make_rows(store, names[::-1], self._length)
      by_order.append(reversed_rows(used_N, lengths_ND[:, ::-1]))

    features = {}
    for name, array in by_order[0].items():
      if self._architecture != "encoder":
        array = np.stack([row_features[name] for row_features in by_order], axis=1)
      features[name] = np.asarray(array, np.float32 if "weights" in name else np.int32)
    return EncodedTexts(features, lengths_ND.sum(axis=1) + rows.extra)

  def _split_input(self, entry: Input, where: str) -> list[str]:
    """Return the one or two texts of an input."""
    if isinstance(entry, Mapping):
      return [template(entry, where, gaps=True) for template in self.templates]
    parts = [entry]
    if self.pairs and isinstance(entry, str):
      parts = entry.split("\t" if "\t" in entry else " | ")
    elif self.pairs and isinstance(entry, Sequence):
      parts = list(entry)
    if len(parts) != len(self.templates) or not all(isinstance(part, str) for part in parts):
      expected = "a text"
      if self.pairs:
        expected = "two texts with a tab or ' | ' between them, or an object with both"
      raise UserError(f"{where}: found {describe_input(entry)}, expected {expected}")
    return parts

  def __call__(
    self, run: Runner, ids: EncodedTexts, inputs: Sequence[Input]
  ) -> list[dict[str, Any]]:
    """Return an answer for each input: `input`, `prediction` and, for a classifier, probabilities.

    `probability` belongs to the prediction; `predictions` has the likeliest labels, each with its
    `probability`.
    """
    if not inputs:
      return []
    longest = self._length
    lengths = _labelled.padded_lengths(self._model, ids.lengths, longest)
    results = run.run_on_features(self._outputs, ids.features, lengths, longest)
    return [self._answer(entry, logits) for entry, (logits,) in zip(inputs, results)]

  def _outputs(self, model, batch: dict[str, jax.Array]) -> tuple[jax.Array]:
    return (_labelled.example_outputs(model, batch)["logits"].astype(jnp.float32),)

  def _answer(self, entry: Input, logits_V: np.ndarray) -> dict[str, Any]:
    if self.labels is None:
      return {"input": entry, "prediction": float(f"{logits_V[0]:.6g}")}
    logits_V = logits_V[: len(self.labels)].astype(np.float64)
    if self._independent:
      p_V = 1.0 / (1.0 + np.exp(-logits_V))
    else:
      p_V = np.exp(logits_V - logits_V.max())
      p_V /= p_V.sum()
    best = np.argsort(-p_V, kind="stable")[: self._top_k]
    candidates = [{"label": self.labels[n], "probability": float(f"{p_V[n]:.6g}")} for n in best]
    first = candidates[0]
    answer = {"input": entry, "prediction": first["label"], "probability": first["probability"]}
    return answer | {"predictions": candidates}


def describe_input(entry: Any) -> str:
  """Describe an input for a message."""
  if isinstance(entry, str):
    return describe_text(entry, 0).partition(" ")[2]
  return slots.format_value(entry)

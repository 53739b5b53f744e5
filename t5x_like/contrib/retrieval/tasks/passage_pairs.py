"""Queries and their passages, for a retriever alone.

They are the pairs of the inverse cloze task (Lee et al. 2019), or pairs of your own.

  config.task = {"name": "passage_pairs", "source": "cloze:jsonl:wikipedia/*.jsonl.gz", "inputs":
                 "{inputs}", "passage": "{passage}", "vocabulary": "vocabulary"}

A row has `encoder_input_tokens`, the query up to EOS, `passage_tokens` int32 [1, passage_length],
its passage up to EOS, and `example_weights`, 1 but in the rows that pad the last batch of an
evaluation.

`Task.examples` gives `record`, `inputs` and `passage`.
"""

import dataclasses

import numpy as np

from t5x_like import vocabularies
from t5x_like.contrib.retrieval.passages import check_padding, encode, read_padded
from t5x_like.corpora.sources import Record, Skip
from t5x_like.data.features import Feature, Features
from t5x_like.data.supervised.example_store import Example, ExampleStore
from t5x_like.data.supervised.labelled import ExampleRows, LabelledArguments
from t5x_like.data.supervised.templates import Template
from t5x_like.data.task import Task, rows_only
from t5x_like.slots import Length
from t5x_like.vocabularies import Vocabulary

# On the built-in corpus, for `:debug`.
BUILT_IN = {"source": "builtin", "vocabulary": "bytes", "inputs": "{reversed}", "passage": "{text}"}


def tiny(length: int) -> dict[str, int]:
  """Return the lengths for the laptop form of a recipe."""
  return {"inputs_length": length, "passage_length": length}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(LabelledArguments):
  """The arguments of pairs of queries and passages.

  Attributes:
    inputs, passage: templates of a query and its passage over a record's fields.
    inputs_length, passage_length: the maximum number of tokens of each, with EOS; longer ones are
      cut.
  """

  inputs: str = "{inputs}"
  passage: str = "{passage}"
  inputs_length: Length = rows_only(default=64)
  passage_length: Length = rows_only(default=288)

  def features(self, vocabulary: Vocabulary) -> Features:
    return {
      "encoder_input_tokens": Feature((self.inputs_length,), "int32"),
      "passage_tokens": Feature((1, self.passage_length), "int32"),
      "example_weights": Feature((), "float32"),
    }

  def build(self) -> Task:
    """Prepare the examples and return the task.

    Raises:
      UserError: unusable templates; and as `LabelledArguments.build_task`.
    """
    vocabulary = vocabularies.load(self.vocabulary)
    check_padding(vocabulary)
    templates = {
      "inputs": Template(self.inputs, "inputs"),
      "passage": Template(self.passage, "passage"),
    }

    def render_templates(record: Record, where: str, _: int = 0) -> dict[str, str | None]:
      return {name: template(record, where) for name, template in templates.items()}

    def make_example(record: Record, where: str) -> Example | Skip:
      texts = render_templates(record, where)
      for name, text in texts.items():
        if not text:
          return Skip(f"empty {name}")
      return {name: encode(vocabulary, text) for name, text in texts.items()}

    def make_rows(store: ExampleStore) -> ExampleRows:
      def read(index_B: np.ndarray) -> dict[str, np.ndarray]:
        inputs_BL, _ = read_padded(store, "inputs", index_B, self.inputs_length, vocabulary)
        passage_BP, _ = read_padded(store, "passage", index_B, self.passage_length, vocabulary)
        return {
          "encoder_input_tokens": inputs_BL,
          "passage_tokens": passage_BP[:, None],
          "example_weights": np.ones(index_B.size),
        }

      return ExampleRows(store.num_examples, read, view=render_templates)

    fields = [field for template in templates.values() for field in template.fields]
    return self.build_task(
      "passage_pairs.v1",
      vocabulary,
      fields=tuple(dict.fromkeys(fields)),
      streams=dict.fromkeys(templates, True),
      make_example=make_example,
      make_rows=make_rows,
    )

"""Write trained models for other programs, with one module per format.

A format is a module with `DTYPES`, the dtypes of its tensors; `SUFFIX`, the ending of its paths;
`write`, which writes a model; and `require_exportable`, which refuses a model that the format
cannot hold, before its parameters are read.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from t5x_like import slots
from t5x_like.data import task_features
from t5x_like.saved_model.model import SavedModel
from t5x_like.vocabularies import Vocabulary


@dataclasses.dataclass(frozen=True)
class ExportContext:
  """The contents of an export besides the parameters.

  Attributes:
    config: the resolved config of the run.
    vocabulary: the vocabulary of training.
    features: names and shapes of the features of a row in training.
    labels: the class names of a text classifier, None for other models.
  """

  config: ConfigDict
  vocabulary: Vocabulary
  features: Mapping[str, Sequence[int]]
  labels: list[str] | None = None

  @property
  def template(self) -> str | dict | None:
    """The chat template of a decoder trained on conversations, None for other models."""
    task = self.config.task
    is_decoder = "encoder_input_tokens" not in self.features
    if not is_decoder or not task_features.is_conversation(task.name):
      return None
    return slots.to_plain(task.get("template"))


def describe(saved: SavedModel) -> ExportContext:
  """Return the context of a trained model's exports."""
  task = saved.config.task
  labels = None
  if task.name == "classification" and task.get("labels"):
    labels = [str(name) for name in task.labels]
  features = {name: list(shape[-1:]) for name, shape in saved.feature_shapes.items()}
  return ExportContext(saved.config, saved.vocabulary, features, labels)

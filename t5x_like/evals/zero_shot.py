"""Classify images by the class with the nearest description (CLIP, Radford et al. 2021)."""

import dataclasses
import functools

import numpy as np

from t5x_like import trust
from t5x_like.errors import UserError, unreadable_file_error
from t5x_like.evals import BaseEvaluator, _top_classes
from t5x_like.evals._embeddings import embed_texts
from t5x_like.files.paths import as_path
from t5x_like.slots import Length, PositiveInt


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluator(BaseEvaluator):
  """An evaluator of the class of every labelled image's centre crop.

  The embedding of a class is the mean of those of its name in all templates (prompt ensembling,
  section 3.1.4). In a recipe, the labelled images are the evaluator's own task:

    config.evals.zero_shot = {"task": {"name": "image_classification", "source":
    "folders:validation=imagenet/val", …}}

  Attributes:
    templates: texts with {} instead of the class name.
    names: a file of names, one line per class in the order of the classes; None for the task's own.
    length: the length of the text rows, as in the model's training; None for as many as it has
      positions, or 77.
    max_examples: the number of images, from the first; None means all.

  Raises:
    UserError: the task has no classes, the model has no embeddings of texts, or there are not as
      many names as classes.
  """

  templates: tuple[str, ...] = ("a photo of a {}.",)
  names: str | None = None
  length: Length | None = None
  max_examples: PositiveInt | None = None

  def __post_init__(self):
    task = self.context.task
    has_classes = "image" in task.features and task.classes
    if not has_classes or not hasattr(self.context.model, "embed_texts"):
      raise UserError(
        f"evaluator zero_shot: found task {task.name}, expected a model of images and texts and a "
        'task of labelled images; set task={"name": "image_classification", …} in its arguments'
      )
    if not self.templates or any(template.count("{}") != 1 for template in self.templates):
      raise UserError(
        f"evaluator zero_shot: found templates {list(self.templates)}, expected texts "
        f"with one {{}} in each"
      )
    _ = self._tokens_CT  # raises UserError for unsuitable names

  @functools.cached_property
  def _class_names(self):
    classes = self.context.task.classes
    return classes if self.names is None else _read_names(self.names, len(classes))

  @functools.cached_property
  def _tokens_CT(self):
    """The texts of all classes in all templates, int32 [C, T]."""
    context = self.context
    texts = []
    for name in self._class_names:
      texts += [template.replace("{}", name) for template in self.templates]
    length = self.length or getattr(context.model.text.inputs.position, "length", 77)
    return _encode_texts(texts, context.vocabulary or context.task.vocabulary, length)

  @functools.cached_property
  def _embed_texts(self):
    return self.context.jit(lambda model, batch: (model.embed_texts(batch)[0],))

  def compute(self, model, batch):
    """Return the embeddings of images [B, P], the labels and the indices of the examples."""
    return model.embed_images(batch)[0], batch["label"], batch["example_index"]

  def metric_names(self):
    return _top_classes.top_metric_names(self._class_names)

  def __call__(self, arrays):
    """Return `top1`, with more than five classes `top5`, in percent, and the number of `images`."""
    text_CP = embed_texts(self.context, self._embed_texts, arrays, self._tokens_CT)
    mean_VP = text_CP.reshape(len(self._class_names), -1, text_CP.shape[-1]).mean(axis=1)
    class_VP = mean_VP / np.linalg.norm(mean_VP, axis=1, keepdims=True)
    batches = self.context.batches(self.max_examples)
    image_NP, label_N, index_N = self.context.run_batches(self.run, arrays, batches)
    order_NV = np.argsort(-(image_NP @ class_VP.T), axis=1, kind="stable")
    best_NK = order_NV[:, : _top_classes.TOP_K]
    return _top_classes.score_top_classes(best_NK, label_N, index_N, self._class_names)


def _encode_texts(texts: list[str], vocabulary, length: int) -> np.ndarray:
  """Return the rows of texts, int32 [C, T]."""
  from t5x_like.data.images import prompts

  return prompts.encode_rows(texts, vocabulary, length)


def _read_names(path: str, classes: int) -> tuple[str, ...]:
  """Read the names of the classes from a file.

  Raises:
    UserError: it cannot be read, or has another number of names.
  """
  trust.check_location("evaluator zero_shot: names", path)
  try:
    with as_path(path).open("r", encoding="utf-8") as file:
      names = tuple(line.strip() for line in file if line.strip())
  except (OSError, UnicodeDecodeError) as error:
    raise unreadable_file_error(f"evaluator zero_shot: names: {path}", error) from error
  if len(names) != classes:
    raise UserError(
      f"evaluator zero_shot: names: {path} has {len(names)} names, expected {classes}, one for "
      "each class"
    )
  return names

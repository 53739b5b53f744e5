"""Classify images by the class with the nearest description (CLIP, Radford et al. 2021)."""

import jax
import numpy as np

from t5x_like import trust
from t5x_like.errors import UserError, one_line
from t5x_like.evals import EvalContext, EvalResult, _top_classes
from t5x_like.evals._embeddings import embed_texts
from t5x_like.files.paths import as_path
from t5x_like.parallel.rules import fetch
from t5x_like.slots import Length, PositiveInt


class Evaluator:
  """An evaluator that classifies the centre crop of every labelled image once.

  Scores are in percent. A class is represented by the mean embedding of its name in all templates
  (prompt ensembling, section 3.1.4). In a recipe, the labelled images are the evaluator's own task:

    config.evals.zero_shot = {"task": {"name": "image_classification", "source":
    "folders:validation=imagenet/val", …}}

  Args:
    templates: texts with {} in place of the class name.
    names: a file of names, one line per class in the order of the classes; None for the task's own.
    length: the length of the text rows, as in the model's training; None for as many as it has
      positions, or 77.
    max_examples: the number of images, from the first; None means all.

  Raises:
    UserError: the task has no classes, the model has no embeddings of texts, or there are not as
      many names as classes.
  """

  def __init__(
    self,
    context: EvalContext,
    *,
    templates: tuple[str, ...] = ("a photo of a {}.",),
    names: str | None = None,
    length: Length | None = None,
    max_examples: PositiveInt | None = None,
  ):
    task = context.task
    has_classes = "image" in task.features and task.classes
    if not has_classes or not hasattr(context.model, "embed_texts"):
      raise UserError(
        "evaluator zero_shot: is for models of images and texts, and tasks of labelled images, "
        f"not task {task.name};"
        ' set task={"name": "image_classification", …} in its arguments'
      )
    if not templates or any(template.count("{}") != 1 for template in templates):
      raise UserError(
        f"evaluator zero_shot: found templates {list(templates)}, expected texts "
        f"with one {{}} in each"
      )
    self._context = context
    self._max_examples = max_examples
    self._names = task.classes if names is None else _read_names(names, len(task.classes))
    texts = []
    for name in self._names:
      texts += [template.replace("{}", name) for template in templates]
    length = length or getattr(context.model.text.inputs.position, "length", 77)
    self._tokens_CT = _encode_texts(texts, context.vocabulary or task.vocabulary, length)
    self._texts = context.jit(lambda model, batch: (model.embed_texts(batch)[0],))
    self._images = context.jit(
      lambda model, batch: (model.embed_images(batch)[0], batch["label"], batch["example_index"])
    )

  def metric_names(self) -> tuple[str, ...]:
    return _top_classes.top_metric_names(self._names)

  def __call__(self, arrays: dict[str, jax.Array]) -> EvalResult:
    """Return `top1`, `top5` if there are more than five classes, and the number of `images`."""
    text_CP = embed_texts(self._context, self._texts, arrays, self._tokens_CT)
    mean_VP = text_CP.reshape(len(self._names), -1, text_CP.shape[-1]).mean(axis=1)
    class_VP = mean_VP / np.linalg.norm(mean_VP, axis=1, keepdims=True)
    images = []
    labels = []
    indices = []
    for batch in self._context.global_batches(self._max_examples):
      image_BP, label_B, index_B = self._images(arrays, batch)
      images.append(fetch(image_BP))
      labels.append(fetch(label_B))
      indices.append(fetch(index_B))
    similarity_NV = np.concatenate(images) @ class_VP.T
    order_NV = np.argsort(-similarity_NV, axis=1, kind="stable")
    return _top_classes.score_top_classes(
      order_NV[:, : _top_classes.TOP_K],
      np.concatenate(labels),
      np.concatenate(indices),
      self._names,
    )


def _encode_texts(texts: list[str], vocabulary, length: int) -> np.ndarray:
  from t5x_like.data.images import prompts

  return prompts.encode_rows(texts, vocabulary, length)


def _read_names(path: str, classes: int) -> tuple[str, ...]:
  trust.check_location("evaluator zero_shot: names", path)
  try:
    with as_path(path).open("r", encoding="utf-8") as file:
      names = tuple(line.strip() for line in file if line.strip())
  except (OSError, UnicodeDecodeError) as error:
    raise UserError(
      f"evaluator zero_shot: names: {path} cannot be read ({one_line(error)})"
    ) from error
  if len(names) != classes:
    raise UserError(
      f"evaluator zero_shot: names: {path} has {len(names)} names, expected {classes}, one for "
      "each class"
    )
  return names

"""Predict the classes of images or the objects in them, likeliest first."""

import concurrent.futures
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like.corpora import image_files
from t5x_like.data.images import layout, pictures
from t5x_like.errors import UserError, one_line
from t5x_like.files import globs
from t5x_like.files.paths import as_path
from t5x_like.nn import params
from t5x_like.resolution import height_and_width
from t5x_like.rows import Runner, run_in_batches


def list_images(path: str) -> list[str]:
  """List the files of a folder, a pattern such as `photos/*.jpg`, or a single file by name.

  Raises:
    UserError: there is no file.
  """
  folder = as_path(path)
  if folder.is_dir():
    files = []
    for name in folder.sizes():
      if not os.path.basename(name).startswith("."):
        files.append(str(folder / name))
  else:
    files = [file for file in globs.find_matches(path) if globs.file_kind(file) == "file"]
  if not files:
    raise UserError(
      f"--input={path}: found no file, expected an image, a folder of images, or a pattern such "
      "as '*.jpg'"
    )
  return sorted(files)


def summarize_skipped(answers: Sequence[dict[str, Any]], unit: str = "files") -> str:
  """Report how many files or lines were skipped, by reason; empty if none was."""
  skipped = Counter(answer["error"] for answer in answers if "error" in answer)
  if not skipped:
    return ""
  reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(skipped.items()))
  return f"{skipped.total()} of {len(answers)} {unit} skipped ({reasons})"


def build_predictor(model, vocabulary, task: Mapping[str, Any], flags: dict[str, Any]):
  """Build the predictor of a model of images, which answers files by a `Runner`.

  Args:
    model: the abstract model.
    vocabulary: the vocabulary of its classes.
    task: the arguments of `config.task` in its training.
    flags: the flags given on the command line.
  Raises:
    UserError: the model predicts neither classes nor objects, or a flag does not apply to it.
  """
  if hasattr(model, "build_image_predictor"):
    return model.build_image_predictor(vocabulary, task, flags)
  return ImageClassification(model, vocabulary, task, flags)


class ImagePredictor:
  """The base class of predictors that answer files, a batch at a time.

  A subclass defines the model's inputs for a file (`features`), its computation (`compute`, traced)
  and its `answer`.
  """

  def __call__(self, run: Runner, paths: Sequence[str]) -> list[dict[str, Any]]:
    """Return an answer for each file: `input`, and predictions or an `error`.

    Raises:
      UserError: no file is an image.
    """
    skipped: dict[int, str] = {}
    sizes: dict[int, tuple[int, int]] = {}
    blank = np.zeros((1, 1, self.channels), np.float32)

    def features(numbers: list[int], _) -> dict[str, np.ndarray]:
      rows = []
      images = threads.map(self._read_pixels, [paths[n] for n in numbers])
      for n, image in zip(numbers, images):
        if isinstance(image, str):
          skipped[n] = image
          image = blank
        sizes[n] = image.shape[:2]
        rows.append(self.features(image))
      return {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    @jax.jit
    def compute(arrays, batch):
      with run.rules.activate():
        return self.compute(params.with_arrays(run.model, arrays), batch)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
      lengths = [0] * len(paths)
      results = run_in_batches(
        lambda batch: compute(run.arrays, batch), run.rules, run.batch_size, lengths, features
      )
    if len(skipped) == len(paths):
      summary = summarize_skipped([{"error": reason} for reason in skipped.values()])
      raise UserError(f"--input: found no image; {summary}")
    answers = []
    for n, path in enumerate(paths):
      answer = {"error": skipped[n]} if n in skipped else self.answer(sizes[n], *results[n])
      answers.append({"input": path, **answer})
    return answers

  def _read_pixels(self, path: str) -> np.ndarray | str:
    """Return a file's pixels, or why it cannot be used."""
    try:
      return image_files.read_pixels(as_path(path).read_bytes(), self.channels)
    except OSError as error:
      return f"cannot be read: {error.strerror or one_line(error)}"
    except image_files.UnusableImage as error:
      return str(error)


class ImageClassification(ImagePredictor):
  """A predictor that classifies the centre crop of each image, as in evaluation.

  `--top_k` is the number of classes.
  """

  def __init__(self, model, vocabulary, task: Mapping[str, Any], flags: dict[str, Any]):
    self.read_options(model.variant, task, flags)
    image = jax.ShapeDtypeStruct((1, *self._sides, self.channels), np.float32)
    outputs = {}
    if tuple(getattr(model, "REQUIRED_FEATURES", ())) == ("image",):
      outputs = jax.eval_shape(lambda m, x: m({"image": x}), model, image)
    if "logits" not in outputs or outputs["logits"].ndim != 2:
      raise UserError(
        f"--workdir: the model's head ({type(getattr(model, 'head', None)).__name__}) gives "
        "images no classes; give the workdir of a classifier"
      )
    labels = outputs["logits"].shape[-1]
    self.names = class_names(vocabulary, labels)
    self.top_k = min(self.top_k, labels)

  def read_options(self, variant, task: Mapping[str, Any], flags: dict[str, Any]) -> None:
    task = layout.fill_defaults(task)
    self.top_k = read_top_k(flags, "classifies images", "classes", 5)
    self._sides = height_and_width(variant.resolution)
    self.channels = variant.channels
    self._fit_options = {name: task[name] for name in ("crop", "fit", "mean", "method")}
    self._normalise = normalisation(task)

  def features(self, image_YXC: np.ndarray) -> dict[str, np.ndarray]:
    fitted_YXC = pictures.fit_to_resolution(image_YXC, self._sides, **self._fit_options)
    return {"image": self._normalise(fitted_YXC)}

  def probabilities(self, model, batch: dict[str, jax.Array]) -> jax.Array:
    """Return the probability of each class, float32 [B, V]."""
    return jax.nn.softmax(model(batch)["logits"], axis=-1)

  def compute(self, model, batch):
    p_BV = self.probabilities(model, batch)
    # A sort stays sharded by rows; a `top_k` would gather all rows on every device.
    best_BK = jnp.argsort(-p_BV, axis=-1)[:, : self.top_k]
    return best_BK, jnp.take_along_axis(p_BV, best_BK, axis=-1)

  def answer(self, size, best_K: np.ndarray, p_K: np.ndarray) -> dict[str, Any]:
    """Return `prediction`, its `probability`, and the likeliest classes as `predictions`."""
    predictions = []
    for n, p in zip(best_K.tolist(), p_K.tolist()):
      predictions.append({"label": self.names[n], "probability": float(f"{p:.6g}")})
    return {
      "prediction": predictions[0]["label"],
      "probability": predictions[0]["probability"],
      "predictions": predictions,
    }


def read_top_k(flags: dict[str, Any], action: str, unit: str, default: int) -> int:
  """Return `--top_k`; raise UserError for other flags, which do not apply to images."""
  unknown_flags = [name for name in flags if name != "top_k"]
  if unknown_flags:
    raise UserError(
      f"--{unknown_flags[0]}={flags[unknown_flags[0]]}: the model {action} and generates nothing; "
      f"it takes only --top_k, the number of {unit}"
    )
  if "top_k" in flags and flags["top_k"] < 1:
    raise UserError(f"--top_k={flags['top_k']}: expected at least 1")
  return flags.get("top_k", default)


def class_names(vocabulary, labels: int) -> list[str]:
  """Return the names of classes, "class N" for a class that the vocabulary does not name."""
  names = getattr(vocabulary, "names", ())
  return [names[n] if n < len(names) else f"class {n}" for n in range(labels)]


def normalisation(task: Mapping[str, Any]):
  """Return the function that normalises pixels from 0 to 255 as a task does."""
  mean = np.asarray(task["mean"], np.float32)
  std = np.asarray(task["std"], np.float32)
  return lambda image_YXC: (image_YXC / 255.0 - mean) / std

"""Classes of images, with their probabilities, likeliest first."""

import concurrent.futures
import glob
import os
import pathlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from t5x_like.data.images import pictures
from t5x_like.data.sources import Skip
from t5x_like.errors import UserError, one_line
from t5x_like.nn import params
from t5x_like.rows import Runner, in_batches


def files(path: str) -> list[str]:
  """The files of a folder and those below it, of a pattern such as `photos/*.jpg`, or one file; in the order of names.

  Raises:
    UserError: there is none.
  """
  if os.path.isdir(path):
    found = [str(file) for file in pathlib.Path(path).rglob("*") if file.is_file() and not file.name.startswith(".")]
  else:
    found = (
      [path] if os.path.isfile(path) else [file for file in glob.glob(path, recursive=True) if os.path.isfile(file)]
    )
  if not found:
    raise UserError(
      f"--input={path}: found no file, expected an image, a folder of images, or a pattern such as '*.jpg'"
    )
  return sorted(found)


def told(answers: Sequence[dict[str, Any]]) -> str:
  """How many files were skipped, by reason; empty if none was."""
  skipped = Counter(answer["error"] for answer in answers if "error" in answer)
  reasons = ", ".join(f"{n} {reason}" for reason, n in sorted(skipped.items()))
  return f"{skipped.total()} of {len(answers)} files skipped ({reasons})" if skipped else ""


class ImageClassification:
  """Classifies the middle of each image, as evaluations see it.

  Args:
    model: the abstract model.
    vocabulary: of its classes.
    task: the arguments of `config.task` that it was trained with.
    top_k: how many classes to give.
  Raises:
    UserError: the model has no classes, or a flag is not for images.
  """

  def __init__(self, model, vocabulary, task: Mapping[str, Any], flags: dict[str, Any]):
    if other := [name for name in flags if name != "top_k"]:
      raise UserError(
        f"--{other[0]}={flags[other[0]]}: the model classifies images and generates nothing; of these flags it takes"
        " --top_k, the number of classes to give"
      )
    top_k, variant = flags.get("top_k", 5), model.variant
    if top_k < 1:
      raise UserError(f"--top_k={top_k}: expected at least 1")
    self._resolution, self._channels = variant.resolution, variant.channels
    self._crop = task.get("crop", pictures.CROP)
    self._mean, self._std = (
      np.asarray(task.get(n, d), np.float32) for n, d in (("mean", pictures.MEAN), ("std", pictures.STD))
    )
    image = jax.ShapeDtypeStruct((1, self._resolution, self._resolution, self._channels), np.float32)
    only_images = tuple(getattr(model, "NEEDS", ())) == ("image",)
    out = jax.eval_shape(lambda m, x: m({"image": x}), model, image) if only_images else {}
    if "logits" not in out or out["logits"].ndim != 2:
      raise UserError(
        f"--workdir: the model's head ({type(getattr(model, 'head', None)).__name__}) gives images no classes; give the"
        " workdir of a classifier"
      )
    labels, names = out["logits"].shape[-1], getattr(vocabulary, "names", ())
    self._names = [names[n] if n < len(names) else f"class {n}" for n in range(labels)]
    self._top_k = min(top_k, labels)

  def image(self, path: str) -> np.ndarray | Skip:
    """float32 [Y, X, C] of a file, as the model takes it, or why it cannot be used."""
    try:
      data = pathlib.Path(path).read_bytes()
    except OSError as error:
      return Skip(f"cannot be read: {error.strerror or one_line(error)}")
    found = pictures.pixels(data, self._channels)
    if isinstance(found, Skip):
      return found
    return (pictures.centred(found, self._resolution, self._crop) / 255.0 - self._mean) / self._std

  def __call__(self, run: Runner, paths: Sequence[str]) -> list[dict[str, Any]]:
    """An answer for each file: `input`, `prediction`, its `probability`, and `predictions`, the likeliest classes with
    their probabilities; or `input` and `error`. Files are read a batch at a time.

    Raises:
      UserError: none of the files is an image.
    """
    skipped: dict[int, str] = {}
    empty = np.zeros((self._resolution, self._resolution, self._channels), np.float32)

    def images(numbers: list[int], _) -> dict[str, np.ndarray]:
      found = list(threads.map(self.image, [paths[n] for n in numbers]))
      skipped.update({n: x.reason for n, x in zip(numbers, found) if isinstance(x, Skip)})
      return {"image": np.stack([empty if isinstance(x, Skip) else x for x in found])}

    @jax.jit
    def likeliest(arrays, batch):
      with run.rules.activate():
        p_BV = jax.nn.softmax(params.with_arrays(run.model, arrays)(batch)["logits"], axis=-1)
        best_BK = jax.numpy.argsort(-p_BV, axis=-1)[:, : self._top_k]  # stays sharded by rows, unlike a `top_k`
        return best_BK, jax.numpy.take_along_axis(p_BV, best_BK, axis=-1)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
      results = in_batches(
        lambda batch: likeliest(run.arrays, batch), run.rules, run.batch_size, [0] * len(paths), images
      )
    answers = [
      {"input": path, "error": skipped[n]} if n in skipped else self._answer(path, *results[n])
      for n, path in enumerate(paths)
    ]
    if len(skipped) == len(paths):
      raise UserError(f"--input: found no image; {told(answers)}")
    return answers

  def _answer(self, path: str, best_K: np.ndarray, p_K: np.ndarray) -> dict[str, Any]:
    found = [{"label": self._names[n], "probability": float(f"{p:.6g}")} for n, p in zip(best_K.tolist(), p_K.tolist())]
    return {
      "input": path,
      "prediction": found[0]["label"],
      "probability": found[0]["probability"],
      "predictions": found,
    }

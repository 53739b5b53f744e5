"""Pictures of a run on images: augmented inputs, reconstructions, attention, detections and
confusion matrices.

They are PNG files in `<workdir>/pictures`, each with its title inside.
"""

import dataclasses
import io
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from t5x_like.architectures.heads.reconstruction import ReconstructionHead
from t5x_like.architectures.image_encoder import ImageEncoder, patchify
from t5x_like.data.images.pictures import MEAN, STD
from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.nn.cores.dense import Dense
from t5x_like.nn.dims import Dropout
from t5x_like.nn.remat import KEEP_ALL
from t5x_like.report import box_pictures
from t5x_like.resolution import height_and_width
from t5x_like.rows import in_batches

FOLDER = "pictures"
_SEEN = 16
_SHOWN = 8
_MOST_CLASSES = 40
_SIDE = 112
Pictures = dict[str, tuple[str, Any]]


def made(
  config: ConfigDict, parts, arrays: dict[str, jax.Array], task, evaluated, groups: dict
) -> Pictures:
  """Draw the pictures of a state; return a title and a Pillow image by file name. All processes
  have to call it.

  Args:
    config: resolved.
    parts: `build.Parts`, or others with a model, an objective and rules; `arrays` are the
      parameters.
    task: the task of training, with images; `evaluated` is the task of evaluations.
    groups: the results of evaluations, by group (`evaluation.GroupResults`).
  """
  if task.features["image"].shape[-1] not in (1, 3):
    return {}
  from t5x_like.data import loader  # tensorflow: only where data is read

  found: Pictures = {}
  seen = next(loader.train_batches(task, batch_size=_SEEN, seed=config.seed))["image"]
  found["augmented"] = (
    "What the model sees in training",
    _grid(_coloured(seen, config).reshape(2, -1, *seen.shape[1:])),
  )
  batch = next(loader.eval_batches(evaluated, batch_size=_SHOWN, max_examples=_SHOWN))
  batch = {name: x[batch["example_index"] >= 0] for name, x in batch.items()}
  model = parts.model
  if isinstance(model, ImageEncoder) and isinstance(model.head, ReconstructionHead):
    title = "Masked, reconstructed, original"
    found["reconstruction"] = title, _grid(_reconstructions(config, parts, arrays, batch))
  elif isinstance(model, ImageEncoder) and _recordable(model):
    weights = _run(parts, arrays, _attended, batch)
    title = "Where the model looks: attention through all layers, from what is classified"
    found["attention"] = (
      title,
      _grid(_lit(_coloured(batch["image"], config), weights, parts.model.variant.grid)),
    )
  for name, group in groups.items():
    rows = [row for row in group.predictions if {"target", "prediction"} <= row.keys()]
    if rows and 1 < len(evaluated.classes) <= _MOST_CLASSES:
      title = f"{name}: the classes of rows, taken for those of columns, in percent"
      found[f"confusion_{name}"] = title, confusion(rows, evaluated.classes)
    boxed = {
      row["image"]: row for row in group.predictions if {"objects", "detections"} <= row.keys()
    }
    index_N = [n for n in batch["example_index"].tolist() if n in boxed]
    if index_N and evaluated.boxes is not None:
      N = len(index_N)
      title = f"{name}: what is there (dashed) and what was found"
      seen = _coloured(batch["image"][:N], config), batch["image_size"][:N]
      about = [boxed[n] for n in index_N], evaluated.boxes.pixels[index_N]
      found[f"boxes_{name}"] = title, box_pictures.drawn(*seen, *about, evaluated.classes)
  return found


def write(workdir, pictures: Pictures) -> None:
  """Write pictures into a workdir; raise UserError if it cannot be written."""
  from PIL.PngImagePlugin import PngInfo

  folder = pathlib.Path(workdir) / FOLDER
  try:
    if pictures:
      folder.mkdir(parents=True, exist_ok=True)
    for name, (title, image) in pictures.items():
      about = PngInfo()
      file = io.BytesIO()
      about.add_text("Title", title)
      image.save(file, "PNG", pnginfo=about)
      aside = folder / f"{name}.tmp"
      aside.write_bytes(file.getvalue())
      os.replace(aside, folder / f"{name}.png")
  except OSError as error:
    raise UserError(
      f"{folder}: cannot be written: {error.strerror}; free space, or use another --workdir"
    ) from error


def confusion(rows: Sequence[dict[str, str]], classes: Sequence[str]):
  """Draw the confusion matrix, in percent of each class, as a Pillow image."""
  from PIL import Image, ImageDraw

  V = len(classes)
  cell = 34
  left = 8 + 7 * max(len(name[:16]) for name in classes)
  number = {name: n for n, name in enumerate(classes)}
  count_VV = np.zeros((V, V))
  for row in rows:
    if row["target"] in number and row["prediction"] in number:
      count_VV[number[row["target"]], number[row["prediction"]]] += 1
  share_VV = count_VV / np.maximum(count_VV.sum(1, keepdims=True), 1)
  image = Image.new("RGB", (left + V * cell, left + V * cell), "white")
  draw = ImageDraw.Draw(image)
  for y in range(V):
    draw.text((4, left + y * cell + 11), classes[y][:16], "black")
    for x in range(V):
      share = share_VV[y, x]
      at = (left + x * cell, left + y * cell)
      shade = tuple(int(255 - share * (255 - low)) for low in (37, 99, 235))
      draw.rectangle((*at, at[0] + cell - 2, at[1] + cell - 2), shade)
      if round(100 * share):
        draw.text(
          (at[0] + 7, at[1] + 11), str(round(100 * share)), "white" if share > 0.5 else "black"
        )
  for x in range(V):  # upright, as columns are narrow
    name = Image.new("RGB", (left, 12), "white")
    ImageDraw.Draw(name).text((0, 0), classes[x][:16], "black")
    image.paste(name.rotate(90, expand=True), (left + x * cell + 11, 0))
  return image


def _coloured(image_NYXC: np.ndarray, config: ConfigDict) -> np.ndarray:
  """Undo a task's normalisation: return float32 pixels of 0 to 255."""
  mean, std = (
    np.asarray(config.task.get(name, usual), np.float32)
    for name, usual in (("mean", MEAN), ("std", STD))
  )
  return np.clip((image_NYXC * std + mean) * 255, 0, 255)


def _grid(pixels_RKYXC: np.ndarray):
  """Draw rows of images with gaps between them, small ones enlarged, as a Pillow image."""
  from PIL import Image

  R, K, Y, X, C = pixels_RKYXC.shape
  times = max(1, _SIDE // Y)
  gap = 2
  cells = np.repeat(np.repeat(pixels_RKYXC, times, axis=2), times, axis=3)
  cells = np.pad(cells, ((0, 0), (0, 0), (0, gap), (0, gap), (0, 0)), constant_values=255)
  whole = cells.transpose(0, 2, 1, 3, 4).reshape(R * (Y * times + gap), K * (X * times + gap), C)
  return Image.fromarray((whole if C == 3 else np.repeat(whole, 3, axis=2)).astype(np.uint8))


def _run(parts, arrays, function, batch: dict[str, np.ndarray]) -> np.ndarray:
  """Return the array `function(model, batch)` for a few rows, on any mesh."""

  @jax.jit
  def run(arrays, batch):
    with parts.rules.activate():
      return (function(params.with_arrays(parts.model, arrays), batch),)

  N = len(batch["image"])
  rows = lambda numbers, _: {name: batch[name][numbers] for name in parts.model.REQUIRED_FEATURES}  # noqa: E731
  return np.stack(
    [one for (one,) in in_batches(lambda b: run(arrays, b), parts.rules, N, [0] * N, rows)]
  )


def _reconstructions(config: ConfigDict, parts, arrays, batch: dict[str, np.ndarray]) -> np.ndarray:
  """Return [3, N, Y, X, C]: images with patches masked, with patches reconstructed, and
  unchanged."""
  variant = parts.model.variant
  made_NMP = _run(parts, arrays, lambda model, b: model.outputs(b)["logits"], batch)
  original_NTP = np.array(patchify(jnp.asarray(batch["image"]), variant))
  masked_NM = batch["masked_patches"][..., None]
  hidden_NMP = np.take_along_axis(original_NTP, masked_NM, axis=1)
  if getattr(parts.objective, "normalised", False):
    made_NMP = made_NMP * np.sqrt(
      hidden_NMP.var(-1, ddof=1, keepdims=True) + 1e-6
    ) + hidden_NMP.mean(-1, keepdims=True)
  seen_NTP = original_NTP.copy()
  put_back_NTP = original_NTP.copy()
  np.put_along_axis(seen_NTP, masked_NM, 0.0, axis=1)
  np.put_along_axis(put_back_NTP, masked_NM, made_NMP, axis=1)
  return np.stack(
    [_coloured(_unpatchified(x, variant), config) for x in (seen_NTP, put_back_NTP, original_NTP)]
  )


def _unpatchified(x_NTP: np.ndarray, variant) -> np.ndarray:
  P = variant.patch
  grid = variant.grid
  C = variant.channels
  x = x_NTP.reshape(-1, grid.rows, grid.columns, P, P, C).transpose(0, 1, 3, 2, 4, 5)
  return x.reshape(-1, *height_and_width(variant.resolution), C)


def _recordable(model) -> bool:
  """Return whether attention weights can be recorded: plain blocks, and a core that computes the
  softmax."""
  attention = getattr(getattr(model, "encoder", None), "blocks", None)
  attention = getattr(getattr(attention, "self_attention", None), "layer", None)
  return attention is not None and attention.core.exact and model.REQUIRED_FEATURES == ("image",)


def _attended(model, batch: dict[str, jax.Array]) -> jax.Array:
  """Return attention rollout (Abnar & Zuidema 2020), float32 [B, patches], as in ViT's figure 6.

  Each layer counts half the mean over heads and half the residual connection; the layers are
  multiplied. Rows are the class token's or, without one, the mean over patches.
  """
  layers: list[jax.Array] = []

  class Recorded(Dropout):
    def __call__(self, x, key):
      layers.append(jnp.mean(x.astype(jnp.float32), axis=1))
      return x

  class Recording(Dense):
    def attend(self, q, k, v, mask, softmax):
      return super().attend(q, k, v, mask, dataclasses.replace(softmax, dropout=Recorded()))

  encoder = model.encoder
  extra = model.variant.class_tokens
  encoder.layers = "loop"
  encoder.remat = KEEP_ALL
  encoder.blocks.self_attention.layer.core = Recording()
  model.encode(batch["image"])
  rolled_BTT = jnp.eye(layers[0].shape[-1])
  for weights_BTT in layers:
    rolled_BTT = (weights_BTT + jnp.eye(weights_BTT.shape[-1])) / 2 @ rolled_BTT
  T = model.variant.grid.length  # others even the sequence out over devices
  rolled_BTT = rolled_BTT[:, :T, :T]
  return (rolled_BTT[:, 0] if extra else jnp.mean(rolled_BTT, axis=1))[:, extra:]


def _lit(pixels_NYXC: np.ndarray, weights_NT: np.ndarray, grid) -> np.ndarray:
  """Return [2, N, Y, X, C]: the images, and the images with brightness in proportion to
  attention."""
  N, Y, X, _ = pixels_NYXC.shape
  light_NT = weights_NT / weights_NT.max(1, keepdims=True)
  light_NYX = light_NT.reshape(N, grid.rows, grid.columns).repeat(Y // grid.rows, axis=1)
  light = light_NYX.repeat(X // grid.columns, axis=2)[..., None]
  return np.stack([pixels_NYXC, pixels_NYXC * light])

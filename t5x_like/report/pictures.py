"""Draw pictures of a run that trains on images.

They show augmented inputs, reconstructions, attention, detections and confusion matrices, and are
written as PNG files to `<workdir>/pictures`. Each file contains its title.
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
from t5x_like.resolution import height_and_width
from t5x_like.rows import run_in_batches

FOLDER = "pictures"
_NUM_AUGMENTED = 16
_NUM_EVALUATED = 8
_MAX_CLASSES = 40
_SIDE = 112
Pictures = dict[str, tuple[str, Any]]


def draw_pictures(
  config: ConfigDict, parts, arrays: dict[str, jax.Array], task, eval_task, groups: dict
) -> Pictures:
  """Draw the pictures of a training state; return a title and a Pillow image by file name.

  All processes must call it.

  Args:
    config: the resolved config.
    parts: `build.Parts`, or another object with a model, an objective and rules.
    arrays: the parameters by name.
    task: the task of training, with images.
    eval_task: the task of evaluations.
    groups: the results of evaluations by group (`evaluation.GroupResults`).
  """
  if task.features["image"].shape[-1] not in (1, 3):
    return {}
  from t5x_like.data import loader  # imports TensorFlow

  pictures: Pictures = {}
  train_batches = loader.train_batches(task, batch_size=_NUM_AUGMENTED, seed=config.seed)
  augmented_NYXC = next(train_batches)["image"]
  pixels_NYXC = _denormalize(augmented_NYXC, config)
  rows_RKYXC = pixels_NYXC.reshape(2, -1, *pixels_NYXC.shape[1:])
  pictures["augmented"] = ("What the model sees in training", _grid(rows_RKYXC))
  eval_batches = loader.eval_batches(
    eval_task, batch_size=_NUM_EVALUATED, max_examples=_NUM_EVALUATED
  )
  padded_batch = next(eval_batches)
  is_example = padded_batch["example_index"] >= 0
  batch = {name: array[is_example] for name, array in padded_batch.items()}
  model = parts.model
  if isinstance(model, ImageEncoder) and isinstance(model.head, ReconstructionHead):
    title = "Masked, reconstructed, original"
    reconstructions = _reconstructions(config, parts, arrays, batch)
    pictures["reconstruction"] = (title, _grid(reconstructions))
  elif isinstance(model, ImageEncoder) and _records_attention(model):
    title = "Where the model attends: attention rollout through all layers"
    weights_NT = _run(parts, arrays, _attention_rollout, batch)
    pixels_NYXC = _denormalize(batch["image"], config)
    highlighted = _highlight(pixels_NYXC, weights_NT, model.variant.grid)
    pictures["attention"] = (title, _grid(highlighted))
  for name, group in groups.items():
    rows = [row for row in group.predictions if {"target", "prediction"} <= row.keys()]
    if rows and 1 < len(eval_task.classes) <= _MAX_CLASSES:
      title = f"{name}: true classes (rows) and predicted classes (columns), in percent"
      pictures[f"confusion_{name}"] = (title, confusion(rows, eval_task.classes))
    if hasattr(eval_task, "draw_predictions"):
      pixels_NYXC = _denormalize(batch["image"], config)
      drawing = eval_task.draw_predictions(pixels_NYXC, batch, group.predictions)
      if drawing is not None:
        kind, title, image = drawing
        pictures[f"{kind}_{name}"] = (f"{name}: {title}", image)
  return pictures


def write(workdir, pictures: Pictures) -> None:
  """Write pictures into a workdir.

  Raises:
    UserError: it cannot be written.
  """
  from PIL.PngImagePlugin import PngInfo

  folder = pathlib.Path(workdir) / FOLDER
  try:
    if pictures:
      folder.mkdir(parents=True, exist_ok=True)
    for name, (title, image) in pictures.items():
      metadata = PngInfo()
      metadata.add_text("Title", title)
      buffer = io.BytesIO()
      image.save(buffer, "PNG", pnginfo=metadata)
      temporary = folder / f"{name}.tmp"
      temporary.write_bytes(buffer.getvalue())
      os.replace(temporary, folder / f"{name}.png")
  except OSError as error:
    raise UserError(
      f"{folder}: cannot be written: {error.strerror}; free space, or use another --workdir"
    ) from error


def confusion(rows: Sequence[dict[str, str]], classes: Sequence[str]):
  """Draw the confusion matrix, in percent of each class, as a Pillow image."""
  from PIL import Image, ImageDraw

  V = len(classes)
  cell = 34
  margin = 8 + 7 * max(len(name[:16]) for name in classes)
  share_VV = _confusion_shares(rows, classes)
  image = Image.new("RGB", (margin + V * cell, margin + V * cell), "white")
  draw = ImageDraw.Draw(image)
  for y in range(V):
    draw.text((4, margin + y * cell + 11), classes[y][:16], "black")
    for x in range(V):
      share = share_VV[y, x]
      cell_x = margin + x * cell
      cell_y = margin + y * cell
      colour = tuple(int(255 - share * (255 - channel)) for channel in (37, 99, 235))
      draw.rectangle((cell_x, cell_y, cell_x + cell - 2, cell_y + cell - 2), colour)
      percent = round(100 * share)
      if percent:
        text_colour = "white" if share > 0.5 else "black"
        draw.text((cell_x + 7, cell_y + 11), str(percent), text_colour)
  for x in range(V):  # rotated, as columns are narrow
    name = Image.new("RGB", (margin, 12), "white")
    ImageDraw.Draw(name).text((0, 0), classes[x][:16], "black")
    image.paste(name.rotate(90, expand=True), (margin + x * cell + 11, 0))
  return image


def _confusion_shares(rows: Sequence[dict[str, str]], classes: Sequence[str]) -> np.ndarray:
  """Return the shares of predictions (columns) among the examples of each class (rows)."""
  class_index = {name: index for index, name in enumerate(classes)}
  count_VV = np.zeros((len(classes), len(classes)))
  for row in rows:
    target = class_index.get(row["target"])
    prediction = class_index.get(row["prediction"])
    if target is not None and prediction is not None:
      count_VV[target, prediction] += 1
  return count_VV / np.maximum(count_VV.sum(1, keepdims=True), 1)


def _denormalize(image_NYXC: np.ndarray, config: ConfigDict) -> np.ndarray:
  """Undo a task's normalisation: return float32 pixels of 0 to 255."""
  mean = np.asarray(config.task.get("mean", MEAN), np.float32)
  std = np.asarray(config.task.get("std", STD), np.float32)
  return np.clip((image_NYXC * std + mean) * 255, 0, 255)


def _grid(pixels_RKYXC: np.ndarray):
  """Draw rows of images with gaps between them, small ones enlarged, as a Pillow image."""
  from PIL import Image

  R, K, Y, X, C = pixels_RKYXC.shape
  scale = max(1, _SIDE // Y)
  gap = 2
  cells = np.repeat(pixels_RKYXC, scale, axis=2)
  cells = np.repeat(cells, scale, axis=3)
  cells = np.pad(cells, ((0, 0), (0, 0), (0, gap), (0, gap), (0, 0)), constant_values=255)
  height = R * (Y * scale + gap)
  width = K * (X * scale + gap)
  sheet = cells.transpose(0, 2, 1, 3, 4).reshape(height, width, C)
  if C == 1:
    sheet = np.repeat(sheet, 3, axis=2)
  return Image.fromarray(sheet.astype(np.uint8))


def _run(parts, arrays, function, batch: dict[str, np.ndarray]) -> np.ndarray:
  """Return the array `function(model, batch)` for a few rows, on any mesh."""

  @jax.jit
  def run(arrays, batch):
    with parts.rules.activate():
      return (function(params.with_arrays(parts.model, arrays), batch),)

  def rows(numbers, _):
    return {name: batch[name][numbers] for name in parts.model.REQUIRED_FEATURES}

  N = len(batch["image"])
  outputs = run_in_batches(lambda inputs: run(arrays, inputs), parts.rules, N, [0] * N, rows)
  return np.stack([array for (array,) in outputs])


def _reconstructions(config: ConfigDict, parts, arrays, batch: dict[str, np.ndarray]) -> np.ndarray:
  """Return [3, N, Y, X, C]: images with masked patches, with reconstructed patches, unchanged."""
  variant = parts.model.variant
  predicted_NMP = _run(parts, arrays, lambda model, b: model.outputs(b)["logits"], batch)
  original_NTP = np.array(patchify(jnp.asarray(batch["image"]), variant))
  masked_NM = batch["masked_patches"][..., None]
  hidden_NMP = np.take_along_axis(original_NTP, masked_NM, axis=1)
  if getattr(parts.objective, "normalised", False):
    mean_NM1 = hidden_NMP.mean(-1, keepdims=True)
    variance_NM1 = hidden_NMP.var(-1, ddof=1, keepdims=True)
    predicted_NMP = predicted_NMP * np.sqrt(variance_NM1 + 1e-6) + mean_NM1
  visible_NTP = original_NTP.copy()
  np.put_along_axis(visible_NTP, masked_NM, 0.0, axis=1)
  reconstructed_NTP = original_NTP.copy()
  np.put_along_axis(reconstructed_NTP, masked_NM, predicted_NMP, axis=1)
  images = []
  for patches_NTP in (visible_NTP, reconstructed_NTP, original_NTP):
    images.append(_denormalize(_unpatchify(patches_NTP, variant), config))
  return np.stack(images)


def _unpatchify(x_NTP: np.ndarray, variant) -> np.ndarray:
  """Undo `patchify`."""
  P = variant.patch
  grid = variant.grid
  C = variant.channels
  by_patch = x_NTP.reshape(-1, grid.rows, grid.columns, P, P, C)
  by_row = by_patch.transpose(0, 1, 3, 2, 4, 5)
  return by_row.reshape(-1, *height_and_width(variant.resolution), C)


def _records_attention(model) -> bool:
  """Return whether attention weights can be recorded.

  The model needs plain blocks and a core that computes the softmax.
  """
  attention = model
  for name in ("encoder", "blocks", "self_attention", "layer"):
    attention = getattr(attention, name, None)
  if attention is None:
    return False
  return attention.core.exact and model.REQUIRED_FEATURES == ("image",)


def _attention_rollout(model, batch: dict[str, jax.Array]) -> jax.Array:
  """Return attention rollout (Abnar & Zuidema 2020), float32 [B, patches], as in ViT's figure 6.

  Each layer counts half the mean over heads and half the residual connection; the layers are
  multiplied. Rows are the class token's or, without one, the mean over patches.
  """
  layers: list[jax.Array] = []

  class RecordingDropout(Dropout):
    def __call__(self, x, key):
      layers.append(jnp.mean(x.astype(jnp.float32), axis=1))
      return x

  class RecordingCore(Dense):
    def attend(self, q, k, v, mask, softmax):
      softmax = dataclasses.replace(softmax, dropout=RecordingDropout())
      return super().attend(q, k, v, mask, softmax)

  encoder = model.encoder
  num_class_tokens = model.variant.class_tokens
  encoder.layers = "loop"
  encoder.remat = KEEP_ALL
  encoder.blocks.self_attention.layer.core = RecordingCore()
  model.encode(batch["image"])
  rolled_BTT = jnp.eye(layers[0].shape[-1])
  for weights_BTT in layers:
    layer_BTT = (weights_BTT + jnp.eye(weights_BTT.shape[-1])) / 2
    rolled_BTT = layer_BTT @ rolled_BTT
  T = model.variant.grid.length  # without the padding that splits the sequence over devices
  rolled_BTT = rolled_BTT[:, :T, :T]
  if num_class_tokens:
    return rolled_BTT[:, 0, num_class_tokens:]
  return jnp.mean(rolled_BTT, axis=1)


def _highlight(pixels_NYXC: np.ndarray, weights_NT: np.ndarray, grid) -> np.ndarray:
  """Return [2, N, Y, X, C]: the images, and the images with attention as their brightness."""
  N, Y, X, _ = pixels_NYXC.shape
  light_NT = weights_NT / weights_NT.max(1, keepdims=True)
  light = light_NT.reshape(N, grid.rows, grid.columns)
  light = light.repeat(Y // grid.rows, axis=1)
  light_NYX = light.repeat(X // grid.columns, axis=2)
  return np.stack([pixels_NYXC, pixels_NYXC * light_NYX[..., None]])

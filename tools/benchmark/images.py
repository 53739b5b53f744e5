"""Measure the input pipeline of images, against decoding alone and torchvision."""

import argparse
import concurrent.futures
import importlib.util
import io
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

from t5x_like.data import loader, task
from t5x_like.data.images import pictures, store
from t5x_like.errors import UserError
from t5x_like.quiet_tensorflow import tf

_AUGMENTATIONS = {
  "none": {"augmentations": ()},
  "crop": {"augmentations": ("random_resized_crop", "flip")},
  "deit": {
    "augmentations": ("random_resized_crop", "flip", "randaugment", "erase"),
    "mixing": {"mixup": 0.8, "cutmix": 1.0},
  },
  "deit3": {
    "augmentations": ("random_resized_crop", "flip", "three_augment", "color_jitter"),
    "mixing": {"mixup": 0.8, "cutmix": 1.0},
  },
}
_TORCHVISION_RECIPES = ("crop", "deit")  # augmentations of `torchvision_images`


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declare the command's flags."""
  parser.add_argument(
    "--source",
    help="source of images, such as folders:train=DIR (default: smooth JPEGs of 500 x 375)",
  )
  parser.add_argument("--split", default="train", help="split of --source (default: train)")
  parser.add_argument(
    "--images", type=int, default=512, help="number of generated images (default: 512)"
  )
  parser.add_argument(
    "--augmentations",
    default="crop",
    choices=_AUGMENTATIONS,
    help="augmentations of the pipeline (default: crop)",
  )
  parser.add_argument(
    "--resolution", type=int, default=224, help="side of the images in pixels (default: 224)"
  )
  parser.add_argument("--batch_size", type=int, default=64, help="images in a batch (default: 64)")
  parser.add_argument("--steps", type=int, default=30, help="batches in each repeat (default: 30)")
  parser.add_argument("--repeats", type=int, default=3, help="repeats (default: 3)")


def main(args: argparse.Namespace) -> None:
  """Measure and print the result; refuse a source that cannot be used."""
  if min(args.images, args.resolution, args.batch_size, args.steps, args.repeats) < 1:
    raise UserError(
      "--images, --resolution, --batch_size, --steps and --repeats: expected at least 1 each"
    )
  with tempfile.TemporaryDirectory() as directory:
    source = args.source or _write_images(pathlib.Path(directory), args.images)
    cache = str(pathlib.Path(directory) / "cache")
    arguments = dict(source=source, split=args.split, cache=cache, resolution=args.resolution)
    normal = dict(mean=pictures.IMAGENET_MEAN, std=pictures.IMAGENET_STD)
    built = task.build(
      "image_classification", **_AUGMENTATIONS[args.augmentations], **arguments, **normal
    )
    images = store.open_store(source, args.split, cache=cache)
    load = os.getloadavg()[0]
    repeats = _measure(args, built, images, directory)
  _print_method(args, images.num_images, load)
  print(json.dumps(_figures(args, repeats, load)), flush=True)


def _measure(args, built: task.Task, images, directory: str) -> dict[str, list[float]]:
  """Return the rates and the CPU milliseconds of every repeat, by system."""
  encoded = images.read(np.arange(min(images.num_images, 2048)))
  with_torchvision = (
    not args.source
    and args.augmentations in _TORCHVISION_RECIPES
    and importlib.util.find_spec("torchvision")
  )
  repeats = {"pipeline": [], "limit": [], "cpu_ms": [], "torchvision_cpu_ms": []}
  for _ in range(args.repeats):  # alternating, as the machine's speed may change
    limit, _ = _rate(_decode_batches(encoded, args.batch_size), args)
    batches = loader.train_batches(built, batch_size=args.batch_size, seed=0)
    rate, cpu_ms = _rate(batches, args)
    repeats["limit"].append(limit)
    repeats["pipeline"].append(rate)
    repeats["cpu_ms"].append(cpu_ms)
    if with_torchvision:
      repeats["torchvision_cpu_ms"].append(_torchvision(directory, args))
  return repeats


def _print_method(args: argparse.Namespace, num_images: int, load: float) -> None:
  """Print how the figures are obtained."""
  source = args.source or "smooth JPEGs of 500 x 375 pixels, quality 90"
  print(
    f"Method: {num_images:,} images, {source}. The limit is tf.data with nothing but "
    "`decode_image` on encoded bytes in memory, parallel calls AUTOTUNE. The pipeline reads, "
    f"decodes, augments ({args.augmentations}) and batches {args.batch_size} x {args.resolution} "
    f"x {args.resolution} as float32 on the host. After 3 batches of warm-up, {args.repeats} "
    f"repeats of {args.steps} batches; medians. CPU milliseconds for an image are the "
    "sum over all threads. torchvision takes turns in a process of one thread, on the same files, "
    "with bicubic crops and its own RandAugment and erasing."
  )
  print(
    f"Load average when measuring began: {load:.2f} on {os.cpu_count()} cores; the figures "
    "need idle cores."
  )


def _figures(
  args: argparse.Namespace, repeats: dict[str, list[float]], load: float
) -> dict[str, object]:
  """Return the medians and the circumstances of the measurement."""
  rate = statistics.median(repeats["pipeline"])
  limit = statistics.median(repeats["limit"])
  cpu_ms = statistics.median(repeats["cpu_ms"])
  figures = {
    "images_per_second": round(rate, 2),
    "decode_limit": round(limit, 2),
    "cpu_ms": round(cpu_ms, 2),
  }
  if repeats["torchvision_cpu_ms"]:
    torchvision_cpu_ms = statistics.median(repeats["torchvision_cpu_ms"])
    figures["torchvision_cpu_ms"] = round(torchvision_cpu_ms, 2)
    figures["of_torchvision"] = round(cpu_ms / torchvision_cpu_ms, 2)
  return figures | {
    "of_limit": round(rate / limit, 3),
    "repeats": {name: [round(x, 2) for x in values] for name, values in repeats.items()},
    "augmentations": args.augmentations,
    "resolution": args.resolution,
    "batch_size": args.batch_size,
    "cpu_count": os.cpu_count(),
    "load_average": round(load, 2),
    "tensorflow": tf.__version__,
  }


def _write_images(folder: pathlib.Path, number: int) -> str:
  """Write smooth random JPEGs with about as many bytes per pixel as photographs.

  Returns the name of their source.
  """
  from PIL import Image

  (folder / "pictures" / "a").mkdir(parents=True)

  def make(n: int) -> None:
    coarse = np.random.default_rng(n).integers(0, 256, (47, 63, 3)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC).save(
      file, "JPEG", quality=90
    )
    (folder / "pictures" / "a" / f"{n:06}.jpg").write_bytes(file.getvalue())

  with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
    list(threads.map(make, range(number)))
  return f"folders:train={folder}/pictures"


def _decode_batches(encoded: np.ndarray, batch_size: int):
  """Yield empty batches after decoding as many images as a batch has."""

  def decode(image: tf.Tensor) -> tf.Tensor:
    return tf.shape(tf.io.decode_image(image, 3, expand_animations=False))[0]

  heights = tf.data.Dataset.from_tensor_slices(tf.constant(encoded.tolist()))
  heights = heights.repeat().shuffle(256, seed=0).map(decode, tf.data.AUTOTUNE)
  return iter(heights.batch(batch_size).prefetch(tf.data.AUTOTUNE))


def _rate(batches, args: argparse.Namespace) -> tuple[float, float]:
  """Return images a second and CPU milliseconds an image."""
  for _ in range(3):
    next(batches)
  begin = time.perf_counter()
  cpu = time.process_time()
  for _ in range(args.steps):
    next(batches)
  seconds = time.perf_counter() - begin
  busy = time.process_time() - cpu
  images = args.steps * args.batch_size
  return images / seconds, 1000 * busy / images


def _torchvision(directory: str, args: argparse.Namespace) -> float:
  """Return torchvision's CPU milliseconds an image."""
  words = [
    f"{directory}/pictures",
    args.augmentations,
    args.resolution,
    args.batch_size,
    args.steps,
  ]
  command = [sys.executable, "-m", f"{__package__}.torchvision_images", *map(str, words)]
  return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

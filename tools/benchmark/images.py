"""`python -m tools.benchmark images`: images through the input pipeline, beside decoding alone and
torchvision."""

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
_BESIDE = ("crop", "deit")  # the recipes that `torchvision_images` knows


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declare the command's flags."""
  parser.add_argument(
    "--source", help="of images, such as folders:train=DIR (default: smooth JPEGs of 500 x 375)"
  )
  parser.add_argument("--split", default="train")
  parser.add_argument(
    "--images", type=int, default=512, help="how many images are made (default: 512)"
  )
  parser.add_argument(
    "--augmentations", default="crop", choices=_AUGMENTATIONS, help="default: crop"
  )
  parser.add_argument("--resolution", type=int, default=224)
  parser.add_argument("--batch_size", type=int, default=64)
  parser.add_argument("--steps", type=int, default=30, help="batches in each repeat (default: 30)")
  parser.add_argument("--repeats", type=int, default=3)


def main(args: argparse.Namespace) -> None:
  """Measure and print; raise UserError for a source that cannot be used."""
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
    encoded = images.read(np.arange(min(images.num_images, 2048)))
    with_torchvision = (
      not args.source and args.augmentations in _BESIDE and importlib.util.find_spec("torchvision")
    )
    load = os.getloadavg()[0]
    limit = []
    pipeline = []
    cpu = []
    torchvision_cpu = []
    for _ in range(args.repeats):  # turn and turn about, as the machine may get slower or faster
      limit.append(_rate(_decode_batches(encoded, args.batch_size), args)[0])
      rate, busy = _rate(loader.train_batches(built, batch_size=args.batch_size, seed=0), args)
      pipeline.append(rate)
      cpu.append(busy)
      if with_torchvision:
        torchvision_cpu.append(_torchvision(directory, args))
  where = args.source or "smooth JPEGs of 500 x 375 pixels, quality 90"
  print(
    f"Method: {images.num_images:,} images, {where}. The limit is tf.data with nothing but "
    "`decode_image` on encoded bytes in memory, parallel calls AUTOTUNE. The pipeline reads, "
    f"decodes, augments ({args.augmentations}) and batches {args.batch_size} x {args.resolution} "
    f"x {args.resolution} as float32 on the host. After 3 batches of warm-up, {args.repeats} "
    f"repeats of {args.steps} batches; medians. CPU milliseconds are those of all threads, for an "
    "image. torchvision takes turns in a process of one thread, on the same files, with bicubic "
    "crops and its own RandAugment and erasing."
  )
  print(
    f"Load average when measuring began: {load:.2f} on {os.cpu_count()} cores; the figures "
    "need idle cores."
  )
  medians = {
    "images_per_second": statistics.median(pipeline),
    "decode_limit": statistics.median(limit),
    "cpu_ms": statistics.median(cpu),
  }
  if torchvision_cpu:
    medians["torchvision_cpu_ms"] = statistics.median(torchvision_cpu)
  print(
    json.dumps(
      {name: round(value, 2) for name, value in medians.items()}
      | (
        {"of_torchvision": round(medians["cpu_ms"] / medians["torchvision_cpu_ms"], 2)}
        if torchvision_cpu
        else {}
      )
      | {
        "of_limit": round(medians["images_per_second"] / medians["decode_limit"], 3),
        "repeats": {
          name: [round(x, 2) for x in each]
          for name, each in (
            ("pipeline", pipeline),
            ("limit", limit),
            ("cpu_ms", cpu),
            ("torchvision_cpu_ms", torchvision_cpu),
          )
        },
        "augmentations": args.augmentations,
        "resolution": args.resolution,
        "batch_size": args.batch_size,
        "cpu_count": os.cpu_count(),
        "load_average": round(load, 2),
        "tensorflow": tf.__version__,
      }
    ),
    flush=True,
  )


def _write_images(folder: pathlib.Path, number: int) -> str:
  """Return a folder of smooth random JPEGs, with about as many bytes per pixel as photographs."""
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
  data = (
    tf.data.Dataset.from_tensor_slices(tf.constant(encoded.tolist())).repeat().shuffle(256, seed=0)
  )
  data = data.map(
    lambda one: tf.shape(tf.io.decode_image(one, 3, expand_animations=False))[0], tf.data.AUTOTUNE
  )
  return iter(data.batch(batch_size).prefetch(tf.data.AUTOTUNE))


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

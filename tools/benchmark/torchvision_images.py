"""Measure torchvision for the benchmark `images`.

  python -m tools.benchmark.torchvision_images FOLDER RECIPE RESOLUTION BATCH STEPS

It runs in a separate process, because torch must be imported before TensorFlow. It prints the CPU
milliseconds per image of one thread.
"""

import pathlib
import sys
import time

import torch
from PIL import Image
from torchvision.transforms import v2

_MEAN = (0.485, 0.456, 0.406)
_STD = (0.229, 0.224, 0.225)


def main(folder: str, recipe: str, resolution: int, batch: int, steps: int) -> None:
  """Measure after one batch of warm-up; mixup and CutMix mix images of a batch."""
  torch.set_num_threads(1)
  bicubic = v2.InterpolationMode.BICUBIC
  is_deit = recipe == "deit"
  transforms = [
    v2.RandomResizedCrop(resolution, interpolation=bicubic, antialias=True),
    v2.RandomHorizontalFlip(),
  ]
  if is_deit:
    transforms.append(v2.RandAugment(2, 9))
  transforms += [
    v2.PILToTensor(),
    v2.ToDtype(torch.float32, scale=True),
    v2.Normalize(_MEAN, _STD),
  ]
  if is_deit:
    transforms.append(v2.RandomErasing(0.25, value="random"))
  augment = v2.Compose(transforms)
  mix = v2.RandomChoice(
    [v2.MixUp(alpha=0.8, num_classes=1000), v2.CutMix(alpha=1.0, num_classes=1000)]
  )
  paths = sorted(path for path in pathlib.Path(folder).rglob("*") if path.is_file())

  def process_batch(step: int) -> None:
    names = [paths[(step * batch + row) % len(paths)] for row in range(batch)]
    images = torch.stack([augment(Image.open(name).convert("RGB")) for name in names])
    if is_deit:
      mix(images, torch.zeros(batch, dtype=torch.long))

  process_batch(0)
  begin = time.process_time()
  for step in range(steps):
    process_batch(step + 1)
  print(1000 * (time.process_time() - begin) / (steps * batch))


if __name__ == "__main__":
  main(*sys.argv[1:3], *map(int, sys.argv[3:]))

"""A damaged model directory ends in a one-line error or in a model."""

import json
import random
import struct

import numpy as np
import pytest
from safetensors.numpy import save

from interop.test_golden import GOLDEN
from parity import cases
from t5x_like.interop import hf
from t5x_like.interop.tensor_files import INDEX, WEIGHTS
from tests.fuzz import bending

pytestmark = pytest.mark.runs

NAMES = sorted(cases.CASES)


def files_of(name: str) -> tuple[dict, bytes]:
  """The config and the weights of a tiny model."""
  golden = np.load(GOLDEN / f"{name}.npz", allow_pickle=False)
  shapes = json.loads(str(golden["shapes"]))
  return json.loads(str(golden["config"])), save(
    {n: cases.tensor(n, tuple(shape)) for n, shape in shapes.items()}
  )


def split(weights: bytes) -> tuple[dict, bytes]:
  """The header of a safetensors file, and its values."""
  (length,) = struct.unpack("<Q", weights[:8])
  return json.loads(weights[8 : 8 + length]), weights[8 + length :]


def joined(header, values: bytes, length: int | None = None) -> bytes:
  text = bending.json_text(header)
  return struct.pack("<Q", len(text) if length is None else length) + text + values


def case(rng: random.Random, root):
  name = rng.choice(NAMES)
  config, weights = files_of(name)
  directory = root / "model"
  directory.mkdir()
  kind = rng.choice(
    (
      "config",
      "config",
      "config",
      "config",
      "config text",
      "header",
      "header",
      "weights",
      "index",
      "index",
    )
  )
  text = json.dumps(config).encode()
  change = ""
  if kind == "config":
    tree, change = bending.mutated(config, rng, rng.choice((1, 1, 1, 2, 3)))
    text = bending.json_text(tree)
  elif kind == "config text":
    text, change = (bending.DEEP, "deep") if rng.random() < 0.2 else bending.bent(text, rng)
  elif kind == "header":
    header, values = split(weights)
    header, change = bending.mutated(header, rng)
    length = rng.choice((None, None, None, 2**62, 0, 2**32))
    weights = joined(header, values, length)
    change += f", length {length}" if length is not None else ""
  elif kind == "weights":
    weights, change = bending.bent(weights, rng)
  elif kind == "index":
    header, _ = split(weights)
    index = {
      "metadata": {"total_size": 1},
      "weight_map": {n: "part.safetensors" for n in header if n != "__metadata__"},
    }
    if rng.random() < 0.2:
      (directory / INDEX).write_bytes(bending.DEEP)
      change = "deep"
    else:
      index, change = bending.mutated(index, rng)
      (directory / INDEX).write_bytes(bending.json_text(index))
  (directory / "config.json").write_bytes(text)
  (directory / ("part.safetensors" if kind == "index" else WEIGHTS)).write_bytes(weights)

  def call(out):
    model = hf.load(str(directory))
    hf.save(model, str(out / "again"))

  return f"{name}, {kind}: {change}", call


def test_a_few_mutated_directories(tmp_path):
  bending.run(case, tmp_path, range(12))


@pytest.mark.fuzz
@pytest.mark.parametrize("first", range(1000, 1240, 40))
def test_mutated_directories(first, tmp_path):
  bending.run(case, tmp_path, range(first, first + 40))

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
from tests.fuzz import harness, mutations

pytestmark = pytest.mark.runs

NAMES = sorted(cases.CASES)


def load_tiny_model(name: str) -> tuple[dict, bytes]:
  """Return the config and the safetensors file of a tiny model."""
  golden = np.load(GOLDEN / f"{name}.npz", allow_pickle=False)
  shapes = json.loads(str(golden["shapes"]))
  return json.loads(str(golden["config"])), save(
    {n: cases.tensor(n, tuple(shape)) for n, shape in shapes.items()}
  )


def split_weights(weights: bytes) -> tuple[dict, bytes]:
  """Return the header of a safetensors file, and its values."""
  (length,) = struct.unpack("<Q", weights[:8])
  return json.loads(weights[8 : 8 + length]), weights[8 + length :]


def join_weights(header, values: bytes, length: int | None = None) -> bytes:
  text = mutations.json_text(header)
  return struct.pack("<Q", len(text) if length is None else length) + text + values


# The kinds of damage. A kind that is repeated is drawn more often.
KINDS = (*["config"] * 4, "config text", "header", "header", "weights", "index", "index")


def make_case(rng: random.Random, root):
  """Write a model directory with one damaged file; return a description and the call to check."""
  name = rng.choice(NAMES)
  config, weights = load_tiny_model(name)
  header, values = split_weights(weights)
  directory = root / "model"
  directory.mkdir()
  kind = rng.choice(KINDS)
  config_text = mutations.json_text(config)
  is_deep = rng.random() < 0.2  # nest JSON beyond the parser's limit
  if kind == "config":
    config, change = mutations.mutate_json(config, rng, rng.choice((1, 1, 1, 2, 3)))
    config_text = mutations.json_text(config)
  elif kind == "config text" and is_deep:
    config_text = mutations.DEEP
    change = "deep"
  elif kind == "config text":
    config_text, change = mutations.mutate_bytes(config_text, rng)
  elif kind == "header":
    header, change = mutations.mutate_json(header, rng)
    length = rng.choice((None, None, None, 2**62, 0, 2**32))
    weights = join_weights(header, values, length)
    change += f", length {length}"
  elif kind == "weights":
    weights, change = mutations.mutate_bytes(weights, rng)
  elif is_deep:
    (directory / INDEX).write_bytes(mutations.DEEP)
    change = "deep"
  else:
    files = {name: "part.safetensors" for name in header if name != "__metadata__"}
    index = {"metadata": {"total_size": 1}, "weight_map": files}
    index, change = mutations.mutate_json(index, rng)
    (directory / INDEX).write_bytes(mutations.json_text(index))
  (directory / "config.json").write_bytes(config_text)
  weights_file = "part.safetensors" if kind == "index" else WEIGHTS
  (directory / weights_file).write_bytes(weights)

  def call(out):
    hf.save(hf.load(str(directory)), str(out / "exported"))

  return f"{name}, {kind}: {change}", call


def test_a_few_mutated_directories_are_read_or_refused(tmp_path):
  harness.run_cases(make_case, tmp_path, range(12))


@pytest.mark.fuzz
@pytest.mark.parametrize("first", range(1000, 1240, 40))
def test_many_mutated_directories_are_read_or_refused(first, tmp_path):
  harness.run_cases(make_case, tmp_path, range(first, first + 40))

"""Stores return the arrays that were written to them, in any shards and in any order of writing."""

import pathlib
import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stores
from refusals import refuses
from t5x_like.errors import DamageError
from t5x_like.files.paths import as_path
from t5x_like.store.manifest import Array
from t5x_like.store.reader import Store
from t5x_like.store.writer import build_metadata, publish, write_shard

ARRAYS = [Array("ids", "uint16"), Array("boxes", "float32", 4), Array("label", "int32")]
ABOUT = dict(name="n", split="train", facts={"classes": ["a", "b"]}, source={"from": "here"})


def make_items(lengths):
  """Return items with random values, as {array: (values, lengths [N])}.

  Args:
    lengths: [N, 2], the numbers of ids and of boxes of each item. Each item also has one label.
  """
  generator = np.random.default_rng(0)
  lengths = np.asarray(lengths).reshape(-1, 2)
  ids, boxes = lengths.sum(axis=0)
  return {
    "ids": (generator.integers(0, 2**16, ids).astype(np.uint16), lengths[:, 0]),
    "boxes": (generator.random((boxes, 4), np.float32), lengths[:, 1]),
    "label": (np.arange(len(lengths), dtype=np.int32), np.ones(len(lengths), np.int64)),
  }


def slice_items(items, first, end):
  parts = {}
  for name, (values, lengths) in items.items():
    ends = np.append(0, np.cumsum(lengths))
    parts[name] = values[ends[first] : ends[end]], lengths[first:end]
  return parts


def write_and_open(path, items, shard_values):
  stores.write_store(path, items, ARRAYS, shard_values, skipped={"too long": 3}, **ABOUT)
  return Store.open(path, "full")


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
  """Return (path of a store of several shards, its items)."""
  items = make_items(np.random.default_rng(1).integers(0, 5, (60, 2)))
  path = tmp_path_factory.mktemp("intact") / "train"
  assert write_and_open(path, items, shard_values=90).manifest.num_shards > 2
  return path, items


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
  st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=30),
  st.integers(1, 60),
  st.randoms(use_true_random=False),
)
def test_any_items_are_read_as_written_from_any_shards(tmp_path, lengths, shard_values, random):
  shutil.rmtree(tmp_path / "one", ignore_errors=True)
  items = make_items(lengths)
  store = write_and_open(tmp_path / "one", items, shard_values)
  assert store.num_items == len(lengths)
  assert store.manifest.skipped == {"too long": 3}
  for name, (values, counts) in items.items():
    np.testing.assert_array_equal(store.read_values(name), values, strict=True)
    np.testing.assert_array_equal(store.read_ends(name), np.cumsum(counts))
    starts = np.array([random.randint(0, len(values)) for _ in range(8)])
    sizes = np.array([random.randint(0, len(values) - start) for start in starts.tolist()])
    expected = np.concatenate(
      [values[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    )
    np.testing.assert_array_equal(store.read_ranges(name, starts, sizes), expected, strict=True)


def test_ranges_are_read_as_padded_rows(intact):
  store = Store.open(intact[0])
  values = intact[1]["ids"][0]
  rows = store.read_padded("ids", np.array([3, len(values) - 2]), np.array([4, 2]), 5)
  assert rows.dtype == np.int32
  assert rows.tolist() == [[*values[3:7], 0], [*values[-2:], 0, 0, 0]]


def test_ranges_outside_of_an_array_are_refused(intact):
  store = Store.open(intact[0])
  num_values = len(intact[1]["ids"][0])
  for start, size in ((-1, 2), (num_values - 1, 2), (5, -1)):
    with pytest.raises(ValueError, match="outside|negative"):
      store.read_ranges("ids", np.array([start]), np.array([size]))


def test_shards_written_separately_give_the_same_store(intact, tmp_path):
  store = Store.open(intact[0])
  items = intact[1]
  bounds = store.first_items.tolist()
  work = as_path(tmp_path / "work")
  shards = {
    number: write_shard(
      work, f"{number:06d}", ARRAYS, slice_items(items, bounds[number], bounds[number + 1])
    )
    for number in reversed(range(len(bounds) - 1))
  }
  joined = build_metadata(
    [shards[number] for number in sorted(shards)], arrays=ARRAYS, skipped={}, **ABOUT
  )
  publish(work, tmp_path / "train", joined, None)
  reopened = Store.open(tmp_path / "train", "full")
  # The fingerprint ignores the names of shards and the counts of skipped records.
  assert reopened.fingerprint == store.fingerprint
  np.testing.assert_array_equal(reopened.read_values("boxes"), items["boxes"][0])


def test_partial_files_of_a_killed_writer_are_not_published(tmp_path):
  work = as_path(tmp_path / "work")
  shard = write_shard(work, "0", ARRAYS, make_items([(3, 2)]))
  (work / "ids" / "0.1.tmp").write_bytes(b"half of it")
  publish(
    work, tmp_path / "train", build_metadata([shard], arrays=ARRAYS, skipped={}, **ABOUT), None
  )
  assert not (tmp_path / "work").exists()
  assert not list((tmp_path / "train").rglob("*.tmp"))


def test_ends_that_do_not_increase_are_refused(intact, tmp_path):
  path = pathlib.Path(shutil.copytree(intact[0], tmp_path / "train"))
  file = path / "boxes.ends" / "00000001"
  ends = np.fromfile(file, "<i8")
  # The differences of these overflow, and so are positive.
  overflowing = np.array([2**63 - 1, 5 - 2**63, -1, *ends[3:]])
  for wrong_ends in (ends[::-1], ends + 1, ends - 1, np.full_like(ends, 2**62), overflowing):
    wrong_ends.tofile(file)
    with refuses("boxes.ends: found ends", error=DamageError):
      Store.open(path, "size").read_ends("boxes")


@pytest.mark.parametrize(
  "array, words",
  [
    (Array("../x", "int32"), ("arrays", "'../x'")),
    (Array("x", "complex64"), ("dtype", "'complex64'")),
  ],
)
def test_arrays_that_cannot_be_stored_are_refused(array, words, tmp_path):
  values = {array.name: (np.zeros(2, array.dtype), np.array([2]))}
  with refuses(*words):
    write_shard(as_path(tmp_path / "a"), "0", [array], values)
  assert not [file for file in tmp_path.rglob("*") if file.is_file()]

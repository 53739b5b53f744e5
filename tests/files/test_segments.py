"""A file that grows at a URL is uploaded in segments, and read back whole after any kill."""

import pathlib
import random
import shutil

import pytest

from t5x_like.files import segments
from t5x_like.files.local import LocalPath
from t5x_like.files.segments import SegmentedFile, merge_segments, read_segments

NAME = "certificate.jsonl"
BOUND = 100


@pytest.fixture(autouse=True)
def small_segments(monkeypatch):
  monkeypatch.setattr(segments, "SEGMENT_BYTES", BOUND)


def new_file(store: LocalPath, local: pathlib.Path) -> SegmentedFile:
  local.mkdir(parents=True)
  return SegmentedFile(store, local, NAME)


def random_lines(draw: random.Random) -> bytes:
  """Return up to nine lines; one in ten is longer than a segment."""
  lines = []
  for _ in range(draw.randint(0, 9)):
    length = draw.randint(1, 40) if draw.random() < 0.9 else draw.randint(101, 300)
    lines.append(b"x" * length + b"\n")
  return b"".join(lines)


def read_whole(store: LocalPath) -> bytes:
  before = (store / NAME).read() or b""
  return before + b"".join(read_segments(store, NAME, len(before)))


@pytest.mark.parametrize("seed", range(20))
def test_a_file_that_grows_between_kills_is_read_back_whole(seed, tmp_path, monkeypatch):
  draw = random.Random(seed)
  store = LocalPath(tmp_path / "store")
  store.mkdir()
  content = random_lines(draw) if seed % 2 else b""
  if content:  # uploaded as a whole, before there were segments
    (store / NAME).write_bytes(content)
  uploads = []
  write_bytes = LocalPath.write_bytes

  def count_upload(path, data: bytes) -> None:
    # The loop below sets `stop_after`, the number of uploads before a kill; None for no kill.
    if len(uploads) == stop_after:
      raise InterruptedError
    uploads.append(len(data))
    write_bytes(path, data)

  monkeypatch.setattr(LocalPath, "write_bytes", count_upload)
  for start in range(5):
    local = tmp_path / f"start-{start}"
    file = new_file(store, local)
    file.pull()
    assert (local / NAME).exists() == bool(content)
    assert not content or (local / NAME).read_bytes() == content
    for _ in range(draw.randint(1, 6)):
      added = random_lines(draw)
      with open(local / NAME, "ab") as lines:
        lines.write(added)
      uploads.clear()
      stop_after = draw.choice((0, 1, 2)) if draw.random() < 0.2 else None
      try:
        file.push(lambda: None)
      except InterruptedError:
        break
      content += added
      # At most one segment is uploaded again: the bound, and a line of at most 301 bytes.
      assert sum(uploads) <= len(added) + BOUND + 301
    # A killed upload leaves complete lines: those before it, and the first of the added ones.
    whole = read_whole(store)
    assert whole.startswith(content)
    assert (content + added).startswith(whole) or whole == content
    assert whole.endswith(b"\n") or not whole
    content = whole
  names = [path.name for path in (store / "certificate").glob("*")]
  assert len(names) <= len(content) / (BOUND / 2) + 5
  # a copy on a disk is merged into its file, once
  copy = pathlib.Path(shutil.copytree(store, tmp_path / "copy"))
  for _ in range(2):
    merge_segments(copy, NAME)
    assert ((copy / NAME).read_bytes() if content else b"") == content


def test_a_file_that_was_cut_short_is_uploaded_as_it_is(tmp_path):
  store = LocalPath(tmp_path / "store")
  file = new_file(store, tmp_path / "local")
  path = tmp_path / "local" / NAME
  lines = [b"%030d\n" % number for number in range(10)]
  path.write_bytes(b"".join(lines))
  file.push(lambda: None)
  assert len(list((store / "certificate").iterdir())) == 4
  for count in (8, 9, 4, 2):
    path.write_bytes(b"".join(lines[:count]))
    file.push(lambda: None)
    assert read_whole(store) == path.read_bytes()
    path.write_bytes(b"".join(lines[:count]) + b"other\n")
    file.push(lambda: None)
    assert read_whole(store) == path.read_bytes()


def test_nothing_is_uploaded_after_the_check_fails_or_without_new_lines(tmp_path):
  store = LocalPath(tmp_path / "store")
  file = new_file(store, tmp_path / "local")
  file.push(lambda: None)  # no file yet
  (tmp_path / "local" / NAME).write_bytes(b"a\n")

  def refuse() -> None:
    raise PermissionError("another run")

  with pytest.raises(PermissionError):
    file.push(refuse)
  assert not store.exists()
  file.push(lambda: None)
  file.push(refuse)
  assert read_whole(store) == b"a\n"

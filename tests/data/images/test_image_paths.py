"""Images that records name by paths: only regular files of the directories that the user named, in
known formats."""

import json
import os
import socket
import subprocess

import numpy as np
import pytest
from PIL import Image

from image_files import encode
from t5x_like import trust
from t5x_like.data.images import pictures, store
from t5x_like.errors import UserError

PIXELS = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"


@pytest.fixture
def records(tmp_path, monkeypatch):
  """A function from image names to the store of records that have them, in `data/`, with an image
  beside them."""
  trust.begin_command(())
  (tmp_path / "here").mkdir()
  (tmp_path / "data" / "images").mkdir(parents=True)
  (tmp_path / "data" / "images" / "1.png").write_bytes(encode(Image.fromarray(PIXELS)))
  (tmp_path / "elsewhere.png").write_bytes(encode(Image.fromarray(PIXELS)))
  monkeypatch.chdir(tmp_path / "here")

  def sent(*arguments, **options):
    raise AssertionError("a request")

  monkeypatch.setattr(socket.socket, "connect", sent)

  def opened(name, **options):
    rows = [
      {"image": str(tmp_path / "data" / "images" / "1.png"), "label": "a"},
      {"image": name, "label": "a"},
    ]
    (tmp_path / "data" / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = f"jsonl:{tmp_path}/data/rows.jsonl"
    return store.open_store(
      source, "train", cache=str(tmp_path / "cache"), classes=("a",), **options
    )

  return opened


@pytest.mark.parametrize(
  "name",
  [
    "/dev/zero",
    "/etc/passwd",
    "{root}/elsewhere.png",
    "../elsewhere.png",
    "{root}/data/../elsewhere.png",
    "http://127.0.0.1/1.png",
    "https://example.org/1.png",
    "gs://bucket/1.png",
    "file:///etc/passwd",
    "zip://1.png::file:///etc/passwd",
    "reference://x::/etc/passwd",
  ],
)
def test_a_record_names_no_file_elsewhere(records, tmp_path, name):
  name = name.format(root=tmp_path)
  with pytest.raises(
    UserError,
    match=r"rows.jsonl:2: found .* in field 'image', expected a path "
    r"below",
  ):
    records(name)
  with pytest.raises(
    UserError,
    match=r"rows.jsonl:[12]: found .*, expected a path below "
    rf"{tmp_path}/here; name its",
  ):
    records(name, folder=f"{tmp_path}/here")


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_device_in_place_of_an_image_is_skipped(records, tmp_path, kind):
  path = tmp_path / "here" / "2.png"
  if kind == "pipe":
    os.mkfifo(path)
  else:
    path.symlink_to("/dev/zero")
  made = records("2.png")
  assert made.num_images == 1 and made.skipped == {f"a {kind} instead of an image": 1}


def test_files_below_the_named_directories_are_read(records, tmp_path):
  assert records(str(tmp_path / "data" / "images" / "1.png")).num_images == 2
  assert records("../data/images/1.png".removeprefix("../"), folder=str(tmp_path)).num_images == 2
  assert records(str(tmp_path / "elsewhere.png"), folder=str(tmp_path)).num_images == 2
  trust.begin_command((), everything=True)
  assert records(str(tmp_path / "elsewhere.png")).num_images == 2


@pytest.mark.parametrize(
  "read", [lambda data: pictures.read_pixels(data, 3), lambda data: store.check_image(data)]
)
def test_postscript_under_an_images_name_starts_nothing(read, monkeypatch):
  def started(*arguments, **options):
    raise AssertionError("a program")

  monkeypatch.setattr(subprocess, "Popen", started)
  try:
    outcome = read(EPS)
  except pictures.UnusableImage as error:
    outcome = error
  assert "not a readable image" in str(outcome)


def test_every_named_format_is_read():
  for name in pictures.FORMATS:
    assert pictures.read_pixels(encode(Image.fromarray(PIXELS), name), 3).shape == (4, 4, 3), name

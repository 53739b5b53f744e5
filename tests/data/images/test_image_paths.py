"""Records may name only images of known formats, in directories that the user has named."""

import os
import socket
import subprocess

import numpy as np
import pytest
from PIL import Image

import json_lines
from image_files import encode
from refusals import refuses
from t5x_like import trust
from t5x_like.corpora import image_files
from t5x_like.data.images import store

PIXELS = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"


@pytest.fixture
def store_of_image(tmp_path, monkeypatch):
  """Return a function that opens a store of two records, the second with an image of any name.

  The records are in `data/`, and the image of the first one is in `data/images/`. The current
  directory is `here/`. A network request fails the test.
  """
  trust.begin_command(())
  (tmp_path / "here").mkdir()
  (tmp_path / "data" / "images").mkdir(parents=True)
  (tmp_path / "data" / "images" / "1.png").write_bytes(encode(Image.fromarray(PIXELS)))
  (tmp_path / "elsewhere.png").write_bytes(encode(Image.fromarray(PIXELS)))
  monkeypatch.chdir(tmp_path / "here")

  def refuse_connection(*arguments, **options):
    raise AssertionError("opened a connection")

  monkeypatch.setattr(socket.socket, "connect", refuse_connection)

  def open_store(name, **options):
    rows = [
      {"image": str(tmp_path / "data" / "images" / "1.png"), "label": "a"},
      {"image": name, "label": "a"},
    ]
    json_lines.write(tmp_path / "data" / "rows.jsonl", rows)
    source = f"jsonl:{tmp_path}/data/rows.jsonl"
    return store.open_store(
      source, "train", cache=str(tmp_path / "cache"), classes=("a",), **options
    )

  return open_store


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
def test_records_that_name_files_elsewhere_are_refused(store_of_image, tmp_path, name):
  name = name.format(root=tmp_path)
  with refuses("rows.jsonl:2: found ", " in field 'image', expected a path below"):
    store_of_image(name)
  with refuses("rows.jsonl:", f"expected a path below {tmp_path}/here; name its"):
    store_of_image(name, folder=f"{tmp_path}/here")


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_pipe_or_device_instead_of_an_image_is_skipped(store_of_image, tmp_path, kind):
  path = tmp_path / "here" / "2.png"
  if kind == "pipe":
    os.mkfifo(path)
  else:
    path.symlink_to("/dev/zero")
  image_store = store_of_image("2.png")
  assert image_store.num_images == 1
  assert image_store.skipped == {f"a {kind} instead of an image": 1}


def test_images_below_named_directories_are_read(store_of_image, tmp_path):
  elsewhere = str(tmp_path / "elsewhere.png")
  assert store_of_image(str(tmp_path / "data" / "images" / "1.png")).num_images == 2
  assert store_of_image("data/images/1.png", folder=str(tmp_path)).num_images == 2
  assert store_of_image(elsewhere, folder=str(tmp_path)).num_images == 2
  trust.begin_command((), everything=True)
  assert store_of_image(elsewhere).num_images == 2


@pytest.mark.parametrize(
  "read", [lambda data: image_files.read_pixels(data, 3), store.check_image], ids=["read", "check"]
)
def test_postscript_in_an_image_file_starts_no_program(read, monkeypatch):
  def refuse_program(*arguments, **options):
    raise AssertionError("started a program")

  monkeypatch.setattr(subprocess, "Popen", refuse_program)
  try:
    outcome = read(EPS)
  except image_files.UnusableImage as error:
    outcome = error
  assert "not a readable image" in str(outcome)


@pytest.mark.parametrize("image_format", image_files.FORMATS)
def test_every_known_format_is_read(image_format):
  data = encode(Image.fromarray(PIXELS), image_format)
  assert image_files.read_pixels(data, 3).shape == (4, 4, 3)

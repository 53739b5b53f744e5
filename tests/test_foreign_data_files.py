"""Single data files from elsewhere reach nothing outside themselves."""

import io
import json
import os
import pathlib
import tarfile

import pytest

from t5x_like.corpora.sources import Skip, open_source
from t5x_like.errors import UserError
from tools.score.__main__ import main as score

SECRET = b"the secret of this machine"


@pytest.fixture
def secret(tmp_path) -> pathlib.Path:
  file = tmp_path / "elsewhere" / "secret.txt"
  file.parent.mkdir()
  file.write_bytes(SECRET)
  return file


def shard_member(kind: str, secret: pathlib.Path) -> tarfile.TarInfo:
  """Return the header of a member that names a file outside of its shard."""
  member = tarfile.TarInfo("0001.txt")
  if kind == "symbolic link":
    member.type = tarfile.SYMTYPE
    member.linkname = str(secret)
  elif kind == "hard link":
    member.type = tarfile.LNKTYPE
    member.linkname = str(secret)
  elif kind == "pipe":
    member.type = tarfile.FIFOTYPE
  elif kind == "device":
    member.type = tarfile.CHRTYPE
    member.devmajor = 1
    member.devminor = 5  # /dev/zero
  elif kind == "path upwards":
    member.name = f"../elsewhere/{secret.name}"
  else:
    member.name = str(secret)
  return member


@pytest.mark.parametrize(
  "kind", ["symbolic link", "hard link", "pipe", "device", "path upwards", "absolute path"]
)
def test_shard_member_reaches_no_file_outside_its_shard(kind, tmp_path, secret):
  content = b"of the shard"
  path = tmp_path / "shard.tar"
  with tarfile.open(path, "w") as shard:
    member = shard_member(kind, secret)
    if member.type == tarfile.REGTYPE:
      member.size = len(content)
      shard.addfile(member, io.BytesIO(content))
    else:
      shard.addfile(member)
    regular = tarfile.TarInfo("0002.txt")
    regular.size = len(content)
    shard.addfile(regular, io.BytesIO(content))
  source = open_source(f"webdataset:{path}", fields=("txt",))
  records = [record for _, record in source.records("train")]
  texts = [record["txt"] for record in records if not isinstance(record, Skip)]
  assert texts
  assert set(texts) == {content.decode()}
  assert sorted(os.listdir(tmp_path)) == ["elsewhere", "shard.tar"]
  assert secret.read_bytes() == SECRET


@pytest.mark.parametrize("flag", ["--references", "--predictions", "--compare"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_score_reads_no_pipes_and_devices(kind, flag, tmp_path, capsys):
  gold = tmp_path / "gold.jsonl"
  gold.write_text(json.dumps({"question": "1 + 1?", "answer": "#### 2"}) + "\n")
  odd = tmp_path / "odd.jsonl"
  if kind == "pipe":
    os.mkfifo(odd)
  else:
    odd.symlink_to("/dev/zero")
  paths = {"--references": gold, "--predictions": gold, "--compare": gold, flag: odd}
  flags = [f"{name}={path}" for name, path in paths.items()]
  assert score(["gsm8k", *flags]) == 2
  error = capsys.readouterr().err
  assert str(odd) in error
  assert f"found a {kind}, expected a file" in error


@pytest.mark.parametrize("text", ["{0}", "file://{0}", "@{0}", "lines:{0}", "gs://bucket/{0}"])
def test_predictions_that_spell_paths_are_texts(text, tmp_path, secret, capsys):
  """A prediction is compared as text: what it names is not opened."""
  references = tmp_path / "references.txt"
  references.write_text(f"{SECRET.decode()}\n")
  predictions = tmp_path / "predictions.txt"
  predictions.write_text(text.format(secret) + "\n")
  assert score(["rouge", f"--references={references}", f"--predictions={predictions}"]) == 0
  scores = json.loads(capsys.readouterr().out.splitlines()[-1])
  assert scores["rouge1"] < 50, "the file's own text would score 100"


@pytest.mark.parametrize("kind", ["pipe", "device", "text", "missing"])
def test_image_folder_yields_images_only(kind, tmp_path, secret):
  folder = tmp_path / "images" / "train" / "a"
  folder.mkdir(parents=True)
  image = folder / "0.png"
  if kind == "pipe":
    os.mkfifo(image)
  elif kind == "device":
    image.symlink_to("/dev/zero")
  elif kind == "text":
    image.symlink_to(secret)
  else:
    image.symlink_to(tmp_path / "missing")
  try:
    source = open_source(f"folders:{tmp_path}/images", fields=("image",))
    records = [record for _, record in source.records("train")]
  except UserError as error:
    assert "found no files below its folders" in str(error)
    return
  for record in records:
    if not isinstance(record, Skip):
      assert kind == "text", "bytes that are no image are skipped where they are decoded"

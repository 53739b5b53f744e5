"""Outputs of commands replace files, write to pipes and devices, or are refused."""

import json
import os
import socket
import stat
import subprocess
import sys
import threading

import pytest

from t5x_like.errors import UserError
from t5x_like.files.outputs import OutputFile, write_output
from tests.refusals import refuses
from tests.runs import REPO


@pytest.fixture
def source(tmp_path):
  path = tmp_path / "lines.txt"
  path.write_text("mine\n")
  return path


@pytest.mark.parametrize("path", ["{}", "folder/../lines.txt", "soft", "hard", "link/lines.txt"])
def test_output_that_is_also_an_input_is_refused(source, path, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "folder").mkdir()
  (tmp_path / "link").symlink_to(tmp_path)
  (tmp_path / "soft").symlink_to(source)
  os.link(source, tmp_path / "hard")
  path = path.format(source)
  with refuses(f"--output={path}: would overwrite the input {source}; name another file"):
    OutputFile(path, inputs=["elsewhere", str(source)])
  assert source.read_text() == "mine\n"


def test_input_folder_may_get_new_files_but_its_files_are_not_replaced(source, tmp_path):
  with pytest.raises(UserError, match="would overwrite the input"):
    OutputFile(str(source), inputs=[str(tmp_path)])
  OutputFile(str(tmp_path / "new"), inputs=[str(tmp_path)]).write(["a\n"])
  assert (tmp_path / "new").read_text() == "a\n"


def test_standard_input_that_is_the_output_file_is_refused(source):
  code = f"from t5x_like.files.outputs import OutputFile; OutputFile({str(source)!r}, inputs=['-'])"
  with source.open() as file:
    process = subprocess.run(
      [sys.executable, "-c", code], stdin=file, cwd=REPO, capture_output=True, text=True
    )
  assert "would overwrite the input -" in process.stderr


@pytest.mark.parametrize(
  "path, words",
  [
    ("", "empty"),
    (".", "is a directory"),
    ("new/", "is a directory"),
    ("missing/out", "no directory .*missing; make it first"),
    ("lines.txt/out", "no directory|cannot be written"),
    ("a\0b", "no name of a file"),
    ("x" * 300, "cannot be written|no name of a file"),
    ("gs://bucket/out", "is an address"),
    ("/dev/fd/987", "cannot be written: Bad file descriptor"),
  ],
)
def test_unwritable_path_is_refused_at_once(path, words, source, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(UserError, match=words):
    OutputFile(path)
  assert os.listdir(tmp_path) == ["lines.txt"]


def test_read_only_file_system_is_refused_at_once():
  with pytest.raises(UserError, match="^--output=/proc/out: cannot be written"):
    OutputFile("/proc/out")


@pytest.mark.parametrize(
  "name", ["config.json", "metrics.jsonl", "checkpoints/2/x", "vocabulary/vocabulary.json"]
)
def test_files_of_a_workdir_are_not_overwritten(name, tmp_path):
  (tmp_path / "config.json").write_text("{}")
  (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
  with pytest.raises(UserError, match=f"belongs to the workdir {tmp_path}"):
    OutputFile(str(tmp_path / name))
  write_output(str(tmp_path / "predictions.jsonl"), "fine")


def test_nothing_is_written_into_a_store(tmp_path):
  (tmp_path / "manifest.json").write_text(json.dumps({"format": "t5x_like.token_store.v2"}))
  (tmp_path / "deeper").mkdir()
  for name in ("manifest.json", "new", "deeper/new"):
    with pytest.raises(UserError, match="is inside the store"):
      OutputFile(str(tmp_path / name))
  (tmp_path / "manifest.json").write_text("{}")  # a manifest of another program
  OutputFile(str(tmp_path / "new"))


def test_replacing_a_file_is_atomic_keeps_permissions_and_follows_links(source, tmp_path):
  source.chmod(0o640)
  link = tmp_path / "link"
  link.symlink_to(source)

  def fail_after_first_line():
    yield "half\n"
    raise OSError(28, "No space left on device")

  with pytest.raises(UserError, match="cannot be written: No space left"):
    OutputFile(str(link)).write(fail_after_first_line())
  assert source.read_text() == "mine\n"
  assert sorted(os.listdir(tmp_path)) == ["lines.txt", "link"]
  OutputFile(str(link)).write(["new\n"])
  assert link.is_symlink()
  assert source.read_text() == "new\n"
  assert stat.S_IMODE(source.stat().st_mode) == 0o640
  assert sorted(os.listdir(tmp_path)) == ["lines.txt", "link"]


def test_device_is_written_to_and_not_replaced(tmp_path):
  null = tmp_path / "null"
  null.symlink_to("/dev/null")
  for path in ("/dev/null", str(null)):
    OutputFile(path, inputs=["/dev/null"]).write(["gone\n"])
    assert stat.S_ISCHR(os.stat(path).st_mode)
  with pytest.raises(UserError, match="cannot be written: No space left on device"):
    write_output("/dev/full", "x" * 10_000)
  assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


def test_pipe_is_written_to(tmp_path):
  pipe = tmp_path / "pipe"
  contents = []
  os.mkfifo(pipe)
  with pytest.raises(UserError, match="would overwrite the input"):
    OutputFile(str(pipe), inputs=[str(pipe)])
  reader = threading.Thread(target=lambda: contents.append(pipe.read_text()))
  reader.start()
  OutputFile(str(pipe)).write(["a\n", "b\n"])
  reader.join(10)
  assert contents == ["a\nb\n"]
  assert stat.S_ISFIFO(os.stat(pipe).st_mode)


def test_socket_is_written_to(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with socket.socket(socket.AF_UNIX) as server:
    server.bind("socket")
    server.listen()
    OutputFile("socket").write(["a\n"])
    with server.accept()[0] as peer:
      assert peer.recv(9) == b"a\n"


def test_open_descriptor_is_written_to(tmp_path):
  with (tmp_path / "out").open("w") as file:
    file.write("before\n")
    file.flush()
    OutputFile(f"/dev/fd/{file.fileno()}").write(["after\n"])
  assert (tmp_path / "out").read_text() == "before\nafter\n"


@pytest.mark.parametrize("path", ["-", "/dev/stdout", "/dev/fd/1"])
def test_output_to_standard_output_is_utf8(path, tmp_path):
  code = f"from t5x_like.files.outputs import OutputFile; o = OutputFile({path!r}); "
  code += "print(o.to_stdout, flush=True); o.write(['é\\n'])"
  with (tmp_path / "all").open("w") as file:
    subprocess.run([sys.executable, "-c", code], stdout=file, cwd=REPO, check=True)
  assert (tmp_path / "all").read_text() == "True\né\n"


def test_reader_that_closes_the_pipe_is_reported_in_one_line():
  code = "from t5x_like.files.outputs import OutputFile; OutputFile('-').write(['x' * 70 + '\\n'] * 100000)"
  command = f"{sys.executable} -c {code!r}"
  process = subprocess.run(
    ["bash", "-c", f"{command} | head -1 >/dev/null"], cwd=REPO, capture_output=True, text=True
  )
  assert "--output=-: the reader closed it before everything was written" in process.stderr


def test_lone_surrogates_are_escaped_and_counted(tmp_path):
  output = OutputFile(str(tmp_path / "out"))
  rows = [{"a": "fine é"}, {"a": "\ud83d!"}, {"a": "\udcff\ud800"}]
  output.write(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
  lines = (tmp_path / "out").read_text(encoding="utf-8").splitlines()
  assert [json.loads(line) for line in lines] == rows
  assert lines[1] == '{"a": "\\ud83d!"}'
  assert output.escaped == 2
  assert "2 lines with lone surrogates" in output.describe_escapes()

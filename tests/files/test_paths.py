"""Every program refuses malformed paths and URLs; files behave alike locally and in stores."""

import importlib.util
import os
import pathlib
import threading
import zipfile

import pytest

from t5x_like import certify, evaluate, predict, train, trust
from t5x_like.errors import TransientError, UserError
from t5x_like.files import clients, globs, leases, locks, remote
from t5x_like.files.paths import as_path, check_directory, is_remote
from tests import object_server
from tests.refusals import refuses
from tools import convert_hf, few_shot, prepare_data, train_vocabulary

REPO = pathlib.Path(__file__).resolve().parents[2]
REASONS = {  # path or URL: reason for its refusal
  "": "an empty address",
  "  ": "an empty address",
  "/": "the root of the file system",
  "//": "the root of the file system",
  "file:///": "the root of the file system",
  "/tmp/..": "the root of the file system",
  "gs://": "no bucket",
  "s3://": "no bucket",
  "gs:///run": "no bucket",
  "memory://": "no bucket",
  "://run": "no scheme",
  "s3:/bucket/run": "a scheme without '//', expected s3://bucket/run",
  "gs:": "a scheme without '//'",
  "~/runs": "write --workdir=$HOME/runs",
  str(REPO): "the project's own directory",
}


@pytest.mark.parametrize("path", REASONS)
def test_malformed_or_dangerous_workdir_is_refused(path):
  with refuses("--workdir=", REASONS[path]):
    check_directory(path)


def test_home_directory_is_refused_unless_it_holds_a_run(tmp_path, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path))
  with pytest.raises(UserError, match="the home directory"):
    check_directory(f"{tmp_path}/")
  (tmp_path / "config.json").write_text("{}")
  assert check_directory(tmp_path) == str(tmp_path)


def test_other_paths_and_urls_are_accepted_and_normalized(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for path in (
    "runs/a",
    ".",
    "..",
    f"{tmp_path}/x:1",
    "run:1",
    "gs://bucket",
    "gs://bucket/run",
    "memory:///run",
  ):
    assert check_directory(path) == path
  assert check_directory("gs://bucket/run//") == "gs://bucket/run"
  assert check_directory("runs/a/") == "runs/a"
  assert check_directory(f"file://{tmp_path}/new/") == f"{tmp_path}/new"


RECIPE = f"--config={REPO}/tests/recipes/nano.py"
COMMANDS = {
  "train": (train.main, [RECIPE, "--workdir={}"]),
  "evaluate": (evaluate.main, ["--workdir={}"]),
  "certify": (certify.main, ["--workdir={}"]),
  "suite": (evaluate.main, ["--workdir={},run", "--suite=glue", "--output=out"]),
  "suite's output": (evaluate.main, ["--workdir=run", "--suite=glue", "--output={}"]),
  "predict": (predict.main, ["--workdir={}", "--input=in.txt", "--output=out.jsonl"]),
  "convert_hf": (convert_hf.main, ["--input=model", RECIPE, "--output={}"]),
  "prepare_data": (
    prepare_data.main,
    ["--source=text:in.txt", "--vocabulary=bytes", "--output={}"],
  ),
  "train_vocabulary": (
    train_vocabulary.main,
    ["--source=text:in.txt", "--kind=unigram", "--size=300", "--output={}"],
  ),
  "few_shot": (few_shot.main, ["--workdir={}", "--input=in.jsonl"]),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_program_refuses_a_malformed_path_and_writes_nothing(
  command, tmp_path, monkeypatch, capsys
):
  main, argv = COMMANDS[command]
  monkeypatch.chdir(tmp_path)
  (tmp_path / "in.txt").write_text("a line\n")
  for path in ("", "s3://", "s3:/bucket/run"):
    assert main([argument.format(path) for argument in argv]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"={path}" in error
    assert ": found " in error
  assert os.listdir(tmp_path) == ["in.txt"]


def test_writing_syncs_the_file_before_and_its_directories_after_the_renaming(
  tmp_path, monkeypatch
):
  events = []
  fsync = os.fsync
  replace = os.replace
  monkeypatch.setattr(
    os, "fsync", lambda n: (events.append(os.readlink(f"/proc/self/fd/{n}")), fsync(n))
  )
  monkeypatch.setattr(os, "replace", lambda a, b: (events.append("renamed"), replace(a, b)))
  (as_path(tmp_path) / "new" / "config.json").write_bytes(b"{}")
  file, *later_paths = events
  assert file.startswith(f"{tmp_path}/new/config.json.")
  assert later_paths == [
    "renamed",
    f"{tmp_path}/new",
    str(tmp_path),
  ]
  assert (tmp_path / "new" / "config.json").read_bytes() == b"{}"


@pytest.fixture(params=["path", "file", "gs", "s3", "memory"])
def root(request, tmp_path):
  """Return a directory of each scheme that does not exist yet."""
  local = f"{tmp_path}/local"
  urls = {"path": local, "file": f"file://{local}", "memory": f"memory://{tmp_path.name}"}
  with object_server.serve(tmp_path / "bucket"):
    yield as_path(urls.get(request.param, f"{request.param}://bucket/run"))


def test_reading_and_writing_work_alike_for_every_scheme(root):
  file = root / "a" / "b"
  assert file.read() is None
  assert root.names() == []
  assert root.sizes() == {}
  assert not root.exists()
  with pytest.raises(FileNotFoundError):
    file.read_bytes()
  file.write_bytes(b"0123")
  file.write_bytes(b"012345")
  assert file.read() == file.read_bytes() == b"012345"
  assert file.read(slice(2, 4)) == b"23"
  assert (root / "a" / "c").create(b"one")
  assert not (root / "a" / "c").create(b"two")
  assert (root / "a" / "c").read_text() == "one"
  (root / "a" / "empty").write_text("")
  assert (root / "a").names() == ["b", "c", "empty"]
  assert root.names() == ["a"]
  assert [path.name for path in root.iterdir()] == ["a"]
  assert (root / "a" / "x").parent.name == "a"
  assert set(root.sizes()) == {"a/b", "a/c", "a/empty"}
  assert set((root / "a").sizes("b")) == {"b"}
  assert root.sizes()["a/b"] in (6, None)
  assert (root / "a").is_dir()
  assert not file.is_dir()
  assert file.is_file()
  assert (root / "a" / "empty").is_file()
  file.unlink()
  assert not file.exists()
  assert root.exists()
  root.rmtree(missing_ok=True)
  root.rmtree(missing_ok=True)
  assert not root.exists()


def test_only_the_current_version_can_be_replaced_or_deleted(root):
  file = root / "a" / "b"
  assert file.read_version() is None
  file.create(b"one")
  first = file.read_version()
  assert first.content == b"one"
  assert file.read_version() == first
  assert file.replace_version(b"two", first.version)
  second = file.read_version()
  assert second.content == b"two"
  assert second.version != first.version
  assert not file.replace_version(b"three", first.version)
  assert not file.renew(b"three", first.version)
  assert file.read() == b"two"
  assert file.renew(b"four", second.version)
  third = file.read_version()
  assert third.version != second.version
  file.unlink()
  file.create(b"five")
  assert not file.replace_version(b"six", third.version)
  assert file.read() == b"five"
  file.replace_version(None, third.version)
  assert file.read() == b"five"
  assert file.replace_version(None, file.read_version().version)
  assert file.read() is None


def test_holder_that_was_paused_while_renewing_does_not_overwrite_the_next_lease(root):
  """The pause is between its reading of the lease and its write; meanwhile another process takes
  the lease over."""
  seconds = 0.6
  paused = threading.Event()
  resumed = threading.Event()
  first = leases.Lease(root, "lease", "is here ({})", seconds)
  write = first._file.renew

  def renew(data, version):
    paused.set()
    resumed.wait()
    return write(data, version)

  first._file.renew = renew
  with first:
    assert paused.wait(10)
    with leases.Lease(root, "lease", "is here ({})", seconds) as second:
      resumed.set()
      first.abandon()
      second.check()
      with pytest.raises(TransientError, match="another process has taken it over"):
        first.check()
  assert (root / "lease").read() is None


def test_only_one_of_two_processes_takes_over_a_dead_lease(root):
  (root / "lease").write_bytes(b'{"holder": "dead"}')
  two_leases = [leases.Lease(root, "lease", "is here ({})", 0.6) for _ in range(2)]
  both_have_read = threading.Barrier(2)
  holders = []

  def take(lease):
    write = lease._file.replace_version

    def replace_version(data, version):
      lease._file.replace_version = write
      both_have_read.wait(10)
      return write(data, version)

    lease._file.replace_version = replace_version
    try:
      lease.__enter__()
      holders.append(lease)
    except locks.DirectoryInUse:
      return

  threads = [threading.Thread(target=take, args=(lease,)) for lease in two_leases]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert len(holders) == 1
  holders[0].check()
  holders[0].close()


def test_files_are_matched_by_patterns_and_read_in_pieces(root, monkeypatch):
  if str(root).startswith("s3:"):
    pytest.importorskip("s3fs")
  monkeypatch.setattr(remote, "_STREAM_READ_BYTES", 1_000)
  content = os.urandom(3_500)
  for name in ("a/0.txt", "a/1.txt", "a/2.csv", "b/0.txt"):
    (root / name).write_bytes(content)
  paths = globs.find_matches(f"{root}/*/[01].txt")
  assert paths == [f"{root}/{name}" for name in ("a/0.txt", "a/1.txt", "b/0.txt")]
  assert {globs.file_kind(path) for path in paths} == {"file"}
  assert globs.file_kind(f"{root}/a") == "directory"
  file = root / "a" / "0.txt"
  assert file.size() == 3_500
  assert (file.modified_time() is None) == is_remote(root)
  with file.open("rb") as opened:
    assert opened.read(10) == content[:10]
    assert opened.seek(0) == 0
    assert opened.read() == content
  with pytest.raises(FileNotFoundError):
    (root / "none").size()


def test_files_in_archives_have_urls(tmp_path):
  with zipfile.ZipFile(tmp_path / "pages.zip", "w") as archive:
    for name in ("a/0.txt", "a/1.txt"):
      archive.writestr(name, name)
  trust.begin_command(f"zip://a/*.txt::{tmp_path}/pages.zip")
  assert globs.find_matches(f"zip://a/*.txt::{tmp_path}/pages.zip") == [
    f"zip://{name}::{tmp_path}/pages.zip" for name in ("a/0.txt", "a/1.txt")
  ]
  file = as_path(f"zip://a::{tmp_path}/pages.zip") / "1.txt"
  assert file.read_text() == "a/1.txt"
  assert file.size() == 7
  assert file.parent.names() == ["0.txt", "1.txt"]


@pytest.mark.parametrize(
  ("url", "remedy"),
  [
    ("s3://Bad_Bucket!/", "correct the address"),
    ("gs://UPPER/", "correct the address"),
    ("nosuch://x/", "correct the address"),
    ("az://container/", "pip install adlfs"),
    ("abfs://container@account/", "pip install adlfs"),
  ],
)
def test_unusable_url_is_refused_with_the_right_remedy(url, remedy):
  """The remedy is to correct an invalid URL, or to install a missing package."""
  if "adlfs" in remedy and importlib.util.find_spec("adlfs"):
    pytest.skip("adlfs is installed")
  with pytest.raises(UserError, match=remedy):
    clients.open_client(url)


@pytest.mark.parametrize(
  "flags, words",
  [([], "--workdir: memory://none/run holds no run"), (["--suite=glue"], "needs --output=DIR")],
)
def test_evaluating_an_absent_run_in_a_store_is_refused(flags, words, capsys):
  assert evaluate.main(["--workdir=memory://none/run", *flags]) == 2
  assert words in capsys.readouterr().err

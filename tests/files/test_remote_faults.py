"""Faults of a bucket end runs with one line and the exit code of the fault."""

import json
import shutil

import pytest

import more
from stores import many_documents, write
from t5x_like import evaluate, predict, train
from t5x_like.errors import UserError
from t5x_like.files import clients, leases, remote
from tests import object_server
from tools import prepare_data

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled")]
pytest.importorskip("gcsfs")
RUN = ("--config=tests/recipes/nano_decoder.py", "--config.checkpoint.every=2")
NO_BUCKET = "://bucket does not exist; create it, or correct the address"
DENIED = "permission denied"
EXPIRED = "the credentials have expired"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
  folder = tmp_path_factory.mktemp("bucket")
  quick = {f"{driver}_request_retries": {"max_retries": 1} for driver in clients._DRIVERS}
  with pytest.MonkeyPatch.context() as monkeypatch:
    monkeypatch.setattr(clients, "_tensorstore_context", lambda: quick)
    monkeypatch.setattr(remote, "_RECHECK_SECONDS", 0)
    with object_server.serve(folder, T5X_LIKE_RETRY_SECONDS="1") as server:
      yield server


@pytest.fixture(autouse=True)
def reset_fault(server):
  """End the faults of each test."""
  yield
  server.fault = lambda operation, name: None


@pytest.fixture(scope="module")
def trained(server, compiled):
  """Return the directory of a run of four steps with checkpoints at 2 and 4."""
  assert train.main([*RUN, "--workdir=gs://bucket/trained", "--config.total_steps=4"]) == 0
  return server.root / "trained"


@pytest.fixture(params=["gs", more.later("s3")])
def workdir(request, server, trained, tmp_path):
  """Return (URL, directory on the server) of a copy of the run."""
  shutil.copytree(trained, server.root / tmp_path.name)
  yield f"{request.param}://bucket/{tmp_path.name}", server.root / tmp_path.name
  shutil.rmtree(server.root / tmp_path.name, ignore_errors=True)


def read_error(capfd, kind: str, quiet: bool = True) -> str:
  """Return the line of an error; if `quiet`, assert that no thread printed a traceback."""
  err = capfd.readouterr().err
  lines = [line for line in err.splitlines() if line.startswith(f"{kind}: ")]
  assert len(lines) == 1, err
  assert not (quiet and "Traceback" in err), err
  return lines[0]


def truncate_file(pattern, keep):
  def damage(directory, server):
    (file,) = directory.glob(f"checkpoints/4-*/{pattern}")
    file.write_bytes(file.read_bytes()[:keep])

  return damage


def refuse_ranges(directory, server):
  newest_step = f"{directory.name}/checkpoints/4-"
  server.fault = lambda at, name: (
    "range" if name.startswith(newest_step) and name.endswith(".bin") else None
  )


# tests/checkpoints/test_checkpoint_objects.py has more kinds of damage.
DAMAGES = {
  "manifest empty": truncate_file("manifest.json", 0),
  "tensors cut": truncate_file("tensors-00000.bin", -9),
  "tensors answer 416": refuse_ranges,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_training_skips_a_damaged_newest_step(damage, workdir, server, caplog, capfd):
  url, directory = workdir
  damage(directory, server)
  assert train.main([*RUN, f"--workdir={url}", "--config.total_steps=3"]) == 0
  messages = [record.message for record in caplog.records]
  (message,) = [message for message in messages if "is damaged and is skipped" in message]
  assert message.startswith("checkpoint step 4 is")
  assert f"{url}/checkpoints" in message
  assert "from step 2 of 3" in capfd.readouterr().out


@pytest.mark.parametrize("damage", ["manifest empty", "tensors answer 416"])
def test_evaluation_and_prediction_skip_a_damaged_newest_step(
  damage, workdir, server, tmp_path, caplog
):
  url, directory = workdir
  DAMAGES[damage](directory, server)
  assert evaluate.main([f"--workdir={url}", "--config.evals.loss.max_examples=16"]) == 0
  (result,) = directory.glob("evaluations/*.json")
  assert json.loads(result.read_text())["step"] == 2
  (tmp_path / "lines.txt").write_text("def f():\n")
  files = (f"--input={tmp_path}/lines.txt", f"--output={tmp_path}/out.jsonl")
  assert predict.main([f"--workdir={url}", "--max_new_tokens=2", *files]) == 0
  assert sum("step 4 is damaged" in record.message for record in caplog.records) == 2


def test_a_run_whose_steps_are_all_damaged_ends_with_code_4(workdir, capfd):
  url, directory = workdir
  for file in directory.glob("checkpoints/*/manifest.json"):
    file.write_bytes(b"")
  assert train.main([*RUN, f"--workdir={url}", "--config.total_steps=6"]) == 4
  assert f"{url}/checkpoints: every checkpoint is damaged (step 4:" in read_error(capfd, "damage")


ACCESS_LOSSES = {  # (answer, operations that get it or None for all, words of the message)
  "may not write": ("forbidden", ("write", "create", "delete"), DENIED),
  "bucket vanished": ("no bucket", None, NO_BUCKET),
  "may do nothing": ("forbidden", None, DENIED),
  "token expired": ("expired", None, EXPIRED),
}


@pytest.mark.parametrize("answer, operations, words", more.beyond(2, ACCESS_LOSSES.values()))
def test_losing_a_bucket_during_a_run_is_reported_in_one_line(
  answer, operations, words, workdir, server, capfd
):
  url, directory = workdir
  name = directory.name
  reached = []

  def fault(operation, at):
    is_manifest = at.startswith(f"{name}/checkpoints/6-") and at.endswith("manifest.json")
    if is_manifest and operation == "create":
      reached.append(at)  # the manifest itself is still written
    elif reached and (operations is None or operation in operations):
      return answer
    return None

  server.fault = fault
  assert train.main([*RUN, f"--workdir={url}", "--config.total_steps=40"]) == 2
  line = read_error(capfd, "error")
  assert reached
  assert words in line
  assert "taken" not in line
  assert "://bucket" in line


def test_removed_lease_ends_the_run_as_a_transient_error(workdir, server, capfd):
  url, directory = workdir

  def fault(operation, name):
    if "/checkpoints/6-" in name:
      (directory / "lease").unlink(missing_ok=True)

  server.fault = fault
  assert train.main([*RUN, f"--workdir={url}", "--config.total_steps=40"]) == 69
  assert f"{url}/lease: is gone, removed by another process or by hand" in read_error(
    capfd, "transient error"
  )


def test_lease_check_reports_that_the_bucket_has_been_deleted(workdir, server, monkeypatch):
  """The report comes although the bucket was found a moment ago."""
  monkeypatch.setattr(remote, "_RECHECK_SECONDS", 60)
  directory = remote.RemotePath(workdir[0])
  with leases.Lease(directory, "lease", "is here: {}") as lease:
    assert (directory / "no_such_file").read() is None
    server.fault = lambda operation, name: "no bucket"
    with pytest.raises(UserError, match=NO_BUCKET):
      lease.check()
    server.fault = lambda operation, name: None


@pytest.mark.parametrize("answer, operations, words", ACCESS_LOSSES.values(), ids=ACCESS_LOSSES)
@pytest.mark.parametrize("command", ["train", "evaluate", "predict"])
def test_inaccessible_bucket_is_reported_in_one_line(
  command, answer, operations, words, workdir, server, tmp_path, capfd
):
  url, _ = workdir
  (tmp_path / "lines.txt").write_text("def f():\n")
  files = (f"--input={tmp_path}/lines.txt", f"--output={tmp_path}/out.jsonl")
  if operations and command == "predict":
    return  # prediction writes nothing to the bucket
  server.fault = lambda operation, name: (
    answer if operations is None or operation in operations else None
  )
  call = {
    "train": lambda: train.main([*RUN, f"--workdir={url}", "--config.total_steps=6"]),
    "evaluate": lambda: evaluate.main([f"--workdir={url}", "--config.evals.loss.max_examples=16"]),
    "predict": lambda: predict.main([f"--workdir={url}", "--max_new_tokens=2", *files]),
  }[command]
  assert call() == 2
  assert words in read_error(capfd, "error")


@pytest.fixture(scope="module")
def store(server):
  for split in ("train", "validation"):
    write(server.root / "store" / split, many_documents(), shard_tokens=8_000)
  return server.root / "store"


STORE_URLS = {"gs": "gs://bucket/store", "s3": "s3://bucket/store", "http": "{}/store"}
ANSWERS = {  # (answer, exit code, kind of error, words of the message)
  "cut short": ("cut short", 4, "damage", "/tokens/0000000"),
  "out of range": ("range", 4, "damage", "/tokens/0000000"),
  "forbidden": ("forbidden", 2, "error", DENIED),
  "no bucket": ("no bucket", 2, "error", "does not exist"),
}


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("scheme", STORE_URLS)
def test_token_store_fault_is_reported_in_one_line(scheme, answer, store, server, tmp_path, capfd):
  if (scheme, answer) == ("http", "no bucket"):
    return  # a web server has no buckets
  answer_name, code, kind, words = ANSWERS[answer]
  url = STORE_URLS[scheme].format(server.url)
  everywhere = answer_name == "no bucket"
  server.fault = lambda operation, name: answer_name if everywhere or "/tokens/" in name else None
  flags = (f"--workdir={tmp_path}/run", f"--config.task.store={url}")
  assert train.main([*RUN, *flags, "--config.total_steps=2"]) == code
  line = read_error(capfd, kind)
  assert url[:10] in line
  assert words in line


@pytest.mark.parametrize("answer", ["cut short", "forbidden"])
def test_token_store_fault_during_training_is_reported_in_one_line(
  answer, store, server, tmp_path, capfd
):
  """The threads of tf.data make the reads."""
  _, code, kind, words = ANSWERS[answer]
  task = ("store=gs://bucket/store", "verify=size", "documents_end=nothing")
  flags = [f"--workdir={tmp_path}/run", *(f"--config.task.{argument}" for argument in task)]
  server.fault = lambda operation, name: answer if "/tokens/" in name else None
  assert train.main([*RUN, *flags, "--config.total_steps=2"]) == code
  # Here TensorFlow may print too: only programs silence it before they import it.
  assert words in read_error(capfd, kind, quiet=False)


@pytest.mark.parametrize("fails_later", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize(
  "answer, words", [("forbidden", DENIED), ("expired", EXPIRED), ("no bucket", "does not exist")]
)
@pytest.mark.parametrize("scheme", ["gs", more.later("s3")])
def test_fault_while_preparing_data_into_a_bucket_is_reported_in_one_line(
  scheme, answer, words, fails_later, server, tmp_path, capfd
):
  (tmp_path / "a.txt").write_text("many words of a text\n" * 2_000)
  flags = [f"--source=text:{tmp_path}/a.txt", "--vocabulary=bytes", "--split=train", "--workers=1"]
  writes = []

  def fault(operation, name):
    if "tokens" in name and operation == "write":
      writes.append(name)
    affects_operation = answer == "no bucket" or operation in ("write", "create", "delete")
    return answer if affects_operation and (writes or not fails_later) else None

  server.fault = fault
  assert prepare_data.main([*flags, f"--output={scheme}://bucket/{tmp_path.name}"]) == 2
  line = read_error(capfd, "error")
  assert words in line
  assert line.startswith(("error: --output=", f"error: {scheme}://bucket"))

"""Every answer of an object store, at every operation, through every client: one class and one line."""

import asyncio
import contextlib
import errno
import types

import aiohttp
import aiohttp.http_exceptions
import pytest

from t5x_like.errors import DamageError, TransientError, UserError, answered, is_transient
from t5x_like.files import answers, objects
from t5x_like.files.answers import Kind
from t5x_like.files.objects import place
from t5x_like.files.storage import Storage
from t5x_like.store import remote_files
from tests import object_server
from tests.object_answers import ANSWERS

pytest.importorskip("gcsfs")
DENIED, EXPIRED = (UserError, "permission denied"), (UserError, "the credentials have expired")
GONE = (UserError, ": bucket {} does not exist; create it")
DAMAGED, LATER = (DamageError, "damaged"), (TransientError, "")  # the time for retries differs
CONTENT = bytes(range(64))
QUICK = {"max_retries": 1, "initial_delay": "1ms", "max_delay": "2ms"}


def expected(answer: str, operation: str, client: str):
  """The class of error and its words, or the value that is returned; `...` for an answer that an operation has not."""
  if answer == "no object":
    return {"read": None, "range": None, "exists": False, "delete": None}.get(operation, ...)
  if answer in ("exists", "conflict"):
    return False if operation == "create" else ...
  if answer == "range":
    return {"range": DAMAGED, "exists": ... if "TensorStore" in client else True}.get(operation, ...)
  if answer == "no bucket":
    if "http" in client:
      return ...
    return None if operation == "delete" and "TensorStore" in client else GONE  # it takes what is gone for deleted
  return {
    "forbidden": DENIED,
    "unauthenticated": DENIED,
    "expired": DENIED if client == "fsspec on http" else EXPIRED,  # it does not pass the server's words on
    **dict.fromkeys(("timeout", "too early", "throttled", "internal", "unavailable", "gateway"), LATER),
    **{
      name: (UserError, "the store refuses" if "http" in client else ANSWERS[name].told)
      for name in ("bad request", "bad method", "unimplemented")
    },
  }[answer]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
  server = object_server.Server(tmp_path_factory.mktemp("bucket"))
  with pytest.MonkeyPatch.context() as monkeypatch, server.running():
    objects._root.cache_clear()  # of another test's server
    objects._looked.clear()
    monkeypatch.setattr(objects, "_CONTEXT", {f"{d}_request_retries": QUICK for d in objects._DRIVERS})
    monkeypatch.setattr(objects, "_LOOK_SECONDS", 0)
    monkeypatch.setattr(remote_files, "PATIENCE_SECONDS", 2)
    quick = types.SimpleNamespace(sleep=lambda seconds: asyncio.sleep(seconds / 10_000))
    monkeypatch.setattr("gcsfs.retry.asyncio", quick)  # its waits between attempts
    retry = {"T5X_LIKE_RETRY_SECONDS": "0.01"}
    for name, value in (object_server.environment(server) | retry).items():
      monkeypatch.setenv(name, value)
    yield server


def through_storage(url, local):
  storage = Storage(url)
  return {
    "read": lambda: storage.read("file"),
    "range": lambda: storage.read("file", 8, 40),
    "exists": lambda: storage.exists("file"),
    "list": storage.names,
    "write": lambda: storage.write("new", b"new"),
    "upload": lambda: storage.upload("new", local),
    "create": lambda: storage.create("new", b"new"),
    "delete": lambda: storage.delete("file"),
  }


def through_address(url, local):
  def read():
    with contextlib.suppress(FileNotFoundError):
      return (place(url) / "file").read_bytes()

  return {
    "read": read,
    "range": lambda: remote_files.RemoteFiles(url)._answers([("file", slice(8, 40))])[0],
    "exists": lambda: (place(url) / "file").exists(),
    "list": lambda: sorted(place(url).sizes()),
    "write": lambda: (place(url) / "new").write_bytes(b"new"),
    "create": lambda: (place(url) / "new").create(b"new"),
    "delete": lambda: (place(url) / "file").unlink(),
  }


READING = ("read", "range", "exists")
CLIENTS = {
  "gcsfs": ("gs://bucket/run", through_storage, None),
  "fsspec on http": ("{}/run", through_storage, READING),  # a web server, not a store
  "TensorStore on Google": ("gs://bucket/run", through_address, None),
  "TensorStore on S3": ("s3://bucket/run", through_address, None),
  "TensorStore on http": ("{}/run", through_address, READING[:2]),
  "s3fs": ("s3://bucket/run", through_storage, None),
}
INSTALLED = [pytest.param(name, marks=[pytest.mark.services] * (name == "s3fs")) for name in CLIENTS]


def reset(server):
  for name in server.names():
    (server.root / name).unlink()
  (server.root / "run").mkdir(exist_ok=True)
  (server.root / "run" / "file").write_bytes(CONTENT)


def outcome(call):
  try:
    return call()
  except (UserError, DamageError, TransientError) as error:
    return error


@pytest.mark.parametrize("answer", sorted(ANSWERS.keys() - {"cut short", "empty", "expired in 400"}))
@pytest.mark.parametrize("client", INSTALLED)
def test_class_and_line(client, answer, server, tmp_path):
  (tmp_path / "local").write_bytes(b"new")
  url, through, able = CLIENTS[client]
  url, wrong = url.format(server.url), []
  for operation, call in through(url, tmp_path / "local").items():
    want = expected(answer, operation, client)
    if want is ... or able and operation not in able:
      continue
    asked = {"exists": "read" if through is through_address else "range", "upload": "write"}.get(operation, operation)
    reset(server)
    # Where there is no bucket, no request finds one.
    server.fault = lambda at, _, asked=asked: answer if at == asked or answer == "no bucket" else None
    found = outcome(call)
    if isinstance(want, tuple):
      kind, said = want
      good = type(found) is kind and str(found).startswith(url) and "\n" not in str(found) and len(str(found)) < 500
      good = good and said.format(url[:11]) in str(found)
    else:
      good = found == want
    if not good:
      wrong.append(f"{operation}: found {found!r}, expected {want!r}")
  assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("answer", ["cut short", "empty"])
@pytest.mark.parametrize("client", INSTALLED)
def test_an_object_that_is_cut_short_is_damaged(client, answer, server, tmp_path):
  url, through, _ = CLIENTS[client]
  calls = through(url.format(server.url), tmp_path)
  reset(server)
  server.fault = lambda at, _: answer
  assert outcome(calls["read"]) == CONTENT[: ANSWERS[answer].bytes]  # whole, as far as anyone can say
  assert "TensorStore on http" == client or calls["exists"]() is True
  found = outcome(calls["range"])
  assert type(found) is DamageError and "/run/file: " in str(found) and "damaged" in str(found)


def test_a_token_that_expired_is_told_though_s3_says_400(server):
  server.fault = lambda at, _: "expired in 400"
  with pytest.raises(UserError, match="s3://bucket/run/file: cannot be read: the credentials have expired"):
    (place("s3://bucket/run") / "file").read_bytes()


def s3(code, status, told="told by the server"):
  """What botocore raises, as s3fs passes it on: around it an error whose number can be any."""
  error = ClientError(f"An error occurred ({code}) when calling the operation: {told}")
  error.response = {"Error": {"Code": code, "Message": told}, "ResponseMetadata": {"HTTPStatusCode": status}}
  outer = OSError(errno.EIO, told)
  outer.__cause__ = error
  return outer


def cut():
  """What aiohttp raises for an answer that the connection lost: its parser's number looks like a status."""
  error = aiohttp.ClientPayloadError("Response payload is not completed")
  error.__cause__ = aiohttp.http_exceptions.ContentLengthError("Not enough data (70 of 141 bytes).")
  return error


class ClientError(Exception):
  """Stands for botocore's, which is not installed here; `make test-services` has the real one, in s3fs."""


class RefreshError(Exception):
  """Stands for google.auth's."""

  retryable = False


@pytest.mark.parametrize(
  "error, kind",
  [
    (s3("InvalidRange", 416), Kind.DAMAGED),
    (s3("BadDigest", 400), Kind.DAMAGED),
    (s3("AccessDenied", 403), Kind.REFUSED),
    (s3("403", 403), Kind.REFUSED),  # of a HEAD, which has no body
    (s3("ExpiredToken", 400), Kind.EXPIRED),
    (s3("RequestTimeTooSkewed", 403), Kind.REFUSED),
    (s3("NoSuchBucket", 404), Kind.NO_BUCKET),
    (s3("NoSuchKey", 404), Kind.ABSENT),
    (s3("404", 404), Kind.ABSENT),
    (s3("PreconditionFailed", 412), Kind.EXISTS),
    (s3("ConditionalRequestConflict", 409), Kind.EXISTS),
    (s3("OperationAborted", 409), Kind.TRANSIENT),
    (s3("SlowDown", 503), Kind.TRANSIENT),
    (s3("RequestTimeout", 400), Kind.TRANSIENT),
    (s3("InternalError", 500), Kind.TRANSIENT),
    (s3("InvalidBucketName", 400), Kind.OTHER),
    (s3("MethodNotAllowed", 405), Kind.OTHER),
    (RefreshError("Reauthentication is needed"), Kind.EXPIRED),
    (PermissionError(errno.EACCES, "Permission denied"), Kind.REFUSED),
    (OSError(errno.EROFS, "Read-only file system"), None),
    (OSError(errno.ENOSPC, "No space left on device"), None),
    (cut(), Kind.TRANSIENT),
    (ConnectionResetError(), Kind.TRANSIENT),
    (TimeoutError(), Kind.TRANSIENT),
    (ValueError("NOT_FOUND: no such file"), Kind.ABSENT),
    (KeyError("nothing"), None),
    (RuntimeError("a bug"), None),
  ],
  ids=lambda value: repr(value)[:60],
)
def test_kinds(error, kind):
  assert answers.kind(error) is kind
  assert is_transient(error) == (kind is Kind.TRANSIENT)


def test_bugs_stay_bugs():
  for error in (KeyError("x"), RuntimeError("x"), MemoryError(), UserError("told")):
    assert answered(error, "gs://bucket/x", "read") is error


def test_a_bucket_that_may_not_be_listed_counts_as_there(server):
  reset(server)
  server.fault = lambda at, _: "forbidden" if at in ("list", "bucket") else None
  objects._looked.clear()
  for url in ("gs://bucket/none", "s3://bucket/none"):
    assert not (place(url))._read().value
  assert Storage("gs://bucket").read("none") is None


def test_what_was_being_handled_counts_only_where_nothing_else_does():
  for error, kind in ((FileNotFoundError("none"), Kind.ABSENT), (RuntimeError("a client's own"), Kind.TRANSIENT)):
    error.__context__ = ConnectionResetError()
    assert answers.kind(error) is kind

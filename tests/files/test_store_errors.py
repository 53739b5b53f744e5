"""Every answer of an object store, at every operation, through every client: one class and one
line."""

import asyncio
import errno
import types

import aiohttp
import aiohttp.http_exceptions
import pytest

from t5x_like.errors import DamageError, TransientError, UserError, is_transient, translate_error
from t5x_like.files import clients, remote, store_errors
from t5x_like.files.paths import as_path
from t5x_like.files.store_errors import ErrorKind
from tests import object_server
from tests.object_answers import ANSWERS

pytest.importorskip("gcsfs")
DENIED = (UserError, "permission denied")
EXPIRED = (UserError, "the credentials have expired")
GONE = (UserError, ": bucket {} does not exist; create it")
# the time for retries differs
DAMAGED = (DamageError, "damaged")
LATER = (TransientError, "")
CONTENT = bytes(range(64))
QUICK = {"max_retries": 1, "initial_delay": "1ms", "max_delay": "2ms"}


def expected(answer: str, operation: str, client: str):
  """The class of error and its words, or the value that is returned; `...` for an answer that an
  operation has not."""
  if answer == "no object":
    return {"read": None, "range": None, "exists": False, "delete": None}.get(operation, ...)
  if answer in ("exists", "conflict"):
    return False if operation == "create" else ...
  if answer == "range":
    return {"range": DAMAGED, "exists": True}.get(operation, ...)
  if answer == "no bucket":
    if "http" in client:
      return ...
    return None if operation == "delete" else GONE  # what is gone counts as deleted
  return {
    "forbidden": DENIED,
    "unauthenticated": DENIED,
    # it does not pass the server's words on
    "expired": DENIED if client == "fsspec on http" else EXPIRED,
    **dict.fromkeys(
      ("timeout", "too early", "throttled", "internal", "unavailable", "gateway"), LATER
    ),
    **{
      name: (UserError, "the store refuses" if "http" in client else ANSWERS[name].told)
      for name in ("bad request", "bad method", "unimplemented")
    },
  }[answer]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
  server = object_server.Server(tmp_path_factory.mktemp("bucket"))
  with pytest.MonkeyPatch.context() as monkeypatch, server.running():
    monkeypatch.setattr(
      clients, "_CONTEXT", {f"{d}_request_retries": QUICK for d in clients._DRIVERS}
    )
    monkeypatch.setattr(remote, "_LOOK_SECONDS", 0)
    quick = types.SimpleNamespace(sleep=lambda seconds: asyncio.sleep(seconds / 10_000))
    monkeypatch.setattr("gcsfs.retry.asyncio", quick)  # its waits between attempts
    retry = {"T5X_LIKE_RETRY_SECONDS": "0.01"}
    for name, value in (object_server.environment(server) | retry).items():
      monkeypatch.setenv(name, value)
    yield server


def calls(url):
  file = as_path(url) / "file"
  new = as_path(url) / "new"
  return {
    "read": file.read,
    "range": lambda: file.read(slice(8, 40)),
    "exists": file.is_file,
    "list": as_path(url).names,
    "write": lambda: new.write_bytes(b"new"),
    "create": lambda: new.create(b"new"),
    "delete": file.unlink,
  }


READING = ("read", "range", "exists")
CLIENTS = {
  "TensorStore on Google": ("gs://bucket/run", None),
  "TensorStore on S3": ("s3://bucket/run", None),
  "TensorStore on http": ("{}/run", READING),  # a web server, not a store
  "fsspec on Google": ("gs://bucket/run", None),
  "fsspec on S3": ("s3://bucket/run", None),
  "fsspec on http": ("{}/run", READING),
}
INSTALLED = [
  pytest.param(name, marks=[pytest.mark.services] * (name == "fsspec on S3")) for name in CLIENTS
]


@pytest.fixture
def served(client, monkeypatch):
  """Lets fsspec serve all schemes where it is to stand for the ones that it serves, all of whose
  clients are alike."""
  if "fsspec" in client:
    monkeypatch.setattr(clients, "TENSORSTORE", ())
  remote.reset()
  yield
  remote.reset()


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


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize(
  "answer", sorted(ANSWERS.keys() - {"cut short", "empty", "expired in 400"})
)
@pytest.mark.parametrize("client", INSTALLED)
def test_class_and_line(client, answer, server):
  url, able = CLIENTS[client]
  url = url.format(server.url)
  wrong = []
  for operation, call in calls(url).items():
    want = expected(answer, operation, client)
    if want is ... or able and operation not in able:
      continue
    asked = {"exists": "range"}.get(operation, operation)
    reset(server)
    # Where there is no bucket, no request finds one.
    server.fault = lambda at, _, asked=asked: (
      answer if at == asked or answer == "no bucket" else None
    )
    found = outcome(call)
    if isinstance(want, tuple):
      kind, said = want
      good = (
        type(found) is kind
        and str(found).startswith(url)
        and "\n" not in str(found)
        and len(str(found)) < 500
      )
      good = good and said.format(url[:11]) in str(found)
    else:
      good = found == want
    if not good:
      wrong.append(f"{operation}: found {found!r}, expected {want!r}")
  assert not wrong, "\n".join(wrong)


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("answer", ["cut short", "empty"])
@pytest.mark.parametrize("client", INSTALLED)
def test_an_object_that_is_cut_short_is_damaged(client, answer, server):
  asked = calls(CLIENTS[client][0].format(server.url))
  reset(server)
  server.fault = lambda at, _: answer
  # whole, as far as anyone can say
  assert outcome(asked["read"]) == CONTENT[: ANSWERS[answer].bytes]
  assert asked["exists"]() is True
  found = outcome(asked["range"])
  assert type(found) is DamageError and "/run/file: " in str(found) and "damaged" in str(found)


def test_a_token_that_expired_is_told_though_s3_says_400(server):
  server.fault = lambda at, _: "expired in 400"
  with pytest.raises(
    UserError, match="s3://bucket/run/file: cannot be read: the credentials have expired"
  ):
    as_path("s3://bucket/run/file").read()


def s3(code, status, told="told by the server"):
  """What botocore raises, as s3fs passes it on: around it an error whose number can be any."""
  error = ClientError(f"An error occurred ({code}) when calling the operation: {told}")
  error.response = {
    "Error": {"Code": code, "Message": told},
    "ResponseMetadata": {"HTTPStatusCode": status},
  }
  outer = OSError(errno.EIO, told)
  outer.__cause__ = error
  return outer


def cut():
  """What aiohttp raises for an answer that the connection lost: its parser's number looks like a
  status."""
  error = aiohttp.ClientPayloadError("Response payload is not completed")
  error.__cause__ = aiohttp.http_exceptions.ContentLengthError("Not enough data (70 of 141 bytes).")
  return error


class ClientError(Exception):
  """Stands for botocore's, which is not installed here; `make test-services` has the real one, in
  s3fs."""


class RefreshError(Exception):
  """Stands for google.auth's."""

  retryable = False


@pytest.mark.parametrize(
  "error, kind",
  [
    (s3("InvalidRange", 416), ErrorKind.DAMAGED),
    (s3("BadDigest", 400), ErrorKind.DAMAGED),
    (s3("AccessDenied", 403), ErrorKind.REFUSED),
    (s3("403", 403), ErrorKind.REFUSED),  # of a HEAD, which has no body
    (s3("ExpiredToken", 400), ErrorKind.EXPIRED),
    (s3("RequestTimeTooSkewed", 403), ErrorKind.REFUSED),
    (s3("NoSuchBucket", 404), ErrorKind.NO_BUCKET),
    (s3("NoSuchKey", 404), ErrorKind.ABSENT),
    (s3("404", 404), ErrorKind.ABSENT),
    (s3("PreconditionFailed", 412), ErrorKind.EXISTS),
    (s3("ConditionalRequestConflict", 409), ErrorKind.EXISTS),
    (s3("OperationAborted", 409), ErrorKind.TRANSIENT),
    (s3("SlowDown", 503), ErrorKind.TRANSIENT),
    (s3("RequestTimeout", 400), ErrorKind.TRANSIENT),
    (s3("InternalError", 500), ErrorKind.TRANSIENT),
    (s3("InvalidBucketName", 400), ErrorKind.OTHER),
    (s3("MethodNotAllowed", 405), ErrorKind.OTHER),
    (RefreshError("Reauthentication is needed"), ErrorKind.EXPIRED),
    (PermissionError(errno.EACCES, "Permission denied"), ErrorKind.REFUSED),
    (OSError(errno.EROFS, "Read-only file system"), None),
    (OSError(errno.ENOSPC, "No space left on device"), None),
    (cut(), ErrorKind.TRANSIENT),
    (ConnectionResetError(), ErrorKind.TRANSIENT),
    (TimeoutError(), ErrorKind.TRANSIENT),
    (ValueError("NOT_FOUND: no such file"), ErrorKind.ABSENT),
    (KeyError("nothing"), None),
    (RuntimeError("a bug"), None),
  ],
  ids=lambda value: repr(value)[:60],
)
def test_kinds(error, kind):
  assert store_errors.error_kind(error) is kind
  assert is_transient(error) == (kind is ErrorKind.TRANSIENT)


def test_bugs_stay_bugs():
  for error in (KeyError("x"), RuntimeError("x"), MemoryError(), UserError("told")):
    assert translate_error(error, "gs://bucket/x", "read") is error


def test_a_bucket_that_may_not_be_listed_counts_as_there(server):
  reset(server)
  server.fault = lambda at, _: "forbidden" if at in ("list", "bucket") else None
  remote.reset()
  for url in ("gs://bucket/none", "s3://bucket/none"):
    assert as_path(url).read() is None


def test_what_was_being_handled_counts_only_where_nothing_else_does():
  for error, kind in (
    (FileNotFoundError("none"), ErrorKind.ABSENT),
    (RuntimeError("a client's own"), ErrorKind.TRANSIENT),
  ):
    error.__context__ = ConnectionResetError()
    assert store_errors.error_kind(error) is kind

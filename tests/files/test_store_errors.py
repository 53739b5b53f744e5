"""Every error of an object store becomes an exception of the right class with a one-line message.

The tests cover every answer of a store to every operation through every client.
"""

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
NO_BUCKET = (UserError, ": bucket {} does not exist; create it")
DAMAGED = (DamageError, "damaged")
TRANSIENT = (TransientError, "")  # clients retry for different times, which the message names
CONTENT = bytes(range(64))
QUICK_RETRIES = {"max_retries": 1, "initial_delay": "1ms", "max_delay": "2ms"}
NOT_APPLICABLE = object()  # stands for an answer that an operation never gets


def expected_outcome(answer: str, operation: str, client: str):
  """Return the class of the error and words of its message, or the value that is returned."""
  if answer == "no object":
    outcomes = {"read": None, "range": None, "exists": False, "delete": None}
    return outcomes.get(operation, NOT_APPLICABLE)
  if answer in ("exists", "conflict"):
    return False if operation == "create" else NOT_APPLICABLE
  if answer == "range":
    return {"range": DAMAGED, "exists": True}.get(operation, NOT_APPLICABLE)
  if answer == "no bucket":
    if "http" in client:
      return NOT_APPLICABLE
    return None if operation == "delete" else NO_BUCKET  # a file in no bucket counts as deleted
  if answer in ("forbidden", "unauthenticated"):
    return DENIED
  if answer == "expired":
    # This client does not pass on the server's message.
    return DENIED if client == "fsspec on http" else EXPIRED
  if answer in ("bad request", "bad method", "unimplemented"):
    return UserError, "the store refuses" if "http" in client else ANSWERS[answer].message
  assert answer in ("timeout", "too early", "throttled", "internal", "unavailable", "gateway")
  return TRANSIENT


@pytest.fixture(scope="module")
def server(tmp_path_factory):
  with pytest.MonkeyPatch.context() as monkeypatch:
    context = {f"{driver}_request_retries": QUICK_RETRIES for driver in clients._DRIVERS}
    monkeypatch.setattr(clients, "_tensorstore_context", lambda: context)
    monkeypatch.setattr(remote, "_RECHECK_SECONDS", 0)
    # gcsfs waits between attempts by asyncio.sleep.
    quick_asyncio = types.SimpleNamespace(sleep=lambda seconds: asyncio.sleep(seconds / 10_000))
    monkeypatch.setattr("gcsfs.retry.asyncio", quick_asyncio)
    folder = tmp_path_factory.mktemp("bucket")
    with object_server.serve(folder, T5X_LIKE_RETRY_SECONDS="0.01") as server:
      yield server


def operations(url):
  """Return a function for each operation on a directory, by name."""
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
# The URL of a directory, and the operations of the client; None means all.
CLIENTS = {
  "TensorStore on Google": ("gs://bucket/run", None),
  "TensorStore on S3": ("s3://bucket/run", None),
  "TensorStore on http": ("{}/run", READING),  # a web server, not a store
  "fsspec on Google": ("gs://bucket/run", None),
  "fsspec on S3": ("s3://bucket/run", None),
  "fsspec on http": ("{}/run", READING),
}
CLIENT_PARAMS = []
for client_name in CLIENTS:
  needs_s3fs = client_name == "fsspec on S3"
  CLIENT_PARAMS.append(
    pytest.param(client_name, marks=[pytest.mark.services] if needs_s3fs else [])
  )


@pytest.fixture
def select_client(client, monkeypatch):
  """Open all schemes by fsspec if the client under test is one of fsspec's, else by default."""
  if "fsspec" in client:
    monkeypatch.setattr(clients, "TENSORSTORE", ())
  remote.reset()
  yield
  remote.reset()


def reset_objects(server):
  """Leave one object on the server, `run/file`."""
  for name in server.names():
    (server.root / name).unlink()
  (server.root / "run").mkdir(exist_ok=True)
  (server.root / "run" / "file").write_bytes(CONTENT)


def call_or_error(operation):
  """Return the value of an operation, or the error that it raises."""
  try:
    return operation()
  except (UserError, DamageError, TransientError) as error:
    return error


def is_expected(outcome, expected, url: str) -> bool:
  if not isinstance(expected, tuple):
    return outcome == expected
  error_class, words = expected
  message = str(outcome)
  is_one_line = message.startswith(url) and "\n" not in message and len(message) < 500
  return type(outcome) is error_class and is_one_line and words.format(url[:11]) in message


@pytest.mark.usefixtures("select_client")
@pytest.mark.parametrize(
  "answer", sorted(ANSWERS.keys() - {"cut short", "empty", "expired in 400"})
)
@pytest.mark.parametrize("client", CLIENT_PARAMS)
def test_each_answer_becomes_the_right_error_class_with_one_line(client, answer, server):
  url, supported = CLIENTS[client]
  url = url.format(server.url)
  failures = []
  for name, operation in operations(url).items():
    expected = expected_outcome(answer, name, client)
    if expected is NOT_APPLICABLE or (supported and name not in supported):
      continue
    faulty_request = "range" if name == "exists" else name

    def answer_request(request, _, faulty_request=faulty_request):
      # A missing bucket is missing for all requests.
      return answer if request == faulty_request or answer == "no bucket" else None

    reset_objects(server)
    server.fault = answer_request
    outcome = call_or_error(operation)
    if not is_expected(outcome, expected, url):
      failures.append(f"{name}: found {outcome!r}, expected {expected!r}")
  assert not failures, "\n".join(failures)


@pytest.mark.usefixtures("select_client")
@pytest.mark.parametrize("answer", ["cut short", "empty"])
@pytest.mark.parametrize("client", CLIENT_PARAMS)
def test_truncated_object_is_damaged(client, answer, server):
  url, _ = CLIENTS[client]
  operations_by_name = operations(url.format(server.url))
  reset_objects(server)
  server.fault = lambda request, _: answer
  # A read of the whole object does not know its size, so it cannot see that bytes are missing.
  assert call_or_error(operations_by_name["read"]) == CONTENT[: ANSWERS[answer].bytes]
  assert operations_by_name["exists"]() is True
  error = call_or_error(operations_by_name["range"])
  assert type(error) is DamageError
  assert "/run/file: " in str(error)
  assert "damaged" in str(error)


def test_s3_status_400_for_an_expired_token_is_reported_as_expired(server):
  server.fault = lambda request, _: "expired in 400"
  with pytest.raises(
    UserError, match="s3://bucket/run/file: cannot be read: the credentials have expired"
  ):
    as_path("s3://bucket/run/file").read()


def s3_error(code: str, status: int) -> OSError:
  """Return an error of botocore as s3fs raises it: inside an OSError with a meaningless errno."""
  message = "the server's message"
  error = ClientError(f"An error occurred ({code}) when calling the operation: {message}")
  error.response = {
    "Error": {"Code": code, "Message": message},
    "ResponseMetadata": {"HTTPStatusCode": status},
  }
  outer = OSError(errno.EIO, message)
  outer.__cause__ = error
  return outer


def lost_connection_error() -> aiohttp.ClientPayloadError:
  """Return the error of aiohttp for an incomplete answer; its cause has a misleading `code`."""
  error = aiohttp.ClientPayloadError("Response payload is not completed")
  error.__cause__ = aiohttp.http_exceptions.ContentLengthError("Not enough data (70 of 141 bytes).")
  return error


class ClientError(Exception):
  """A stand-in for the class of botocore, which only `make test-services` installs, with s3fs."""


class RefreshError(Exception):
  """A stand-in for the class of google.auth."""

  retryable = False


@pytest.mark.parametrize(
  "error, kind",
  [
    (s3_error("InvalidRange", 416), ErrorKind.DAMAGED),
    (s3_error("BadDigest", 400), ErrorKind.DAMAGED),
    (s3_error("AccessDenied", 403), ErrorKind.REFUSED),
    (s3_error("403", 403), ErrorKind.REFUSED),  # answer to HEAD, which has no body
    (s3_error("ExpiredToken", 400), ErrorKind.EXPIRED),
    (s3_error("RequestTimeTooSkewed", 403), ErrorKind.REFUSED),
    (s3_error("NoSuchBucket", 404), ErrorKind.NO_BUCKET),
    (s3_error("NoSuchKey", 404), ErrorKind.ABSENT),
    (s3_error("404", 404), ErrorKind.ABSENT),
    (s3_error("PreconditionFailed", 412), ErrorKind.EXISTS),
    (s3_error("ConditionalRequestConflict", 409), ErrorKind.EXISTS),
    (s3_error("OperationAborted", 409), ErrorKind.TRANSIENT),
    (s3_error("SlowDown", 503), ErrorKind.TRANSIENT),
    (s3_error("RequestTimeout", 400), ErrorKind.TRANSIENT),
    (s3_error("InternalError", 500), ErrorKind.TRANSIENT),
    (s3_error("InvalidBucketName", 400), ErrorKind.OTHER),
    (s3_error("MethodNotAllowed", 405), ErrorKind.OTHER),
    (RefreshError("Reauthentication is needed"), ErrorKind.EXPIRED),
    (PermissionError(errno.EACCES, "Permission denied"), ErrorKind.REFUSED),
    (OSError(errno.EROFS, "Read-only file system"), None),
    (OSError(errno.ENOSPC, "No space left on device"), None),
    (lost_connection_error(), ErrorKind.TRANSIENT),
    (ConnectionResetError(), ErrorKind.TRANSIENT),
    (TimeoutError(), ErrorKind.TRANSIENT),
    (ValueError("NOT_FOUND: no such file"), ErrorKind.ABSENT),
    (KeyError("nothing"), None),
    (RuntimeError("a bug"), None),
  ],
  ids=lambda value: repr(value)[:60],
)
def test_errors_of_every_client_get_the_right_kind(error, kind):
  assert store_errors.error_kind(error) is kind
  assert is_transient(error) == (kind is ErrorKind.TRANSIENT)


def test_other_errors_are_not_translated():
  for error in (KeyError("x"), RuntimeError("x"), MemoryError(), UserError("x")):
    assert translate_error(error, "gs://bucket/x", "read") is error


def test_bucket_that_may_not_be_listed_counts_as_existing(server):
  reset_objects(server)
  server.fault = lambda request, _: "forbidden" if request in ("list", "bucket") else None
  remote.reset()
  for url in ("gs://bucket/none", "s3://bucket/none"):
    assert as_path(url).read() is None


def test_context_of_an_error_decides_only_if_the_error_itself_has_no_kind():
  for error, kind in (
    (FileNotFoundError("none"), ErrorKind.ABSENT),
    (RuntimeError("an error of the client"), ErrorKind.TRANSIENT),
  ):
    error.__context__ = ConnectionResetError()
    assert store_errors.error_kind(error) is kind

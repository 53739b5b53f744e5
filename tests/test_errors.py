"""Errors are classified, and only transient ones are retried."""

import errno

import pytest

from refusals import refuses
from t5x_like import errors


def with_cause(error, cause):
  try:
    try:
      raise cause
    except Exception as inner:
      raise error from inner
  except Exception as outer:
    return outer


class Throttled(Exception):
  status = 429


TRANSIENT = [
  OSError(errno.EIO, "Input/output error"),
  OSError(errno.ESTALE, "Stale file handle"),
  ConnectionResetError("Connection reset by peer"),
  ValueError("UNAVAILABLE: Error opening zarr driver: HTTP response code: 503"),
  Throttled("rate"),
  with_cause(RuntimeError("the save failed"), OSError(errno.ETIMEDOUT, "Connection timed out")),
  with_cause(errors.UserError("free space"), OSError(errno.EIO, "")),
  ValueError("Gloo all-reduce failed: Connection closed by peer [127.0.0.1]:1"),
  type("ClientPayloadError", (Exception,), {})("Response payload is not completed"),
]
OUT_OF_MEMORY = [
  RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes"),
  MemoryError(),
  with_cause(ValueError("UNAVAILABLE"), MemoryError()),
]
LASTING = [
  OSError(errno.ENOSPC, "No space left on device"),
  PermissionError(errno.EACCES, "Permission denied"),
  FileNotFoundError(errno.ENOENT, "No such file or directory"),
  with_cause(errors.UserError("free space"), OSError(errno.ENOSPC, "")),
  KeyError("params"),
  ValueError("DATA_LOSS: checksum mismatch"),
]


@pytest.mark.parametrize("error", [*TRANSIENT, *OUT_OF_MEMORY, *LASTING], ids=repr)
def test_errors_have_their_class(error):
  assert errors.is_transient(error) is (error in TRANSIENT)
  assert errors.is_out_of_memory(error) is (error in OUT_OF_MEMORY)


@pytest.mark.parametrize("seconds", ["abc", "", "-1", "nan"])
def test_seconds_of_the_environment_that_are_no_number_are_refused(seconds, monkeypatch):
  monkeypatch.setenv("T5X_LIKE_RETRY_SECONDS", seconds)
  with refuses(f"T5X_LIKE_RETRY_SECONDS: found '{seconds}', expected a number of seconds"):
    errors.retry(lambda: "read", "a/path")


class Failing:
  """A call that raises an error at its first calls, and counts them all."""

  def __init__(self, failures: int, error: Exception):
    self.calls = 0
    self._failures = failures
    self._error = error

  def __call__(self) -> str:
    self.calls += 1
    if self.calls <= self._failures:
      raise self._error
    return "read"


BUSY = OSError(errno.EIO, "Input/output error")


def test_a_transient_error_is_retried():
  call = Failing(3, BUSY)
  assert errors.retry(call, "a/path", seconds=5, first_wait=0.001) == "read"
  assert call.calls == 4


def test_a_transient_error_is_raised_when_the_time_is_up():
  call = Failing(99, BUSY)
  with refuses(
    "a/path: ", "Input/output error; tried", "run the same", error=errors.TransientError
  ):
    errors.retry(call, "a/path", seconds=0.05, first_wait=0.001)
  assert call.calls > 2


def test_other_errors_are_not_retried():
  call = Failing(1, ValueError("no"))
  with pytest.raises(ValueError):
    errors.retry(call, "a/path", seconds=5)
  assert call.calls == 1


@pytest.mark.parametrize(
  "error, code",
  [
    ("UserError", 2),
    ("NumericError", 3),
    ("DamageError", 4),
    ("TransientError", 69),
    ("Preempted", 75),
  ],
)
def test_every_class_is_one_line_and_a_code(error, code, capsys):
  @errors.handle_errors
  def main():
    raise getattr(errors, error)("first\n  second")

  assert main() == code
  assert capsys.readouterr().err.endswith(": first second\n")


@pytest.mark.parametrize(
  "names, code, start, end",
  [
    (
      ("EIO", "ESTALE", "ETIMEDOUT", "ENETUNREACH", "EAGAIN"),
      69,
      "transient error: ",
      "run the same command again",
    ),
    (("ENOSPC", "EDQUOT", "EROFS", "EACCES", "ENOENT"), 2, "error: ", "free space"),
  ],
)
def test_a_transient_fault_is_not_the_users_whatever_file_has_it(names, code, start, end, capsys):
  @errors.handle_errors
  def main(number):
    try:
      raise OSError(number, "a reason")
    except OSError as error:
      raise errors.UserError("a/path: cannot be written: a reason; free space") from error

  for name in names:
    assert main(getattr(errno, name)) == code
    line = capsys.readouterr().err
    assert line.startswith(start)
    assert "a/path: cannot be written" in line
    assert line.rstrip().endswith(end)


def test_successful_retries_are_reported_once_in_a_while(caplog, monkeypatch):
  monkeypatch.setattr(errors, "_last_warning", -1e9)
  for _ in range(2):
    errors.retry(Failing(2, BUSY), "a/path", first_wait=0.001)
  (record,) = caplog.records
  assert record.message == "a/path: [Errno 5] Input/output error; worked at attempt 3, after 0 s"


@pytest.mark.parametrize(
  "error, remedy",
  [
    (FileNotFoundError(errno.ENOENT, "No such file or directory"), "check the path"),
    (IsADirectoryError(errno.EISDIR, "Is a directory"), "name a file in it"),
    (PermissionError(errno.EACCES, "Permission denied"), "let this user read it"),
    (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "save it as UTF-8"),
    (OSError(errno.ELOOP, "Too many levels of symbolic links"), "copy it again"),
  ],
)
def test_unreadable_file_has_the_remedy_of_its_cause(error, remedy):
  message = str(errors.unreadable_file_error("--file=a", error))
  assert message.startswith("--file=a: cannot be read (")
  assert message.endswith(f"); {remedy}")

"""Errors are classified, and only transient ones are retried."""

import errno

import pytest

from t5x_like import errors


def caused(error, cause):
  try:
    try:
      raise cause
    except Exception as inner:
      raise error from inner
  except Exception as outer:
    return outer


class Throttled(Exception):
  status = 429


@pytest.mark.parametrize(
  "error, transient, memory",
  [
    (OSError(errno.EIO, "Input/output error"), True, False),
    (OSError(errno.ESTALE, "Stale file handle"), True, False),
    (OSError(errno.ENOSPC, "No space left on device"), False, False),
    (PermissionError(errno.EACCES, "Permission denied"), False, False),
    (FileNotFoundError(errno.ENOENT, "No such file or directory"), False, False),
    (ConnectionResetError("Connection reset by peer"), True, False),
    (ValueError("UNAVAILABLE: Error opening zarr driver: HTTP response code: 503"), True, False),
    (Throttled("rate"), True, False),
    (
      caused(RuntimeError("the save failed"), OSError(errno.ETIMEDOUT, "Connection timed out")),
      True,
      False,
    ),
    (caused(errors.UserError("free space"), OSError(errno.ENOSPC, "")), False, False),
    (caused(errors.UserError("free space"), OSError(errno.EIO, "")), True, False),
    (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes"), False, True),
    (MemoryError(), False, True),
    (caused(ValueError("UNAVAILABLE"), MemoryError()), False, True),
    (ValueError("Gloo all-reduce failed: Connection closed by peer [127.0.0.1]:1"), True, False),
    (
      type("ClientPayloadError", (Exception,), {})("Response payload is not completed"),
      True,
      False,
    ),
    (KeyError("params"), False, False),
    (ValueError("DATA_LOSS: checksum mismatch"), False, False),
  ],
)
def test_errors_have_their_class(error, transient, memory):
  assert errors.is_transient(error) is transient
  assert errors.is_out_of_memory(error) is memory


@pytest.mark.parametrize("seconds", ["abc", "", "-1", "nan"])
def test_seconds_of_the_environment_that_are_no_number_are_refused(seconds, monkeypatch):
  monkeypatch.setenv("T5X_LIKE_RETRY_SECONDS", seconds)
  with pytest.raises(
    errors.UserError,
    match=f"T5X_LIKE_RETRY_SECONDS: found '{seconds}', expected a number of seconds",
  ):
    errors.retry(lambda: "read", "a/path")


def test_a_transient_error_is_retried_until_the_time_is_up_and_others_are_not():
  calls = []

  def fails(times, error):
    def call():
      calls.append(0)
      if len(calls) <= times:
        raise error
      return "read"

    return call

  busy = OSError(errno.EIO, "Input/output error")
  assert errors.retry(fails(3, busy), "a/path", seconds=5, first_wait=0.001) == "read"
  assert len(calls) == 4
  calls.clear()
  with pytest.raises(
    errors.TransientError,
    match=r"^a/path: .*Input/output error; tried \d+ times in 0 s; run the "
    r"same",
  ):
    errors.retry(fails(99, busy), "a/path", seconds=0.05, first_wait=0.001)
  assert len(calls) > 2
  calls.clear()
  with pytest.raises(ValueError):
    errors.retry(fails(1, ValueError("no")), "a/path", seconds=5)
  assert len(calls) == 1


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
  "name, code",
  [("EIO", 69), ("ESTALE", 69), ("ETIMEDOUT", 69), ("ENETUNREACH", 69), ("EAGAIN", 69)]
  + [("ENOSPC", 2), ("EDQUOT", 2), ("EROFS", 2), ("EACCES", 2), ("ENOENT", 2)],
)
def test_a_fault_of_a_moment_is_none_of_the_users_whatever_file_has_it(name, code, capsys):
  @errors.handle_errors
  def main():
    try:
      raise OSError(getattr(errno, name), "a reason")
    except OSError as error:
      raise errors.UserError("a/path: cannot be written: a reason; free space") from error

  assert main() == code
  line = capsys.readouterr().err
  assert line.startswith("transient error: " if code == 69 else "error: ")
  assert ("a/path: cannot be written") in line
  assert line.rstrip().endswith("run the same command again" if code == 69 else "free space")


def test_successful_retries_are_reported_once_in_a_while(caplog, monkeypatch):
  monkeypatch.setattr(errors, "_last_warning", -1e9)
  for _ in range(2):
    answers = [OSError(errno.ESTALE, "Stale file handle"), OSError(errno.EIO, "Input/output error")]

    def call(answers=answers):
      if answers:
        raise answers.pop()
      return "read"

    assert errors.retry(call, "a/path", first_wait=0.001) == "read"
  assert [record.message for record in caplog.records] == [
    "a/path: [Errno 116] Stale file handle; worked at attempt 3, after 0 s"
  ]

"""Classify the errors of object stores, from any client; see docs/reference/exit-codes.md.

fsspec's clients (gcsfs, s3fs, adlfs, http), TensorStore and the operating system each have their
own exceptions for the same answers. `error_kind` classifies them; `errors.translate_error` turns a
kind into the error that ends the program.
"""

import enum
import errno
import os
import re
from collections.abc import Iterator
from typing import Any


class ErrorKind(enum.Enum):
  """The meaning of an answer for the program; the value is the wording of its message."""

  ABSENT = "found no such file"
  NO_BUCKET = "does not exist; create it, or correct the address"
  EXISTS = "is there already"
  DAMAGED = "is damaged: shorter than expected, or not what its checksum says"
  REFUSED = "permission denied"
  EXPIRED = "the credentials have expired or are no longer valid"
  TRANSIENT = "does not work now"
  OTHER = "the store refuses"


def _by_name(**names: str) -> dict[str, ErrorKind]:
  """Return the kind of each name, from the names of each kind, separated by bars."""
  kinds = {}
  for kind, joined in names.items():
    kinds |= dict.fromkeys(joined.split("|"), ErrorKind[kind])
  return kinds


# The error codes of S3 and Azure, which are more precise than the HTTP status.
_KINDS_BY_CODE = _by_name(
  NO_BUCKET="NoSuchBucket|ContainerNotFound|ContainerBeingDeleted|FilesystemNotFound",
  ABSENT="NoSuchKey|NoSuchVersion|BlobNotFound|PathNotFound",
  EXPIRED="ExpiredToken|ExpiredTokenException|TokenRefreshRequired|RequestExpired",
  REFUSED="AccessDenied|InvalidAccessKeyId|InvalidToken|SignatureDoesNotMatch",
  DAMAGED="InvalidRange|BadDigest|XAmzContentChecksumMismatch",
  EXISTS="ConditionalRequestConflict",
  TRANSIENT="OperationAborted|RequestTimeout|IncompleteBody|SlowDown|Throttling|ThrottlingException|"
  "RequestLimitExceeded|InternalError",
)
_KINDS_BY_STATUS = {
  **dict.fromkeys((408, 425, 429, 500), ErrorKind.TRANSIENT),
  **dict.fromkeys((401, 403), ErrorKind.REFUSED),
  **dict.fromkeys((409, 412), ErrorKind.EXISTS),
  404: ErrorKind.ABSENT,
  416: ErrorKind.DAMAGED,
  501: ErrorKind.OTHER,
}
# Exception classes by name, because the packages that define them are optional: aiohttp, requests,
# urllib3, botocore, fsspec, google.auth.
_KINDS_BY_CLASS = _by_name(
  TRANSIENT="ChunkedEncodingError|ClientConnectionError|ClientPayloadError|ConnectTimeout|ConnectTimeoutError|"
  "ConnectionClosedError|ConnectionError|EndpointConnectionError|FSTimeoutError|IncompleteRead|ProxyError|ReadTimeout|"
  "ReadTimeoutError|ResponseStreamingError|ServerDisconnectedError|TimeoutError|TransientError|TransportError",
  DAMAGED="ChecksumError",
  EXPIRED="RefreshError|UnauthorizedSSOTokenError|SSOTokenLoadError|TokenRetrievalError",
  REFUSED="DefaultCredentialsError|NoCredentialsError|PartialCredentialsError|CredentialRetrievalError",
  OTHER="AzureError|BotoCoreError|ClientError|GoogleAuthError|RequestException",
)
_KINDS_BY_ERRNO_NAME = _by_name(
  TRANSIENT="EIO|EAGAIN|EBUSY|EINTR|ESTALE|ETIMEDOUT|ECONNRESET|ECONNREFUSED|ECONNABORTED|EPIPE|"
  "ENETDOWN|ENETUNREACH|ENETRESET|EHOSTDOWN|EHOSTUNREACH|EREMOTEIO|ENOTCONN|ENOBUFS|ENOLINK|ENONET|"
  "ECOMM|ESHUTDOWN|ETIME",
  ABSENT="ENOENT|ENOTDIR",
  EXISTS="EEXIST",
  REFUSED="EACCES|EPERM",
)
_KINDS_BY_ERRNO = {
  getattr(errno, name): kind for name, kind in _KINDS_BY_ERRNO_NAME.items() if hasattr(errno, name)
}
_KINDS_BY_TYPE = {
  FileNotFoundError: ErrorKind.ABSENT,
  FileExistsError: ErrorKind.EXISTS,
  PermissionError: ErrorKind.REFUSED,
}
# The codes of absl as TensorStore writes them, and phrases of messages without a status.
_KINDS_BY_WORDS = _by_name(
  TRANSIENT="UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|Too Many Requests|Service "
  "Unavailable|SlowDown|Connection reset|"
  "Connection closed|connection closed|Connection refused|Broken pipe|timed out|Timeout|"
  "Temporary failure in name resolution|Input/output error|Stale file handle|CURL error",
  REFUSED="Forbidden: |PERMISSION_DENIED|UNAUTHENTICATED",
  DAMAGED="OUT_OF_RANGE|DATA_LOSS",
  ABSENT="NOT_FOUND",
  OTHER="does not support|Bad Request: ",
)
_PASSING_FAULTS = {
  os.strerror(number)
  for number, error_kind in _KINDS_BY_ERRNO.items()
  if error_kind is ErrorKind.TRANSIENT
}
_KINDS_BY_WORDS |= dict.fromkeys(_PASSING_FAULTS, ErrorKind.TRANSIENT)
_STATUS = re.compile(r"http_response_code='(\d{3})'|HTTP (?:response )?(?:code:? )?([45]\d\d)\b")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_BODY = re.compile(r"\s*\[(?:http_response_(?:body|code)|HTTP code)\b.*")
_NO_BUCKET = re.compile(r"(?i)\b(?:bucket|container) does not exist|bucket .{1,80} not found")
_EXPIRED = re.compile(r"(?i)\bexpired\b|\binvalid credentials\b")
_RIGHTS = {  # on Google's store, replacing an object requires the right to delete
  "gs": {
    "read": "storage.objects.get",
    "listed": "storage.objects.list",
    "written": "storage.objects.create and .delete",
    "deleted": "storage.objects.delete",
  },
  "s3": {
    "read": "s3:GetObject",
    "listed": "s3:ListBucket",
    "written": "s3:PutObject",
    "deleted": "s3:DeleteObject",
  },
}


def error_chain(error: BaseException | None, *, explicit: bool = False) -> Iterator[BaseException]:
  """Yield the exception and its causes in turn.

  Args:
    explicit: whether to ignore implicit contexts (`__context__`).
  """
  visited: set[int] = set()
  while error is not None and id(error) not in visited:
    visited.add(id(error))
    yield error
    error = error.__cause__ or (None if explicit else error.__context__)


def error_kind(error: BaseException) -> ErrorKind | None:
  """Return the kind of an exception; None if it did not come from a store, network or disk.

  The server's code or status takes precedence over the client's exception class. An exception that
  was being handled when this one was raised, perhaps the end of the whole run, counts only as a
  last resort.
  """
  explicit_chain = list(error_chain(error, explicit=True))
  return _first_kind(explicit_chain) or _first_kind(list(error_chain(error)))


def kind_of_errno(number: int | None) -> ErrorKind | None:
  """Return the kind of an error number of the operating system; None for other errors."""
  return _KINDS_BY_ERRNO.get(number)


def mentions_passing_fault(message: str) -> bool:
  """Return whether a message names a fault that passes, such as "Stale file handle"."""
  return any(words in message for words in _PASSING_FAULTS)


def _first_kind(errors: list[BaseException]) -> ErrorKind | None:
  """Return the kind of the first exception that has one; answers of a server come first."""
  answer_kinds = [_kind_of_answer(error) for error in errors]
  exception_kinds = [_kind_of_exception(error) for error in errors]
  if ErrorKind.TRANSIENT in exception_kinds:
    exception_kinds.insert(0, ErrorKind.TRANSIENT)
  kinds = answer_kinds + exception_kinds
  return next((kind for kind in kinds if kind is not None), None)


def _kind_of_answer(error: BaseException) -> ErrorKind | None:
  """Classify by the server's own code or status."""
  if any(parent.__name__ == "BadHttpMessage" for parent in type(error).__mro__):
    return ErrorKind.TRANSIENT  # a cut answer; the 400 that aiohttp gives it is not the server's
  text = str(error)
  code, status = _code_and_status(error, text)
  kind = _KINDS_BY_CODE.get(code)
  if kind is None and status is not None and 400 <= status < 600:
    default = ErrorKind.TRANSIENT if status > 501 else ErrorKind.OTHER
    kind = _KINDS_BY_STATUS.get(status, default)
  if kind is ErrorKind.ABSENT and _NO_BUCKET.search(text):
    return ErrorKind.NO_BUCKET
  if kind is ErrorKind.REFUSED and _EXPIRED.search(text):
    return ErrorKind.EXPIRED
  return kind


def _code_and_status(error: BaseException, text: str) -> tuple[Any, int | None]:
  """Return the server's code and HTTP status in an exception or its text; None for none."""
  response = getattr(error, "response", None)
  code = getattr(error, "error_code", None)  # Azure's
  status = None
  if isinstance(response, dict):  # botocore's
    code = response.get("Error", {}).get("Code")
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
  else:
    match = _CODE.search(text)
    if match:
      code = match[1]
  if not isinstance(status, int):
    status = _status_attribute(error, response)
  match = _STATUS.search(text)
  if status is None and match:
    status = int(match[1] or match[2])
  if status is None and isinstance(code, str) and code.isdecimal():
    status = int(code)
  return code, status


def _status_attribute(error: BaseException, response: Any) -> int | None:
  """Return the HTTP status of an error in an attribute of an exception or its response."""
  holders = ((error, "status"), (error, "status_code"), (response, "status_code"), (error, "code"))
  for holder, name in holders:
    status = getattr(holder, name, None)
    if isinstance(status, int) and 400 <= status < 600:
      return status
  return None


def _kind_of_exception(error: BaseException) -> ErrorKind | None:
  """Classify by the exception's class, errno or wording."""
  for parent in type(error).__mro__:
    kind = _KINDS_BY_CLASS.get(parent.__name__)
    if kind is ErrorKind.EXPIRED and getattr(error, "retryable", False):
      return ErrorKind.TRANSIENT
    if kind is not None:
      return kind
  if isinstance(error, OSError) and error.errno is not None:
    return _KINDS_BY_ERRNO.get(error.errno)
  for error_type, kind in _KINDS_BY_TYPE.items():
    if isinstance(error, error_type):
      return kind
  text = str(error)
  return next((kind for words, kind in _KINDS_BY_WORDS.items() if words in text), None)


def error_text(error: BaseException) -> str:
  """Return the server's message, or else the client's, as one short line."""
  text = " ".join(_BODY.sub("", " ".join(str(error).split())).split())
  return text[:300] or type(error).__name__


def error_message(kind: ErrorKind | None, url: str, operation: str, error: BaseException) -> str:
  """Return the one-line message for an answer.

  Args:
    url: the URL of the object or directory.
    operation: the operation that failed: `read`, `listed`, `written` or `deleted`.
  """
  scheme, mark, path = url.partition("://")
  text = error_text(error)
  if kind is ErrorKind.NO_BUCKET:
    return f"{url}: bucket {scheme}{mark}{path.partition('/')[0]} {kind.value}"
  if kind is ErrorKind.DAMAGED:
    return f"{url}: {kind.value} ({text}); copy it again"
  reason = f"{kind.value} ({text})" if kind else text
  message = f"{url}: cannot be {operation}: {reason}"
  if kind is ErrorKind.REFUSED:
    provider = {"gcs": "gs", "s3a": "s3"}.get(scheme, scheme)
    right = _RIGHTS.get(provider, {}).get(operation, "the right to it")
    return f"{message}; grant this account {right}, or use the credentials of one that has it"
  if kind is ErrorKind.EXPIRED:
    return f"{message}; refresh them and run the same command again"
  return message

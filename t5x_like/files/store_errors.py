"""One kind for each answer of an object store, whatever the client: docs/reference/exit-codes.md
has the table.

fsspec's clients (gcsfs, s3fs, adlfs, http), TensorStore and the operating system each have their
own exceptions for the same answers. `kind` classifies them; `errors.translate_error` turns a kind into the
error that ends the program.
"""

import enum
import errno
import os
import re
from collections.abc import Iterator


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


def _kinds(**names: str) -> dict[str, ErrorKind]:
  return {name: ErrorKind[kind] for kind, several in names.items() for name in several.split("|")}


_CODES = _kinds(  # of S3 and Azure, more precise than the status
  NO_BUCKET="NoSuchBucket|ContainerNotFound|ContainerBeingDeleted|FilesystemNotFound",
  ABSENT="NoSuchKey|NoSuchVersion|BlobNotFound|PathNotFound",
  EXPIRED="ExpiredToken|ExpiredTokenException|TokenRefreshRequired|RequestExpired",
  REFUSED="AccessDenied|InvalidAccessKeyId|InvalidToken|SignatureDoesNotMatch",
  DAMAGED="InvalidRange|BadDigest|XAmzContentChecksumMismatch",
  EXISTS="ConditionalRequestConflict",
  TRANSIENT="OperationAborted|RequestTimeout|IncompleteBody|SlowDown|Throttling|ThrottlingException|"
  "RequestLimitExceeded|InternalError",
)
_STATUSES = {
  **dict.fromkeys((408, 425, 429, 500), ErrorKind.TRANSIENT),
  **dict.fromkeys((401, 403), ErrorKind.REFUSED),
  **dict.fromkeys((409, 412), ErrorKind.EXISTS),
  404: ErrorKind.ABSENT,
  416: ErrorKind.DAMAGED,
  501: ErrorKind.OTHER,
}
# by name, as their packages are optional: aiohttp, requests, urllib3, botocore, fsspec, google.auth
_CLASSES = _kinds(
  TRANSIENT="ChunkedEncodingError|ClientConnectionError|ClientPayloadError|ConnectTimeout|ConnectTimeoutError|"
  "ConnectionClosedError|ConnectionError|EndpointConnectionError|FSTimeoutError|IncompleteRead|ProxyError|ReadTimeout|"
  "ReadTimeoutError|ResponseStreamingError|ServerDisconnectedError|TimeoutError|TransientError|TransportError",
  DAMAGED="ChecksumError",
  EXPIRED="RefreshError|UnauthorizedSSOTokenError|SSOTokenLoadError|TokenRetrievalError",
  REFUSED="DefaultCredentialsError|NoCredentialsError|PartialCredentialsError|CredentialRetrievalError",
  OTHER="AzureError|BotoCoreError|ClientError|GoogleAuthError|RequestException",
)
_ERRNOS = {
  getattr(errno, name): error_kind
  for name, error_kind in _kinds(
    TRANSIENT="EIO|EAGAIN|EBUSY|EINTR|ESTALE|ETIMEDOUT|ECONNRESET|ECONNREFUSED|ECONNABORTED|EPIPE|ENETDOWN|ENETUNREACH|"
    "ENETRESET|EHOSTDOWN|EHOSTUNREACH|EREMOTEIO|ENOTCONN|ENOBUFS|ENOLINK|ENONET|ECOMM|ESHUTDOWN|ETIME",
    ABSENT="ENOENT|ENOTDIR",
    EXISTS="EEXIST",
    REFUSED="EACCES|EPERM",
  ).items()
  if hasattr(errno, name)
}
_TYPES = {
  FileNotFoundError: ErrorKind.ABSENT,
  FileExistsError: ErrorKind.EXISTS,
  PermissionError: ErrorKind.REFUSED,
}
# absl's codes as TensorStore writes them, and phrases of messages without a status
_WORDS = _kinds(
  TRANSIENT="UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|Too Many Requests|Service "
  "Unavailable|SlowDown|Connection reset|"
  "Connection closed|connection closed|Connection refused|Broken pipe|timed out|Timeout|"
  "Temporary failure in name resolution|Input/output error|Stale file handle|CURL error",
  REFUSED="Forbidden: |PERMISSION_DENIED|UNAUTHENTICATED",
  DAMAGED="OUT_OF_RANGE|DATA_LOSS",
  ABSENT="NOT_FOUND",
  OTHER="does not support|Bad Request: ",
)
_PASSING = {
  os.strerror(number) for number, error_kind in _ERRNOS.items() if error_kind is ErrorKind.TRANSIENT
}
_WORDS |= dict.fromkeys(_PASSING, ErrorKind.TRANSIENT)
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
  """Yield the exception and its causes in turn; unless `explicit`, follow implicit contexts
  (`__context__`) too."""
  seen: set[int] = set()
  while error is not None and id(error) not in seen:
    seen.add(id(error))
    yield error
    error = error.__cause__ or (None if explicit else error.__context__)


def error_kind(error: BaseException) -> ErrorKind | None:
  """Return the kind of an exception; None if it did not come from a store, network or disk.

  The server's code or status takes precedence over the client's exception class. An exception that
  was being handled when this one was raised, perhaps the end of the whole run, counts only as a
  last resort.
  """
  return _kind(list(error_chain(error, explicit=True))) or _kind(list(error_chain(error)))


def kind_of_errno(number: int | None) -> ErrorKind | None:
  """Return the kind of an error number of the operating system; None if it says nothing of a store,
  network or disk."""
  return _ERRNOS.get(number)


def mentions_passing_fault(message: str) -> bool:
  """Return whether a message has the operating system's words for a fault that passes, such as
  "Stale file handle"."""
  return any(words in message for words in _PASSING)


def _kind(links: list[BaseException]) -> ErrorKind | None:
  said = [_said(link) for link in links]
  made = [_made(link) for link in links]
  transient = [ErrorKind.TRANSIENT] if ErrorKind.TRANSIENT in made else []
  return next((found for found in said + transient + made if found is not None), None)


def _said(error: BaseException) -> ErrorKind | None:
  """Classify by the server's own code or status."""
  if any(one.__name__ == "BadHttpMessage" for one in type(error).__mro__):
    return ErrorKind.TRANSIENT  # a cut answer; the 400 that aiohttp gives it is not the server's
  text = str(error)
  response = getattr(error, "response", None)
  # Azure's
  code = getattr(error, "error_code", None)
  status = None
  if isinstance(response, dict):  # botocore's
    code = response.get("Error", {}).get("Code")
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
  elif in_text := _CODE.search(text):
    code = in_text[1]
  holders = ((error, "status"), (error, "status_code"), (response, "status_code"), (error, "code"))
  for holder, name in () if isinstance(status, int) else holders:
    if isinstance(status := getattr(holder, name, None), int) and 400 <= status < 600:
      break
    status = None
  if status is None and (in_text := _STATUS.search(text)):
    status = int(in_text[1] or in_text[2])
  if status is None and isinstance(code, str) and code.isdecimal():
    status = int(code)
  found = _CODES.get(code)
  if found is None and status is not None and 400 <= status < 600:
    found = _STATUSES.get(status, ErrorKind.TRANSIENT if status > 501 else ErrorKind.OTHER)
  if found is ErrorKind.ABSENT and _NO_BUCKET.search(text):
    return ErrorKind.NO_BUCKET
  return ErrorKind.EXPIRED if found is ErrorKind.REFUSED and _EXPIRED.search(text) else found


def _made(error: BaseException) -> ErrorKind | None:
  """Classify by the exception's class, errno or wording."""
  names = [one.__name__ for one in type(error).__mro__]
  if (found := next((_CLASSES[name] for name in names if name in _CLASSES), None)) is not None:
    return (
      ErrorKind.TRANSIENT
      if found is ErrorKind.EXPIRED and getattr(error, "retryable", False)
      else found
    )
  if isinstance(error, OSError) and error.errno is not None:
    return _ERRNOS.get(error.errno)
  for one, found in _TYPES.items():
    if isinstance(error, one):
      return found
  text = str(error)
  return next((found for word, found in _WORDS.items() if word in text), None)


def error_text(error: BaseException) -> str:
  """Return the server's message, or else the client's, as one short line."""
  text = " ".join(_BODY.sub("", " ".join(str(error).split())).split())
  return text[:300] or type(error).__name__


def error_message(kind: ErrorKind | None, address: str, done: str, error: BaseException) -> str:
  """Return the one-line message for an answer.

  Args:
    address: the address of the object or directory.
    done: the operation that failed: `read`, `listed`, `written` or `deleted`.
  """
  scheme, mark, rest = address.partition("://")
  if kind is ErrorKind.NO_BUCKET:
    return f"{address}: bucket {scheme}{mark}{rest.partition('/')[0]} {kind.value}"
  told = f"{address}: cannot be {done}: "
  told += f"{kind.value} ({error_text(error)})" if kind else error_text(error)
  if kind is ErrorKind.DAMAGED:
    return f"{address}: {kind.value} ({error_text(error)}); copy it again"
  if kind is ErrorKind.REFUSED:
    right = _RIGHTS.get({"gcs": "gs", "s3a": "s3"}.get(scheme, scheme), {}).get(
      done, "the right to it"
    )
    return f"{told}; grant this account {right}, or use the credentials of one that has it"
  return (
    f"{told}; refresh them and run the same command again" if kind is ErrorKind.EXPIRED else told
  )

"""The answers that a test can make `object_server` give, in the words of each service."""

import json
from typing import NamedTuple


class Answer(NamedTuple):
  """An answer to a request.

  Attributes:
    status: the HTTP status; 200 answers as usual, with as many bytes as `bytes` allows.
    code: S3's code of the error.
    message: the server's message.
    bytes: how many bytes of an object to answer with, as if the connection broke; None for all.
  """

  status: int
  code: str = ""
  message: str = ""
  bytes: int | None = None


ANSWERS = {
  "cut short": Answer(200, bytes=5),
  "empty": Answer(200, bytes=0),
  "range": Answer(416, "InvalidRange", "The requested range is not satisfiable"),
  "forbidden": Answer(403, "AccessDenied", "The account does not have access to the object"),
  "unauthenticated": Answer(401, "InvalidAccessKeyId", "Anonymous caller does not have access"),
  "expired": Answer(401, "ExpiredToken", "The provided token has expired"),
  "expired in 400": Answer(400, "ExpiredToken", "The provided token has expired"),
  "no bucket": Answer(404, "NoSuchBucket", "The specified bucket does not exist"),
  "no object": Answer(404, "NoSuchKey", "The specified key does not exist"),
  "conflict": Answer(409, "ConditionalRequestConflict", "The conditional request cannot succeed"),
  "exists": Answer(412, "PreconditionFailed", "At least one of the conditions did not hold"),
  "timeout": Answer(408, "RequestTimeout", "Idle connections will be closed"),
  "too early": Answer(425, "TooEarly", "Too early"),
  "throttled": Answer(429, "SlowDown", "Please reduce your request rate"),
  "internal": Answer(500, "InternalError", "We encountered an internal error"),
  "unavailable": Answer(503, "ServiceUnavailable", "Please try again"),
  "gateway": Answer(504, "GatewayTimeout", "No answer upstream"),
  "bad request": Answer(400, "InvalidArgument", "The argument is wrong"),
  "bad method": Answer(405, "MethodNotAllowed", "The method is not allowed"),
  "unimplemented": Answer(501, "NotImplemented", "The header implies what is not implemented"),
}


def body(answer: Answer, s3: bool) -> bytes:
  """Return the body of an error in S3's XML, or in the JSON of Google Cloud Storage."""
  if s3:
    return (
      "<?xml "
      f"version='1.0'?><Error><Code>{answer.code}</Code><Message>{answer.message}</Message></Error>"
    ).encode()
  error = {
    "code": answer.status,
    "message": answer.message,
    "errors": [{"message": answer.message, "reason": answer.code}],
  }
  return json.dumps({"error": error}).encode()

"""A page on this machine to talk with a model: no build step, no other program, nothing from the
network."""

import http.server
import json
import pathlib
import socket
import sys
import threading
from typing import Any

from t5x_like.data.supervised.chat import Message
from t5x_like.errors import UserError, one_line
from t5x_like.inference.talk import Talk

PAGE = pathlib.Path(__file__).with_name("chat.html")
_ROLES = ("system", "user", "assistant")
_LARGEST = 2**20  # bytes of a request
_READ_SECONDS = 10.0  # for a whole request
_WRITE_SECONDS = 10.0  # for a part of an answer that the reader does not take
_MOST_CONNECTIONS = 512
_POLICY = (
  "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
)


def serve(talk: Talk, port: int, name: str, temperature: float, system: str | None) -> None:
  """Serve the page until interrupted; port 0 takes a free one. Raise UserError if the port is in
  use."""
  try:
    server = Server(
      talk,
      port,
      {"name": name, "description": talk.description, "temperature": temperature, "system": system},
    )
  except OSError as error:
    raise UserError(
      f"--web={port}: the port cannot be used: {error.strerror}; give another"
    ) from None
  print(f"talk at http://localhost:{server.server_port} (^C ends)", flush=True)
  try:
    server.serve_forever()
  except KeyboardInterrupt:
    pass
  finally:
    server.server_close()


class Server(http.server.ThreadingHTTPServer):
  """Serves `/` (the page), `/about` (facts as JSON) and `/say` (a conversation as JSON; the answer
  as a text stream).

  It listens on the loopback address only, and answers only requests that name it, from pages of its
  own: another site that is open in the browser can neither read nor use it. One answer is made at a
  time.
  """

  daemon_threads = True

  def __init__(self, talk: Talk, port: int, about: dict[str, Any]):
    super().__init__(("127.0.0.1", port), _Handler)
    self.talk, self.about, self.lock = talk, about, threading.Lock()
    self.names = {f"{host}:{self.server_port}" for host in ("localhost", "127.0.0.1")}
    self._places = threading.BoundedSemaphore(_MOST_CONNECTIONS)

  def process_request(self, request, client_address):
    """Answer in a thread of its own, unless too many connections are open: then close the new
    one."""
    if self._places.acquire(blocking=False):
      super().process_request(request, client_address)
    else:
      self.shutdown_request(request)

  def process_request_thread(self, request, client_address):
    try:
      super().process_request_thread(request, client_address)
    finally:
      self._places.release()

  def handle_error(self, request, client_address):
    """Print an error of an answer as one line, where the base class prints a traceback."""
    error = sys.exception()
    if not isinstance(error, OSError):  # of a connection that is gone
      print(
        f"warning: a request failed: {type(error).__name__}: {one_line(error)[:300]}",
        file=sys.stderr,
        flush=True,
      )


class _Handler(http.server.BaseHTTPRequestHandler):
  server: Server
  timeout = _WRITE_SECONDS

  def setup(self):
    super().setup()
    self._late = threading.Timer(_READ_SECONDS, self._end_late)
    self._late.daemon = True
    self._late.start()

  def finish(self):
    self._late.cancel()
    super().finish()

  def _end_late(self) -> None:
    """End a request that is not there in time, however slowly it comes."""
    try:
      self.connection.shutdown(socket.SHUT_RDWR)
    except OSError:
      pass  # it has ended by itself

  def do_GET(self):
    if not self._is_own():
      return
    if self.path == "/":
      self._send(200, "text/html; charset=utf-8", PAGE.read_bytes())
    elif self.path == "/about":
      self._send(200, "application/json", json.dumps(self.server.about).encode())
    else:
      self._refuse(404, "no such page")

  def do_POST(self):
    if not self._is_own():
      return
    if self.path != "/say" or self.headers.get("Content-Type") != "application/json":
      return self._refuse(404, "expected JSON at /say")
    try:
      messages, temperature = _read(self.rfile.read(self._length()))
    except UserError as error:
      return self._refuse(400, str(error))
    self._late.cancel()
    self.send_response(200)
    self._headers("text/plain; charset=utf-8")
    try:
      with self.server.lock:
        for piece in self.server.talk(messages, temperature):
          self.wfile.write(piece.encode("utf-8", "replace"))
          self.wfile.flush()
    except UserError as error:
      self.wfile.write(f"[{error}]".encode("utf-8", "replace"))
    except (BrokenPipeError, ConnectionResetError, TimeoutError):
      pass  # the reader stopped the answer, or no longer reads it

  def _is_own(self) -> bool:
    """Return whether the request names this server and comes from its page, or from no page; refuse
    it otherwise."""
    origin = self.headers.get("Origin")
    names_server = self.headers.get("Host") in self.server.names
    if names_server and (origin is None or origin.removeprefix("http://") in self.server.names):
      return True
    self._refuse(403, "this page is for this machine only")
    return False

  def _length(self) -> int:
    text = self.headers.get("Content-Length") or ""
    if not (text.isascii() and text.isdecimal()) or len(text) > 10 or int(text) > _LARGEST:
      raise UserError(
        f"found a request of {text[:20] or 'unknown'} bytes, expected at most {_LARGEST}"
      )
    return int(text)

  def _send(self, code: int, kind: str, content: bytes) -> None:
    self.send_response(code)
    self._headers(kind)
    self.wfile.write(content)

  def _headers(self, kind: str) -> None:
    for name, value in (
      ("Content-Type", kind),
      ("Content-Security-Policy", _POLICY),
      ("X-Content-Type-Options", "nosniff"),
      ("Cache-Control", "no-store"),
      ("Connection", "close"),
    ):
      self.send_header(name, value)
    self.end_headers()

  def _refuse(self, code: int, why: str) -> None:
    self._send(code, "text/plain; charset=utf-8", why.encode())

  def log_message(self, *_):
    pass  # the terminal is the user's


def _read(content: bytes) -> tuple[list[Message], float]:
  """Return the messages and the temperature of a request; raise UserError for anything else."""
  try:
    request = json.loads(content)
    messages = [Message(message["role"], message["content"]) for message in request["messages"]]
    temperature = float(request.get("temperature", 0))
    for message in messages:
      message.content.encode()  # half of a surrogate pair is no text
  except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
    raise UserError(
      f"found no conversation ({one_line(error)[:80]}), expected messages with role and content"
    ) from None
  is_conversation = all(
    message.role in _ROLES and isinstance(message.content, str) for message in messages
  )
  if (
    not messages
    or not is_conversation
    or messages[-1].role != "user"
    or not 0 <= temperature <= 1e3
  ):
    raise UserError(
      "expected messages of system, user and assistant, the last the user's, and a "
      "temperature 0 to 1000"
    )
  return messages, temperature

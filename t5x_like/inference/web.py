"""Serve a page on this machine to talk with a model.

The page needs no build step, no other program and nothing from the network.
"""

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
_MAX_REQUEST_BYTES = 2**20
_READ_SECONDS = 10.0  # time limit of reading a request
_WRITE_SECONDS = 10.0  # time limit of sending a part of an answer to a reader that does not take it
_MAX_CONNECTIONS = 512
_POLICY = (
  "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
)


def serve(talk: Talk, port: int, name: str, temperature: float, system: str | None) -> None:
  """Serve the page until interrupted; port 0 takes a free one.

  Raises:
    UserError: the port is in use.
  """
  about = {
    "name": name,
    "description": talk.description,
    "temperature": temperature,
    "system": system,
  }
  try:
    server = Server(talk, port, about)
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
  """Serves `/` (the page), `/about` (facts as JSON) and `/say` (the answer to a conversation).

  `/say` takes the conversation as JSON and streams the answer as text.

  It listens on the loopback address only, and answers only requests to its own address from its own
  page, so that another site that is open in the browser can neither read nor use it. It generates
  one answer at a time.
  """

  daemon_threads = True

  def __init__(self, talk: Talk, port: int, about: dict[str, Any]):
    super().__init__(("127.0.0.1", port), _Handler)
    self.talk = talk
    self.about = about
    self.lock = threading.Lock()
    self.names = {f"{host}:{self.server_port}" for host in ("localhost", "127.0.0.1")}
    self._free_connections = threading.BoundedSemaphore(_MAX_CONNECTIONS)

  def process_request(self, request, client_address):
    """Answer in a new thread; close the connection if too many are open."""
    if self._free_connections.acquire(blocking=False):
      super().process_request(request, client_address)
    else:
      self.shutdown_request(request)

  def process_request_thread(self, request, client_address):
    try:
      super().process_request_thread(request, client_address)
    finally:
      self._free_connections.release()

  def handle_error(self, request, client_address):
    """Print an error of an answer as one line, where the base class prints a traceback."""
    error = sys.exception()
    if not isinstance(error, OSError):  # an OSError is of a connection that has ended
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
    self._read_timer = threading.Timer(_READ_SECONDS, self._end_connection)
    self._read_timer.daemon = True
    self._read_timer.start()

  def finish(self):
    self._read_timer.cancel()
    super().finish()

  def _end_connection(self) -> None:
    """End a connection whose request has not arrived in time."""
    try:
      self.connection.shutdown(socket.SHUT_RDWR)
    except OSError:
      pass  # the connection has ended already

  def do_GET(self):
    if not self._check_origin():
      return
    if self.path == "/":
      self._send(200, "text/html; charset=utf-8", PAGE.read_bytes())
    elif self.path == "/about":
      self._send(200, "application/json", json.dumps(self.server.about).encode())
    else:
      self._refuse(404, "no such page")

  def do_POST(self):
    if not self._check_origin():
      return
    if self.path != "/say" or self.headers.get("Content-Type") != "application/json":
      return self._refuse(404, "expected JSON at /say")
    try:
      messages, temperature = _parse_conversation(self.rfile.read(self._content_length()))
    except UserError as error:
      return self._refuse(400, str(error))
    self._read_timer.cancel()
    self.send_response(200)
    self._send_headers("text/plain; charset=utf-8")
    try:
      with self.server.lock:
        for piece in self.server.talk(messages, temperature):
          self.wfile.write(piece.encode("utf-8", "replace"))
          self.wfile.flush()
    except UserError as error:
      self.wfile.write(f"[{error}]".encode("utf-8", "replace"))
    except (BrokenPipeError, ConnectionResetError, TimeoutError):
      pass  # the reader stopped the answer, or no longer reads it

  def _check_origin(self) -> bool:
    """Refuse a request to another address or from another site's page; return whether it may pass.

    Requests that come from no page may pass too.
    """
    origin = self.headers.get("Origin")
    names_server = self.headers.get("Host") in self.server.names
    if names_server and (origin is None or origin.removeprefix("http://") in self.server.names):
      return True
    self._refuse(403, "this page is for this machine only")
    return False

  def _content_length(self) -> int:
    text = self.headers.get("Content-Length") or ""
    is_number = text.isascii() and text.isdecimal() and len(text) <= 10
    if not is_number or int(text) > _MAX_REQUEST_BYTES:
      raise UserError(
        f"found a request of {text[:20] or 'unknown'} bytes, expected at most {_MAX_REQUEST_BYTES}"
      )
    return int(text)

  def _send(self, code: int, kind: str, content: bytes) -> None:
    self.send_response(code)
    self._send_headers(kind)
    self.wfile.write(content)

  def _send_headers(self, kind: str) -> None:
    self.send_header("Content-Type", kind)
    self.send_header("Content-Security-Policy", _POLICY)
    self.send_header("X-Content-Type-Options", "nosniff")
    self.send_header("Cache-Control", "no-store")
    self.send_header("Connection", "close")
    self.end_headers()

  def _refuse(self, code: int, reason: str) -> None:
    self._send(code, "text/plain; charset=utf-8", reason.encode())

  def log_message(self, *_):
    pass  # no log of requests in the user's terminal


def _parse_conversation(content: bytes) -> tuple[list[Message], float]:
  """Return the messages and the temperature of a request; raise UserError for anything else."""
  try:
    request = json.loads(content)
    messages = [Message(message["role"], message["content"]) for message in request["messages"]]
    temperature = float(request.get("temperature", 0))
    for message in messages:
      message.content.encode()  # refuses half of a surrogate pair
  except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
    raise UserError(
      f"found no conversation ({one_line(error)[:80]}), expected messages with role and content"
    ) from None
  is_conversation = bool(messages) and messages[-1].role == "user"
  for message in messages:
    if message.role not in _ROLES or not isinstance(message.content, str):
      is_conversation = False
  if not is_conversation or not 0 <= temperature <= 1e3:
    raise UserError(
      "expected messages of system, user and assistant, the last the user's, and a "
      "temperature 0 to 1000"
    )
  return messages, temperature

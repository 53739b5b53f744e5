"""A web server for files in a directory that answers ranges, takes uploads, and fails and dawdles when asked to."""

import contextlib
import http.server
import json
import pathlib
import random
import threading
import time
import urllib.parse


class Server:
  """Serves `root` at `url`, and as the bucket `bucket` of a Google Cloud Storage at `url`.

  Attributes:
    requests: the paths and ranges asked for.
    unavailable: the share of requests that are answered with 503.
    broken: the share of answers whose connection breaks half-way.
    delay: seconds before an answer.
    hangs: requests that are never answered, counted down.
    page: names in a page of a listing.
    readonly: whether uploads and deletions are forbidden.
    uploads: the names of the files that were written.
  """

  def __init__(self, root: pathlib.Path):
    self.root, self.requests = root, []
    self.unavailable, self.broken, self.delay, self.hangs, self.page = 0.0, 0.0, 0.0, 0, 1_000
    self.readonly, self.uploads = False, []
    self.random, self.stopped = random.Random(0), threading.Event()
    self.http = _Http(("127.0.0.1", 0), _handler(self))
    self.url = f"http://127.0.0.1:{self.http.server_port}"

  @contextlib.contextmanager
  def running(self):
    threading.Thread(target=self.http.serve_forever, daemon=True).start()
    try:
      yield self
    finally:
      self.stopped.set()
      self.http.shutdown()
      self.http.server_close()


class _Http(http.server.ThreadingHTTPServer):
  daemon_threads = True
  request_queue_size = 1_024  # connections that come at once; the 5 of the default are too few


def _handler(server: Server):
  class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, *_):
      pass

    def answer(self, status: int, data: bytes = b"", **headers: str) -> None:
      self.send_response(status)
      for name, value in {"Content-Length": str(len(data)), **headers}.items():
        self.send_header(name.replace("_", "-"), value)
      self.end_headers()
      if server.random.random() < server.broken:
        self.wfile.write(data[: len(data) // 2])
        self.close_connection = True
        self.connection.close()
      else:
        self.wfile.write(data)

    def do_GET(self):
      with contextlib.suppress(OSError):  # whoever asked is gone
        self.get()

    def get(self):
      address = urllib.parse.urlsplit(self.path)
      query = dict(urllib.parse.parse_qsl(address.query))
      server.requests.append((urllib.parse.unquote(address.path), self.headers.get("Range")))
      time.sleep(server.delay)
      if server.hangs > 0:
        server.hangs -= 1
        server.stopped.wait()
      if server.random.random() < server.unavailable:
        return self.answer(503)
      path = urllib.parse.unquote(address.path)
      objects = "/storage/v1/b/bucket/o"
      if path == objects:
        return self.listing(query)
      file = server.root / path.removeprefix(objects).lstrip("/")
      if not file.is_file():
        return self.answer(404)
      data, part = file.read_bytes(), self.headers.get("Range")
      about = {"ETag": '"1"', "x_goog_generation": "1"}
      if not part:
        return self.answer(200, data, **about)
      first, _, last = part.removeprefix("bytes=").partition("-")
      first, last = int(first), min(int(last or len(data)), len(data) - 1)
      if first > last:
        return self.answer(416)
      return self.answer(206, data[first : last + 1], Content_Range=f"bytes {first}-{last}/{len(data)}", **about)

    def do_POST(self):
      with contextlib.suppress(OSError):
        data = self.rfile.read(int(self.headers["Content-Length"]))
        name = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))["name"]
        if self.may_change():
          server.uploads.append(name)
          file = server.root / name
          file.parent.mkdir(parents=True, exist_ok=True)
          aside = file.with_name(f".{file.name}.{threading.get_ident()}")
          aside.write_bytes(data)
          aside.replace(file)
          self.answer(200, json.dumps({"name": name, "generation": "1"}).encode(), Content_Type="application/json")

    def do_DELETE(self):
      with contextlib.suppress(OSError):
        if self.may_change():
          name = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path).removeprefix("/storage/v1/b/bucket/o/")
          there = (server.root / name).is_file()
          (server.root / name).unlink(missing_ok=True)
          self.answer(204 if there else 404)

    def may_change(self) -> bool:
      time.sleep(server.delay)
      status = 403 if server.readonly else 503 if server.random.random() < server.unavailable else 0
      if status:
        self.answer(status)
      return not status

    def listing(self, query: dict[str, str]) -> None:
      names = sorted(str(file.relative_to(server.root)) for file in server.root.rglob("*") if file.is_file())
      names = [name for name in names if name.startswith(query.get("prefix", ""))]
      names = [name for name in names if query.get("startOffset", "") <= name]
      names = [name for name in names if not query.get("endOffset") or name < query["endOffset"]]
      begin = int(query.get("pageToken", 0))
      page = {"items": [{"name": name, "size": "0"} for name in names[begin : begin + server.page]]}
      if begin + server.page < len(names):
        page["nextPageToken"] = str(begin + server.page)
      self.answer(200, json.dumps(page).encode(), Content_Type="application/json")

  return Handler

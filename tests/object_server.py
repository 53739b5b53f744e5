"""A web server for the files of a directory, as buckets of two services, with faults on request."""

import contextlib
import http.server
import json
import pathlib
import random
import re
import threading
import time
import urllib.parse
from collections.abc import Callable

import pytest

from t5x_like.files import remote
from tests import object_answers


class Server:
  """Serves `root` at `url`, also as the bucket `bucket` of Google Cloud Storage and of S3.

  Attributes:
    requests: the requested paths and ranges.
    fault: a function of an operation (`read`, `range`, `list`, `stat`, `write`, `create`, `delete`,
      `bucket`) and the object's name. It returns the name of an answer in `object_answers.ANSWERS`,
      or None for the right one.
    unavailable, throttled, failing: the share of requests that are answered with 503, with 429, and
      with 500.
    readonly: whether uploads and deletions are forbidden.
    uploads: the names of the files that were written.
    stale: the names that listings show instead of the names of the files; None shows the files.
    writes_left: how many objects can be written before every connection that writes is lost.
    broken: the share of answers whose connection breaks half-way.
    delay, upload_delay: seconds before an answer, and further seconds before that of an upload.
    hangs: how many of the next requests are never answered.
  """

  def __init__(self, root: pathlib.Path):
    self.root = root
    self.requests = []
    self.unavailable = 0.0
    self.broken = 0.0
    self.delay = 0.0
    self.hangs = 0
    self.readonly = False
    self.uploads = []
    self.fault: Callable[[str, str], str | None] = lambda operation, name: None
    self.failing = 0.0
    self.upload_delay = 0.0
    self.throttled = 0.0
    self.stale = None
    self.writes_left = None
    self.begun = {}
    self.random = random.Random(0)
    self.stopped = threading.Event()
    self.lock = threading.Lock()
    self.http = _Http(("127.0.0.1", 0), _handler(self))
    # By name of the object; an object that was not written through the server has version 1.
    self.versions: dict[str, int] = {}
    self.url = f"http://127.0.0.1:{self.http.server_port}"

  def names(self) -> list[str]:
    return sorted(
      str(file.relative_to(self.root)) for file in self.root.rglob("*") if file.is_file()
    )

  @contextlib.contextmanager
  def running(self):
    threading.Thread(target=self.http.serve_forever, daemon=True).start()
    try:
      yield self
    finally:
      self.stopped.set()
      self.http.shutdown()
      self.http.server_close()


@contextlib.contextmanager
def serve(root: pathlib.Path, **variables: str):
  """Run a server of a new directory, which this process and its children use as their stores.

  Args:
    variables: further variables of the environment.
  """
  server = Server(root)
  root.mkdir(exist_ok=True)
  with pytest.MonkeyPatch.context() as patch, server.running():
    for name, value in (environment(server) | variables).items():
      patch.setenv(name, value)
    remote.reset()  # forgets the server of another test
    yield server
  remote.reset()


def environment(server: Server) -> dict[str, str]:
  """Return the variables that make clients of Google's and of Amazon's storage use the server."""
  return {
    "STORAGE_EMULATOR_HOST": server.url,
    "TENSORSTORE_GCS_HTTP_URL": server.url,
    "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # asks Google what kind a bucket is
    "GCE_METADATA_ROOT": server.url.removeprefix("http://"),  # there are no credentials to be had
    "AWS_ENDPOINT_URL": server.url,
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_MAX_ATTEMPTS": "1",
  }


BUCKET = "/storage/v1/b/bucket"
OBJECTS = f"{BUCKET}/o"


def group_names(names: list[str], query: dict[str, str]) -> tuple[list[str], list[str]]:
  """Return the names that a listing shows, and the common prefixes of the names that it groups."""
  prefix = query.get("prefix", "")
  delimiter = query.get("delimiter")
  single = []
  prefixes = set()
  for name in names:
    if not name.startswith(prefix):
      continue
    if delimiter and delimiter in name[len(prefix) :]:
      prefixes.add(name[: name.index(delimiter, len(prefix)) + 1])
    else:
      single.append(name)
  return single, sorted(prefixes)


class _Http(http.server.ThreadingHTTPServer):
  daemon_threads = True
  request_queue_size = 1_024  # connections that come at once; the 5 of the default are too few

  def handle_error(self, *_):
    """Ignore an error: the client is gone."""


def _handler(server: Server):
  class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, *_):
      pass

    def handle_expect_100(self) -> bool:
      super().handle_expect_100()
      self.wfile.flush()  # the client waits for it
      return True

    def answer(self, status: int, data: bytes = b"", **headers: str) -> None:
      self.send_response(status)
      for name, value in {"Content-Length": str(len(data)), **headers}.items():
        self.send_header(name.replace("_", "-"), value)
      self.end_headers()
      if self.command == "HEAD":
        return
      if server.random.random() < server.broken:
        self.wfile.write(data[: len(data) // 2])
        self.close_connection = True
        self.connection.close()
      else:
        self.wfile.write(data)

    def deny(self, name: str) -> None:
      """Answer with an error of `object_answers.ANSWERS`."""
      answer = object_answers.ANSWERS[name]
      body = object_answers.body(answer, self.s3)
      self.answer(answer.status, body, Content_Type="application/json")

    def describe(self, file: pathlib.Path) -> None:
      """Answer with Google's description of an object."""
      self.answer(200, json.dumps(self.about(file)).encode(), Content_Type="application/json")

    def do_GET(self):
      with contextlib.suppress(OSError):  # the client is gone
        self.get()

    def get(self):
      address = urllib.parse.urlsplit(self.path)
      query = dict(urllib.parse.parse_qsl(address.query))
      server.requests.append((urllib.parse.unquote(address.path), self.headers.get("Range")))
      time.sleep(server.delay)
      if server.hangs > 0:
        server.hangs -= 1
        server.stopped.wait()
      path = urllib.parse.unquote(address.path).removeprefix("/download")
      name = self.name(path)
      byte_range = self.headers.get("Range")
      if path.rstrip("/") in (BUCKET, "/bucket"):
        operation = "list" if self.s3 and query else "bucket"
      elif path == OBJECTS:
        operation = "list"
      elif self.command == "HEAD" or path.startswith(OBJECTS) and "alt" not in query:
        operation = "stat"
      else:
        operation = "range" if byte_range else "read"
      if self.refused(operation, name):
        return None
      if operation == "bucket":
        return self.answer(200, b"{}", Content_Type="application/json")
      if operation == "list":
        return self.s3_listing(query) if self.s3 else self.listing(query)
      file = server.root / name
      if not file.is_file():
        return self.deny("no object")
      if path.startswith(OBJECTS) and "alt" not in query:
        return self.describe(file)
      data = file.read_bytes()[: self.most]
      headers = {"ETag": self.etag(name), "x_goog_generation": str(self.version(name))}
      if self.s3 and self.headers.get("If-Match", self.etag(name)) != self.etag(name):
        return self.deny("exists")
      if not byte_range:
        return self.answer(200, data, **headers)
      first, _, last = byte_range.removeprefix("bytes=").partition("-")
      first = int(first)
      last = min(int(last or len(data)), len(data) - 1)
      if first > last:
        return self.deny("range")
      return self.answer(
        206, data[first : last + 1], Content_Range=f"bytes {first}-{last}/{len(data)}", **headers
      )

    def do_POST(self):
      with contextlib.suppress(OSError):
        self.post()

    do_PUT = do_POST
    do_HEAD = do_GET

    @property
    def s3(self) -> bool:
      return self.headers.get("Authorization", "").startswith("AWS4")

    def name(self, path: str) -> str:
      """Return the name of the object at a path."""
      return path.removeprefix("/bucket" if self.s3 else OBJECTS).lstrip("/")

    def post(self):
      """Store an object of one request (`multipart` or `media`) or of several (`resumable`)."""
      body = self.rfile.read(int(self.headers["Content-Length"]))
      time.sleep(server.delay + server.upload_delay)
      query = dict(
        urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query, keep_blank_values=True)
      )
      if self.s3:
        if self.command == "POST":
          return self.s3_deletion(body)
        name = self.name(urllib.parse.unquote(urllib.parse.urlsplit(self.path).path))
        only_new = "If-None-Match" in self.headers
        if self.refused("create" if only_new else "write", name):
          return None
        return self.store(name, body, only_new, self.headers.get("If-Match"))
      operation = "create" if query.get("ifGenerationMatch") == "0" else "write"
      if self.refused(operation, self.named(query, body)):
        return None
      if "upload_id" in query:
        name, parts, only_new = server.begun[query["upload_id"]]
        parts.append(body)
        last, size = map(int, self.headers["Content-Range"].rpartition("-")[2].split("/"))
        if last + 1 < size:
          return self.answer(308, Range=f"bytes=0-{last}")
        return self.store(name, b"".join(parts), only_new)
      only_new = query.get("ifGenerationMatch") == "0"
      if query["uploadType"] == "media":
        generation = query.get("ifGenerationMatch", "0")
        return self.store(
          query["name"], body, only_new, None if generation == "0" else f'"{generation}"'
        )
      if query["uploadType"] == "resumable":
        key = str(len(server.begun))
        server.begun[key] = (json.loads(body)["name"], [], only_new)
        return self.answer(
          200, Location=f"{server.url}/upload{OBJECTS}?uploadType=resumable&upload_id={key}"
        )
      name, content = self.parts(body)
      return self.store(name, content, only_new)

    def parts(self, body: bytes) -> tuple[str, bytes]:
      """Return the name and the bytes in an upload of several parts."""
      boundary = b"--" + self.headers["Content-Type"].partition("boundary=")[2].strip('"').encode()
      _, metadata, content = body.split(boundary, 2)
      name = json.loads(metadata.split(b"\n\n", 1)[1])["name"]
      return name, content.split(b"\n\n", 1)[1].removesuffix(b"\n" + boundary + b"--")

    def named(self, query: dict[str, str], body: bytes) -> str:
      """Return the name of the object of an upload to Google Cloud Storage."""
      if "upload_id" in query:
        return server.begun[query["upload_id"]][0]
      if query["uploadType"] == "media":
        return query["name"]
      return json.loads(body)["name"] if query["uploadType"] == "resumable" else self.parts(body)[0]

    def version(self, name: str) -> int:
      return server.versions.get(name, 1)

    def etag(self, name: str) -> str:
      return f'"{self.version(name)}"'

    def store(
      self, name: str, data: bytes, only_new: bool, only_version: str | None = None
    ) -> None:
      if server.writes_left is not None:
        server.writes_left -= 1
        if server.writes_left < 0:
          self.close_connection = True
          return self.connection.close()
      file = server.root / name
      with server.lock:  # of two clients that create an object at once, one is refused
        conflict = only_new and file.exists()
        if only_version is not None:
          conflict = not file.exists() or self.etag(name) != only_version
        if not conflict:
          server.versions[name] = self.version(name) + 1
          file.parent.mkdir(parents=True, exist_ok=True)
          server.uploads.append(name)
          temporary = file.with_name(f".{file.name}.{threading.get_ident()}")
          temporary.write_bytes(data)
          temporary.replace(file)
      if conflict:
        return self.deny("exists")
      if self.s3:
        return self.answer(200, ETag=self.etag(name))
      return self.describe(file)

    def do_DELETE(self):
      with contextlib.suppress(OSError):
        time.sleep(server.delay)
        name = self.name(urllib.parse.unquote(urllib.parse.urlsplit(self.path).path))
        if self.refused("delete", name):
          return
        file = server.root / name
        with server.lock:
          status = 204 if file.is_file() or self.s3 else 404
          query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
          if query.get("ifGenerationMatch", str(self.version(name))) != str(self.version(name)):
            return self.deny("exists")
          # A bucket has no directories, though clients ask to delete them.
          with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)
            for parent in file.parents:
              parent.rmdir()
        self.answer(status)

    def refused(self, operation: str, name: str) -> bool:
      """Answer with an error if one is due; return whether it was."""
      self.most = None
      changes = operation in ("write", "create", "delete")
      answer_name = server.fault(operation, name) or (
        "forbidden" if changes and server.readonly else None
      )
      if answer_name:
        answer = object_answers.ANSWERS[answer_name]
        if answer.status != 200:
          self.deny(answer_name)
          return True
        self.most = answer.bytes
      for status, share in (
        (503, server.unavailable),
        (429, server.throttled),
        (500, server.failing),
      ):
        if server.random.random() < share:
          self.answer(status)
          return True
      return False

    def about(self, file: pathlib.Path) -> dict[str, str]:
      name = str(file.relative_to(server.root))
      size = str(file.stat().st_size)
      return {
        "name": name,
        "bucket": "bucket",
        "size": size,
        "generation": str(self.version(name)),
        "kind": "storage#object",
      }

    def s3_deletion(self, body: bytes) -> None:
      names = re.findall(r"<Key>(.*?)</Key>", body.decode())
      if not self.refused("delete", names[0]):
        for name in names:
          (server.root / name).unlink(missing_ok=True)
        self.answer(200, b"<?xml version='1.0'?><DeleteResult></DeleteResult>")

    def s3_listing(self, query: dict[str, str]) -> None:
      after = query.get("start-after", "")
      names, prefixes = group_names([name for name in server.names() if name > after], query)
      elements = [
        f"<Name>bucket</Name><KeyCount>{len(names)}</KeyCount><IsTruncated>false</IsTruncated>"
      ]
      for name in names:
        size = (server.root / name).stat().st_size
        elements.append(f"<Contents><Key>{name}</Key><Size>{size}</Size></Contents>")
      for prefix in prefixes:
        elements.append(f"<CommonPrefixes><Prefix>{prefix}</Prefix></CommonPrefixes>")
      content = "".join(elements)
      xml = f"<?xml version='1.0'?><ListBucketResult>{content}</ListBucketResult>"
      self.answer(200, xml.encode())

    def listing(self, query: dict[str, str]) -> None:
      names = server.names() if server.stale is None else server.stale
      names = [name for name in names if query.get("startOffset", "") <= name]
      names = [name for name in names if not query.get("endOffset") or name < query["endOffset"]]
      names, prefixes = group_names(names, query)
      items = []
      for name in names:
        file = server.root / name
        size = file.stat().st_size if file.is_file() else 0  # a stale listing has other names
        items.append({"name": name, "bucket": "bucket", "size": str(size)})
      page = {"items": items}
      if prefixes:
        page["prefixes"] = prefixes
      self.answer(200, json.dumps(page).encode(), Content_Type="application/json")

  return Handler

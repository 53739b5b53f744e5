"""A store in S3 can be prepared and trained on, with results equal to a local store's.

The preparation and the run are killed once. The server is moto's, on this machine; a proxy in front
of it answers some requests with 503 and delays others. moto is in the extra `services` (`make
test-services`).
"""

import contextlib
import http.client
import http.server
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

import json_lines
from t5x_like.store.tokens import TokenStore
from tests.runs import Process, assert_same_bits, losses, run, steps, train
from tools import prepare_data

pytestmark = pytest.mark.services


class Proxy(http.server.ThreadingHTTPServer):
  """A proxy of a local port that answers a share of the requests with 503.

  Attributes:
    unavailable: the share of requests that are answered with 503.
    delay: seconds by which a twentieth of the requests is delayed.
    written: the paths of successful PUT requests.
  """

  daemon_threads = True
  request_queue_size = 1_024

  def __init__(self, port: int):
    self.port = port
    self.unavailable = 0.0
    self.delay = 0.0
    self.written = []
    self.random = random.Random(0)
    super().__init__(("127.0.0.1", 0), _Forward)


class _Forward(http.server.BaseHTTPRequestHandler):
  protocol_version = "HTTP/1.1"
  disable_nagle_algorithm = True
  wbufsize = -1

  def log_message(self, *_):
    pass

  def handle_expect_100(self):
    """Flush the answer "100 Continue", for which s3fs waits without a time limit."""
    should_continue = super().handle_expect_100()
    self.wfile.flush()
    return should_continue

  def forward(self):
    body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
    if self.server.random.random() < 0.05:
      time.sleep(self.server.delay)
    status, headers, data = 503, {"Content-Length": "0"}, b""
    if self.server.random.random() >= self.server.unavailable:
      status, headers, data = self.request_from_server(body)
    with contextlib.suppress(OSError):  # the client has closed the connection
      self.send_response_only(status)
      for name, value in headers.items():
        self.send_header(name, value)
      self.end_headers()
      self.wfile.write(data)

  def request_from_server(self, body: bytes):
    """Return (status, headers, data) of the answer behind the proxy."""
    connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
    connection.request(self.command, self.path, body, dict(self.headers))
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    if self.command == "PUT":
      self.server.written.append(self.path)
    headers = dict(answer.getheaders())
    for name in ("Transfer-Encoding", "Connection"):
      headers.pop(name, None)
    return answer.status, headers, data

  do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = forward


@pytest.fixture(scope="module")
def proxy():
  pytest.importorskip("moto.server")
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  command = [sys.executable, "-m", "moto.server", "-p", str(port)]
  moto = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
  with pytest.MonkeyPatch.context() as patched, Proxy(port) as proxy:
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    patched.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.server_port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
      patched.setenv(name, "test")
    for _ in range(600):
      with contextlib.suppress(OSError):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("PUT", "/bucket")
        assert connection.getresponse().status == 200
        break
      time.sleep(0.1)
    yield proxy
    proxy.shutdown()
  moto.kill()
  moto.wait()


def has_checkpoint(workdir) -> bool:
  return (workdir / "checkpoints").exists() and bool(steps(workdir))


def test_killed_preparation_and_killed_run_in_s3_equal_local_ones(proxy, tmp_path):
  generator = random.Random(0)
  for part in range(3):
    rows = []
    for _ in range(400):
      rows.append({"text": " ".join(f"w{generator.randrange(2_000)}" for _ in range(300))})
    json_lines.write(tmp_path / f"{part}.jsonl", rows)
  flags = [
    f"--source=jsonl:{tmp_path}/*.jsonl",
    "--vocabulary=bytes",
    "--part_bytes=1",
    "--shard_tokens=50000",
  ]
  flags += ["--clean=exact,near", "--workers=2"]
  local = tmp_path / "stores"
  bucket = "s3://bucket/stores"
  assert prepare_data.main([*flags, f"--output={local}"]) == 0

  proxy.unavailable = 0.1
  proxy.delay = 0.5
  command = [sys.executable, "-m", "tools.prepare_data", *flags, f"--output={bucket}"]
  with subprocess.Popen(command, env=os.environ, stdout=subprocess.DEVNULL) as preparing:
    while preparing.poll() is None and sum("/tokens/" in path for path in proxy.written) < 5:
      time.sleep(0.01)
    preparing.kill()
  assert preparing.returncode == -9
  assert subprocess.run(command, env=os.environ).returncode == 0
  for split in ("train", "validation"):
    store = TokenStore.open(f"{bucket}/{split}", verify="full")
    assert store.manifest == TokenStore.open(local / split).manifest

  settings = ["--config.total_steps=30", "--config.eval_every=30"]
  code, output = run(train(tmp_path / "whole", f"--config.task.store={local}", *settings))
  assert code == 0, output
  proxy.unavailable = 0.05
  workdir = tmp_path / "killed"
  settings = [f"--config.task.store={bucket}", *settings]
  with Process(train(workdir, *settings)) as process:
    assert process.until(lambda: has_checkpoint(workdir), seconds=500), process.end()
    process.send(signal.SIGKILL)
    process.end()
  code, output = run(train(workdir, *settings))
  assert code == 0, output
  assert "resuming" in output, output
  assert losses(workdir) == losses(tmp_path / "whole")
  assert_same_bits(workdir, tmp_path / "whole", 30)

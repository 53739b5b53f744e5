"""The page of `chat --web`: requests that are malformed, slow or many, and its script."""

import http.client
import json
import re
import shutil
import socket
import subprocess
import threading
import time

import pytest

from t5x_like.inference import web


class Talk:
  description = "It answers."

  def __call__(self, messages, temperature):
    if messages[-1].content == "long":
      while True:
        yield "x" * 100_000
    if messages[-1].content == "bug":
      raise ZeroDivisionError
    yield "answer"


@pytest.fixture
def server():
  server = web.Server(
    Talk(), 0, {"name": "n", "description": "t", "temperature": 0.7, "system": None}
  )
  threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
  yield server
  server.shutdown()
  server.server_close()


def body(text, **more):
  return json.dumps({"messages": [{"role": "user", "content": text}]} | more)


def say(server, content, **headers):
  connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
  connection.request("POST", "/say", content, {"Content-Type": "application/json", **headers})
  response = connection.getresponse()
  return response.status, response.read().decode()


def send(server, text):
  connection = socket.create_connection(("127.0.0.1", server.server_port), timeout=20)
  connection.sendall(text.replace("HOST", f"localhost:{server.server_port}").encode())
  return connection


POST = "POST /say HTTP/1.1\r\nHost: HOST\r\nContent-Type: application/json\r\nContent-Length: "


@pytest.mark.parametrize(
  "content",
  [
    '{"messages":[{"role":"user","content":"a"}],"temperature":' + "1" * 400 + "}",
    '{"messages":[{"role":"user","content":"a"}],"temperature":' + "1" * 5000 + "}",
    '{"messages":[{"role":"user","content":"a"}],"temperature":NaN}',
    '{"messages":[{"role":"user","content":"\\ud800"}]}',
    '{"messages":[{"role":"user","content":1}]}',
  ],
)
def test_numbers_and_letters_that_cannot_be_are_refused(content, server, capsys):
  assert say(server, content)[0] == 400
  assert say(server, body("hi")) == (200, "answer")
  assert capsys.readouterr().err == ""


@pytest.mark.parametrize("length", ["9" * 5000, "-1", "٣", "", "1e3"])
def test_lengths_that_cannot_be_are_refused(length, server, capsys):
  answer = send(server, f"{POST}{length}\r\n\r\n").recv(100)
  assert b" 400 " in answer
  assert capsys.readouterr().err == ""


def test_slow_clients_are_ended_and_do_not_keep_others_waiting(server, monkeypatch, capsys):
  monkeypatch.setattr(web, "_READ_SECONDS", 0.3)
  before = threading.active_count()
  slow = [send(server, f"{POST}1000\r\n\r\nabc") for _ in range(5)] + [
    send(server, "GET / HT") for _ in range(5)
  ]
  assert say(server, body("hi")) == (200, "answer")
  deadline = time.monotonic() + 20
  while threading.active_count() > before and time.monotonic() < deadline:
    time.sleep(0.02)
  assert threading.active_count() <= before
  assert "Traceback" not in capsys.readouterr().err
  assert len(slow) == 10


def test_a_reader_that_stops_reading_loses_its_answer(server, monkeypatch):
  monkeypatch.setattr(web._Handler, "timeout", 0.3)
  content = body("long")
  stalled = send(server, f"{POST}{len(content)}\r\n\r\n{content}")
  assert stalled.recv(10)
  assert say(server, body("hi")) == (200, "answer")


def test_an_error_of_the_model_is_one_line(server, capsys):
  with pytest.raises((http.client.HTTPException, OSError, AssertionError)):
    assert say(server, body("bug"))[1] != ""
  assert capsys.readouterr().err == (
    "warning: a request failed: ZeroDivisionError: ZeroDivisionError\n"
  )


SCRIPT = """
const elements = {}, requests = [];
function element(id) {
  return elements[id] ||= {
    id, dataset: {}, value: "", textContent: "", children: [], listeners: {},
    append(x) { this.children.push(x) }, replaceChildren() { this.children = [] }, scrollIntoView() {}, focus() {},
    addEventListener(name, call) { this.listeners[name] = call },
  };
}
global.document = {getElementById: element, createElement: () => ({scrollIntoView() {}}), title: ""};
global.fetch = async (url, options) => {
  if (url == "/about") return {json: async () => ({name: "n", description: "t", temperature: 0.7, system: null})};
  requests.push(JSON.parse(options.body).messages);
  const encoder = new TextEncoder();
  return {body: new ReadableStream({async start(controller) {
    for (let index = 0; index < 20; index++) {
      if (options.signal.aborted) { controller.error(options.signal.reason); return; }
      controller.enqueue(encoder.encode("word "));
      await new Promise(done => setTimeout(done, 5));
    }
    controller.close();
  }})};
};
PAGE
const wait = milliseconds => new Promise(done => setTimeout(done, milliseconds));
const submit = text => { element("text").value = text; element("form").listeners.submit({preventDefault() {}}); };
(async () => {
  await wait(20);
  submit("first");
  await wait(30);
  element("reset").listeners.click();
  submit("second");
  await wait(300);
  submit("third");
  await wait(20);
  console.log(JSON.stringify(requests.map(messages => messages.map(message => message.role))));
  process.exit(0);
})();
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="no node")
def test_reset_during_an_answer_begins_an_empty_conversation(tmp_path):
  script = re.search(r"<script>(.*)</script>", web.PAGE.read_text(), re.DOTALL)[1]
  (tmp_path / "page.js").write_text(SCRIPT.replace("PAGE", script))
  done = subprocess.run(["node", tmp_path / "page.js"], capture_output=True, text=True, timeout=60)
  assert done.stderr == ""
  assert json.loads(done.stdout) == [
    ["user"],
    ["user"],
    ["user", "assistant", "user"],
  ]

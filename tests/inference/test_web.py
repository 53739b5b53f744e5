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

from t5x_like.data.supervised.chat import Message
from t5x_like.errors import UserError
from t5x_like.inference import web


class Echo:
  """A stand-in for a `Talk`, which repeats the last message in two pieces.

  Attributes:
    calls: the messages and the temperature of each call.
  """

  description = "It repeats."

  def __init__(self):
    self.calls = []

  def __call__(self, messages, temperature):
    self.calls.append((list(messages), temperature))
    text = messages[-1].content
    if text == "bug":
      raise ZeroDivisionError
    if text == "too long":
      raise UserError(text)
    while text == "endless":
      yield "x" * 100_000
    yield text[:1]
    yield text[1:]


@pytest.fixture
def server():
  facts = {"name": "<b>runs</b>", "description": Echo.description, "temperature": 0.7}
  server = web.Server(Echo(), 0, facts | {"system": None})
  threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
  yield server
  server.shutdown()
  server.server_close()


def body(text, **more):
  return json.dumps({"messages": [{"role": "user", "content": text}]} | more)


def request(server, method, path, content=None, **headers):
  """Return (status, text) of the answer to a request."""
  connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
  headers = {"Content-Type": "application/json", **headers}
  connection.request(method, path, content, headers)
  response = connection.getresponse()
  return response.status, response.read().decode()


def say(server, content, **headers):
  return request(server, "POST", "/say", content, **headers)


def send(server, text):
  connection = socket.create_connection(("127.0.0.1", server.server_port), timeout=20)
  connection.sendall(text.replace("HOST", f"localhost:{server.server_port}").encode())
  return connection


def test_a_page_streams_answers_of_the_model(server):
  assert request(server, "GET", "/")[0] == 200
  _, facts = request(server, "GET", "/about")
  assert json.loads(facts)["description"] == "It repeats."
  assert say(server, body("héllo", temperature=0.3)) == (200, "héllo")
  assert server.talk.calls == [([Message("user", "héllo")], 0.3)]
  assert say(server, body("too long"))[1] == "[too long]"


def test_a_page_answers_only_this_machine(server):
  assert say(server, body("hi"), Origin="http://elsewhere.example")[0] == 403
  assert request(server, "GET", "/", Host="elsewhere.example")[0] == 403
  assert say(server, body("hi"), **{"Content-Type": "text/plain"})[0] == 404
  assert server.talk.calls == []


POST = "POST /say HTTP/1.1\r\nHost: HOST\r\nContent-Type: application/json\r\nContent-Length: "


@pytest.mark.parametrize(
  "content",
  [
    "",
    "[]",
    "{}",
    '{"messages": []}',
    '{"messages": [{"role": "root", "content": ""}]}',
    "[" * 9999,
    '{"messages":[{"role":"user","content":"a"}],"temperature":' + "1" * 400 + "}",
    '{"messages":[{"role":"user","content":"a"}],"temperature":' + "1" * 5000 + "}",
    '{"messages":[{"role":"user","content":"a"}],"temperature":NaN}',
    '{"messages":[{"role":"user","content":"\\ud800"}]}',
    '{"messages":[{"role":"user","content":1}]}',
  ],
  ids=range(11),
)
def test_messages_and_numbers_that_cannot_be_are_refused(content, server, capsys):
  assert say(server, content)[0] == 400
  assert server.talk.calls == []
  assert say(server, body("hi")) == (200, "hi")
  assert capsys.readouterr().err == ""


@pytest.mark.parametrize("length", ["9" * 5000, "-1", "٣", "", "1e3"])
def test_lengths_that_cannot_be_are_refused(length, server, capsys):
  answer = send(server, f"{POST}{length}\r\n\r\n").recv(100)
  assert b" 400 " in answer
  assert capsys.readouterr().err == ""


def test_slow_clients_are_ended_and_do_not_keep_others_waiting(server, monkeypatch, capsys):
  monkeypatch.setattr(web, "_READ_SECONDS", 0.3)
  before = threading.active_count()
  slow = [send(server, text) for text in 5 * (f"{POST}1000\r\n\r\nabc", "GET / HT")]
  assert say(server, body("hi")) == (200, "hi")
  deadline = time.monotonic() + 20
  while threading.active_count() > before and time.monotonic() < deadline:
    time.sleep(0.02)
  assert threading.active_count() <= before
  assert "Traceback" not in capsys.readouterr().err
  assert len(slow) == 10


def test_a_reader_that_stops_reading_loses_its_answer(server, monkeypatch):
  monkeypatch.setattr(web._Handler, "timeout", 0.3)
  content = body("endless")
  stalled = send(server, f"{POST}{len(content)}\r\n\r\n{content}")
  assert stalled.recv(10)
  assert say(server, body("hi")) == (200, "hi")


def test_an_error_of_the_model_is_one_line(server, capsys):
  with pytest.raises((http.client.HTTPException, OSError, AssertionError)):
    assert say(server, body("bug"))[1] != ""
  assert capsys.readouterr().err == (
    "warning: a request failed: ZeroDivisionError: ZeroDivisionError\n"
  )


SCRIPT = """
const elements = {}, requests = [], copies = [];
function node() {
  return {
    dataset: {}, value: "", textContent: "", children: [], listeners: {},
    append(x) { this.children.push(x); x.parent = this; }, replaceChildren() { this.children = []; },
    remove() { this.parent.children = this.parent.children.filter(x => x !== this); },
    scrollIntoView() {}, focus() {}, addEventListener(name, call) { this.listeners[name] = call; },
  };
}
const element = id => elements[id] ||= node();
global.document = {getElementById: element, createElement: node, title: ""};
global.matchMedia = () => ({matches: false});
const clipboard = {writeText: async text => { copies.push(text); }};
Object.defineProperty(globalThis, "navigator", {value: {clipboard}, configurable: true});
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
const until = async condition => { while (!condition()) await wait(1); };
const isIdle = () => element("send").textContent === "Send";
const submit = text => { element("text").value = text; element("form").listeners.submit({preventDefault() {}}); };
const actions = () => element("turns").children.filter(turn => turn.className === "actions");
const press = name => {
  const buttons = actions().at(-1).children;
  buttons.find(button => button.textContent === name).listeners.click();
};
(async () => {
  await until(isIdle);
  STEPS
  process.exit(0);
})();
"""
RESET = """
  submit("first");
  await until(() => requests.length === 1);
  element("reset").listeners.click();
  submit("second");
  await until(isIdle);
  submit("third");
  await until(() => requests.length === 3);
  console.log(JSON.stringify(requests.map(messages => messages.map(message => message.role))));
"""
COPY_AND_AGAIN = """
  submit("first");
  await until(isIdle);
  submit("second");
  await until(isIdle);
  press("Copy");
  press("Again");
  await until(isIdle);
  const shown = element("turns").children.filter(turn => /assistant/.test(turn.className));
  console.log(JSON.stringify({
    requests: requests.map(messages => messages.map(message => message.content.trim().slice(0, 6))),
    shown: shown.length,
    buttons: actions().map(action => action.children.map(button => button.textContent)),
    copies: copies.map(text => text === "word ".repeat(20)),
  }));
"""


def run_script(tmp_path, steps):
  """Run the page's script in node with steps of a user, and return what they print."""
  script = re.search(r"<script>(.*)</script>", web.PAGE.read_text(), re.DOTALL)[1]
  (tmp_path / "page.js").write_text(SCRIPT.replace("PAGE", script).replace("STEPS", steps))
  done = subprocess.run(["node", tmp_path / "page.js"], capture_output=True, text=True, timeout=60)
  assert done.stderr == ""
  return json.loads(done.stdout)


@pytest.mark.skipif(shutil.which("node") is None, reason="no node")
def test_reset_during_an_answer_begins_an_empty_conversation(tmp_path):
  assert run_script(tmp_path, RESET) == [
    ["user"],
    ["user"],
    ["user", "assistant", "user"],
  ]


@pytest.mark.skipif(shutil.which("node") is None, reason="no node")
def test_an_answer_can_be_copied_and_the_last_one_replaced(tmp_path):
  results = run_script(tmp_path, COPY_AND_AGAIN)
  second = ["first", "word w", "second"]
  assert results["requests"] == [["first"], second, second]
  assert results["shown"] == 2
  assert results["buttons"] == [["Copy"], ["Copy", "Again"]]
  assert results["copies"] == [True]


CHROMIUM = (
  shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium; on Debian: apt-get install chromium")
def test_a_browser_shows_messages_and_answers_as_text(server, tmp_path, monkeypatch):
  """The page sends a message by itself; the message and its answer are never shown as HTML."""
  page = web.PAGE.read_text()
  script = (
    "document.getElementById('text').value='<i>hi</i>'; document.getElementById('send').click();"
  )
  page = page.replace("    reset();\n  });", f"    reset();\n    {script}\n  }});")
  scripted_page = tmp_path / "chat.html"
  scripted_page.write_text(page)
  monkeypatch.setattr(web, "PAGE", scripted_page)
  command = [
    CHROMIUM,
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--virtual-time-budget=8000",
    "--dump-dom",
    f"http://localhost:{server.server_port}/",
  ]
  dom = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
  assert '<div class="turn user">&lt;i&gt;hi&lt;/i&gt;</div>' in dom
  assert '<div class="turn assistant">&lt;i&gt;hi&lt;/i&gt;</div>' in dom
  assert "&lt;b&gt;runs&lt;/b&gt;</b>" in dom

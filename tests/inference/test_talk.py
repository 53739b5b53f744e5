"""Talking with a model: streamed answers are those of `predict`, in a terminal and in a page."""

import http.client
import io
import json
import re
import shutil
import subprocess
import threading

import jax
import pytest

import published_models
from t5x_like import chat, predict, train
from t5x_like.data.supervised.chat import Message
from t5x_like.inference import terminal, web
from t5x_like.library import model as saved_model
from t5x_like.training import saved_model as saved

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled")]
KINDS = {"decoder": "tests/recipes/nano_decoder.py", "encoder": "tests/recipes/nano_encoder.py"}
FLAGS = (
  "--config.total_steps=2",
  "--config.eval_every=2",
  "--config.checkpoint.every=2",
  "--config.evals.loss={}",
)
TEXT = {
  "t5": "Returns the <extra_id_0> of the array.",
  "decoder": "Returns the sum",
  "encoder": "Returns the [MASK].",
}


@pytest.fixture(scope="module")
def workdirs(trained, tmp_path_factory):
  made = {"t5": trained}
  for kind, recipe in KINDS.items():
    made[kind] = tmp_path_factory.mktemp("talk") / kind
    assert train.main([f"--config={recipe}", f"--workdir={made[kind]}", *FLAGS]) == 0
  return made


def opened(workdir, *flags):
  """The `Talk` of a workdir, as the command opens it."""
  held = []
  real = terminal.run
  try:
    terminal.run = lambda talk, *rest: held.append(talk)
    assert chat.main([f"--workdir={workdir}", *flags]) == 0
  finally:
    terminal.run = real
  return held[0]


@pytest.fixture(scope="module")
def talks(workdirs):
  new = "--max_new_tokens=6"
  return {kind: opened(workdir, *[new] * (kind != "encoder")) for kind, workdir in workdirs.items()}


@pytest.mark.parametrize("kind", TEXT)
def test_without_temperature_it_says_what_predict_says(kind, talks, workdirs, tmp_path):
  (tmp_path / "in.txt").write_text(TEXT[kind] + "\n")
  flags = [] if kind == "encoder" else ["--max_new_tokens=6"]
  files = [f"--input={tmp_path}/in.txt", f"--output={tmp_path}/out.jsonl"]
  assert predict.main([f"--workdir={workdirs[kind]}", *files, *flags]) == 0
  answer = json.loads((tmp_path / "out.jsonl").read_text())
  said = "".join(talks[kind]([Message("user", TEXT[kind])], 0.0))
  expected = answer["filled"] if kind in ("t5", "encoder") else answer["prediction"]
  assert said.startswith(expected) if kind == "encoder" else said == expected


def test_penalties_and_strings_that_end_an_answer_are_those_of_predict(workdirs, tmp_path):
  model = saved_model.load(str(workdirs["decoder"]))
  text = TEXT["decoder"]
  options = {"max_new_tokens": 12, "no_repeat_ngram_size": 1, "repetition_penalty": 1.3}
  whole = model.generate(text, **options)
  first = whole[0]
  stop = re.findall("[!-~]", whole)[2]
  assert first not in model.generate(text, **options, banned_words=[first, "?"])
  (tmp_path / "in.txt").write_text(text + "\n")
  flags = [
    *(f"--{name}={value}" for name, value in options.items()),
    "--stop=?never?",
    f"--stop={stop}",
  ]
  files = [f"--input={tmp_path}/in.txt", f"--output={tmp_path}/out.jsonl"]
  assert predict.main([f"--workdir={workdirs['decoder']}", *files, *flags]) == 0
  ended = json.loads((tmp_path / "out.jsonl").read_text())["prediction"]
  assert ended == whole[: whole.find(stop)] != whole
  assert "".join(opened(workdirs["decoder"], *flags)([Message("user", text)], 0.0)) == ended


@pytest.mark.parametrize("kind", ["t5", "decoder"])
def test_a_second_prompt_compiles_nothing_and_draws_anew(kind, talks, caplog):
  talk = talks[kind]
  short = [Message("user", "The")]
  long = [Message("user", "The array of sums")]
  list(talk(short, 1.0))
  with jax.log_compiles():
    answers = {"".join(talk(messages, 3.0)) for messages in (short, short, short, long)}
  assert len(answers) > 1
  assert not [record for record in caplog.records if "Compiling" in record.getMessage()]


def test_the_same_seed_draws_the_same(workdirs):
  first, second = (opened(workdirs["decoder"], "--max_new_tokens=6", "--seed=3") for _ in range(2))
  messages = [Message("user", "Returns")]
  assert [*first(messages, 2.0)] == [*second(messages, 2.0)]


@pytest.mark.parametrize(
  "flags, words",
  [
    (["--temperature=-1"], "--temperature=-1"),
    (["--top_p=2"], "--top_p=2"),
    (["--context=1000000"], "--context=1000000"),
    (["--web=70000"], "expected a port"),
    (["--config=tests/recipes/nano.py"], "--config"),
    (["--template=no"], "template"),
  ],
)
def test_bad_flags_get_one_line(flags, words, workdirs, capsys):
  assert chat.main([f"--workdir={workdirs['decoder']}", *flags]) == 2
  error = capsys.readouterr().err.strip().splitlines()[-1]
  assert words in error


@pytest.fixture(scope="module")
def instruct(tmp_path_factory):
  """A published decoder with a chat template."""
  folder = published_models.write(tmp_path_factory.mktemp("talk") / "instruct", "gpt2")
  template = (
    "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + eos_token }}{% endfor %}assistant:"
  )
  config = {"chat_template": template, "eos_token": "<|endoftext|>"}
  (folder / "tokenizer_config.json").write_text(json.dumps(config))
  return folder


def test_a_published_model_talks_by_its_own_template(instruct, capsys):
  model = saved_model.open_model(str(instruct), None, (), None, 1)
  messages = [Message("user", "Hi")]
  talk = model.talk(template=None, context=32, seed=0, max_new_tokens=2)
  assert talk._conversation(messages) == model.vocabulary.encode("user: Hi<|endoftext|>assistant:")
  assert talk.description == "It answers you by the model's own chat template."
  named = model.talk(template="plain", context=32, seed=0, max_new_tokens=2)
  assert named.description == "It answers you by the chat template 'plain'."
  assert model.talk(template="none", context=32, seed=0, max_new_tokens=2).description == (
    "It continues your text."
  )
  terminal.run(talk, 0.0, None, io.StringIO("/quit\n"), io.StringIO())
  assert capsys.readouterr().err == f"{talk.description}\n"


def test_predict_answers_conversations_and_continues_texts(instruct, tmp_path, capsys):
  (tmp_path / "in.jsonl").write_text(
    json.dumps({"messages": [{"role": "user", "content": "Hi"}]}) + "\n"
  )
  flags = [f"--workdir={instruct}", f"--input={tmp_path}/in.jsonl", "--max_new_tokens=2"]
  assert predict.main([*flags, f"--output={tmp_path}/out.jsonl"]) == 0
  assert "answers by the model's own chat template" in capsys.readouterr().out
  (row,) = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
  assert row["input"] == [{"role": "user", "content": "Hi"}] and isinstance(row["prediction"], str)
  assert predict.main([*flags, f"--output={tmp_path}/out.jsonl", "--template=none"]) == 2
  assert "found a conversation, but the model has no chat template" in capsys.readouterr().err
  (tmp_path / "in.txt").write_text("user: Hi<|endoftext|>assistant:\n")
  flags[1] = f"--input={tmp_path}/in.txt"
  assert predict.main([*flags, f"--output={tmp_path}/raw.jsonl"]) == 0
  assert "--template=published" in capsys.readouterr().out
  assert json.loads((tmp_path / "raw.jsonl").read_text())["prediction"].strip() == row["prediction"]


class Echo:
  """Stands for a model: it repeats its last message, in two pieces."""

  description = "It repeats."

  def __init__(self):
    self.heard = []

  def __call__(self, messages, temperature):
    self.heard.append(([*messages], temperature))
    text = messages[-1].content
    if text == "long":
      raise saved.UserError("too long")
    yield text[:1]
    yield text[1:]


def test_a_terminal_keeps_the_conversation():
  echo = Echo()
  out = io.StringIO()
  lines = (
    "one\n/temperature 0.5\ntwo\nlong\n/temperature hot\n/reset\nthree\n/system Be "
    "kind.\nfour\n/no\n\n/quit\nnever\n"
  )
  terminal.run(echo, 0.0, None, io.StringIO(lines), out)
  said = out.getvalue().splitlines()
  assert (
    said[:3] == ["one", "two", "error: too long"]
    and said[-2] == "four"
    and ("/no: no such command") in said[-1]
  )
  assert [(len(messages), temperature) for messages, temperature in echo.heard] == [
    (1, 0.0),
    (3, 0.5),
    (5, 0.5),
    (1, 0.5),
    (2, 0.5),
  ]
  assert echo.heard[-1][0] == [Message("system", "Be kind."), Message("user", "four")]


@pytest.fixture
def server():
  made = web.Server(
    Echo(),
    0,
    {"name": "<b>runs</b>", "description": "It repeats.", "temperature": 0.7, "system": None},
  )
  thread = threading.Thread(target=made.serve_forever, daemon=True)
  thread.start()
  yield made
  made.shutdown()
  made.server_close()


def asked(server, method, path, body=None, **headers):
  connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
  connection.request(method, path, body, {"Content-Type": "application/json", **headers})
  response = connection.getresponse()
  return response.status, response.read().decode()


def test_a_page_streams_answers_on_this_machine_alone(server):
  assert (
    asked(server, "GET", "/")[0] == 200
    and json.loads(asked(server, "GET", "/about")[1])["description"] == "It repeats."
  )
  body = json.dumps({"messages": [{"role": "user", "content": "héllo"}], "temperature": 0.3})
  assert asked(server, "POST", "/say", body) == (200, "héllo")
  assert server.talk.heard == [([Message("user", "héllo")], 0.3)]
  assert (
    asked(server, "POST", "/say", json.dumps({"messages": [{"role": "user", "content": "long"}]}))[
      1
    ]
    == "[too long]"
  )
  assert asked(server, "POST", "/say", body, Origin="http://elsewhere.example")[0] == 403
  assert asked(server, "GET", "/", Host="elsewhere.example")[0] == 403
  assert asked(server, "POST", "/say", body, **{"Content-Type": "text/plain"})[0] == 404
  for bad in (
    "",
    "[]",
    "{}",
    '{"messages": []}',
    '{"messages": [{"role": "root", "content": ""}]}',
    "[" * 9999,
  ):
    assert asked(server, "POST", "/say", bad)[0] == 400, bad
  assert len(server.talk.heard) == 2


CHROMIUM = next(
  filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium; on Debian: apt-get install chromium")
def test_a_browser_shows_an_answer(server, tmp_path):
  """The page itself, in a browser: a message is sent and its answer shown as text, never as
  HTML."""
  driver = f"http://localhost:{server.server_port}/"
  script = (
    "document.getElementById('text').value='<i>hi</i>';document.getElementById('send').click()"
  )
  page = web.PAGE.read_text().replace(
    "    reset();\n  });", "    reset();\n    " + script + ";\n  });"
  )
  shown = tmp_path / "chat.html"
  shown.write_text(page)
  before = web.PAGE
  web.PAGE = shown
  try:
    command = [
      CHROMIUM,
      "--headless",
      "--no-sandbox",
      "--disable-gpu",
      "--virtual-time-budget=8000",
      "--dump-dom",
    ]
    done = subprocess.run([*command, driver], capture_output=True, text=True, timeout=120)
  finally:
    web.PAGE = before
  assert '<div class="turn user">&lt;i&gt;hi&lt;/i&gt;</div>' in done.stdout
  assert '<div class="turn assistant">&lt;i&gt;hi&lt;/i&gt;</div>' in done.stdout
  assert "&lt;b&gt;runs&lt;/b&gt;</b>" in done.stdout

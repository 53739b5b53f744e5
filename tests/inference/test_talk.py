"""Conversations with a model in a terminal; streamed answers equal `predict`'s."""

import io
import json
import re

import jax
import pytest

import published_models
from t5x_like import chat, predict, train
from t5x_like.data.supervised.chat import Message
from t5x_like.errors import UserError
from t5x_like.inference import terminal
from t5x_like.library import model as saved_model

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled")]
RECIPES = {"decoder": "tests/recipes/nano_decoder.py", "encoder": "tests/recipes/nano_encoder.py"}
FLAGS = (
  "--config.total_steps=2",
  "--config.eval_every=2",
  "--config.checkpoint.every=2",
  "--config.evals.loss={}",
)
TEXTS = {
  "t5": "Returns the <extra_id_0> of the array.",
  "decoder": "Returns the sum",
  "encoder": "Returns the [MASK].",
}


@pytest.fixture(scope="module")
def workdirs(trained, tmp_path_factory):
  workdirs = {"t5": trained}
  for kind, recipe in RECIPES.items():
    workdirs[kind] = tmp_path_factory.mktemp("talk") / kind
    assert train.main([f"--config={recipe}", f"--workdir={workdirs[kind]}", *FLAGS]) == 0
  return workdirs


def open_talk(workdir, *flags):
  """Return the `Talk` that the `chat` command opens for a workdir."""
  talks = []
  with pytest.MonkeyPatch.context() as patched:
    patched.setattr(terminal, "run", lambda talk, *arguments: talks.append(talk))
    assert chat.main([f"--workdir={workdir}", *flags]) == 0
  return talks[0]


def ask(talk, text, temperature=0.0):
  """Return the whole answer to one message."""
  return "".join(talk([Message("user", text)], temperature))


def predict_line(workdir, text, folder, flags):
  """Return the row that `predict` writes for one line of text."""
  (folder / "in.txt").write_text(text + "\n")
  files = [f"--input={folder}/in.txt", f"--output={folder}/out.jsonl"]
  assert predict.main([f"--workdir={workdir}", *files, *flags]) == 0
  return json.loads((folder / "out.jsonl").read_text())


def length_flags(kind):
  return [] if kind == "encoder" else ["--max_new_tokens=6"]


@pytest.fixture(scope="module")
def talks(workdirs):
  return {kind: open_talk(workdir, *length_flags(kind)) for kind, workdir in workdirs.items()}


@pytest.mark.parametrize("kind", TEXTS)
def test_without_temperature_it_answers_as_predict(kind, talks, workdirs, tmp_path):
  row = predict_line(workdirs[kind], TEXTS[kind], tmp_path, length_flags(kind))
  answer = ask(talks[kind], TEXTS[kind])
  if kind == "encoder":
    assert answer.startswith(row["filled"])
  elif kind == "t5":
    assert answer == row["filled"]
  else:
    assert answer == row["prediction"]


def test_penalties_and_stop_strings_act_as_in_predict(workdirs, tmp_path):
  model = saved_model.load(str(workdirs["decoder"]))
  text = TEXTS["decoder"]
  options = {"max_new_tokens": 12, "no_repeat_ngram_size": 1, "repetition_penalty": 1.3}
  unstopped = model.generate(text, **options)
  first = unstopped[0]
  stop = re.findall("[!-~]", unstopped)[2]
  assert first not in model.generate(text, **options, banned_words=[first, "?"])
  flags = [f"--{name}={value}" for name, value in options.items()]
  flags += ["--stop=?never?", f"--stop={stop}"]
  stopped = predict_line(workdirs["decoder"], text, tmp_path, flags)["prediction"]
  assert stopped == unstopped[: unstopped.find(stop)]
  assert stopped != unstopped
  assert ask(open_talk(workdirs["decoder"], *flags), text) == stopped


@pytest.mark.parametrize("kind", ["t5", "decoder"])
def test_a_second_prompt_compiles_nothing_and_has_new_randomness(kind, talks, caplog):
  talk = talks[kind]
  short = [Message("user", "The")]
  long = [Message("user", "The array of sums")]
  list(talk(short, 1.0))
  with jax.log_compiles():
    answers = {"".join(talk(messages, 3.0)) for messages in (short, short, short, long)}
  assert len(answers) > 1
  assert not [record for record in caplog.records if "Compiling" in record.getMessage()]


def test_the_same_seed_samples_the_same_answer(workdirs):
  answers = []
  for _ in range(2):
    talk = open_talk(workdirs["decoder"], "--max_new_tokens=6", "--seed=3")
    answers.append(list(talk([Message("user", "Returns")], 2.0)))
  assert answers[0] == answers[1]


@pytest.mark.parametrize(
  "flags, expected_words",
  [
    (["--temperature=-1"], "--temperature=-1"),
    (["--top_p=2"], "--top_p=2"),
    (["--context=1000000"], "--context=1000000"),
    (["--web=70000"], "expected a port"),
    (["--config=tests/recipes/nano.py"], "--config"),
    (["--template=no"], "template"),
  ],
)
def test_bad_flags_are_errors_of_one_line(flags, expected_words, workdirs, capsys):
  assert chat.main([f"--workdir={workdirs['decoder']}", *flags]) == 2
  error = capsys.readouterr().err.strip().splitlines()[-1]
  assert expected_words in error


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
  lines = (tmp_path / "out.jsonl").read_text().splitlines()
  assert len(lines) == 1
  row = json.loads(lines[0])
  assert row["input"] == [{"role": "user", "content": "Hi"}]
  assert isinstance(row["prediction"], str)
  assert predict.main([*flags, f"--output={tmp_path}/out.jsonl", "--template=none"]) == 2
  assert "found a conversation, but the model has no chat template" in capsys.readouterr().err
  (tmp_path / "in.txt").write_text("user: Hi<|endoftext|>assistant:\n")
  flags = [f"--workdir={instruct}", f"--input={tmp_path}/in.txt", "--max_new_tokens=2"]
  assert predict.main([*flags, f"--output={tmp_path}/raw.jsonl"]) == 0
  assert "--template=published" in capsys.readouterr().out
  assert json.loads((tmp_path / "raw.jsonl").read_text())["prediction"].strip() == row["prediction"]


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
    if text == "long":
      raise UserError("too long")
    yield text[:1]
    yield text[1:]


def test_a_terminal_keeps_the_conversation():
  echo = Echo()
  out = io.StringIO()
  lines = (
    "one",
    "/temperature 0.5",
    "two",
    "long",
    "/temperature hot",
    "/reset",
    "three",
    "/system Be kind.",
    "four",
    "/no",
    "",
    "/quit",
    "never",
  )
  terminal.run(echo, 0.0, None, io.StringIO("\n".join(lines) + "\n"), out)
  printed = out.getvalue().splitlines()
  assert printed[:3] == ["one", "two", "error: too long"]
  assert printed[-2] == "four"
  assert "/no: no such command" in printed[-1]
  assert [(len(messages), temperature) for messages, temperature in echo.calls] == [
    (1, 0.0),
    (3, 0.5),
    (5, 0.5),
    (1, 0.5),
    (2, 0.5),
  ]
  assert echo.calls[-1][0] == [Message("system", "Be kind."), Message("user", "four")]

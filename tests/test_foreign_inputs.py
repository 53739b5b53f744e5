"""Runs, models and data of another author cannot make a command reach anything else.

A case ends in exit code 2 and one line, or, where a command does not use the key, in success. In no
case is a file outside the named directories read or written, a request sent, a program started or a
module imported. `Sentinels` are the files that must not be read; they record such events.
"""

import io
import json
import multiprocessing
import pathlib
import shutil

import pytest

import published
from refusals import refuses
from t5x_like import chat, evaluate, predict, train, trust, vocabularies
from t5x_like.corpora.sources import hf, open_source
from t5x_like.errors import UserError, handle_errors
from t5x_like.files.paths import as_path
from t5x_like.library import model as library
from t5x_like.saved_model.workdir import read_identity
from t5x_like.training import workdir as workdirs
from tests import topics
from tests.fuzz.harness import Sandbox
from tests.fuzz.sentinels import MODULE, Sentinels
from tests.interop import test_gguf
from tests.recipes import nano
from tools import convert_hf, few_shot, prepare_data

NANO = f"--config={nano.__file__}"
FUNCTION = f"{MODULE}:function"
ATTACK = "subprocess:getoutput"
PROGRAM = {"name": ATTACK, "cmd": "touch PWNED"}


@pytest.fixture
def sentinels(tmp_path) -> Sentinels:
  trust.begin_command(())
  return Sentinels(tmp_path / "elsewhere")


@pytest.fixture
def check(tmp_path, sentinels, monkeypatch, compiled):
  """Return a function that runs a command and checks that it causes no forbidden event.

  Its arguments are the command, a function of the only directory where it may write, and the
  permitted ends ("refusal" by default). It returns the line of a refusal.
  """
  (tmp_path / "here").mkdir()
  monkeypatch.chdir(tmp_path / "here")
  sandbox = Sandbox(tmp_path / "sandbox", seconds=60, allowed_folder=compiled)

  def run(command, *permitted_ends: str) -> str:
    with sentinels.watching() as events:
      outcome = sandbox.run("a case", command)
    assert not events, (events, outcome)
    assert outcome.end in (permitted_ends or ("refusal",)), outcome
    assert outcome.end == "success" or outcome.message.startswith("error: "), outcome
    return outcome.message

  return run


def copy_foreign_run(trained: pathlib.Path, folder: pathlib.Path, changes: dict) -> pathlib.Path:
  """Copy a run without its signature, with other values at dotted keys of its config."""
  copy = folder / "foreign"
  shutil.copytree(
    trained, copy, ignore=shutil.ignore_patterns("compiled", "*.tfevents*", "report.html")
  )
  config = json.loads((copy / "config.json").read_text())
  config.pop(trust.SIGNATURE, None)
  for key, value in changes.items():
    *parents, last = key.split(".")
    node = config
    for part in parents:
      node = node.setdefault(part, {})
    node[last] = value
  (copy / "config.json").write_text(json.dumps(config))
  return copy


def fill_elsewhere(value, folder: pathlib.Path):
  """Return a value with ELSEWHERE in its strings replaced by the directory of the sentinels."""
  return json.loads(json.dumps(value).replace("ELSEWHERE", str(folder)))


TEXT_TASK = {
  "name": "text_to_text",
  "inputs": "{text}",
  "targets": "{text}",
  "inputs_length": 32,
  "targets_length": 8,
}
CORPUS_TASK = {"name": "span_corruption", "vocabulary": "bytes", "inputs_length": 32}
ADDRESSES = (
  "gs://bucket/loot",
  "s3://bucket/loot",
  "http://127.0.0.1/loot",
  "reference://x::file://ELSEWHERE/references.json",
  "zip://x::ELSEWHERE/secret.txt",
  "simplecache::http://127.0.0.1/loot",
  "sftp://127.0.0.1/loot",
  "hdfs://127.0.0.1/loot",
  "FILE://ELSEWHERE/tokens",
  "file://ELSEWHERE/tokens",
)
STORES = (*ADDRESSES, "ELSEWHERE/tokens", "../elsewhere/tokens")
SOURCES = (
  "lines:ELSEWHERE/secret.txt",
  "lines:../elsewhere/secret.txt",
  "lines:train=ELSEWHERE/secret.txt,validation=ELSEWHERE/secret.txt",
  "held_out:2@lines:ELSEWHERE/secret.txt",
  "cloze:text:ELSEWHERE/*.txt",
  "t5:wnli:jsonl:ELSEWHERE/rows.jsonl",
  f"seqio:{FUNCTION}@jsonl:ELSEWHERE/rows.jsonl",
  f"salient:{FUNCTION}@text:ELSEWHERE/secret.txt",
  "salient:ELSEWHERE/rows.jsonl@builtin",
  "salient:subprocess:getoutput@text:ELSEWHERE/secret.txt",
  "jsonl:http://127.0.0.1/rows.jsonl",
  "jsonl:reference://x::file://ELSEWHERE/references.json",
  "hf:ELSEWHERE",
  "hf:owner/name",
  "tfds:mnist",
  "folders:ELSEWHERE",
  "docstrings",
)
# By name: keys of config.json and their values. Every command must refuse or ignore them.
STORE_CONFIGS = {f"store {address}": {"task.store": address} for address in STORES}
SOURCE_CONFIGS = {
  f"source {source}": {"task": CORPUS_TASK | {"source": source, "validation_fraction": 0.5}}
  for source in SOURCES
}
CONFIGS = {
  **STORE_CONFIGS,
  **SOURCE_CONFIGS,
  "texts": {"task": TEXT_TASK | {"source": "jsonl:ELSEWHERE/rows.jsonl", "vocabulary": "bytes"}},
  "cache": {
    "task": CORPUS_TASK | {"source": "builtin", "cache": "gs://bucket/loot", "store": None}
  },
  "cache here": {
    "task": CORPUS_TASK | {"source": "builtin", "cache": "ELSEWHERE/cache", "store": None}
  },
  "data_dir": {"task": CORPUS_TASK | {"source": "builtin", "data_dir": "ELSEWHERE", "store": None}},
  "vocabulary": {
    "task": CORPUS_TASK | {"source": "builtin", "vocabulary": "ELSEWHERE/vocabulary", "store": None}
  },
  "vocabulary at an address": {
    "task": CORPUS_TASK | {"source": "builtin", "vocabulary": "gs://bucket/v", "store": None}
  },
  "mixture": {
    "task": {
      "name": "mixture",
      "parts": {"a": CORPUS_TASK | {"source": "lines:ELSEWHERE/secret.txt"}},
    }
  },
  "shared": {
    "task": {
      "name": "mixture",
      "parts": {"a": CORPUS_TASK},
      "shared": {"source": "lines:ELSEWHERE/secret.txt"},
    }
  },
  "evals": {"evals.loss.task": CORPUS_TASK | {"source": "lines:ELSEWHERE/secret.txt"}},
  "evals' store": {"evals.loss.task": {"store": "ELSEWHERE/tokens"}},
  "an evaluator's files": {"evals.loss": {"name": "questions", "files": ["ELSEWHERE/*.jsonl"]}},
  "a store's vocabulary": {"model.vocab_size": "auto", "task.store": "ELSEWHERE/tokens"},
  "a split elsewhere": {"model.vocab_size": "auto", "train_split": "../elsewhere/tokens"},
  "a phase": {"phases.first": {"until": 2, "task": {"store": "ELSEWHERE/tokens"}}},
  "images": {
    "task": {"name": "image_classification", "source": "folders:ELSEWHERE", "resolution": 8}
  },
  "passages": {
    "task": {"name": "open_qa", "passages": "jsonl:ELSEWHERE/rows.jsonl", "source": "builtin"}
  },
  "init": {"init": {"workdir": "ELSEWHERE", "inherit": True}},
  "init of the Hub": {"init": {"workdir": "owner/name", "inherit": True}},
  "teacher": {"teacher": {"workdir": "gs://bucket/teacher"}, "objective": {"name": "distillation"}},
  "directory": {"directory": "reference://x::file://ELSEWHERE/references.json"},
  "directory here": {"directory": "ELSEWHERE/vocabulary"},
  "a function": {"objective.name": FUNCTION},
  "a program": {"objective": PROGRAM},
}
UNUSED_BY_EVALUATE = ("directory", "directory here", "a phase")


@pytest.mark.runs
@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize("case", [name for name in CONFIGS if name not in UNUSED_BY_EVALUATE])
def test_evaluate_reaches_nothing_that_a_saved_config_names(
  case, trained, tmp_path, sentinels, check
):
  workdir = copy_foreign_run(trained, tmp_path, fill_elsewhere(CONFIGS[case], sentinels.folder))
  paths_before = set(workdir.rglob("*"))
  line = check(lambda folder: evaluate.main([f"--workdir={workdir}"]))
  assert "Traceback" not in line
  assert set(workdir.rglob("*")) == paths_before, "files were written or removed"


# By name: keys of config.json that name a function, and their values.
FUNCTIONS = {
  "objective": {"objective": PROGRAM},
  "model": {"model": PROGRAM},
  "evaluator": {"evals.loss": PROGRAM},
  "preprocessor": {"task.preprocessors": ATTACK},
  "preprocessors": {"task.preprocessors": [ATTACK]},
  "task": {"task": PROGRAM},
  "task of a mixture": {"task": {"name": "mixture", "parts": {"a": PROGRAM}}},
  "sentence rule": {"task": {"name": "mlm", "store": "builtin", "sentence_rule": ATTACK}},
  "spans": {"task": TEXT_TASK | {"source": f"salient:{ATTACK}@builtin"}},
  "source": {"task.source": ATTACK, "task.store": None, "task.vocabulary": "bytes"},
  "evaluator's task": {"evals.loss.task": PROGRAM},
  "evaluator's preprocessors": {"evals.loss.task": {"preprocessors": [ATTACK]}},
}


@pytest.mark.runs
@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize("slot", FUNCTIONS)
def test_evaluate_calls_no_function_that_a_saved_config_names(slot, trained, tmp_path, check):
  workdir = copy_foreign_run(trained, tmp_path, FUNCTIONS[slot])
  assert ATTACK in check(lambda folder: evaluate.main([f"--workdir={workdir}"]))


IMAGE_MODEL = (
  '--config.model={"name": "deit", "variant": "deit-tiny"}',
  '--config.task={"name": "image_classification", "source": "digits", "resolution": 8}',
  "--config.objective.name=distillation",
)


@pytest.mark.runs
@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize(
  "slot, flags, key",
  [("init", (), "config.model.name"), ("teacher", IMAGE_MODEL, "config.teacher.model.name")],
)
def test_a_run_that_starts_or_learns_from_another_calls_no_function_of_it(
  slot, flags, key, trained, tmp_path, check
):
  workdir = copy_foreign_run(trained, tmp_path, FUNCTIONS["model"])
  other_run = f'--config.{slot}={{"workdir": "{workdir}"}}'
  line = check(lambda folder: train.main([NANO, f"--workdir={folder}/run", other_run, *flags]))
  assert key in line
  assert ATTACK in line


@pytest.mark.runs
@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize(
  "name", ["evaluations", "data", "vocabulary", "data/train/tokens", "checkpoints/4", "data/a/b"]
)
def test_a_link_in_a_foreign_workdir_leads_nowhere(name, trained, tmp_path, sentinels, check):
  workdir = copy_foreign_run(trained, tmp_path, {})
  if (workdir / name).exists():
    shutil.rmtree(workdir / name)
  (workdir / name).parent.mkdir(parents=True, exist_ok=True)
  (workdir / name).symlink_to(sentinels.folder)
  line = check(lambda folder: evaluate.main([f"--workdir={workdir}"]))
  assert f"{workdir}/{name}: found a link to " in line


def score_a_line(workdir: pathlib.Path) -> None:
  library.load(str(workdir)).score(["a line"], ["a"])


# By name: a command and its flags, of a workdir {0} and the directory {1} where it may write.
COMMANDS = {
  "predict": (
    predict.main,
    ("--workdir={0}", "--input={0}/in.txt", "--output={1}/out", "--max_new_tokens=1"),
  ),
  "chat": (chat.main, ("--workdir={0}", "--max_new_tokens=1")),
  "export": (convert_hf.main, ("--input={0}", "--output={1}/hf")),
  "few_shot": (few_shot.main, ("--workdir={0}", "--input={0}/questions.jsonl")),
  "suite": (
    evaluate.main,
    ("--workdir={0}", "--output={1}/suite", "--suite={0}/tasks.toml", "--epochs=1"),
  ),
  "init": (
    train.main,
    (NANO, "--workdir={1}/run", "--config.init.workdir={0}", "--config.model.dropout=oops"),
  ),
  "python": (lambda flags: handle_errors(score_a_line)(flags[0]), ("{0}",)),
}


@pytest.mark.runs
@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
  "case", ["directory", "store gs://bucket/loot", "init of the Hub", "a program"]
)
def test_other_commands_reach_nothing_that_a_saved_config_names(
  case, command, trained, tmp_path, sentinels, check, monkeypatch
):
  workdir = copy_foreign_run(trained, tmp_path, fill_elsewhere(CONFIGS[case], sentinels.folder))
  (workdir / "in.txt").write_text("a line\n")
  (workdir / "questions.jsonl").write_text('{"context": "a", "continuation": "b"}\n')
  (workdir / "tasks.toml").write_text(
    f'[a]\nform = "labelled"\nsource = "jsonl:{sentinels.folder}/rows.jsonl"\ntext = '
    f'"{{text}}"\nlength = 8\n'
  )
  monkeypatch.setattr("sys.stdin", io.StringIO("/quit\n"))
  main, flags = COMMANDS[command]
  check(lambda folder: main([flag.format(workdir, folder) for flag in flags]), "refusal", "success")


def write_model_directory(folder: pathlib.Path) -> pathlib.Path:
  """Write a small published T5 with its tokenizer; return the directory."""
  published.write(folder, "t5")
  (folder / "tokenizer_config.json").write_text(
    '{"tokenizer_class": "T5Tokenizer", "extra_ids": 100}'
  )
  return folder


def link_a_file(folder: pathlib.Path, secret: pathlib.Path) -> None:
  (folder / "special_tokens_map.json").symlink_to(secret)


def add_a_multiplying_normalizer(folder: pathlib.Path, secret: pathlib.Path) -> None:
  model = {
    "type": "WordLevel",
    "vocab": {"[PAD]": 0, "</s>": 1, "[UNK]": 2, "a": 3},
    "unk_token": "[UNK]",
  }
  replace = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
  tokenizer = {"version": "1.0", "added_tokens": [], "model": model}
  tokenizer["normalizer"] = {"type": "Sequence", "normalizers": [replace] * 3}
  (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
  (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')


def name_a_class(folder: pathlib.Path, secret: pathlib.Path) -> None:
  config = {"auto_map": {"AutoTokenizer": f"{MODULE}.function"}, "tokenizer_class": "Other"}
  (folder / "tokenizer_config.json").write_text(json.dumps(config))


def link_a_device(folder: pathlib.Path, secret: pathlib.Path) -> None:
  (folder / "spiece.model").unlink()
  (folder / "spiece.model").symlink_to("/dev/zero")


@pytest.mark.parametrize(
  "change", [link_a_file, add_a_multiplying_normalizer, name_a_class, link_a_device]
)
def test_a_tokenizers_directory_reaches_nothing(change, tmp_path, sentinels, check):
  directory = write_model_directory(tmp_path / "model")
  assert vocabularies.load(str(directory)).encode("a") is not None
  change(directory, sentinels.folder / "secret.txt")
  (tmp_path / "here.txt").write_text("a line\n")
  flags = [f"--source=lines:{tmp_path}/here.txt", f"--vocabulary={directory}"]
  check(lambda folder: prepare_data.main([*flags, f"--output={folder}/store"]))


TEMPLATE_ATTACKS = (
  "{{ cycler.__init__.__globals__.os.popen('touch PWNED').read() }}",
  "{% include 'ELSEWHERE/secret.txt' %}",
  "{% for i in range(10**12) %}{% for j in range(10**12) %}{% endfor %}{% endfor %}",
)


@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize("attack", TEMPLATE_ATTACKS)
def test_the_chat_template_of_a_gguf_file_reaches_nothing(
  attack, tmp_path, sentinels, compiled, monkeypatch
):
  """The only program that starts is the one that renders templates, without files."""
  pytest.importorskip("gguf")
  directory = test_gguf.write_llama(tmp_path / "model")
  config = json.loads((directory / "tokenizer_config.json").read_text())
  config["chat_template"] = fill_elsewhere(attack, sentinels.folder)
  (directory / "tokenizer_config.json").write_text(json.dumps(config))
  path = tmp_path / "model.gguf"
  library.load(str(directory)).save_gguf(str(path))
  monkeypatch.setattr("sys.stdin", io.StringIO("hello\n/quit\n"))
  flags = [f"--workdir={path}", "--max_new_tokens=1"]
  sandbox = Sandbox(tmp_path / "sandbox", seconds=60, allowed_folder=compiled)
  with sentinels.watching() as events:
    outcome = sandbox.run("a case", lambda folder: chat.main(flags))
  assert all("template_program.py" in event for event in events), events
  assert outcome.end == "refusal", outcome
  assert outcome.message.startswith("error: "), outcome


def test_links_of_the_hubs_cache_are_followed(tmp_path):
  repository = tmp_path / "models--owner--name"
  (repository / "blobs").mkdir(parents=True)
  snapshot = write_model_directory(repository / "snapshots" / "0123")
  for file in list(snapshot.iterdir()):
    file.rename(repository / "blobs" / file.name)
    file.symlink_to(f"../../blobs/{file.name}")
  assert vocabularies.load(str(snapshot)).size > 100


# By name: (source with {0} for the directory, content of its files).
RECORDS = {
  "an arrow state": (
    "arrow:{0}/state",
    {"_data_files": [{"filename": "../../elsewhere/secret.txt"}]},
  ),
} | topics.cases("FOREIGN_RECORDS")


@pytest.mark.parametrize("case", RECORDS)
def test_records_reach_nothing(case, tmp_path, check):
  source_template, content = RECORDS[case]
  folder = tmp_path / "data"
  (folder / "state").mkdir(parents=True)
  if isinstance(content, str):
    (folder / "rows.csv").write_text(content)
  else:
    coco_keys = {"annotations": [], "categories": [{"id": 1, "name": "a"}]}
    (folder / "rows.json").write_text(json.dumps(content | coco_keys))
    (folder / "state" / "state.json").write_text(json.dumps(content))

  def read(inside: pathlib.Path) -> None:
    for _ in open_source(source_template.format(folder)).records("train"):
      pass

  check(handle_errors(read))


CARD = """---
configs:
- config_name: a
  data_files:
  - split: train
    path: '{path}'
---
# A
"""


@pytest.mark.parametrize(
  "path, end",
  [
    ("/etc/passwd", "refusal"),
    ("../elsewhere/rows.jsonl", "refusal"),
    ("https://127.0.0.1/x", "refusal"),
    ("zip://x::/etc/passwd", "refusal"),
    ("**/*.jsonl", "success"),
  ],
)
def test_the_card_of_a_data_set_names_files_of_its_directory(path, end, tmp_path, check):
  pytest.importorskip("yaml")
  card = tmp_path / "README.md"
  card.write_text(CARD.format(path=path))
  check(handle_errors(lambda folder: hf._check_card(as_path(card))), end)


def test_a_task_of_a_program_opens_the_files_that_the_program_names(sentinels):
  source = f"jsonl:{sentinels.folder}/rows.jsonl"
  trust.record_file("theirs/config.json", {"source": source})
  with refuses("theirs/config.json: source: found 'jsonl:"):
    open_source(source)
  trust.admit_locations({"source": source})
  assert open_source(source).splits == ("train",)


def open_source_in_a_child(queue, source: str) -> None:
  """Open a source in a child of multiprocessing; put the message of its error into the queue."""
  try:
    open_source(source)
    queue.put("opened")
  except UserError as error:
    queue.put(str(error))


def test_a_child_of_multiprocessing_admits_no_more_than_its_parent(sentinels):
  context = multiprocessing.get_context("spawn")
  queue = context.Queue()
  child = context.Process(
    target=open_source_in_a_child, args=(queue, "salient:subprocess:getoutput@builtin")
  )
  child.start()
  message = queue.get(timeout=120)
  child.join()
  assert "found 'subprocess:getoutput', which this command does not name" in message


def test_a_run_of_this_user_may_name_any_data(tmp_path):
  trust.begin_command(())
  workdirs.write_identity(tmp_path, {"task": {"store": "/data/store"}, "sizes": {2: 1, 10: 2}})
  identity = {"task": {"store": "/data/store"}, "sizes": {"2": 1, "10": 2}}
  assert read_identity(tmp_path) == identity
  trust.check_location("config.task.store", "/data/store")


def test_a_changed_run_may_name_data_only_with_the_commands_permission(tmp_path):
  trust.begin_command(())
  workdirs.write_identity(tmp_path, {"task": {"store": "/data/store"}})
  content = json.loads((tmp_path / "config.json").read_text())
  (tmp_path / "config.json").write_text(json.dumps(content | {"seed": 1}))
  trust.begin_command(())
  read_identity(tmp_path)
  with refuses(f"{tmp_path}/config.json: config.task.store: found '/data/store', which is outside"):
    trust.check_location("config.task.store", "/data/store")
  trust.begin_command(["--x", "/data/store"])
  read_identity(tmp_path)
  trust.check_location("config.task.store", "/data/store")
  trust.begin_command((), everything=True)
  read_identity(tmp_path)
  trust.check_location("config.task.store", "/data/store")


CHAINS = ["reference://x::file:///a", "zip://a::gs://b/c", "hdfs://a/b", "simplecache::gs://a/b"]


@pytest.mark.parametrize("text", CHAINS)
def test_a_chain_or_an_odd_scheme_is_refused_though_all_is_trusted(text):
  trust.begin_command((), everything=True)
  trust.record_file("theirs/config.json", {"task": {"store": text}}, "theirs")
  for check in (trust.check_location, trust.check_source):
    with refuses("theirs/config.json: config.x: found ", "expected one address of gs://"):
      check("config.x", text)
  address = text if "://" in text.partition("::")[0] else f"{text}/x"
  with refuses("which this command does not name, expected one address of gs://"):
    as_path(address)


@pytest.mark.parametrize("text", CHAINS)
@pytest.mark.parametrize(
  "admit", [trust.admit, lambda text: trust.record_file("ours", [text], signed=True)]
)
def test_a_chain_or_an_odd_scheme_is_opened_if_the_command_names_it(admit, text):
  trust.begin_command(())
  trust.record_file("theirs/config.json", [text])
  admit(text)
  trust.check_location("config.x", text)
  trust.check_source("config.x", text)
  trust.check_address(text)


@pytest.mark.parametrize(
  "chain", ["zip://x::file://{}/refs.json", "reference://::file://{}/refs.json"]
)
def test_a_store_in_a_chain_is_refused_with_a_remedy_that_works(chain, tmp_path, capsys):
  (tmp_path / "refs.json").write_text('{"version": 1, "refs": {}}')
  flags = ["--config=tests/recipes/nano.py", f"--workdir={tmp_path / 'run'}"]
  assert train.main([*flags, f"--config.task.store={chain.format(tmp_path)}"]) == 2
  assert "name the copy" in capsys.readouterr().err


def test_a_location_in_the_directory_of_its_file_is_opened(tmp_path):
  folder = tmp_path / "run"
  folder.mkdir()
  (folder / "rows.jsonl").write_text("{}\n")
  (folder / "link").symlink_to(tmp_path)
  inside = [f"{folder}/store", f"{folder}/."]
  outside = [f"{folder}/{name}" for name in ("link/x", "../x", "a/../../x")]
  sources_inside = [f"jsonl:{folder}/rows.jsonl", "facts:9", "digits"]
  sources_outside = [f"jsonl:{folder}/*.jsonl", f"jsonl:train={folder}/rows.jsonl"]
  trust.begin_command(())
  recorded = inside + outside + sources_inside + sources_outside
  trust.record_file("config.json", recorded, str(folder))
  for location in (*inside, "a string that is in no file"):
    trust.check_location("a", location)
  for source in sources_inside:
    trust.check_source("a", source)
  for location in outside:
    with refuses("which is outside"):
      trust.check_location("a", location)
  for source in sources_outside:
    with refuses("which is outside"):
      trust.check_source("a", source)


def test_addresses_are_inside_by_their_spelling():
  assert trust.is_inside("gs://bucket/run/data", "gs://bucket/run/")
  assert not trust.is_inside("gs://bucket/run2", "gs://bucket/run")
  assert not trust.is_inside("gs://bucket/run/../x", "gs://bucket/run")
  assert not trust.is_inside("/bucket/run/x", "gs://bucket/run")

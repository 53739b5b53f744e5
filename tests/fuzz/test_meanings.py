"""Hostile values in well-formed saved files make no command open, send or run anything.

The files of runs, suites, vocabularies, stores, models and records get URLs, paths, sources,
names of functions and numbers from `meanings`. `Sentinels` records every file that a case opens
elsewhere, every request, every started program and every imported module.
"""

import json
import pathlib
import random

import pytest

import published
from interop.test_golden import write as write_model
from t5x_like import trust, vocabularies
from t5x_like.abstract_model import build_objective
from t5x_like.benchmarks import custom_suites
from t5x_like.corpora.sources import open_source
from t5x_like.data.images import store as image_store
from t5x_like.errors import handle_errors
from t5x_like.interop import hf
from t5x_like.runtime import process
from t5x_like.store.tokens import TokenStore
from t5x_like.training import warm_start
from t5x_like.training import workdir as workdirs
from t5x_like.training.evaluation import Evaluation
from t5x_like.training.open_with_recipe import open_with_recipe
from t5x_like.training.resolve import resolve
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary
from tests import stores
from tests.fuzz import meanings
from tests.fuzz.harness import Sandbox, fuzz_seed, generator
from tests.fuzz.sentinels import Sentinels
from tests.fuzz.test_stores import sign
from tests.recipes import nano

SEED = fuzz_seed(23)
NUM_SAMPLE_CASES = 24
NUM_CASES = 520
PARTS = 4
SECONDS_PER_CASE = 60


class HostileFileWriter:
  """A writer of hostile files.

  Each method of `KINDS` writes one kind of file into the directory of a case. It returns a
  description of the hostile values, and a function that reads the file as a command would.

  Args:
    folder: an empty directory for the intact files.
  """

  def __init__(self, folder: pathlib.Path):
    self.folder = folder
    self.sentinels = Sentinels(folder / "elsewhere")
    self.config = resolve(nano.get_config())
    self.config.evals = {"loss": {"name": "loss", "task": {}, "split": None, "max_examples": 8}}
    arguments = self.config.task.to_dict()
    task = process.build_task("task", arguments.pop("name"), "train", arguments)
    self.identity = json.loads(json.dumps(workdirs.build_identity(self.config, task)))
    self.vocabulary = task.vocabulary
    stores.write(folder / "tokens" / "train", stores.random_documents(20, 30), shard_tokens=150)
    ByteVocabulary().save(folder / "bytes")
    write_model("t5", folder / "model")
    published.write(folder / "model", "t5")

  def add_hostile_values(self, rng: random.Random, tree, case_folder: pathlib.Path):
    return meanings.mutate_meaning(rng, tree, str(self.sentinels.folder), str(case_folder))

  def run(self, rng: random.Random, case_folder: pathlib.Path):
    """Write a run, which is evaluated up to the first batch."""
    workdir = case_folder / "run"
    self.vocabulary.save(workdir / "vocabulary")
    (workdir / "link").symlink_to(self.sentinels.folder)
    identity, changes = self.add_hostile_values(rng, self.identity, workdir)
    (workdir / "config.json").write_text(json.dumps(identity))

    def call() -> None:
      run = open_with_recipe(str(workdir), None, ())
      Evaluation(run.config, run.model, build_objective(run.config), run.rules, None)

    return changes, call

  def warm_start(self, rng: random.Random, case_folder: pathlib.Path):
    """Write a run whose weights another run starts from."""
    changes, _ = self.run(rng, case_folder)

    def call() -> None:
      config = nano.get_config()
      config.init = {"workdir": str(case_folder / "run")}
      warm_start.inherit_model(config)
      _ = open_with_recipe(str(case_folder / "run"), nano.__file__, ()).vocabulary

    return changes, call

  def import_file(self, rng: random.Random, case_folder: pathlib.Path):
    content = {"model": self.identity["model"], "vocabulary": "0"}
    content, changes = self.add_hostile_values(rng, content, case_folder)
    (case_folder / "imported.json").write_text(json.dumps(content))
    return changes, lambda: warm_start.with_model_keys(
      self.config, workdirs.read_imported(case_folder)["model"], str(case_folder)
    )

  def suite(self, rng: random.Random, case_folder: pathlib.Path):
    table = {"form": "labelled", "source": "builtin", "text": "{text}", "length": 8}
    table, changes = self.add_hostile_values(
      rng, table | {"config": {"batch_size": 8}}, case_folder
    )
    lines = [f"{key} = {format_toml(value)}" for key, value in table.items() if value is not None]
    (case_folder / "tasks.toml").write_text("[a]\n" + "\n".join(lines) + "\n")

    def call() -> None:
      suite = custom_suites.load_suite(str(case_folder / "tasks.toml"))
      arguments = dict(suite.tasks["a"].table) if isinstance(suite.tasks["a"].table, dict) else {}
      open_source(table.get("source") or "builtin", data_dir=arguments.get("data_dir"))

    return changes, call

  def tokenizer(self, rng: random.Random, case_folder: pathlib.Path):
    model = json.loads(published.byte_level(["[PAD]", "</s>", "[UNK]"]).to_str())
    content = "".join(rng.choice("ab") for _ in range(rng.choice((1, 90, 2000))))
    step = {
      "type": "Replace",
      "pattern": {rng.choice(("String", "Regex")): rng.choice("ab")},
      "content": content,
    }
    key, parts = rng.choice((("normalizer", "normalizers"), ("decoder", "decoders")))
    if rng.random() < 0.7:
      model[key] = {"type": "Sequence", parts: [step] * rng.choice((1, 2, 4, 12))}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "auto_map": {}}
    config, changes = self.add_hostile_values(rng, config, case_folder)
    (case_folder / "tokenizer.json").write_text(json.dumps(model))
    (case_folder / "tokenizer_config.json").write_text(json.dumps(config))
    if rng.random() < 0.2:
      (case_folder / "special_tokens_map.json").symlink_to(self.sentinels.folder / "secret.txt")
    return changes, lambda: vocabularies.load(str(case_folder)).encode("a" * 1000)

  def vocabulary_manifest(self, rng: random.Random, case_folder: pathlib.Path):
    ByteVocabulary().save(case_folder)
    file = case_folder / vocabularies.MANIFEST
    content, changes = self.add_hostile_values(rng, json.loads(file.read_text()), case_folder)
    file.write_text(json.dumps(content))
    return changes, lambda: vocabularies.load(str(case_folder)).encode("a")

  def store(self, rng: random.Random, case_folder: pathlib.Path):
    for file in (self.folder / "tokens").rglob("*"):
      if file.is_file():
        copy = case_folder / file.relative_to(self.folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    file = rng.choice(sorted((case_folder / "tokens").rglob("*.json")))
    content, changes = self.add_hostile_values(rng, json.loads(file.read_text()), case_folder)
    file.write_text(json.dumps(content))
    sign(file)

    def call() -> None:
      store = TokenStore.open(case_folder / "tokens" / "train", "size")
      store.vocabulary  # noqa: B018 -- read and checked

    return f"{file.name}: {changes}", call

  def model(self, rng: random.Random, case_folder: pathlib.Path):
    directory = case_folder / "model"
    directory.mkdir()
    for file in (self.folder / "model").iterdir():
      (directory / file.name).write_bytes(file.read_bytes())
    if rng.random() < 0.5:
      file = directory / "config.json"
      content, changes = self.add_hostile_values(rng, json.loads(file.read_text()), directory)
    else:
      (directory / "model.safetensors").rename(directory / "a.safetensors")
      file = directory / "model.safetensors.index.json"
      changes = "index"
      name = meanings.draw_location(rng, str(self.sentinels.folder), str(directory))
      content = {"weight_map": {"shared.weight": rng.choice((name, "a.safetensors"))}}
    file.write_text(json.dumps(content))

    def call() -> None:
      hf.save(hf.load(str(directory)), str(case_folder / "again"))

    return changes, call

  def coco(self, rng: random.Random, case_folder: pathlib.Path):
    name = meanings.draw_location(rng, str(self.sentinels.folder), str(case_folder))
    (case_folder / "link").symlink_to(self.sentinels.folder / "secret.txt")
    content = {
      "images": [{"file_name": name, "height": 1, "width": 1, "id": 1}],
      "annotations": [],
      "categories": [{"id": 1, "name": "a"}],
    }
    (case_folder / "rows.json").write_text(json.dumps(content))
    source = f"coco:{case_folder}/rows.json"
    return repr(name), lambda: list(open_source(source).records("train"))

  def images(self, rng: random.Random, case_folder: pathlib.Path):
    name = meanings.draw_location(rng, str(self.sentinels.folder), str(case_folder))
    (case_folder / "link").symlink_to(self.sentinels.folder / "secret.txt")
    (case_folder / "rows.jsonl").write_text(json.dumps({"image": name, "label": "a"}) + "\n")
    source = f"jsonl:{case_folder}/rows.jsonl"
    arguments = {"label_field": "label", "classes": ("a",), "cache": str(case_folder / "cache")}
    return repr(name), lambda: image_store.open_store(source, "train", **arguments)


KINDS = (
  "run",
  "run",
  "run",
  "warm_start",
  "import_file",
  "suite",
  "tokenizer",
  "vocabulary_manifest",
  "store",
  "model",
  "coco",
  "images",
)


def format_toml(value) -> str:
  """Write a value in TOML, whose inline tables differ from JSON's objects."""
  if isinstance(value, dict):
    items = [f"{json.dumps(key)} = {format_toml(item)}" for key, item in value.items()]
    return "{" + ", ".join(items) + "}"
  return repr(value) if isinstance(value, float) else json.dumps(value)


def _discard_result(call) -> None:
  """Call a function whose result is no exit code."""
  call()


def run_hostile_files(writer: HostileFileWriter, folder: pathlib.Path, cases: range) -> None:
  """Run cases; fail if one ends in no known error or causes an event of the sentinels."""
  sandbox = Sandbox(folder / "sandbox", seconds=SECONDS_PER_CASE, memory=2**30)
  forbidden_events = []
  for number in cases:
    rng = generator(SEED, number)
    kind = rng.choice(KINDS)
    case = [f"seed {SEED}, case {number}, {kind}:"]

    def call_watched(case_folder: pathlib.Path, rng=rng, kind=kind, case=case) -> int:
      trust.begin_command(())
      description, call = getattr(writer, kind)(rng, case_folder)
      case.append(description)
      with writer.sentinels.watching() as events:
        code = handle_errors(_discard_result)(call)
      forbidden_events.extend(f"{' '.join(case)}: {event}" for event in events)
      return code

    sandbox.run(case, call_watched)
  sandbox.check(min_cases=len(cases))
  assert not forbidden_events, "\n".join(forbidden_events)


@pytest.fixture(scope="module")
def writer(tmp_path_factory) -> HostileFileWriter:
  return HostileFileWriter(tmp_path_factory.mktemp("intact"))


def test_hostile_values_in_some_saved_files_reach_nothing(writer, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  run_hostile_files(writer, tmp_path, range(NUM_SAMPLE_CASES))


@pytest.mark.fuzz
@pytest.mark.parametrize("part", range(PARTS))
def test_hostile_values_in_many_saved_files_reach_nothing(part, writer, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  run_hostile_files(
    writer, tmp_path, range(part * NUM_CASES // PARTS, (part + 1) * NUM_CASES // PARTS)
  )

"""Every program reads and writes addresses of every scheme as it does local paths."""

import functools
import hashlib
import json
import shutil

import pytest

import more
from stores import many_documents, write
from t5x_like import evaluate, predict, train
from t5x_like.files.paths import as_path
from tests import object_server
from tools import convert_hf, few_shot, prepare_data

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled")]
pytest.importorskip("gcsfs")
RECIPE = "--config=tests/recipes/nano_decoder.py"
STORE = ("--config.task.documents_end=nothing",)
SCHEMES = ("file", "memory", "gs", "s3")
SIZES = (
  "source",
  "questions",
  "export",
)  # they ask for sizes, which only s3fs knows on S3


@pytest.fixture(scope="module")
def server(tmp_path_factory):
  with object_server.serve(tmp_path_factory.mktemp("bucket")) as server:
    yield server


@pytest.fixture(scope="module")
def roots(server, tmp_path_factory):
  """The same files at a path and at an address of every scheme."""
  local = tmp_path_factory.mktemp("local")
  (local / "pages").mkdir()
  for part in "ab":
    rows = [{"text": f"Page {number} of {part}."} for number in range(40)]
    (local / "pages" / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  (local / "lines.txt").write_text("def add(a, b):\nReturns the sum\n")
  (local / "questions.jsonl").write_text(json.dumps({"text": "one two three"}) + "\n")
  for split in ("train", "validation"):
    write(local / "store" / split, many_documents(), shard_tokens=8_000)
  addresses = {
    "path": str(local),
    "file": f"file://{tmp_path_factory.mktemp('file')}",
    "gs": "gs://bucket/gs",
    "s3": "s3://bucket/s3",
    "memory": "memory://bucket/memory",
  }
  for root in list(addresses.values())[1:]:
    for name in as_path(local).sizes():
      (as_path(root) / name).write_bytes((local / name).read_bytes())
  return addresses


def prepare_store(source: str, output: str) -> str:
  flags = ["--vocabulary=bytes", "--split=train", "--workers=1"]
  assert prepare_data.main([f"--source=jsonl:{source}", f"--output={output}", *flags]) == 0
  return json.loads((as_path(output) / "train" / "manifest.json").read_text())["fingerprint"]


def source(root, aside):
  return prepare_store(f"{root}/pages/*.jsonl", f"{aside}/stores")


def output(root, aside):
  return prepare_store(f"{aside}/pages/*.jsonl", f"{root}/stores")


@functools.cache
def run_in(root: str) -> str:
  """The workdir of a run on a store, stopped and resumed."""
  workdir = f"{root}/run"
  flags = (RECIPE, *STORE, f"--config.task.store={root}/store", "--config.checkpoint.every=2")
  for steps in (2, 4):
    assert train.main([*flags, f"--workdir={workdir}", f"--config.total_steps={steps}"]) == 0
  return workdir


def store_and_workdir(root, aside):
  rows = (as_path(run_in(root)) / "metrics.jsonl").read_text().splitlines()
  return [json.loads(row)["train/loss"] for row in rows if "train/loss" in row]


def evaluation(root, aside):
  assert evaluate.main([f"--workdir={run_in(root)}", "--config.evals.loss.max_examples=16"]) == 0
  folder = as_path(root) / "run" / "evaluations"
  return [json.loads((folder / name).read_text()) for name in folder.names()]


def inputs(root, aside):
  flags = ("--max_new_tokens=4", f"--input={root}/lines.txt", f"--output={aside}/out.jsonl")
  assert predict.main([f"--workdir={run_in(root)}", *flags]) == 0
  return (aside / "out.jsonl").read_text()


def questions(root, aside):
  flags = (f"--input={root}/questions.jsonl", f"--output={aside}/scores.json")
  assert few_shot.main([f"--workdir={run_in(root)}", *flags]) == 0
  return json.loads((aside / "scores.json").read_text())["questions"]


def init(root, aside):
  flags = (
    *STORE,
    f"--config.task.store={root}/store",
    f"--config.init.workdir={run_in(root)}",
    "--config.total_steps=2",
  )
  assert train.main([RECIPE, f"--workdir={aside}/begun", *flags]) == 0
  return [
    json.loads((aside / "begun" / "init.json").read_text())[key] for key in ("step", "loaded")
  ]


def export(root, aside):
  """A Hugging Face directory, written and read."""
  assert convert_hf.main([f"--input={run_in(root)}", f"--output={root}/published"]) == 0
  assert convert_hf.main([f"--input={root}/published", RECIPE, f"--output={root}/imported"]) == 0
  tensors = (as_path(root) / "published" / "model.safetensors").read_bytes()
  step = next(
    name for name in (as_path(root) / "imported" / "checkpoints").names() if name.startswith("0")
  )
  return hashlib.sha256(tensors).hexdigest(), step[:1]


CONSUMERS = (
  source,
  output,
  store_and_workdir,
  evaluation,
  inputs,
  questions,
  init,
  export,
)


@pytest.fixture(scope="module")
def expected(roots, tmp_path_factory):
  """A function that returns what a consumer makes of the path."""
  aside = tmp_path_factory.mktemp("expected")
  shutil.copytree(f"{roots['path']}/pages", aside / "pages")
  return functools.cache(lambda consumer: consumer(roots["path"], aside))


@pytest.mark.parametrize(
  "scheme", [name if name in ("memory", "s3") else more.later(name) for name in SCHEMES]
)
@pytest.mark.parametrize("consumer", CONSUMERS, ids=lambda consumer: consumer.__name__)
def test_an_address_does_as_a_path(consumer, scheme, server, roots, expected, tmp_path):
  """A store of Google's is unavailable at times."""
  server.unavailable = 0.05 if scheme == "gs" else 0.0
  if scheme == "s3" and consumer.__name__ in SIZES:
    pytest.importorskip("s3fs")
  shutil.copytree(f"{roots['path']}/pages", tmp_path / "pages")
  assert consumer(roots[scheme], tmp_path) == expected(consumer)

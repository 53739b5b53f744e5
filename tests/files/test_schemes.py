"""Every program reads and writes URLs of every scheme like local paths."""

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
STORE_FLAGS = ("--config.task.documents_end=nothing",)
SCHEMES = ("file", "memory", "gs", "s3")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
  with object_server.serve(tmp_path_factory.mktemp("bucket")) as server:
    yield server


@pytest.fixture(scope="module")
def roots(server, tmp_path_factory):
  """Return the directory for each scheme, and for "path"; all hold the same files."""
  local = tmp_path_factory.mktemp("local")
  (local / "pages").mkdir()
  for part in "ab":
    rows = [{"text": f"Page {number} of {part}."} for number in range(40)]
    (local / "pages" / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  (local / "lines.txt").write_text("def add(a, b):\nReturns the sum\n")
  (local / "questions.jsonl").write_text(json.dumps({"text": "one two three"}) + "\n")
  for split in ("train", "validation"):
    write(local / "store" / split, many_documents(), shard_tokens=8_000)
  urls = {
    "path": str(local),
    "file": f"file://{tmp_path_factory.mktemp('file')}",
    "gs": "gs://bucket/gs",
    "s3": "s3://bucket/s3",
    "memory": "memory://bucket/memory",
  }
  for root in list(urls.values())[1:]:
    for name in as_path(local).sizes():
      (as_path(root) / name).write_bytes((local / name).read_bytes())
  return urls


def prepare_store(source: str, output: str) -> str:
  flags = ["--vocabulary=bytes", "--split=train", "--workers=1"]
  assert prepare_data.main([f"--source=jsonl:{source}", f"--output={output}", *flags]) == 0
  return json.loads((as_path(output) / "train" / "manifest.json").read_text())["fingerprint"]


def read_source(root, local_folder):
  return prepare_store(f"{root}/pages/*.jsonl", f"{local_folder}/stores")


def write_output(root, local_folder):
  return prepare_store(f"{local_folder}/pages/*.jsonl", f"{root}/stores")


@functools.cache
def train_twice(root: str) -> str:
  """Train on a store, stop and resume; return the workdir."""
  workdir = f"{root}/run"
  flags = (RECIPE, *STORE_FLAGS, f"--config.task.store={root}/store", "--config.checkpoint.every=2")
  for steps in (2, 4):
    assert train.main([*flags, f"--workdir={workdir}", f"--config.total_steps={steps}"]) == 0
  return workdir


def train_on_store(root, local_folder):
  rows = (as_path(train_twice(root)) / "metrics.jsonl").read_text().splitlines()
  return [json.loads(row)["train/loss"] for row in rows if "train/loss" in row]


def evaluate_run(root, local_folder):
  assert (
    evaluate.main([f"--workdir={train_twice(root)}", "--config.evals.loss.max_examples=16"]) == 0
  )
  folder = as_path(root) / "run" / "evaluations"
  return [json.loads((folder / name).read_text()) for name in folder.names()]


def predict_lines(root, local_folder):
  flags = ("--max_new_tokens=4", f"--input={root}/lines.txt", f"--output={local_folder}/out.jsonl")
  assert predict.main([f"--workdir={train_twice(root)}", *flags]) == 0
  return (local_folder / "out.jsonl").read_text()


def answer_questions(root, local_folder):
  flags = (f"--input={root}/questions.jsonl", f"--output={local_folder}/scores.json")
  assert few_shot.main([f"--workdir={train_twice(root)}", *flags]) == 0
  return json.loads((local_folder / "scores.json").read_text())["questions"]


def initialize_from_run(root, local_folder):
  flags = (
    *STORE_FLAGS,
    f"--config.task.store={root}/store",
    f"--config.init.workdir={train_twice(root)}",
    "--config.total_steps=2",
  )
  assert train.main([RECIPE, f"--workdir={local_folder}/begun", *flags]) == 0
  report = json.loads((local_folder / "begun" / "init.json").read_text())
  return report["step"], report["loaded"]


def export_and_import(root, local_folder):
  """Write and read a Hugging Face directory."""
  assert convert_hf.main([f"--input={train_twice(root)}", f"--output={root}/published"]) == 0
  assert convert_hf.main([f"--input={root}/published", RECIPE, f"--output={root}/imported"]) == 0
  tensors = (as_path(root) / "published" / "model.safetensors").read_bytes()
  step = next(
    name for name in (as_path(root) / "imported" / "checkpoints").names() if name.startswith("0")
  )
  return hashlib.sha256(tensors).hexdigest(), step[:1]


CONSUMERS = (
  read_source,
  write_output,
  train_on_store,
  evaluate_run,
  predict_lines,
  answer_questions,
  initialize_from_run,
  export_and_import,
)
# These ask for sizes of files, which only s3fs knows on S3.
NEED_SIZES = (read_source, answer_questions, export_and_import)


@pytest.fixture(scope="module")
def expected(roots, tmp_path_factory):
  """Return a function that gives the result of a consumer for local paths."""
  local_folder = tmp_path_factory.mktemp("expected")
  shutil.copytree(f"{roots['path']}/pages", local_folder / "pages")
  return functools.cache(lambda consumer: consumer(roots["path"], local_folder))


@pytest.mark.parametrize(
  "scheme", [name if name in ("memory", "s3") else more.later(name) for name in SCHEMES]
)
@pytest.mark.parametrize("consumer", CONSUMERS, ids=lambda consumer: consumer.__name__)
def test_urls_give_the_results_of_local_paths(consumer, scheme, server, roots, expected, tmp_path):
  server.unavailable = 0.05 if scheme == "gs" else 0.0  # share of requests that fail
  if scheme == "s3" and consumer in NEED_SIZES:
    pytest.importorskip("s3fs")
  shutil.copytree(f"{roots['path']}/pages", tmp_path / "pages")
  assert consumer(roots[scheme], tmp_path) == expected(consumer)

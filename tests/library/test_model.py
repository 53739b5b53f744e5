"""`t5x.load` opens Hugging Face directories, names of the Hub, imported and trained workdirs."""

import io
import json
import shutil
import subprocess
import sys
import types

import numpy as np
import pytest

import published
import published_models
import t5x_like as t5x
from published_models import FAMILIES
from t5x_like import chat, evaluate, predict, train, vocabularies
from t5x_like.errors import UserError
from t5x_like.inference import flags as generation_flags
from t5x_like.interop import hf
from t5x_like.library.model import PredictOptions
from t5x_like.nn import params
from t5x_like.saved_model import hub
from tests.runs import REPO
from tools import convert_hf

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled")]
TEXTS = {
  "gpt2": "the quick brown",
  "t5": "the quick <extra_id_0> fox",
  "bert": "the quick [MASK] fox",
}
SHORT_RUN = [
  "total_steps=2",
  "batch_size=8",
  "eval_every=2",
  "evals={}",
  "checkpoint.every=2",
  "schedule.warmup_steps=1",
  'mesh={"data": -1}',
  "model.remat=none",
  "model.dropout=0.0",
  "peak_flops=1e11",
  "task.length=16",
]


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
  """Hugging Face directories of small models with random weights, by kind."""
  root = tmp_path_factory.mktemp("published")
  for kind in FAMILIES:
    published_models.write(root / kind, kind)
  return root


@pytest.fixture(scope="module")
def store(directories, tmp_path_factory):
  """A corpus of several documents."""
  path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
  lines = [json.dumps({"text": f"{line} {line}"}) for line in published.LINES[:60]]
  path.write_text("\n".join(lines) + "\n")
  return f"jsonl:{path}"


def run_predict(workdir, text, folder, *flags):
  """Return the row that the command `predict` writes for a text."""
  (folder / "in.txt").write_text(text + "\n")
  files = [f"--input={folder}/in.txt", f"--output={folder}/out.jsonl"]
  assert predict.main([f"--workdir={workdir}", *files, *flags]) == 0
  return json.loads((folder / "out.jsonl").read_text())


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_published_model_answers_alike_in_python_and_in_the_commands(
  kind, directories, tmp_path, monkeypatch, capsys
):
  path = str(directories / kind)
  text = TEXTS[kind]
  options = {} if kind == "bert" else {"max_new_tokens": 4}
  flags = [f"--{name}={value}" for name, value in options.items()]
  answer = run_predict(path, text, tmp_path, *flags)
  model = t5x.load(path)
  assert model.predict([text], **options) == [answer]
  assert model.step == 0
  if kind == "gpt2":
    assert model.generate(text, **options) == answer["prediction"]
    assert model.generate([], **options) == []
  if kind == "bert":  # T5 may write more without the limit of tokens
    assert model.fill(text) == answer["filled"]
  monkeypatch.setattr(sys, "stdin", io.StringIO(text + "\n"))
  capsys.readouterr()
  assert chat.main([f"--workdir={path}", "--temperature=0", *flags]) == 0
  assert (answer.get("filled") or answer["prediction"]).strip() in capsys.readouterr().out


def test_scores_are_the_sums_of_the_models_log_probabilities(directories):
  library_model = t5x.load(str(directories / "gpt2"))
  model = hf.load(str(directories / "gpt2"))
  ids = [0, *library_model.vocabulary.encode("the quick fox")]
  logits = np.asarray(model({"decoder_input_tokens": np.array([ids])})["logits"][0], np.float64)
  log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  expected = sum(log_p[position, i] for position, i in enumerate(ids[1:]))
  assert library_model.score("the quick fox") == pytest.approx(expected, rel=1e-5)
  parts = library_model.score(["the quick"], [" fox"])[0] + library_model.score("the quick")
  assert parts == pytest.approx(expected, rel=1e-5)


def test_vectors_are_means_of_the_models_outputs(directories, tmp_path):
  library_model = t5x.load(str(directories / "bert"))
  model = hf.load(str(directories / "bert"))
  ids = [2, *library_model.vocabulary.encode("the quick fox"), 3]
  outputs_TD = model.encode({"encoder_input_tokens": np.array([ids])})[0][0]
  mean = np.mean(outputs_TD, axis=0)
  vector = library_model.encode(["fox", "the quick fox"])[1]
  np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-5)
  record = run_predict(directories / "bert", "the quick fox", tmp_path, "--embed")
  np.testing.assert_allclose(record["embedding"], vector, atol=1e-5)
  with pytest.raises(UserError, match="encoder, which gives texts no probability"):
    library_model.score("the fox")


def test_a_published_model_obeys_its_generation_config(directories, tmp_path):
  """The file sets the ends and the first token; before a text stands what its tokenizer adds."""
  path = tmp_path / "gpt2"
  generation_config = path / "generation_config.json"
  shutil.copytree(directories / "gpt2", path)
  ids = vocabularies.load(str(path)).encode(TEXTS["gpt2"])
  model = hf.load(str(path))
  logits = np.asarray(model({"decoder_input_tokens": np.array([ids])})["logits"][0, -1])
  log_p = logits - np.log(np.exp(logits).sum())
  best = int(np.argmax(logits))
  generation_config.write_text(json.dumps({"eos_token_id": [5, best]}))
  answer = t5x.load(str(path)).predict([TEXTS["gpt2"]], max_new_tokens=4)[0]
  assert answer["prediction"] == ""
  assert answer["score"] == pytest.approx(log_p[best], abs=1e-3)
  generation_config.write_text(json.dumps({"forced_bos_token_id": 70}))
  model = t5x.load(str(path))
  answer = model.predict([TEXTS["gpt2"]], max_new_tokens=1)[0]
  assert answer["prediction"] == model.vocabulary.decode([70])
  assert answer["score"] == pytest.approx(log_p[70], abs=1e-3)


def test_training_starts_from_a_published_directory_and_exports_one(directories, store, tmp_path):
  """Every tensor of the directory is loaded; no conversion is needed."""
  source = directories / "gpt2"
  workdir = tmp_path / "run"
  flags = [f"--config.{flag}" for flag in SHORT_RUN]
  flags += [
    f"--config.task.source={store}",
    f"--config.init.workdir={source}",
    "--config=configs/gpt/gpt2_124m.py",
    f"--workdir={workdir}",
  ]
  assert train.main(flags) == 0
  assert train.main([*flags, "--config.total_steps=3"]) == 0
  report = json.loads((workdir / "init.json").read_text())
  before = params.arrays(hf.load(str(source)))
  assert sorted(report["loaded"]) == sorted(before)
  assert not report["initialised"]
  model = t5x.load(str(workdir))
  assert model.step == 3
  assert model.vocabulary.fingerprint == t5x.load(str(source)).vocabulary.fingerprint
  model.save_hf(str(tmp_path / "exported"))
  after = params.arrays(hf.load(str(tmp_path / "exported")))
  for name in before:
    np.testing.assert_array_equal(after[name], model.run.arrays[name])
  assert any(not np.array_equal(after[name], before[name]) for name in before)
  with pytest.raises(UserError, match="exists and is not empty"):
    model.save_hf(str(tmp_path / "exported"))


def test_imported_weights_are_used_before_a_step_is_trained(directories, tmp_path):
  flags = ["--config=configs/gpt/gpt2_124m.py", *(f"--config.{flag}" for flag in SHORT_RUN)]
  assert convert_hf.main([f"--input={directories}/gpt2", f"--output={tmp_path}/run", *flags]) == 0
  imported = run_predict(tmp_path / "run", TEXTS["gpt2"], tmp_path, "--max_new_tokens=4")
  # A workdir begins texts with the token that separates documents in training.
  text = "<|endoftext|>" + TEXTS["gpt2"]
  published_answer = run_predict(directories / "gpt2", text, tmp_path, "--max_new_tokens=4")
  assert imported["prediction"] == published_answer["prediction"]
  assert imported["score"] == pytest.approx(published_answer["score"], abs=1e-3)


def test_evaluate_answers_questions_without_a_suite(directories, tmp_path, capsys):
  question = {"query": "the quick", "choices": ["fox", "dog"], "gold": 0}
  (tmp_path / "foxes.jsonl").write_text(json.dumps(question) + "\n")
  flags = [
    f"--workdir={directories}/gpt2",
    f"--questions={tmp_path}/foxes.jsonl",
    f"--output={tmp_path}/results",
  ]
  assert evaluate.main(flags) == 0
  results = json.loads((tmp_path / "results" / "results.json").read_text())
  assert "0-shot/accuracy" in results["tasks"]["foxes"]["metrics"]
  assert "| foxes |" in capsys.readouterr().out
  assert evaluate.main([f"--workdir={directories}/gpt2"]) == 2
  assert "published model without a config and data" in capsys.readouterr().err


@pytest.fixture
def fake_hub(directories, monkeypatch):
  """Stand in for huggingface_hub with one model; return a list of the requested file patterns."""
  file_patterns = []

  def snapshot_download(name, allow_patterns):
    file_patterns.append(allow_patterns)
    if name != "someone/small":
      raise OSError("no network\nat all")
    return str(directories / "gpt2")

  monkeypatch.setitem(
    sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=snapshot_download)
  )
  hub.local_directory.cache_clear()
  yield file_patterns
  hub.local_directory.cache_clear()


def test_a_name_of_the_hub_is_downloaded_without_code(fake_hub, directories, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  text = TEXTS["gpt2"]
  answer = run_predict("someone/small", text, tmp_path, "--max_new_tokens=2")
  assert answer == run_predict(directories / "gpt2", text, tmp_path, "--max_new_tokens=2")
  assert not any(pattern.endswith((".py", ".bin", ".pkl", "*")) for pattern in fake_hub[0])
  assert not (tmp_path / "someone").exists()


def test_a_failed_download_is_one_line_with_its_reason(fake_hub, capsys):
  assert chat.main(["--workdir=someone/else"]) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert "no network at all" in line
  assert "hf download someone/else --local-dir DIR" in line


def test_config_tokenizer_and_model_are_opened_once(directories, monkeypatch):
  calls = []

  def count_calls(module, name):
    function = getattr(module, name)

    def counted(*args, **options):
      calls.append(name)
      return function(*args, **options)

    monkeypatch.setattr(module, name, counted)

  count_calls(hf, "load_abstract")
  count_calls(hf, "read_text")
  count_calls(vocabularies, "load")
  model = t5x.load(str(directories / "gpt2"))
  assert model.predict([TEXTS["gpt2"]], max_new_tokens=1)
  assert sorted(calls) == ["load", "load_abstract", "read_text"]


def test_a_directory_without_tokenizer_is_refused(directories, tmp_path):
  hf.save(hf.load(str(directories / "t5")), str(tmp_path / "bare"))
  for file in (tmp_path / "bare").iterdir():
    if file.name not in ("config.json", "model.safetensors"):
      file.unlink()
  with pytest.raises(UserError, match="found no tokenizer beside the model"):
    t5x.load(str(tmp_path / "bare"))


def test_options_and_methods_that_a_model_lacks_are_refused(directories):
  model = t5x.load(str(directories / "gpt2"))
  with pytest.raises(UserError, match="temprature: unknown option .did you mean 'temperature'"):
    model.generate("the", temprature=0.5)
  with pytest.raises(UserError, match="a decoder fills nothing"):
    model.fill("the fox")
  with pytest.raises(UserError, match="generates no text"):
    t5x.load(str(directories / "bert")).generate("the fox")


def test_options_of_predict_are_the_generation_flags():
  flag_names = [name for name, *_ in generation_flags.GENERATION_FLAGS]
  assert list(PredictOptions.__annotations__) == flag_names


def test_importing_the_package_imports_no_framework():
  program = """
import sys, t5x_like as t5x
assert {'load', 'Run', 'Task', 'Model'} <= {*dir(t5x)}
print(*sys.modules)
"""
  process = subprocess.run(
    [sys.executable, "-c", program], cwd=REPO, capture_output=True, text=True, check=True
  )
  assert not {"jax", "numpy", "tensorflow", "flax"} & {*process.stdout.split()}

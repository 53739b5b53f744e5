"""Any model through one function: a Hugging Face directory, a name of the Hub, an imported and a
trained workdir."""

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
from t5x_like.interop import hf, hub
from t5x_like.library.model import PredictOptions
from t5x_like.nn import params
from tests.runs import REPO
from tools import convert_hf

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled")]
TEXTS = {
  "gpt2": "the quick brown",
  "t5": "the quick <extra_id_0> fox",
  "bert": "the quick [MASK] fox",
}
SHORT = [
  "total_steps=2",
  "batch_size=8",
  "eval_every=2",
  "evals={}",
  "checkpoint.every=2",
  "schedule.warmup_steps=1",
]
SHORT += [
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
  path.write_text(
    "".join(json.dumps({"text": f"{line} {line}"}) + "\n" for line in published.LINES[:60])
  )
  return f"jsonl:{path}"


def predicted(workdir, text, folder, *flags):
  (folder / "in.txt").write_text(text + "\n")
  files = [f"--input={folder}/in.txt", f"--output={folder}/out.jsonl"]
  assert predict.main([f"--workdir={workdir}", *files, *flags]) == 0
  return json.loads((folder / "out.jsonl").read_text())


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_published_model_answers_alike_in_python_and_at_the_doors(
  kind, directories, tmp_path, monkeypatch, capsys
):
  path = str(directories / kind)
  text = TEXTS[kind]
  new = {} if kind == "bert" else {"max_new_tokens": 4}
  flags = [f"--{name}={value}" for name, value in new.items()]
  answer = predicted(path, text, tmp_path, *flags)
  model = t5x.load(path)
  assert model.predict([text], **new) == [answer] and model.step == 0
  if kind == "gpt2":
    assert model.generate(text, **new) == answer["prediction"] and model.generate([], **new) == []
  else:
    assert model.fill(text) == answer["filled"] or kind == "t5"  # without a limit it may write more
  monkeypatch.setattr(sys, "stdin", io.StringIO(text + "\n"))
  capsys.readouterr()
  assert chat.main([f"--workdir={path}", "--temperature=0", *flags]) == 0
  assert (answer.get("filled") or answer["prediction"]).strip() in capsys.readouterr().out


def test_scores_and_vectors_are_the_models_own(directories, tmp_path):
  opened = t5x.load(str(directories / "gpt2"))
  model = hf.load(str(directories / "gpt2"))
  ids = [0, *opened.vocabulary.encode("the quick fox")]
  logits = np.asarray(model({"decoder_input_tokens": np.array([ids])})["logits"][0], np.float64)
  log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  by_hand = sum(log_p[place, i] for place, i in enumerate(ids[1:]))
  assert opened.score("the quick fox") == pytest.approx(by_hand, rel=1e-5)
  parts = opened.score(["the quick"], [" fox"])[0] + opened.score("the quick")
  assert parts == pytest.approx(by_hand, rel=1e-5)
  opened = t5x.load(str(directories / "bert"))
  model = hf.load(str(directories / "bert"))
  ids = [2, *opened.vocabulary.encode("the quick fox"), 3]
  mean = np.mean(model.encode({"encoder_input_tokens": np.array([ids])})[0][0], 0)
  found = opened.encode(["fox", "the quick fox"])[1]
  np.testing.assert_allclose(found, mean / np.linalg.norm(mean), atol=1e-5)
  record = predicted(directories / "bert", "the quick fox", tmp_path, "--embed")
  np.testing.assert_allclose(record["embedding"], found, atol=1e-5)
  with pytest.raises(UserError, match="encoder, which gives texts no probability"):
    opened.score("the fox")


def test_a_published_model_generates_as_its_files_say(directories, tmp_path):
  """Nothing but what its tokenizer adds stands before a text; ends and a forced first token are
  told by a file."""
  shutil.copytree(directories / "gpt2", tmp_path / "gpt2")
  ids = vocabularies.load(str(tmp_path / "gpt2")).encode(TEXTS["gpt2"])
  logits = np.asarray(
    hf.load(str(tmp_path / "gpt2"))({"decoder_input_tokens": np.array([ids])})["logits"][0, -1]
  )
  log_p = logits - np.log(np.exp(logits).sum())
  best = int(np.argmax(logits))
  (tmp_path / "gpt2" / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, best]}))
  found = t5x.load(str(tmp_path / "gpt2")).predict([TEXTS["gpt2"]], max_new_tokens=4)[0]
  assert found["prediction"] == "" and found["score"] == pytest.approx(log_p[best], abs=1e-3)
  (tmp_path / "gpt2" / "generation_config.json").write_text(json.dumps({"forced_bos_token_id": 70}))
  model = t5x.load(str(tmp_path / "gpt2"))
  found = model.predict([TEXTS["gpt2"]], max_new_tokens=1)[0]
  assert found["prediction"] == model.vocabulary.decode([70]) and found["score"] == pytest.approx(
    log_p[70], abs=1e-3
  )


def test_training_starts_from_a_directory_and_comes_back(directories, store, tmp_path):
  """Without a conversion; every tensor is loaded, and a table of questions is asked of the
  directory itself."""
  source = directories / "gpt2"
  workdir = tmp_path / "run"
  flags = [f"--config.{one}" for one in SHORT] + [f"--config.task.source={store}"]
  flags += [
    f"--config.init.workdir={source}",
    "--config=configs/gpt/gpt2_124m.py",
    f"--workdir={workdir}",
  ]
  assert train.main(flags) == 0
  assert train.main([*flags, "--config.total_steps=3"]) == 0
  report = json.loads((workdir / "init.json").read_text())
  before = params.arrays(hf.load(str(source)))
  assert sorted(report["loaded"]) == sorted(before) and not report["initialised"]
  model = t5x.load(str(workdir))
  assert (
    model.step == 3 and model.vocabulary.fingerprint == t5x.load(str(source)).vocabulary.fingerprint
  )
  model.save_hf(str(tmp_path / "exported"))
  after = params.arrays(hf.load(str(tmp_path / "exported")))
  assert all(np.array_equal(after[name], model.run.arrays[name]) for name in before)
  assert any(not np.array_equal(after[name], before[name]) for name in before)
  with pytest.raises(UserError, match="exists and is not empty"):
    model.save_hf(str(tmp_path / "exported"))


def test_imported_weights_are_used_before_a_step_is_trained(directories, tmp_path):
  flags = ["--config=configs/gpt/gpt2_124m.py", *(f"--config.{one}" for one in SHORT)]
  assert convert_hf.main([f"--input={directories}/gpt2", f"--output={tmp_path}/run", *flags]) == 0
  # of a document's beginning
  made = predicted(tmp_path / "run", TEXTS["gpt2"], tmp_path, "--max_new_tokens=4")
  given = predicted(
    directories / "gpt2", "<|endoftext|>" + TEXTS["gpt2"], tmp_path, "--max_new_tokens=4"
  )
  assert made["prediction"] == given["prediction"] and made["score"] == pytest.approx(
    given["score"], abs=1e-3
  )


def test_questions_need_no_suite(directories, tmp_path, capsys):
  (tmp_path / "asked.jsonl").write_text(
    json.dumps({"query": "the quick", "choices": ["fox", "dog"], "gold": 0}) + "\n"
  )
  flags = [
    f"--workdir={directories}/gpt2",
    f"--questions={tmp_path}/asked.jsonl",
    f"--output={tmp_path}/found",
  ]
  assert evaluate.main(flags) == 0
  found = json.loads((tmp_path / "found" / "results.json").read_text())
  assert (
    "0-shot/accuracy" in found["tasks"]["asked"]["metrics"]
    and "| asked |" in capsys.readouterr().out
  )
  assert evaluate.main([f"--workdir={directories}/gpt2"]) == 2
  assert "published model, without a config or data" in capsys.readouterr().err


@pytest.fixture
def fake_hub(directories, monkeypatch):
  """A stand-in for huggingface_hub with one model; returns the patterns of files that were asked
  for."""
  asked = []

  def snapshot_download(name, allow_patterns):
    asked.append(allow_patterns)
    if name != "someone/small":
      raise OSError("no network\nat all")
    return str(directories / "gpt2")

  monkeypatch.setitem(
    sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=snapshot_download)
  )
  hub.local_directory.cache_clear()
  yield asked
  hub.local_directory.cache_clear()


def test_a_name_of_the_hub(fake_hub, directories, tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  answer = predicted("someone/small", TEXTS["gpt2"], tmp_path, "--max_new_tokens=2")
  assert answer == predicted(directories / "gpt2", TEXTS["gpt2"], tmp_path, "--max_new_tokens=2")
  assert not any(pattern.endswith((".py", ".bin", ".pkl", "*")) for pattern in fake_hub[0])
  assert not (tmp_path / "someone").exists()
  capsys.readouterr()
  for main, flag in ((chat.main, []), (evaluate.main, ["--questions=x", "--output=out"])):
    assert main(["--workdir=someone/else", *flag]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no network at all" in line and "hf download someone/else --local-dir DIR" in line


def test_a_published_model_is_opened_once(directories, monkeypatch):
  """Its config, tokenizer and abstract model; its weights are read with these."""
  made = []
  for module, name in ((hf, "load_abstract"), (hf, "read_text"), (vocabularies, "load")):
    old = getattr(module, name)
    monkeypatch.setattr(
      module,
      name,
      lambda *args, old=old, name=name, **more: made.append(name) or old(*args, **more),
    )
  model = t5x.load(str(directories / "gpt2"))
  assert model.predict([TEXTS["gpt2"]], max_new_tokens=1)
  assert sorted(made) == ["load", "load_abstract", "read_text"]


def test_a_directory_without_its_tokenizer_and_options_that_are_not_there(directories, tmp_path):
  hf.save(hf.load(str(directories / "t5")), str(tmp_path / "bare"))
  for file in (tmp_path / "bare").iterdir():
    if file.name not in ("config.json", "model.safetensors"):
      file.unlink()
  with pytest.raises(UserError, match="found no tokenizer beside the model"):
    t5x.load(str(tmp_path / "bare"))
  model = t5x.load(str(directories / "gpt2"))
  with pytest.raises(UserError, match="temprature: unknown option .did you mean 'temperature'"):
    model.generate("the", temprature=0.5)
  with pytest.raises(UserError, match="a decoder fills nothing"):
    model.fill("the fox")
  with pytest.raises(UserError, match="generates no text"):
    t5x.load(str(directories / "bert")).generate("the fox")
  assert list(PredictOptions.__annotations__) == [
    name for name, *_ in generation_flags.GENERATION_FLAGS
  ]


def test_importing_the_package_is_cheap():
  program = (
    "import sys, t5x_like as t5x; assert {'load', 'Run', 'Task', 'Model'} <= {*dir(t5x)}; "
    "print(*sys.modules)"
  )
  done = subprocess.run(
    [sys.executable, "-c", program], cwd=REPO, capture_output=True, text=True, check=True
  )
  assert not {"jax", "numpy", "tensorflow", "flax"} & {*done.stdout.split()}

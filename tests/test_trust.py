"""Names read from files of others are not imported, through any command."""

import json
import pathlib
import pickle
import shutil
import subprocess
import sys

import pytest

from t5x_like import config as config_lib
from t5x_like import evaluate, predict, recipes, train, trust
from t5x_like.corpora.cleaning import c4
from t5x_like.corpora.sources import open_source
from t5x_like.errors import UserError
from tests.recipes import nano
from tools import convert_hf, few_shot, inspect_data

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("one_device")]
REPO = pathlib.Path(__file__).resolve().parents[1]
NANO = f"--config={nano.__file__}"
ATTACK = "subprocess:getoutput"
OWN = """
from t5x_like.objectives.encoder_decoder import Objective

class Mine(Objective):
  pass
"""


def foreign(trained, path, **changes):
  """A copy of the run with other values at dotted keys of its config."""
  copy = path / "foreign"
  shutil.copytree(trained, copy)
  config = json.loads((copy / "config.json").read_text())
  for key, value in changes.items():
    *parents, last = key.split("__")
    node = config
    for part in parents:
      node = node[part]
    node[last] = value
  (copy / "config.json").write_text(json.dumps(config))
  return copy


def check_refusal(capsys, exit_code, name=ATTACK):
  """Checks that a command ended with one line that names the function and says what to do."""
  lines = capsys.readouterr().err.strip().splitlines()
  assert exit_code == 2, lines
  assert len(lines) == 1, lines
  assert name in lines[0], lines
  return lines[0]


def commands(workdir, path):
  """Each command that opens a run, by name."""
  (path / "in.txt").write_text("a line\n")
  question = json.dumps({"context": "a", "answer": "b"})
  (path / "questions.jsonl").write_text(question + "\n")
  return {
    "predict": lambda *flags: predict.main(
      [
        f"--workdir={workdir}",
        f"--input={path}/in.txt",
        f"--output={path}/out",
        "--max_new_tokens=2",
        *flags,
      ]
    ),
    "evaluate": lambda *flags: evaluate.main([f"--workdir={workdir}", *flags]),
    "export": lambda *flags: convert_hf.main([f"--input={workdir}", f"--output={path}/hf", *flags]),
    "few_shot": lambda *flags: few_shot.main(
      [f"--workdir={workdir}", f"--input={path}/questions.jsonl", *flags]
    ),
    "init": lambda *flags: train.main(
      [
        NANO,
        f"--workdir={path}/new",
        f'--config.init={{"workdir": "{workdir}"}}',
        "--config.total_steps=1",
        *flags,
      ]
    ),
  }


@pytest.fixture
def pwned(tmp_path, monkeypatch):
  """A file that no command may make, and what makes it."""
  monkeypatch.chdir(tmp_path)
  yield {"name": ATTACK, "cmd": f"touch {tmp_path}/PWNED"}
  assert not (tmp_path / "PWNED").exists()


@pytest.mark.parametrize("slot", ["objective", "model", "evals__loss"])
@pytest.mark.parametrize("command", ["predict", "evaluate", "export", "few_shot"])
def test_a_foreign_config_runs_nothing(trained, tmp_path, capsys, pwned, slot, command):
  workdir = foreign(trained, tmp_path, **{slot: pwned})
  exit_code = commands(workdir, tmp_path)[command]()
  if slot == "evals__loss" and command in ("export", "few_shot", "predict"):
    assert exit_code == 0  # they make no evaluator, and look none up
    return
  line = check_refusal(capsys, exit_code)
  assert f"{workdir}/config.json: config." in line
  assert "--trust" in line
  assert "recipe or a flag" in line


def test_nor_the_config_that_a_run_starts_from(trained, tmp_path, capsys, pwned):
  workdir = foreign(trained, tmp_path, model=pwned)
  assert f"{workdir}/config.json: config.model.name" in check_refusal(
    capsys, commands(workdir, tmp_path)["init"]()
  )
  task = '--config.task={"name": "image_classification", "source": "digits", "resolution": 8}'
  model = '--config.model={"name": "deit", "variant": "deit-tiny"}'
  workdir.rename(tmp_path / "teacher")
  teacher = [
    "--config.objective.name=distillation",
    f'--config.teacher={{"workdir": "{tmp_path}/teacher"}}',
  ]
  exit_code = train.main([NANO, f"--workdir={tmp_path}/student", *teacher, task, model])
  assert "config.teacher.model.name" in check_refusal(capsys, exit_code)


@pytest.mark.parametrize(
  "change",
  [
    {"task__preprocessors": [ATTACK]},
    {"task__preprocessors": "subprocess:getoutput"},
    {"task": {"name": ATTACK, "cmd": "touch PWNED"}},
    {"task": {"name": "mixture", "parts": {"a": {"name": ATTACK, "cmd": "touch PWNED"}}}},
    {"task": {"name": "mlm", "store": "builtin", "sentence_rule": ATTACK}},
    {
      "task": {
        "name": "text_to_text",
        "source": f"salient:{ATTACK}@builtin",
        "inputs": "{text}",
        "targets": "{text}",
      }
    },
    {"task__source": ATTACK, "task__store": None, "task__vocabulary": "bytes"},
    {"evals__loss__task": {"name": ATTACK, "cmd": "touch PWNED"}},
    {"evals__loss__task": {"preprocessors": [ATTACK]}},
  ],
)
def test_a_foreign_task_runs_nothing(trained, tmp_path, capsys, pwned, change):
  workdir = foreign(trained, tmp_path, **change)
  check_refusal(capsys, commands(workdir, tmp_path)["evaluate"]())


def test_imported_weights_name_nothing_either(trained, tmp_path, capsys, pwned):
  (tmp_path / "new").mkdir()
  content = {"model": {"name": ATTACK, "cmd": "touch PWNED"}, "vocabulary": "0"}
  (tmp_path / "new" / "imported.json").write_text(json.dumps(content))
  check_refusal(capsys, train.main([NANO, f"--workdir={tmp_path}/new"]))


def test_functions_that_the_command_names_are_used_and_need_no_trust(
  compiled, tmp_path, capsys, monkeypatch
):
  """An objective of a user's own: in training, in resuming, and named again or trusted
  elsewhere."""
  (tmp_path / "own_objective.py").write_text(OWN)
  (tmp_path / "own_recipe.py").write_text(
    "from tests.recipes import nano\n\ndef get_config():\n  config = nano.get_config()\n"
    "  config.objective = {'name': 'own_objective:Mine'}\n  config.total_steps = 1\n  return "
    "config\n"
  )
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", [str(REPO), *sys.path])
  resume = ["--config=own_recipe.py", f"--workdir={tmp_path}/run"]
  assert train.main(resume) == 0, capsys.readouterr().err
  assert train.main([*resume, "--config.total_steps=2"]) == 0, capsys.readouterr().err
  capsys.readouterr()
  run = commands(tmp_path / "run", tmp_path)["predict"]
  check_refusal(capsys, run(), "own_objective:Mine")
  assert run("--trust") == 0, capsys.readouterr().err
  assert run("--config.objective.name=own_objective:Mine") == 0, capsys.readouterr().err
  assert run("--config=own_recipe.py") == 0, capsys.readouterr().err
  capsys.readouterr()
  check_refusal(capsys, run(), "own_objective:Mine")
  check_refusal(capsys, run("--config.objective.name=own_objective:Other"), "own_objective:Other")


def test_only_full_names_from_the_command_line_are_admitted():
  trust.begin_command(
    ['{"name": "a.b:c", "more": ["d:e"]}', {"x": [{"y": "f:g"}]}, "--flag h:i", None, 3, "[broken"]
  )
  assert trust.current_state().names == {"a.b:c", "d:e", "f:g"}
  for name in ("a.b:d", "b:c", "h:i", "os:system", "a.b:c\n", ":c", "a.b:"):
    with pytest.raises(UserError) as error:
      trust.import_function("config.task.name", name)
    assert len(str(error.value).splitlines()) == 1
  trust.begin_command(())
  with pytest.raises(
    UserError,
    match=r"config.x: found 'a.b:c', which "
    r".*--config.x=a.b:c.*--trust.*admit\('a.b:c'\)",
  ):
    trust.import_function("config.x", "a.b:c")


def test_values_of_a_saved_config_are_not_admitted_by_the_flags_beside_them():
  trust.begin_command(())
  saved = nano.get_config().to_dict() | {"mesh": {"data": ATTACK}, "objective": {"name": ATTACK}}
  config_lib.restore(saved, ["batch_size=8", f'mesh={{"data": "{ATTACK}"}}'], "saved")
  assert ATTACK not in trust.current_state().names
  recipes.load(nano.__file__, ["objective.name=some.module:Thing"])
  assert "some.module:Thing" in trust.current_state().names


@pytest.mark.parametrize("name", sorted(trust.BUILT_IN_FUNCTIONS))
def test_names_of_the_package_itself_need_no_flag(name):
  trust.begin_command(())
  assert callable(trust.import_function("config.x", name))


WORKER = """
import pickle, sys
from t5x_like import trust
c4 = pickle.load(sys.stdin.buffer)
print(c4._page_refusal("Some words here. More words. And more."), trust.current_state().names)
"""


def test_a_worker_may_import_the_language_id_of_its_command(tmp_path, monkeypatch):
  (tmp_path / "lang.py").write_text("def german(text):\n  return 'de'\n")
  monkeypatch.chdir(tmp_path)
  trust.begin_command(())
  with pytest.raises(
    UserError, match="language id: found 'lang:german', which this command does not name"
  ):
    c4.Step(language_id="lang:german")
  trust.begin_command("lang:german")
  data = pickle.dumps(c4.Step(language_id="lang:german"))
  process = subprocess.run(
    [sys.executable, "-c", WORKER], input=data, capture_output=True, env={"PYTHONPATH": str(REPO)}
  )
  assert process.stdout.decode().strip() == "not in en {'lang:german'}", process.stderr.decode()


def test_a_prepared_dataset_imports_no_module_that_its_files_name(tmp_path, monkeypatch):
  """`tensorflow_datasets` imports the class that features.json names; a foreign directory may bring
  the module too."""
  from t5x_like.quiet_tensorflow import tfds

  class Made(tfds.core.GeneratorBasedBuilder):
    name = "made_here"
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
      return tfds.core.DatasetInfo(
        builder=self, features=tfds.features.FeaturesDict({"text": tfds.features.Text()})
      )

    def _split_generators(self, _):
      return {"train": [("a", {"text": "one"})]}

    def _generate_examples(self, _):
      yield from ()

  builder = Made(data_dir=tmp_path / "data")
  builder.download_and_prepare(download_config=tfds.download.DownloadConfig(try_download_gcs=False))
  builder.data_path.parent.rename(tmp_path / "data" / "foreign")
  features = tmp_path / "data" / "foreign" / "1.0.0" / "features.json"
  for file in features.parent.iterdir():
    text = file.read_text(errors="ignore")
    if "made_here" in text:
      file.rename(file.with_name(file.name.replace("made_here", "foreign")))
      file.with_name(file.name.replace("made_here", "foreign")).write_text(
        text.replace("made_here", "foreign")
      )
  source = dict(data_dir=str(tmp_path / "data"))
  trust.begin_command(())
  assert open_source("tfds:foreign", **source).splits == ("train",)
  text = features.read_text()
  assert "tensorflow_datasets.core.features.text_feature.Text" in text
  features.write_text(
    text.replace("tensorflow_datasets.core.features.text_feature.Text", "brought_along.Text")
  )
  (tmp_path / "brought_along.py").write_text(f"open({str(tmp_path / 'PWNED')!r}, 'w')\n")
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
  with pytest.raises(UserError, match="'brought_along.Text', which is not one of TFDS"):
    open_source("tfds:foreign", **source)
  with pytest.raises(UserError, match="community dataset"):
    open_source("tfds:huggingface:foreign", **source)
  assert not (tmp_path / "PWNED").exists()


def test_the_inspector_of_data_takes_names_of_its_recipe(tmp_path, monkeypatch, capsys):
  (tmp_path / "pre.py").write_text("def same(example):\n  return example\n")
  monkeypatch.chdir(tmp_path)
  assert inspect_data.main([NANO, "--examples=1", '--config.task.preprocessors=["pre:same"]']) == 0

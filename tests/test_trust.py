"""Names read from files of others are not imported, through any command."""

import json
import pathlib
import pickle
import subprocess
import sys

import pytest

from refusals import refuses
from t5x_like import config as config_lib
from t5x_like import predict, recipes, train, trust
from t5x_like.corpora.cleaning import c4
from t5x_like.corpora.sources import open_source
from tests.recipes import nano
from tools import inspect_data

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("one_device")]
REPO = pathlib.Path(__file__).resolve().parents[1]
NANO = f"--config={nano.__file__}"
ATTACK = "subprocess:getoutput"


def refusal(capsys, exit_code: int) -> str:
  """Return the only line of a command that was refused."""
  (line,) = capsys.readouterr().err.splitlines()
  assert exit_code == 2, line
  return line


def test_imported_weights_name_no_function(tmp_path, capsys, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "new").mkdir()
  content = {"model": {"name": ATTACK, "cmd": "touch PWNED"}, "vocabulary": "0"}
  (tmp_path / "new" / "imported.json").write_text(json.dumps(content))
  assert ATTACK in refusal(capsys, train.main([NANO, f"--workdir={tmp_path}/new"]))
  assert not (tmp_path / "PWNED").exists()


OWN_OBJECTIVE = """
from t5x_like.objectives.encoder_decoder import Objective

class Mine(Objective):
  pass
"""
OWN_RECIPE = """
from tests.recipes import nano

def get_config():
  config = nano.get_config()
  config.objective = {"name": "own_objective:Mine"}
  config.total_steps = 1
  return config
"""


def test_functions_that_the_command_names_are_used_and_need_no_trust(
  compiled, tmp_path, capsys, monkeypatch
):
  """An objective of a user's own: in training, in resuming, and named again or trusted later."""
  (tmp_path / "own_objective.py").write_text(OWN_OBJECTIVE)
  (tmp_path / "own_recipe.py").write_text(OWN_RECIPE)
  (tmp_path / "in.txt").write_text("a line\n")
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", [str(REPO), *sys.path])
  resume = ["--config=own_recipe.py", f"--workdir={tmp_path}/run"]
  assert train.main(resume) == 0, capsys.readouterr().err
  assert train.main([*resume, "--config.total_steps=2"]) == 0, capsys.readouterr().err

  def run_predict(*flags):
    files = [f"--input={tmp_path}/in.txt", f"--output={tmp_path}/out", "--max_new_tokens=2"]
    capsys.readouterr()
    return predict.main([f"--workdir={tmp_path}/run", *files, *flags])

  assert "own_objective:Mine" in refusal(capsys, run_predict())
  for flag in (
    "--trust",
    "--config.objective.name=own_objective:Mine",
    "--config=own_recipe.py",
  ):
    assert run_predict(flag) == 0, capsys.readouterr().err
  assert "own_objective:Mine" in refusal(capsys, run_predict())
  other = "own_objective:Other"
  assert other in refusal(capsys, run_predict(f"--config.objective.name={other}"))


def test_only_full_names_from_the_command_line_are_admitted():
  trust.begin_command(
    ['{"name": "a.b:c", "more": ["d:e"]}', {"x": [{"y": "f:g"}]}, "--flag h:i", None, 3, "[broken"]
  )
  assert trust.current_state().names == {"a.b:c", "d:e", "f:g"}
  for name in ("a.b:d", "b:c", "h:i", "os:system", "a.b:c\n", ":c", "a.b:"):
    with refuses("config.task.name"):
      trust.import_function("config.task.name", name)
  trust.begin_command(())
  with refuses("config.x: found 'a.b:c'", "--config.x=a.b:c", "--trust", "admit('a.b:c')"):
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
  with refuses("language id: found 'lang:german', which this command does not name"):
    c4.Step(language_id="lang:german")
  trust.begin_command("lang:german")
  data = pickle.dumps(c4.Step(language_id="lang:german"))
  command = [sys.executable, "-c", WORKER]
  env = {"PYTHONPATH": str(REPO)}
  process = subprocess.run(command, input=data, capture_output=True, env=env)
  assert process.stdout.decode().strip() == "not in en {'lang:german'}", process.stderr.decode()


TEXT_FEATURE = "tensorflow_datasets.core.features.text_feature.Text"


def prepare_dataset(folder: pathlib.Path) -> pathlib.Path:
  """Prepare a data set of texts, rename it `foreign`, and return its directory."""
  from t5x_like.quiet_tensorflow import tfds

  class Builder(tfds.core.GeneratorBasedBuilder):
    name = "made_here"
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
      features = tfds.features.FeaturesDict({"text": tfds.features.Text()})
      return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, _):
      return {"train": [("a", {"text": "one"})]}

    def _generate_examples(self, _):
      yield from ()

  builder = Builder(data_dir=folder)
  without_gcs = tfds.download.DownloadConfig(try_download_gcs=False)
  builder.download_and_prepare(download_config=without_gcs)
  builder.data_path.parent.rename(folder / "foreign")
  directory = folder / "foreign" / "1.0.0"
  for file in list(directory.iterdir()):
    content = file.read_text(errors="ignore")
    if "made_here" in content:
      file.unlink()
      renamed = directory / file.name.replace("made_here", "foreign")
      renamed.write_text(content.replace("made_here", "foreign"))
  return directory


def test_a_prepared_dataset_imports_no_module_that_its_files_name(tmp_path, monkeypatch):
  """TFDS imports the class that features.json names; a foreign directory may bring the module."""
  features = prepare_dataset(tmp_path / "data") / "features.json"
  data_dir = str(tmp_path / "data")
  trust.begin_command(())
  assert open_source("tfds:foreign", data_dir=data_dir).splits == ("train",)
  assert TEXT_FEATURE in features.read_text()
  features.write_text(features.read_text().replace(TEXT_FEATURE, "brought_along.Text"))
  (tmp_path / "brought_along.py").write_text(f"open({str(tmp_path / 'PWNED')!r}, 'w')\n")
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
  with refuses("'brought_along.Text', which is not one of TFDS"):
    open_source("tfds:foreign", data_dir=data_dir)
  with refuses("community dataset"):
    open_source("tfds:huggingface:foreign", data_dir=data_dir)
  assert not (tmp_path / "PWNED").exists()


def test_the_inspector_of_data_takes_names_of_its_recipe(tmp_path, monkeypatch, capsys):
  (tmp_path / "pre.py").write_text("def same(example):\n  return example\n")
  monkeypatch.chdir(tmp_path)
  assert inspect_data.main([NANO, "--examples=1", '--config.task.preprocessors=["pre:same"]']) == 0

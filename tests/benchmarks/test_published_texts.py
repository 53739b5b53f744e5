"""`evaluate` fine-tunes and scores translations, summaries and entities from official files."""

import hashlib
import json

import pytest

from t5x_like import evaluate, train
from tests.benchmarks.small_suites import train_encoder
from tests.runs import hide_other_devices

pytestmark = [pytest.mark.more, pytest.mark.usefixtures("compiled", "one_device")]
SHORT = (
  "--config.total_steps=2",
  "--config.eval_every=2",
  "--config.checkpoint.every=2",
  "--config.batch_size=4",
)


def write(path, text: str) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(text)


def read_tasks(folder) -> dict:
  return json.loads((folder / "results.json").read_text())["tasks"]


def test_translations_and_summaries_have_their_published_scores(tmp_path, capsys):
  """The average counts BLEU and ROUGE-2 of the dev sets; test sets are scored as well."""
  data = tmp_path / "data"
  for code in ("en", "ro"):
    for corpus in ("europarl-v8.ro-en", "SETIMES.en-ro"):
      write(data / f"{corpus}.{code}", "".join(f"{code} {n}\n" for n in range(8)))
    for name in ("newsdev2016", "newstest2016"):
      side = "src" if code == "en" else "ref"
      segments = [f'<seg id="{n}">{code} {n}</seg>\n' for n in range(3)]
      write(data / f"{name}-enro-{side}.{code}.sgm", "".join(segments))
  for name, count in (("train", 8), ("val", 3), ("test", 2)):
    addresses = [f"http://www.cnn.com/{name}/{n}" for n in range(count)]
    write(data / f"all_{name}.txt", "\n".join(addresses))
    for address in addresses:
      story = data / "cnn" / "stories" / f"{hashlib.sha1(address.encode()).hexdigest()}.story"
      write(story, "It rains in Rome\n\n@highlight\n\nIt rains")
  with hide_other_devices():
    assert train.main(["--config=tests/recipes/nano.py", f"--workdir={tmp_path}/run", *SHORT]) == 0
  lengths = ("--config.task.inputs_length=64", "--config.task.targets_length=16")
  command = [
    f"--workdir={tmp_path}/run",
    "--suite=wmt,cnn_dailymail",
    "--tasks=en_ro,cnn_dailymail",
    f"--data={data}",
  ]
  status = evaluate.main([*command, f"--output={tmp_path}/out", *SHORT, *lengths])
  assert status == 0, capsys.readouterr().err
  romanian = read_tasks(tmp_path / "out" / "wmt")["en_ro"]
  assert romanian["counted"] == ["dev/bleu"]
  assert {"dev/bleu", "test/bleu"} <= romanian["metrics"].keys()
  assert romanian["metrics"]["dev/examples"] == 3
  summaries = read_tasks(tmp_path / "out" / "cnn_dailymail")["cnn_dailymail"]
  assert summaries["counted"] == ["dev/rouge2"]
  assert {"dev/rougeLsum", "test/rouge2"} <= summaries["metrics"].keys()
  assert summaries["metrics"]["test/examples"] == 2


def test_one_command_trains_berts_feature_based_tagger_on_conll(tmp_path, capsys):
  sentence = "EU NNP I-NP I-ORG\nrejects VBZ I-VP O\nGerman JJ I-NP I-MISC\n\n"
  for name in ("eng.train", "eng.testa", "eng.testb"):
    write(tmp_path / "data" / name, "-DOCSTART- -X- O O\n\n" + 8 * sentence)
  train_encoder(tmp_path / "run", "--config.batch_size=4", length=128)
  command = [
    f"--workdir={tmp_path}/run",
    "--suite=tags",
    "--tasks=conll",
    f"--data={tmp_path}/data",
  ]
  features_recipe = (
    "--config=configs/bert/features.py:last",
    f"--output={tmp_path}/out",
    "--config.model.head.hidden=8",
  )
  assert evaluate.main([*command, *features_recipe, *SHORT]) == 0, capsys.readouterr().err
  task = read_tasks(tmp_path / "out")["conll"]
  assert task["counted"] == ["dev/f1"]
  assert {"dev/f1", "test/f1"} <= task["metrics"].keys()

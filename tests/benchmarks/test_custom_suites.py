"""Suites that a user brings: a TOML file of tasks, and a module."""

import json
import sys

import pytest

import tests.recipes.nano_encoder  # noqa: F401 -- the variant that the run is of
from t5x_like import evaluate, train, trust
from t5x_like.benchmarks import custom_suites, suite, suites
from t5x_like.corpora.sources import open_source
from t5x_like.errors import UserError
from tests.runs import REPO, hide_other_devices

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled", "one_device")]
PAGE = (REPO / "docs" / "how-to" / "run-a-benchmark-suite.md").read_text()
TOML = PAGE.partition("```toml\n")[2].partition("```")[0]
TOML = TOML.replace("seeds = 3", "seeds = 2").replace("batch_size = 16", "total_steps = 3")
TOML = TOML.replace("[3e-5, 5e-5]", "[3e-5]").replace(
  "epochs = 4", 'epochs = 2\npublished = {"another model" = 71.5}'
)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory, compiled):
  workdir = tmp_path_factory.mktemp("pretrained")
  flags = ["total_steps=2", "eval_every=2", "checkpoint.every=2", "evals={}", "task.length=64"]
  flags.append('model.design.position={"name": "learned", "length": 64}')
  recipe = "--config=tests/recipes/nano_encoder.py"
  with hide_other_devices():
    assert train.main([recipe, f"--workdir={workdir}", *(f"--config.{one}" for one in flags)]) == 0
  return workdir


def command(pretrained, folder, suite: str, *flags: str) -> list[str]:
  """Evaluate a suite on 16 pairs of SICK's columns and 16 sentences of CoLA's."""
  lines = ["pair_ID\tsentence_A\tsentence_B\trelatedness_score"]
  lines += [f"{n}\ta man\ta man {'x' * (n % 3)}\t{1 + n % 5}.5" for n in range(16)]
  for name in ("SICK_train.txt", "SICK_trial.txt"):
    (folder / name).write_text("\n".join(lines) + "\n")
  (folder / "CoLA").mkdir(exist_ok=True)
  for name in ("train", "dev"):
    lines = [
      f"gj04\t{n % 2}\t\tsentence number {n}{' that is to be cut for the row' * (n % 2)}"
      for n in range(16)
    ]
    (folder / "CoLA" / f"{name}.tsv").write_text("\n".join(lines) + "\n")
  (folder / "CoLA" / "test.tsv").write_text("index\tsentence\n0\tgood\n")
  where = [
    f"--workdir={pretrained}",
    f"--suite={suite}",
    f"--data={folder}",
    f"--output={folder}/out",
  ]
  return [*where, "--config.batch_size=8", *flags]


@pytest.mark.more
def test_a_file_gives_its_tasks_their_epochs_rates_seeds_and_lengths(pretrained, tmp_path, capsys):
  (tmp_path / "mine.toml").write_text(TOML)
  words = command(
    pretrained, tmp_path, f"{tmp_path}/mine.toml", "--evaluations=2", "--no_submission"
  )
  assert evaluate.main(words) == 0, capsys.readouterr().err
  output = tmp_path / "out"
  found = json.loads((output / "results.json").read_text())
  assert found["suite"] == "mine" and found["seeds"] == 2 and not (output / "submission").exists()
  task = found["tasks"]["relatedness"]
  other = found["tasks"]["cola"]
  assert task["counted"] == ["dev/pearson", "dev/spearman"] and other["counted"] == [
    "dev/matthews_correlation"
  ]
  assert {run["rate"] for run in task["runs"]} == {3e-5} and [
    run["seed"] for run in other["runs"]
  ] == [0, 1]
  facts = [
    {key: one["facts"][key] for key in ("steps", "length", "evaluations", "examples")}
    for one in (task, other)
  ]
  assert facts[0] == {"steps": 4, "length": "64", "evaluations": 2, "examples": 16}
  assert facts[1] == {"steps": 3, "length": "48", "evaluations": 2, "examples": 16}
  # of 48 bytes, one sentence in two
  assert (task["facts"]["truncated"], other["facts"]["truncated"]) == (0.0, 50.0)
  table = (output / "results.md").read_text()
  for cell in (
    "| published |",
    "| truncated % |",
    "| 48 | 50.00 | 16 |",
    "| 71.5 another model |",
    "58.9 BERT base, 47.5 MiniLM-L6xH384, 63.6 RoBERTa base |",
  ):
    assert cell in table, table

  (output / "cola" / "recipe-1" / "result.json").unlink()  # as if killed
  (tmp_path / "mine.toml").write_text(TOML.replace("total_steps = 3", "total_steps = 4"))
  assert evaluate.main(words) == 2  # the rest of a table is not made from another one
  assert ".json: was made with table=" in capsys.readouterr().err.splitlines()[-1]
  (tmp_path / "mine.toml").write_text(TOML)
  assert evaluate.main([word.replace("evaluations=2", "evaluations=1") for word in words]) == 2
  assert (
    "was made with evaluations=2, found evaluations=1" in capsys.readouterr().err.splitlines()[-1]
  )
  with (tmp_path / "SICK_train.txt").open("a") as file:
    file.write("16\ta man\ta dog\t1.5\n")
  assert evaluate.main(words) == 2  # nor is one of other data shown as one of these
  assert (
    "was made with data=train of 373 bytes, validation of"
    in capsys.readouterr().err.splitlines()[-1]
  )


@pytest.mark.parametrize(
  ("change", "words"),
  [
    (("epochs = 2", "epocs = 2"), "relatedness.epocs: unknown key"),
    (
      ("epochs = 2", "epochs = 0"),
      "relatedness.epochs: found 0 of type int, expected a number above 0",
    ),
    (
      ('pair = "', 'scores = ["f1"]\npair = "'),
      "scores, questions: the labels are numbers, expected neither",
    ),
    (("length = 64", 'length = "64"'), "relatedness.length: found '64' of type str, expected int"),
    (
      ('form = "classification"', 'form = "label"'),
      "relatedness.form: found 'label', expected one of classification, generation",
    ),
    (
      ('form = "classification"', 'form = "labelled"'),
      "relatedness.form: found 'labelled', which is now 'classification'",
    ),
    (('text = "{sentence_A}"', ""), "relatedness.text: missing"),
    (
      ('pair = "', 'counted = ["pearson", "f1"]\npair = "'),
      "counted: found 'dev/f1', expected some of dev/pearson",
    ),
    (
      ('like = "glue/cola"', 'like = "glue/colla"'),
      "cola.like: found 'colla', expected one of cola",
    ),
    (('like = "glue/cola"', 'like = "os:getcwd/cola"'), "cola.like: found 'os:getcwd/cola'"),
    (("seeds = 2", 'seeds = 2\ntext = "{x}"'), "cola.text: found it beside like = 'glue/cola'"),
    (('{"another model" = 71.5}', '{"another model" = "good"}'), "expected numbers by name"),
    (("[relatedness]", '["../up"]'), "found the name '../up'"),
    (("[relatedness]", "[relatedness"), "cannot be read"),
    (('"task.length" = 48', '"task.lenth" = 48'), "task.lenth"),
  ],
)
def test_a_bad_file_gives_one_line(pretrained, tmp_path, capsys, change, words):
  assert change[0] in TOML
  (tmp_path / "mine.toml").write_text(TOML.replace(*change))
  capsys.readouterr()
  assert evaluate.main(command(pretrained, tmp_path, f"{tmp_path}/mine.toml")) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert words in line and "mine" in line and len(line) < 400


def test_a_bad_test_set_is_told_before_anything_is_learned(pretrained, tmp_path, capsys):
  words = command(pretrained, tmp_path, "glue", "--tasks=cola", "--config.task.length=64")
  (tmp_path / "CoLA" / "test.tsv").write_text("index\tsentence\n0\tgood\tbad\n")
  assert evaluate.main(words) == 2
  assert (
    "glue/cola: " in (line := capsys.readouterr().err.splitlines()[-1])
    and ("test.tsv:2: found 3 tab-sep") in line
  )
  assert not [*(tmp_path / "out").rglob("checkpoints")]


def test_a_suite_of_a_module_is_imported_where_the_command_names_it(
  pretrained, tmp_path, capsys, monkeypatch
):
  monkeypatch.syspath_prepend(tmp_path)
  code = "from t5x_like.benchmarks.suites import Suite, glue\n"
  code += "SUITE = Suite({'sentences': glue.SUITE.tasks['cola']})\nTASKS = SUITE.tasks\n"
  (tmp_path / "my_suites.py").write_text(code)
  words = command(
    pretrained, tmp_path, "my_suites:SUITE", "--config.total_steps=2", "--config.task.length=64"
  )
  capsys.readouterr()
  assert evaluate.main([word.replace("SUITE", "TASKS") for word in words]) == 2
  assert (
    "--suite=my_suites:TASKS: found dict, expected a `t5x_like.benchmarks.suites.Suite`"
    in capsys.readouterr().err
  )
  assert evaluate.main(words) == 0, capsys.readouterr().err
  found = json.loads((tmp_path / "out" / "results.json").read_text())
  assert found["suite"] == "my_suites" and found["tasks"].keys() == {"sentences"}
  assert not (tmp_path / "out" / "submission").exists()  # the suite tells no leaderboard
  sys.modules.pop("my_suites")


def test_a_changed_task_of_a_module_is_another(tmp_path, monkeypatch):
  """Its finished runs are refused, not read, as those of a changed TOML table."""
  monkeypatch.syspath_prepend(tmp_path)
  code = "import dataclasses\nfrom t5x_like.benchmarks.suites import Suite, glue\n"
  for number, epochs in enumerate((3, 3, 4)):
    task = f"dataclasses.replace(glue.SUITE.tasks['cola'], epochs={epochs})"
    (tmp_path / f"suite_{number}.py").write_text(code + f"SUITE = Suite({{'cola': {task}}})\n")
  names = [f"suite_{number}:SUITE" for number in range(3)]
  trust.admit(names)
  tables = [custom_suites.load_suite(name).tasks["cola"].table for name in names]
  assert (
    tables[0] == tables[1] != tables[2]
    and custom_suites.load_suite("glue").tasks["cola"].table is None
  )


def test_a_test_set_is_counted_beside_the_dev_set_or_not(tmp_path):
  table = '[%s]\nform = "classification"\nsource = "tsv:a.tsv"\ntext = "{a}"\n'
  table += 'evaluated = {dev = "validation", test = "test"}\n'
  (tmp_path / "mine.toml").write_text(
    table % "both" + table % "one" + 'counted = ["dev/spearman"]\n'
  )
  counted = {
    name: task.encoder.counted
    for name, task in custom_suites.load_suite(f"{tmp_path}/mine.toml").tasks.items()
  }
  assert counted["both"] == ("dev/pearson", "dev/spearman", "test/pearson", "test/spearman")
  assert counted["one"] == ("dev/spearman",)


def test_records_need_no_numbers(tmp_path):
  table = (
    '[who]\nform = "classification"\nsource = "tsv:train=a.tsv"\ntext = "{text}"\n'
    'labels = ["a", "b"]\n'
  )
  table += 'label_field = "kind"\n'
  (tmp_path / "mine.toml").write_text(table)
  task = custom_suites.load_suite(f"{tmp_path}/mine.toml").tasks["who"]
  assert task.encoder.evaluator["ids"] == [] and task.text.evaluator["ids"] == []
  assert (task.encoder.task["label_field"], task.text.task["targets"]) == ("kind", "{kind}")
  (tmp_path / "numbered.toml").write_text(TOML)
  assert custom_suites.load_suite(f"{tmp_path}/numbered.toml").tasks[
    "relatedness"
  ].encoder.evaluator["ids"] == ["idx"]


STARS = """[stars]
form = "classification"
files = {name = "reviews", format = "tsv", splits = {train = "a.tsv", validation = "b.tsv"}}
text = "{text}"
evaluated = {dev = "validation[:3]"}
"""


def test_splits_of_another_form_are_told(tmp_path):
  for evaluated in ('{dev = {language = "de"}}', "{dev = 5}"):
    (tmp_path / "mine.toml").write_text(STARS.replace('{dev = "validation[:3]"}', evaluated))
    with pytest.raises(
      UserError, match="stars.evaluated: found {'dev': .*, expected a split for each name"
    ):
      custom_suites.load_suite(f"{tmp_path}/mine.toml")
  for files in ("5", "[]", "[5]"):
    (tmp_path / "mine.toml").write_text(STARS.replace('"b.tsv"', files))
    task = custom_suites.load_suite(f"{tmp_path}/mine.toml").tasks["stars"]
    with pytest.raises(
      UserError, match="found no table of files .*, expected a JSON object with name, for"
    ):
      open_source(task.files.source, data_dir=str(tmp_path))


@pytest.mark.parametrize("labels", ["[1, 2, 3]", '["1", "2", "3"]'])
def test_numbers_that_name_classes_are_the_files_labels(tmp_path, labels):
  """Not the places of others: 1 is not the class after 0."""
  (tmp_path / "mine.toml").write_text(STARS + f"labels = {labels}\n")
  for name in ("a.tsv", "b.tsv"):
    (tmp_path / name).write_text("text\tlabel\n" + "".join(f"x\t{n}\n" for n in (1, 2, 3, 0)))
  task = custom_suites.load_suite(f"{tmp_path}/mine.toml").tasks["stars"]
  source = open_source(task.files.source, fields=("text", "label"), data_dir=str(tmp_path))
  # 0 is refused by the task
  assert [record["label"] for _, record in source.records("train")] == ["1", "2", "3", "0"]
  assert (
    task.encoder.task["labels"] == ["1", "2", "3"] == task.text.evaluator["metrics"][0]["classes"]
  )
  options = suite.Options(
    ["run"], tmp_path / "out", data=str(tmp_path), overrides=["total_steps=1"], max_examples=2
  )
  suite_of_task = suites.Suite({"stars": task})
  fine_tuning = suite._FineTuning("mine", suite_of_task, "stars", "encoder", "run", options)
  config = fine_tuning.config(rate=None, seed=0)
  assert config.evals.dev.split == config.eval_split == "validation[:2]"
  assert config.schedule.warmup_steps == 0  # fewer than the only step
  options = suite.Options(
    ["run"], tmp_path / "out", data=str(tmp_path), overrides=["total_steps=1"], max_examples=4
  )
  fine_tuning = suite._FineTuning("mine", suite_of_task, "stars", "encoder", "run", options)
  assert fine_tuning.config(rate=None, seed=0).eval_split == "validation[:3]"


def test_words_and_spans_need_no_files_and_no_test_split(tmp_path):
  table = (
    '[who]\nform = "tagging"\nsource = "conll:train=a,validation=b"\ntags = ["O", "B-X"]\nfield = '
    '"1"\nscore = "f1"\n'
  )
  table += (
    '[where]\nform = "span_qa"\nsource = "squad:train=a,validation=b"\nevaluated = {valid = '
    '"validation"}\n'
  )
  (tmp_path / "mine.toml").write_text(table)
  tasks = custom_suites.load_suite(f"{tmp_path}/mine.toml").tasks
  assert tasks["who"].evaluated == {"dev": "validation"} and tasks["who"].encoder.counted == (
    "dev/f1",
  )
  assert tasks["where"].encoder.counted == ("valid/exact_match", "valid/f1")

"""A user's suite, a TOML file or a module, is trained as it says, and checked before."""

import json
import sys

import pytest

from t5x_like import evaluate, trust
from t5x_like.benchmarks import custom_suites, suite, suites
from t5x_like.corpora.sources import open_source
from t5x_like.errors import UserError
from tests.benchmarks.small_suites import write_cola
from tests.runs import REPO

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled", "one_device")]
PAGE = (REPO / "docs" / "how-to" / "run-a-benchmark-suite.md").read_text()
# The example of the page, with less to train.
TOML = PAGE.partition("```toml\n")[2].partition("```")[0]
TOML = TOML.replace("seeds = 3", "seeds = 2")
TOML = TOML.replace("batch_size = 16", "total_steps = 3")
TOML = TOML.replace("[3e-5, 5e-5]", "[3e-5]")
TOML = TOML.replace("epochs = 4", 'epochs = 2\npublished = {"another model" = 71.5}')


def suite_flags(pretrained, folder, suite: str, *flags: str) -> list[str]:
  """Write 16 pairs in SICK's columns and 16 sentences in CoLA's; return the flags of a suite."""
  lines = ["pair_ID\tsentence_A\tsentence_B\trelatedness_score"]
  lines += [f"{n}\ta man\ta man {'x' * (n % 3)}\t{1 + n % 5}.5" for n in range(16)]
  for name in ("SICK_train.txt", "SICK_trial.txt"):
    (folder / name).write_text("\n".join(lines) + "\n")
  endings = ("", " that is to be cut for the row")
  write_cola(folder, [f"sentence number {n}{endings[n % 2]}" for n in range(16)], ["good"])
  return [
    f"--workdir={pretrained}",
    f"--suite={suite}",
    f"--data={folder}",
    f"--output={folder}/out",
    "--config.batch_size=8",
    *flags,
  ]


@pytest.mark.more
def test_a_file_gives_its_tasks_their_epochs_rates_seeds_and_lengths(pretrained, tmp_path, capsys):
  (tmp_path / "mine.toml").write_text(TOML)
  flags = suite_flags(
    pretrained, tmp_path, f"{tmp_path}/mine.toml", "--evaluations=2", "--no_submission"
  )
  assert evaluate.main(flags) == 0, capsys.readouterr().err
  output = tmp_path / "out"
  results = json.loads((output / "results.json").read_text())
  assert results["suite"] == "mine"
  assert results["seeds"] == 2
  assert not (output / "submission").exists()
  relatedness = results["tasks"]["relatedness"]
  cola = results["tasks"]["cola"]
  assert relatedness["counted"] == ["dev/pearson", "dev/spearman"]
  assert cola["counted"] == ["dev/matthews_correlation"]
  assert {run["rate"] for run in relatedness["runs"]} == {3e-5}
  assert [run["seed"] for run in cola["runs"]] == [0, 1]
  expected = {"steps": 4, "length": "64", "evaluations": 2, "examples": 16, "truncated": 0.0}
  assert expected.items() <= relatedness["facts"].items()
  # Every other sentence is longer than 48 bytes.
  expected = {"steps": 3, "length": "48", "evaluations": 2, "examples": 16, "truncated": 50.0}
  assert expected.items() <= cola["facts"].items()
  table = (output / "results.md").read_text()
  for cell in (
    "| published |",
    "| truncated % |",
    "| 48 | 50.00 | 16 |",
    "| 71.5 another model |",
    "58.9 BERT base, 47.5 MiniLM-L6xH384, 63.6 RoBERTa base |",
  ):
    assert cell in table, table
  assert_changed_inputs_are_refused(flags, tmp_path, capsys)


def assert_changed_inputs_are_refused(flags, tmp_path, capsys):
  """Assert that a table is not completed with another suite, other flags or other data."""
  output = tmp_path / "out"
  (output / "cola" / "recipe-1" / "result.json").unlink()  # as if killed
  (tmp_path / "mine.toml").write_text(TOML.replace("total_steps = 3", "total_steps = 4"))
  assert evaluate.main(flags) == 2
  assert ".json: was made with table=" in capsys.readouterr().err.splitlines()[-1]
  (tmp_path / "mine.toml").write_text(TOML)
  assert evaluate.main([flag.replace("evaluations=2", "evaluations=1") for flag in flags]) == 2
  error = capsys.readouterr().err.splitlines()[-1]
  assert "was made with evaluations=2, found evaluations=1" in error
  with (tmp_path / "SICK_train.txt").open("a") as file:
    file.write("16\ta man\ta dog\t1.5\n")
  assert evaluate.main(flags) == 2
  error = capsys.readouterr().err.splitlines()[-1]
  assert "was made with data=train of 373 bytes, validation of" in error


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
      "found scores or questions for labels that are numbers, expected neither",
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
  assert evaluate.main(suite_flags(pretrained, tmp_path, f"{tmp_path}/mine.toml")) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert words in line
  assert "mine" in line
  assert len(line) < 400


def test_a_bad_test_set_is_reported_before_training(pretrained, tmp_path, capsys):
  flags = suite_flags(pretrained, tmp_path, "glue", "--tasks=cola", "--config.task.length=64")
  (tmp_path / "CoLA" / "test.tsv").write_text("index\tsentence\n0\tgood\tbad\n")
  assert evaluate.main(flags) == 2
  error = capsys.readouterr().err.splitlines()[-1]
  assert "glue/cola: " in error
  assert "test.tsv:2: found 3 tab-sep" in error
  assert not [*(tmp_path / "out").rglob("checkpoints")]


def test_a_suite_of_a_module_is_imported_where_the_command_names_it(
  pretrained, tmp_path, capsys, monkeypatch
):
  monkeypatch.syspath_prepend(tmp_path)
  code = "from t5x_like.benchmarks.suites import Suite, glue\n"
  code += "SUITE = Suite({'sentences': glue.SUITE.tasks['cola']})\nTASKS = SUITE.tasks\n"
  (tmp_path / "my_suites.py").write_text(code)
  flags = suite_flags(
    pretrained, tmp_path, "my_suites:SUITE", "--config.total_steps=2", "--config.task.length=64"
  )
  capsys.readouterr()
  assert evaluate.main([flag.replace("SUITE", "TASKS") for flag in flags]) == 2
  error = "--suite=my_suites:TASKS: found dict, expected a `t5x_like.benchmarks.suites.Suite`"
  assert error in capsys.readouterr().err
  assert evaluate.main(flags) == 0, capsys.readouterr().err
  results = json.loads((tmp_path / "out" / "results.json").read_text())
  assert results["suite"] == "my_suites"
  assert results["tasks"].keys() == {"sentences"}
  assert not (tmp_path / "out" / "submission").exists()  # the suite names no leaderboard
  sys.modules.pop("my_suites")


def test_a_changed_task_of_a_module_has_another_fingerprint(tmp_path, monkeypatch):
  """Finished runs of the older task are then refused, as with a changed TOML table."""
  monkeypatch.syspath_prepend(tmp_path)
  code = "import dataclasses\nfrom t5x_like.benchmarks.suites import Suite, glue\n"
  for number, epochs in enumerate((3, 3, 4)):
    task = f"dataclasses.replace(glue.SUITE.tasks['cola'], epochs={epochs})"
    (tmp_path / f"suite_{number}.py").write_text(code + f"SUITE = Suite({{'cola': {task}}})\n")
  names = [f"suite_{number}:SUITE" for number in range(3)]
  trust.admit(names)
  first, same, changed = [custom_suites.load_suite(name).tasks["cola"].table for name in names]
  assert first == same
  assert first != changed


def test_a_task_of_a_published_suite_has_no_fingerprint():
  assert custom_suites.load_suite("glue").tasks["cola"].table is None


def load_tasks(folder, toml: str) -> dict:
  """Return the tasks of a suite written as TOML."""
  (folder / "mine.toml").write_text(toml)
  return custom_suites.load_suite(f"{folder}/mine.toml").tasks


TWO_SETS = """
form = "classification"
source = "tsv:a.tsv"
text = "{a}"
evaluated = {dev = "validation", test = "test"}
"""


def test_scores_of_all_sets_count_unless_the_task_names_some(tmp_path):
  toml = "[both]" + TWO_SETS + "[dev_only]" + TWO_SETS + 'counted = ["dev/spearman"]\n'
  tasks = load_tasks(tmp_path, toml)
  all_scores = ("dev/pearson", "dev/spearman", "test/pearson", "test/spearman")
  assert tasks["both"].encoder.counted == all_scores
  assert tasks["dev_only"].encoder.counted == ("dev/spearman",)


KINDS = """
[who]
form = "classification"
source = "tsv:train=a.tsv"
text = "{text}"
labels = ["a", "b"]
label_field = "kind"
"""


def test_predictions_hold_the_numbers_of_records_that_have_them(tmp_path):
  task = load_tasks(tmp_path, KINDS)["who"]
  assert task.encoder.evaluator["ids"] == []
  assert task.text.evaluator["ids"] == []
  assert load_tasks(tmp_path, TOML)["relatedness"].encoder.evaluator["ids"] == ["idx"]


def test_the_field_of_labels_is_the_label_of_encoders_and_the_target_of_texts(tmp_path):
  task = load_tasks(tmp_path, KINDS)["who"]
  assert task.encoder.task["label_field"] == "kind"
  assert task.text.task["targets"] == "{kind}"


STARS = """[stars]
form = "classification"
files = {name = "reviews", format = "tsv", splits = {train = "a.tsv", validation = "b.tsv"}}
text = "{text}"
evaluated = {dev = "validation[:3]"}
"""


@pytest.mark.parametrize("evaluated", ['{dev = {language = "de"}}', "{dev = 5}"])
def test_an_evaluated_set_that_is_no_split_is_refused(evaluated, tmp_path):
  toml = STARS.replace('{dev = "validation[:3]"}', evaluated)
  words = "stars.evaluated: found {'dev': .*, expected a split for each name"
  with pytest.raises(UserError, match=words):
    load_tasks(tmp_path, toml)


@pytest.mark.parametrize("files", ["5", "[]", "[5]"])
def test_a_split_whose_file_is_no_name_is_refused(files, tmp_path):
  task = load_tasks(tmp_path, STARS.replace('"b.tsv"', files))["stars"]
  words = "found no table of files .*, expected a JSON object with name, for"
  with pytest.raises(UserError, match=words):
    open_source(task.files.source, data_dir=str(tmp_path))


def write_stars(folder) -> None:
  for name in ("a.tsv", "b.tsv"):
    (folder / name).write_text("text\tlabel\nx\t1\nx\t2\nx\t3\nx\t0\n")


@pytest.mark.parametrize("labels", ["[1, 2, 3]", '["1", "2", "3"]'])
def test_numbers_that_name_classes_are_the_files_labels(tmp_path, labels):
  """They are not places in a list of labels: 1 is not the class after 0, which the task refuses."""
  write_stars(tmp_path)
  task = load_tasks(tmp_path, STARS + f"labels = {labels}\n")["stars"]
  source = open_source(task.files.source, fields=("text", "label"), data_dir=str(tmp_path))
  assert [record["label"] for _, record in source.records("train")] == ["1", "2", "3", "0"]
  assert task.encoder.task["labels"] == ["1", "2", "3"]
  assert task.text.evaluator["metrics"][0]["classes"] == ["1", "2", "3"]


@pytest.mark.parametrize("max_examples, split", [(2, "validation[:2]"), (4, "validation[:3]")])
def test_max_examples_shorten_a_split_but_do_not_extend_it(max_examples, split, tmp_path):
  write_stars(tmp_path)
  task = load_tasks(tmp_path, STARS + "labels = [1, 2, 3]\n")["stars"]
  options = suite.Options(
    ["run"],
    tmp_path / "out",
    data=str(tmp_path),
    overrides=["total_steps=1"],
    max_examples=max_examples,
  )
  suite_of_task = suites.Suite({"stars": task})
  fine_tuning = suite._FineTuning("mine", suite_of_task, "stars", "encoder", "run", options)
  config = fine_tuning.config(rate=None, seed=0)
  assert config.evals.dev.split == config.eval_split == split
  assert config.schedule.warmup_steps == 0  # warmup is shorter than the only step


TAGS_AND_SPANS = """
[who]
form = "tagging"
source = "conll:train=a,validation=b"
tags = ["O", "B-X"]
field = "1"
score = "f1"

[where]
form = "span_qa"
source = "squad:train=a,validation=b"
evaluated = {valid = "validation"}
"""


def test_tagging_and_spans_need_no_files_and_no_test_split(tmp_path):
  tasks = load_tasks(tmp_path, TAGS_AND_SPANS)
  assert tasks["who"].evaluated == {"dev": "validation"}
  assert tasks["who"].encoder.counted == ("dev/f1",)
  assert tasks["where"].encoder.counted == ("valid/exact_match", "valid/f1")

"""Fine-tuning starts from another run, may train a part of it, and makes a suite's table."""

import collections
import dataclasses
import json
import pathlib
import shutil
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import json_lines
import tests.recipes.nano_decoder  # noqa: F401 -- registers the variant of the recipe
from fine_tuning import fine_tuning
from t5x_like import evaluate, recipes, train
from t5x_like.errors import UserError
from t5x_like.metrics import resampling
from t5x_like.metrics.classification import Accuracy
from t5x_like.models import bert
from t5x_like.nn import params
from t5x_like.report.writer import read_metrics
from t5x_like.training.build import build_parts
from t5x_like.training.resolve import resolve
from t5x_like.tunings import head
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary
from tests.benchmarks.small_suites import (
  ENCODER,
  SHORT_RUN,
  SHORT_TUNING,
  train_encoder,
  write_cola,
)
from tests.runs import hide_other_devices, load_tensors

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled", "one_device")]


def fine_tuning_command(pretrained, folder, *flags: str) -> list[str]:
  """Return the flags of a run that fine-tunes the pretrained model on classification."""
  data_flags = [f"--config.{override}" for override in fine_tuning("classification", folder)]
  init = f"--config.init={json.dumps({'workdir': str(pretrained)})}"
  return [f"--config={ENCODER}", f"--workdir={folder}/run", *SHORT_RUN, *data_flags, init, *flags]


def test_a_run_begins_with_the_weights_of_another_and_a_new_head(pretrained, tmp_path, capsys):
  """All other tensors are loaded bit by bit; a longer table of positions repeats its rows."""
  longer = '--config.model.design={"position": {"name": "learned", "length": 100}}'
  frozen = (
    "--config.schedule.learning_rate=0.0",
    "--config.optimizer.weight_decay=0.0",
    "--config.task.length=100",
  )
  status = train.main(fine_tuning_command(pretrained, tmp_path, longer, *frozen))
  output = capsys.readouterr()
  assert status == 0, output.err
  report = json.loads((tmp_path / "run" / "init.json").read_text())
  assert report["initialised"] == ["head/out/bias", "head/out/kernel"]
  assert "head/pooler/dense/kernel" in report["loaded"]
  assert report["resized"] == {"inputs/position/table": "64 to 100 rows"}
  assert all(name.startswith("head/") for name in report["ignored"])
  assert "tensors loaded" in output.out
  assert "ignored:     head/mlm" in output.out
  before = load_tensors(pretrained, 2)
  after = load_tensors(tmp_path / "run", 2)
  for name in report["loaded"]:
    old = before[f"params/{name}"]
    new = after[f"params/{name}"]
    if name in report["resized"]:
      old = old[np.arange(len(new)) % len(old)]
    np.testing.assert_array_equal(new, old, err_msg=name)
  config = json.loads((tmp_path / "run" / "config.json").read_text())
  assert config["model"]["vocab_size"] == before["params/embed/table"].shape[0]


@pytest.mark.parametrize(
  ("override", "words"),
  [
    ('init={"workdir": "nowhere"}', "config.init.workdir: nowhere is neither a directory here"),
    ("init.wrkdir=x", "config.init.wrkdir: unknown key (did you mean 'workdir'?)"),
    ("task.vocabulary=TMP/other", "is not the vocabulary that"),
    ("tuning.name=haed", "did you mean 'head'"),
    ('selection={"metric": "eval/x/accuracy", "patience": 0}', "patience: found 0"),
  ],
)
def test_an_impossible_start_is_refused_in_one_line(override, words, pretrained, tmp_path):
  ByteVocabulary(7).save(tmp_path / "other")
  overrides = [
    *fine_tuning("classification", tmp_path),
    f"init={json.dumps({'workdir': str(pretrained)})}",
    override.replace("TMP", str(tmp_path)),
  ]
  with pytest.raises(UserError) as error:
    resolve(recipes.load(ENCODER, overrides))
  assert words in str(error.value)
  assert "\n" not in str(error.value)


def test_a_run_whose_config_spells_out_its_variant_can_be_started_from(pretrained, tmp_path):
  """There are as many positions as the rows of the task are long."""
  config = json.loads((pretrained / "config.json").read_text())
  config["model"]["variant"] = dataclasses.asdict(bert.VARIANTS["nano"])
  (tmp_path / "run").mkdir()
  (tmp_path / "run" / "config.json").write_text(json.dumps(config))
  shutil.copytree(pretrained / "vocabulary", tmp_path / "run" / "vocabulary")
  overrides = [*fine_tuning("classification", tmp_path), "task.length=100"]
  init = f"init={json.dumps({'workdir': str(tmp_path / 'run')})}"
  model = build_parts(resolve(recipes.load(ENCODER, [*overrides, init]))).model
  assert model.variant.dims == bert.VARIANTS["nano"].dims
  assert model.variant.design.position["length"] == 100


def build_classifier_parts(tmp_path, *overrides: str):
  data_overrides = fine_tuning("classification", tmp_path)
  return build_parts(resolve(recipes.load(ENCODER, [*data_overrides, *overrides])))


def test_tuning_the_head_updates_it_alone_and_keeps_no_other_state(tmp_path):
  built = build_classifier_parts(tmp_path, "tuning.name=head", "schedule.warmup_steps=0")
  arrays = params.arrays(jax.jit(built.make_model)(jax.random.key(0)))
  state = built.optimizer.init(arrays)
  assert sum(x.size for x in jax.tree.leaves(state)) < arrays["embed/table"].size
  grads = jax.tree.map(jnp.ones_like, arrays)
  updates, _ = built.optimizer.update(grads, state, arrays, step=jnp.int32(1))
  for update in updates.values():
    assert np.abs(update).max() > 0
  assert updates.keys() == built.trained == {name for name in arrays if name.startswith("head/")}


@pytest.mark.more
def test_adapters_and_a_head_for_labels_are_trained_together(tmp_path):
  built = build_classifier_parts(
    tmp_path, "tuning.name=lora", 'tuning.targets=["*"]', "tuning.rank=2"
  )
  names = params.named_params(built.model)
  adapters = {name for name in names if name.endswith(("lora_a", "lora_b"))}
  head_names = {name for name in names if name.startswith("head/")}
  assert built.trained == adapters | head_names
  assert not any(name.endswith("lora_a") for name in head_names)


@pytest.mark.more
def test_layer_decay_halves_the_update_from_layer_to_layer(tmp_path):
  plain = build_classifier_parts(tmp_path)
  decayed = build_classifier_parts(tmp_path, "tuning.name=layer_decay", "tuning.rate=0.5")
  arrays = params.arrays(jax.jit(plain.make_model)(jax.random.key(0)))
  grads = jax.tree.map(jnp.ones_like, arrays)

  def compute_updates(parts):
    state = parts.optimizer.init(arrays)
    return parts.optimizer.update(grads, state, arrays, step=jnp.int32(3))[0]

  plain_updates = compute_updates(plain)
  updates = compute_updates(decayed)
  rates = {"embed/table": 0.125, "inputs/types/table": 0.125, "head/out/kernel": 1.0}
  for name, rate in rates.items():
    np.testing.assert_allclose(updates[name], rate * plain_updates[name], rtol=1e-6)
  kernel = updates["encoder/blocks/mlp/layer/wi/kernel"]
  plain_kernel = plain_updates["encoder/blocks/mlp/layer/wi/kernel"]
  for layer, rate in enumerate((0.25, 0.5)):
    np.testing.assert_allclose(kernel[layer], rate * plain_kernel[layer], rtol=1e-6)


def test_tuning_the_head_of_a_model_without_one_is_refused():
  with pytest.raises(UserError, match="no head to train alone"):
    head.Tuning().trained_names({"embed/table": None})


def read_evaluated_steps(workdir) -> list[int]:
  return [row["step"] for row in read_metrics(workdir) if "eval/dev/accuracy" in row]


@pytest.mark.heavy
def test_training_stops_when_patience_ends(pretrained, tmp_path, capsys):
  """With a rate of zero no evaluation is better than the first."""
  flags = (
    "--config.total_steps=40",
    "--config.eval_every=1",
    "--config.schedule.learning_rate=0.0",
    "--config.optimizer.weight_decay=0.0",
    '--config.evals={"dev": {"name": "classification"}}',
    '--config.selection={"metric": "eval/dev/accuracy", "patience": 2}',
  )
  command = fine_tuning_command(pretrained, tmp_path, *flags)
  assert train.main(command) == 0, capsys.readouterr().err
  assert read_evaluated_steps(tmp_path / "run") == [1, 2, 3]
  assert "stopping" in capsys.readouterr().out
  # A finished run stays finished.
  assert train.main(command) == 0
  assert read_evaluated_steps(tmp_path / "run") == [1, 2, 3]


def write_glue(folder) -> str:
  """Write 24 examples of CoLA and SST-2 without a split to train on; return the flag --data."""
  raw = folder / "raw"
  words = ("bad", "good")
  sentences = [f"{words[n % 2]} sentence {n}" for n in range(24)]
  write_cola(raw, sentences, ["good sentence", "bad one"])
  (raw / "SST-2").mkdir()
  (raw / "SST-2" / "dev.tsv").write_text("sentence\tlabel\nfine\t1\n")
  return f"--data={raw}"


def test_a_suite_makes_one_table_and_goes_on_where_it_stopped(pretrained, tmp_path, capsys):
  data = write_glue(tmp_path)
  suites_output = tmp_path / "out"
  command = [f"--workdir={pretrained}", "--suite=glue,tags", data, f"--output={suites_output}"]
  command += SHORT_TUNING
  assert evaluate.main(command) == 0, capsys.readouterr().err
  suites_table = (suites_output / "results.md").read_text()
  assert suites_table in capsys.readouterr().out
  assert "| glue/cola |" in suites_table
  assert "| tags/pos | – |" in suites_table
  glue_output = suites_output / "glue"
  assert list((pretrained / "suites" / "prepared").glob("CoLA-train-*"))
  assert not (glue_output / "prepared").exists()
  table = (glue_output / "results.md").read_text()
  assert "| cola |" in table
  assert "found none of the files of MRPC, MRPC/train.tsv" in table
  assert "has no split 'train', only validation" in table
  results = json.loads((glue_output / "results.json").read_text())
  assert results["tasks"].keys() == {"cola"}
  assert results["average"] is None
  assert len(results["missing"]) == 8
  page = (glue_output / "results.html").read_text()
  assert page.count("<svg") == 2
  assert "matthews_correlation by step" in page
  assert "targets and predictions" in page
  header, *submitted = (glue_output / "submission" / "CoLA.tsv").read_text().splitlines()
  assert header == "index\tprediction"
  assert [line.split("\t")[0] for line in submitted] == ["0", "1"]
  run = glue_output / "cola" / "recipe-0"
  predictions = json_lines.read(run / "predictions" / "dev.jsonl")
  assert len(predictions) == 24
  assert {"idx", "input", "target", "prediction"} <= predictions[0].keys()

  (run / "result.json").unlink()  # as if killed before it was written
  assert evaluate.main(command) == 0
  assert json.loads((glue_output / "results.json").read_text()) == results
  assert (glue_output / "results.md").read_text() == table
  assert (suites_output / "results.md").read_text() == suites_table

  capsys.readouterr()
  assert evaluate.main([*command, "--config.total_steps=3"]) == 2
  error = "result.json: was made with config.total_steps=2, found config.total_steps=3"
  assert error in capsys.readouterr().err
  assert json.loads((glue_output / "results.json").read_text()) == results


class FinishedSuite(NamedTuple):
  """A suite of one task with two seeds, which began from step 2 of a run with the steps 2 and 4.

  Attributes:
    command: the flags of the suite, without its step and its output.
    output: the directory of its results.
    folders: the workdir of each seed.
  """

  command: list[str]
  output: pathlib.Path
  folders: list[pathlib.Path]


@pytest.fixture(scope="module")
def finished_suite(tmp_path_factory, compiled) -> FinishedSuite:
  folder = tmp_path_factory.mktemp("finished")
  train_encoder(folder / "bert", "--config.total_steps=4")
  command = [
    f"--workdir={folder / 'bert'}",
    "--suite=glue",
    "--tasks=cola",
    write_glue(folder),
    "--config.task.buckets=1",
    "--config.total_steps=4",
    "--config.eval_every=2",
    "--config.batch_size=8",
    "--config.task.length=64",
    "--seeds=2",
    "--rates=2e-3",
  ]
  output = folder / "out"
  with hide_other_devices():
    assert evaluate.main([*command, f"--output={output}", "--step=2"]) == 0
  return FinishedSuite(command, output, [output / "cola" / f"0.002-{seed}" for seed in range(2)])


def test_a_suite_starts_from_the_step_and_describes_the_median_run(finished_suite):
  """Of two seeds, the run with the lower score is the median; its metrics and facts are shown."""
  results = []
  for folder in finished_suite.folders:
    assert json.loads((folder / "init.json").read_text())["step"] == 2
    results.append(json.loads((folder / "result.json").read_text()))
  median = min(results, key=lambda result: result["score"])
  task = json.loads((finished_suite.output / "results.json").read_text())["tasks"]["cola"]
  scores = [result["score"] for result in results]
  assert scores[0] != scores[1], "the two seeds score the same, so that nothing is shown"
  assert task["score"] == median["score"]
  assert task["metrics"] == median["metrics"]
  assert task["best"] == max(scores)
  assert task["spread"] == max(scores) - min(scores)
  expected_facts = {"evaluations": 2, "steps": 4, "batch_size": 8, "length": "64", "examples": 24}
  assert expected_facts.items() <= task["facts"].items()
  mean_scores = []
  for row in read_metrics(median["workdir"]):
    if "eval/dev/matthews_correlation" in row:
      mean_scores.append(np.mean([row[f"eval/{name}"] or 0.0 for name in task["counted"]]))
  assert len(mean_scores) == 2
  assert task["facts"]["last"] == pytest.approx(mean_scores[-1])
  assert any(task["score"] == pytest.approx(score) for score in mean_scores)
  rows = json_lines.read(f"{median['workdir']}/predictions/dev.jsonl")
  label_counts = collections.Counter(row["target"] for row in rows)
  majority_share = max(label_counts.values()) / len(rows)
  majority_scores = {"dev/matthews_correlation": 0.0, "dev/accuracy": 100 * majority_share}
  majority = np.mean([majority_scores[name] for name in task["counted"]])
  assert task["facts"]["majority"] == pytest.approx(majority)


def test_evaluate_writes_the_intervals_of_scores(finished_suite, tmp_path, capsys):
  """They are those of the predictions beside them, as in a suite's table."""
  run = shutil.copytree(finished_suite.folders[0], tmp_path / "run")
  capsys.readouterr()
  assert evaluate.main([f"--workdir={run}", "--evals=dev"]) == 0, capsys.readouterr().err
  printed = capsys.readouterr().out
  (path,) = (run / "evaluations").glob("*_dev_*.json")
  intervals = json.loads(path.read_text())["intervals"]
  rows = json_lines.read(path.with_suffix(".jsonl"))
  right = [row["prediction"] == row["target"] for row in rows]
  expected = resampling.score_intervals(Accuracy(), Accuracy().compute_rows([True] * 24, right))
  assert intervals["accuracy"] == pytest.approx(expected["accuracy"])
  assert "matthews_correlation" in intervals
  assert resampling.format_interval(intervals["accuracy"]) in printed


@pytest.mark.parametrize("file", ["results.md", "results.html"])
def test_a_table_states_the_facts_of_the_median_run(file, finished_suite):
  task = json.loads((finished_suite.output / "results.json").read_text())["tasks"]["cola"]
  text = (finished_suite.output / file).read_text()
  for words in (
    "(up to 2), chosen by the",
    "the lower of the middle two",
    f"{task['facts']['last']:.2f}",
    "4 of 8",
    f"jax {jax.__version__}",
  ):
    assert words in text


def test_a_suite_does_not_go_on_from_another_step(finished_suite, tmp_path, capsys):
  output = shutil.copytree(finished_suite.output, tmp_path / "out")
  (output / "cola" / "0.002-0" / "result.json").unlink()  # as if killed
  for step_flags in (["--step=4"], []):  # 4 is also the newest
    capsys.readouterr()
    assert evaluate.main([*finished_suite.command, f"--output={output}", *step_flags]) == 2
    assert "was made with step=[2], found step=[4]" in capsys.readouterr().err.splitlines()[-1]


def test_a_suite_from_a_step_without_checkpoint_is_refused(finished_suite, tmp_path, capsys):
  capsys.readouterr()
  assert evaluate.main([*finished_suite.command, f"--output={tmp_path}/none", "--step=3"]) != 0
  (error,) = capsys.readouterr().err.splitlines()
  assert "3" in error
  assert "checkpoint" in error


@pytest.mark.more
def test_a_suite_of_several_checkpoints_is_a_table_by_step(pretrained, tmp_path, capsys):
  output = tmp_path / "out"
  suite = [
    f"--workdir={pretrained}",
    "--suite=glue",
    "--tasks=cola",
    write_glue(tmp_path),
    f"--output={output}",
    *SHORT_TUNING,
  ]
  assert evaluate.main([*suite, "--steps=2,1,2", "--max_examples=8"]) == 0, capsys.readouterr().err
  scores = []
  for step in (1, 2):
    folder = output / f"step-{step}" / "cola" / "recipe-0"
    assert json.loads((folder / "init.json").read_text())["step"] == step
    scores.append(json.loads((folder / "result.json").read_text())["score"])
  table_by_step = json.loads((output / "steps.json").read_text())
  assert table_by_step["steps"] == [1, 2]
  assert table_by_step["tasks"] == {"cola": scores}
  assert table_by_step["mean"] == scores
  table = (output / "steps.md").read_text()
  interval = table_by_step["intervals"]["cola"][1]
  cell = f"{scores[1]:.2f} ({interval['low']:.1f} to {interval['high']:.1f})"
  assert f"| 2 | {cell} | {scores[1]:.2f} |" in table
  assert table in capsys.readouterr().out
  assert evaluate.main([*suite, "--steps=2,3"]) == 2
  error = capsys.readouterr().err.splitlines()[-1]
  assert f"--steps: found no checkpoint of step 3 in {pretrained}, expected some of 1, 2" in error


@pytest.mark.parametrize(
  ("flags", "words"),
  [
    (["--suite=glue", "--steps=1", "--step=2"], "--step: not with --steps"),
    (["--suite=glue", "--steps=1,two"], "found 'two', expected a whole number"),
    (["--steps=1,2"], "--steps: only for a suite"),
    (["--suite=glue", "--evals=dev"], "--evals: a suite has its own evaluations"),
    (["--suite=glue", "--step=2", "--from_scratch"], "--step: --from_scratch takes no checkpoint"),
    (["--suite=glue", "--shots=5"], "--shots: only for --questions"),
    (["--suite="], "--suite: found"),
    (["--seeds=3", "--tasks=cola"], "--tasks, --seeds: only for a suite"),
    (["--max_examples=4"], "--max_examples: only for a suite"),
    (["--rates=1e-3", "--epochs=2"], "--rates, --epochs: only for a suite"),
    (
      ["--output=x", "--data=w", "--data_dir=y", "--compare=z"],
      "--output, --data, --data_dir, --compare: only for",
    ),
    (["--from_scratch"], "--from_scratch: only for a suite"),
    (["--questions=q.jsonl", "--shots=0"], "holds encoders"),
  ],
)
def test_a_flag_without_effect_is_refused(flags, words, pretrained, capsys):
  assert evaluate.main([f"--workdir={pretrained}", *flags]) == 2
  (error,) = capsys.readouterr().err.splitlines()
  assert words in error


@pytest.mark.more
def test_a_decoder_is_fine_tuned_on_a_suite_and_answers_questions_without(
  pretrained, tmp_path, capsys
):
  """Its last token is classified and it trains its language model too, as GPT does.

  Of the two given workdirs the first is used.
  """
  data = write_glue(tmp_path)
  question = {"query": "one and one is", "choices": ["two", "three"]}
  json_lines.write(tmp_path / "sums.jsonl", [question | {"gold": n % 2} for n in range(4)])
  workdir = tmp_path / "gpt"
  output = tmp_path / "out"
  recipe = "--config=tests/recipes/nano_decoder.py"
  assert train.main([recipe, f"--workdir={workdir}", *SHORT_RUN]) == 0
  command = [
    f"--workdir={workdir},{pretrained}",
    "--suite=glue",
    f"--questions={tmp_path}/su*.jsonl",
    "--max_examples=6",
    data,
    f"--output={output}",
    *SHORT_TUNING,
  ]
  assert evaluate.main(command) == 0, capsys.readouterr().err
  results = json.loads((output / "results.json").read_text())
  assert results["tasks"].keys() == {"glue/cola", "questions/sums"}
  assert results["tasks"]["questions/sums"]["score"] == 50  # every question has the same choices
  assert results["mean"] == results["tasks"]["glue/cola"]["score"]
  assert not (output / "glue" / "submission").exists()  # --max_examples makes no submission
  capsys.readouterr()
  assert evaluate.main(command) == 0
  assert "questions/sums: 0-shot: asked 0 of 4 questions" in capsys.readouterr().out
  assert json.loads((output / "results.json").read_text()) == results
  run = output / "glue" / "cola" / "recipe-0"
  assert json.loads((run / "config.json").read_text())["objective"]["name"] == "gpt1"
  assert list((workdir / "suites" / "prepared").glob("CoLA-validation6-*"))
  predictions = json_lines.read(run / "predictions" / "dev.jsonl")
  assert len(predictions) == 6
  for row in predictions:
    assert len(row["probabilities"]) == 2


@pytest.mark.parametrize(
  ("flags", "words"),
  [
    (["--suite=gleu"], "did you mean 'glue'"),
    (["--suite=glue", "--tasks=colla"], "did you mean 'cola'"),
    (["--suite=glue", "--tasks=mrpc"], "glue/mrpc is not in"),
    (["--suite=glue"], "give the directory of its official files with --data=DIR, and 8 others"),
    (
      ["--suite=glue", "--tasks=mrpc", "--data=nowhere"],
      "glue/mrpc: nowhere: found none of the files of MRPC",
    ),
    (
      ["--suite=glue", "--data=train=a.tsv"],
      "names the files of one task; choose it with --tasks=NAME",
    ),
    (["--suite=tags"], "conll: needs its official files; give their directory with --data=DIR"),
    (["--suite=glue", "--questions=nowhere.jsonl"], "holds encoders"),
    (["--suite=glue", "--max_examples=0"], "expected finite numbers above 0"),
    (["--suite=glue", "--rates=fast"], "--rates=fast: expected numbers"),
    (["--suite=text"], "no task could be run: multi30k: is not for this architecture (encoder)"),
  ],
)
def test_an_impossible_suite_is_one_line(flags, words, pretrained, tmp_path, capsys):
  folders = [f"--data_dir={tmp_path}", f"--output={tmp_path}/out"]
  assert evaluate.main([f"--workdir={pretrained}", *flags, *folders]) == 2
  error = capsys.readouterr().err.splitlines()[-1]
  assert words in error
  assert len(error) < 400

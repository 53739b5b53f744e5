"""Starting from another run, training a part of the parameters, and picking a checkpoint; a suite's
table."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tests.recipes.nano_decoder
import tests.recipes.nano_encoder  # noqa: F401 -- the variant that the runs are of
from fine_tuning import fine_tuning
from t5x_like import evaluate, recipes, train
from t5x_like.errors import UserError
from t5x_like.models import bert
from t5x_like.nn import params
from t5x_like.report.writer import read_metrics
from t5x_like.training.build import build_parts
from t5x_like.training.resolve import resolve
from t5x_like.tunings import head
from tests.runs import hide_other_devices, load_tensors

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled", "one_device")]
ENCODER = "tests/recipes/nano_encoder.py"
SHORT = (
  "--config.total_steps=2",
  "--config.eval_every=2",
  "--config.checkpoint.every=2",
  "--config.evals={}",
)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory, compiled):
  """The workdir of a BERT pretrained for two steps, with a checkpoint of each and positions for 64
  bytes."""
  workdir = tmp_path_factory.mktemp("pretrained")
  length = '--config.model.design.position={"name": "learned", "length": 64}'
  with hide_other_devices():
    each = "--config.checkpoint.every=1"
    assert train.main([f"--config={ENCODER}", f"--workdir={workdir}", *SHORT, length, each]) == 0
  return workdir


def tuned(pretrained, folder, *flags: str, objective: str = "classification") -> list[str]:
  words = [f"--config.{word}" for word in fine_tuning(objective, folder)]
  init = f"--config.init={json.dumps({'workdir': str(pretrained)})}"
  return [f"--config={ENCODER}", f"--workdir={folder}/run", *SHORT, *words, init, *flags]


def test_a_run_begins_with_the_weights_of_another_and_a_head_of_its_own(
  pretrained, tmp_path, capsys
):
  """Every tensor but those of the head, bit by bit; a longer table of positions repeats the rows it
  had."""
  longer = '--config.model.design={"position": {"name": "learned", "length": 100}}'
  still = (
    "--config.schedule.learning_rate=0.0",
    "--config.optimizer.weight_decay=0.0",
    "--config.task.length=100",
  )
  assert train.main(tuned(pretrained, tmp_path, longer, *still)) == 0, capsys.readouterr().err
  report = json.loads((tmp_path / "run" / "init.json").read_text())
  assert (
    report["initialised"] == ["head/out/bias", "head/out/kernel"]
    and "head/pooler/dense/kernel" in report["loaded"]
  )
  assert report["resized"] == {"inputs/position/table": "64 to 100 rows"}
  assert all(name.startswith("head/") for name in report["ignored"])
  out = capsys.readouterr().out
  assert "tensors loaded" in out and "ignored:     head/mlm" in out
  before = load_tensors(pretrained, 2)
  after = load_tensors(tmp_path / "run", 2)
  for name in report["loaded"]:
    old = before[f"params/{name}"]
    new = after[f"params/{name}"]
    wanted = old[np.arange(len(new)) % len(old)] if name in report["resized"] else old
    assert np.array_equal(new, wanted), name
  assert (
    json.loads((tmp_path / "run" / "config.json").read_text())["model"]["vocab_size"]
    == before["params/embed/table"].shape[0]
  )


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
def test_what_cannot_be_started_from_is_refused(override, words, pretrained, tmp_path):
  from t5x_like.vocabularies.kinds.bytes import ByteVocabulary

  ByteVocabulary(7).save(tmp_path / "other")
  overrides = [
    *fine_tuning("classification", tmp_path),
    f"init={json.dumps({'workdir': str(pretrained)})}",
  ]
  with pytest.raises(UserError) as error:
    resolve(recipes.load(ENCODER, [*overrides, override.replace("TMP", str(tmp_path))]))
  assert words in str(error.value) and "\n" not in str(error.value)


def test_a_run_of_a_variant_given_by_all_of_its_fields_can_be_started_from(pretrained, tmp_path):
  """As it can by the name of a published one, and positions are as many as rows are long."""
  saved = json.loads((pretrained / "config.json").read_text())
  saved["model"]["variant"] = dataclasses.asdict(bert.VARIANTS["nano"])
  (tmp_path / "run").mkdir()
  (tmp_path / "run" / "config.json").write_text(json.dumps(saved))
  shutil.copytree(pretrained / "vocabulary", tmp_path / "run" / "vocabulary")
  overrides = [*fine_tuning("classification", tmp_path), "task.length=100"]
  init = f"init={json.dumps({'workdir': str(tmp_path / 'run')})}"
  found = build_parts(resolve(recipes.load(ENCODER, [*overrides, init]))).model
  assert (
    found.variant.dims == bert.VARIANTS["nano"].dims
    and found.variant.design.position["length"] == 100
  )


def parts(tmp_path, *overrides: str):
  return build_parts(
    resolve(recipes.load(ENCODER, [*fine_tuning("classification", tmp_path), *overrides]))
  )


def test_only_the_head_is_trained_and_only_it_has_a_state(tmp_path):
  built = parts(tmp_path, "tuning.name=head", "schedule.warmup_steps=0")
  arrays = params.arrays(jax.jit(built.make_model)(jax.random.key(0)))
  state = built.optimizer.init(arrays)
  assert sum(x.size for x in jax.tree.leaves(state)) < arrays["embed/table"].size
  updates, _ = built.optimizer.update(
    jax.tree.map(jnp.ones_like, arrays), state, arrays, step=jnp.int32(1)
  )
  assert all(np.abs(u).max() > 0 for u in updates.values())
  assert updates.keys() == built.trained == {name for name in arrays if name.startswith("head/")}


@pytest.mark.more
def test_adapters_and_a_head_for_labels_are_trained_together(tmp_path):
  built = parts(tmp_path, "tuning.name=lora", 'tuning.targets=["*"]', "tuning.rank=2")
  named = params.named_params(built.model)
  assert built.trained == {
    n for n in named if n.startswith("head/") or n.endswith(("lora_a", "lora_b"))
  }
  assert not any(n.startswith("head/") and n.endswith("lora_a") for n in named)


@pytest.mark.more
@pytest.mark.more
def test_rates_fall_from_layer_to_layer(tmp_path):
  """Against the same optimizer without it: the update of each layer is that one's, times its
  rate."""
  plain = parts(tmp_path)
  decayed = parts(tmp_path, "tuning.name=layer_decay", "tuning.rate=0.5")
  arrays = params.arrays(jax.jit(plain.make_model)(jax.random.key(0)))
  grads = jax.tree.map(jnp.ones_like, arrays)
  first, second = (
    p.optimizer.update(grads, p.optimizer.init(arrays), arrays, step=jnp.int32(3))[0]
    for p in (plain, decayed)
  )
  rates = {"embed/table": 0.125, "inputs/types/table": 0.125, "head/out/kernel": 1.0}
  for name, rate in rates.items():
    np.testing.assert_allclose(second[name], rate * first[name], rtol=1e-6)
  kernel = "encoder/blocks/mlp/layer/wi/kernel"
  for layer, rate in enumerate((0.25, 0.5)):
    np.testing.assert_allclose(second[kernel][layer], rate * first[kernel][layer], rtol=1e-6)


def test_a_model_without_a_head_has_none_to_train_alone():
  with pytest.raises(UserError, match="no head to train alone"):
    head.make().trained_names({"embed/table": None})


@pytest.mark.heavy
def test_training_stops_when_patience_ends_and_the_best_is_evaluated(pretrained, tmp_path, capsys):
  """With a rate of zero no evaluation is better than the first."""
  flags = (
    "--config.total_steps=40",
    "--config.eval_every=1",
    "--config.schedule.learning_rate=0.0",
    "--config.optimizer.weight_decay=0.0",
    '--config.evals={"dev": {"name": "classification"}}',
    '--config.selection={"metric": "eval/dev/accuracy", "patience": 2}',
  )
  command = tuned(pretrained, tmp_path, *flags)
  assert train.main(command) == 0, capsys.readouterr().err
  steps = [row["step"] for row in read_metrics(tmp_path / "run") if "eval/dev/accuracy" in row]
  assert steps == [1, 2, 3] and "stopping" in capsys.readouterr().out
  assert train.main(command) == 0  # a finished run stays finished
  assert [row["step"] for row in read_metrics(tmp_path / "run") if "eval/dev/accuracy" in row] == [
    1,
    2,
    3,
  ]


def glue(folder) -> str:
  """Write CoLA, so small that a run takes seconds, with a test set; SST-2 with nothing to train
  on."""
  raw = folder / "raw"
  for task in ("CoLA", "SST-2"):
    (raw / task).mkdir(parents=True)
  rows = "".join(f"x\t{n % 2}\t\t{'good' if n % 2 else 'bad'} sentence {n}\n" for n in range(24))
  for split in ("train", "dev"):
    (raw / "CoLA" / f"{split}.tsv").write_text(rows)
  (raw / "CoLA" / "test.tsv").write_text("index\tsentence\n0\tgood sentence\n1\tbad one\n")
  (raw / "SST-2" / "dev.tsv").write_text("sentence\tlabel\nfine\t1\n")
  return f"--data={raw}"


def test_a_suite_makes_one_table_and_goes_on_where_it_stopped(pretrained, tmp_path, capsys):
  data = glue(tmp_path)
  output = tmp_path / "out"
  flags = ("--config.total_steps=2", "--config.batch_size=8", "--config.task.length=64")
  command = [f"--workdir={pretrained}", "--suite=glue,tags", data, f"--output={output}", *flags]
  assert evaluate.main(command) == 0, capsys.readouterr().err
  assert (
    list((pretrained / "suites" / "prepared").glob("CoLA-train-*"))
    and not (output / "glue" / "prepared").exists()
  )
  whole = output
  output = output / "glue"
  joined = (whole / "results.md").read_text()
  assert (
    joined in capsys.readouterr().out and "| glue/cola |" in joined and "| tags/pos | – |" in joined
  )
  table = (output / "results.md").read_text()
  found = json.loads((output / "results.json").read_text())
  assert "| cola |" in table and "found none of the files of MRPC, MRPC/train.tsv" in table
  assert "has no split 'train', only validation" in table
  assert (
    found["tasks"].keys() == {"cola"} and found["average"] is None and len(found["missing"]) == 8
  )
  page = (output / "results.html").read_text()
  assert (
    page.count("<svg") == 2
    and "matthews_correlation by step" in page
    and ("targets and predictions") in page
  )
  submitted = (output / "submission" / "CoLA.tsv").read_text().splitlines()
  assert submitted[0] == "index\tprediction" and [
    line.split("\t")[0] for line in submitted[1:]
  ] == ["0", "1"]
  run = output / "cola" / "recipe-0"
  predictions = [
    json.loads(line) for line in (run / "predictions" / "dev.jsonl").read_text().splitlines()
  ]
  assert (
    len(predictions) == 24 and {"idx", "input", "target", "prediction"} <= predictions[0].keys()
  )
  (run / "result.json").unlink()  # as if killed before it was written
  assert evaluate.main(command) == 0
  assert (
    json.loads((output / "results.json").read_text()) == found
    and (output / "results.md").read_text() == table
  )
  assert (whole / "results.md").read_text() == joined
  capsys.readouterr()
  assert evaluate.main([*command, "--config.total_steps=3"]) == 2
  assert (
    "result.json: was made with config.total_steps=2, found config.total_steps=3"
    in capsys.readouterr().err
  )
  assert json.loads((output / "results.json").read_text()) == found


def test_a_suite_starts_from_the_step_and_its_details_are_those_of_the_median_run(tmp_path, capsys):
  """Two seeds of two evaluations each: with an even number the lower run counts, whole."""
  data = glue(tmp_path)
  workdir = tmp_path / "bert"
  output = tmp_path / "out"
  length = '--config.model.design.position={"name": "learned", "length": 64}'
  steps = ("--config.total_steps=4", "--config.checkpoint.every=2", "--config.evals={}")
  assert train.main([f"--config={ENCODER}", f"--workdir={workdir}", *steps, length]) == 0
  flags = (
    "--config.total_steps=4",
    "--config.eval_every=2",
    "--config.batch_size=8",
    "--config.task.length=64",
  )
  suite = [
    f"--workdir={workdir}",
    "--suite=glue",
    "--tasks=cola",
    data,
    f"--output={output}",
    "--config.task.buckets=1",
  ]
  command = [*suite, *flags, "--seeds=2", "--rates=2e-3"]
  assert evaluate.main([*command, "--step=2"]) == 0, capsys.readouterr().err
  folders = [output / "cola" / f"0.002-{seed}" for seed in range(2)]
  assert [json.loads((folder / "init.json").read_text())["step"] for folder in folders] == [2, 2]

  results = [json.loads((folder / "result.json").read_text()) for folder in folders]
  lower = min(results, key=lambda result: result["score"])
  found = json.loads((output / "results.json").read_text())["tasks"]["cola"]
  scores = [result["score"] for result in results]
  assert scores[0] != scores[1], "the two seeds score the same, so that nothing is shown"
  assert (found["score"], found["metrics"]) == (lower["score"], lower["metrics"])
  assert (found["best"], found["spread"]) == (max(scores), max(scores) - min(scores))
  rows = [row for row in read_metrics(lower["workdir"]) if "eval/dev/matthews_correlation" in row]
  counted = [
    [
      row[f"eval/dev/{name}"] or 0.0
      for name in ("matthews_correlation", "accuracy")
      if f"dev/{name}" in found["counted"]
    ]
    for row in rows
  ]
  assert len(rows) == 2 and found["facts"]["last"] == pytest.approx(np.mean(counted[-1]))
  assert found["score"] in [pytest.approx(np.mean(values)) for values in counted]
  facts = {
    key: found["facts"][key] for key in ("evaluations", "steps", "batch_size", "length", "examples")
  }
  assert facts == {"evaluations": 2, "steps": 4, "batch_size": 8, "length": "64", "examples": 24}
  targets = [
    row["target"] for row in map(json.loads, open(f"{lower['workdir']}/predictions/dev.jsonl"))
  ]
  most = max(targets.count(label) for label in set(targets)) / len(targets)
  shares = {"dev/matthews_correlation": 0.0, "dev/accuracy": 100 * most}
  assert found["facts"]["majority"] == pytest.approx(
    np.mean([shares[name] for name in found["counted"]])
  )
  for file in ("results.md", "results.html"):
    text = (output / file).read_text()
    assert (
      "up to 2, by the first of its details" in text
      and "the lower of the two in the middle" in text
    ), file
    assert (
      f"{found['facts']['last']:.2f}" in text
      and "4 of 8" in text
      and (f"jax {jax.__version__}") in text
    ), file

  (folders[0] / "result.json").unlink()  # as if killed: neither run goes on from another step
  for other, now in ((["--step=4"], 4), ([], 4)):
    capsys.readouterr()
    assert evaluate.main([*command, *other]) == 2
    assert f"was made with step=[2], found step=[{now}]" in capsys.readouterr().err.splitlines()[-1]
  capsys.readouterr()
  assert evaluate.main([*suite[:-1], f"--output={tmp_path}/none", *flags, "--step=3"]) != 0
  (error,) = capsys.readouterr().err.splitlines()
  assert "3" in error and "checkpoint" in error


@pytest.mark.more
def test_a_suite_of_several_checkpoints_is_a_table_by_step(pretrained, tmp_path, capsys):
  output = tmp_path / "out"
  flags = ("--config.total_steps=2", "--config.batch_size=8", "--config.task.length=64")
  suite = [
    f"--workdir={pretrained}",
    "--suite=glue",
    "--tasks=cola",
    glue(tmp_path),
    f"--output={output}",
    *flags,
  ]
  assert evaluate.main([*suite, "--steps=2,1,2", "--max_examples=8"]) == 0, capsys.readouterr().err
  found = json.loads((output / "steps.json").read_text())
  folders = {step: output / f"step-{step}" / "cola" / "recipe-0" for step in (1, 2)}
  assert [
    json.loads((folder / "init.json").read_text())["step"] for folder in folders.values()
  ] == [1, 2]
  scores = [
    json.loads((folder / "result.json").read_text())["score"] for folder in folders.values()
  ]
  assert found["steps"] == [1, 2] and found["tasks"] == {"cola": scores} and found["mean"] == scores
  table = (output / "steps.md").read_text()
  assert f"| 2 | {scores[1]:.2f} | {scores[1]:.2f} |" in table and table in capsys.readouterr().out
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
def test_a_flag_that_would_not_be_looked_at_is_refused(flags, words, pretrained, capsys):
  assert evaluate.main([f"--workdir={pretrained}", *flags]) == 2
  (error,) = capsys.readouterr().err.splitlines()
  assert words in error


@pytest.mark.more
def test_a_decoder_takes_the_suite_in_its_own_way(pretrained, tmp_path, capsys):
  """Classes read off its last token, with the language model beside, from the weights of a language
  model, which is the first of two that could; questions are asked of it as it was."""
  data = glue(tmp_path)
  asked = {"query": "one and one is", "choices": ["two", "three"], "gold": 0}
  (tmp_path / "sums.jsonl").write_text(
    "".join(json.dumps(asked | {"gold": n % 2}) + "\n" for n in range(4))
  )
  workdir = tmp_path / "gpt"
  output = tmp_path / "out"
  assert train.main(["--config=tests/recipes/nano_decoder.py", f"--workdir={workdir}", *SHORT]) == 0
  flags = ("--config.total_steps=2", "--config.batch_size=8", "--config.task.length=64")
  command = [
    f"--workdir={workdir},{pretrained}",
    "--suite=glue",
    f"--questions={tmp_path}/su*.jsonl",
    "--max_examples=6",
    data,
    f"--output={output}",
    *flags,
  ]
  assert evaluate.main(command) == 0, capsys.readouterr().err
  found = json.loads((output / "results.json").read_text())
  assert (
    found["tasks"].keys() == {"glue/cola", "questions/sums"}
    and not (output / "glue" / "submission").exists()
  )
  assert (
    found["tasks"]["questions/sums"]["score"] == 50
    and found["mean"] == found["tasks"]["glue/cola"]["score"]
  )
  capsys.readouterr()
  assert evaluate.main(command) == 0 and "=== questions" not in capsys.readouterr().out
  assert json.loads((output / "results.json").read_text()) == found
  run = output / "glue" / "cola" / "recipe-0"
  assert json.loads((run / "config.json").read_text())["objective"]["name"] == "gpt1"
  assert list((workdir / "suites" / "prepared").glob("CoLA-validation6-*"))  # no more of them
  predictions = [
    json.loads(line) for line in (run / "predictions" / "dev.jsonl").read_text().splitlines()
  ]
  assert len(predictions) == 6 and all(len(row["probabilities"]) == 2 for row in predictions)


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
def test_a_suite_that_cannot_be_is_one_line(flags, words, pretrained, tmp_path, capsys):
  assert (
    evaluate.main(
      [f"--workdir={pretrained}", *flags, f"--data_dir={tmp_path}", f"--output={tmp_path}/out"]
    )
    == 2
  )
  error = capsys.readouterr().err.splitlines()[-1]
  assert words in error and len(error) < 400

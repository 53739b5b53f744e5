"""The tasks whose texts T5 rewrites, learned and scored by a text-to-text model through the
command."""

import json

import pytest

from t5x_like import evaluate, train
from t5x_like.benchmarks import submission
from t5x_like.benchmarks.suites import glue, superglue

pytestmark = pytest.mark.usefixtures("compiled")


def lines(path, rows: list[dict]) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def official(folder) -> str:
  """Write a few records of MultiRC and WSC in the form of SuperGLUE's archive."""
  for split in ("train", "val", "test"):
    labels = {} if split == "test" else {"label": 1}
    options = [{"text": f"o{n}", "idx": n} | labels for n in range(2)]
    questions = [{"question": "why?", "idx": n, "answers": options} for n in range(2)]
    lines(
      folder / "MultiRC" / f"{split}.jsonl",
      [{"idx": 0, "passage": {"text": "t", "questions": questions}}],
    )
    spans = {"span1_text": "Al", "span1_index": 0, "span2_text": "he", "span2_index": 3}
    told = [{"text": "Al said that he slept .", "target": spans, "idx": n} for n in range(2)]
    wrong = [{"label": n == 0} for n in range(2)] if labels else [{}, {}]
    lines(folder / "WSC" / f"{split}.jsonl", [a | b for a, b in zip(told, wrong)])
  return f"--data={folder}"


@pytest.mark.heavy
def test_a_suite_trains_on_t5s_texts_and_judges_as_t5_does(tmp_path, capsys):
  run = tmp_path / "run"
  output = tmp_path / "out"
  short = (
    "--config.total_steps=1",
    "--config.eval_every=1",
    "--config.checkpoint.every=1",
    "--config.batch_size=8",
  )
  assert train.main(["--config=tests/recipes/nano.py", f"--workdir={run}", *short]) == 0
  lengths = ("--config.task.inputs_length=64", "--config.task.targets_length=8")
  command = [
    f"--workdir={run}",
    "--suite=superglue",
    "--tasks=multirc,wsc",
    official(tmp_path / "raw"),
  ]
  assert evaluate.main([*command, f"--output={output}", *short, *lengths]) == 0, (
    capsys.readouterr().err
  )
  found = json.loads((output / "results.json").read_text())["tasks"]
  multirc = found["multirc"]["metrics"]
  wsc = found["wsc"]["metrics"]
  assert found["multirc"]["counted"] == ["dev/f1a", "dev/exact_match"]
  assert {"dev/f1a", "dev/exact_match", "dev/accuracy"} <= multirc.keys() and multirc[
    "dev/examples"
  ] == 4
  assert wsc["dev/examples"] == 2 and "dev/accuracy" in wsc
  # of WSC only a referent that is right is learned
  for name, count in {"MultiRC": 4, "WSC": 1}.items():
    (store,) = (run / "suites" / "prepared").glob(f"super_{name}-train-*")
    assert json.loads((store / "manifest.json").read_text())["num_items"] == count
  (passage,), labels = (
    [
      json.loads(line)
      for line in (output / "submission" / f"{name}.jsonl").read_text().splitlines()
    ]
    for name in ("MultiRC", "WSC")
  )
  assert [row["idx"] for row in labels] == [0, 1] and len(passage["passage"]["questions"]) == 2


def test_generated_predictions_are_submitted_as_classes_and_numbers(tmp_path):
  given = {"WSC": [("the Al", "Al"), ("Bob", "Al")], "STS-B": [("2.6", None), ("no number", None)]}
  for file, rows in given.items():
    told = [
      {"idx": n, "prediction": text, "references": [name, "-1"]}
      for n, (text, name) in enumerate(rows)
    ]
    lines(tmp_path / "run" / "predictions" / f"{file}.jsonl", told)
  submission.write_submission(tmp_path, superglue.SUITE, "wsc", tmp_path / "run")
  submission.write_submission(tmp_path, glue.SUITE, "stsb", tmp_path / "run")
  assert [
    json.loads(row)["label"] for row in (tmp_path / "WSC.jsonl").read_text().splitlines()
  ] == ["True", "False"]
  assert (tmp_path / "STS-B.tsv").read_text().splitlines()[1:] == ["0\t2.600", "1\t0.000"]

"""`tools.score` scores every benchmark from files in their official formats."""

import json
import pathlib
import subprocess
import sys
import warnings

import numpy as np
import pytest

from scoring import jsonl, run, squad, submission, write
from t5x_like.metrics import resampling
from t5x_like.metrics.classification import Classification
from tools.score.benchmarks import BENCHMARKS

REPO = pathlib.Path(__file__).resolve().parents[2]
SQUAD = squad(
  {"q1": ["the Broncos"] * 2, "q2": ["gold", "a gold coin"], "q3": ["Été"], "q4": ["5"]}
)


def test_squad_is_scored_by_the_command(tmp_path):
  """Compressed predictions are recognised by their first bytes, whatever their name."""
  references = write(tmp_path / "dev.json.gz", SQUAD)
  answers = {"q1": "Broncos!", "q2": "gold coins", "q3": "été", "other": "x"}
  predictions = write(tmp_path / "predictions.gz", answers).rename(tmp_path / "predictions")
  flags = [f"--references={references}", f"--predictions={predictions}"]
  command = [sys.executable, "-m", "tools.score", "squad", *flags]
  process = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=REPO)
  assert process.returncode == 0, process.stderr
  result = json.loads(process.stdout.splitlines()[-1])
  assert result.pop("intervals").keys() == {"exact_match", "f1"}
  assert result == {
    "benchmark": "squad",
    "exact_match": 50.0,
    "f1": pytest.approx(100 * (1 + 2 / 3 + 1 + 0) / 4),
    "examples": 4,
    "missing": 1,
    "extra": 1,
  }


def test_squad_v2_is_scored_with_and_without_probabilities(score, tmp_path):
  references = ("dev.json", squad({"r1": ["Rome"], "r2": [], "r3": []}))
  predictions = ("p.json", {"r1": "Rome", "r2": "", "r3": "x"})
  flag = f"--na_probabilities={write(tmp_path / 'na.json', {'r1': 0.2, 'r2': 0.9, 'r3': 0.5})}"
  scores = score("squad_v2", references, predictions, flag)
  assert scores["exact"] == pytest.approx(200 / 3)
  assert scores["NoAns_f1"] == 50.0
  assert scores["HasAns_total"] == 1
  assert scores["best_exact"] == 100.0
  assert scores["best_exact_thresh"] == 0.2
  scores = score("squad_v2", references, predictions, flag, "--na_threshold=0.4")
  assert scores["exact"] == 100.0
  scores = score("squad_v2", references, ("p.json", {"r1": "Rome"}))
  assert scores["exact"] == 100.0
  assert scores["missing"] == 2
  assert scores["NoAns_exact"] is None


CHINESE = ("test-context-zh-question-zh.json", squad({"1": ["北京大学"]}))


@pytest.mark.parametrize(
  "benchmark, name, flags, f1",
  [
    ("mlqa", CHINESE[0], (), 200 / 3),
    ("mlqa", "answers.json", ("--language=zh",), 200 / 3),
    ("xquad", "xquad.zh.json", (), 0),  # as in XTREME's tables
    ("xquad", "xquad.zh.json", ("--normalization=mlqa",), 200 / 3),
  ],
)
def test_multilingual_squad_normalises_by_language(score, benchmark, name, flags, f1):
  scores = score(benchmark, (name, CHINESE[1]), ("p.json", {"1": "北京"}), *flags)
  assert scores["f1"] == pytest.approx(f1)


def test_languages_are_scored_as_groups(tmp_path, capsys):
  flags = []
  for language, answer, prediction in (("de", "der Hund", "Hund"), ("zh", "北京大学", "北京")):
    references = write(tmp_path / f"{language}.json", squad({"1": [answer]}))
    predictions = write(tmp_path / f"p_{language}.json", {"1": prediction})
    flags += [f"--references={references}", f"--predictions={predictions}"]
  code, scores = run(capsys, "mlqa", *flags)
  assert code == 0
  assert scores["groups"]["de"]["exact_match"] == 100
  assert scores["groups"]["zh"]["exact_match"] == 0
  assert scores["mean_of_groups"]["f1"] == pytest.approx(100 * (1 + 2 / 3) / 2)
  assert scores["examples"] == 2


def table(header, row, labels):
  """Return lines of a TSV file; in `row`, {i} is the number and {label} the label."""
  return [header, *(row.format(i=i, label=label) for i, label in enumerate(labels))]


NLI = ["neutral", "entailment", "contradiction"]
STS = ["5.00", "0", "3.2"]
TWO = ["entailment", "not_entailment"]
PAIR = "index\tsentence1\tsentence2\tlabel", "{i}\ta\tb\t{label}"
# Quotes are text.
MRPC = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String", '{label}\t7\t8\t"a\tb'
QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "{i}3\t1\t2\ta\tb\t{label}"
MNLI = "index\tpromptID\tpairID\tlabel1\tgold_label", "{i}\t1\t{i}c\tneutral\t{label}"
# the dev file as in GLUE's archive, gold labels, a label that is wrong for the first one, its name
# there
GLUE = {
  "cola": ([f"gj04\t{label}\t\tA sentence." for label in "1101"], "1101", "0", "CoLA/dev.tsv"),
  "sst2": (table("sentence\tlabel", "fine . \t{label}", "1101"), "1101", "0", "SST-2/dev.tsv"),
  "mrpc": (table(*MRPC, "1101"), "1101", "0", "MRPC/msr_paraphrase_test.txt"),
  "qqp": (table(*QQP, "1101"), "1101", "0", "QQP/dev.tsv"),
  "stsb": (table("index\tgenre\tscore", "{i}\tx\t{label}", STS), STS, "1", "STS-B/dev.tsv"),
  "mnli_matched": (table(*MNLI, NLI), NLI, "entailment", "MNLI/dev_matched.tsv"),
  "mnli_mismatched": (table(*MNLI, NLI), NLI, "entailment", "MNLI/dev_mismatched.tsv"),
  "qnli": (
    table("index\tquestion\tsentence\tlabel", '{i}\t"q\ts\t{label}', TWO),
    TWO,
    TWO[1],
    "QNLI/dev.tsv",
  ),
  "rte": (table(*PAIR, TWO), TWO, TWO[1], "RTE/dev.tsv"),
  "wnli": (table(*PAIR, "10"), "10", "0", "WNLI/dev.tsv"),
}
MAIN = {"cola": "matthews_correlation", "mrpc": "f1", "qqp": "f1", "stsb": "pearson"}
SUBMITTED = {
  "cola": "CoLA",
  "sst2": "SST-2",
  "stsb": "STS-B",
  "mnli_matched": "MNLI-m",
  "mnli_mismatched": "MNLI-mm",
}


@pytest.mark.parametrize("task", GLUE)
def test_glue_tasks_are_scored_in_every_form_of_predictions(score, task):
  references, gold, wrong, _ = GLUE[task]
  metric = MAIN.get(task, "accuracy")

  def score_file(name, predictions):
    return score(f"glue/{task}", ("dev.tsv.gz", references), (name, predictions))

  header, *lines = submission(gold)
  right = score_file("p.tsv", [header, *lines])
  assert right[metric] == pytest.approx(100)
  assert right["examples"] == len(gold)
  rows = jsonl({"idx": i, "label": label} for i, label in enumerate(gold))
  assert score_file("by_index.tsv.gz", [header, *reversed(lines)]) == right
  assert score_file("a_label_a_line.txt", list(gold)) == right
  assert score_file("p.jsonl", rows) == right
  worse = score_file("p.tsv", submission([wrong, *gold[1:]]))
  assert worse[metric] < 100


def test_glue_scores_equal_those_by_hand(score):
  dev = (
    "dev.tsv",
    [
      "index\tsentence1\tsentence2\tlabel",
      *(f"{i}\ta\tb\t{label}" for i, label in enumerate("1110")),
    ],
  )
  scores = score("glue/mrpc", dev, ("p.tsv", submission("1011")))
  assert scores == {"f1": pytest.approx(200 / 3), "accuracy": 50.0, "examples": 4}
  # As T5 generates them.
  words_file = ("p.txt", ["equivalent", "banana", "equivalent", "not_equivalent"])
  scores = score("glue/mrpc", dev, words_file, "--invalid=wrong")
  assert scores == {"f1": pytest.approx(80.0), "accuracy": 75.0, "examples": 4, "invalid": 1}


def test_predictions_may_use_the_ids_of_another_column(score):
  """Pairs have the ids 2 to 5, of which two are row numbers too."""
  references = [QQP[0], *(f"{i + 2}\t1\t2\ta\tb\t{label}" for i, label in enumerate("1101"))]
  by_id = [
    "id\tprediction",
    *(f"{i + 2}\t{label}" for i, label in reversed(list(enumerate("1101")))),
  ]
  assert score("glue/qqp", ("dev.tsv", references), ("p.tsv", by_id))["accuracy"] == 100


def test_mnli_is_scored_on_both_halves(tmp_path, capsys):
  flags = []
  for half, labels in (("matched", ["neutral"] * 3), ("mismatched", GLUE["mnli_mismatched"][1])):
    flags.append(f"--references={write(tmp_path / f'dev_{half}.tsv', GLUE[f'mnli_{half}'][0])}")
    flags.append(f"--predictions={write(tmp_path / f'{half}.tsv', submission(labels))}")
  code, scores = run(capsys, "glue/mnli", *flags)
  assert code == 0
  assert scores["groups"]["matched"]["accuracy"] == pytest.approx(100 / 3)
  assert scores["groups"]["mismatched"]["accuracy"] == 100
  assert scores["accuracy"] == pytest.approx(200 / 3)


def test_the_average_of_glue_follows_the_leaderboard(tmp_path, capsys):
  for task, (references, gold, wrong, path) in GLUE.items():
    write(tmp_path / "glue" / path, references)
    labels = gold
    if task == "wnli":
      labels = [wrong, *gold[1:]]
    elif task == "rte":
      labels = ["entailment"] * 2
    write(tmp_path / "ours" / f"{SUBMITTED.get(task, task.upper())}.tsv", submission(labels))
  flags = (f"--references={tmp_path / 'glue'}", f"--predictions={tmp_path / 'ours'}")
  code, scores = run(capsys, "glue", *flags)
  assert code == 0
  assert scores["average"] == pytest.approx((7 * 100 + 2 * 50) / 9)
  assert "missing" not in scores
  assert scores["tasks"]["glue/rte"]["accuracy"] == 50
  write(tmp_path / "ours" / "WNLI.tsv", submission(["banana", "0"]))
  code, output = run(capsys, "glue", *flags)
  assert code == 2
  assert "WNLI.tsv:2: found the label 'banana'" in output
  assert run(capsys, "glue", *flags, "--invalid=wrong")[1]["average"] == scores["average"]
  (tmp_path / "ours" / "MNLI-mm.tsv").unlink()
  code, scores = run(capsys, "glue", *flags, "--invalid=wrong")
  assert code == 0
  assert scores["average"] is None
  assert scores["missing"] == ["mnli"]


WSC = {"span1_text": "a", "span1_index": 0, "span2_text": "b", "span2_index": 1}  # of each example
SUPERGLUE = {
  "BoolQ": (True, "true", "accuracy"),
  "CB": ("contradiction", "contradiction", "accuracy"),
  "COPA": (1, 1, "accuracy"),
  "RTE": ("not_entailment", "not_entailment", "accuracy"),
  "WiC": (False, "false", "accuracy"),
  "WSC": (True, "True", "accuracy"),
}


def multirc(labels):
  """Return a passage with a question of two answers and a question of one."""
  answers = [{"idx": 8 + i, "label": label} for i, label in enumerate(labels)]
  return [
    {
      "idx": 3,
      "passage": {
        "questions": [{"idx": 5, "answers": answers[:2]}, {"idx": 6, "answers": answers[2:]}]
      },
    }
  ]


MULTIRC = multirc([1, 0, 1])
PREDICTED_MULTIRC = multirc([1, 1, 1])
RECORD = [
  {
    "idx": 0,
    "qas": [{"idx": 4, "query": "@placeholder", "answers": [{"text": "Ann Lee"}, {"text": "Bo"}]}],
  }
]


@pytest.mark.parametrize("task", SUPERGLUE)
def test_superglue_tasks_are_scored(score, task):
  reference, label, main = SUPERGLUE[task]
  rows = (
    "val.jsonl",
    jsonl({"idx": i, "label": reference, "text": "a b", "target": WSC} for i in (0, 1)),
  )
  scores = score(
    f"superglue/{task.lower()}",
    rows,
    ("p.jsonl", jsonl({"idx": i, "label": label} for i in (1, 0))),
  )
  assert scores[main] == 100
  assert scores["examples"] == 2


def test_multirc_and_record_equal_scores_by_hand(score):
  scores = score(
    "superglue/multirc", ("val.jsonl", jsonl(MULTIRC)), ("p.jsonl", jsonl(PREDICTED_MULTIRC))
  )
  assert scores == {"f1a": 80.0, "exact_match": 50.0, "examples": 2}
  flat = [((5, 8), 1), ((5, 9), 1), ((6, 10), 1)]
  rows = jsonl(
    {"idx": {"paragraph": 3, "question": q, "answer": a}, "prediction": label}
    for (q, a), label in flat
  )
  assert score("superglue/multirc", ("val.jsonl", jsonl(MULTIRC)), ("p.jsonl", rows)) == scores
  record = score(
    "superglue/record",
    ("val.jsonl", jsonl(RECORD)),
    ("p.jsonl", jsonl([{"idx": 4, "label": "Ann"}])),
  )
  assert record == {"exact_match": 0.0, "f1": pytest.approx(200 / 3), "examples": 1}


def test_the_average_of_superglue_follows_the_leaderboard(tmp_path, capsys):
  for task, (reference, label, _) in SUPERGLUE.items():
    row = {"idx": 0, "label": reference, "text": "a b", "target": WSC}
    write(tmp_path / "gold" / task / "val.jsonl.gz", jsonl([row]))
    write(tmp_path / "ours" / f"{task}.jsonl", jsonl([{"idx": 0, "label": label}]))
  for task, gold, predicted in (
    ("MultiRC", MULTIRC, PREDICTED_MULTIRC),
    ("ReCoRD", RECORD, [{"idx": 4, "label": "Ann"}]),
  ):
    write(tmp_path / "gold" / task / "val.jsonl", jsonl(gold))
    write(tmp_path / "ours" / f"{task}.jsonl", jsonl(predicted))
  code, scores = run(
    capsys, "superglue", f"--references={tmp_path / 'gold'}", f"--predictions={tmp_path / 'ours'}"
  )
  cb = (100 + 100 / 3) / 2  # one class of three occurs
  assert code == 0
  assert scores["average"] == pytest.approx((5 * 100 + cb + 65 + 100 / 3) / 8)


def test_every_benchmark_is_documented():
  text = (REPO / "docs" / "how-to" / "score-predictions.md").read_text()
  for name in BENCHMARKS:
    short_name = name.split("/")[-1]
    assert f"`{short_name}`" in text or f"`{name}`" in text, name


def test_scores_have_the_intervals_of_tables(tmp_path, capsys):
  """They are those of `resampling.score_intervals`, for shares and for scores of a corpus."""
  labels = np.array([0, 1] * 50)
  predicted = np.concatenate([labels[:80], 1 - labels[80:]])
  dev = write(tmp_path / "dev.jsonl", jsonl({"label": int(label)} for label in labels))
  system = write(tmp_path / "ours.txt", [str(label) for label in predicted])
  code, scores = run(capsys, "glue/sst2", f"--references={dev}", f"--predictions={system}")
  assert code == 0
  metric = Classification(2)
  expected = resampling.score_intervals(
    metric, metric.compute_rows(labels.tolist(), predicted.tolist())
  )
  assert scores["intervals"] == expected
  assert scores["intervals"]["accuracy"]["low"] < 80 < scores["intervals"]["accuracy"]["high"]
  # scikit-learn warns of samples with one class
  dev = write(tmp_path / "dev.tsv", GLUE["cola"][0])
  system = write(tmp_path / "cola.txt", ["1", "1", "0", "0"])
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    code, scores = run(capsys, "glue/cola", f"--references={dev}", f"--predictions={system}")
  assert code == 0
  assert "matthews_correlation" in scores["intervals"]
  references = write(tmp_path / "gold.txt", ["the cat sat on the mat", "a dog ran home"] * 4)
  system = write(tmp_path / "system.txt", ["the cat sat on a mat", "the dog ran home"] * 4)
  code, scores = run(capsys, "bleu", f"--references={references}", f"--predictions={system}")
  assert code == 0
  interval = scores["intervals"]["bleu"]
  assert interval["low"] < scores["bleu"] < interval["high"]


def test_a_comparison_has_bootstrapped_intervals_and_a_p_value(tmp_path, capsys):
  dev = write(tmp_path / "dev.jsonl", jsonl({"label": label} for label in [0, 1] * 50))
  better_system = write(tmp_path / "ours.txt", ["0", "1"] * 40 + ["1", "0"] * 10)
  worse_system = write(tmp_path / "theirs.txt", ["0", "1"] * 30 + ["1", "0"] * 20)
  out = tmp_path / "result.json"
  flags = (
    f"--references={dev}",
    f"--predictions={better_system}",
    f"--compare={worse_system}",
    "--bootstrap=120",
    "--seed=3",
  )
  code, scores = run(capsys, "glue/sst2", *flags, f"--output={out}")
  assert code == 0
  assert json.loads(out.read_text()) == scores
  interval = scores["bootstrap"]["intervals"]["accuracy"]
  assert interval["low"] < 80 < interval["high"]
  assert scores["bootstrap"]["samples"] == 120
  assert scores["bootstrap"]["seed"] == 3
  comparison = scores["compare"]
  assert comparison["accuracy"] == 60.0
  assert "approximate randomisation" in comparison["method"]
  difference = comparison["differences"]["accuracy"]
  assert difference["difference"] == pytest.approx(-20)
  assert difference["p_value"] < 0.01
  assert difference["high"] < 0

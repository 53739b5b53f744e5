"""`tools.score` refuses bad input in one line that names the file, with exit code 2."""

import gzip

import pytest

from scoring import jsonl, run, squad, submission, write

DEV = [
  "index\tsentence1\tsentence2\tlabel",
  "0\ta\tb\t1",
  "1\ta\tb\t1",
  "2\ta\tb\t0",
]


@pytest.mark.parametrize(
  "command, words",
  [
    ("glue/wnl", "did you mean 'glue/wnli'?"),
    ("sqaud", "did you mean 'squad'?"),
    ("glue", "expected a directory"),
    ("glue/wnli --bootstrp=10", "--bootstrp: unknown flag (did you mean 'bootstrap'?)"),
    ("glue/wnli --invalid=no", "expected 'refuse' or 'wrong'"),
    ("glue/wnli --bootstrap=0", "--bootstrap=0: expected at least 1"),
    ("glue/wnli --bootstrap=many", "invalid int value"),
    ("glue/wnli stray", "unknown argument"),
    ("glue/wnli --references={}/dev.tsv", "found 2 files, expected one"),
    ("bleu --tokenise=13a", "bleu.tokenise: unknown key (did you mean 'tokenize'?)"),
    ("bleu --tokenize=13b", "expected one of"),
  ],
)
def test_unknown_names_and_bad_flags_are_refused(refusal, tmp_path, command, words):
  benchmark, *flags = command.format(tmp_path).split()
  assert words in refusal(benchmark, ("dev.tsv", DEV), ("p.tsv", submission("110")), *flags)


def test_missing_flags_are_refused(capsys):
  assert "--predictions" in run(capsys, "squad", "--references=x")[1]


@pytest.mark.parametrize(
  "predictions, expected",
  [
    (("p.tsv", submission("11")), "no prediction for 1 of 3 examples: 2"),
    (("p.tsv", submission("1101")), "1 predictions whose ids are not in the references: 3"),
    (
      ("p.tsv", submission(["1", "2", "0"])),
      "p.tsv:3: found the label '2', expected one of not_entailment, entailment",
    ),
    (("p.tsv", submission(["1", "", "0"])), "p.tsv:3: found the label ''"),
    (("p.tsv", [*submission("110"), "1\t1"]), "p.tsv:5: id 1 appears twice (first:"),
    (("p.tsv", ["index\tprediction"]), "p.tsv: holds no predictions"),
    (("p.tsv", ["index\tprediction", "0\t1", "1"]), "p.tsv:3: found 1 columns, expected 2"),
    (
      ("p.tsv", ["index\tprediction\n7\t1\n8\t1"]),
      "none of its ids (7, 8) is one of the references' (0, 1, 2)",
    ),
    (
      ("p.tsv", ["index\tprediction", "0\t1\t0"]),
      "p.tsv:2: found 3 columns, expected 2: index, prediction",
    ),
    (
      ("p.csv", ["index,prediction", "0,1,0"]),
      "p.csv:2: found 3 columns, expected 2: index, prediction",
    ),
    (("p.csv", ["index,prediction", '0,"1', "1,1"]), "p.csv: broken CSV: unexpected end of data"),
    (("p.txt", ["1", "1"]), "found 2 predictions without ids for 3 examples"),
    (("p.txt", ""), "p.txt: empty"),
    (("p.txt", "\n \n"), "p.txt: empty"),
    (("p.json", {}), "holds no predictions"),
    (("p.json", []), "holds no predictions"),
    (
      ("p.jsonl", ['{"idx": 0, "label": 1}', '{"idx": 1, "label"']),
      "p.jsonl:2: broken JSON: Expecting ':' delimiter: line 1 column 19",
    ),
    (
      ("p.jsonl", jsonl([{"idx": 0, "value": 1}])),
      "p.jsonl:1: found the keys idx, value, expected one of prediction,",
    ),
    (
      ("p.jsonl", jsonl([{"idx": 0, "label": 1}, {"label": 1}])),
      "p.jsonl:2: no id, but other rows have one",
    ),
    (("p.jsonl", ['{"idx": 0, "idx": 1, "label": 1}']), "the key 'idx' appears twice"),
    (("p", '{\n "0": 1,\n "1": }\n'), "broken JSON: Expecting value: line 3 column 7"),
    (("p.tsv", None), "p.tsv'); check the path"),
    (("p.gz", gzip.compress(b"1\n" * 100_000)[:-20]), "p.gz: found truncated or damaged gzip data"),
    (("p.gz", b"\x1f\x8b\x08 and no more"), "p.gz: found truncated or damaged gzip data"),
    (("p.txt", b"1\n\xff\n0"), "p.txt:2: found byte 0xff that is not UTF-8"),
  ],
)
def test_bad_predictions_are_refused(refusal, predictions, expected):
  assert expected in refusal("glue/wnli", ("dev.tsv", DEV), predictions)


@pytest.mark.parametrize(
  "benchmark, references, expected",
  [
    (
      "glue/wnli",
      ("test.tsv", ["index\tsentence", "0\ta"]),
      "test.tsv:2: found no field 'label' among",
    ),
    ("glue/wnli", ("dev.tsv", DEV[:1]), "dev.tsv: holds no examples: a score over zero examples"),
    (
      "glue/wnli",
      ("dev.tsv", [*DEV, "3\ta"]),
      "dev.tsv:5: found 2 tab-separated columns, expected 4",
    ),
    ("glue/wnli", ("dev.tsv", [*DEV, "3\ta\tb\tyes"]), "dev.tsv:5: found the label 'yes'"),
    (
      "glue/wnli",
      ("dev.tsv", [*DEV, "1\ta\tb\t1"]),
      "dev.tsv: id 1 appears 2 times, expected once",
    ),
    ("glue/stsb", ("dev.tsv", ["sentence1\tscore", "a\tnan"]), "found 'nan', expected a number"),
    (
      "squad",
      ("dev.json", {"data": [{"paragraphs": [{"qas": [{"id": "1"}]}]}]}),
      "expected data > paragraphs > context, qas > id, question, answers",
    ),
    ("squad", ("dev.json", {"data": []}), "zero examples"),
    ("squad", ("dev.json", squad({"1": []})), "squad_v2 scores"),
    ("xquad", ("dev.json", {"data": []}), "expected --language"),
    ("nq", ("dev.jsonl", jsonl([{"question": "?"}])), "dev.jsonl:1: no answers"),
    ("nq", ("dev.jsonl", jsonl([{"question": "?", "answer": True}])), "dev.jsonl:1: no answers"),
    ("triviaqa", ("dev.json", {"Data": ["?"]}), "element 0: found '?', expected named values"),
    ("squad", ("dev.json", squad({"1": [None]})), "[None], expected one of"),
    (
      "superglue/record",
      ("val.jsonl", jsonl([{"qas": [{"idx": 0, "answers": [{"text": 5}]}]}])),
      "found '5', expected a text",
    ),
    (
      "race",
      ("dev.jsonl", jsonl([{"id": "high1.txt", "answers": 1.5}])),
      "expected id, article, and lists of as many questions, options and answers",
    ),
    ("arc", ("dev.jsonl", jsonl([{"question": "?"}])), "no gold choice"),
    (
      "arc",
      ("dev.jsonl", jsonl([{"choices": ["a", "b"], "gold": 2}])),
      "found the label '2', expected one of 0, 1",
    ),
    ("gsm8k", ("dev.jsonl", jsonl([{"answer": "none"}])), "expected an answer with a number"),
    ("lambada", ("dev.jsonl", jsonl([{"context": "a"}])), "expected one of references,"),
    (
      "lambada",
      ("dev.txt", ["a b", ""]),
      "dev.txt:2: found a text without words, expected a last word",
    ),
    ("rouge", ("dev.jsonl", jsonl([{"target": []}])), "expected one of references,"),
    (
      "superglue/multirc",
      ("val.jsonl", jsonl([{"idx": 0}])),
      "expected idx and passage with questions[]",
    ),
    ("ner", ("dev.conll", ["Ann\tPERSON", ""]), "sentence 1: found the tag 'PERSON'"),
    ("pos", ("dev.conllu", ["# nothing", ""]), "holds no examples"),
  ],
)
def test_bad_references_are_refused(refusal, benchmark, references, expected):
  assert expected in refusal(benchmark, references, ("p.json", {"0": "1", "1": "1", "2": "0"}))


STSB = ("dev.tsv", ["sentence1\tscore", "a\t1", "b\t2"])
ENTITIES = ("dev.conll", ["Ann\tB-PER", "ran\tO", ""])
WINOGRANDE = ("dev.jsonl", jsonl([{"option1": "a", "option2": "b", "answer": "1"}]))


@pytest.mark.parametrize(
  "benchmark, references, predictions, expected",
  [
    ("glue/stsb", STSB, ("p.txt", ["3", "3"]), "pearson and spearman are not defined"),
    ("glue/stsb", STSB, ("p.txt", ["3", "inf"]), "expected a number"),
    ("ner", ENTITIES, ("p.conll", ["Ann\tB-PER", ""]), "found 1 tags, expected 2"),
    (
      "ner",
      ENTITIES,
      ("p.conll", ["Bob\tO", "ran\tO", ""]),
      "found the token 'Bob', expected 'Ann'",
    ),
    ("ner", ENTITIES, ("p.txt", ["PER O"]), "found the tag 'PER'"),
    ("bleu", ("r.txt", ["a", "b"]), ("p.txt", ["a"]), "1 predictions without ids for 2 examples"),
    ("winogrande", WINOGRANDE, ("p.json", [1]), "expected one of 1, 2, as a text, or a letter"),
    ("winogrande", WINOGRANDE, ("p.json", [[0.5]]), "found 1 scores, expected 2"),
    (
      "squad",
      ("dev.json", squad({"1": ["a"]})),
      ("p.json", {"1": None}),
      "id 1: found None, expected a text",
    ),
  ],
)
def test_predictions_of_another_kind_are_refused(
  refusal, benchmark, references, predictions, expected
):
  assert expected in refusal(benchmark, references, predictions)


@pytest.mark.parametrize(
  "probabilities, expected",
  [
    ({"2": 0.5}, "no probability for the question 1"),
    ({"1": "high"}, "found 'high', expected a probability"),
  ],
)
def test_bad_probabilities_of_no_answer_are_refused(refusal, tmp_path, probabilities, expected):
  flag = f"--na_probabilities={write(tmp_path / 'na.json', probabilities)}"
  references = ("dev.json", squad({"1": ["a"]}))
  assert expected in refusal("squad_v2", references, ("p.json", {"1": "a"}), flag)


def test_parallel_references_of_different_lengths_are_refused(tmp_path, capsys):
  paths = [write(tmp_path / f"r{n}.txt", ["a"] * n) for n in (2, 3)]
  flags = [f"--references={path}" for path in paths]
  code, output = run(capsys, "bleu", *flags, f"--predictions={paths[0]}")
  assert code == 2
  assert "r3.txt: found 3 texts, expected 2, as in" in output

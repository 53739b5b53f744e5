"""`tools.score` reads choices, tags, texts and open questions in their official formats."""

import pytest

from scoring import jsonl, run, write

CHOICES = {
  # name: reference rows, right predictions, wrong ones
  "arc": (
    [
      {
        "id": "A1",
        "question": {"stem": "?", "choices": [{"label": c, "text": c} for c in "ABCD"]},
        "answerKey": "B",
      },
      {
        "id": "A2",
        "question": {"stem": "?", "choices": [{"label": c, "text": c} for c in "1234"]},
        "answerKey": "4",
      },
    ],
    ["B", "4"],
    ["A", "1"],
  ),
  "piqa": ([{"goal": "?", "sol1": "a", "sol2": "b", "label": 1}] * 2, [1, 1], [1, 0]),
  "siqa": ([{"query": "?", "choices": ["A", "B", "C"], "gold": 2}], [2], [0]),
  "openbookqa": ([{"query": "?", "choices": ["a", "b"], "gold": 0}], ["A"], ["B"]),
  "csqa": (
    [{"answerKey": "E", "question": {"choices": [{"label": c, "text": c} for c in "ABCDE"]}}],
    ["E"],
    ["A"],
  ),
  "winogrande": ([{"sentence": "_", "option1": "a", "option2": "b", "answer": "2"}], ["2"], ["1"]),
  "winograd": ([{"context_options": ["a", "b"], "continuation": "c", "gold": 0}], [0], [1]),
  "hellaswag": ([{"ind": 24, "endings": ["a", "b", "c", "d"], "label": 3}], [3], [2]),
  "copa": ([{"premise": "?", "choice1": "a", "choice2": "b", "label": 1, "idx": 0}], [1], [0]),
  "boolq": (
    [{"question": "?", "answer": True}, {"question": "!", "answer": False}],
    [True, "no"],
    ["true", 1],
  ),
  "mmlu": (
    [{"subject": "law", "question": "?", "choices": ["0", "1", "2", "3"], "answer": "C"}],
    ["C"],
    ["A"],
  ),
  "swag": ([{"video-id": "v", "label": 2}], [2], [1]),
  "codah": ([{"id": 0, "label": 3}], [3], [1]),
}


@pytest.mark.parametrize("name", CHOICES)
def test_choices_are_scored_in_every_form_of_predictions(score, name):
  rows, right, wrong = CHOICES[name]
  references = ("questions.jsonl", jsonl(rows))
  by_id = jsonl({"id": i, "prediction": choice} for i, choice in enumerate(right))
  assert score(name, references, ("p.jsonl", by_id))["accuracy"] == 100
  assert score(name, references, ("p.json", wrong))["accuracy"] < 100
  scores = score(name, references, ("p.txt", [str(right_choice) for right_choice in right]))
  assert scores["accuracy"] == 100
  assert scores["examples"] == len(rows)


def test_mmlu_is_scored_by_subject(score):
  rows = [
    {"split": split, "subject": subject, "question": "?", "choices": list("abcd"), "answer": "A"}
    for split, subject in (("dev", "law"), ("test", "law"), ("test", "law"), ("test", "art"))
  ]
  scores = score("mmlu", ("mmlu.jsonl", jsonl(rows)), ("p.txt", ["A", "B", "A"]), "--split=test")
  assert scores["accuracy"] == pytest.approx(200 / 3)
  law = scores["groups"]["law"]
  assert (law["accuracy"], law["examples"]) == (50.0, 2)
  assert law["intervals"]["accuracy"]["samples"] == 1000
  assert scores["mean_of_groups"]["accuracy"] == 75


def test_race_is_scored_by_level(tmp_path, capsys):
  for level, answers in (("high", ["A", "C"]), ("middle", ["B"])):
    text = {
      "id": f"{level}7.txt",
      "article": "…",
      "questions": ["?"] * len(answers),
      "options": [["a", "b", "c", "d"]] * len(answers),
      "answers": answers,
    }
    write(tmp_path / "dev" / level / "7.txt", text)
  answers = {"high7.txt-0": "A", "high7.txt-1": "B", "middle7.txt-0": "B"}
  predictions = write(tmp_path / "p.json", answers)
  flags = (f"--references={tmp_path / 'dev'}", f"--predictions={predictions}")
  code, scores = run(capsys, "race", *flags)
  assert code == 0
  assert scores["accuracy"] == pytest.approx(200 / 3)
  assert scores["groups"]["high"]["accuracy"] == 50
  assert scores["groups"]["middle"]["accuracy"] == 100


CONLL = [
  "-DOCSTART- -X- O",
  "",
  "Ann\tNNP\tB-PER",
  "Lee\tNNP\tI-PER",
  "ran\tVBD\tO",
  "\t",
  "Rome\tNNP\tB-LOC",
  "",
]
CONLLU = [
  "# sent_id = 1",
  "1-2\tdon't\t_\t_\t_\t_\t_\t_\t_\t_",
  "1\tdo\tdo\tAUX\tVBP\t_\t0\t_\t_\tNER=O",
  "2\tn't\tnot\tPART\tRB\t_\t0\t_\t_\tSpaceAfter=No|NER=B-X",
  "2.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t_\t_",
  "",
  "1\t#go\tgo\tVERB\tVB\t_\t0\t_\t_\tNER=O",
  "",
]


def test_entities_are_scored_in_every_form_of_predictions(score):
  references = ("dev.conll", CONLL)
  predicted = [line.replace("I-PER", "O") for line in CONLL]
  tags = [["B-PER", "O", "O"], ["B-LOC"]]
  scores = score("ner", references, ("p.conll", predicted))
  assert scores["f1"] == 50
  assert scores["entities"] == 2
  assert scores["types"]["LOC"]["f1"] == 100
  rows = jsonl({"id": i, "tags": sentence_tags} for i, sentence_tags in enumerate(tags))
  lines = [" ".join(sentence_tags) for sentence_tags in tags]
  for predictions in (("p.jsonl", rows), ("p.txt", lines), ("p.json", tags)):
    assert score("ner", references, predictions) == scores


def test_parts_of_speech_are_scored(score):
  predicted = [line.replace("\tPART\t", "\tADV\t") for line in CONLLU]
  scores = score("pos", ("dev.conllu", CONLLU), ("p.conllu", predicted))
  assert scores == {"accuracy": pytest.approx(200 / 3), "examples": 2, "tokens": 3}


# From sacrebleu's README.
STREAMS = [
  ["The dog bit the man.", "It was not unexpected.", "The man bit him first."],
  ["The dog had bit the man.", "No one was surprised.", "The man had bitten the dog."],
]
SYSTEM = ["The dog bit the man.", "It wasn't surprising.", "The man had just bitten him."]


def test_translations_have_sacrebleus_scores(score):
  references = [("ref0.en", STREAMS[0]), ("ref1.en.gz", STREAMS[1])]
  scores = score("bleu", references, ("system.txt", SYSTEM))
  assert scores["bleu"] == pytest.approx(48.530827009929865)
  assert scores["signature"].startswith("nrefs:2|")
  rows = jsonl({"id": f"s{i}", "references": list(pair)} for i, pair in enumerate(zip(*STREAMS)))
  predictions = {f"s{i}": text for i, text in reversed(list(enumerate(SYSTEM)))}
  assert score("bleu", ("refs.jsonl", rows), ("p.json", predictions)) == scores
  chrf = score("chrf", references, ("system.txt", SYSTEM))["chrf"]
  assert chrf == pytest.approx(59.73, abs=0.005)
  flags = ("--tokenize=char", "--lowercase=true")
  signature = score("bleu", references, ("system.txt", SYSTEM), *flags)["signature"]
  assert "tok:char" in signature
  assert "case:lc" in signature


LONG = "x" * 200_000
ARC = ("q.jsonl", jsonl(CHOICES["arc"][0]))
SIQA_ROW = {"context": "c", "question": "?", "answerA": "a", "answerB": "b", "answerC": "c"}
SWAG = [
  ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label",
  '0,v,1,"a, b",s,t,gold,w,x,y,z,1',
  "1,v,1,a,s,t,gold,w,x,y,z,3",
]
CODAH = ["i\tPrompt\ta\tb\tc\td\t2", "o\tPrompt\ta\tb\tc\td\t0"]
ODD_LINES = ['["Applause"] he said', "a\tb", "", "{}", "x\u2028y"]
LONG_QUESTIONS = (
  "nq.jsonl",
  jsonl([{"question": "a, b?", "answer": [LONG]}, {"question": "c?", "answer": ["y"]}]),
)
NQ = [
  {"question": "who?", "answer": ["Ann Lee", "Lee"]},
  {"question": "where?", "answer": ["the U.S."]},
]
ALIASES = {"NormalizedAliases": ["u s"], "HumanAnswers": ["America!"]}
TRIVIA = {"Data": [{"QuestionId": "tc_1", "Question": "?", "Answer": ALIASES}]}
TRIVIA_ROWS = jsonl([{"context": "Question: ?", "answer": "Onion", "aliases": ["Allium cepa"]}])
TARGETS = '(list (description "Ann \\"A\\" Lee") (description Rome))'
WEB = [{"url": "u", "utterance": "who?", "targetValue": TARGETS}]
WEB_ROWS = [{"qId": "w1", "qText": "who?", "answers": ["Ann"]}]
LAST_WORDS = jsonl([{"context": "a", "continuation": "signs"}, {"text": "and then Ann said hello"}])
RESULTS = jsonl(
  [{"question": "?", "answer": "1+1=2\n#### 2"}, {"question": "!", "answer": "#### 1,000"}]
)
ROUGE = jsonl([{"paper_id": "p1", "target": ["the quick brown fox", "a dog"], "source": ["…"]}])
# By name: benchmark and flags, references, predictions, some of the scores.
FORMATS = {
  "a score for each choice": (
    "arc",
    ARC,
    (
      "p.jsonl",
      jsonl(
        [{"id": "A1", "prediction": [-3.0, -1, -2, -9]}, {"id": "A2", "prediction": [0, 0, 0, -1]}]
      ),
    ),
    {"accuracy": 50},
  ),
  "labels in a file of their own": (
    "siqa",
    [("dev.jsonl", jsonl([SIQA_ROW] * 2)), ("dev-labels.lst", ["3", "1"])],
    ("p.txt", ["3", "2"]),
    {"accuracy": 50},
  ),
  "labels alone": ("siqa", ("l.lst", ["3", "1"]), ("p.txt", ["C", "1"]), {"accuracy": 100}),
  "labels of piqa": ("piqa", ("l.lst", ["0", "1"]), ("p.lst", ["0", "0"]), {"accuracy": 50}),
  "mmlu as CSV": (
    "mmlu",
    ("law_test.csv", ['"Which, of these?",a,b,c,d,D', "Second,a,b,c,d,A"]),
    ("p.txt", ["D", "B"]),
    {"accuracy": 50},
  ),
  "race as rows": (
    "race",
    ("dev.jsonl", jsonl({"example_id": "high7.txt", "answer": answer} for answer in "AC")),
    ("p.txt", ["A", "C"]),
    {"accuracy": 100},
  ),
  "swag": ("swag", ("val.csv", SWAG), ("p.txt", ["1", "0"]), {"accuracy": 50}),
  "codah": (
    "codah",
    ("full_data.tsv", CODAH),
    ("p.csv", ["index,prediction", "1,0", "0,2"]),
    {"accuracy": 100},
  ),
  "entities of CoNLL-U": ("ner", ("d.conllu", CONLLU), ("p.txt", ["O B-X", "O"]), {"f1": 100}),
  "a named column": (
    "pos --column=xpos",
    ("dev.conllu", CONLLU),
    ("p.conllu", [line.replace("\tPART\t", "\tADV\t") for line in CONLLU]),
    {"accuracy": 100},
  ),
  "a numbered column": (
    "pos --column=1",
    ("dev.conll", CONLL),
    ("p.conll", CONLL),
    {"tokens": 4},
  ),
  "odd lines are texts": (
    "chrf",
    ("ref.txt", ODD_LINES),
    ("system.txt", ODD_LINES),
    {"chrf": 100, "examples": 5, "empty": 1},
  ),
  "a table of a long text, with a comma in the first and without a header": (
    "nq",
    LONG_QUESTIONS,
    ("p.csv", [f'"a, b?",{LONG}', "c?,y"]),
    {"exact_match": 100},
  ),
  "a table with an empty last column": (
    "nq",
    LONG_QUESTIONS,
    ("p.tsv", ["\ufeffquestion\tanswer\t\r", "c?\ty\t\r", f"a, b?\t{LONG}\t\r"]),
    {"exact_match": 100},
  ),
  "summaries": (
    "rouge",
    ("test.jsonl", ROUGE),
    ("p.txt", ["a dog"]),
    {"rouge1": 100, "rouge2": 100, "rougeL": 100, "rougeLsum": 100, "examples": 1},
  ),
  "stems": ("rouge", ("r.txt", ["dogs"]), ("p.txt", ["dog"]), {"rouge1": 100}),
  "no stems": (
    "rouge --use_stemmer=false",
    ("r.txt", ["dogs"]),
    ("p.txt", ["dog"]),
    {"rouge1": 0},
  ),
  "answers by question": (
    "nq",
    ("dev.jsonl", jsonl(NQ)),
    (
      "p.jsonl",
      jsonl(
        [{"question": "where?", "prediction": "US"}, {"question": "who?", "prediction": "ann"}]
      ),
    ),
    {"exact_match": 50},
  ),
  "an alias": (
    "triviaqa",
    ("qa.json", TRIVIA),
    ("p.json", {"tc_1": "the U.S."}),
    {"exact_match": 100},
  ),
  "a human answer": (
    "triviaqa",
    ("qa.json", TRIVIA),
    ("p.json", {"tc_1": "america"}),
    {"exact_match": 100},
  ),
  "an alias of a row": (
    "triviaqa",
    ("sub.jsonl", TRIVIA_ROWS),
    ("p.txt", ["the allium-cepa"]),
    {"exact_match": 100},
  ),
  "a quoted answer": (
    "webquestions",
    ("test.json", WEB),
    ("p.txt", ['Ann "A" Lee']),
    {"exact_match": 100},
  ),
  "a second answer": (
    "webquestions",
    ("test.json", WEB),
    ("p.txt", ["rome"]),
    {"exact_match": 100},
  ),
  "webquestions by id": (
    "webquestions",
    ("test.json", WEB_ROWS),
    ("p.json", {"w1": "ann."}),
    {"exact_match": 100},
  ),
  "last words": (
    "lambada",
    ("test.jsonl", LAST_WORDS),
    ("p.txt", ["signs", "goodbye"]),
    {"accuracy": 50},
  ),
  "results of sums": (
    "gsm8k",
    ("test.jsonl", RESULTS),
    ("p.jsonl", jsonl([{"id": 0, "prediction": "so 2."}, {"id": 1, "prediction": "no idea"}])),
    {"exact_match": 50, "examples": 2, "invalid": 1},
  ),
}


@pytest.mark.parametrize(
  "command, references, predictions, expected", FORMATS.values(), ids=FORMATS
)
def test_official_formats_are_scored(score, command, references, predictions, expected):
  benchmark, *flags = command.split()
  scores = score(benchmark, references, predictions, *flags)
  assert {name: scores[name] for name in expected} == pytest.approx(expected)


SUMS = [
  {"id": name, "question": f"q{name}", "answer": f"#### {i}"} for i, name in enumerate((2, 0, 1, 3))
]
KEYS = ["answer", "label", "text", "output", "response", "completion", "resps"]


@pytest.mark.parametrize(
  "key", ["pred", "predicted_answer", "generated_text", "modelOutput", "prediction", "model_answer"]
)
def test_the_gold_beside_a_prediction_is_not_scored(score, key):
  rows = [
    {"id": row["id"], "answer": row["answer"], key: "#### 99", f"{key}_score": 1} for row in SUMS
  ]
  assert score("gsm8k", ("test.jsonl", jsonl(SUMS)), ("p.jsonl", jsonl(rows)))["exact_match"] == 0


@pytest.mark.parametrize("keys", [*zip(KEYS, KEYS[1:]), ("prediction", "generated_text")])
def test_two_possible_keys_of_the_prediction_are_refused(refusal, keys):
  rows = [{"id": row["id"], **dict.fromkeys(keys, row["answer"])} for row in SUMS]
  output = refusal("gsm8k", ("r.jsonl", jsonl(SUMS)), ("p.jsonl", jsonl(rows)))
  assert f"{keys[0]!r} and {keys[1]!r}" in output


@pytest.mark.parametrize("key", ["reply", "llm_answer", "studentAnswer"])
def test_references_beside_an_unknown_key_are_refused(refusal, key):
  rows = [row | {key: "#### 99"} for row in SUMS]
  output = refusal("gsm8k", ("r.jsonl", jsonl(SUMS)), ("p.jsonl", jsonl(rows)))
  assert f"found the references' own values in 'answer', but '{key}' could be" in output


def test_sentences_of_the_references_under_another_key_are_refused(refusal):
  references = [row | {"answer": f"Two and two. {row['answer']}"} for row in SUMS]
  rows = [{"output": row["answer"], "llm": "#### 99"} for row in references]
  output = refusal("gsm8k", ("r.jsonl", jsonl(references)), ("p.jsonl", jsonl(rows)))
  assert "found the references' own values in 'output', but 'llm' could be" in output


def test_ids_inside_of_objects_are_refused(refusal):
  rows = [{"meta": {"idx": row["id"]}, "answer": row["answer"]} for row in SUMS[::-1]]
  output = refusal("gsm8k", ("r.jsonl", jsonl(SUMS)), ("p.jsonl", jsonl(rows)))
  assert "found an id in 'meta.idx', expected 'idx' beside the prediction" in output


@pytest.mark.parametrize("beside", [{}, {"question": "q"}, {"answer_score": 0.5}])
def test_correct_answers_beside_facts_are_scored(score, beside):
  rows = [row | beside for row in SUMS]
  assert score("gsm8k", ("r.jsonl", jsonl(SUMS)), ("p.jsonl", jsonl(rows)))["exact_match"] == 100


@pytest.mark.parametrize("field", ["id", "idx", "index", "qid", "question_id"])
def test_numeric_ids_are_matched_in_any_order(score, field):
  """Beside another index, predictions are in the order of the references."""
  rows = [{field: row["id"], "answer": row["answer"]} for row in SUMS]
  predictions = sorted(
    ({field: row["id"], "prediction": row["answer"]} for row in SUMS), key=lambda row: row[field]
  )
  for several in (
    predictions,
    predictions[::-1],
    [{field: float(row[field]), "prediction": row["prediction"]} for row in predictions],
  ):
    assert (
      score("gsm8k", ("test.jsonl", jsonl(rows)), ("p.jsonl", jsonl(several)))["exact_match"] == 100
    )
  if field != "index":
    table = [{"index": number} | row for number, row in enumerate(predictions)]
    assert (
      score("gsm8k", ("test.jsonl", jsonl(rows)), ("p.jsonl", jsonl(table)))["exact_match"] == 100
    )


def test_an_index_that_could_be_an_id_or_a_number_is_refused(refusal):
  rows = [{"index": number, "prediction": "1"} for number in range(4)]
  output = refusal("gsm8k", ("r.jsonl", jsonl(SUMS)), ("p.jsonl", jsonl(rows)))
  assert "its 'index' could be an example's 'id' or its number" in output


def test_texts_that_begin_with_brackets_are_no_json(score, refusal):
  lines = ["[Musik] Hallo zusammen.", '{"so"} sagt man', "[1] Hier ist [ein] Satz."]
  for first in range(3):
    texts = lines[first:] + lines[:first]
    assert score("bleu", ("test.de", texts), ("hyp.de", texts))["bleu"] == pytest.approx(100)
    assert score("chrf", ("test", texts[:1]), ("hyp.out", texts[:1]))["chrf"] == pytest.approx(100)
  rows = jsonl([{"id": 0, "prediction": "a"}, {"id": 1, "prediction": "b"}])
  damaged = [*rows, '{"id": 2, "predic']
  assert "p:3: broken JSON" in refusal("bleu", ("r", lines), ("p", damaged))

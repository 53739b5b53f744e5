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


def test_a_score_for_each_choice_is_a_prediction(score):
  rows, *_ = CHOICES["arc"]
  predictions = jsonl(
    {"id": name, "prediction": scores}
    for name, scores in (("A1", [-3.0, -1, -2, -9]), ("A2", [0, 0, 0, -1]))
  )
  assert score("arc", ("q.jsonl", jsonl(rows)), ("p.jsonl", predictions))["accuracy"] == 50


def test_labels_may_have_their_own_file(score):
  questions = jsonl(
    [{"context": "c", "question": "?", "answerA": "a", "answerB": "b", "answerC": "c"}] * 2
  )
  references = [("dev.jsonl", questions), ("dev-labels.lst", ["3", "1"])]
  assert score("siqa", references, ("p.txt", ["3", "2"]))["accuracy"] == 50
  assert score("siqa", ("dev-labels.lst", ["3", "1"]), ("p.txt", ["C", "1"]))["accuracy"] == 100
  assert score("piqa", ("valid-labels.lst", ["0", "1"]), ("p.lst", ["0", "0"]))["accuracy"] == 50


def test_mmlu_is_scored_by_subject_and_read_from_csv(score):
  csv = ['"Which, of these?",a,b,c,d,D', "Second,a,b,c,d,A"]
  assert score("mmlu", ("law_test.csv", csv), ("p.txt", ["D", "B"]))["accuracy"] == 50
  rows = [
    {"split": s, "subject": x, "question": "?", "choices": list("abcd"), "answer": "A"}
    for s, x in (("dev", "law"), ("test", "law"), ("test", "law"), ("test", "art"))
  ]
  scores = score("mmlu", ("mmlu.jsonl", jsonl(rows)), ("p.txt", ["A", "B", "A"]), "--split=test")
  assert scores["accuracy"] == pytest.approx(200 / 3)
  assert scores["groups"]["law"] == {
    "accuracy": 50.0,
    "examples": 2,
  }
  assert scores["mean_of_groups"]["accuracy"] == 75


def test_race_is_scored_by_level(tmp_path, capsys, score):
  for level, answers in (("high", ["A", "C"]), ("middle", ["B"])):
    text = {
      "id": f"{level}7.txt",
      "article": "…",
      "questions": ["?"] * len(answers),
      "answers": answers,
    }
    text["options"] = [["a", "b", "c", "d"]] * len(answers)
    write(tmp_path / "dev" / level / "7.txt", text)
  predictions = write(
    tmp_path / "p.json", {"high7.txt-0": "A", "high7.txt-1": "B", "middle7.txt-0": "B"}
  )
  code, scores = run(
    capsys, "race", f"--references={tmp_path / 'dev'}", f"--predictions={predictions}"
  )
  assert code == 0
  assert scores["accuracy"] == pytest.approx(200 / 3)
  assert scores["groups"]["high"]["accuracy"] == 50
  assert scores["groups"]["middle"]["accuracy"] == 100
  rows = jsonl({"example_id": "high7.txt", "answer": answer} for answer in "AC")
  assert score("race", ("dev.jsonl", rows), ("p.txt", ["A", "C"]))["accuracy"] == 100


def test_files_of_swag_and_codah_are_read(score):
  header = (
    ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label"
  )
  csv = [header, '0,v,1,"a, b",s,t,gold,w,x,y,z,1', "1,v,1,a,s,t,gold,w,x,y,z,3"]
  assert score("swag", ("val.csv", csv), ("p.txt", ["1", "0"]))["accuracy"] == 50
  tsv = ["i\tPrompt\ta\tb\tc\td\t2", "o\tPrompt\ta\tb\tc\td\t0"]
  assert (
    score("codah", ("full_data.tsv", tsv), ("p.csv", ["index,prediction", "1,0", "0,2"]))[
      "accuracy"
    ]
    == 100
  )


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
  predicted = [line.replace("I-PER", "O") for line in CONLL]
  scores = score("ner", ("dev.conll", CONLL), ("p.conll", predicted))
  assert scores["f1"] == 50
  assert scores["entities"] == 2
  assert scores["types"]["LOC"]["f1"] == 100
  tags = [["B-PER", "O", "O"], ["B-LOC"]]
  assert (
    score(
      "ner",
      ("dev.conll", CONLL),
      ("p.jsonl", jsonl({"id": i, "tags": t} for i, t in enumerate(tags))),
    )
    == scores
  )
  assert (
    score(
      "ner", ("dev.conll", CONLL), ("p.txt", [" ".join(sentence_tags) for sentence_tags in tags])
    )
    == scores
  )
  assert score("ner", ("dev.conll", CONLL), ("p.json", tags)) == scores
  assert score("ner", ("dev.conllu", CONLLU), ("p.txt", ["O B-X", "O"]))["f1"] == 100


def test_parts_of_speech_are_scored(score):
  predicted = [line.replace("\tPART\t", "\tADV\t") for line in CONLLU]
  scores = score("pos", ("dev.conllu", CONLLU), ("p.conllu", predicted))
  assert scores == {"accuracy": pytest.approx(200 / 3), "examples": 2, "tokens": 3}
  assert (
    score("pos", ("dev.conllu", CONLLU), ("p.conllu", predicted), "--column=xpos")["accuracy"]
    == 100
  )
  assert score("pos", ("dev.conll", CONLL), ("p.conll", CONLL), "--column=1")["tokens"] == 4


def test_translations_have_sacrebleus_scores(score):
  streams = [
    ["The dog bit the man.", "It was not unexpected.", "The man bit him first."],
    ["The dog had bit the man.", "No one was surprised.", "The man had bitten the dog."],
  ]  # sacrebleu's README
  system = ["The dog bit the man.", "It wasn't surprising.", "The man had just bitten him."]
  references = [("ref0.en", streams[0]), ("ref1.en.gz", streams[1])]
  scores = score("bleu", references, ("system.txt", system))
  assert scores["bleu"] == pytest.approx(48.530827009929865)
  assert scores["signature"].startswith("nrefs:2|")
  rows = jsonl({"id": f"s{i}", "references": list(pair)} for i, pair in enumerate(zip(*streams)))
  predictions = {f"s{i}": text for i, text in reversed(list(enumerate(system)))}
  assert score("bleu", ("refs.jsonl", rows), ("p.json", predictions)) == scores
  assert score("chrf", references, ("system.txt", system))["chrf"] == pytest.approx(
    59.73, abs=0.005
  )
  char = score("bleu", references, ("system.txt", system), "--tokenize=char", "--lowercase=true")
  assert "tok:char" in char["signature"]
  assert "case:lc" in char["signature"]


def test_odd_lines_stay_texts(score):
  lines = ['["Applause"] he said', "a\tb", "", "{}", "x\u2028y"]
  scores = score("chrf", ("ref.txt", lines), ("system.txt", lines))
  assert scores["chrf"] == pytest.approx(100)
  assert scores["examples"] == 5
  assert scores["empty"] == 1


def test_tables_of_long_and_quoted_texts_are_read(score):
  """They lack a header, have a comma in the first text, or an empty last column."""
  rows = jsonl(
    [{"question": "a, b?", "answer": ["x" * 200_000]}, {"question": "c?", "answer": ["y"]}]
  )
  assert (
    score("nq", ("nq.jsonl", rows), ("p.csv", ['"a, b?",' + "x" * 200_000, "c?,y"]))["exact_match"]
    == 100
  )
  table = ["\ufeffquestion\tanswer\t\r", "c?\ty\t\r", f"a, b?\t{'x' * 200_000}\t\r"]
  assert score("nq", ("nq.jsonl", rows), ("p.tsv", table))["exact_match"] == 100


def test_summaries_are_scored_by_rouge(score):
  rows = jsonl([{"paper_id": "p1", "target": ["the quick brown fox", "a dog"], "source": ["…"]}])
  scores = score("rouge", ("test.jsonl", rows), ("p.txt", ["a dog"]))
  assert scores == {"rouge1": 100, "rouge2": 100, "rougeL": 100, "rougeLsum": 100, "examples": 1}
  stemmed = score(
    "rouge", ("r.txt", ["dogs"]), ("p.jsonl", jsonl([{"id": "0", "prediction": "dog"}]))
  )
  assert stemmed["rouge1"] == 100
  assert (
    score("rouge", ("r.txt", ["dogs"]), ("p.txt", ["dog"]), "--use_stemmer=false")["rouge1"] == 0
  )


def test_open_questions_accept_any_of_their_answers(score):
  nq = jsonl(
    [
      {"question": "who?", "answer": ["Ann Lee", "Lee"]},
      {"question": "where?", "answer": ["the U.S."]},
    ]
  )
  predictions = jsonl(
    [{"question": "where?", "prediction": "US"}, {"question": "who?", "prediction": "ann"}]
  )
  assert score("nq", ("dev.jsonl", nq), ("p.jsonl", predictions))["exact_match"] == 50
  trivia = {
    "Data": [
      {
        "QuestionId": "tc_1",
        "Question": "?",
        "Answer": {"NormalizedAliases": ["u s"], "HumanAnswers": ["America!"]},
      }
    ]
  }
  assert (
    score("triviaqa", ("qa.json", trivia), ("p.json", {"tc_1": "the U.S."}))["exact_match"] == 100
  )
  assert (
    score("triviaqa", ("qa.json", trivia), ("p.json", {"tc_1": "america"}))["exact_match"] == 100
  )
  rows = jsonl([{"context": "Question: ?", "answer": "Onion", "aliases": ["Allium cepa"]}])
  assert (
    score("triviaqa", ("sub.jsonl", rows), ("p.txt", ["the allium-cepa"]))["exact_match"] == 100
  )
  official = [
    {
      "url": "u",
      "utterance": "who?",
      "targetValue": '(list (description "Ann \\"A\\" Lee") (description Rome))',
    }
  ]
  for text in ('Ann "A" Lee', "rome"):
    assert score("webquestions", ("test.json", official), ("p.txt", [text]))["exact_match"] == 100
  questions = [{"qId": "w1", "qText": "who?", "answers": ["Ann"]}]
  assert (
    score("webquestions", ("test.json", questions), ("p.json", {"w1": "ann."}))["exact_match"]
    == 100
  )


def test_last_words_and_results_of_sums_are_scored(score):
  rows = jsonl([{"context": "a", "continuation": "signs"}, {"text": "and then Ann said hello"}])
  assert score("lambada", ("test.jsonl", rows), ("p.txt", ["signs", "goodbye"]))["accuracy"] == 50
  rows = jsonl(
    [{"question": "?", "answer": "1+1=2\n#### 2"}, {"question": "!", "answer": "#### 1,000"}]
  )
  predictions = jsonl([{"id": 0, "prediction": "so 2."}, {"id": 1, "prediction": "no idea"}])
  assert score("gsm8k", ("test.jsonl", rows), ("p.jsonl", predictions)) == {
    "exact_match": 50.0,
    "examples": 2,
    "invalid": 1,
  }


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
def test_two_possible_keys_of_the_prediction_are_refused(tmp_path, capsys, keys):
  rows = [{"id": row["id"], **dict.fromkeys(keys, row["answer"])} for row in SUMS]
  flags = (
    f"--references={write(tmp_path / 'r.jsonl', jsonl(SUMS))}",
    f"--predictions={write(tmp_path / 'p.jsonl', jsonl(rows))}",
  )
  code, output = run(capsys, "gsm8k", *flags)
  assert code == 2
  assert f"{keys[0]!r} and {keys[1]!r}" in output


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


def test_an_index_that_could_be_an_id_or_a_number_is_refused(tmp_path, capsys):
  rows = [{"index": number, "prediction": "1"} for number in range(4)]
  flags = (
    f"--references={write(tmp_path / 'r.jsonl', jsonl(SUMS))}",
    f"--predictions={write(tmp_path / 'p.jsonl', jsonl(rows))}",
  )
  code, output = run(capsys, "gsm8k", *flags)
  assert code == 2
  assert "its 'index' could be an example's 'id' or its number" in output


def test_texts_that_begin_with_brackets_are_no_json(score, tmp_path, capsys):
  lines = ["[Musik] Hallo zusammen.", '{"so"} sagt man', "[1] Hier ist [ein] Satz."]
  for first in range(3):
    texts = lines[first:] + lines[:first]
    assert score("bleu", ("test.de", texts), ("hyp.de", texts))["bleu"] == pytest.approx(100)
    assert score("chrf", ("test", texts[:1]), ("hyp.out", texts[:1]))["chrf"] == pytest.approx(100)
  damaged = [
    *jsonl([{"id": 0, "prediction": "a"}, {"id": 1, "prediction": "b"}]),
    '{"id": 2, "predic',
  ]
  flags = (
    f"--references={write(tmp_path / 'r', lines)}",
    f"--predictions={write(tmp_path / 'p', damaged)}",
  )
  code, output = run(capsys, "bleu", *flags)
  assert code == 2
  assert "p:3: broken JSON" in output

"""The source `salient:` has an example for each salient span of a sentence."""

import pytest

import json_lines
from refusals import refuses
from t5x_like import trust
from t5x_like.corpora.sources import _named_spans, open_source
from t5x_like.corpora.sources._salient_rules import dates_numbers_and_names, sentences
from t5x_like.data import task


def read_records(source: str) -> list[dict]:
  """Return the inputs and targets of a source's records for training."""
  return [
    {key: record[key] for key in ("inputs", "targets")}
    for _, record in open_source(source).records("train")
  ]


def write_rows(path, *rows: dict) -> str:
  """Write rows as JSON lines; return the path."""
  json_lines.write(path, rows)
  return str(path)


TAGGED = [
  {
    "text": "Fred was sent to Bedlam in 1889.",
    "spans": [{"start": 17, "end": 23}, {"start": 27, "end": 31}],
  },
  {"text": "Nobody. Really nobody.", "spans": []},
  {"text": "Ada. Or Bob.", "entities": [[0, 3]]},
]


def test_each_tagged_span_is_an_example(tmp_path):
  assert read_records(f"salient:jsonl:{write_rows(tmp_path / 'tagged.jsonl', *TAGGED)}") == [
    {"inputs": "nem: Fred was sent to _X_ in 1889.", "targets": "Bedlam"},
    {"inputs": "nem: Fred was sent to Bedlam in _X_.", "targets": "1889"},
    {"inputs": "nem: _X_. Or Bob.", "targets": "Ada"},
  ]


def test_spans_with_a_limit_are_byte_offsets_as_in_the_published_data(tmp_path):
  spans = {"start": [0, 11], "limit": [6, 15], "type": ["PER", "PER"]}
  row = {"text": "Émile met Zoé.", "spans": spans, "title": "x"}
  assert read_records(f"salient:jsonl:{write_rows(tmp_path / 'tagged.jsonl', row)}") == [
    {"inputs": "nem: _X_ met Zoé.", "targets": "Émile"},
    {"inputs": "nem: Émile met _X_.", "targets": "Zoé"},
  ]


def test_rules_find_spans_in_the_sentences_of_untagged_texts(tmp_path):
  text = 'Then Mr. Darcy met Ann Lee at 4.5 miles. Nobody saw it!\nIt was 1889 "then." So what?'
  assert sentences(text) == [
    "Then Mr. Darcy met Ann Lee at 4.5 miles.",
    "Nobody saw it!",
    'It was 1889 "then."',
    "So what?",
  ]
  assert sentences("J. R. Hartley left. Why?") == ["J. R. Hartley left.", "Why?"]
  assert sentences("他说。“走吧！”她笑。") == ["他说。", "“走吧！”", "她笑。"]
  examples = read_records(f"salient:jsonl:{write_rows(tmp_path / 'texts.jsonl', {'text': text})}")
  assert [example["targets"] for example in examples] == ["Mr. Darcy", "Ann Lee", "4.5", "1889"]
  assert examples[-1]["inputs"] == 'nem: It was _X_ "then."'


def test_function_or_file_of_names_finds_spans(tmp_path, monkeypatch):
  rows = [{"text": "They asked who. Ada of York knew who."}]
  texts = f"jsonl:{write_rows(tmp_path / 'texts.jsonl', *rows)}"
  names = write_rows(tmp_path / "names.jsonl", {"text": "Ada of York", "spans": [[0, 11]]})
  assert read_records(f"salient:{names}@{texts}") == [
    {"inputs": "nem: _X_ knew who.", "targets": "Ada of York"}
  ]
  (tmp_path / "salient_finder.py").write_text(
    "def find(text):\n  return [(text.index('who'), text.index('who') + 3)]\n"
  )
  monkeypatch.syspath_prepend(tmp_path)
  source = f"salient:salient_finder:find@{texts}"
  with refuses("which this command does not name"):
    read_records(source)
  trust.begin_command([source])
  assert [example["inputs"] for example in read_records(source)] == [
    "nem: They asked _X_.",
    "nem: Ada of York knew _X_.",
  ]


def test_spans_are_the_records_of_a_text_to_text_task(tmp_path):
  text_task = task.build(
    "text_to_text",
    "train",
    source=f"salient:jsonl:train={write_rows(tmp_path / 'tagged.jsonl', *TAGGED)}",
    cache=str(tmp_path / "cache"),
    packed=False,
    inputs="{inputs}",
    targets="{targets}",
    inputs_length=64,
    targets_length=16,
  )
  assert text_task.num_examples == 3
  targets = [example["targets"] for example in text_task.examples(())]
  assert targets == ["Bedlam", "1889", "Ada"]


@pytest.mark.parametrize(
  ("source", "message"),
  [
    ("salient:", "expected salient:SOURCE or salient:FINDER@SOURCE"),
    ("salient:jsonl:{}/odd.jsonl", "odd.jsonl:1: found keys words, expected 'text'"),
    (
      "salient:jsonl:{}/past.jsonl",
      "found the span [0, 9], expected a start and an end in a text of 1 characters",
    ),
    ("salient:{}/none.jsonl@jsonl:{}/odd.jsonl", "none.jsonl"),
  ],
)
def test_bad_sources_are_refused(source, message, tmp_path):
  write_rows(tmp_path / "odd.jsonl", {"words": 1})
  write_rows(tmp_path / "past.jsonl", {"text": "a", "spans": [[0, 9]]})
  with refuses(message):
    read_records(source.replace("{}", str(tmp_path)))


def salient_texts(text: str) -> list[str]:
  return [text[start:end] for start, end in dates_numbers_and_names(text)]


def test_rules_find_dates_numbers_and_names():
  text = (
    "In Paris the tower of Gustave Eiffel rose by May 6, 1889. It is 330.5 m tall, say the "
    "U.S. since 2020-01-02."
  )
  assert salient_texts(text) == [
    "Paris",
    "Gustave Eiffel",
    "May 6, 1889",
    "330.5",
    "U.S.",
    "2020-01-02",
  ]


def test_rules_find_names_in_any_alphabet_with_capitals():
  text = "They met Élodie Dupont and Ωmega in an école near ñandú, then 中村."
  assert salient_texts(text) == ["Élodie Dupont", "Ωmega"]


def test_rules_handle_titles_and_spaces_before_punctuation():
  text = (
    "Then Mr. Darcy met Mrs . Bennet . Tea at 4 on May 6 , 1889 was I think for Lady Anne I met."
  )
  assert salient_texts(text) == ["Mr. Darcy", "Mrs . Bennet", "4", "May 6 , 1889", "Lady Anne"]


# Each row has its spans under another key, as pairs or as objects.
NAMES = [
  {"text": "J. R. Hartley of York", "spans": [[0, 13], [17, 21]]},
  {"text": "New York", "entities": [{"start": 0, "end": 8, "label": "GPE"}]},
  {"text": "nobody", "ents": []},
]


def test_names_of_a_file_match_whole_words_longest_first_with_any_spaces(tmp_path):
  file = write_rows(tmp_path / "names.jsonl", *NAMES)
  find, _ = _named_spans.load_finder("config.task.finder", file)
  text = "York's yorkers saw J . R . Hartley in New  York."
  assert [text[start:end] for start, end in find(text)] == ["York", "J . R . Hartley", "New  York"]


def test_facts_depend_on_the_names_but_not_on_their_order(tmp_path):
  file = write_rows(tmp_path / "names.jsonl", *NAMES)
  _, facts = _named_spans.load_finder("config.task.finder", file)
  source = f"salient:{file}@builtin"
  source_facts = open_source(source).split_facts("train")
  assert source_facts["form"] == "salient"
  write_rows(tmp_path / "names.jsonl", *NAMES[::-1])
  assert _named_spans.load_finder("config.task.finder", file)[1] == facts
  write_rows(tmp_path / "names.jsonl", *NAMES[:1])
  assert open_source(source).split_facts("train") != source_facts


@pytest.mark.parametrize(
  "row, names",
  [
    ({"text": "a"}, ("names.jsonl:1: found keys text", "spans or entities or ents")),
    ({"text": "a", "spans": [[0, 2]]}, ("names.jsonl:1: found the span [0, 2]", "1 characters")),
    ({"text": "a", "spans": []}, ("found no spans",)),
  ],
)
def test_bad_files_of_names_are_refused(row, names, tmp_path):
  file = write_rows(tmp_path / "names.jsonl", row)
  with refuses(*names):
    _named_spans.load_finder("config.task.finder", file)


def test_sentences_are_split_in_linear_time():
  run = "." * 500_000  # would take half an hour in quadratic time
  assert sentences(f"One{run}x two. Three.") == [f"One{run}x two.", "Three."]

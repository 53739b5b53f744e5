"""Salient spans: an example for each span of each sentence, in the texts of the published code."""

import json

import pytest

from t5x_like import trust
from t5x_like.corpora.sources import _named_spans, open_source
from t5x_like.corpora.sources._salient_rules import dates_numbers_and_names, sentences
from t5x_like.data import task
from t5x_like.errors import UserError


def records(spelled: str, split: str = "train") -> list[dict]:
  return [
    {key: record[key] for key in ("inputs", "targets")}
    for _, record in open_source(spelled).records(split)
  ]


def write(path, rows: list[dict]) -> str:
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return str(path)


TAGGED = [
  {
    "text": "Fred was sent to Bedlam in 1889.",
    "spans": [{"start": 17, "end": 23}, {"start": 27, "end": 31}],
  },
  {"text": "Nobody. Really nobody.", "spans": []},
  {"text": "Ada. Or Bob.", "entities": [[0, 3]]},
]


def test_each_span_of_a_tagged_sentence_is_an_example_and_others_are_none(tmp_path):
  assert records(f"salient:jsonl:{write(tmp_path / 'tagged.jsonl', TAGGED)}") == [
    {"inputs": "nem: Fred was sent to _X_ in 1889.", "targets": "Bedlam"},
    {"inputs": "nem: Fred was sent to Bedlam in _X_.", "targets": "1889"},
    {"inputs": "nem: _X_. Or Bob.", "targets": "Ada"},
  ]


def test_spans_of_wikipedia_are_bytes(tmp_path):
  row = {"text": "Émile met Zoé.", "spans": {"start": [0, 11], "limit": [6, 15]}, "title": "x"}
  row["spans"] |= {"type": ["PER", "PER"]}
  found = records(f"salient:jsonl:{write(tmp_path / 'tagged.jsonl', [row])}")
  assert [(one["inputs"], one["targets"]) for one in found] == [
    ("nem: _X_ met Zoé.", "Émile"),
    ("nem: Émile met _X_.", "Zoé"),
  ]


def test_texts_are_cut_into_sentences_with_the_spans_of_the_expression(tmp_path):
  text = 'Then Mr. Darcy met Ann Lee at 4.5 miles. Nobody saw it!\nIt was 1889 "then." So what?'
  assert sentences(text) == [
    "Then Mr. Darcy met Ann Lee at 4.5 miles.",
    "Nobody saw it!",
    'It was 1889 "then."',
    "So what?",
  ]
  assert sentences("J. R. Hartley left. Why?") == ["J. R. Hartley left.", "Why?"]
  found = records(f"salient:jsonl:{write(tmp_path / 'texts.jsonl', [{'text': text}])}")
  assert [row["targets"] for row in found] == ["Mr. Darcy", "Ann Lee", "4.5", "1889"]
  assert found[-1]["inputs"] == 'nem: It was _X_ "then."'


def test_a_function_or_a_file_of_names_finds_the_spans(tmp_path, monkeypatch):
  texts = (
    f"jsonl:{write(tmp_path / 'texts.jsonl', [{'text': 'They asked who. Ada of York knew who.'}])}"
  )
  names = write(tmp_path / "names.jsonl", [{"text": "Ada of York", "spans": [[0, 11]]}])
  assert records(f"salient:{names}@{texts}") == [
    {"inputs": "nem: _X_ knew who.", "targets": "Ada of York"}
  ]
  (tmp_path / "salient_finder.py").write_text(
    "def find(text):\n  return [(text.index('who'), text.index('who') + 3)]\n"
  )
  monkeypatch.syspath_prepend(tmp_path)
  name = "salient_finder:find"
  with pytest.raises(UserError, match="which this command does not name"):
    records(f"salient:{name}@{texts}")
  trust.begin_command([f"salient:{name}@{texts}"])
  assert [row["inputs"] for row in records(f"salient:{name}@{texts}")] == [
    "nem: They asked _X_.",
    "nem: Ada of York knew _X_.",
  ]


def test_spans_are_the_records_of_a_text_to_text_task(tmp_path):
  rows = f"salient:jsonl:train={write(tmp_path / 'tagged.jsonl', TAGGED)}"
  templates = {
    "inputs": "{inputs}",
    "targets": "{targets}",
    "inputs_length": 64,
    "targets_length": 16,
  }
  made = task.build(
    "text_to_text", "train", source=rows, cache=str(tmp_path / "cache"), packed=False, **templates
  )
  assert made.num_examples == 3 and [one["targets"] for one in made.examples(())] == [
    "Bedlam",
    "1889",
    "Ada",
  ]


@pytest.mark.parametrize(
  ("source", "words"),
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
def test_what_has_no_spans_is_one_line(source, words, tmp_path):
  write(tmp_path / "odd.jsonl", [{"words": 1}])
  write(tmp_path / "past.jsonl", [{"text": "a", "spans": [[0, 9]]}])
  with pytest.raises(UserError) as error:
    records(source.replace("{}", str(tmp_path)))
  assert words in str(error.value) and "\n" not in str(error.value)


def test_dates_numbers_and_names():
  text = (
    "In Paris the tower of Gustave Eiffel rose by May 6, 1889. It is 330.5 m tall, say the "
    "U.S. since 2020-01-02."
  )
  found = [text[a:b] for a, b in dates_numbers_and_names(text)]
  assert found == ["Paris", "Gustave Eiffel", "May 6, 1889", "330.5", "U.S.", "2020-01-02"]


def test_capitals_of_all_alphabets_begin_names_and_small_letters_none():
  text = "They met Élodie Dupont and Ωmega in an école near ñandú, then 中村."
  assert [text[begin:end] for begin, end in dates_numbers_and_names(text)] == [
    "Élodie Dupont",
    "Ωmega",
  ]


def test_titles_and_spaces_before_punctuation():
  text = (
    "Then Mr. Darcy met Mrs . Bennet . Tea at 4 on May 6 , 1889 was I think for Lady Anne I met."
  )
  found = [text[a:b] for a, b in dates_numbers_and_names(text)]
  assert found == ["Mr. Darcy", "Mrs . Bennet", "4", "May 6 , 1889", "Lady Anne"]


def test_a_finder_from_a_file_of_names(tmp_path):
  """Spans as pairs and as objects; whole words only, the longest name first, as WordPiece spaces
  them."""
  file = tmp_path / "names.jsonl"
  lines = [
    {"text": "J. R. Hartley of York", "spans": [[0, 13], [17, 21]]},
    {"text": "New York", "entities": [{"start": 0, "end": 8, "label": "GPE"}]},
    {"text": "nobody", "ents": []},
  ]
  file.write_text("".join(json.dumps(line) + "\n" for line in lines))
  find, facts = _named_spans.load_finder("config.task.finder", str(file))
  text = "York's yorkers saw J . R . Hartley in New  York."
  assert [text[start:end] for start, end in find(text)] == ["York", "J . R . Hartley", "New  York"]
  file.write_text("".join(json.dumps(line) + "\n" for line in reversed(lines)))
  assert _named_spans.load_finder("", str(file))[1] == facts
  opened = lambda: open_source(f"salient:{file}@builtin").split_facts("train")  # noqa: E731
  before = opened()
  file.write_text(json.dumps(lines[0]) + "\n")
  assert before == before | {"form": "salient"} and opened() != before
  for line, message in (
    (
      '{"text": "a"}',
      "names.jsonl:1: found keys text, expected 'text' and a list under spans or entities or ents",
    ),
    (
      '{"text": "a", "spans": [[0, 2]]}',
      r"names.jsonl:1: found the span \[0, 2\], .* in a text "
      r"of 1 characters",
    ),
    ('{"text": "a", "spans": []}', "found no spans"),
  ):
    file.write_text(line + "\n")
    with pytest.raises(UserError, match=message):
      _named_spans.load_finder("config.task.finder", str(file))

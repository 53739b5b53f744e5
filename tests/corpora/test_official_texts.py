"""Official files of translations, summaries and entities are read like TFDS and written like T5."""

import gzip
import hashlib

import numpy as np
import pytest
from seqeval.metrics.sequence_labeling import get_entities
from tensorflow_datasets.summarization import cnn_dailymail as tfds_cnn_dailymail
from tensorflow_datasets.translate import wmt

from refusals import refuses
from t5x_like.benchmarks.suites import benchmarks_for
from t5x_like.corpora.sources import Skip, open_source
from t5x_like.corpora.sources.entities import to_bio
from t5x_like.data.supervised.templates import Template

SGM = '<refset setid="x">\n<doc docid="1">\n<p>\n{}</p>\n</doc>\n</refset>\n'


def write_file(path, text: str) -> None:
  content = text.encode()
  if path.suffix == ".gz":
    content = gzip.compress(content)
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(content)


def format_sgml(*texts: str) -> str:
  """Return a file of segments in WMT's SGML."""
  segments = ""
  for number, text in enumerate(texts, 1):
    segments += f'<seg id="{number}">{text}</seg>\n'
  return SGM.format(segments)


def open_task_source(task: str, folder):
  return open_source(benchmarks_for("text")[task].files.source, data_dir=str(folder))


def read_records(task: str, split: str, folder) -> list:
  return [record for _, record in open_task_source(task, folder).records(split)]


def format_texts(task: str, record: dict) -> list[str]:
  """Return the input and the target of a record in a task."""
  arguments = benchmarks_for("text")[task].text.task
  return [Template(arguments[name], name, 100)(record, "here") for name in ("inputs", "targets")]


def test_translations_equal_tfds_records_and_t5_texts(tmp_path):
  """The training set has three corpora, one compressed; the test set is in WMT's SGML."""
  corpora = {"training/europarl-v7": "", "commoncrawl": "", "nc/news-commentary-v13": ".gz"}
  for corpus, suffix in corpora.items():
    for code in ("en", "de"):
      path = tmp_path / f"{corpus}.de-en.{code}{suffix}"
      write_file(path, f"{corpus} {code} 1\n{corpus} {code} 2\n")
  test_paths = []
  for side, code in (("src", "en"), ("ref", "de")):
    path = tmp_path / "dev" / f"newstest2014-deen-{side}.{code}.sgm"
    write_file(path, format_sgml(f"{code} &amp; one.", f"{code} <b>two</b>."))
    test_paths.append(str(path))
  expected_train = []
  for corpus in corpora:
    expected_train += [f"{corpus} de 1", f"{corpus} de 2"]
  train = read_records("wmt/en_de", "train", tmp_path)
  assert [record["de"] for record in train] == expected_train
  test = []
  for record in read_records("wmt/en_de", "test", tmp_path):
    test.append({"en": record["en"], "de": record["de"]})
  assert test == [record for _, record in wmt._parse_parallel_sentences(*test_paths)]
  assert format_texts("wmt/en_de", test[0]) == [
    "translate English to German: en &amp; one.",
    "de &amp; one.",
  ]
  assert format_texts("wmt/en_ro", {"en": "a", "ro": "b"}) == [
    "translate English to Romanian: a",
    "b",
  ]
  assert format_texts("wmt/en_fr", {"en": "a", "fr": "b"}) == [
    "translate English to French: a",
    "b",
  ]
  source = open_task_source("wmt/en_de", tmp_path)
  assert source.splits == ("train", "test")
  assert len(source.modification_times("train")) == 6


URLS = [
  "http://web.archive.org/web/2015id_/http://www.cnn.com/a",
  "http://www.dailymail.co.uk/b.html",
  "http://www.cnn.com/c",
]
STORIES = [
  '(CNN)It rains \n\nAnd \u2019rains.\n\n@highlight\n\nIt rains\n\n@highlight\n\n"No sun"\n',
  "One, two\n\n@highlight\n\nThree!",
  "\n\n@highlight\n\nOnly this",
]


@pytest.mark.parametrize("folder", ["", "url_lists"])
def test_stories_equal_tfds_records_and_t5_texts(folder, tmp_path):
  write_file(tmp_path / folder / "all_val.txt", "\n".join(URLS) + "\n")
  tfds_records = []
  for url, story in zip(URLS, STORIES):
    publisher = "dailymail" if "dailymail" in url else "cnn"
    digest = hashlib.sha1(url.encode()).hexdigest()
    path = tmp_path / publisher / "stories" / f"{digest}.story"
    write_file(path, story)
    tfds_records.append(tfds_cnn_dailymail._get_art_abs(str(path)))
  first, second, empty = read_records("cnn_dailymail/cnn_dailymail", "validation", tmp_path)
  for record, tfds_record in ((first, tfds_records[0]), (second, tfds_records[1])):
    assert (record["article"], record["highlights"]) == tfds_record
  assert isinstance(empty, Skip)
  assert not all(tfds_records[2])
  assert format_texts("cnn_dailymail/cnn_dailymail", first) == [
    "summarize: (CNN)It rains. And \u2019rains.",
    'It rains.\n"No sun"',
  ]


IOB1 = (
  "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nGerman JJ I-NP I-MISC\nDutch JJ I-NP B-MISC\ncall NN "
  "I-NP O\n\n"
  "Jo NNP I-NP I-PER\nDu NNP I-NP I-PER\n"
)


def test_entities_of_conll_are_converted_to_bio(tmp_path):
  write_file(tmp_path / "eng.testa", IOB1)
  rows = read_records("tags/conll", "validation", tmp_path)
  assert [(row["tokens"], row["entities"]) for row in rows] == [
    (["EU", "German", "Dutch", "call"], ["B-ORG", "B-MISC", "B-MISC", "O"]),
    (["Jo", "Du"], ["B-PER", "I-PER"]),
  ]


def test_conversion_to_bio_keeps_the_entities_of_every_scheme():
  """According to seqeval; converting the BIO form again has no effect."""
  generator = np.random.default_rng(0)
  for marks in ("BI", "I", "BIES"):
    for _ in range(200):
      tags = []
      for mark in generator.choice([*marks, "O"], 6):
        entity_class = generator.choice(["X", "Y"])
        tags.append("O" if mark == "O" else f"{mark}-{entity_class}")
      bio_tags = to_bio(tags, "here")
      assert get_entities(bio_tags) == get_entities(tags)
      assert to_bio(bio_tags, "here") == bio_tags
      assert [tag[1:] for tag in bio_tags] == [tag[1:] for tag in tags]


ENRO_EN = "newsdev2016-enro-src.en.sgm"
ENRO_RO = "newsdev2016-enro-ref.ro.sgm"
STORY_LIST = {"all_val.txt": "http://www.cnn.com/a\n"}


@pytest.mark.parametrize(
  ("task", "files", "message"),
  [
    ("wmt/en_ro", {ENRO_EN: "text\n", ENRO_RO: format_sgml("b")}, "found no segment"),
    ("wmt/en_ro", {ENRO_EN: format_sgml("a")}, "no file of that name"),
    (
      "wmt/en_ro",
      {ENRO_EN: format_sgml("a"), ENRO_RO: format_sgml("a", "b")},
      "found 1 lines, expected as many as in the other",
    ),
    ("cnn_dailymail/cnn_dailymail", STORY_LIST, "found no folder cnn/stories beside it"),
    ("cnn_dailymail/cnn_dailymail", STORY_LIST | {"cnn/stories/x": "y"}, "found no story of http"),
    ("tags/conll", {"eng.testa": "EU NNP ORG\n"}, "found the tag 'ORG', expected O, or B-"),
  ],
)
def test_bad_input_is_refused_in_one_line(task, files, message, tmp_path):
  for name, text in files.items():
    write_file(tmp_path / name, text)
  with refuses(message):
    read_records(task, "validation", tmp_path)

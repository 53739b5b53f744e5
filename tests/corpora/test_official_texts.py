"""Official files of translations, summaries and entities: the records of TFDS, T5's texts, and bad
input."""

import gzip
import hashlib

import numpy as np
import pytest
from seqeval.metrics.sequence_labeling import get_entities
from tensorflow_datasets.summarization import cnn_dailymail as theirs
from tensorflow_datasets.translate import wmt

from t5x_like.benchmarks.suites import benchmarks_for
from t5x_like.corpora.sources import Skip, open_source
from t5x_like.corpora.sources.entities import to_bio
from t5x_like.data.supervised.templates import Template
from t5x_like.errors import UserError

SGM = '<refset setid="x">\n<doc docid="1">\n<p>\n{}</p>\n</doc>\n</refset>\n'


def write(path, text: str) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def segments(*texts: str) -> str:
  return SGM.format(
    "".join(f'<seg id="{number}">{text}</seg>\n' for number, text in enumerate(texts, 1))
  )


def source(task: str, place):
  return open_source(benchmarks_for("text")[task].files.source, data_dir=str(place))


def records(task: str, split: str, place) -> list:
  return [record for _, record in source(task, place).records(split)]


def texts(task: str, record: dict) -> list[str]:
  form = benchmarks_for("text")[task].text.task
  return [Template(form[name], name, 100)(record, "here") for name in ("inputs", "targets")]


def test_translations_are_what_tfds_reads_and_t5_writes(tmp_path):
  """A training set of three corpora, one of them compressed; a test set in WMT's SGML, sides of
  other names."""
  for corpus, end in (
    ("training/europarl-v7", ""),
    ("commoncrawl", ""),
    ("nc/news-commentary-v13", ".gz"),
  ):
    for code in ("en", "de"):
      write(tmp_path / f"{corpus}.de-en.{code}{end}", f"{corpus} {code} 1\n{corpus} {code} 2\n")
  for side, code in (("src", "en"), ("ref", "de")):
    path = tmp_path / "dev" / f"newstest2014-deen-{side}.{code}.sgm"
    write(path, segments(f"{code} &amp; one.", f"{code} <b>two</b>."))
  train = records("wmt/en_de", "train", tmp_path)
  assert [row["de"] for row in train] == [
    f"{corpus} de {n}"
    for corpus in ("training/europarl-v7", "commoncrawl", "nc/news-commentary-v13")
    for n in (1, 2)
  ]
  pair = [str(tmp_path / "dev" / f"newstest2014-deen-{end}.sgm") for end in ("src.en", "ref.de")]
  found = [
    {code: row[code] for code in ("en", "de")} for row in records("wmt/en_de", "test", tmp_path)
  ]
  assert found == [row for _, row in wmt._parse_parallel_sentences(*pair)]
  assert texts("wmt/en_de", found[0]) == [
    "translate English to German: en &amp; one.",
    "de &amp; one.",
  ]
  assert texts("wmt/en_ro", {"en": "a", "ro": "b"}) == ["translate English to Romanian: a", "b"]
  assert texts("wmt/en_fr", {"en": "a", "fr": "b"}) == ["translate English to French: a", "b"]
  assert source("wmt/en_de", tmp_path).splits == ("train", "test")
  assert len(source("wmt/en_de", tmp_path).modification_times("train")) == 6


ADDRESSES = [
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
def test_stories_are_what_tfds_reads_and_t5_writes(folder, tmp_path):
  write(tmp_path / folder / "all_val.txt", "\n".join(ADDRESSES) + "\n")
  paths = []
  for address, story in zip(ADDRESSES, STORIES):
    publisher = "dailymail" if "dailymail" in address else "cnn"
    paths.append(
      tmp_path / publisher / "stories" / f"{hashlib.sha1(address.encode()).hexdigest()}.story"
    )
    write(paths[-1], story)
  first, second, empty = records("cnn_dailymail/cnn_dailymail", "validation", tmp_path)
  assert [(row["article"], row["highlights"]) for row in (first, second)] == [
    theirs._get_art_abs(str(path)) for path in paths[:2]
  ]
  assert isinstance(empty, Skip) and not all(theirs._get_art_abs(str(paths[2])))
  assert texts("cnn_dailymail/cnn_dailymail", first) == [
    "summarize: (CNN)It rains. And \u2019rains.",
    'It rains.\n"No sun"',
  ]


IOB1 = (
  "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nGerman JJ I-NP I-MISC\nDutch JJ I-NP B-MISC\ncall NN "
  "I-NP O\n\n"
  "Jo NNP I-NP I-PER\nDu NNP I-NP I-PER\n"
)


def test_entities_of_conll_are_bio(tmp_path):
  write(tmp_path / "eng.testa", IOB1)
  rows = records("tags/conll", "validation", tmp_path)
  assert [(row["tokens"], row["entities"]) for row in rows] == [
    (["EU", "German", "Dutch", "call"], ["B-ORG", "B-MISC", "B-MISC", "O"]),
    (["Jo", "Du"], ["B-PER", "I-PER"]),
  ]


def test_every_scheme_keeps_its_entities():
  """seqeval finds the same entities in the tags and in their BIO form, and the BIO form is its
  own."""
  generator = np.random.default_rng(0)
  for marks in ("BI", "I", "BIES"):
    for _ in range(200):
      tags = [
        f"{mark}-{kind}" if mark != "O" else "O"
        for mark, kind in generator.choice([*marks, "O"], (6, 2))
      ]
      tags = [tag if tag == "O" else f"{tag[0]}-{generator.choice(['X', 'Y'])}" for tag in tags]
      made = to_bio(tags, "here")
      assert get_entities(made) == get_entities(tags) and to_bio(made, "here") == made
      assert all(a[1:] == b[1:] for a, b in zip(made, tags))


RO_EN = "newsdev2016-enro-src.en.sgm"
RO_RO = "newsdev2016-enro-ref.ro.sgm"
LIST = {"all_val.txt": "http://www.cnn.com/a\n"}


@pytest.mark.parametrize(
  ("task", "files", "words"),
  [
    ("wmt/en_ro", {RO_EN: "text\n", RO_RO: segments("b")}, "found no segment"),
    ("wmt/en_ro", {RO_EN: segments("a")}, "no file of that name"),
    (
      "wmt/en_ro",
      {RO_EN: segments("a"), RO_RO: segments("a", "b")},
      "found 1 lines, expected as many as in the other",
    ),
    ("cnn_dailymail/cnn_dailymail", LIST, "found no folder cnn/stories beside it"),
    ("cnn_dailymail/cnn_dailymail", LIST | {"cnn/stories/x": "y"}, "found no story of http"),
    ("tags/conll", {"eng.testa": "EU NNP ORG\n"}, "found the tag 'ORG', expected O, or B-"),
  ],
)
def test_bad_input_is_one_line(task, files, words, tmp_path):
  for name, text in files.items():
    write(tmp_path / name, text)
  with pytest.raises(UserError) as error:
    records(task, "validation", tmp_path)
  assert words in str(error.value) and "\n" not in str(error.value)

"""Sources read documents in a fixed order, and refuse missing and damaged files."""

import codecs
import datetime
import decimal
import gzip
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refusals import refuses
from t5x_like.corpora.documents import Documents
from t5x_like.corpora.sources import formats
from tests import topics

CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
DOCUMENT = st.text(CHARACTERS).filter(str.strip)


def write(path, content: str | bytes):
  """Write a file, compressed if its name ends in .gz, and return its path."""
  path.parent.mkdir(parents=True, exist_ok=True)
  if isinstance(content, str):
    content = content.encode()
  if path.suffix == ".gz":
    content = gzip.compress(content, mtime=0)
  path.write_bytes(content)
  return path


def read_documents(source: str, split="train", **options) -> list[str]:
  return list(Documents(source, **options).usable(split))


def test_documents_of_each_format_are_read(tmp_path):
  write(tmp_path / "a.jsonl", '{"text": "one"}\n\n{"text": "two\\nlines", "id": 3}')
  assert read_documents(f"jsonl:{tmp_path}/a.jsonl") == ["one", "two\nlines"]
  write(tmp_path / "a.lines", "one\r\ntwo\u2028still two\nthree")
  assert read_documents(f"lines:{tmp_path}/a.lines") == ["one", "two\u2028still two", "three"]
  write(tmp_path / "a.txt", "one\ntwo\n")
  assert read_documents(f"text:{tmp_path}/a.txt") == ["one\ntwo\n"]
  write(tmp_path / "a.tsv", 'id\tbody\n1\tsay "hi\n2\ttwo\n')
  assert read_documents(f"tsv:{tmp_path}/a.tsv", text_field="body") == ['say "hi', "two"]
  assert read_documents(f"tsv:{tmp_path}/a.tsv", text_field="1") == ["body", 'say "hi', "two"]


@settings(max_examples=25)
@given(
  documents=st.lists(DOCUMENT, min_size=1, max_size=6),
  zipped=st.booleans(),
  ascii_only=st.booleans(),
)
def test_documents_written_as_jsonl_are_read_back(tmp_path_factory, documents, zipped, ascii_only):
  path = tmp_path_factory.mktemp("jsonl") / ("a.jsonl.gz" if zipped else "a.jsonl")
  write(
    path, "".join(json.dumps({"text": text}, ensure_ascii=ascii_only) + "\n" for text in documents)
  )
  source = Documents(f"jsonl:{path}")
  assert list(source.usable("train")) == documents
  assert not source.skipped["train"]


def test_gzip_is_recognised_by_its_bytes_and_byte_order_marks_are_removed(tmp_path):
  write(tmp_path / "plain_name", gzip.compress(codecs.BOM_UTF8 + b"one\ntwo"))
  assert read_documents(f"lines:{tmp_path}/plain_name") == ["one", "two"]
  write(tmp_path / "a.txt", codecs.BOM_UTF8 + b"one")
  assert read_documents(f"text:{tmp_path}/a.txt") == ["one"]


def test_files_are_read_in_sorted_order_by_split(tmp_path):
  for name in ("b/2", "b/10", "a/1", "v/1", "odd[1]"):
    write(tmp_path / name, name)
  assert read_documents(f"lines:{tmp_path}/**/[0-9]*") == ["a/1", "b/10", "b/2", "v/1"]
  assert read_documents(f"lines:{tmp_path}/odd[1]") == ["odd[1]"]
  source = Documents(f"lines:train={tmp_path}/b/*,validation={tmp_path}/v/1,train={tmp_path}/a/*")
  assert source.source.splits == ("train", "validation")
  assert list(source.usable("train")) == ["b/10", "b/2", "a/1"] == list(source.usable("train"))
  assert list(source.usable("validation")) == ["v/1"]


def test_names_and_facts_contain_no_absolute_paths(tmp_path):
  for parent in ("here", "there"):
    write(tmp_path / parent / "my corpus" / "train.txt", "one")
    write(tmp_path / parent / "my corpus" / "validation.txt", "two")

  def open_documents(parent):
    folder = f"{tmp_path}/{parent}/my corpus"
    return Documents(f"text:train={folder}/train.txt,validation={folder}/v*")

  first = open_documents("here")
  second = open_documents("there")
  assert first.source.name == second.source.name == "my_corpus"
  assert first.facts() == second.facts() == json.loads(json.dumps(first.facts()))
  assert str(tmp_path) not in json.dumps(first.facts())
  assert Documents(f"text:{tmp_path}/here/my corpus/train.txt").source.name == "my_corpus"
  write(tmp_path / "news.en.gz", "one")
  assert Documents(f"lines:{tmp_path}/news.en.gz").source.name == "news"
  before = first.facts()
  write(tmp_path / "here" / "my corpus" / "train.txt", "one more")
  assert first.facts() != before


def test_empty_documents_and_nuls_are_skipped_and_counted(tmp_path):
  write(tmp_path / "a", "one\n\n \t\nn\0l\n\u3000\ntwo\n")
  source = Documents(f"lines:{tmp_path}/a")
  assert list(source.usable("train")) == ["one", "two"]
  assert source.skipped["train"] == {"empty": 3, "NUL character": 1}
  assert list(source.usable("train"))
  assert source.skipped["train"]["empty"] == 3


@pytest.mark.parametrize(
  "source, words",
  [
    ("jsonl:{}/x.jsonl", ("jsonl:{}/x.jsonl: found no file",)),
    ("jsonl:{}/*.jsonl", ("found no file",)),
    ("text:{}/folder", ("found a directory", "{}/folder/*")),
    ("text:", ("found no files",)),
    ("text:train=,validation=x", ("found no files for split 'train'",)),
    ("lines:{}/empty", ("{}/empty: found an empty file",)),
    ("lines:{}/blank", ("blank: found 0 documents in split 'train' (2 skipped: empty)",)),
    ("tsv:{}/header.tsv", ("found 0 documents",)),
    ("jsonl:{}/empty.gz", ("found 0 documents",)),
    ("jsnl:x", ("found format 'jsnl'", "did you mean 'jsonl'?")),
    (":x", ("found format ''",)),
    ("a/b.csv.gz", ("did you mean 'csv:a/b.csv.gz'?",)),
    ("books/*.txt", ("did you mean 'text:books/*.txt'?",)),
  ],
)
def test_sources_without_documents_are_refused(source, words, tmp_path):
  (tmp_path / "folder").mkdir()
  write(tmp_path / "empty", "")
  write(tmp_path / "blank", "\n \n")
  write(tmp_path / "header.tsv", "text\n")
  write(tmp_path / "empty.gz", "")
  with refuses(*(word.format(tmp_path) for word in words)):
    read_documents(source.format(tmp_path))


def test_an_unknown_split_is_refused(tmp_path):
  write(tmp_path / "a", "one")
  with refuses("found no split 'trian', expected one of train", "did you mean 'train'?"):
    read_documents(f"lines:{tmp_path}/a", "trian")


FORMS = pytest.mark.parametrize("form", ["jsonl", "lines", "text", "tsv"])


def text_field(form: str) -> str:
  """Return the name of the text's field; a table without a header numbers its columns."""
  return "0" if form == "tsv" else "text"


@FORMS
@pytest.mark.parametrize("damage", ["truncated", "flipped", "other"])
def test_damaged_gzip_is_refused(form, damage, tmp_path):
  lines = [json.dumps({"text": f"document {i * i}"}) for i in range(500)]
  compressed = gzip.compress("\n".join(lines).encode())
  contents = {
    "truncated": compressed[: len(compressed) // 2],
    "flipped": compressed[:-6] + b"\0" + compressed[-5:],
    "other": b"not gzip",
  }
  path = tmp_path / "a.jsonl.gz"
  path.write_bytes(contents[damage])
  with refuses(str(path), "truncated or damaged gzip data"):
    read_documents(f"{form}:{path}", text_field=text_field(form))


@FORMS
def test_bytes_that_are_not_utf8_are_refused_with_their_line_number(form, tmp_path):
  path = write(tmp_path / "a", b'{"text": "one"}\n{"text": "caf\xe9"}\n')
  with refuses(f"{path}:2: found byte 0xe9 that is not UTF-8"):
    read_documents(f"{form}:{path}", text_field=text_field(form))
  path.write_bytes('{"text": "one"}\n'.encode("utf-16"))
  with refuses(f"{path}:1: found text in UTF-16, expected UTF-8 text; convert it with iconv -f"):
    read_documents(f"{form}:{path}", text_field=text_field(form))


@pytest.mark.parametrize(
  "line, words",
  [
    ('{"text": "cut', ("found invalid JSON",)),
    ("[" * 100_000, ("found invalid JSON",)),
    ("9" * 10_000, ("found invalid JSON",)),
    ('["a"]', ("found a JSON array",)),
    ("null", ("found a JSON null",)),
    ('{"texts": "a"}', ("found no field 'text' among texts", "did you mean 'texts'?")),
    ("{}", ("found no field 'text' among none",)),
    ('{"text": 3}', ("found number in field 'text'",)),
    ('{"text": true}', ("found boolean in field 'text'",)),
  ],
)
def test_invalid_lines_are_refused_with_their_number(line, words, tmp_path):
  path = write(tmp_path / "a.jsonl", f'{{"text": "one"}}\n{line}\n')
  with refuses(f"{path}:2: ", *words):
    read_documents(f"jsonl:{path}")


@pytest.mark.parametrize(
  "field, words",
  [
    ("sentense", ("a.tsv:1: found no field 'sentense'", "did you mean 'sentence'?")),
    ("sentence", ("a.tsv:4: found 1 tab-separated columns, expected 2",)),
    ("7", ("a.tsv:1: found 2 tab-separated columns, expected 8",)),
  ],
)
def test_tables_with_missing_columns_are_refused(field, words, tmp_path):
  path = write(tmp_path / "a.tsv", "sentence\tlabel\nok\t1\n\tx\nodd\n")
  with refuses(*words):
    read_documents(f"tsv:{path}", text_field=field)


def test_listed_formats_include_the_common_ones():
  common = {"conll", "conllu", "docstrings", "json", "jsonl", "lines", "parquet", "text", "tfds"}
  assert set(formats()) >= common


def test_files_are_read_without_tensorflow(tmp_path):
  write(tmp_path / "a", "one")
  program = (
    "import sys; from t5x_like.corpora.documents import Documents;"
    f"assert list(Documents('lines:{tmp_path}/a').usable('train')) == ['one'];"
    "assert 'tensorflow' not in sys.modules"
  )
  subprocess.run([sys.executable, "-c", program], check=True)


@pytest.fixture(scope="module", params=["tfrecord", "array_record"])
def dataset(request, tmp_path_factory):
  """Return the directory of a prepared TFDS dataset of 600 documents.

  TFDS does not know the code of its builder.
  """
  from etils import epath

  from t5x_like.quiet_tensorflow import tfds

  with tfds.core.registered.skip_registration():

    class MyTexts(tfds.core.GeneratorBasedBuilder):
      VERSION = tfds.core.Version("1.2.0")
      code_path = epath.Path(__file__)

      def _info(self):
        features = tfds.features.FeaturesDict(
          {"body": tfds.features.Text(), "number": tfds.features.Scalar(np.int64)}
        )
        return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

      def _split_generators(self, dl_manager):
        texts = [f"document {i} é" if i % 100 else "" for i in range(600)]
        return {"train": ((i, {"body": text, "number": i}) for i, text in enumerate(texts))}

      def _generate_examples(self):
        raise AssertionError("unused: _split_generators returns a generator")

  directory = tmp_path_factory.mktemp(request.param)
  MyTexts(data_dir=directory, file_format=request.param).download_and_prepare(
    download_config=tfds.download.DownloadConfig(num_shards=3)
  )
  return directory


def test_prepared_dataset_is_read_in_order(dataset):
  for name in ("my_texts", "my_texts:1.2.0", "my_texts:1.*.*"):
    source = Documents(f"tfds:{name}", data_dir=str(dataset), text_field="body")
    assert source.source.name == "my_texts"
    assert source.source.splits == ("train",)
    assert list(source.usable("train")) == [f"document {i} é" for i in range(600) if i % 100]
    assert source.skipped["train"] == {"empty": 6}
    facts = source.facts()
    assert facts == json.loads(json.dumps(facts))
    assert facts["splits"]["train"]["examples"] == 600
    assert facts["name"] == "my_texts/1.2.0"
    assert str(dataset) not in json.dumps(facts)


def test_parts_of_a_split_are_its_shards(dataset):
  source = Documents("tfds:my_texts", data_dir=str(dataset), text_field="body")
  parts = source.source.parts("train", 1)
  assert len(parts) == 3
  assert source.source.parts("train", 2**40) == [(0, 600)]
  joined = [text for part in parts for text in source.read("train", part)]
  assert joined == list(source.read("train"))


@pytest.mark.parametrize(
  "name, field, words",
  [
    ("my_texts", "text", ("found no feature 'text' among body, number",)),
    ("my_texts", "number", ("found number in field 'number', expected text",)),
    ("my_text", "body", ("tfds:my_text: found no such dataset",)),
    ("my_texts:9.0.0", "body", ("tfds:my_texts:9.0.0: found no such dataset",)),
    ("", "body", ("found no dataset name",)),
  ],
)
def test_missing_features_and_datasets_are_refused(dataset, name, field, words):
  with refuses(*words):
    read_documents(f"tfds:{name}", data_dir=str(dataset), text_field=field)


def test_dataset_with_a_wrong_number_of_examples_is_refused(dataset, tmp_path):
  shutil.copytree(dataset, tmp_path / "copy")
  info = tmp_path / "copy/my_texts/1.2.0/dataset_info.json"
  # Each of three shards has 200 examples.
  info.write_text(info.read_text().replace('"200"', '"201"', 1))
  with refuses("dataset my_texts/1.2.0: "):
    read_documents("tfds:my_texts", data_dir=str(tmp_path / "copy"), text_field="body")


@pytest.mark.parametrize("damage", ["cut", "overwritten"])
def test_damaged_records_are_refused(dataset, damage, tmp_path):
  shutil.copytree(dataset, tmp_path / "copy")
  shard = next(tmp_path.glob("copy/my_texts/1.2.0/my_texts-train*record*"))
  content = shard.read_bytes()
  if damage == "cut":
    shard.write_bytes(content[: len(content) // 2])
  else:
    shard.write_bytes(content[:3000] + b"x" * 40 + content[3040:])
  with refuses("dataset my_texts/1.2.0: cannot be read from"):
    read_documents("tfds:my_texts", data_dir=str(tmp_path / "copy"), text_field="body")


@pytest.mark.parametrize(
  "form",
  ["lines", "jsonl", "folders", "arrow", "record", "t5:stsb:jsonl", *topics.cases("FILE_SOURCES")],
)
def test_too_long_path_is_refused_in_one_line(form):
  with refuses("too long for a file's name"):
    read_documents(f"{form}:{'x' * 300}")


@pytest.mark.parametrize(
  ("values", "kind"),
  [
    ([b"alpha"], "bytes"),
    ([datetime.date(2026, 1, 2)], "date"),
    ([decimal.Decimal("1.5")], "Decimal"),
    ([True], "bool"),
  ],
)
def test_columns_of_other_types_are_refused_with_their_type(values, kind, tmp_path):
  import pyarrow
  import pyarrow.parquet

  pyarrow.parquet.write_table(pyarrow.table({"text": values}), tmp_path / "a.parquet")
  with refuses(f"a.parquet, row 1: found {kind}"):
    read_documents(f"parquet:{tmp_path}/a.parquet")

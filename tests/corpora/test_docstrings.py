"""The corpus of docstrings is complete, deterministic, without duplicates and split by module."""

import subprocess
import sys
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refusals import refuses
from t5x_like.corpora.sources import open_source
from t5x_like.corpora.sources._docstrings import extract

PACKAGES = ("json", "email", "logging", "asyncio", "argparse")
PROSE = (
  "This sentence is long enough to be taken for a document of English technical prose, number {}."
)


@pytest.fixture(scope="module")
def builders(tmp_path_factory):
  """Return two builders of the same small corpus, prepared in two directories."""
  from t5x_like.corpora.sources._docstrings.builder import Docstrings, DocstringsConfig, prepare

  def build(name):
    config = DocstringsConfig(name="small", packages=PACKAGES)
    builder = Docstrings(config=config, data_dir=tmp_path_factory.mktemp(name))
    assert prepare(builder)
    assert not prepare(builder)
    return builder

  return build("one"), build("two")


def read_records(builder, split) -> list[dict[str, str]]:
  records = []
  for record in builder.as_data_source(split):
    records.append({key: value.decode() for key, value in record.items()})
  return records


def test_documents_are_the_docstrings_of_the_packages(builders):
  documents = read_records(builders[0], "train") + read_records(builders[0], "validation")
  text_by_name = {(d["module"], d["qualname"]): d["text"] for d in documents}
  assert {d["package"] for d in documents} == set(PACKAGES)
  import inspect
  import json
  import logging

  assert text_by_name["json", "dumps"] == inspect.getdoc(json.dumps)
  assert text_by_name["json.encoder", "JSONEncoder.default"] == inspect.getdoc(
    json.JSONEncoder.default
  )
  assert text_by_name["logging", "Formatter.format"] == inspect.getdoc(logging.Formatter.format)
  assert all(extract.is_prose(text) for text in text_by_name.values())


def test_two_builds_have_the_same_records_in_the_same_order(builders):
  first, second = builders
  for split in ("train", "validation"):
    records = read_records(first, split)
    assert records
    assert records == read_records(second, split)
  assert first.info.metadata == second.info.metadata
  assert len(first.info.metadata["sha256"]) == 64
  assert first.info.file_format.value == "array_record"


def test_splits_have_no_common_module_or_document(builders):
  train = read_records(builders[0], "train")
  validation = read_records(builders[0], "validation")
  assert not {d["module"] for d in train} & {d["module"] for d in validation}
  texts = [d["text"] for d in train + validation]
  assert len(set(texts)) == len(texts)


def test_prepared_corpus_can_be_read_as_a_tensorflow_dataset(builders):
  source = open_source(
    "tfds:docstrings/small", data_dir=str(builders[0].data_dir).split("/docstrings/")[0]
  )
  assert source.name == "docstrings"
  assert set(source.splits) == {"train", "validation"}
  expected = read_records(builders[0], "train")
  assert list(source.documents("train", "text")) == [record["text"] for record in expected]
  assert [record for _, record in source.records("train")] == expected
  assert source.facts("text")["metadata"]["sha256"] == builders[0].info.metadata["sha256"]


def test_result_does_not_depend_on_the_number_of_processes():
  assert list(extract.scan(["json", "asyncio"], processes=1)) == list(
    extract.scan(["json", "asyncio"], processes=3)
  )


def test_validation_is_a_small_fixed_share_of_modules():
  from t5x_like.corpora.sources._docstrings.builder import split_of

  modules = [module for _, module, _ in extract.source_files([extract.STANDARD_LIBRARY])]
  share = sum(split_of(module) == "validation" for module in modules) / len(modules)
  assert 0.02 < share < 0.055
  assert split_of("json.decoder") == split_of("json.decoder")


@pytest.fixture
def package(tmp_path, monkeypatch):
  """Return a function that writes the files of `odd_package` and returns their docstrings.

  The package can be found but must not be imported.
  """
  monkeypatch.syspath_prepend(str(tmp_path))

  def write(**files):
    (tmp_path / "odd_package").mkdir()
    for name, source in {"__init__": "raise SystemExit('imported')", **files}.items():
      data = source if isinstance(source, bytes) else textwrap.dedent(source).encode()
      (tmp_path / "odd_package" / f"{name}.py").write_bytes(data)
    return [d for _, _, docstrings in extract.scan(["odd_package"]) for d in docstrings]

  return write


def test_source_code_is_parsed_and_never_executed(package, tmp_path):
  docstrings = package(
    a=f'''
      """{PROSE.format(1)}"""
      open({str(tmp_path / "executed")!r}, "w")
      if True:
        class A:
          """{PROSE.format(2)}"""
          async def f(self):
            """{PROSE.format(3)}

            Then:
              indented.
            """
            def g(): """{PROSE.format(4)}"""
    ''',
    broken='"""' + PROSE + '"""\ndef (',
    latin=b'# -*- coding: latin-1 -*-\n"""' + PROSE.encode() + b' caf\xe9"""',
    odd_bytes=b'"""' + PROSE.encode() + b' caf\xe9"""',
    nul=b'"""' + PROSE.encode() + b'\0"""',
    deep='"""' + PROSE.format(9) + '"""\n' + "(" * 5000,
    surrogate='"""' + PROSE + '\\ud800"""',
    short='"""Too short to keep."""',
    table='"""' + "| 1.25 | 3.50 | " * 20 + '"""',
  )
  text_by_name = {(d.module, d.qualname): d.text for d in docstrings}
  assert set(text_by_name) == {
    ("odd_package.a", ""),
    ("odd_package.a", "A"),
    ("odd_package.a", "A.f"),
    ("odd_package.a", "A.f.g"),
    ("odd_package.latin", ""),
  }
  assert text_by_name["odd_package.a", "A.f"] == PROSE.format(3) + "\n\nThen:\n  indented."
  assert text_by_name["odd_package.latin", ""].endswith("café")
  assert not (tmp_path / "executed").exists()


def test_packages_that_are_not_installed_are_skipped():
  assert extract.source_files(["no_such_package", "json"]) == extract.source_files(["json"])
  assert [module for _, module, _ in extract.source_files(["argparse"])] == ["argparse"]
  with refuses("found no Python source files of no_such_package"):
    extract.source_files(["no_such_package", "sys"])


@given(st.text(max_size=300))
def test_prose_is_long_and_mostly_letters(text):
  letters = sum(c.isalpha() for c in text)
  visible = sum(not c.isspace() for c in text)
  if extract.is_prose(text):
    assert len(text) >= extract.MIN_CHARACTERS
    assert letters >= extract.MIN_LETTERS * visible
    assert "\0" not in text
  assert extract.is_prose("word " * 20)
  assert not extract.is_prose("word " * 20 + "\0")


def test_extractor_imports_neither_tensorflow_nor_numpy():
  extractor = "t5x_like.corpora.sources._docstrings.extract"
  program = f"import sys, {extractor}; assert not {{'tensorflow', 'numpy'}} & set(sys.modules)"
  subprocess.run([sys.executable, "-c", program], check=True)


def test_corpus_is_built_once(tmp_path, capsys, monkeypatch):
  from t5x_like.corpora.sources._docstrings import builder

  monkeypatch.setattr(builder.Docstrings.BUILDER_CONFIGS[0], "packages", ("json", "email"))
  for is_first_use in (True, False):
    open_source("docstrings", data_dir=str(tmp_path))
    assert ("files" in capsys.readouterr().err) == is_first_use
  with refuses("found 'tny' after the colon", "did you mean 'tiny'"):
    open_source("docstrings:tny", data_dir=str(tmp_path))


def test_tiny_corpus_is_split_by_package(tmp_path):
  source = open_source("docstrings:tiny", data_dir=str(tmp_path))
  packages = {
    split: {record["package"] for _, record in source.records(split)} for split in source.splits
  }
  assert packages["validation"] == {"statistics", "tarfile", "textwrap"}
  assert len(packages["train"]) == 6


def test_directory_that_cannot_be_written_is_refused(tmp_path):
  (tmp_path / "file").write_text("")
  with refuses(str(tmp_path)):
    open_source("docstrings", data_dir=f"{tmp_path}/file/deeper")

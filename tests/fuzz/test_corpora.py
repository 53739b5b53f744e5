"""Reading a damaged corpus of any format ends in a one-line error or in valid records."""

import bz2
import gzip
import io
import lzma
import random

import pyarrow
import pyarrow.parquet
import pytest

from t5x_like.corpora.sources import open_source
from t5x_like.data.tasks import (
  chat,
  classification,
  multiple_choice,
  span_qa,
  tagging,
  text_to_text,
)
from tests import topics
from tests.fuzz import harness, mutations
from tools import prepare_data

WORDS = "the quick brown fox jumps over a lazy dog".split()
# Thirty lines of 2 to 14 words.
LINES = [" ".join(WORDS[n % 9 :] + WORDS[: n % 5 + 1]) for n in range(30)]
RECORDS = [
  {
    "text": line,
    "label": "long" if len(line) > 30 else "short",
    "tokens": line.split(),
    "tags": [str(len(word)) for word in line.split()],
    "options": ["one", "two"],
    "answer": 0,
    "messages": [{"role": "user", "content": line}, {"role": "assistant", "content": "yes"}],
    "prompt": line,
    "chosen": "yes",
    "rejected": "no",
  }
  for line in LINES
]
QUESTIONS = [
  {
    "context": line,
    "qas": [
      {
        "id": f"q{n}",
        "question": "Which?",
        "answers": [{"text": "the", "answer_start": line.index("the")}],
      }
    ],
  }
  for n, line in enumerate(LINES[:9])
  if "the" in line
]
SQUAD = {"data": [{"title": "A", "paragraphs": QUESTIONS}]}


def format_conll(line: str) -> str:
  """Return a sentence in CoNLL's columns, tagged by the length of each word."""
  return "\n".join(f"{word} X {len(word)}" for word in line.split())


def format_conllu(line: str) -> str:
  """Return a sentence in CoNLL-U."""
  rows = [f"# text = {line}\n"]
  for n, word in enumerate(line.split(), 1):
    rows.append(f"{n}\t{word}\t{word}\tX\t_\t_\t0\troot\t_\t_\n")
  return "".join(rows)


CONLL = "\n\n".join(map(format_conll, LINES)) + "\n"
CONLLU = "\n".join(map(format_conllu, LINES)) + "\n"
TABLE = [["text", "label"], *([line, "long"] for line in LINES)]
TASKS = {
  "text_to_text": lambda **o: text_to_text.Arguments(inputs="{text}", targets="{label}", **o),
  "classification": lambda **o: classification.Arguments(
    text="{text}", labels=("long", "short"), length=64, **o
  ),
  "tagging": lambda **o: tagging.Arguments(tags=tuple("123456789"), length=64, **o),
  "conll_tagging": lambda **o: tagging.Arguments(
    tags=tuple("123456789"), tags_field="2", length=64, **o
  ),
  "conllu_tagging": lambda **o: tagging.Arguments(tags=("X",), tags_field="upos", length=64, **o),
  "multiple_choice": lambda **o: multiple_choice.Arguments(
    text="{text}", options="options", label_field="answer", choices=2, length=64, **o
  ),
  "chat": lambda **o: chat.Arguments(**o),
  "span_qa": lambda **o: span_qa.Arguments(length=128, stride=16, question_length=32, **o),
} | topics.cases("TASKS_OF_RECORDS")


def format_parquet(records: list) -> bytes:
  file = io.BytesIO()
  pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), file)
  return file.getvalue()


def compress_zstd(data: bytes) -> bytes:
  return pyarrow.compress(data, codec="zstd", asbytes=True)


COMPRESSORS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": compress_zstd}
FORMATS = (
  "text",
  "lines",
  "jsonl",
  "json",
  "csv",
  "tsv",
  "parquet",
  "conll",
  "conllu",
  "squad",
  "parallel",
)
_TASKS_OF_PAIRS = ("text_to_text", "classification")
# The tasks that can read each format. None stands for `prepare_data`, which reads its texts.
READERS = {
  **dict.fromkeys(
    ("json", "jsonl", "parquet"),
    (None, *(name for name in TASKS if not name.startswith(("span", "conll")))),
  ),
  **dict.fromkeys(("text", "lines"), (None,)),
  **dict.fromkeys(("csv", "tsv"), (None, *_TASKS_OF_PAIRS)),
  "conll": (None, "conll_tagging"),
  "conllu": (None, "conllu_tagging"),
  "squad": ("span_qa",),
  "parallel": _TASKS_OF_PAIRS,
}
HOSTILE_CONTENTS = {
  "UTF-16": "the fox".encode("utf-16"),
  "Latin-1": "naïve".encode("latin-1"),
  "a byte order mark": b"\xef\xbb\xbfthe fox",
  "NULs": b"\0" * 5000,
  "lone surrogates": b'{"text": "\\ud800 a"}',
  "encoded surrogates": b"\xed\xa0\x80 a",
  "a long line": b"x" * (5 << 20),
  "deep": mutations.DEEP,
  "deep objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
  "a huge number": b'{"text": ' + b"9" * 6000 + b"}",
  "not a number": b'{"text": NaN, "label": Infinity}',
  "a deep record": b'{"text": ' + b"[" * 900 + b"]" * 900 + b"}",
  "an array of nothing": b"[" + b"null," * 20_000 + b"null]",
  "quotes": b'text,label\n"a' * 4000,
  "duplicate keys": b'{"text": "a", "text": 3}',
  "carriage returns": b"a\rb\r\rc\r\n" * 200,
}


ODD_CELLS = ("", '"', '"a', "a\tb", "a,b", "\0", "\r", "1e999", "text")
ODD_LINES = (
  "",
  "# ",
  "-DOCSTART-",
  "\t",
  "1-2\tx",
  "a b",
  "9" * 5000 + "\tx" * 9,
  "1\t" * 9,
  "-1" + "\tx" * 9,
)


def undamaged_content(kind: str) -> bytes:
  """Return a small corpus of a format; formats of plain lines have the same content."""
  contents = {
    "json": mutations.json_text(RECORDS),
    "jsonl": b"\n".join(map(mutations.json_text, RECORDS)),
    "parquet": format_parquet(RECORDS),
    "squad": mutations.json_text(SQUAD),
    "conll": CONLL.encode(),
    "conllu": CONLLU.encode(),
    "csv": "\n".join(map(",".join, TABLE)).encode(),
    "tsv": "\n".join(map("\t".join, TABLE)).encode(),
  }
  lines = "\n".join(LINES).encode()
  return contents.get(kind, lines)


def draw_content(kind: str, rng: random.Random) -> tuple[bytes, str]:
  """Return a corpus of a format, in most cases with a changed record, and a description."""
  if rng.random() < 0.25:
    return undamaged_content(kind), "as it is"
  if kind == "squad":
    tree, change = mutations.mutate_json(SQUAD, rng, rng.choice((1, 1, 3)))
    return mutations.json_text(tree), change
  if kind in ("json", "jsonl", "parquet"):
    tree, change = mutations.mutate_json(RECORDS, rng, rng.choice((1, 1, 4)))
    rows = tree if isinstance(tree, list) else [tree]
    if kind == "json":
      return mutations.json_text(tree), change
    if kind == "jsonl":
      return b"\n".join(map(mutations.json_text, rows)), change
    try:
      return format_parquet(rows), change
    except Exception:  # PyArrow cannot build a table of these records
      return undamaged_content(kind), "as it is"
  rows = undamaged_content(kind).decode().split("\n")
  number = rng.randint(0, len(rows) - 1)
  if kind in ("csv", "tsv"):
    separator = "," if kind == "csv" else "\t"
    cell = rng.choice(ODD_CELLS)
    cells = rows[number].split(separator)
    cells.insert(rng.randint(0, 2), cell)
    rows[number] = separator.join(cells)
    change = f"a cell {cell!r}"
  else:
    rows[number] = rng.choice(ODD_LINES)
    change = f"a line {rows[number][:20]!r}"
  return "\n".join(rows).encode(), change


def write_corpus(folder, kind: str, content: bytes, suffix: str = "") -> str:
  """Write a corpus of a format and return its source; `parallel` gets a second file of labels."""
  folder.mkdir()
  if kind == "parallel":
    (folder / f"train.text{suffix}").write_bytes(content)
    labels = b"long\n" * len(LINES)
    (folder / f"train.label{suffix}").write_bytes(
      COMPRESSORS[suffix[1:]](labels) if suffix else labels
    )
    return f"parallel:{folder}/{{split}}.{{field}}{suffix}"
  (folder / f"corpus.{kind}{suffix}").write_bytes(content)
  return f"{kind}:{folder}/corpus.{kind}{suffix}"


def make_case(rng: random.Random, root):
  """Write a corpus that may be damaged; return a description and the function that reads it."""
  kind = rng.choice(FORMATS)
  content, change = draw_content(kind, rng)
  if rng.random() < 0.15:
    change = rng.choice(sorted(HOSTILE_CONTENTS))
    content = HOSTILE_CONTENTS[change]
  elif rng.random() < 0.25:
    content, second_change = mutations.mutate_bytes(content, rng)
    change += f"; {second_change}"
  suffix = ""
  if kind != "parquet" and rng.random() < 0.35:
    compression = rng.choice(sorted(COMPRESSORS))
    suffix = f".{compression}"
    if rng.random() < 0.1:
      content = COMPRESSORS[compression](b"a" * (4 << 20)) * 75  # concatenated streams are valid
      change = "300 MiB of one letter"
    else:
      content = COMPRESSORS[compression](content)
    if rng.random() < 0.6:
      content, second_change = mutations.mutate_bytes(content, rng)
      change += f"; compressed, {second_change}"
  source = write_corpus(root / "in", kind, content, suffix)
  return f"{kind}{suffix}, {change}", make_reader(rng.choice(READERS[kind]), kind, source)


def make_reader(task: str | None, kind: str, source: str):
  """Return a function that reads a source by a task or, if that is None, by `prepare_data`."""

  def call(out):
    fields = ("text", "label") if kind == "parallel" else ()
    for _ in open_source(source, fields=fields).records("train"):
      pass
    if task is None:
      flags = [f"--source={source}", "--vocabulary=bytes", f"--output={out}/data", "--workers=1"]
      return prepare_data.main([*flags, "--validation_fraction=0"])
    arguments = {"source": source, "vocabulary": "bytes", "cache": str(out / "cache")}
    opened_task = TASKS[task](split="train", **arguments).build()
    return None if opened_task.num_examples else 1

  return call


@pytest.mark.parametrize("kind", FORMATS)
def test_undamaged_files_are_read(kind, tmp_path):
  """Show that refusals of mutated files are not due to wrong calls of the readers."""
  source = write_corpus(tmp_path / "in", kind, undamaged_content(kind))
  for number, task in enumerate(READERS[kind]):
    assert make_reader(task, kind, source)(tmp_path / str(number)) in (None, 0), task


def test_a_few_mutated_corpora_are_read_or_refused(tmp_path):
  harness.run_cases(make_case, tmp_path, range(15))


@pytest.mark.fuzz
@pytest.mark.parametrize("first", range(1000, 1300, 60))
def test_many_mutated_corpora_are_read_or_refused(first, tmp_path):
  harness.run_cases(make_case, tmp_path, range(first, first + 60))

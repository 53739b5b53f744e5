"""Rows of several fields, for supervised tasks: `form:rest` as in `sources`, each row a dict of what it has.

    tsv:train=a.tsv,validation=b.tsv     a header, then a row a line: its columns
    jsonl:train=a.jsonl.gz               an object a line: its keys
    parquet:data/*.parquet               columns
    tfds:NAME[/config][:version]         features
    parallel:corpus/{split}.{field}.gz   translation: line n of `train.en.gz` and of `train.de.gz` is the row {en, de}
    squad:train=train-v2.0.json.gz       SQuAD's files: id, title, context, question, answers (possibly none)
    conll:train=a.conll.gz               a sentence: `tokens`, and each column as a list under its number, "0", "1", …
    conllu:train=a.conllu.gz             a sentence: `tokens`, and lists under form, lemma, upos, xpos, deprel
    builtin                              made from the built-in corpus, to try recipes: text, reversed (its words in
                                         reverse), label, tokens, tags, question, context, answers

Files may be compressed and are read in sorted order, as in `sources`.
"""

import dataclasses
import functools
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from t5x_like.data.sources import Skip, _filesystem, check_split, conll, conllu
from t5x_like.data.sources import tfds as tfds_form
from t5x_like.data.sources._files import FileSource, lines, whole
from t5x_like.data.store import builtin
from t5x_like.data.store.reader import TokenStore
from t5x_like.errors import UserError, did_you_mean, one_line

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Rows:
  """Rows of one split.

  Attributes:
    name: a short name of the corpus.
    facts: what defines the content and can be told without reading it all, JSON-serialisable.
    read: () -> iterator of (where the row is, for messages; the row, or a `Skip` where there is no usable one).
  """

  name: str
  facts: dict[str, Any]
  read: Callable[[], Iterator[tuple[str, Row | Skip]]]


def forms() -> tuple[str, ...]:
  return (*sorted(_FILES), "builtin", "parallel", "tfds")


def open_rows(source: str, split: str, *, fields: tuple[str, ...] = (), data_dir: str | None = None) -> Rows:
  """Opens one split of a source.

  Args:
    source: see the top of this file.
    split: which of its splits.
    fields: the fields that will be used, for forms that read only those.
    data_dir: where TensorFlow datasets are prepared.

  Raises:
    UserError: unknown form or split, no such files or dataset, an empty file.
  """
  rows = _opened(source, split, fields, data_dir)
  return dataclasses.replace(rows, read=lambda: map(_unless_damaged, rows.read()))


def _opened(source: str, split: str, fields: tuple[str, ...], data_dir: str | None) -> Rows:
  form, _, rest = source.partition(":")
  if form == "builtin":
    return Rows("builtin", {"form": "builtin.v1"}, functools.partial(_builtin, split))
  if form == "parallel":
    return _parallel(rest, split, fields)
  if form == "tfds":
    return _tfds(rest, split, fields, data_dir)
  if form not in _FILES:
    raise UserError(
      f"config.task.source: found form {form!r}, expected one of {', '.join(forms())}"
      f"{did_you_mean(form, forms())}; write it as form:rest, such as tsv:train=a.tsv,validation=b.tsv"
    )
  files = FileSource(form, rest, _FILES[form])
  check_split(files, split)
  facts = files.fingerprint_facts() | {"changed": files.changed(split)}
  return Rows(files.name, facts, lambda: files.read(split))


def _unless_damaged(one: tuple[str, Row | Skip]) -> tuple[str, Row | Skip]:
  """A row, or a `Skip` for one with a NUL in a text or a list of texts."""
  where, row = one
  if not isinstance(row, Skip):
    texts = itertools.chain.from_iterable(x if isinstance(x, list) else (x,) for x in row.values())
    if any(isinstance(text, str) and "\0" in text for text in texts):
      return where, Skip("NUL character")
  return one


def value(row: Row, field: str, where: str) -> Any:
  """What a row has at `field`: a name, or a path of names and numbers such as `answers.0.text`; `*` is all of a list.

  Raises:
    UserError: there is none.
  """
  if field in row:
    return row[field]
  found: Any = row
  for part in field.split("."):
    if isinstance(found, dict) and part in found:
      found = found[part]
    elif isinstance(found, list) and part.isdecimal():
      if int(part) >= len(found):
        return None
      found = found[int(part)]
    elif isinstance(found, list) and part == "*":
      rest = field.split(".*.", 1)[1:]
      return [value({"": one}, f".{rest[0]}", where) for one in found] if rest else found
    else:
      raise UserError(
        f"{where}: found no field {part!r} among {', '.join(map(str, list(row)[:12]))}, expected "
        f"{field!r}{did_you_mean(part, [str(name) for name in row])}"
      )
  return found


def _tsv(path: str) -> Iterator[tuple[str, Row | Skip]]:
  names = None
  for number, line in lines(path):
    where = f"{path}:{number}"
    if isinstance(line, Skip):
      yield where, line
      continue
    if not line:
      yield where, Skip("blank line")
      continue
    cells = line.split("\t")
    if names is None:
      if len(set(cells)) < len(cells):
        twice = next(name for name in cells if cells.count(name) > 1)
        raise UserError(
          f"{where}: found {cells.count(twice)} columns {twice!r} in the header, expected one: name them apart"
        )
      names = cells
    elif len(cells) != len(names):
      raise UserError(f"{where}: found {len(cells)} tab-separated columns, expected the {len(names)} of the header")
    else:
      yield where, dict(zip(names, cells))


def _jsonl(path: str) -> Iterator[tuple[str, Row | Skip]]:
  for number, line in lines(path):
    where = f"{path}:{number}"
    if isinstance(line, Skip):
      yield where, line
    elif line and not line.isspace():
      yield where, _object(line, where)


def _object(text: str, where: str) -> Row:
  try:
    found = json.loads(text)
  except (ValueError, RecursionError) as error:
    raise UserError(f"{where}: found invalid JSON ({one_line(error)}), expected one whole JSON object") from None
  if not isinstance(found, dict):
    raise UserError(f"{where}: found a JSON {type(found).__name__}, expected an object")
  return found


def _parquet(path: str) -> Iterator[tuple[str, Row]]:
  import pyarrow
  import pyarrow.parquet

  number = 0
  try:
    with _filesystem.open_file(path) as file:
      table = pyarrow.parquet.ParquetFile(file)
      if twice := [name for name, count in Counter(table.schema_arrow.names).items() if count > 1]:
        raise UserError(f"{path}: found several columns {twice[0]!r}, expected one: name them apart")
      for batch in table.iter_batches(batch_size=1024):
        for row in batch.to_pylist():
          number += 1
          yield f"{path}, row {number}", row
  except (pyarrow.ArrowException, OSError, LookupError, OverflowError, ValueError) as error:
    raise UserError(
      f"{path}: found damaged Parquet data ({one_line(error)}), expected a complete file; fetch it again"
    ) from error


def _squad(path: str) -> Iterator[tuple[str, Row]]:
  text = whole(path)
  if isinstance(text, Skip):
    raise UserError(f"{path}: found a {text.reason}, expected a smaller one")
  try:
    for article in _object(text, path)["data"]:
      for paragraph in article["paragraphs"]:
        for question in paragraph["qas"]:
          answers = [] if question.get("is_impossible") else question["answers"]
          yield (
            f"{path}, question {question['id']}",
            {
              "id": question["id"],
              "title": article.get("title", ""),
              "context": paragraph["context"],
              "question": question["question"],
              "answers": answers,
            },
          )
  except (AttributeError, KeyError, TypeError) as error:
    raise UserError(
      f"{path}: found no SQuAD data ({one_line(error)}), expected data > paragraphs > context, qas > id, "
      "question, answers"
    ) from None


def _conll(path: str) -> Iterator[tuple[str, Row]]:
  for number, rows in enumerate(filter(None, conll.sentences(path)), 1):
    columns = {str(i): list(column) for i, column in enumerate(zip(*rows))}
    yield f"{path}, sentence {number}", {"tokens": columns["0"]} | columns


def _conllu(path: str) -> Iterator[tuple[str, Row]]:
  names = {"form": 1, "lemma": 2, "upos": 3, "xpos": 4, "deprel": 7}
  for number, (_, rows) in enumerate(conllu.sentences(path), 1):
    words = [row for row in rows if row[0].isdecimal()]  # neither the ranges of contractions nor empty nodes
    columns = {name: [word[i] for word in words] for name, i in names.items()}
    yield f"{path}, sentence {number}", {"tokens": columns["form"]} | columns


_FILES = {"conll": _conll, "conllu": _conllu, "jsonl": _jsonl, "parquet": _parquet, "squad": _squad, "tsv": _tsv}


def _parallel(pattern: str, split: str, fields: tuple[str, ...]) -> Rows:
  if "{field}" not in pattern:
    raise UserError(
      f"config.task.source: found parallel:{pattern}, expected a path with {{field}} in it, such as "
      "parallel:corpus/{split}.{field}.gz"
    )
  if "{split}" not in pattern and split != "train":
    raise UserError(
      f"config.task.source: found no {{split}} in parallel:{pattern}, which is then the split train, "
      f"expected it for {split!r} too, as in parallel:corpus/{{split}}.{{field}}.gz"
    )
  paths = {field: pattern.replace("{split}", split).replace("{field}", field) for field in fields}
  sides = {field: FileSource("lines", path, lines) for field, path in paths.items()}
  name = next(iter(sides.values())).name if sides else "parallel"
  if name in (split, "parallel") and "/" in pattern:
    name = pattern.rsplit("/", 2)[-2]

  def read() -> Iterator[tuple[str, Row | Skip]]:
    end = (0, None)
    columns = (side.read("train") for side in sides.values())  # what a pattern without split names is
    for number, row in enumerate(itertools.zip_longest(*columns, fillvalue=end), 1):
      short = [path for path, line in zip(paths.values(), row) if line is end]
      if short:
        raise UserError(
          f"{short[0]}: found {number - 1} lines, expected as many as in the other files "
          f"({', '.join(path for path in paths.values() if path not in short)})"
        )
      bad = next((line for _, line in row if isinstance(line, Skip)), None)
      yield f"{pattern}:{number}", bad or dict(zip(paths, (line for _, line in row)))

  facts = {field: side.fingerprint_facts() | {"changed": side.changed("train")} for field, side in sides.items()}
  return Rows(name, facts, read)


def _tfds(rest: str, split: str, fields: tuple[str, ...], data_dir: str | None) -> Rows:
  builder = tfds_form.open_builder(rest, data_dir)
  known = list(builder.info.features) if hasattr(builder.info.features, "keys") else []
  for field in fields:
    if field.partition(".")[0] not in known:
      raise UserError(
        f"dataset {builder.info.full_name}: found no feature {field!r} among {', '.join(known) or 'none'}"
        f"{did_you_mean(field, known)}"
      )
  if split not in builder.info.splits:
    raise UserError(
      f"dataset {builder.info.full_name}: found no split {split!r}, expected one of "
      f"{', '.join(builder.info.splits)}{did_you_mean(split, list(builder.info.splits))}"
    )
  info = builder.info
  facts = {
    "form": "tfds",
    "name": info.full_name,
    "split": split,
    "examples": info.splits[split].num_examples,
    "bytes": int(info.splits[split].num_bytes),
  }

  def read() -> Iterator[tuple[str, Row]]:
    for number, row in enumerate(
      builder.as_data_source(split)
      if info.file_format.file_suffix == "array_record"
      else builder.as_dataset(split=split, shuffle_files=False).as_numpy_iterator()
    ):
      yield f"dataset {info.full_name}, split {split}, example {number}", _plain(row, info.features)

  return Rows(info.name, facts, read)


def _plain(found: Any, feature: Any = None) -> Any:
  """A TFDS example as Python's own types: text for bytes, the names of class labels."""
  if isinstance(found, dict):
    return {name: _plain(part, feature[name] if hasattr(feature, "keys") else None) for name, part in found.items()}
  if isinstance(found, bytes):
    return found.decode("utf-8", "replace")
  if hasattr(feature, "int2str") and feature.names and int(found) >= 0:
    return feature.int2str(int(found))
  if hasattr(found, "tolist"):
    found = found.tolist()
  return [_plain(part) for part in found] if isinstance(found, list) else found


def _builtin(split: str) -> Iterator[tuple[str, Row]]:
  store = TokenStore.open(f"{builtin.prepared()}/{split}", verify="size")
  text = store.vocabulary.decode(store.windows([0], store.num_tokens)[0])
  for number, line in enumerate(text.splitlines(), 1):
    words = line.split()
    if 3 <= len(words) <= 12:
      joined = " ".join(words)
      longest = max(words, key=len)
      yield (
        f"built-in corpus, line {number}",
        {
          "text": joined,
          "reversed": " ".join(reversed(words)),
          "label": "long" if len(words) > 7 else "short",
          "tokens": words,
          "tags": ["long" if len(word) > 4 else "short" for word in words],
          "question": "Which word is the longest?",
          "context": joined,
          "answers": [{"text": longest, "answer_start": joined.index(longest)}],
        },
      )

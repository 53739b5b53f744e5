"""Make supervised tasks from docstrings.

    package    text, label: the first words, without the names of packages, and their package
    halves     first, second, label: the beginning of a docstring, and its continuation or that of
               another docstring
    name       text, name: the summary of a function, and the words of its name
    parameter  question, context, answers: a parameter, several descriptions, and its own
               description, as in SQuAD

Every record also has an `id`. Documents are ordered by a hash that determines all choices, so the
same documents give the same records on any machine. Classes are exactly balanced.
"""

import hashlib
import itertools
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Document = dict[str, str]  # text, package, module, qualname
Record = dict[str, Any]

PACKAGES = ("jax", "keras", "matplotlib", "orbax", "scipy", "stdlib", "tensorflow")
HALVES = ("apart", "together")
MAX_RECORDS = 8_000  # records per split
VALIDATION_SHARE = 0.05  # share of the modules seen in pretraining that form the split validation
# In words, such that most inputs fit in 64 tokens.
_TEXT = 30
_HALF = 15
_SUMMARY = 30
_DESCRIPTION = 8
_NUM_NEIGHBOURS = 1  # parameters in the context before and after the one of the question

_PACKAGE_NAMES = re.compile(
  r"\b(jax|jnp|keras|matplotlib|mpl|plt|numpy|np|ocp|orbax|scipy|tensorflow|tf)\b", re.I
)
_NAME_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
# A parameter in a section Args in Google's style, and in a section Parameters in NumPy's.
_ENTRY = re.compile(r"\*{0,2}(\w+)(?: ?\(.*?\))?(?::\s*(.*)| *)$")
_NUMPY_ENTRY = re.compile(r"(\w+)(?: ?:.*)?$")


def is_validation_module(module: str) -> bool:
  """Return whether a module of the training split is in the benchmark's validation.

  The other modules are in the benchmark's train.
  """
  return int.from_bytes(_digest("benchmark", module)[:8], "big") / 2**64 < VALIDATION_SHARE


def package(documents: Sequence[Document]) -> list[Record]:
  """Return records of the task `package`, as many per package as the rarest package has."""
  classes: dict[str, list[Record]] = {name: [] for name in PACKAGES}
  for document in documents:
    if document["package"] in classes:
      text = _PACKAGE_NAMES.sub("package", _words(document["text"], _TEXT))
      classes[document["package"]].append({"text": text, "label": document["package"]})
  balanced = []
  for record_of_each_class in zip(*filter(None, classes.values())):
    balanced.extend(record_of_each_class)
  return balanced


def halves(documents: Sequence[Document]) -> list[Record]:
  """Return records of the task `halves`.

  Every second document keeps its second half; the others get the second half of the next document.
  """
  pairs = []
  for document in documents:
    words = document["text"].split()[: 2 * _HALF]
    middle = len(words) // 2
    pairs.append((" ".join(words[:middle]), " ".join(words[middle:])))
  records = []
  for number, (first, second) in enumerate(pairs):
    if number % 2:
      _, second = pairs[(number + 1) % len(pairs)]
    label = HALVES[1 - number % 2]
    records.append({"first": first, "second": second, "label": label})
  return records[: len(records) // 2 * 2]


def name(documents: Sequence[Document]) -> list[Record]:
  """Return records of the task `name`, one per function or method.

  Names that Python prescribes (`__init__`) and names that occur in the summary are left out.
  """
  records = []
  for document in documents:
    leaf = document["qualname"].rpartition(".")[2]
    words = [word.lower() for word in _NAME_WORDS.findall(leaf)]
    summary = _words(document["text"].split("\n\n")[0], _SUMMARY)
    if not words or leaf.startswith("__") or not leaf.lstrip("_")[:1].islower():
      continue
    if len(words) == 1 or leaf not in summary:  # the summary may well use a name of one word
      records.append({"text": summary, "name": " ".join(words)})
  return records


def parameter(documents: Sequence[Document]) -> list[Record]:
  """Return records of the task `parameter`: one per docstring with two or more descriptions."""
  records = []
  for document in documents:
    entries = []
    for parameter_name, text in parameters(document["text"]):
      description = _words(re.split(r"(?<=\.)\s", text)[0], _DESCRIPTION)
      if len(description.split()) > 2:
        entries.append((parameter_name, description))
    if len(entries) < 2:
      continue
    number = _digest("asked", document["text"])[0] % len(entries)
    first = max(0, number - _NUM_NEIGHBOURS)
    neighbours = entries[first : number + 1 + _NUM_NEIGHBOURS]
    context = [f"{parameter_name}: {description}" for parameter_name, description in neighbours]
    question, answer = entries[number]
    num_characters_before = sum(len(text) + 1 for text in context[: number - first])
    start = num_characters_before + len(f"{question}: ")
    answers = [{"text": answer, "answer_start": start}]
    records.append({"question": question, "context": " ".join(context), "answers": answers})
  return records


TASKS: dict[str, Callable[[Sequence[Document]], list[Record]]] = {
  "package": package,
  "halves": halves,
  "name": name,
  "parameter": parameter,
}


def records(task: str, documents: Sequence[Document]) -> list[Record]:
  """Return at most `MAX_RECORDS` records of a task, independent of the order of the documents."""
  ordered = sorted(documents, key=lambda d: _digest(d["module"], d["qualname"], d["text"]))
  return [
    {"id": f"{task}-{number}"} | record
    for number, record in enumerate(TASKS[task](ordered)[:MAX_RECORDS])
  ]


def parameters(text: str) -> list[tuple[str, str]]:
  """Parse (name, description) of a docstring's parameters, in Google's or NumPy's style."""
  lines = text.splitlines()
  for number, line in enumerate(lines):
    if line in ("Args:", "Arguments:"):
      section = itertools.takewhile(lambda x: not x or x[0] == " ", lines[number + 1 :])
      return list(_entries(textwrap.dedent("\n".join(section)).splitlines(), _ENTRY))
    if line == "Parameters" and _is_rule(lines[number + 1 : number + 2]):
      section = lines[number + 2 :]
      for next_number in range(1, len(section)):
        if _is_rule(section[next_number : next_number + 1]):  # the rule under the next heading
          section = section[: next_number - 1]
          break
      return list(_entries(section, _NUMPY_ENTRY))
  return []


def _entries(lines: list[str], form: re.Pattern) -> Iterator[tuple[str, str]]:
  """Yield (name, description) of entries.

  An unindented line of the form begins an entry, any other unindented line ends it.
  """
  begins = [number for number, line in enumerate(lines) if line[:1].strip()]
  for first, end in zip(begins, [*begins[1:], len(lines)]):
    match = form.match(lines[first])
    if not match:
      continue
    first_line = match[2] if form.groups > 1 else None
    description = " ".join([first_line or "", *lines[first + 1 : end]])
    yield match[1], " ".join(description.split())


def _is_rule(lines: list[str]) -> bool:
  return bool(lines) and len(lines[0]) > 2 and set(lines[0]) == {"-"}


def _words(text: str, max_words: int) -> str:
  return " ".join(text.split()[:max_words])


def _digest(*parts: str) -> bytes:
  return hashlib.sha256("\0".join(parts).encode()).digest()

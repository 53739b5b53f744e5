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
# Most inputs of these lengths fit in 64 tokens.
_TEXT_WORDS = 30
_HALF_WORDS = 15
_SUMMARY_WORDS = 30
_DESCRIPTION_WORDS = 8
_NUM_NEIGHBOURS = 1  # parameters in the context, on each side of the parameter of the question

_PACKAGE_NAMES = re.compile(
  r"\b(jax|jnp|keras|matplotlib|mpl|plt|numpy|np|ocp|orbax|scipy|tensorflow|tf)\b", re.I
)
_NAME_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
# The first line of a parameter, in Google's style (section Args) and in NumPy's (Parameters).
_GOOGLE_ENTRY = re.compile(r"\*{0,2}(\w+)(?: ?\(.*?\))?(?::\s*(.*)| *)$")
_NUMPY_ENTRY = re.compile(r"(\w+)(?: ?:.*)?$")


def is_validation_module(module: str) -> bool:
  """Return whether a module seen in pretraining belongs to the benchmark's split validation.

  The other modules belong to its split train.
  """
  return int.from_bytes(_digest("benchmark", module)[:8], "big") / 2**64 < VALIDATION_SHARE


def package(documents: Sequence[Document]) -> list[Record]:
  """Return records of the task `package`, as many per package as the rarest package has."""
  classes: dict[str, list[Record]] = {name: [] for name in PACKAGES}
  for document in documents:
    if document["package"] in classes:
      text = _PACKAGE_NAMES.sub("package", _words(document["text"], _TEXT_WORDS))
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
    words = document["text"].split()[: 2 * _HALF_WORDS]
    middle = len(words) // 2
    pairs.append((" ".join(words[:middle]), " ".join(words[middle:])))
  records = []
  for number, (first, second) in enumerate(pairs):
    label = "together"
    if number % 2:
      label = "apart"
      _, second = pairs[(number + 1) % len(pairs)]
    records.append({"first": first, "second": second, "label": label})
  num_balanced = len(records) // 2 * 2
  return records[:num_balanced]


def name(documents: Sequence[Document]) -> list[Record]:
  """Return records of the task `name`, one per function or method.

  Names that Python prescribes (`__init__`), and names of several words that occur in the summary,
  are left out.
  """
  records = []
  for document in documents:
    function_name = document["qualname"].rpartition(".")[2]
    words = [word.lower() for word in _NAME_WORDS.findall(function_name)]
    summary = _words(document["text"].split("\n\n")[0], _SUMMARY_WORDS)
    is_class = not function_name.lstrip("_")[:1].islower()
    if not words or function_name.startswith("__") or is_class:
      continue
    # A name of one word may be an ordinary word of the summary.
    if len(words) == 1 or function_name not in summary:
      records.append({"text": summary, "name": " ".join(words)})
  return records


def parameter(documents: Sequence[Document]) -> list[Record]:
  """Return records of the task `parameter`: one per docstring with two or more descriptions."""
  records = []
  for document in documents:
    entries = []
    for parameter_name, text in parameters(document["text"]):
      description = _words(re.split(r"(?<=\.)\s", text)[0], _DESCRIPTION_WORDS)
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
  numbered = enumerate(TASKS[task](ordered)[:MAX_RECORDS])
  return [{"id": f"{task}-{number}"} | record for number, record in numbered]


def parameters(text: str) -> list[tuple[str, str]]:
  """Parse (name, description) of a docstring's parameters, in Google's or NumPy's style."""
  lines = text.splitlines()
  for number, line in enumerate(lines):
    following = lines[number + 1 :]
    if line in ("Args:", "Arguments:"):
      section = itertools.takewhile(lambda x: not x or x[0] == " ", following)
      dedented = textwrap.dedent("\n".join(section)).splitlines()
      return list(_entries(dedented, _GOOGLE_ENTRY))
    if line == "Parameters" and following and _is_underline(following[0]):
      return list(_entries(_numpy_section(following[1:]), _NUMPY_ENTRY))
  return []


def _numpy_section(lines: list[str]) -> list[str]:
  """Return the lines before the next heading, which is a line above an underline."""
  for number in range(1, len(lines)):
    if _is_underline(lines[number]):
      return lines[: number - 1]
  return lines


def _entries(lines: list[str], first_line: re.Pattern) -> Iterator[tuple[str, str]]:
  """Yield (name, description) of the entries of a section.

  An unindented line that matches `first_line` begins an entry. Any other unindented line ends it.
  """
  starts = [number for number, line in enumerate(lines) if line[:1].strip()]
  for start, end in zip(starts, [*starts[1:], len(lines)]):
    match = first_line.match(lines[start])
    if not match:
      continue
    same_line = match[2] if first_line.groups > 1 else None
    description = " ".join([same_line or "", *lines[start + 1 : end]])
    yield match[1], " ".join(description.split())


def _is_underline(line: str) -> bool:
  """Return whether a line is three or more dashes, as below a heading in NumPy's style."""
  return len(line) > 2 and set(line) == {"-"}


def _words(text: str, max_words: int) -> str:
  return " ".join(text.split()[:max_words])


def _digest(*parts: str) -> bytes:
  return hashlib.sha256("\0".join(parts).encode()).digest()

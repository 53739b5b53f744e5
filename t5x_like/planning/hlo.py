"""Read the text of a compiled program (HLO): its computations and the number of executions of each.

Loops are multiplied by their number of iterations: the compiler's `known_trip_count` if it is given (CPU, GPU), or else
derived from the loop's condition, start value and increment (TPU).
"""

import dataclasses
import math
import re
from collections.abc import Iterator

from t5x_like.nn.feed_forward._over_devices import SELDOM

DTYPE_BITS = {"pred": 8, "token": 0, "opaque": 0}  # others end in their number of bits: bf16, s4, f8e4m3fn, c64
_COMPUTATION = re.compile(r"^(ENTRY )?%?([^\s(]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([^\s=]+) = ")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_ARRAY = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,<=]*)\]")
_CALLED = re.compile(
  r"\b(calls|called_computations|to_apply|body|condition|true_computation|false_computation|branch_computations)="
  r"(\{[^}]*\}|%?[^\s,{}]+)"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CONTINUED = re.compile(r'\n(?="|\}\}, )')  # the metadata of a Pallas kernel, JSON over several lines
_COMPARISONS = {"LT": 0, "GT": 0, "NE": 0, "LE": 1, "GE": 1}  # iterations beyond (bound - start) / increment


@dataclasses.dataclass(frozen=True)
class Instruction:
  """One line of a computation.

  Attributes:
    type: the printed type of the result, an array or a tuple.
    operands: names, without `%`.
    rest: everything after the operands, with attributes and metadata.
    arguments: the text between the parentheses: operands, a literal or a parameter's number.
  """

  name: str
  type: str
  opcode: str
  arguments: str
  rest: str
  root: bool

  @property
  def operands(self) -> list[str]:
    return re.findall(r"%([^\s,()]+)", self.arguments) or [
      word.split()[-1] for word in _split(self.arguments) if word and not word[0].isdigit()
    ]

  def attribute(self, name: str) -> str | None:
    """Return the value of `name=…`: a word or a text in braces; None if it is missing."""
    found = re.search(rf"\b{name}=(\{{[^{{}}]*\}}|[^\s,]+)", self.rest)
    return found[1] if found else None

  def called(self) -> list[tuple[str, str]]:
    """Return (kind, name) of the computations it names, such as ("body", "region_1")."""
    return [
      (kind, name.strip().lstrip("%"))
      for kind, names in _CALLED.findall(self.rest)
      for name in names.strip("{}").split(",")
      if name.strip()
    ]


@dataclasses.dataclass(frozen=True)
class Loop:
  """A `while` instruction: its computations and its iterations, None if they are unknown."""

  body: str
  condition: str
  trips: int | None


class Program:
  """A parsed program.

  Attributes:
    computations: instructions by computation.
    entry: the name of the entry computation.
    executions: the number of executions of each computation; every branch of a conditional counts as taken.
    fused, asynchronous: the computations executed by a fusion, or by an `async-start` and the calls in it.
    unknown: the loops with an unknown number of iterations, which count once.
    skipped: those of them that balanced loads of experts skip, which do not count.
  """

  def __init__(self, text: str):
    self.computations, self.entry = _parse(text)
    self.unknown: list[str] = []
    self.skipped: list[str] = []
    self.executions: dict[str, int] = {}
    self.fused: set[str] = set()
    self.asynchronous: set[str] = set()
    self._count(self.entry, 1)

  def shapes(self, computation: str) -> dict[str, str]:
    """Return the types of a computation's instructions."""
    return {instruction.name: instruction.type for instruction in self.computations[computation]}

  def executed(self) -> Iterator[tuple[Instruction, int, dict[str, str], str]]:
    """Yield (an instruction, its executions, the types in its computation, the computation)."""
    for computation, instructions in self.computations.items():
      if times := self.executions.get(computation, 0):
        shapes = self.shapes(computation)
        yield from ((instruction, times, shapes, computation) for instruction in instructions)

  def alone(self, computation: str) -> bool:
    """Return whether a computation is neither fused nor asynchronous."""
    return computation not in self.fused and computation not in self.asynchronous

  def loop(self, computation: str, instruction: Instruction) -> Loop:
    parts = dict(instruction.called())
    known = _TRIPS.search(instruction.rest)
    trips = int(known[1]) if known else self._trips(computation, instruction, parts["body"], parts["condition"])
    return Loop(parts["body"], parts["condition"], trips)

  def _count(self, computation: str, times: int) -> None:
    """Add `times` executions of a computation and of all that it calls."""
    if computation not in self.computations:
      return
    self.executions[computation] = self.executions.get(computation, 0) + times
    for instruction in self.computations[computation]:
      if instruction.opcode == "while":
        loop = self.loop(computation, instruction)
        seldom = loop.trips is None and f"/{SELDOM}/" in instruction.rest
        if loop.trips is None:
          (self.skipped if seldom else self.unknown).append(instruction.name)
        self._count(loop.body, times * (1 - seldom if loop.trips is None else loop.trips))
        continue
      if instruction.opcode.endswith(("-update", "-done")):
        continue  # these name the computation that their start executed
      within = self.asynchronous if computation in self.asynchronous else None
      marked = {"fusion": self.fused, "async-start": self.asynchronous}.get(instruction.opcode, within)
      for kind, name in instruction.called():
        if marked is not None:
          marked.add(name)
        if kind != "to_apply" or instruction.opcode == "call":  # a reduction's function costs nothing
          self._count(name, times)

  def _trips(self, computation: str, loop: Instruction, body: str, condition: str) -> int | None:
    """Return the iterations of a counting loop: (bound - start) / increment, rounded up; None if unknown."""
    compared = self._comparison(condition)
    if compared is None:
      return None
    index, bound, direction = compared
    start = self._element(computation, loop.operands[0], index)
    increment = self._increment(body, index)
    if bound is None:  # the bound came in as another element of the state
      return None
    distance = bound - (start or 0)
    step = increment or (1 if distance >= 0 else -1)
    return max(0, math.ceil((distance + math.copysign(_COMPARISONS[direction], step)) / step))

  def _comparison(self, condition: str) -> tuple[int, int | None, str] | None:
    """Return (index of the counter in the state, bound, direction) of a condition; None if it tests no counter."""
    found = self._compare_in(condition)
    if found is None:
      return None
    computation, compare, outer = found
    direction = compare.attribute("direction")
    sides = [self._resolve(computation, name, outer) for name in compare.operands[:2]]
    kinds = [kind for kind, _ in sides]
    if direction not in _COMPARISONS or sorted(kinds) != ["constant", "element"]:
      return None
    if kinds == ["constant", "element"]:  # 10 > i
      sides.reverse()
      direction = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}.get(direction, direction)
    return sides[0][1], sides[1][1], direction

  def _compare_in(self, condition: str):
    """Find the first comparison: (computation, instruction, None or (condition, the fusion that calls it))."""
    for instruction in self.computations.get(condition, ()):
      if instruction.opcode == "compare":
        return condition, instruction, None
    for instruction in self.computations.get(condition, ()):
      for kind, name in instruction.called():
        for inner in self.computations.get(name, ()) if kind == "calls" else ():
          if inner.opcode == "compare":
            return name, inner, (condition, instruction)
    return None

  def _resolve(self, computation: str, name: str, outer) -> tuple[str, int | None]:
    """Return ("constant", value), ("element", index in the loop's state) or ("other", None)."""
    instructions = {i.name: i for i in self.computations[computation]}
    found = instructions.get(name)
    while found is not None:
      if found.opcode == "constant":
        value = re.fullmatch(r"-?\d+", found.arguments.strip())
        return ("constant", int(value[0])) if value else ("other", None)
      if found.opcode == "get-tuple-element":
        return "element", int(found.attribute("index"))
      if found.opcode == "parameter" and outer is not None:
        return self._resolve(outer[0], outer[1].operands[int(found.arguments)], None)
      if found.opcode not in ("copy", "bitcast", "convert", "reshape"):
        break
      found = instructions.get(found.operands[0])
    return "other", None

  def _element(self, computation: str, name: str, index: int) -> int | None:
    """Return the constant at an index of a tuple; None if it is not constant."""
    instructions = {i.name: i for i in self.computations[computation]}
    made = instructions.get(name)
    while made is not None and made.opcode in ("copy", "opt-barrier"):
      made = instructions.get(made.operands[0])
    if made is None or made.opcode != "tuple":
      return None
    kind, value = self._resolve(computation, made.operands[index], None)
    return value if kind == "constant" else None

  def _increment(self, body: str, index: int) -> int | None:
    """Return the amount that a loop's body adds to an element of its state; None if unknown."""
    instructions = {i.name: i for i in self.computations[body]}
    root = next((i for i in instructions.values() if i.root), None)
    if root is None or root.opcode != "tuple" or index >= len(root.operands):
      return None
    computation, outer, added = body, None, instructions.get(root.operands[index])
    while added is not None and added.opcode in ("copy", "bitcast"):
      added = instructions.get(added.operands[0])
    if added is not None and added.opcode == "fusion":
      outer, computation = (body, added), dict(added.called()).get("calls", "")
      added = next((i for i in self.computations.get(computation, ()) if i.root), None)
    if added is None or added.opcode not in ("add", "subtract"):
      return None
    for name in added.operands:
      kind, value = self._resolve(computation, name, outer)
      if kind == "constant":
        return value if added.opcode == "add" else -value
    return None


def arrays(printed: str) -> list[tuple[str, tuple[int, ...]]]:
  """Parse the arrays of a printed type: `(bf16[2,4]{1,0}, u32[])` -> [("bf16", (2, 4)), ("u32", ())]."""
  return [
    (dtype, tuple(int(n.lstrip("<=")) for n in shape.split(",") if n)) for dtype, shape in _ARRAY.findall(printed)
  ]


def array_bytes(dtype: str, shape: tuple[int, ...]) -> float:
  bits = DTYPE_BITS.get(dtype)
  if bits is None:
    number = re.match(r"[a-z]+(\d+)", dtype)
    bits = int(number[1]) if number else 0
  return bits / 8 * math.prod(shape)


def type_bytes(printed: str) -> float:
  """Return the bytes of all arrays of a printed type, without padding."""
  return sum(array_bytes(*array) for array in arrays(printed))


def elements(printed: str) -> list[str]:
  """Return the members of a printed tuple, or the type itself."""
  printed = printed.strip()
  return [part.strip() for part in _split(printed[1:-1])] if printed.startswith("(") else [printed]


def _split(text: str) -> list[str]:
  """Split at commas outside brackets."""
  parts, depth, start = [], 0, 0
  for place, letter in enumerate(text):
    if letter in "({[":
      depth += 1
    elif letter in ")}]":
      depth -= 1
    elif letter == "," and depth == 0:
      parts.append(text[start:place].strip())
      start = place + 1
  last = text[start:].strip()
  return [*parts, last] if last else parts


def _parse(text: str) -> tuple[dict[str, list[Instruction]], str]:
  computations: dict[str, list[Instruction]] = {}
  entry, current = "", None
  for line in _CONTINUED.sub(" ", text).splitlines():
    line = re.sub(r"/\*.*?\*/", "", line)
    if not line.startswith((" ", "\t")):
      head = _COMPUTATION.match(line)
      if head:
        current = computations.setdefault(head[2], [])
        entry = head[2] if head[1] else entry
      continue
    start = _INSTRUCTION.match(line)
    if start is None or current is None:
      continue
    at = _end(line, start.end()) if line[start.end()] == "(" else line.index(" ", start.end())
    printed = line[start.end() : at]
    opcode = _OPCODE.match(line, at)
    if opcode is None:
      continue
    closed = _end(line, opcode.end() - 1)
    current.append(
      Instruction(start[2], printed, opcode[1], line[opcode.end() : closed - 1], line[closed:], bool(start[1]))
    )
  return computations, entry


def _end(line: str, start: int) -> int:
  """Return the position after the parenthesis that closes the parenthesis at `start`."""
  depth = 0
  for found in re.compile(r"[()]").finditer(line, start):
    depth += 1 if found[0] == "(" else -1
    if depth == 0:
      return found.end()
  return len(line)

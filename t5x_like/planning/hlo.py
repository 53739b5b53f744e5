"""Read the text of a compiled program (HLO): its computations and the number of executions of each.

Loops are multiplied by their number of iterations: the compiler's `known_trip_count` if it is given
(CPU, GPU), or else derived from the loop's condition, start value and increment (TPU).
"""

import dataclasses
import math
import re
from collections.abc import Iterator

from t5x_like.nn.feed_forward._over_devices import EXTRA_ROUNDS_SCOPE

# Other dtypes have their number of bits in the name: bf16, s4, f8e4m3fn, c64.
DTYPE_BITS = {"pred": 8, "token": 0, "opaque": 0}
_COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[^\s(]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?P<root>ROOT )?%?(?P<name>[^\s=]+) = ")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_ARRAY = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,<=]*)\]")
_CALLED = re.compile(
  r"\b(calls|called_computations|to_apply|body|condition|true_computation|false_computation|branch_computations)="
  r"(\{[^}]*\}|%?[^\s,{}]+)"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
# The metadata of a Pallas kernel is JSON over several lines, which are joined before parsing.
_CONTINUED = re.compile(r'\n(?="|\}\}, )')
# Iterations beyond (bound - start) / increment, by the direction of the comparison.
_EXTRA_ITERATIONS = {"LT": 0, "GT": 0, "NE": 0, "LE": 1, "GE": 1}
# The direction after the two sides of a comparison are exchanged.
_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}


@dataclasses.dataclass(frozen=True)
class Instruction:
  """One line of a computation.

  Attributes:
    type: the printed type of the result, an array or a tuple.
    operands: names, without `%`.
    attributes: the text after the operands: attributes and metadata.
    arguments: the text between the parentheses: operands, a literal or a parameter's number.
    root: whether the computation returns its value.
  """

  name: str
  type: str
  opcode: str
  arguments: str
  attributes: str
  root: bool

  @property
  def operands(self) -> list[str]:
    marked_names = re.findall(r"%([^\s,()]+)", self.arguments)
    if marked_names:
      return marked_names
    names = []
    for part in _split_at_commas(self.arguments):
      if part and not part[0].isdigit():
        *_, name = part.split()
        names.append(name)
    return names

  def attribute(self, name: str) -> str | None:
    """Return the value of `name=…`: a word or a text in braces; None if it is missing."""
    match = re.search(rf"\b{name}=(\{{[^{{}}]*\}}|[^\s,]+)", self.attributes)
    return match[1] if match else None

  def called_computations(self) -> list[tuple[str, str]]:
    """Return (kind, name) of the computations that it names, such as ("body", "region_1")."""
    calls = []
    for kind, names in _CALLED.findall(self.attributes):
      for name in names.strip("{}").split(","):
        if name.strip():
          calls.append((kind, name.strip().lstrip("%")))
    return calls


@dataclasses.dataclass(frozen=True)
class _Fusion:
  """A fusion instruction, and the computation that holds it."""

  computation: str
  instruction: Instruction


@dataclasses.dataclass(frozen=True)
class _Comparison:
  """The comparison that ends a loop.

  Attributes:
    computation: the computation that holds it: the loop's condition, or one that it fuses.
    fusion: the fusion in the condition; None without one.
  """

  computation: str
  instruction: Instruction
  fusion: _Fusion | None


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
    executions: the number of executions of each computation; every branch of a conditional counts
      as taken.
    fused, asynchronous: the computations executed by a fusion, or by an `async-start` and the calls
      in it.
    unknown: the loops with an unknown number of iterations, which count once.
    skipped: the loops over extra rounds of dispatch to experts, which do not count: with balanced
      loads they have no iterations.
  """

  def __init__(self, text: str):
    self.computations, self.entry = _parse(text)
    self.unknown: list[str] = []
    self.skipped: list[str] = []
    self.executions: dict[str, int] = {}
    self.fused: set[str] = set()
    self.asynchronous: set[str] = set()
    self._count(self.entry, 1)

  def types(self, computation: str) -> dict[str, str]:
    """Return the printed types of a computation's instructions, by name."""
    return {instruction.name: instruction.type for instruction in self.computations[computation]}

  def iterate_executed(self) -> Iterator[tuple[Instruction, int, dict[str, str], str]]:
    """Yield (an instruction, its executions, the types in its computation, the computation)."""
    for computation, instructions in self.computations.items():
      executions = self.executions.get(computation, 0)
      if executions == 0:
        continue
      types = self.types(computation)
      for instruction in instructions:
        yield instruction, executions, types, computation

  def is_standalone(self, computation: str) -> bool:
    """Return whether a computation is neither fused nor asynchronous."""
    return computation not in self.fused and computation not in self.asynchronous

  def loop(self, computation: str, instruction: Instruction) -> Loop:
    """Return the loop of a `while` instruction in a computation."""
    parts = dict(instruction.called_computations())
    body = parts["body"]
    condition = parts["condition"]
    declared_trips = _TRIPS.search(instruction.attributes)
    if declared_trips:
      trips = int(declared_trips[1])
    else:
      trips = self._trips(computation, instruction, body, condition)
    return Loop(body, condition, trips)

  def _count(self, computation: str, executions: int) -> None:
    """Add `executions` of a computation, and of all that it calls."""
    if computation not in self.computations:
      return
    self.executions[computation] = self.executions.get(computation, 0) + executions
    for instruction in self.computations[computation]:
      if instruction.opcode == "while":
        self._count_loop(computation, instruction, executions)
      # The computations of an update or a done were counted with its start.
      elif not instruction.opcode.endswith(("-update", "-done")):
        self._count_calls(computation, instruction, executions)

  def _count_loop(self, computation: str, instruction: Instruction, executions: int) -> None:
    """Count the executions of a loop's body."""
    loop = self.loop(computation, instruction)
    if loop.trips is not None:
      self._count(loop.body, executions * loop.trips)
    elif f"/{EXTRA_ROUNDS_SCOPE}/" in instruction.attributes:
      self.skipped.append(instruction.name)
    else:
      self.unknown.append(instruction.name)
      self._count(loop.body, executions)

  def _count_calls(self, computation: str, instruction: Instruction, executions: int) -> None:
    """Count the executions of the computations that an instruction calls."""
    for kind, name in instruction.called_computations():
      if instruction.opcode == "fusion":
        self.fused.add(name)
      elif instruction.opcode == "async-start" or computation in self.asynchronous:
        self.asynchronous.add(name)
      if kind != "to_apply" or instruction.opcode == "call":  # a reduction's function costs nothing
        self._count(name, executions)

  def _trips(
    self, computation: str, while_loop: Instruction, body: str, condition: str
  ) -> int | None:
    """Return the iterations of a counting loop; None if unknown.

    They are (bound - start) / increment, rounded up, and one more for `<=` and `>=`. A start that
    is not constant counts as 0, and an unknown increment as one step towards the bound.
    """
    bounds = self._loop_bounds(condition)
    if bounds is None:
      return None
    index, bound, direction = bounds
    start = self._element(computation, while_loop.operands[0], index)
    increment = self._increment(body, index)
    distance = bound - (start or 0)
    step = increment or (1 if distance >= 0 else -1)
    extra = math.copysign(_EXTRA_ITERATIONS[direction], step)
    trips = math.ceil((distance + extra) / step)
    return max(0, trips)

  def _loop_bounds(self, condition: str) -> tuple[int, int, str] | None:
    """Return (index of the counter in the state, bound, direction) of a loop's condition.

    It is None if the condition does not compare a counter with a constant.
    """
    comparison = self._find_comparison(condition)
    if comparison is None:
      return None
    direction = comparison.instruction.attribute("direction")
    if direction not in _EXTRA_ITERATIONS:
      return None
    computation = comparison.computation
    first_name, second_name, *_ = comparison.instruction.operands
    first_kind, first_value = self._resolve(computation, first_name, comparison.fusion)
    second_kind, second_value = self._resolve(computation, second_name, comparison.fusion)
    if (first_kind, second_kind) == ("element", "constant"):
      return first_value, second_value, direction
    if (first_kind, second_kind) == ("constant", "element"):  # 10 > i
      return second_value, first_value, _MIRRORED.get(direction, direction)
    return None

  def _find_comparison(self, condition: str) -> _Comparison | None:
    """Return the first comparison of a condition, or of a computation that it fuses."""
    instructions = self.computations.get(condition, [])
    for instruction in instructions:
      if instruction.opcode == "compare":
        return _Comparison(condition, instruction, None)
    for instruction in instructions:
      for kind, callee in instruction.called_computations():
        if kind != "calls":
          continue
        for inner in self.computations.get(callee, []):
          if inner.opcode == "compare":
            return _Comparison(callee, inner, _Fusion(condition, instruction))
    return None

  def _by_name(self, computation: str) -> dict[str, Instruction]:
    """Return the instructions of a computation by name."""
    return {instruction.name: instruction for instruction in self.computations[computation]}

  def _resolve(self, computation: str, name: str, fusion: _Fusion | None) -> tuple[str, int | None]:
    """Return the origin of a value, through copies and the parameters of a fusion.

    Args:
      fusion: the fusion that calls the computation; None for none.
    Returns:
      ("constant", value), ("element", index in the loop's state) or ("other", None).
    """
    instructions = self._by_name(computation)
    source = instructions.get(name)
    while source is not None:
      if source.opcode == "constant":
        value = re.fullmatch(r"-?\d+", source.arguments.strip())
        if value is None:
          break
        return "constant", int(value[0])
      if source.opcode == "get-tuple-element":
        return "element", int(source.attribute("index"))
      if source.opcode == "parameter" and fusion is not None:
        argument = fusion.instruction.operands[int(source.arguments)]
        return self._resolve(fusion.computation, argument, None)
      if source.opcode not in ("copy", "bitcast", "convert", "reshape"):
        break
      source = instructions.get(source.operands[0])
    return "other", None

  def _element(self, computation: str, name: str, index: int) -> int | None:
    """Return the constant at an index of a tuple; None if it is not constant."""
    instructions = self._by_name(computation)
    source = instructions.get(name)
    while source is not None and source.opcode in ("copy", "opt-barrier"):
      source = instructions.get(source.operands[0])
    if source is None or source.opcode != "tuple":
      return None
    kind, value = self._resolve(computation, source.operands[index], None)
    return value if kind == "constant" else None

  def _increment(self, body: str, index: int) -> int | None:
    """Return the amount that a loop's body adds to an element of its state; None if unknown."""
    instructions = self._by_name(body)
    root = _find_root(self.computations[body])
    if root is None or root.opcode != "tuple" or index >= len(root.operands):
      return None
    computation = body
    fusion = None
    addition = instructions.get(root.operands[index])
    while addition is not None and addition.opcode in ("copy", "bitcast"):
      addition = instructions.get(addition.operands[0])
    if addition is not None and addition.opcode == "fusion":
      fusion = _Fusion(body, addition)
      computation = dict(addition.called_computations()).get("calls", "")
      addition = _find_root(self.computations.get(computation, []))
    if addition is None or addition.opcode not in ("add", "subtract"):
      return None
    for name in addition.operands:
      kind, value = self._resolve(computation, name, fusion)
      if kind == "constant":
        return value if addition.opcode == "add" else -value
    return None


def _find_root(instructions: list[Instruction]) -> Instruction | None:
  """Return the instruction whose value a computation returns."""
  for instruction in instructions:
    if instruction.root:
      return instruction
  return None


def arrays(printed: str) -> list[tuple[str, tuple[int, ...]]]:
  """Parse the arrays of a printed type.

  For example, `(bf16[2,4]{1,0}, u32[])` gives [("bf16", (2, 4)), ("u32", ())].
  """
  parsed = []
  for dtype, dims in _ARRAY.findall(printed):
    sizes = [int(dim.lstrip("<=")) for dim in dims.split(",") if dim]
    parsed.append((dtype, tuple(sizes)))
  return parsed


def array_bytes(dtype: str, shape: tuple[int, ...]) -> float:
  """Return the bytes of an array, without padding."""
  bits = DTYPE_BITS.get(dtype)
  if bits is None:
    number = re.match(r"[a-z]+(\d+)", dtype)
    bits = int(number[1]) if number else 0
  return bits / 8 * math.prod(shape)


def type_bytes(printed: str) -> float:
  """Return the bytes of all arrays of a printed type, without padding."""
  return sum(array_bytes(*array) for array in arrays(printed))


def elements(printed: str) -> list[str]:
  """Return the types of a printed tuple's members, or the type itself if it is an array."""
  printed = printed.strip()
  if printed.startswith("("):
    return _split_at_commas(printed[1:-1])
  return [printed]


def _split_at_commas(text: str) -> list[str]:
  """Split at commas outside brackets."""
  parts = []
  depth = 0
  start = 0
  for position, letter in enumerate(text):
    if letter in "({[":
      depth += 1
    elif letter in ")}]":
      depth -= 1
    elif letter == "," and depth == 0:
      parts.append(text[start:position].strip())
      start = position + 1
  last_part = text[start:].strip()
  if last_part:
    parts.append(last_part)
  return parts


def _parse(text: str) -> tuple[dict[str, list[Instruction]], str]:
  """Return (the instructions of each computation, the name of the entry computation)."""
  computations: dict[str, list[Instruction]] = {}
  entry = ""
  instructions = None
  for line in _CONTINUED.sub(" ", text).splitlines():
    line = re.sub(r"/\*.*?\*/", "", line)
    if not line.startswith((" ", "\t")):
      header = _COMPUTATION.match(line)
      if header:
        instructions = computations.setdefault(header["name"], [])
        if header["entry"]:
          entry = header["name"]
      continue
    instruction = _parse_instruction(line)
    if instruction is not None and instructions is not None:
      instructions.append(instruction)
  return computations, entry


def _parse_instruction(line: str) -> Instruction | None:
  """Parse `  ROOT %name = type opcode(arguments), attributes`; None for other lines."""
  start = _INSTRUCTION.match(line)
  if start is None:
    return None
  type_start = start.end()
  if line[type_start] == "(":
    type_end = _closing_parenthesis(line, type_start)
  else:
    type_end = line.index(" ", type_start)
  opcode = _OPCODE.match(line, type_end)
  if opcode is None:
    return None
  arguments_end = _closing_parenthesis(line, opcode.end() - 1)
  return Instruction(
    name=start["name"],
    type=line[type_start:type_end],
    opcode=opcode[1],
    arguments=line[opcode.end() : arguments_end - 1],
    attributes=line[arguments_end:],
    root=bool(start["root"]),
  )


def _closing_parenthesis(line: str, start: int) -> int:
  """Return the position after the parenthesis that closes the parenthesis at `start`."""
  depth = 0
  for parenthesis in re.compile(r"[()]").finditer(line, start):
    depth += 1 if parenthesis[0] == "(" else -1
    if depth == 0:
      return parenthesis.end()
  return len(line)

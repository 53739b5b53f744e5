"""Every field of every task changes its fingerprint, unless the field states a reason.

The first test changes the fields of the arguments one by one, to another value of their type. The
second one builds tasks. A task may replace a field by facts, such as the content of a file; it is
built again with another value of this field.
"""

import dataclasses
import types
import typing
from typing import Any

import numpy as np
import pytest

from t5x_like import slots, trust
from t5x_like.data import task, tasks
from t5x_like.data.task import TaskArguments
from tests.data import test_addressing

# Other values of the fields that some task replaces by facts.
REPLACED = {
  "classes": {"classes": tuple("9876543210")},
  "dynamic_offsets": {"dynamic_offsets": False},
  "mean": {"mean": (0.25,)},
  "rates": {"rates": {"r_3": 2.0}},
  "sentence_rule": {"sentence_rule": f"{__name__}:mark_spaces"},
  "sentinels": {"sentinels": ("<extra_id_5>", "<extra_id_6>", "<extra_id_7>")},
  "std": {"std": (0.25,)},
  "targets_length": {"targets_length": 40},
}
# Arguments of tasks whose first case in `test_addressing` does not use a replaced field.
CASES = {"permutation_lm": {"input_format": "full_sentences"}}


def mark_spaces(vocabulary):
  """Return a mask of the ids that end sentences, as a sentence rule does."""
  return np.arange(vocabulary.size) == vocabulary.encode(" ")[0]


def arguments_class(name: str) -> type[TaskArguments]:
  return slots.find("config.task.name", name, tasks, "Arguments")


FIELDS = []
for name in slots.names(tasks):
  FIELDS += [(name, field.name) for field in dataclasses.fields(arguments_class(name))]


def other_value(declared_type: Any, value: Any) -> Any:
  """Return another value of the declared type."""
  origin = typing.get_origin(declared_type)
  members = typing.get_args(declared_type)
  if origin in (typing.Union, types.UnionType):
    members = [member for member in members if member is not types.NoneType]
    candidates = [other_value(member, value) for member in members]
  elif origin is typing.Literal:
    candidates = list(members)
  elif origin is typing.Annotated:
    return other_value(members[0], value)
  elif dataclasses.is_dataclass(declared_type):
    candidates = [declared_type(**{field: 0.5 for field in slots.argument_names(declared_type)})]
  elif origin is tuple:
    candidates = [(other_value(members[0], None),) * length for length in (1, 2, 3)]
  else:
    examples = {int: (1, 2), float: (0.25, 0.5), str: ("a", "b"), bool: (False, True)}
    examples |= {tuple: (("a",), ("b",)), list: (["a"], ["b"]), dict: ({"a": 1}, {"b": 1})}
    candidates = [*examples.get(declared_type, ())]
  candidates = [other for other in candidates if other is not None and other != value]
  assert candidates, f"no other value of {declared_type} is known: add one here"
  return candidates[0]


def example_arguments(name: str) -> TaskArguments:
  """Return the arguments of a task: its defaults, and an example of each required value."""
  arguments = arguments_class(name)
  defaults = slots.defaults(arguments)
  for field, argument in slots.read_arguments(arguments).items():
    if field not in defaults:
      defaults[field] = other_value(argument.declared_type, None)
  return arguments(**defaults)


def unfingerprinted_reason(arguments: TaskArguments, name: str) -> str | None:
  """Return the reason why a field is not in the fingerprint, or None if it is."""
  (field,) = [field for field in dataclasses.fields(arguments) if field.name == name]
  return field.metadata.get("reason")


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_changing_a_field_changes_the_fingerprint(name, field):
  arguments = example_arguments(name)
  value = other_value(
    slots.read_arguments(type(arguments))[field].declared_type, getattr(arguments, field)
  )
  changed = dataclasses.replace(arguments, **{field: value})
  is_same = changed.fingerprint("x.v1") == arguments.fingerprint("x.v1")
  reason = unfingerprinted_reason(arguments, field)
  assert is_same == (reason is not None)
  if reason is not None:
    assert len(reason.split()) >= 4, "expected a reason in words"


@pytest.mark.runs
@pytest.mark.parametrize("name", slots.names(tasks))
def test_task_has_the_fingerprint_of_its_arguments(name, tmp_path, monkeypatch):
  """Facts may replace a field if another value of the field results in other facts."""
  calls = []
  compute = TaskArguments.fingerprint

  def record(arguments, version, **facts):
    calls.append((arguments, facts, compute(arguments, version, **facts)))
    return calls[-1][-1]

  monkeypatch.setattr(TaskArguments, "fingerprint", record)
  trust.admit(REPLACED["sentence_rule"]["sentence_rule"])
  case = CASES.get(name) or test_addressing.CASES.get(name, [{}])[0]
  original_task = build(name, case, tmp_path)
  fields = [field.name for field in dataclasses.fields(arguments_class(name))]
  if all(unfingerprinted_reason(example_arguments(name), field) for field in fields):
    return  # a mixture, whose fingerprint is computed from its parts
  arguments, facts, fingerprint = calls[-1]
  assert isinstance(arguments, arguments_class(name))
  assert original_task.fingerprint == fingerprint
  for field in facts.keys() & set(fields):
    if unfingerprinted_reason(arguments, field) is None:
      changed_task = build(name, case | REPLACED[field], tmp_path / "changed")
      assert changed_task.fingerprint != original_task.fingerprint, field


def build(name: str, case: dict, directory) -> task.Task:
  directory.mkdir(exist_ok=True)
  return test_addressing.build_task(name, dict(case), directory)


def test_equal_numbers_and_sequences_have_equal_fingerprints():
  @dataclasses.dataclass(frozen=True, kw_only=True)
  class Arguments(TaskArguments):
    rate: float
    sizes: tuple = ()

    def features(self, vocabulary):
      return {}

    def build(self):
      raise AssertionError("only its fingerprint is used")

  spellings = [Arguments(split="train", rate=3, sizes=[1, 2])]
  spellings.append(Arguments(split="train", rate=3.0, sizes=(1.0, 2)))
  assert len({arguments.fingerprint("x.v1") for arguments in spellings}) == 1
  assert spellings[0].fingerprint("x.v1") != spellings[0].fingerprint("x.v2")
  assert spellings[0].fingerprint("x.v1", rate=4) != spellings[0].fingerprint("x.v1")

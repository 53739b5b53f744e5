"""Every field of every task: another value is another fingerprint, or the field states its reason.

First the function: fields are changed one by one, to a value of their type. Then its use: a task
that is built has this fingerprint, and the fields that it replaces by facts are changed for real.
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

# Valid values of the fields that some task replaces by facts, and the arguments that they need.
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
# Tasks whose first case in `test_addressing` leaves a replaced field without effect.
CASES = {"permutation_lm": {"input_format": "full_sentences"}}


def mark_spaces(vocabulary):
  """Return the ids that end sentences: a rule."""
  return np.arange(vocabulary.size) == vocabulary.encode(" ")[0]


def arguments_class(name: str) -> type[TaskArguments]:
  return slots.find("config.task.name", name, tasks, "Arguments")


FIELDS = []
for name in slots.names(tasks):
  FIELDS += [(name, field.name) for field in dataclasses.fields(arguments_class(name))]


def other_value(declared_type: Any, value: Any) -> Any:
  """Return a value of a type that differs from `value`."""
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


def fill(name: str) -> TaskArguments:
  """Return the arguments of a task, with its defaults and an example of each required value."""
  arguments = arguments_class(name)
  defaults = slots.defaults(arguments)
  for field, argument in slots.read_arguments(arguments).items():
    if field not in defaults:
      defaults[field] = other_value(argument.declared_type, None)
  return arguments(**defaults)


def reason(arguments: TaskArguments, name: str) -> str | None:
  """Return why a field is no part of the fingerprint; None if it is."""
  (field,) = [field for field in dataclasses.fields(arguments) if field.name == name]
  return field.metadata.get("reason")


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_another_value_of_a_field_is_another_fingerprint(name, field):
  arguments = fill(name)
  value = other_value(
    slots.read_arguments(type(arguments))[field].declared_type, getattr(arguments, field)
  )
  changed = dataclasses.replace(arguments, **{field: value})
  is_same = changed.fingerprint("x.v1") == arguments.fingerprint("x.v1")
  stated = reason(arguments, field)
  assert is_same == (stated is not None)
  if stated is not None:
    assert len(stated.split()) >= 4, "a reason in words, for readers"


@pytest.mark.runs
@pytest.mark.parametrize("name", slots.names(tasks))
def test_a_task_has_the_fingerprint_of_its_arguments(name, tmp_path, monkeypatch):
  """Facts may replace fields, if another value of the field is another fact."""
  calls = []
  compute = TaskArguments.fingerprint

  def record(arguments, version, **facts):
    calls.append((arguments, facts, compute(arguments, version, **facts)))
    return calls[-1][-1]

  monkeypatch.setattr(TaskArguments, "fingerprint", record)
  trust.admit(REPLACED["sentence_rule"]["sentence_rule"])
  case = CASES.get(name) or test_addressing.CASES.get(name, [{}])[0]
  built = build(name, case, tmp_path)
  fields = [field.name for field in dataclasses.fields(arguments_class(name))]
  if all(reason(fill(name), field) for field in fields):
    return  # a mixture, whose fingerprint is made of its parts'
  arguments, facts, fingerprint = calls[-1]
  assert isinstance(arguments, arguments_class(name))
  assert built.fingerprint == fingerprint
  for field in facts.keys() & set(fields):
    if reason(arguments, field) is None:
      other = build(name, case | REPLACED[field], tmp_path / "other")
      assert other.fingerprint != built.fingerprint, field


def build(name: str, case: dict, directory) -> task.Task:
  directory.mkdir(exist_ok=True)
  return test_addressing.build(name, dict(case), directory)


def test_numbers_and_lists_have_one_spelling():
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

"""Names in recipes are resolved, and their arguments are checked against signatures."""

import abc
import dataclasses
import types
from typing import Annotated, Literal

import pytest
from ml_collections import ConfigDict

from t5x_like import objectives, slots, trust
from t5x_like.architectures.dual_encoder import DualVariant
from t5x_like.architectures.image_encoder import ImageVariant
from t5x_like.errors import UserError
from t5x_like.nn import positions
from t5x_like.nn.positions import rope
from t5x_like.training import guard


def wave(
  length: int,
  *,
  height: float = 1.0,
  kind: Literal["sine", "square"] = "sine",
  bends: tuple = (),
  sea=None,
):
  return length, height, kind, bends, sea


TABLE = {"wave": wave, "flat": lambda: 0}


def test_a_word_and_a_dictionary_are_the_same_slot():
  assert (
    slots.make("config.x", {"name": "flat"}, TABLE) == slots.make("config.x", "flat", TABLE) == 0
  )


def test_two_modules_of_one_name_are_refused(tmp_path, monkeypatch):
  for topic in ("lakes", "oceans"):
    folder = tmp_path / topic / "positions"
    folder.mkdir(parents=True)
    (folder / "depth.py").touch()
  monkeypatch.setattr(slots, "_CONTRIB", tmp_path)
  message = (
    "t5x_like.nn.positions: found 'depth' twice, as t5x_like.contrib.lakes.positions.depth and "
    "t5x_like.contrib.oceans.positions.depth"
  )
  with pytest.raises(UserError, match=message):
    slots.names(positions)
  (tmp_path / "oceans/positions/depth.py").rename(tmp_path / "oceans/positions/rope.py")
  with pytest.raises(UserError, match="found 'rope' twice, as t5x_like.nn.positions.rope and"):
    slots.names(positions)


@slots.rename_keys(tall="height")
def swell(*, height: float = 1.0):
  return height


def test_a_former_key_is_refused_with_its_successor():
  message = r"config\.x\.tall: this key is now 'height'; rename it"
  with pytest.raises(UserError, match=message):
    slots.make("config.x", {"name": "swell", "tall": 2.0}, {"swell": swell})
  assert slots.make("config.x", {"name": "swell", "height": 2.0}, {"swell": swell}) == 2.0


@pytest.mark.parametrize(
  ("function", "old_key", "new_key"),
  [
    (guard.skip, "at_most", "max_consecutive"),
    (guard.rollback, "at_most", "max_rollbacks"),
    (rope.YarnScaling, "whole", "truncate"),
    (DualVariant, "reading", "text_pooling"),
    (ImageVariant, "edge", "partial_patches"),
  ],
)
def test_successors_are_keys(function, old_key, new_key):
  with pytest.raises(UserError, match=f"config.x.{old_key}: this key is now '{new_key}'"):
    slots.fill("config.x", {old_key: 1}, function)
  assert new_key in slots.argument_names(function)


@dataclasses.dataclass(frozen=True)
class Sea:
  depth: float
  waves: dict = dataclasses.field(default_factory=dict)


def test_a_dataclass_is_a_schema_and_its_defaults_are_made_anew():
  filled = [slots.fill("config.x", {"depth": 2}, Sea) for _ in range(2)]
  assert filled == [{"depth": 2, "waves": {}}] * 2
  assert filled[0]["waves"] is not filled[1]["waves"]
  with pytest.raises(
    UserError,
    match=r"config\.x\.depht: unknown key \(did you mean 'depth'\?\); it takes depth, "
    r"waves",
  ):
    slots.fill("config.x", {"depht": 2}, Sea)


def test_arguments_are_filled_in_and_supplied_ones_are_no_keys():
  values = ConfigDict({"name": "wave", "length": 3, "bends": [1, 2]})
  assert slots.make("config.x", values, TABLE, sea="calm", shore="unused") == (
    3,
    1.0,
    "sine",
    (1, 2),
    "calm",
  )
  with pytest.raises(
    UserError,
    match=r"config\.x\.sea: unknown key; it takes length, height, "
    r"kind, bends",
  ):
    slots.make("config.x", {"name": "wave", "length": 3, "sea": "rough"}, TABLE, sea="calm")


@pytest.mark.parametrize(
  "value, message",
  [
    ("wavy", r"config\.x: found 'wavy', expected one of flat, wave \(did you mean 'wave'\?\)"),
    ({"length": 3}, r"config\.x: found no name, expected one of flat, wave"),
    (3, r"config\.x: found 3, expected a name, or a name and its arguments"),
    ({"name": "flat", "length": 3}, r"config\.x\.length: unknown key; it takes no arguments"),
    ({"name": "wave"}, r"config\.x\.length: missing; it takes length"),
    ({"name": "wave", "lenght": 3}, r"config\.x\.lenght: unknown key \(did you mean 'length'\?\)"),
    ({"name": "wave", "length": 3.5}, r"config\.x\.length: found 3\.5 of type float, expected int"),
    ({"name": "wave", "length": True}, r"config\.x\.length: found True of type bool, expected int"),
    (
      {"name": "wave", "length": 3, "kind": "saw"},
      r"config\.x\.kind: found 'saw' .*expected "
      r"'sine' or 'square'",
    ),
  ],
)
def test_refusals_name_the_key_and_the_expected_value(value, message):
  with pytest.raises(UserError, match=message):
    slots.make("config.x", value, TABLE)


@dataclasses.dataclass(frozen=True)
class Boat:
  sails: slots.PositiveInt = 2
  crew: tuple[str | None, ...] = ()


class Ship:
  def __init__(self, sea, *, length: int, boat: Boat | None = None):
    self.length = length
    self.boat = boat


class Steamer(Ship):
  def __init__(
    self,
    sea,
    *,
    power: Annotated[float, slots.Condition("a number above 0", lambda x: x > 0)],
    **options,
  ):
    super().__init__(sea, **options)
    self.power = power


FLEET = {"ship": Ship, "steamer": Steamer}


def test_a_class_takes_the_arguments_of_its_base_and_a_dictionary_makes_a_dataclass():
  ship = slots.make(
    "config.x",
    {"name": "steamer", "power": 2, "length": 3, "boat": {"crew": ["Ann", None]}},
    FLEET,
    sea=0,
  )
  assert ship.power == 2
  assert ship.length == 3
  assert ship.boat == Boat(2, ("Ann", None))
  assert slots.replace_fields("config.x", ship.boat, {"sails": 1}) == Boat(1, ("Ann", None))


@pytest.mark.parametrize(
  "value, message",
  [
    (
      {"lenght": 3},
      r"config\.x\.lenght: unknown key \(did you mean 'length'\?\); it takes "
      r"length, boat, power",
    ),
    ({"length": 3}, r"config\.x\.power: missing; it takes length, boat, power"),
    (
      {"length": 3, "power": 0},
      r"config\.x\.power: found 0 of type int, expected a number above 0",
    ),
    (
      {"length": 3, "power": 1, "boat": 1},
      r"config\.x\.boat: found 1 of type int, expected Boat "
      r"or None",
    ),
    (
      {"length": 3, "power": 1, "boat": {"sail": 1}},
      r"config\.x\.boat\.sail: unknown key \(did "
      r"you mean 'sails'\?\)",
    ),
    (
      {"length": 3, "power": 1, "boat": {"sails": 0}},
      r"config\.x\.boat\.sails: found 0 .*a whole "
      r"number above 0",
    ),
    (
      {"length": 3, "power": 1, "boat": {"crew": [1]}},
      r"config\.x\.boat\.crew: found \[1\] .*a "
      r"list of str or None",
    ),
  ],
)
def test_refusals_name_keys_inside_of_arguments(value, message):
  with pytest.raises(UserError, match=message):
    slots.make("config.x", {"name": "steamer", **value}, FLEET, sea=0)


def test_a_dataclass_takes_the_fields_of_its_base_after_its_own():
  @dataclasses.dataclass(frozen=True, kw_only=True)
  class Catch:
    nets: slots.PositiveInt
    bait: str = "worm"

  @dataclasses.dataclass(frozen=True, kw_only=True)
  class Lake(Catch):
    depth: float = 3.0
    bait: str = "fly"

  assert slots.argument_names(Lake) == ["depth", "bait", "nets"]
  lake = slots.make("config.x", {"name": "lake", "nets": 2}, {"lake": Lake})
  assert lake == Lake(nets=2, bait="fly")
  assert slots.defaults(Lake) == {"depth": 3.0, "bait": "fly"}
  for values, message in (
    ({"width": 4}, r"x\.width: unknown key.*; it takes depth, bait, nets"),
    ({"nets": 0}, "a whole number above 0"),
    ({}, r"x\.nets: missing"),
  ):
    with pytest.raises(UserError, match=message):
      slots.make("config.x", {"name": "lake", **values}, {"lake": Lake})


class Vessel(abc.ABC):
  @abc.abstractmethod
  def sail(self):
    """Sail."""


@dataclasses.dataclass(frozen=True)
class Canoe(Vessel):
  length: int = 5

  def sail(self):
    return self.length


@dataclasses.dataclass(frozen=True)
class Wreck(Vessel):
  length: int = 5


def test_a_class_of_another_form_is_refused_with_the_form_to_declare():
  vessels = {"canoe": Canoe, "wreck": Wreck, "ship": Ship, "wave": wave}
  slot = slots.Slot(vessels, base=Vessel, guide="docs/how-to/add-a-vessel.md")
  assert slot.make("config.x", {"name": "canoe", "length": 7}) == Canoe(7)
  for name in ("ship", "wave"):
    with pytest.raises(
      UserError,
      match=rf"config\.x\.name: found '{name}', expected a frozen dataclass derived from "
      r".*test_slots\.Vessel, whose fields are its arguments; see "
      r"docs/how-to/add-a-vessel\.md",
    ):
      slot.complete("config.x", name)
  with pytest.raises(UserError, match=r"'wreck' lacks the method 'sail' of .*Vessel; define it"):
    slot.make("config.x", "wreck")


def test_a_package_is_a_registry_of_its_public_modules():
  assert {"mlm", "encoder_decoder"} <= set(slots.names(objectives))
  assert not [name for name in slots.names(objectives) if name.startswith("_")]
  assert (
    slots.find("config.objective", "mlm", objectives, "Objective").__module__
    == "t5x_like.objectives.mlm"
  )


def test_a_package_given_by_its_name_is_imported_when_it_is_asked():
  assert slots.names("t5x_like.objectives") == slots.names(objectives)
  member = slots.find("config.objective", "mlm", "t5x_like.objectives", "Objective")
  assert member is slots.find("config.objective", "mlm", objectives, "Objective")


def test_an_unknown_module_of_a_package_is_refused_with_the_nearest_name():
  with pytest.raises(LookupError, match=r"t5x_like\.objectives has no module 'mln' \(did you mean"):
    slots.module("mln", objectives)
  with pytest.raises(LookupError, match="has no module None"):
    slots.module(None, "t5x_like.objectives")


def test_a_function_from_outside(tmp_path, monkeypatch):
  (tmp_path / "my_waves.py").write_text("def long(scale: int = 2):\n  return 10 * scale\n")
  monkeypatch.chdir(tmp_path)
  trust.begin_command(["my_waves:long", "my_waves:short", "no_waves:long"])
  package = types.ModuleType("package")
  package.__path__ = []
  assert slots.make("config.task", {"name": "my_waves:long", "scale": 3}, package, "task") == 30
  with pytest.raises(
    UserError,
    match=r"config\.task: 'my_waves:short' cannot be used: "
    r"AttributeError",
  ):
    slots.make("config.task", "my_waves:short", package, "task")
  with pytest.raises(
    UserError,
    match=r"config\.task: 'no_waves:long' cannot be used: "
    r"ModuleNotFoundError",
  ):
    slots.make("config.task", "no_waves:long", package, "task")

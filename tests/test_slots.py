"""Names in recipes are resolved, and their arguments are checked against signatures."""

import abc
import dataclasses
import types
from typing import Annotated, Literal

import pytest
from ml_collections import ConfigDict

from refusals import refuses
from t5x_like import objectives, slots, trust
from t5x_like.architectures.dual_encoder import DualVariant
from t5x_like.architectures.image_encoder import ImageVariant
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


@pytest.mark.parametrize(
  "topics, name, modules",
  [
    (("lakes", "oceans"), "depth", ("lakes.positions.depth", "oceans.positions.depth")),
    (("oceans",), "rope", ("t5x_like.nn.positions.rope", "oceans.positions.rope")),
  ],
)
def test_two_modules_of_one_name_are_refused(topics, name, modules, tmp_path, monkeypatch):
  for topic in topics:
    folder = tmp_path / topic / "positions"
    folder.mkdir(parents=True)
    (folder / f"{name}.py").touch()
  monkeypatch.setattr(slots, "_CONTRIB", tmp_path)
  with refuses(f"t5x_like.nn.positions: found '{name}' twice", *modules):
    slots.names(positions)


@slots.rename_keys(tall="height")
def swell(*, height: float = 1.0):
  return height


def test_a_former_key_is_refused_with_its_successor():
  with refuses("config.x.tall: this key is now 'height'; rename it"):
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
  with refuses(f"config.x.{old_key}: this key is now '{new_key}'"):
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


def test_arguments_are_filled_in_and_those_of_the_program_are_added():
  values = ConfigDict({"name": "wave", "length": 3, "bends": [1, 2]})
  wave = slots.make("config.x", values, TABLE, sea="calm", shore="unused")
  assert wave == (3, 1.0, "sine", (1, 2), "calm")


WAVE = {"name": "wave", "length": 3}


@pytest.mark.parametrize(
  "value, parts",
  [
    ("wavy", ("config.x: found 'wavy'", "one of flat, wave", "did you mean 'wave'?")),
    ({"length": 3}, ("config.x: found no name", "one of flat, wave")),
    (3, ("config.x: found 3, expected a name, or a name and its arguments",)),
    ({"name": "flat", "length": 3}, ("config.x.length: unknown key; it takes no arguments",)),
    ({"name": "wave"}, ("config.x.length: missing; it takes length",)),
    (WAVE | {"lenght": 3}, ("config.x.lenght: unknown key", "did you mean 'length'?")),
    (WAVE | {"sea": "rough"}, ("config.x.sea: unknown key; it takes length, height, kind, bends",)),
    (WAVE | {"length": 3.5}, ("config.x.length: found 3.5 of type float, expected int",)),
    (WAVE | {"length": True}, ("config.x.length: found True of type bool, expected int",)),
    (WAVE | {"kind": "saw"}, ("config.x.kind: found 'saw'", "'sine' or 'square'")),
  ],
)
def test_refusals_name_the_key_and_the_expected_value(value, parts):
  with refuses(*parts):
    slots.make("config.x", value, TABLE, sea="calm")


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


STEAMER = {"name": "steamer", "length": 3, "power": 1}


@pytest.mark.parametrize(
  "value, parts",
  [
    (
      STEAMER | {"lenght": 3},
      ("config.x.lenght: unknown key", "did you mean 'length'?", "it takes length, boat, power"),
    ),
    ({"name": "steamer", "length": 3}, ("config.x.power: missing; it takes length, boat, power",)),
    (STEAMER | {"power": 0}, ("config.x.power: found 0 of type int, expected a number above 0",)),
    (STEAMER | {"boat": 1}, ("config.x.boat: found 1 of type int, expected Boat or None",)),
    (STEAMER | {"boat": {"sail": 1}}, ("config.x.boat.sail: unknown key", "mean 'sails'?")),
    (STEAMER | {"boat": {"sails": 0}}, ("config.x.boat.sails: found 0", "above 0")),
    (STEAMER | {"boat": {"crew": [1]}}, ("config.x.boat.crew: found [1]", "list of str or None")),
  ],
)
def test_refusals_name_keys_inside_of_arguments(value, parts):
  with refuses(*parts):
    slots.make("config.x", value, FLEET, sea=0)


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
  with refuses("config.x.nets: missing; it takes depth, bait, nets"):
    slots.make("config.x", "lake", {"lake": Lake})


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
    with refuses(f"config.x.name: found '{name}'", "test_slots.Vessel", slot.guide):
      slot.complete("config.x", name)
  with refuses("'wreck' lacks the method 'sail'"):
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
  for name, error in (
    ("my_waves:short", "AttributeError"),
    ("no_waves:long", "ModuleNotFoundError"),
  ):
    with refuses(f"config.task: '{name}' cannot be used: {error}"):
      slots.make("config.task", name, package, "task")

"""The lists of --help and --list, and the key that a flag without its section meant."""

import dataclasses

import pytest

from t5x_like import config as config_lib
from t5x_like import listing, slots, train
from t5x_like.training.schedule import SCHEDULES


def test_every_key_is_there_once_with_its_default_and_comment():
  keys = {key.name: key for key in listing.keys()}
  assert len(keys) == len(listing.keys())
  for field in dataclasses.fields(config_lib.Recipe):
    assert any(name.split(".")[0] == field.name for name in keys), field.name
  batch = keys["batch_size"]
  assert batch.default == "128"
  assert "above 0" in batch.kind
  assert batch.about.startswith("examples per step")
  rate = keys["schedule.learning_rate"]
  assert rate.default is None
  assert not rate.owners or set(rate.owners) <= set(SCHEDULES)
  assert keys["checkpoint.keep_last"].about == (
    "how many of the newest multiples of `every` are kept."
  )
  assert keys["trackers.NAME.project"].owners == ("wandb",)
  assert "task.store" in keys
  assert "model.dropout" in keys


@pytest.mark.parametrize(
  "section", ["task", "objective", "optimizer", "tuning", "evals.NAME", "trackers.NAME"]
)
def test_arguments_of_a_slot_are_a_frozen_dataclass_that_documents_each_field(section):
  undocumented = []
  for group in listing.groups():
    if group.section == section and group.name:
      undocumented += [f"{group.name}: {key.name}" for key in group.keys if not key.about]
  assert not undocumented
  slot = listing.SLOTS[section]
  for name in slot.names():
    arguments = slot.find(section, name)
    assert dataclasses.is_dataclass(arguments), name
    assert arguments.__dataclass_params__.frozen, name
    fields = {field.name for field in dataclasses.fields(arguments) if field.init}
    assert set(slots.argument_names(arguments)) == fields, name


@pytest.mark.parametrize("kind", listing.KINDS)
def test_a_list_describes_its_names(kind, capsys):
  with pytest.raises(SystemExit) as ended:
    train.main(["--list", kind])
  lines = capsys.readouterr().out.splitlines()
  assert ended.value.code == 0
  assert len(lines) > 3
  assert any(len(line.split()) > 1 for line in lines)


def test_help_ends_with_the_lists_and_a_wrong_list_is_refused(capsys):
  with pytest.raises(SystemExit):
    train.main(["--help"])
  output = capsys.readouterr().out
  for words in (
    "recipes: ",
    "configs/t5/base.py",
    "models: ",
    "span_corruption",
    "keys: model, task",
    "--list KIND",
  ):
    assert words in output, words
  assert train.main(["--list", "model"]) == 2
  assert "did you mean 'models'" in capsys.readouterr().err


@pytest.mark.parametrize(
  "flag, meant",
  [
    ("--learning_rate=0.1", "--config.schedule.learning_rate=0.1"),
    ("--batch-size=8", "--config.batch_size=8"),
    ("--size=8", "--config.batch_size=8"),
    ("--droput=0.1", "--config.model.dropout=0.1"),
    ("--config_batch_size", None),
    ("--xyzzy=1", None),
  ],
)
def test_a_flag_without_its_section_is_suggested(flag, meant, capsys):
  assert train.main(["--config=configs/t5/base.py", "--workdir=nowhere", flag]) == 2
  line = capsys.readouterr().err
  assert (f"did you mean {meant}" in line) if meant else "unknown argument" in line
  assert line.count("\n") == 1

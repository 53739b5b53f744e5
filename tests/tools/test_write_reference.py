"""The generated pages list every key that a recipe takes, with its default."""

from t5x_like import listing, recipes
from tools import write_reference


def test_the_generated_pages_list_every_key_and_plan(tmp_path, monkeypatch):
  monkeypatch.setattr(write_reference, "_FOLDER", tmp_path)
  monkeypatch.setattr(write_reference, "_REPO", tmp_path)
  assert write_reference.main([]) == 0
  keys = (tmp_path / "config-keys.md").read_text()
  for group in listing.groups():
    assert not group.name or f"`{group.name}`" in keys
    assert not group.name or group.about in keys
    for key in group.keys:
      assert f"`{key.name.removeprefix(f'{group.section}.')}`" in keys
  for page in ("sizing.md", "plans.md"):
    assert "llama 3.1 8b" in (tmp_path / page).read_text()


def keys_by_group():
  """Return the listed keys by (section, name of the part), then by their names in the section."""
  keys_of = {}
  for group in listing.groups():
    prefix = f"{group.section}."
    keys = {key.name.removeprefix(prefix): key for key in group.keys}
    keys_of[group.section, group.name] = keys
  return keys_of


def test_the_keys_of_a_recipe_are_listed():
  listed = keys_by_group()
  config = recipes.load("configs/gpt/my_text.py")
  assert set(config) == set(listed["", ""]) | {
    section.partition(".")[0] for section, _ in listed if section
  }
  for slot in ("model", "task", "objective", "optimizer", "schedule"):
    keys = set(config[slot]) - {"name"}
    assert keys <= set(listed[slot, config[slot].name]), slot


def test_a_key_has_its_own_default_and_description():
  listed = keys_by_group()
  assert listed["", ""]["batch_size"].default == "128"
  assert "examples per step" in listed["", ""]["batch_size"].about
  assert listed["optimizer", "lamb"]["b2"].default != listed["optimizer", "lion"]["b2"].default
  assert listed["task", "causal_lm"]["verify"].about  # of the dataclass that it extends
  assert listed["model", "gpt"]["dropout"].about  # of the class that it extends

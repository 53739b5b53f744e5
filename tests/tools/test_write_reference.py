"""The generated pages of docs/reference are up to date, and the listing knows every key that a
recipe takes."""

from t5x_like import listing, recipes
from tools import write_reference


def test_the_pages_are_up_to_date(capsys):
  assert write_reference.main(["--check"]) == 0, capsys.readouterr().out


def test_a_stale_page_is_named_and_written_anew(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(write_reference, "_FOLDER", tmp_path)
  monkeypatch.setattr(write_reference, "_REPO", tmp_path)
  monkeypatch.setattr(write_reference, "PAGES", {"page.md": lambda: "new\n"})
  (tmp_path / "page.md").write_text("old\n")
  assert write_reference.main(["--check"]) == 1
  assert "page.md" in capsys.readouterr().out and (tmp_path / "page.md").read_text() == "old\n"
  assert write_reference.main([]) == 0
  assert (tmp_path / "page.md").read_text() == "new\n"


def groups():
  return {
    (group.section, group.name): {
      key.name.removeprefix(f"{group.section}."): key for key in group.keys
    }
    for group in listing.groups()
  }


def test_the_keys_of_a_recipe_are_listed():
  listed = groups()
  config = recipes.load("configs/gpt/my_text.py")
  assert set(config) == set(listed["", ""]) | {
    section.partition(".")[0] for section, _ in listed if section
  }
  for slot in ("model", "task", "objective", "optimizer", "schedule"):
    given = set(config[slot]) - {"name"}
    assert given <= set(listed[slot, config[slot].name]), slot


def test_a_key_has_its_own_default_and_description():
  listed = groups()
  assert listed["", ""]["batch_size"].default == "128"
  assert "examples per step" in listed["", ""]["batch_size"].about
  assert listed["optimizer", "lamb"]["b2"].default != listed["optimizer", "lion"]["b2"].default
  assert listed["task", "causal_lm"]["verify"].about  # of the record that its options unpack
  assert listed["model", "gpt"]["dropout"].about  # of the class that it extends

"""A recipe's open values are completed from a table of texts and labels; bad tables are refused."""

import json

import pytest

from refusals import refuses
from t5x_like import recipes
from t5x_like.data import open_values
from t5x_like.training.resolve import resolve

RECIPE = "configs/finetune/encoder.py:own"
ROWS = [(f"text {number}", "ab"[number % 2]) for number in range(60)]


def format_table(rows, header=("text", "label"), separator=",", end="\n") -> str:
  lines = [header, *rows] if header else rows
  return "".join(separator.join(map(str, line)) + end for line in lines)


def format_json_lines(labels, key="label") -> str:
  """Return a JSON line with a text for each label."""
  rows = [{"text": f"text {number}", key: label} for number, label in enumerate(labels)]
  return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def complete_recipe(tmp_path):
  """Return a function that completes a recipe from a table; it returns (config, notes)."""

  def write_and_complete(name: str, content: str | bytes, *changes: str):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    config = recipes.load(RECIPE, [f"task.source={path}", *changes])
    return open_values.complete(config)

  return write_and_complete


@pytest.mark.parametrize(
  "name, content",
  [
    ("plain.csv", format_table(ROWS)),
    ("mark.csv", b"\xef\xbb\xbf" + format_table(ROWS).encode()),
    ("windows.csv", format_table(ROWS, end="\r\n")),
    ("semicolons.csv", format_table(ROWS, separator=";")),
    ("blank_lines.csv", "\n\n" + format_table(ROWS)),
    ("tabs.csv", format_table(ROWS, separator="\t")),
    ("tabs.tsv", format_table(ROWS, separator="\t")),
    (
      "quoted.csv",
      format_table(
        [(f'"a ""quoted"", text;\nof two lines {text}"', label) for text, label in ROWS]
      ),
    ),
    ("names.csv", format_table(ROWS, header=("Review", "Sentiment"))),
    (
      "more_columns.csv",
      format_table(
        [(n, *row, "x") for n, row in enumerate(ROWS)], header=("id", "text", "label", "note")
      ),
    ),
    ("one_known.csv", format_table(ROWS, header=("blurb", "label"))),
    ("lines.jsonl", format_json_lines([label for _, label in ROWS], "class")),
    ("lines.json", format_json_lines([label for _, label in ROWS])),
    ("array.json", json.dumps([{"sentence": text, "category": label} for text, label in ROWS])),
  ],
)
def test_common_tables_need_only_their_path(name, content, complete_recipe):
  config, notes = complete_recipe(name, content)
  assert list(config.task.labels) == ["a", "b"]
  assert config.task.source.startswith("held_out:")
  examples = int(notes[2].split()[0])
  assert config.total_steps == -(-3 * examples // 32)
  assert config.eval_every == config.checkpoint.every == 1
  assert "no split 'validation'" in notes[1]
  assert "held out of train" in notes[1]


def test_the_same_rows_are_held_out_each_time_even_of_few(complete_recipe):
  first = complete_recipe("plain.csv", format_table(ROWS))
  assert complete_recipe("plain.csv", format_table(ROWS))[0].to_dict() == first[0].to_dict()
  config, notes = complete_recipe("few.csv", format_table(ROWS[:5]))
  assert config.total_steps == 1
  assert "0 of" not in notes[2]


@pytest.mark.parametrize(
  "labels, expected",
  [
    ([0, 1, 10, 2] * 9, ["0", "1", "2", "10"]),
    ([True, False] * 9, ["False", "True"]),
    ([1.0, 0.0] * 9, ["0.0", "1.0"]),
    ([0.5, 1.5, 2] * 9, None),
    (["very good", "so so"] * 9, ["so so", "very good"]),
    (["плохо", "好"] * 9, ["плохо", "好"]),
    (["b", None, "a", ""] * 9, ["a", "b"]),
    ([-1, 0, 1] * 9, ["-1", "0", "1"]),
    (
      [f"class {number}" for number in range(1000)] * 2,
      sorted(f"class {number}" for number in range(1000)),
    ),
  ],
)
def test_labels_are_read_from_the_table_in_natural_order(labels, expected, complete_recipe):
  config, notes = complete_recipe("lines.jsonl", format_json_lines(labels))
  if expected is None:
    assert config.model.head.labels == 1
    assert config.task.labels is None
    assert config.selection.metric == "eval/validation/pearson"
    assert "scores" not in config.evals.validation
    assert "a regression" in notes[2]
  else:
    assert list(config.task.labels) == expected
  assert any("an empty label" in note for note in notes) == (None in labels)


def test_tables_of_pairs_and_without_a_header_are_read(complete_recipe):
  pairs = format_table(
    [(text, f"{text} too", label) for text, label in ROWS],
    header=("premise", "hypothesis", "label"),
  )
  config, _ = complete_recipe("pairs.csv", pairs)
  assert config.task.text == "{premise}"
  assert config.task.pair == "{hypothesis}"
  for name, separator in (("bare.csv", ","), ("bare.tsv", "\t")):
    named = ("task.text={0}", "task.label_field=1")
    config, _ = complete_recipe(name, format_table(ROWS, header=None, separator=separator), *named)
    assert list(config.task.labels) == ["a", "b"]
    assert config.task.label_field == "1"


def test_directories_of_tables_and_of_texts_are_sources(complete_recipe, tmp_path):
  config, notes = complete_recipe("two/train.csv", format_table(ROWS))
  (tmp_path / "two" / "dev.csv").write_text(format_table(ROWS[:4]))
  files = tmp_path / "two"
  config, notes = open_values.complete(recipes.load(RECIPE, [f"task.source={files}"]))
  assert config.task.source == f"csv:train={files}/train.csv,validation={files}/dev.csv"
  assert "60 of train, 4 of validation" in notes[1]
  for name in ("cat", "dog"):
    (tmp_path / "texts" / name).mkdir(parents=True)
    for number in range(9):
      (tmp_path / "texts" / name / f"{number}.txt").write_text(f"{name} {number}")
  config, _ = open_values.complete(recipes.load(RECIPE, [f"task.source={tmp_path / 'texts'}"]))
  assert list(config.task.labels) == ["cat", "dog"]
  assert "text_folders:" in config.task.source


def test_all_problems_of_a_table_are_reported_together(complete_recipe, tmp_path):
  (tmp_path / "dev.csv").write_text(format_table([("x", "c"), ("y", "a"), ("z", "B")]))
  source = f"train={tmp_path}/train.csv,validation={tmp_path}/dev.csv"
  with refuses(
    "4 problems",
    "train.csv:63: found 3 comma-separated columns, expected 2",
    "one label in 2 spellings, 'a' (31 rows) and 'a ' (1 row)",
    "dev.csv:2: found the label 'c', expected one of the labels of train, a, a , b",
    "dev.csv:4: found the label 'B'",
  ):
    complete_recipe(
      "train.csv", format_table([*ROWS, ("x", "a ")]) + "1,2,3\n", f"task.source={source}"
    )


@pytest.mark.parametrize(
  "name, content, words",
  [
    (
      "bare.csv",
      format_table(ROWS, header=None),
      "columns 'text 0', 'a', no column for the label; name it with --config.task.",
    ),
    (
      "names.csv",
      format_table([(1, 2, 3)], header=("p", "q", "r")),
      "no column for the text; name it with --config.task.text=",
    ),
    (
      "one.csv",
      format_table([(text, "a") for text, _ in ROWS]),
      "found one label, 'a', in all rows of train, expected two or more",
    ),
    (
      "numbers.csv",
      format_table([(f"t{n}", ("1", "1.0", "2")[n % 3]) for n in range(30)]),
      "spellings, '1' (10 rows) and '1.0'",
    ),
    (
      "lists.jsonl",
      format_json_lines([["a", "b"]] * 20, "labels"),
      "in column 'labels', expected one label for each text",
    ),
    (
      "latin.csv",
      b"text,label\n" + "caf\xe9,a\n".encode("latin-1") * 9,
      "latin.csv:2: found byte 0xe9 that is not UTF-8",
    ),
    ("header.csv", "text,label\n", "found no row in train"),
    ("sheet.xlsx", b"PK", "not 'sheet.xlsx'; or write the form before it"),
    ("single.csv", format_table(ROWS[:1]), "too few different rows to hold some out"),
  ],
)
def test_bad_tables_are_refused(name, content, words, complete_recipe):
  with refuses(words):
    complete_recipe(name, content)


@pytest.mark.parametrize(
  "changes, words",
  [
    ([], ("config.task.source: found None, expected your table",)),
    (["task.source=gone"], ("nothing at 'gone'",)),
  ],
)
def test_missing_source_and_missing_file_are_refused(changes, words):
  with refuses(*words):
    open_values.complete(recipes.load(RECIPE, changes))


def test_values_set_by_the_user_are_not_replaced(complete_recipe):
  config, _ = complete_recipe(
    "plain.csv",
    format_table(ROWS),
    'task.labels=["b","a","c"]',
    "total_steps=50",
    "checkpoint.every=7",
  )
  assert list(config.task.labels) == ["b", "a", "c"]
  assert config.total_steps == 50
  assert config.eval_every == 5
  assert config.checkpoint.every == 7
  config, notes = complete_recipe("plain.csv", format_table(ROWS), "epochs=32")
  assert config.total_steps == int(notes[2].split()[0])
  with refuses("config.total_steps: found None", "config.epochs=2", "not for 'span_corruption'"):
    open_values.complete(recipes.load("configs/t5/base.py", ["epochs=2"]))


def test_recipe_resolves_without_its_table():
  plan = resolve(recipes.load(RECIPE))
  assert plan.total_steps == 1000
  assert plan.eval_every == 100
  assert plan.checkpoint.every == 100

"""Hostile names and texts stay text in pages: they make no element, attribute or script."""

import html.parser
import json
import re

import pytest

from t5x_like.benchmarks import tables
from t5x_like.report import charts
from t5x_like.report.page import write_report
from t5x_like.saved_model.workdir import IDENTITY_FILE
from t5x_like.training import workdir as workdirs
from tools import inspect_data

HOSTILE = [
  '"><script>alert(1)</script>',
  "'><img src=x onerror=alert(1)>",
  '" onload="alert(1)" x="',
  "</svg></figure><svg onload=alert(1)>",
  "a & b &lt; <!-- c --> ]]>",
  "{{ 997 * 991 }}{% if x %}",  # of a template
]
# The attributes and elements that pages may have.
ATTRIBUTES = set(
  "class src alt colspan lang charset name content id style transform d role aria-label viewbox "
  "xmlns xmlns:xlink version xlink:href clip-path x y width height title clippathunits rel "
  "type href".split()
)
ELEMENTS = set(
  "html head meta title style body main header h1 h2 h3 small p section div figure figcaption "
  "table thead tbody tr th td code article span dl dt dd img svg defs g path text use clippath "
  "rect b wbr nav a details summary".split()
)


class Page(html.parser.HTMLParser):
  """The elements, attributes, labels and texts of a parsed page.

  A text goes on after a <wbr>, where a line may break.
  """

  def __init__(self):
    super().__init__()
    self.elements = set()
    self.attributes = set()
    self.labels = []
    self.texts = []
    self.is_after_break = False

  def handle_starttag(self, tag, attrs):
    self.elements.add(tag)
    self.is_after_break = tag == "wbr"
    self.attributes |= {name for name, _ in attrs}
    self.labels += [value for name, value in attrs if name in ("aria-label", "alt")]

  def handle_data(self, data):
    if self.is_after_break and self.texts:
      self.texts[-1] += data
      self.is_after_break = False
    else:
      self.texts.append(data)

  def handle_endtag(self, tag):
    self.is_after_break = False


def parse(source: str) -> Page:
  """Parse a page, and check that it has only known elements and attributes."""
  page = Page()
  page.feed(source)
  page.close()
  assert page.elements <= ELEMENTS, page.elements - ELEMENTS
  assert page.attributes <= ATTRIBUTES, page.attributes - ATTRIBUTES
  product = str(997 * 991)  # appears if the page was rendered from `HOSTILE` as a template
  assert not [text for text in page.texts if product in text]
  return page


@pytest.mark.parametrize("value", HOSTILE)
def test_the_report_of_a_run_escapes_texts(tmp_path, value):
  name = value.replace("/", "_")
  run = tmp_path / name
  (run / "samples").mkdir(parents=True)
  rows = [
    {"step": s, "train/loss": 1.0 / s, f"eval/{name}/loss": 2.0, f"eval/{name}/accuracy": 0.5}
    for s in (1, 2)
  ]
  (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  config = {"model": {"name": value}, "task": {"name": value, value: value}}
  for file in ("config.json", "environment.json"):
    (run / file).write_text(json.dumps(config))
  sample = {
    "step": 2,
    "task": value,
    "input": f"<extra_id_0>{value}",
    "target": value,
    "prediction": value,
  }
  (run / "samples" / "000000002.jsonl").write_text(json.dumps(sample) + "\n")
  row = {
    "task": value,
    "metric": value,
    "first": 1.0,
    "second": 2.0,
    "difference": 1.0,
    "low": 0.5,
    "high": 1.5,
  }
  comparison = {"names": [value, value], "rows": [row]}
  (run / "suites" / "glue").mkdir(parents=True)
  (run / "suites" / "glue" / "results.json").write_text(json.dumps({"compared": comparison}))
  page = parse(write_report(run).read_text())
  assert value in page.texts
  assert name in page.texts


def write_evaluated_run(run, evaluator: str, class_name: str) -> None:
  """Write a workdir with the predictions of a classifier with the classes `class_name` and b."""
  rows = []
  for n in range(1, 25):
    rows.append({"input": "a " * n, "target": class_name if n % 2 else "b", "prediction": "b"})
  workdirs.write_lines(run / "predictions", f"{evaluator}.jsonl", rows)
  config = {
    "evals": {evaluator: {"name": "classification", "scores": ["accuracy"]}},
    "task": {"labels": [class_name, "b"]},
  }
  workdirs.write_json(run, IDENTITY_FILE, config)
  metrics = {"step": 1, f"eval/{evaluator}/accuracy": 50.0}
  (run / "metrics.jsonl").write_text(json.dumps(metrics) + "\n")


@pytest.mark.parametrize("value", HOSTILE)
def test_the_results_of_a_suite_escape_texts(tmp_path, value):
  name = value.replace("/", "_")
  metrics = {f"{name}/accuracy": 50.0}
  runs = []
  for seed in range(2):
    run = tmp_path / str(seed)
    write_evaluated_run(run, name, value)
    runs.append({"workdir": str(run), "rate": None, "score": 50.0, "metrics": metrics})
  result = {
    "counted": list(metrics),
    "runs": runs,
    "metrics": metrics,
    "rate": None,
    "score": 50.0,
    "best": 50.0,
    "spread": 0.0,
  }
  results = {
    "suite": value,
    "workdir": value,
    "from_scratch": False,
    "seeds": 2,
    "tasks": {value: result},
    "missing": {value + "2": value},
    "mean": 50.0,
    "average": None,
    "versions": {value: value},
  }
  tables.write_results(tmp_path / "out", results)
  page = parse((tmp_path / "out" / "results.html").read_text())
  assert value in page.texts
  assert f"{value}: targets and predictions" in page.labels


@pytest.mark.parametrize("value", HOSTILE)
def test_charts_and_pages_of_data_escape_texts(value):
  chart = charts.bars({value: 1.0, "b": 2.0}, value)
  assert parse(f"<figure>{chart}</figure>").labels == [value]
  assert not re.search(r"<script|<img", chart)
  cell = inspect_data.Cell(
    id=1, piece=value, special=False, padding=False, weight=None, segment=None
  )
  feature = inspect_data.DisplayedFeature(
    name=value, shape=value, cells=[cell], padding=0, values=value
  )
  page = parse(inspect_data.to_html([[feature]], value, value))
  assert value in page.texts

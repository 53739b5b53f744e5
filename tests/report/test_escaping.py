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
  "{{ 997 * 991 }}{% if x %}",
]
ATTRIBUTES = set(
  "class src alt colspan lang charset name content id style transform d role aria-label viewbox "
  "xmlns xmlns:xlink version xlink:href clip-path x y width height title clippathunits rel "
  "type".split()
)
ELEMENTS = set(
  "html head meta title style body main header h1 h2 h3 small p section div figure figcaption "
  "table thead tbody tr th td code article span dl dt dd img svg defs g path text use clippath "
  "rect b".split()
)


class Page(html.parser.HTMLParser):
  """Parse a page as a browser does: its elements, attributes and texts."""

  def __init__(self, page: str):
    super().__init__()
    self.elements = set()
    self.attributes = set()
    self.labels = []
    self.texts = []
    self.feed(page)
    self.close()
    assert self.elements <= ELEMENTS, self.elements - ELEMENTS
    assert self.attributes <= ATTRIBUTES, self.attributes - ATTRIBUTES
    assert not [text for text in self.texts if "988027" in text]

  def handle_starttag(self, tag, attrs):
    self.elements.add(tag)
    self.attributes |= {name for name, _ in attrs}
    self.labels += [value for name, value in attrs if name in ("aria-label", "alt")]

  def handle_data(self, data):
    self.texts.append(data)


@pytest.mark.parametrize("value", HOSTILE)
def test_the_report_of_a_run_escapes_texts(tmp_path, value):
  run = tmp_path / value.replace("/", "_")
  (run / "samples").mkdir(parents=True)
  name = value.replace("/", "_")
  rows = [
    {"step": s, "train/loss": 1.0 / s, f"eval/{name}/loss": 2.0, f"eval/{name}/accuracy": 0.5}
    for s in (1, 2)
  ]
  (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  for file in ("config.json", "environment.json"):
    (run / file).write_text(
      json.dumps({"model": {"name": value}, "task": {"name": value, value: value}})
    )
  sample = {
    "step": 2,
    "task": value,
    "input": f"<extra_id_0>{value}",
    "target": value,
    "prediction": value,
  }
  (run / "samples" / "000000002.jsonl").write_text(json.dumps(sample) + "\n")
  compared = {
    "names": [value, value],
    "rows": [{"task": value, "metric": value, "first": 1.0, "second": 2.0}],
  }
  compared["rows"][0] |= {"difference": 1.0, "low": 0.5, "high": 1.5}
  (run / "suites" / "glue").mkdir(parents=True)
  (run / "suites" / "glue" / "results.json").write_text(json.dumps({"compared": compared}))
  page = Page(write_report(run).read_text())
  assert value in page.texts
  assert name in page.texts


@pytest.mark.parametrize("value", HOSTILE)
def test_the_results_of_a_suite_escape_texts(tmp_path, value):
  rows = [
    {"input": "a " * n, "target": value if n % 2 else "b", "prediction": "b"} for n in range(1, 25)
  ]
  runs = []
  label = value.replace("/", "_")
  for seed in range(2):
    run = tmp_path / str(seed)
    workdirs.write_lines(run / "predictions", f"{label}.jsonl", rows)
    saved = {
      "evals": {label: {"name": "classification", "scores": ["accuracy"]}},
      "task": {"labels": [value, "b"]},
    }
    workdirs.write_json(run, IDENTITY_FILE, saved)
    (run / "metrics.jsonl").write_text(
      json.dumps({"step": 1, f"eval/{label}/accuracy": 50.0}) + "\n"
    )
    runs.append(
      {"workdir": str(run), "rate": None, "score": 50.0, "metrics": {f"{label}/accuracy": 50.0}}
    )
  result = {
    "counted": [f"{label}/accuracy"],
    "runs": runs,
    "metrics": runs[0]["metrics"],
    "rate": None,
  }
  result |= {"score": 50.0, "best": 50.0, "spread": 0.0}
  results = {
    "suite": value,
    "workdir": value,
    "from_scratch": False,
    "seeds": 2,
    "tasks": {value: result},
  }
  results |= {
    "missing": {value + "2": value},
    "mean": 50.0,
    "average": None,
    "versions": {value: value},
  }
  tables.write_results(tmp_path / "out", results)
  page = Page((tmp_path / "out" / "results.html").read_text())
  assert value in page.texts
  assert f"{value}: targets and predictions" in page.labels


@pytest.mark.parametrize("value", HOSTILE)
def test_charts_and_pages_of_data_escape_texts(value):
  drawn = charts.bars({value: 1.0, "b": 2.0}, value)
  assert Page(f"<figure>{drawn}</figure>").labels == [value]
  assert not re.search(r"<script|<img", drawn)
  feature = inspect_data.DisplayedFeature(
    value, value, [inspect_data.Cell(1, value, False, False, None, None)], 0, value
  )
  page = Page(inspect_data.to_html([[feature]], value, value))
  assert value in page.texts

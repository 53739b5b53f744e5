"""The report is one self-contained page, a pure function of the workdir, and shows what is in it."""

import json
import re
import xml.etree.ElementTree as ElementTree

import pytest

from t5x_like.errors import UserError
from t5x_like.report.page import write_report
from t5x_like.runtime.process import environment


def fill(workdir):
  (workdir / "samples").mkdir(parents=True)
  rows = [
    {
      "step": s,
      "train/loss": 9 - s / 20,
      "train/learning_rate": 0.01,
      "train/gradient_norm": 1.0 + s % 3,
      "train/tokens_per_second": 20000.0,
      "train/mfu": 0.45,
    }
    for s in range(1, 101)
  ]
  rows[40]["train/loss"] = None
  rows.append({"step": 100, "eval/books/loss": 4.25, "eval/books/unigram_entropy": 6.5, "eval/books/accuracy": 0.4})
  (workdir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  config = {"model": {"name": "t5"}, "task": {"name": "<script>alert(1)</script>"}, "total_steps": 200}
  (workdir / "config.json").write_text(json.dumps(config))
  (workdir / "environment.json").write_text(json.dumps(environment()))
  samples = [
    {"step": 50, "task": "books", "input": "an old one", "target": "a", "prediction": "a"},
    {"step": 100, "task": "books", "input": "Thank <extra_id_0> & me <b>", "target": "you", "prediction": "you"},
  ]
  (workdir / "samples" / "books.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))


def test_shows_everything_in_one_self_contained_page(tmp_path):
  fill(tmp_path / "run")
  path = write_report(tmp_path / "run")
  page = path.read_text()
  assert path == tmp_path / "run" / "report.html"
  for text in ("of 200", "4.250", "unigram entropy 6.500", "45.0%", "20,000", "1 values were not finite"):
    assert text in page, text
  assert 'Thank <span class="sentinel">&lt;extra_id_0&gt;</span> &amp; me &lt;b&gt;' in page
  assert "an old one" not in page and "exact match" in page
  assert "<script" not in page and environment()["code_version"] in page and environment()["jax"] in page
  outside = re.search(r"""(src|href)=["'](?!#)|url\((?!["']?#)|@import|<link""", page)
  assert not outside, "nothing is loaded from elsewhere"
  pictures = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]
  assert len(pictures) == 5
  ids = [e.get("id") for picture in pictures for e in picture.iter() if e.get("id")]
  assert len(ids) == len(set(ids)), "ids are unique within the page"


def test_is_a_pure_function_of_the_files(tmp_path):
  fill(tmp_path / "run")
  first = write_report(tmp_path / "run").read_bytes()
  assert write_report(tmp_path / "run").read_bytes() == first
  assert sorted(p.name for p in (tmp_path / "run").iterdir() if "tmp" in p.name) == []


def test_an_empty_workdir_has_a_report_too(tmp_path):
  page = write_report(tmp_path).read_text()
  assert "metrics.jsonl is missing or empty" in page and "config.json is missing" in page and "<svg" not in page


def test_a_long_run_makes_a_small_page(tmp_path):
  lines = (f'{{"step": {s}, "train/loss": {2 + (s * 7919 % 1000) / 1000}}}\n' for s in range(1, 100_001))
  (tmp_path / "metrics.jsonl").write_text("".join(lines))
  assert write_report(tmp_path).stat().st_size < 400_000


@pytest.mark.parametrize(
  "name, content, message",
  [
    ("config.json", b"{", "config.json: not a JSON object"),
    ("environment.json", b"[1]", "environment.json: not a JSON object: found list"),
    ("samples/books.jsonl", b'{"step": 1, "input": "x"}\n', "books.jsonl:1: expected an object with input, target"),
  ],
)
def test_corrupt_files_are_named(tmp_path, name, content, message):
  (tmp_path / "samples").mkdir()
  (tmp_path / name).write_bytes(content)
  with pytest.raises(UserError, match=message) as refused:
    write_report(tmp_path)
  assert "\n" not in str(refused.value)

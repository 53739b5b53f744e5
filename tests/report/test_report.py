"""The report is one self-contained page that depends on the files of its workdir alone."""

import json
import re
import shutil
import time
import xml.etree.ElementTree as ElementTree

import pytest

import t5x_like as t5x
from t5x_like.errors import UserError
from t5x_like.files.paths import as_path
from t5x_like.report import page as report_page
from t5x_like.report import run_report
from t5x_like.report.__main__ import main
from t5x_like.report.charts import Metrics, names, series
from t5x_like.report.page import write_report
from t5x_like.report.readable import next_steps, sample, verdict
from t5x_like.runtime.process import describe_environment


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
  rows.append(
    {
      "step": 100,
      "eval/books/loss": 4.25,
      "eval/books/unigram_entropy": 6.5,
      "eval/books/accuracy": 0.4,
    }
  )
  (workdir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  config = {
    "model": {"name": "t5"},
    "task": {"name": "<script>alert(1)</script>"},
    "total_steps": 200,
  }
  (workdir / "config.json").write_text(json.dumps(config))
  (workdir / "environment.json").write_text(json.dumps(describe_environment()))
  samples = [
    {"step": 50, "task": "books", "input": "an old one", "target": "a", "prediction": "a"},
    {
      "step": 100,
      "task": "gaps",
      "input": "the enco<extra_id_0> name of <extra_id_1>Type & <extra_id_2>",
      "target": "<extra_id_0> ding <extra_id_1> Open <extra_id_2> co",
      "prediction": "<extra_id_0> ding <extra_id_1> the",
      "original": "the encoding name of OpenType & co",
      "filled": "the encoding name of theType & <extra_id_2>",
    },
    {
      "step": 100,
      "task": "books",
      "input": "Thank <extra_id_0> & me <b>",
      "target": "you",
      "prediction": "you",
    },
  ]
  (workdir / "samples" / "books.jsonl").write_text(
    "".join(json.dumps(sample) + "\n" for sample in samples)
  )


def test_one_self_contained_page_shows_everything(tmp_path):
  fill(tmp_path / "run")
  path = write_report(tmp_path / "run")
  page = path.read_text()
  assert path == tmp_path / "run" / "report.html"
  for text in (
    "of 200",
    "4.250",
    "unigram entropy 6.500",
    "45.0%",
    "20,000",
    "1 values were not finite",
  ):
    assert text in page, text
  assert 'Thank <span class="sentinel">&lt;extra_id_0&gt;</span> &amp; me &lt;b&gt;' in page
  assert "an old one" not in page
  assert "exact match" in page
  assert "<script" not in page
  assert describe_environment()["code_version"] in page
  assert describe_environment()["jax"] in page
  outside = re.search(r"""(src|href)=["'](?!#)|url\((?!["']?#)|@import|<link""", page)
  assert not outside, "nothing is loaded from elsewhere"
  pictures = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]
  assert len(pictures) == 6, "the loss has two forms"
  ids = [e.get("id") for picture in pictures for e in picture.iter() if e.get("id")]
  assert len(ids) == len(set(ids)), "ids are unique within the page"


def test_the_loss_has_a_form_for_desktops_and_one_for_phones(tmp_path):
  fill(tmp_path / "run")
  page = write_report(tmp_path / "run").read_text()
  for form in ("on-desktop", "on-phone"):
    assert re.search(f'<div class="{form}"><svg [^>]*aria-label="loss"', page), form
  assert page.count('aria-label="loss"') == 2


def test_links_name_sections_of_the_page(tmp_path):
  fill(tmp_path / "run")
  page = write_report(tmp_path / "run").read_text()
  links = re.findall(r'<a href="#(\w+)">', page)
  assert links == ["curves", "evaluation", "samples", "next", "config", "environment"]
  for link in links:
    assert page.count(f'<h2 id="{link}">') == 1, link


def test_samples_after_the_fourth_are_folded(tmp_path):
  fill(tmp_path / "run")
  sample_lines = [
    json.dumps({"step": 9, "input": f"question {n}", "target": "a", "prediction": "b"})
    for n in range(6)
  ]
  for file in (tmp_path / "run" / "samples").iterdir():
    file.unlink()
  (tmp_path / "run" / "samples" / "qa.jsonl").write_text("\n".join(sample_lines))
  page = write_report(tmp_path / "run").read_text()
  shown, folded = page.split('<details class="more"><summary>2 more</summary>')
  assert [n for n in range(6) if f"question {n}" in shown] == [0, 1, 2, 3]
  assert [n for n in range(6) if f"question {n}" in folded] == [4, 5]


def test_a_comparison_groups_metrics_by_task_and_keys_by_section(tmp_path):
  for name, width in (("a", 8), ("b", 9)):
    fill(tmp_path / name)
    config = json.loads((tmp_path / name / "config.json").read_text())
    config |= {"seed": width, "model": {"name": "t5", "width": width}}
    (tmp_path / name / "config.json").write_text(json.dumps(config))
  output = tmp_path / "both.html"
  assert main([str(tmp_path / "a"), str(tmp_path / "b"), f"--output={output}"]) == 0
  page = output.read_text()
  groups = re.findall(r'<tr class="group"><th colspan="3">(.*?)</th>', page)
  assert groups == ["books", "model"]
  rows = re.findall(r'<tr><td>(.*?)</td><td class="number">8</td><td class="number">9</td>', page)
  assert rows == ["seed", "width"]


def test_long_names_break_only_after_underscores(tmp_path):
  fill(tmp_path / "run")
  row = {"step": 100, "eval/docstrings_span_corruption/loss": 4.0}
  with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
    file.write(json.dumps(row) + "\n")
  page = write_report(tmp_path / "run").read_text()
  name = "docstrings_<wbr>span_<wbr>corruption"
  assert f"<h3>{name} " in page
  assert f'<div class="label">{name}: best 4.000</div>' in page
  assert report_page.breakable("<a_b> __c") == "&lt;a_<wbr>b&gt; __<wbr>c"


def test_metrics_of_a_task_are_one_table_with_counts_at_its_end(tmp_path):
  rows = [
    {"step": 1, "eval/b/seconds": 2.0, "eval/b/loss": 3.0, "eval/a/loss": 5.0},
    {"step": 2, "eval/b/seconds": 2.0, "eval/b/loss": 2.5, "eval/b/f1": 0.5},
  ]
  (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  page = write_report(tmp_path).read_text()
  tables = re.findall('<h3>(.*?)<.*?<table class="evals">(.*?)</table>', page, re.DOTALL)
  assert [task.strip() for task, _ in tables] == ["a", "b"]
  assert [re.findall("<tr><td>(.*?)</td>", table) for _, table in tables] == [
    ["loss"],
    ["loss", "f1", "seconds"],
  ]
  assert ["Lowest" in table for _, table in tables] == [False, True]


def test_keys_of_a_config_are_in_its_sections(tmp_path):
  fill(tmp_path / "run")
  page = write_report(tmp_path / "run").read_text()
  sections = re.findall(r"<details><summary>(.*?) .*?</details>", page, re.DOTALL)
  assert sections == ["run", "model", "task"]
  assert '<summary>model <span class="label">t5</span>' in page
  assert "<details open" not in page


def commands(workdir, **changes):
  config = {"objective.name": "decoder", "features.decoder_target_tokens": "[9]"} | changes
  steps = next_steps(workdir, config, 60, 60, has_export=True)
  return {step["words"][2]: step["words"][3:] for step in steps}


def test_commands_that_go_on_suit_the_run_and_name_its_workdir():
  programs = commands("runs/my gpt/")
  assert list(programs) == [
    "t5x_like.evaluate",
    "t5x_like.chat",
    "t5x_like.predict",
    "t5x_like.train",
    "tools.convert_hf",
  ]
  assert programs["t5x_like.chat"] == ["'--workdir=runs/my gpt'"]
  assert "'--config.init.workdir=runs/my gpt'" in programs["t5x_like.train"]
  assert "'--input=runs/my gpt'" in programs["tools.convert_hf"]
  images = {"features.image": "[8, 8, 3]", "objective.name": "classification"}
  assert "t5x_like.chat" not in commands("a", **images)
  assert "--input=photos/" in commands("a", **images)["t5x_like.predict"]
  assert "t5x_like.predict" not in commands("a", **{"objective.name": "reward"})
  assert next_steps("a", {}, 60, 60) == []
  (first, *_) = next_steps("a", {"model.name": "t5"}, 30, 60)
  assert first["words"][2:] == ["t5x_like.train", "--config=RECIPE", "--workdir=a"]
  assert "step 60" in first["label"]


def test_commands_repeat_the_flags_of_the_start():
  config = {"model.name": "t5"}
  flags = ["--config=configs/t5/base.py:tiny", "--config.init.workdir=old", "--config.seed=7"]
  (first, *_) = next_steps("a", config, 30, 60, flags=flags)
  assert first["words"][3:] == [*flags, "--workdir=a"]
  *_, last = next_steps("a", config, 60, 60, flags=flags)
  init = "--config.init.workdir=a"
  assert last["words"][3:] == [flags[0], flags[2], "--workdir=a-next", init]


def test_the_recipe_of_a_run_is_in_its_page(trained, tmp_path):
  """The command that the page shows continues the run, with the flags of the last start."""
  run = shutil.copytree(trained, tmp_path / "run")
  assert "--config=tests/recipes/nano.py" in plain(write_report(run))
  rows = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
  rows[0]["flags"] += ["--evil", 7]
  (run / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  page = plain(write_report(run))
  assert "--config.total_steps=4" in page
  assert "--evil" not in page


def test_export_is_offered_where_the_model_has_a_form(trained, tmp_path):
  run = shutil.copytree(trained, tmp_path / "run")
  assert "tools.convert_hf" in plain(write_report(run))
  config = json.loads((run / "config.json").read_text())
  config["model"]["design"] = {"position": "sinusoidal"}
  (run / "config.json").write_text(json.dumps(config))
  assert "tools.convert_hf" not in plain(write_report(run))


def test_the_page_names_the_address_of_a_workdir(tmp_path):
  fill(tmp_path / "run")
  assert f"--workdir={tmp_path}/run" in plain(write_report(tmp_path / "run"))
  page = plain(write_report(tmp_path / "run", "gs://bucket/run"))
  assert "--workdir=gs://bucket/run" in page
  assert str(tmp_path) not in page


def plain(path):
  return path.read_text().replace("<wbr>", "")


def test_filled_text_is_readable_and_marks_wrong_words(tmp_path):
  fill(tmp_path / "run")
  page = write_report(tmp_path / "run").read_text()
  gap = '<span class="sentinel">____</span>'
  assert f"the {gap} name of {gap} &amp; {gap}</dd>" in page
  html = (
    'the <span class="good">encoding</span> name of <span class="bad">theType</span> &amp; '
    '<span class="bad">____'
  )
  assert html in page
  assert (
    'name of <span class="sentinel">OpenType</span> &amp; <span class="sentinel">co</span></dd>'
  ) in page
  assert "1 of 3 words as in the original" in page
  assert "enco&lt;extra_id" not in page


def test_masks_are_gaps_and_continuations_are_not_judged():
  texts = {
    "target": "",
    "prediction": "",
    "input": "the [MASK] name of <mask>ing",
    "original": "the old name of going",
  }
  html = sample(texts | {"filled": "the old name of being"})
  assert dict(html["rows"])["with gaps"][2] == ("____", "sentinel")
  assert html["status"].startswith("1 of 2 words")
  html = sample(
    {"input": "He went", "target": " home.", "prediction": " away,\nand", "shows": "more"}
  )
  assert html["good"] is None
  assert html["status"] == "continued after 2 words"
  assert dict(html["rows"])["model"] == [("He went", "sentinel"), (" away,\nand", "")]


def test_the_page_begins_with_a_verdict_and_facts(tmp_path):
  fill(tmp_path / "run")
  start = {"time": "2026-03-01T10:00:00+00:00", "step": 0, "environment": {}}
  again = {"time": "2026-03-02T11:30:00+00:00", "step": 50, "environment": {}}
  rows = "".join(json.dumps(row) + "\n" for row in (start, again))
  (tmp_path / "run" / "history.jsonl").write_text(rows)
  (tmp_path / "run" / "sharding.txt").write_text(
    "…\nmesh: one device; 74,368 parameters, 0.3 MiB of them\n"
  )
  page = write_report(tmp_path / "run").read_text()
  verdict = (
    "At step 100 of 200. The validation loss is 4.250, 2.250 below the unigram entropy (6.500)"
  )
  for phrase in (
    verdict,
    "1 March 2026, 10:00 UTC",
    "2, the last on 2 March 2026, 11:30 UTC",
    "74.4 k",
    "1 x cpu",
  ):
    assert phrase in page.replace("8 x cpu", "1 x cpu"), phrase


@pytest.mark.parametrize(
  "losses, message",
  [
    ([5.0, 4.0, 3.0], "It was still falling."),
    ([5.0, 3.0, 4.0], "It was lowest at step 200 (3.000) and has risen since."),
    (
      [5.0, 5.0, 5.0],
      "1.000 above the unigram entropy (4.000): the model has learned nothing from its input yet.",
    ),
  ],
)
def test_the_verdict_follows_from_the_metrics(losses, message):
  rows = [
    {"step": 100 * n, "eval/a/loss": x, "eval/a/unigram_entropy": 4.0}
    for n, x in enumerate(losses, 1)
  ]
  assert verdict(rows, 300).startswith("Finished all 300 steps.")
  assert verdict(rows, 300).endswith(message)
  assert verdict([], 300) == ""
  assert "went from 2.000 to 1.000" in verdict(
    [{"step": 1, "train/loss": 2.0}, {"step": 2, "train/loss": 1.0}], None
  )


def test_runs_are_compared_on_one_page(tmp_path, capsys):
  for name in ("a", "b"):
    fill(tmp_path / name)
  config = {
    "model": {"name": "t5"},
    "task": {"name": "<script>alert(1)</script>"},
    "total_steps": 400,
  }
  (tmp_path / "b" / "config.json").write_text(json.dumps(config))
  output = tmp_path / "both.html"
  assert main([str(tmp_path / "a"), str(tmp_path / "b"), f"--output={output}"]) == 0
  page = output.read_text()
  for phrase in (
    "books/loss",
    "4.25",
    "total_steps",
    ">200<",
    ">400<",
    "<b>a</b>",
    "<b>b</b>",
    "train/loss",
  ):
    assert phrase in page, phrase
  assert "<script" not in page
  assert "model.name" not in page
  assert main([str(tmp_path / "a")]) == 0
  assert (tmp_path / "a" / "report.html").is_file()
  assert main([str(tmp_path / "a"), str(tmp_path)]) == 2
  assert "holds no run" in capsys.readouterr().err


def test_an_index_of_metrics_changes_no_series():
  rows = [
    {"step": 2, "a": 1.0},
    {"step": 1, "a": 2, "b": None},
    {"step": 2, "a": 3.0, "c": float("inf")},
  ]
  rows += [{"step": 3, "a": "text"}]
  indexed = Metrics(rows)
  assert names(indexed) == names(rows) == ["step", "a", "b", "c"]
  for name in ("a", "b", "c", "none"):
    for indexed_points, unindexed_points in zip(series(indexed, name), series(rows, name)):
      assert indexed_points.tolist() == unindexed_points.tolist()
      assert indexed_points.dtype == unindexed_points.dtype
  assert [part.tolist() for part in series(rows, "a")] == [[1, 2], [2.0, 3.0]]


def test_the_page_depends_only_on_the_files(tmp_path):
  fill(tmp_path / "run")
  first = write_report(tmp_path / "run").read_bytes()
  assert write_report(tmp_path / "run").read_bytes() == first
  assert sorted(p.name for p in (tmp_path / "run").iterdir() if "tmp" in p.name) == []


def test_an_empty_workdir_has_a_report_too(tmp_path):
  page = write_report(tmp_path).read_text()
  assert "metrics.jsonl is missing or empty" in page
  assert "config.json is missing" in page
  assert "<svg" not in page


def test_long_texts_are_compared_quickly_and_cut():
  tokens = [f"word{number * 7919 % 50}" for number in range(20_000)]
  long = " ".join(tokens)
  begin = time.monotonic()
  for text in (long, "a" * 1_000_000, "<extra_id_0>" * 100_000):
    texts = {"input": text, "target": "", "prediction": "", "original": text, "filled": text}
    html = sample(texts)
    assert all(len(part) < 20_000 for _, parts in html["rows"] for part, _ in parts)
  assert time.monotonic() - begin < 5


def test_words_are_marked_by_a_longest_common_subsequence():
  texts = {
    "input": "a <extra_id_0> d",
    "target": "",
    "prediction": "",
    "original": "a b c d",
    "filled": "a c b d",
  }
  html = sample(texts)
  assert html["status"] == "1 of 2 words as in the original"
  assert not html["good"]


def test_a_failing_or_late_page_is_only_a_warning(tmp_path, capsys, monkeypatch):
  (tmp_path / "config.json").write_text("{")
  assert run_report.write_page(tmp_path) is None
  out = capsys.readouterr().out
  assert out.startswith(
    f"warning: {tmp_path}/report.html: not written: UserError: {tmp_path}/config.json: not a JSON"
  )
  monkeypatch.setattr(run_report, "PAGE_SECONDS", 1)
  monkeypatch.setattr(report_page, "write_report", lambda workdir, address: time.sleep(60))
  beats = []
  assert run_report.write_page(tmp_path, "gs://bucket/run", beats.append) is None
  expected = "warning: gs://bucket/run/report.html: not written: not finished within 1 s"
  assert capsys.readouterr().out.startswith(expected)
  assert beats


def test_no_page_shows_secrets(tmp_path, capsys):
  trackers = {"mlflow": {"uri": "http://me:LEAK@host", "api_token": "LEAK"}}
  config = {"trackers": trackers, "task": {"store": "s3://LEAK:LEAK@bucket/x", "key": "image"}}
  for name in ("a", "b"):
    fill(tmp_path / name)
    config["task"]["length"] = name
    (tmp_path / name / "config.json").write_text(json.dumps(config))
  page = write_report(tmp_path / "a").read_text()
  assert "LEAK" not in page
  assert "http://***@host" in page
  assert ">image<" in page.replace(" ", "").replace("\n", "")
  assert main([str(tmp_path / "a"), str(tmp_path / "b"), f"--output={tmp_path / 'both.html'}"]) == 0
  assert "LEAK" not in (tmp_path / "both.html").read_text()


def test_a_long_run_makes_a_small_page(tmp_path):
  lines = (
    f'{{"step": {s}, "train/loss": {2 + (s * 7919 % 1000) / 1000}}}\n' for s in range(1, 100_001)
  )
  (tmp_path / "metrics.jsonl").write_text("".join(lines))
  assert write_report(tmp_path).stat().st_size < 400_000


@pytest.mark.parametrize(
  "name, content, message",
  [
    ("config.json", b"{", "config.json: not a JSON object"),
    ("environment.json", b"[1]", "environment.json: not a JSON object: found list"),
    (
      "samples/books.jsonl",
      b'{"step": 1, "input": "x"}\n',
      "books.jsonl:1: expected an object with input, target",
    ),
  ],
)
def test_corrupt_files_are_named(tmp_path, name, content, message):
  (tmp_path / "samples").mkdir()
  (tmp_path / name).write_bytes(content)
  with pytest.raises(UserError, match=message) as refused:
    write_report(tmp_path)
  assert "\n" not in str(refused.value)


def test_runs_at_addresses_are_compared_as_they_are_now(tmp_path, capsys):
  addresses = [f"memory://{tmp_path}/{name}" for name in "ab"]
  run = t5x.Run("tests/recipes/nano.py", addresses[0])
  assert run.metrics() == []
  assert main([*addresses]) == 2
  assert "/a: holds no run" in capsys.readouterr().err
  for address, loss in zip(addresses, (2.0, 3.0)):
    (as_path(address) / "metrics.jsonl").write_text(f'{{"step": 1, "train/loss": {loss}}}\n')
  assert run.metrics() == [{"step": 1, "train/loss": 2.0}]
  assert main([*addresses, f"--output={tmp_path / 'both.html'}"]) == 0
  assert (tmp_path / "both.html").is_file()
  assert main(addresses[:1]) == 2
  assert "a local copy" in capsys.readouterr().err

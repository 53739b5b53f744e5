"""`tools.ladder` fits laws of losses and rates to small runs, and predicts a larger one."""

import json
import types

import numpy as np
import pytest

from t5x_like import recipes
from t5x_like.errors import UserError
from t5x_like.training.resolve import resolve
from tools.ladder import __main__ as ladder
from tools.ladder import fitting, page, sizes

SIZES = (3e4, 1e5, 4e5, 1.6e6)


def test_a_fit_recovers_a_law_of_sizes_and_of_tokens():
  law = fitting.Law(2.0, 60.0, 0.35)
  fitted = fitting.fit([fitting.Point(N, 1.0, law(N, 1.0)) for N in SIZES])
  assert fitted(1e8, 1.0) == pytest.approx(law(1e8, 1.0), rel=1e-4)
  assert fitted.B == 0.0
  law = fitting.Law(1.7, 60.0, 0.35, 300.0, 0.4)
  points = [fitting.Point(N, D, law(N, D)) for N in SIZES for D in (1e5, 1e6, 1e7)]
  assert fitting.fit(points)(1e8, 1e8) == pytest.approx(law(1e8, 1e8), rel=1e-3)
  outlier = fitting.Point(points[3].N, points[3].D, points[3].loss * 1.5)
  robust = fitting.fit([*points[:3], outlier, *points[4:]])
  assert robust(1e8, 1e8) == pytest.approx(law(1e8, 1e8), rel=0.05)


def test_too_few_runs_are_refused():
  with pytest.raises(UserError, match="the fit has 2 sizes"):
    fitting.fit([fitting.Point(N, 1.0, 2.0) for N in (1e4, 1e5)] * 2)


def test_the_best_rate_is_interpolated_and_falls_by_a_power_law():
  rates = np.asarray([1e-3, 2e-3, 4e-3, 8e-3])
  losses = 2.0 + 0.1 * np.log(rates / 3e-3) ** 2
  assert fitting.best_rate(rates, losses) == (pytest.approx(3e-3), True)
  assert fitting.best_rate([1.0, 2.0, 4.0], [1.0, 2.0, np.inf]) == (1.0, False)
  factor, power = fitting.rate_law([1e4, 1e6], [1e-2, 1e-3])
  assert power == pytest.approx(-0.5)
  assert factor * 1e8**power == pytest.approx(1e-4)


def test_a_size_keeps_proportions_and_refuses_part_of_a_head():
  config = recipes.load("configs/llama/8b.py:debug")  # 256 wide, 4 heads
  resized = resolve(sizes.at_size(config, "128x2", "--sizes"), "cpu")
  expected = {"embed": 128, "heads": 2, "kv_heads": 1, "head_dim": 64, "mlp": 352, "layers": 2}
  mlp = 3 * 128 * 352
  attention = 2 * 128 * 128 + 2 * 128 * 64
  norms = 2 * 128
  for name, size in expected.items():
    assert getattr(resized.model.variant.dims, name) == size, name
  assert sizes.parameters(resized) == expected["layers"] * (mlp + attention + norms) + 128
  with pytest.raises(UserError, match="--sizes: found the width 100, expected a multiple of 64"):
    sizes.at_size(config, "100", "--sizes")
  with pytest.raises(UserError, match="--sizes=64,64: expected 3 or more different sizes"):
    sizes.parse_list("64,64", "--sizes", str, 3)


@pytest.fixture
def unresolved(monkeypatch):
  """Let any config be resolved, as a model of 1,000 parameters."""
  monkeypatch.setattr(sizes, "parameters", lambda config: 1000)
  monkeypatch.setattr("t5x_like.training.resolve.resolve", lambda config: config)


@pytest.mark.usefixtures("unresolved")
def test_a_size_that_diverged_at_every_rate_is_left_out(capsys):
  trials = [ladder.Trial("80", 80, 10, 0.0, 0.1, np.inf)]
  trials += [ladder.Trial(f"{n}", n, 10, 1.0, 0.1, 1.0 + 10 / n) for n in (10, 20, 40)]
  fake_ladder = types.SimpleNamespace(config_at=str)
  fits = ladder.fit_trials(trials)
  prediction = ladder.predict_size(fake_ladder, "1000", 10, *fits, trials)
  assert prediction.rate == 0.1
  assert prediction.D == 1.0
  assert prediction.loss == pytest.approx(1.01, rel=1e-2)
  assert "size 80: diverged at every rate, and is left out" in capsys.readouterr().out
  with pytest.raises(UserError, match="every size diverged"):
    ladder.predict_size(fake_ladder, "1000", 10, *fits, trials[:1])


@pytest.mark.usefixtures("unresolved")
def test_a_run_without_evaluation_is_refused(monkeypatch, tmp_path):
  monkeypatch.setattr("t5x_like.train.train_config", lambda *_: None)
  config = recipes.load("configs/llama/8b.py:debug")
  with pytest.raises(UserError, match="has no evaluation of step 2, whose loss is fitted"):
    ladder.Ladder(config, str(tmp_path), None, 1).trial("128x2", 2, 0.1)


def test_the_page_states_the_error_of_the_prediction():
  law = fitting.Law(2.0, 60.0, 0.35)
  trials = []
  for N in SIZES:
    for rate in (0.1, 0.2):
      loss = law(N, 1.0) + rate
      trials.append(ladder.Trial(str(int(N)), int(N), 100, 1e5, rate, loss))
  trials.append(ladder.Trial("big", 10**7, 100, 1e5, 0.4, float("inf")))
  prediction = ladder.Prediction(
    "big", 10**7, 100, 1e5, 0.1, 2.2, (2.1, 2.3), measured=2.0, best_rate=0.2
  )
  text = page.text(trials, law, prediction)
  assert "off by +10.00%" in text
  assert "0.50 times as high" in text
  assert "diverged" in text
  html = page.html("a recipe", trials, law, prediction)
  assert html.count("<svg") == 2
  assert "off by +10.00%" in html


@pytest.mark.more
@pytest.mark.runs
def test_a_ladder_predicts_measures_and_trains_nothing_twice(tmp_path, capsys, monkeypatch):
  flags = [
    "--config=configs/gpt/my_text.py",
    "--sizes=32x1,64x1,96x1",
    "--predict=128x1",
    "--steps=2",
    "--check=once",
  ]
  changes = {
    "task.store": "builtin",
    "task.length": 16,
    "model.vocab_size": "auto",
    "model.layers": "scan",
    "optimizer.name": "adamw",
    "tuning.name": "mup",
    "tuning.base": 32,
    "schedule.warmup_steps": 1,
    "evals": '{"loss": {"max_examples": 16}}',
    "peak_flops": 1,
    "trackers": "{}",
  }
  flags += [f"--config.{key}={value}" for key, value in changes.items()]
  flags.append(f"--workdir={tmp_path}")
  assert ladder.main(flags) == 0
  first = json.loads((tmp_path / "ladder.json").read_text())
  assert [trial["size"] for trial in first["trials"]] == ["32x1", "64x1", "96x1", "128x1"]
  prediction = first["prediction"]
  assert prediction["off"] == pytest.approx(prediction["loss"] / prediction["measured"] - 1)
  assert "<svg" in (tmp_path / "ladder.html").read_text()
  monkeypatch.setattr("t5x_like.train.train_config", lambda *_: pytest.fail("trained again"))
  assert ladder.main(flags) == 0
  assert json.loads((tmp_path / "ladder.json").read_text()) == first

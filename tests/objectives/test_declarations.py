"""Objectives declare the sums that reports show; a missing declaration is refused."""

import json
import types

import pytest

from t5x_like import objectives, slots
from t5x_like.errors import UserError
from t5x_like.objectives import check_declarations, evaluate
from t5x_like.report.charts import charts
from t5x_like.report.page import loss_unit, metrics
from tests import topics

METRICS_OF_OLDER_VERSIONS = ("eval/a/loss", "eval/a/unigram_entropy", "eval/a/perplexity")
BUILT_IN = slots.names(objectives)
# The metric `loss` is -log p of the targets, and nothing else.
LIKELIHOODS = {
  "decoder",
  "encoder_decoder",
  "mlm",
  "permutation_lm",
  "tagging",
  "multiple_choice",
  "patch_colours",
  "electra",
  "multi_token",
  "span_boundary",
  "token_distillation",
  "cached_distillation",
  "gpt1",
}


@pytest.mark.parametrize("name", BUILT_IN)
def test_only_likelihoods_have_an_entropy_and_a_perplexity(name):
  objective = slots.find("config.objective.name", name, objectives, "Objective")
  if name not in ("classification", "distillation"):  # a setting decides, see the next test
    assert objective.likelihood == (name in LIKELIHOODS)
  assert not objective.likelihood or objective.unit
  assert loss_unit({"objective.name": name}) == objective.unit


@pytest.mark.parametrize("name", ["classification", "distillation"])
def test_class_losses_are_likelihoods_only_with_softmax(name):
  objective = slots.find("config.objective.name", name, objectives, "Objective")
  assert objective().likelihood
  assert not objective(loss="sigmoid").likelihood


def test_loss_of_a_users_objective_has_no_unit():
  assert loss_unit({"objective.name": "my.module:Objective"}) == ""
  assert loss_unit({}) == ""


@pytest.mark.parametrize(
  "name, names",
  [
    ("decoder", {"step", *METRICS_OF_OLDER_VERSIONS}),
    *topics.cases("METRICS_OF_OLDER_RUNS").items(),
  ],
)
def test_pages_of_older_runs_hide_entropies_of_other_losses(name, names, tmp_path):
  (tmp_path / "metrics.jsonl").write_text(
    json.dumps(dict.fromkeys(METRICS_OF_OLDER_VERSIONS, 1.0) | {"step": 1}) + "\n"
  )
  assert set(metrics(tmp_path, {"objective.name": name})[0]) == names


def test_loss_chart_shows_the_unit():
  rows = [
    {"step": step, "train/loss": 1.0, "train/margin": 0.1, "train/accuracy": 0.5}
    for step in range(1, 5)
  ]
  loss_charts = charts(rows, "nats per pair of answers")
  assert [chart["title"] for chart in loss_charts] == [
    "Loss",
    "Accuracy",
    "Margin of preferred answers",
  ]
  assert "nats per pair of answers" in loss_charts[0]["svg"]
  assert "nats" not in charts(rows)[0]["svg"]


def test_missing_sums_and_declarations_are_refused():
  class Hinge(objectives.BaseObjective):
    model_inputs = ("decoder_input_tokens",)
    targets = "label"

  with pytest.raises(UserError, match="my:Hinge declares no 'weights'"):
    check_declarations("my:Hinge", Hinge())
  registry = {"hinge": types.SimpleNamespace}
  with pytest.raises(
    UserError, match="expected a frozen dataclass derived from t5x_like.objectives"
  ):
    objectives.OBJECTIVES._replace(registry=registry, member="").find("config.objective", "hinge")
  with pytest.raises(
    UserError, match="returned the sums loss, correct, expected `weights` among them"
  ):
    evaluate(lambda model, batch, key: (1.0, {"loss": 1.0, "correct": 2.0}), None, {})
  batch = {"decoder_target_tokens": 0}
  with pytest.raises(
    UserError,
    match="looked for 'segments', found the features decoder_target_tokens; declare the features",
  ):
    evaluate(lambda model, batch, key: batch["segments"], None, batch)
  with pytest.raises(KeyError):  # raised by another dict, so a bug
    evaluate(lambda model, batch, key: {}["decoder_target_tokens"], None, batch)
  with pytest.raises(UserError, match=r"returned float, expected \(loss sum, sums\)"):
    evaluate(lambda model, batch, key: 1.0, None, {})


def test_declaration_renamed_since_version_0_1_is_refused_with_its_new_name():
  class Hinge(objectives.BaseObjective):
    model_inputs = ("encoder_input_tokens",)
    targets = "label"
    weights = "label"
    also = ("margin",)

  with pytest.raises(UserError, match="my:Hinge declares 'also', which is now 'extra_features'"):
    check_declarations("my:Hinge", Hinge())

"""Secrets in texts, commands, JSON and addresses are replaced, and other text is not changed."""

import json
import shlex

import pytest

from t5x_like.redaction import is_secret_name, redact, redact_config, redact_tree


@pytest.mark.parametrize(
  "text",
  [
    "export HF_TOKEN=" + shlex.quote("tok en'LEAK me"),
    json.dumps({"run": "export HF_TOKEN=" + shlex.quote("a'b LEAK'c")}),
    "--token LEAK",
    "--api_key 'x LEAK'",
    'curl -H "Authorization: Bearer LEAKLEAK"',
    "psql postgresql+psycopg2://me:LEAK@host/db",
    "http://LEAK@host/x",
    "http://me:p@ss/LEAK@host/x",
    "https://host/x?a=1&token=LEAK",
    '--config.trackers={"wandb": {"api_key": "LEAK"}}',
    "--x=HF_TOKEN=LEAK",
    "cannot log in with hf_LEAKLEAKLEAKLEAKLEAK",
  ],
)
def test_secrets_are_replaced(text):
  assert "LEAK" not in redact(text)
  assert "***" in redact(text)


@pytest.mark.parametrize(
  "text",
  [
    "export TOKENIZERS_PARALLELISM=false",
    "--config.task.max_tokens=512 --workdir gs://bucket/a",
    "mail me@host about basic information",
    '{"tokens_per_second": 12.5, "monkey": "x"}',
    "https://host:8080/path?step=1",
  ],
)
def test_text_without_secrets_is_not_changed(text):
  assert redact(text) == text


@pytest.mark.parametrize(
  "name", ["PGPASS", "AUTH", "GITHUB_PAT", "apiKey", "db.password", "HFTOKEN", "--secret_key"]
)
def test_names_of_secrets_are_recognized(name):
  assert is_secret_name(name)


def test_a_tree_keeps_its_form():
  tree = {
    "wandb": {"api_key": "LEAK", "steps": 3},
    "uri": ["http://me:LEAK@host"],
    "ratio": 0.5,
    "none": None,
  }
  assert redact_tree(tree) == {
    "wandb": {"api_key": "***", "steps": 3},
    "uri": ["http://***@host"],
    "ratio": 0.5,
    "none": None,
  }


def test_a_config_keeps_the_values_that_open_a_run():
  unchanged = {
    "store": "hf://model@main",
    "image": "gs://bucket/a:b@c",
    "field": {"key": "x"},
    "sizes": [1, None],
  }
  secret = {"source": "https://LEAK@host/a?step=1&token=LEAK", "cache": ["s3://LEAK:LEAK@bucket/x"]}
  config = redact_config({"task": unchanged | secret, "trackers": {"wandb": {"api_key": "LEAK"}}})
  assert config["task"].items() >= unchanged.items()
  assert config["task"]["source"] == "https://***@host/a?step=1&token=***"
  assert config["task"]["cache"] == ["s3://***@bucket/x"]
  assert config["trackers"] == {"wandb": {"api_key": "***"}}

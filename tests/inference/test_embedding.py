"""Sentence embeddings of a converted encoder equal the original's; cosines can be evaluated."""

import dataclasses
import itertools
import json
import shutil

import jax
import numpy as np
import pytest
from flax import nnx

import json_lines
import published
from t5x_like import evaluate, predict
from t5x_like.interop import hf, sentence_pooling
from t5x_like.models import bert
from t5x_like.nn.dims import Dims
from t5x_like.vocabularies import load, special_id
from tools import convert_hf

pytestmark = pytest.mark.runs

# Modules of sentence-transformers by directory.
MODULES = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
TEXTS = ["a small model", "the small model of a language, with more words than the other"]


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
  """Return (Hugging Face directory, workdir) of a small `BertModel` with random parameters."""
  path = tmp_path_factory.mktemp("embedding")
  published_variant = bert.VARIANTS["bert-tiny"]
  design = dataclasses.replace(published_variant.design, position={"name": "learned", "length": 48})
  variant = dataclasses.replace(
    published_variant,
    dims=Dims(embed=32, heads=2, kv_heads=2, head_dim=16, mlp=64, layers=1),
    vocab_size=384,
    design=design,
    tokens=bert.TOKENS,
    head="pooled",
  )
  hf.save(bert.Model(nnx.Rngs(params=jax.random.key(0)), variant=variant), str(path / "hf"))
  published.write(path / "hf", "bert")
  flags = [f"--input={path / 'hf'}", f"--output={path / 'run'}", "--config=configs/bert/base.py"]
  assert convert_hf.main(flags) == 0
  return path / "hf", path / "run"


def embed_one_by_one(directory, pooling):
  """Return unit vectors of `TEXTS`, pooled here from the model's outputs for each text alone."""
  model = hf.load(str(directory))
  vocabulary = load(str(directory))
  vectors = []
  for text in TEXTS:
    ids = [special_id(vocabulary, "cls"), *vocabulary.encode(text), special_id(vocabulary, "sep")]
    x_TD = np.asarray(model({"encoder_input_tokens": np.array([ids], np.int32)})["logits"][0])
    x_D = x_TD[0] if pooling == "cls" else x_TD.mean(0)
    vectors.append(x_D / np.linalg.norm(x_D))
  return np.stack(vectors)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_an_embedding_depends_on_no_other_text_of_its_batch(converted, pooling, tmp_path):
  directory, workdir = converted
  (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
  out = tmp_path / "out.jsonl"
  flags = [f"--embed={pooling}", f"--input={tmp_path}/texts.txt", f"--output={out}"]
  assert predict.main([f"--workdir={workdir}", *flags]) == 0
  rows = json_lines.read(out)
  assert [row["input"] for row in rows] == TEXTS
  vectors = [row["embedding"] for row in rows]
  np.testing.assert_allclose(vectors, embed_one_by_one(directory, pooling), atol=1e-5)


def test_a_directory_that_pools_in_another_way_is_reported(converted, tmp_path, capsys):
  directory = shutil.copytree(converted[0], tmp_path / "hf")
  package = "sentence_transformers.models"
  modules = [{"path": path, "type": f"{package}.{kind}"} for path, kind in MODULES.items()]
  (directory / "modules.json").write_text(json.dumps(modules))
  (directory / "1_Pooling").mkdir()
  pooling_config = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
  (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling_config))
  (tmp_path / "texts.txt").write_text(TEXTS[0])
  flags = [
    f"--workdir={directory}",
    f"--input={tmp_path}/texts.txt",
    f"--output={tmp_path}/out.jsonl",
  ]
  assert predict.main([*flags, "--embed"]) == 0
  assert "pooled by cls, not by mean; add --embed=cls" in capsys.readouterr().out
  assert sentence_pooling.pooling_mismatch(str(directory), "cls") is None
  (directory / "1_Pooling" / "config.json").write_text('{"pooling_mode": "max"}')
  mismatch = sentence_pooling.pooling_mismatch(str(directory), "mean")
  assert mismatch.endswith("pooled by max, not by mean; --embed does not support that")
  dense = {"path": "2_Dense", "type": f"{package}.Dense"}
  (directory / "modules.json").write_text(json.dumps([*modules, dense]))
  mismatch = sentence_pooling.pooling_mismatch(str(directory), "cls")
  assert "modules.json applies Dense after the model" in mismatch


def test_cosines_are_correlated_with_the_scores_of_pairs(converted, tmp_path):
  directory, workdir = converted
  first_texts = ("a man", "the small model", TEXTS[0], TEXTS[1])
  pairs = list(itertools.product(first_texts, TEXTS))
  lines = ["a\tb\tscore", *(f"{a}\t{b}\t{n % 5}.5" for n, (a, b) in enumerate(pairs))]
  (tmp_path / "dev.tsv").write_text("\n".join(lines) + "\n")
  task = {
    "name": "classification",
    "source": f"tsv:validation={tmp_path}/dev.tsv,train={tmp_path}/dev.tsv",
    "vocabulary": f"{workdir}/vocabulary",
    "cache": f"{tmp_path}/prepared",
    "text": "{a}",
    "pair": "{b}",
    "label_field": "score",
    "length": 48,
  }
  evals = {
    "cosine": {"name": "embedding"},
    "one_example": {"name": "embedding", "max_examples": 1},
  }
  changes = {"task": task, "objective": {"name": "classification"}, "evals": evals}
  flags = [f"--config.{key}={json.dumps(value)}" for key, value in changes.items()]
  assert evaluate.main([f"--workdir={workdir}", "--config=configs/bert/base.py", *flags]) == 0
  evaluations = workdir / "evaluations"
  metrics = json.loads((evaluations / "0_cosine_validation.json").read_text())["metrics"]
  rows = json_lines.read(evaluations / "0_cosine_validation.jsonl")
  vectors = embed_one_by_one(directory, "mean")
  assert metrics["examples"] == len(pairs)
  # Pairs 4 and 5 are the first of `TEXTS` with itself and with the second.
  assert rows[4]["prediction"] == pytest.approx(1.0, abs=1e-5)
  assert rows[5]["prediction"] == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-5)
  evaluation = json.loads((evaluations / "0_one_example_validation.json").read_text())
  # The correlation of one example is NaN, which JSON cannot represent.
  assert evaluation["metrics"] == {"examples": 1, "pearson": None, "spearman": None}

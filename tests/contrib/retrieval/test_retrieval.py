"""Retrieval and what is learned by it: the search of a mesh, the marginal likelihood, whole
runs."""

import functools
import json
import math
import shutil
import sys
import types

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from scipy.special import log_softmax, logsumexp

import json_lines
import more
import tests.contrib.retrieval.nano_realm as nano
from t5x_like import evaluate, predict, train
from t5x_like.contrib.retrieval import search as searches
from t5x_like.contrib.retrieval.models import realm
from t5x_like.contrib.retrieval.objectives import inverse_cloze, marginal_likelihood
from t5x_like.contrib.retrieval.search import find_nearest
from t5x_like.nn import params
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from t5x_like.report.writer import read_metrics
from tests.refusals import refuses
from tests.runs import assert_same_bits, hide_other_devices, load_tensors
from tests.tiny import add_noise

B = 3
Z = 3
Q = 5
L = 6
T = 4


@pytest.mark.parametrize("shape", [{"data": 1}, {"data": 4, "tensor": 2}], ids=["one", "eight"])
def test_the_nearest_are_those_of_numpy_on_any_mesh(shape):
  generator = np.random.default_rng(0)
  number = 19
  k = 5
  mesh = make_mesh(shape, jax.devices()[: math.prod(shape.values())])
  index_NP = generator.integers(-2, 3, (24, 4)).astype(np.float32)  # with equals
  query_BP = generator.integers(-2, 3, (7, 4)).astype(np.float32)
  tokens_NL = generator.integers(0, 99, (24, 3)).astype(np.int32)
  barred_B = np.array([-1, 0, 1, 2, 3, 4, 18], np.int32)
  split = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
  placed = [jax.device_put(x, split) for x in (index_NP, tokens_NL)]
  search = jax.jit(functools.partial(find_nearest, mesh, k=k, number=number))
  number_Bk, score_Bk, nearest_BkL = search(query_BP, *placed, barred_B)
  for b in range(7):
    score_N = index_NP[:number] @ query_BP[b]
    order = [n for n in np.argsort(-score_N, kind="stable") if n != barred_B[b]][:k]
    np.testing.assert_array_equal(number_Bk[b], order)
    np.testing.assert_array_equal(score_Bk[b], score_N[order])
    np.testing.assert_array_equal(nearest_BkL[b], tokens_NL[order])


class Flat:
  """The part of faiss that is used."""

  def __init__(self, width):
    self.rows = np.zeros((0, width), np.float32)

  def add(self, x):
    self.rows = np.concatenate([self.rows, x])

  def search(self, query, k):
    scores = query @ self.rows.T
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, axis=1), order


@pytest.mark.more
def test_faiss_finds_the_passages_that_devices_find(model, monkeypatch):
  monkeypatch.setitem(sys.modules, "faiss", types.SimpleNamespace(IndexFlatIP=Flat))
  generator = np.random.default_rng(5)
  rules = Rules.make(make_mesh({"data": 1}, jax.devices()[:1]))
  rows_NL = generator.integers(2, 64, (11, L)).astype(np.int32)
  task = types.SimpleNamespace(num_passages=11, length=L, rows=lambda n: rows_NL[n])
  task.vocabulary = types.SimpleNamespace(pad_id=0)
  own_passage_B = np.array([-1, 0, 10], np.int32)
  queries = jax.device_put(batch() | {"own_passage": own_passage_B}, rules.batch())
  arrays = params.arrays(model)
  results = {}
  for search, parts in (("device", 1), ("device", 2), ("faiss", 2)):
    searcher = searches.open_search(search, model, rules, task, 4, parts)
    index = searches.build_index(searcher, arrays)
    results[search, parts] = jax.device_get(searcher.add_nearest(arrays, index, queries))
    passages = results[search, parts]["passages"]
    assert searcher.parts == parts and 0 not in passages[1] and 10 not in passages[2]
  for name in ("passages", "passage_tokens"):
    for result in results.values():
      np.testing.assert_array_equal(result[name], results["device", 1][name])


def test_faiss_that_is_not_installed_is_named(monkeypatch):
  monkeypatch.setitem(sys.modules, "faiss", None)
  with refuses("config.objective.search", "faiss is not installed"):
    searches.open_search("faiss", None, None, None, 4)


@pytest.fixture(scope="module")
def model():
  make = jax.jit(lambda key: realm.Model(nnx.Rngs(params=key), variant=nano.NANO, vocab_size=64))
  return add_noise(make(jax.random.key(0)))


def batch():
  """Return three texts, each with the null document and two passages of different lengths."""
  generator = np.random.default_rng(1)
  texts = generator.integers(2, 64, (B, Q)).astype(np.int32)
  passages = generator.integers(2, 64, (B, Z, L)).astype(np.int32)
  targets = generator.integers(2, 64, (B, T)).astype(np.int32)
  texts[1, 3:] = 0
  passages[:, 0] = 0
  passages[2, 1, 2:] = 0
  return {
    "encoder_input_tokens": texts,
    "passage_tokens": passages,
    "decoder_target_tokens": targets,
    "decoder_input_tokens": np.pad(targets, ((0, 0), (1, 0)))[:, :T],
    "decoder_loss_weights": (np.arange(T) < np.array([[4], [2], [3]])).astype(np.float32),
  }


def test_the_loss_is_the_marginal_likelihood_of_separate_readings(model):
  """Each passage is read by the T5 alone, in a row of its own without padding between, and summed
  in numpy."""
  features = batch()
  sums = jax.jit(lambda model, x: marginal_likelihood.Objective()(model, x)[1])(model, features)
  read = jax.jit(lambda model, x: model.reader(x)["logits"])
  embed = jax.jit(
    lambda model, x, y: (model.retriever.embed_queries(x), model.retriever.embed_passages(y))
  )
  query_BP, _ = embed(model, features["encoder_input_tokens"], features["passage_tokens"][:, 0])
  expected = null = utility = 0.0
  for b in range(B):
    question = features["encoder_input_tokens"][b][features["encoder_input_tokens"][b] > 0]
    _, passage_ZP = embed(model, features["encoder_input_tokens"], features["passage_tokens"][b])
    prior_Z = log_softmax(np.asarray(passage_ZP) @ np.asarray(query_BP[b]))
    likelihood_Z = []
    for z in range(Z):
      row = np.concatenate([question, features["passage_tokens"][b, z]])[None]
      rows = {"encoder_input_tokens": np.pad(row, ((0, 0), (0, Q - len(question))))}
      rows["decoder_input_tokens"] = features["decoder_input_tokens"][b : b + 1]
      log_p_TV = log_softmax(np.asarray(read(model, rows)[0]), axis=-1)
      log_p_T = log_p_TV[np.arange(T), features["decoder_target_tokens"][b]]
      likelihood_Z.append(log_p_T @ features["decoder_loss_weights"][b])
    likelihood_Z = np.array(likelihood_Z)
    expected -= logsumexp(prior_Z + likelihood_Z)
    null += np.exp(prior_Z[0])
    utility += np.exp(prior_Z) @ (likelihood_Z - likelihood_Z[0])
  values = [sums[name] for name in ("loss", "null_probability", "utility", "weights")]
  np.testing.assert_allclose(values, [expected, null, utility, B], rtol=2e-4, atol=1e-4)


def test_gradients_reach_the_retriever_and_not_its_copy(model):
  features = batch()

  def loss(arrays):
    return marginal_likelihood.Objective()(params.with_arrays(model, arrays), features)[0]

  for name, gradient in jax.jit(jax.grad(loss))(params.arrays(model)).items():
    assert np.any(gradient) != name.startswith("reference/"), name


def test_the_inverse_cloze_loss_is_a_softmax_over_the_batch(model):
  features = {name: x for name, x in batch().items() if not name.startswith("decoder_")}
  features["passage_tokens"] = features["passage_tokens"][:, 1:2]
  features["example_weights"] = np.array([1, 1, 0], np.float32)
  outputs = jax.jit(lambda model, x: model.outputs(x))(model, features)
  query_BP, passage_BP = (np.asarray(outputs[f"{n}_embeddings"]) for n in ("query", "passage"))
  log_p_bb = log_softmax(query_BP[:2] @ passage_BP[:2, 0].T, axis=1)
  _, sums = jax.jit(inverse_cloze.Objective())(model, features)
  np.testing.assert_allclose(sums["loss"], -np.trace(log_p_bb), rtol=1e-4)
  assert sums["weights"] == 2 and sums["correct"] == (log_p_bb.argmax(axis=1) == [0, 1]).sum()


def train_facts(folder, name, *flags, **changes) -> int:
  values = {
    "total_steps": 5,
    "eval_every": 5,
    "checkpoint.every": 2,
    "batch_size": 8,
    "task.cache": f"{folder}/cache",
  } | changes
  overrides = []
  for key, value in values.items():
    text = value if isinstance(value, str) else json.dumps(value)
    overrides.append(f"--config.{key}={text}")
  recipe = "--config=tests/contrib/retrieval/nano_realm.py"
  return train.main([recipe, f"--workdir={folder}/{name}", *overrides, *flags])


def evaluate_questions(workdir) -> tuple[dict, list[dict]]:
  """Return (the scores of a run on its training questions, its answers)."""
  evaluators = json.dumps({"held": {"name": "open_qa", "split": "train"}})
  assert evaluate.main([f"--workdir={workdir}", f"--config.evals={evaluators}"]) == 0
  (file,) = (workdir / "evaluations").glob("*.jsonl")
  scores = json.loads(file.with_suffix(".json").read_text())["metrics"]
  return scores, json_lines.read(file)


@pytest.mark.more
@pytest.mark.parametrize("refresh", ["beside", "between"])
def test_a_run_answers_questions_and_resumes_between_two_indices(
  refresh, tmp_path, compiled, one_device, capsys
):
  whole = tmp_path / "whole"
  changes = {"objective.refresh": refresh}
  assert train_facts(tmp_path, "whole", **changes) == 0
  shutil.copytree(whole, tmp_path / "parted")
  # The index is of step 3.
  assert train_facts(tmp_path, "parted", "--from_step=4", evals={}, **changes) == 0
  assert_same_bits(whole, tmp_path / "parted", 5)
  saved = load_tensors(whole, 5)
  copies = {name for name in saved if name.startswith("params/reference/")}
  originals = {name: saved[name.replace("reference/", "", 1)] for name in copies}
  assert any(np.any(saved[name] != originals[name]) for name in copies), "copies of another step"
  has_second_copy = any(name.startswith("params/reference/reference/") for name in copies)
  assert has_second_copy == (refresh == "beside")
  start = {"init.workdir": str(whole), "total_steps": 1, "eval_every": 1, "evals": {}}
  assert train_facts(tmp_path, "onwards", **changes, **start) == 0
  rows = read_metrics(whole)
  assert {"train/loss", "train/null_probability", "train/utility"} <= rows[0].keys()
  assert rows[-1]["eval/facts30_open_qa/examples"] == 8

  scores, answers = evaluate_questions(whole)
  contained = []
  for row in answers:
    assert len(row["passages"]) == 2
    contained.append(any(f" {row['target']}." in passage for passage in row["passages"]))
  assert scores["found"] == pytest.approx(100 * np.mean(contained))
  assert scores["examples"] == len(answers) == 22

  (tmp_path / "in.txt").write_text("".join(f"{row['input']}\n" for row in answers[:5]))
  files = [f"--input={tmp_path}/in.txt", f"--output={tmp_path}/out.jsonl"]
  assert predict.main([f"--workdir={whole}", *files]) == 0
  for prediction, answer in zip(json_lines.read(tmp_path / "out.jsonl"), answers, strict=False):
    assert prediction["probability"] == pytest.approx(answer["probability"], abs=1e-4)
    for name in ("input", "prediction", "passages"):
      assert prediction[name] == answer[name]
  assert predict.main([f"--workdir={whole}", *files, "--beams=2"]) == 2
  assert "--beams=2: the model answers greedily" in capsys.readouterr().err


@pytest.mark.parametrize(
  ("changes", "message"),
  more.beyond(
    1,
    [
      ({"evals": {"loss": {}}}, "config.evals.loss: the loss is of rows with their passages"),
      ({"task.retrieved": 10}, "config.task.retrieved: found 10"),
      ({"task.source": "facts:3"}, "source facts:3: found '3'"),
    ],
  ),
)
def test_impossible_recipes_are_refused(changes, message, tmp_path, compiled, one_device, capsys):
  assert train_facts(tmp_path, "run", **changes) == 2
  assert message in capsys.readouterr().err


@pytest.mark.more
def test_eight_devices_learn_as_one(tmp_path, compiled):
  with hide_other_devices():
    assert train_facts(tmp_path, "one", mesh={"data": 1}) == 0
  assert train_facts(tmp_path, "eight", mesh={"data": 2, "fsdp": 2, "tensor": 2}) == 0
  names = ("train/loss", "train/null_probability", "eval/facts30_open_qa/found")
  rows = zip(read_metrics(tmp_path / "one"), read_metrics(tmp_path / "eight"), strict=True)
  for single, eight in rows:
    for name in single.keys() & names:
      assert single[name] == pytest.approx(eight[name], rel=1e-3), name

"""Retrieval and what is learned by it: the search of a mesh, the marginal likelihood, whole
runs."""

import contextlib
import json
import shutil
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from scipy.special import log_softmax, logsumexp

import more
import tests.contrib.retrieval.nano_realm as nano
from t5x_like import evaluate, predict, train
from t5x_like.contrib.retrieval import search as searches
from t5x_like.contrib.retrieval.models import realm
from t5x_like.contrib.retrieval.objectives import inverse_cloze, marginal_likelihood
from t5x_like.contrib.retrieval.search import find_nearest
from t5x_like.contrib.retrieval.training import retrieval as steps_of_retrieval
from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from t5x_like.report.writer import read_metrics
from t5x_like.training.state import TrainState
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
  size = shape["data"] * shape.get("tensor", 1)
  mesh = make_mesh(shape, jax.devices()[:size])
  index_NP = generator.integers(-2, 3, (24, 4)).astype(np.float32)  # with equals
  query_BP = generator.integers(-2, 3, (7, 4)).astype(np.float32)
  tokens_NL = generator.integers(0, 99, (24, 3)).astype(np.int32)
  barred_B = np.array([-1, 0, 1, 2, 3, 4, 18], np.int32)
  split = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
  inputs = query_BP, *(jax.device_put(x, split) for x in (index_NP, tokens_NL)), barred_B
  number_Bk, score_Bk, nearest_BkL = jax.jit(lambda *x: find_nearest(mesh, *x, k=k, number=number))(
    *inputs
  )
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


class Counted:
  """A search whose index lists the retriever's number at each of its parts."""

  parts = 2
  empty_index = list

  def __init__(self):
    self.made = []

  def embed_part(self, retriever_of, arrays, index, number):
    self.made.append(number)
    assert number == len(index)
    return [*index, arrays["reference/retriever/x"]]


@pytest.mark.parametrize("begin", [0, 1, 3, 4, 7, 8])
def test_an_index_made_beside_the_steps_is_a_function_of_the_state(begin):
  """Of every three steps; a step's retriever is its number. The index is that of the refresh
  before."""

  def state(step):
    due = step - step % 3
    # as saved before the step
    earlier_refreshes = [max(0, due - back * 3 - (0 if step != due else 3)) for back in (0, 1)]
    names = ("retriever/x", "reference/retriever/x", "reference/reference/retriever/x")
    return TrainState(step, dict(zip(names, [step, *earlier_refreshes])), None)

  steps = object.__new__(steps_of_retrieval.RetrievalStep)

  def copy_references(arrays):
    return {n: arrays[n.removeprefix("reference/")] for n in arrays if n.startswith("ref")}

  vars(steps).update(
    _every=3,
    _indexes_beside=True,
    _copy_references=copy_references,
    _search=Counted(),
    _index=None,
    _index_step=None,
    _next_index=None,
    _next_index_step=0,
    _num_built_parts=0,
  )
  for step in range(begin, 12):
    steps._search.made = []
    steps._refresh(state(step), step)
    refresh_step = step - step % 3
    assert steps._index_step == refresh_step, step
    assert steps._index == [max(0, refresh_step - 3)] * 2, step
    assert len(steps._search.made) <= (4 if step == begin else 1), "no step waits but the first"


def test_faiss_that_is_not_installed_is_one_line(monkeypatch):
  monkeypatch.setitem(sys.modules, "faiss", None)
  with pytest.raises(
    UserError, match="config.objective.search: faiss is not installed; pip install 't5x-like"
  ):
    searches.open_search("faiss", None, None, None, 4)


@pytest.fixture(scope="module")
def model():
  make = jax.jit(lambda key: realm.Model(nnx.Rngs(params=key), variant=nano.NANO, vocab_size=64))
  return add_noise(make(jax.random.key(0)))


def batch():
  """Three texts, each with the null document and two passages of different lengths."""
  generator = np.random.default_rng(1)
  features = {
    "encoder_input_tokens": generator.integers(2, 64, (B, Q)),
    "passage_tokens": generator.integers(2, 64, (B, Z, L)),
    "decoder_target_tokens": generator.integers(2, 64, (B, T)),
  }
  features["encoder_input_tokens"][1, 3:] = features["passage_tokens"][:, 0] = features[
    "passage_tokens"
  ][2, 1, 2:] = 0
  features["decoder_input_tokens"] = np.pad(features["decoder_target_tokens"], ((0, 0), (1, 0)))[
    :, :T
  ]
  weights = (np.arange(T) < np.array([[4], [2], [3]])).astype(np.float32)
  return {name: x.astype(np.int32) for name, x in features.items()} | {
    "decoder_loss_weights": weights
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
  """The gradient of a passage's score is p(z|x) - p(z|x, y): one that helps is pulled (Guu et al.
  2020, 3.3)."""
  arrays = params.arrays(model)
  features = batch()
  objective = marginal_likelihood.Objective()
  gradients = jax.jit(
    jax.grad(lambda arrays: objective(params.with_arrays(model, arrays), features)[0])
  )(arrays)
  largest = {name: float(jnp.abs(g).max()) for name, g in gradients.items()}
  assert all((size == 0) == name.startswith("reference/") for name, size in largest.items()), (
    largest
  )
  generator = np.random.default_rng(2)
  score_BZ, likelihood_BZ = (
    jnp.asarray(generator.normal(size=(B, Z)), jnp.float32) for _ in range(2)
  )

  def loss(score_BZ):
    return -jax.nn.logsumexp(jax.nn.log_softmax(score_BZ) + likelihood_BZ, axis=1).sum()

  posterior_BZ = jax.nn.softmax(score_BZ + likelihood_BZ)
  np.testing.assert_allclose(
    jax.grad(loss)(score_BZ), jax.nn.softmax(score_BZ) - posterior_BZ, atol=1e-6
  )


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


def flags(folder, workdir, **changes):
  steps = {
    "total_steps": 5,
    "eval_every": 5,
    "checkpoint.every": 2,
    "batch_size": 8,
    "task.cache": f"{folder}/cache",
  }
  flags = []
  for key, value in (steps | changes).items():
    text = value if isinstance(value, str) else json.dumps(value)
    flags.append(f"--config.{key}={text}")
  return ["--config=tests/contrib/retrieval/nano_realm.py", f"--workdir={workdir}", *flags]


@pytest.mark.more
@pytest.mark.parametrize("refresh", ["beside", "between"])
def test_a_run_stopped_between_two_indices_goes_on_with_the_same_bits(
  refresh, tmp_path, compiled, capsys
):
  with hide_other_devices():
    changes = {"objective.refresh": refresh}
    assert train.main(flags(tmp_path, tmp_path / "whole", **changes)) == 0, capsys.readouterr().err
    shutil.copytree(tmp_path / "whole", tmp_path / "parted")
    # the index is of step 3
    again = [*flags(tmp_path, tmp_path / "parted", evals={}, **changes), "--from_step=4"]
    assert train.main(again) == 0, capsys.readouterr().err
    assert_same_bits(tmp_path / "whole", tmp_path / "parted", 5)
    saved = load_tensors(tmp_path / "whole", 5)
    copies = {name: x for name, x in saved.items() if name.startswith("params/reference/")}
    changes_of_copies = [
      np.abs(x - saved[name.replace("reference/", "", 1)]).max() for name, x in copies.items()
    ]
    assert copies and max(changes_of_copies) > 0, "the copy is of an earlier step"
    assert any(name.startswith("params/reference/reference/") for name in copies) == (
      refresh == "beside"
    )
    start = {"init.workdir": f"{tmp_path}/whole", "total_steps": 1, "eval_every": 1}
    assert train.main(flags(tmp_path, tmp_path / "onwards", evals={}, **changes | start)) == 0, (
      capsys.readouterr().err
    )
    evaluators = json.dumps({"held": {"name": "open_qa", "split": "train"}})
    assert evaluate.main([f"--workdir={tmp_path}/whole", f"--config.evals={evaluators}"]) == 0, (
      capsys.readouterr().err
    )
  rows = read_metrics(tmp_path / "whole")
  assert {"train/loss", "train/null_probability", "train/utility"} <= rows[0].keys()
  assert rows[-1]["eval/facts30_open_qa/examples"] == 8
  (written,) = (tmp_path / "whole" / "evaluations").glob("*.jsonl")
  answers = [json.loads(line) for line in written.read_text().splitlines()]
  assert len(answers) == 22 and len(answers[0]["passages"]) == 2
  found_share = np.mean(
    [any(f" {row['target']}." in text for text in row["passages"]) for row in answers]
  )
  scores = json.loads(written.with_suffix(".json").read_text())["metrics"]
  assert scores["found"] == pytest.approx(100 * found_share) and scores["examples"] == 22
  (tmp_path / "in.txt").write_text("".join(f"{row['input']}\n" for row in answers[:5]))
  prediction_flags = [
    f"--workdir={tmp_path}/whole",
    f"--input={tmp_path}/in.txt",
    f"--output={tmp_path}/out.jsonl",
  ]
  with hide_other_devices():
    assert predict.main(prediction_flags) == 0, capsys.readouterr().err
    assert (
      predict.main([*prediction_flags, "--beams=2"]) == 2
      and "--beams=2: the model answers greedily" in capsys.readouterr().err
    )
  for told, row in zip((tmp_path / "out.jsonl").read_text().splitlines(), answers, strict=False):
    told = json.loads(told)
    assert all(told[name] == row[name] for name in ("input", "prediction", "passages"))
    assert told["probability"] == pytest.approx(row["probability"], abs=1e-4)


@pytest.mark.parametrize(
  ("changes", "words"),
  more.beyond(
    1,
    [
      ({"evals": {"loss": {}}}, "config.evals.loss: the loss is of rows with their passages"),
      (
        {"task.retrieved": 10},
        "config.task.retrieved: found 10, expected less than the 10 passages",
      ),
      ({"task.source": "facts:3"}, "source facts:3: found '3', expected a number of facts"),
    ],
  ),
)
def test_recipes_that_cannot_be_are_one_line(changes, words, tmp_path, compiled, capsys):
  with hide_other_devices():
    assert train.main(flags(tmp_path, tmp_path / "run", **changes)) == 2
  assert words in capsys.readouterr().err


@pytest.mark.more
def test_eight_devices_learn_as_one(tmp_path, compiled, capsys):
  rows_by_run = []
  for devices, mesh in ((1, {"data": 1}), (8, {"data": 2, "fsdp": 2, "tensor": 2})):
    with hide_other_devices() if devices == 1 else contextlib.nullcontext():
      run = tmp_path / str(devices)
      assert train.main(flags(tmp_path, run, mesh=mesh)) == 0, capsys.readouterr().err
    rows_by_run.append([row for row in read_metrics(run)])
  for single, eight in zip(*rows_by_run, strict=True):
    for name in {
      "train/loss",
      "train/null_probability",
      "eval/facts30_open_qa/found",
    } & single.keys():
      assert single[name] == pytest.approx(eight[name], rel=1e-3), name

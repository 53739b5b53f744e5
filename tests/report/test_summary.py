"""The summary at a run's start fits on one screen, and files hold its details."""

import types

import jax
import numpy as np
from ml_collections import ConfigDict

import tiny
from t5x_like.nn import params
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from t5x_like.report.numbers import duration, short
from t5x_like.report.summary import sharding_table, summarize
from t5x_like.report.writer import MetricsWriter
from t5x_like.training.compilation import StepCost


def rules(**mesh):
  return Rules.make(
    make_mesh(mesh, jax.devices()[: int(np.prod(list(mesh.values()), initial=1))]), {}
  )


def make_parameter():
  make = tiny.maker(tiny.sizes("1.1"), vocab_size=64)
  return params.named_params(jax.eval_shape(make, jax.random.key(0)))


def test_the_sharding_table_lists_every_parameter():
  r = rules(data=2, fsdp=2, tensor=2)
  parameters = make_parameter()
  header, *rows, total = sharding_table(parameters, r).splitlines()
  assert header.split() == ["parameter", "shape", "logical", "axes", "mesh", "axes", "MiB/device"]
  assert [row.split()[0] for row in rows] == list(parameters)
  row = next(row for row in rows if row.startswith("encoder/blocks/mlp/layer/wo/kernel")).split()
  assert row[1:] == [
    "2x32x16",
    "layers,mlp,embed",
    "-,tensor,fsdp",
    f"{2 * 32 * 16 / 4 * 4 / 2**20:.2f}",
  ]
  count = sum(int(np.prod(p.shape)) for p in parameters.values())
  local = sum(
    np.prod(s.shard_shape(parameters[n].shape)) for n, s in r.param_shardings(parameters).items()
  )
  assert "data=2 fsdp=2 tensor=2" in total
  assert f"{count:,} parameters" in total
  assert f"{4 * local / 2**20:.1f} MiB" in total
  assert "one device" in sharding_table(parameters, rules())


def test_the_summary_states_model_data_mesh_steps_and_duration(tmp_path):
  make = tiny.maker(tiny.sizes("1.1"), vocab_size=64)
  model = jax.eval_shape(make, jax.random.key(0))
  config = ConfigDict(
    {
      "model": {"name": "t5", "variant": "small"},
      "objective": {"name": "encoder_decoder"},
      "optimizer": {"name": "adamw"},
      "schedule": {"name": "linear"},
      "batch_size": 8,
      "total_steps": 7200,
      "eval_every": 100,
      "checkpoint": {"every": 50},
    }
  )
  parts = types.SimpleNamespace(model=model, rules=rules(data=2, fsdp=4))
  task = types.SimpleNamespace(name="mine", num_examples=1_234_567)
  assembly = types.SimpleNamespace(config=config, parts=parts, task=task)
  session = types.SimpleNamespace(workdir=tmp_path, address="gs://b/run")
  cost = StepCost(positions=4096, flops=1e12, peak=4e12)
  summary = summarize(session, assembly, cost, 0)
  for phrase in (
    "t5 small",
    "mine: 1.23 M examples",
    "4.1 k tokens",
    "adamw",
    "data=2 fsdp=4",
    "0 to 7,200",
    "gs://b/run",
  ):
    assert phrase in summary, (phrase, summary)
  assert "about 60 min at 50% of the peak" in summary
  assert len(summary.splitlines()) < 12
  assert (tmp_path / "sharding.txt").read_text().startswith("parameter")
  assert "duration  printed with the steps" in summarize(
    session, assembly, StepCost(4096, 1e12, 0.0), 0
  )
  with MetricsWriter(tmp_path, resume_step=0) as writer:
    writer.write(3600, {"train/seconds_per_step": 2.0})
  assert "about 2 h at the pace of earlier steps" in summarize(session, assembly, cost, 3600)


def test_large_numbers_are_shortened():
  seconds = {
    0.2: "0 s",
    99: "99 s",
    150: "2 min",
    5940: "99 min",
    6000: "1 h 40 min",
    200_000: "2 d 7 h",
  }
  assert {value: duration(value) for value in seconds} == seconds
  assert [short(n) for n in (12, 74_368, 1.24e9)] == ["12", "74.4 k", "1.24 B"]

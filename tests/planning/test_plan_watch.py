"""A run that deviates from its plan prints the planted cause, and no other."""

import dataclasses
import itertools
import json
import re
import time

import jax
import pytest

from t5x_like import plan, recipes, train
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.errors import UserError
from t5x_like.planning import plan_watch, promise
from t5x_like.report.writer import read_metrics
from t5x_like.runtime import compile_cache
from t5x_like.training import compilation, meter, run
from t5x_like.training.meter import StepTotals
from tests import runs

RECIPE = "tests/recipes/nano.py"
FLAGS = ("--config.total_steps=13", "--config.checkpoint.every=1000", "--config.trackers={}")
SECONDS = 20.0  # of a promised step: longer than any on a busy machine
REASON = re.compile(r"^plan: (?:step \d+: )?([a-z]+): ", re.MULTILINE)


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory):
  """Provide a plan of one device here, with time to spare."""
  path = tmp_path_factory.mktemp("plan") / "plan.json"
  flags = ("--topology=local", f"--json={path}")
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("XLA_FLAGS", runs.environment(devices=1)["XLA_FLAGS"])
    assert plan.main([f"--config={RECIPE}", *flags, *FLAGS]) == 0
  written = json.loads(path.read_text())
  assert 0 < written["seconds"]["step"] < SECONDS
  assert written["devices"] == 1
  written["seconds"]["step"] = SECONDS
  path.write_text(json.dumps(written))
  return path


@pytest.fixture
def one_device():
  with runs.hide_other_devices():
    yield


class Clock:
  """A clock that a planted delay puts forward, so that no test waits for it."""

  def __init__(self):
    self._delays = 0.0

  def time(self):
    return time.time()

  def monotonic(self):
    return time.monotonic()

  def perf_counter(self):
    return time.perf_counter() + self._delays

  def delay(self, seconds):
    self._delays += seconds


@pytest.fixture
def clock(monkeypatch):
  clock = Clock()
  for module in (meter, run, plan_watch):
    monkeypatch.setattr(module, "time", clock)
  return clock


def train_to_plan(plan_file, workdir, capsys, *flags):
  """Train with a plan; return (the kinds of the reasons that are printed, the output)."""
  command = [f"--config={RECIPE}", f"--workdir={workdir}", f"--plan={plan_file}"]
  assert train.main([*command, *FLAGS, *flags]) == 0
  output = capsys.readouterr().out
  return REASON.findall(output), output


@pytest.mark.runs
def test_a_run_as_planned_prints_no_reason_and_reports_its_shares(
  plan_file, one_device, compiled, tmp_path, capsys
):
  kinds, output = train_to_plan(plan_file, tmp_path / "run", capsys)
  assert kinds == []
  assert "no deviation of more than a tenth" in output
  shares = [row for row in read_metrics(tmp_path / "run") if "plan/seconds_ratio" in row]
  assert [row["step"] for row in shares] == [12]
  assert 0 < shares[0]["plan/seconds_ratio"] < 1
  assert shares[0]["plan/goodput"] > 1
  assert shares[0]["plan/mfu_ratio"] > 0
  page = (tmp_path / "run" / "report.html").read_text()
  assert "Plan and measurement" in page
  assert "seconds a step" in page


@pytest.mark.runs
def test_a_stored_plan_of_the_recipe_and_the_devices_needs_no_flag(
  plan_file, one_device, compiled, tmp_path, capsys, monkeypatch
):
  stored = tmp_path / "plans.json"
  stored.write_text(json.dumps({"nano": json.loads(plan_file.read_text())}))
  monkeypatch.setattr(promise, "STORED_PLANS", stored)
  command = [f"--config={RECIPE}", f"--workdir={tmp_path}/run", *FLAGS]
  assert train.main(command) == 0
  output = capsys.readouterr().out
  assert "plan: plans.json: nano promises 20 s a step on local" in output
  assert REASON.findall(output) == []


def test_a_stored_plan_of_another_recipe_or_slice_is_left_out(tmp_path, monkeypatch):
  path = written_plan(tmp_path)
  here = json.loads(path.read_text()) | {"device_kind": "cpu", "devices": 8, "slice_shape": ""}
  stored = {
    "slice": json.loads(path.read_text()),
    "here": here,
    "old": {"fits": True, "seconds": {"step": 1.0}},
  }
  path.write_text(json.dumps(stored))
  monkeypatch.setattr(promise, "STORED_PLANS", path)
  assert promise.stored_promises(recipes.load(RECIPE, ("batch_size=16",))) == []
  promises = promise.stored_promises(recipes.load(RECIPE, ("seed=3",)))
  assert [planned.path for planned in promises] == ["plan.json: slice", "plan.json: here"]
  assert plan_watch.select_stored_promise(promises) == promises[1]
  assert plan_watch.select_stored_promise(promises[:1]) is None


def wait_for_data(clock, monkeypatch):
  def wait_and_yield(batches):
    for batch in batches:
      clock.delay(1.2 * SECONDS)
      yield batch

  class SlowData(meter.StepMeter):
    def __init__(self, batches, *args):
      super().__init__(wait_and_yield(batches), *args)

  monkeypatch.setattr(run, "StepMeter", SlowData)


def save_slowly(clock, monkeypatch):
  save = Checkpoints.save

  def save_late(self, *args, **options):
    clock.delay(SECONDS)
    return save(self, *args, **options)

  monkeypatch.setattr(Checkpoints, "save", save_late)


def compile_again(clock, monkeypatch):
  """Report a compilation before the eighth step, as jax does; a real one may be in a cache."""

  def compile_step(config, parts, batch):
    step, cost = compilation.compile_step(config, parts, batch)
    calls = itertools.count(1)

    def recompiling(state, arrays):
      if next(calls) == 8:
        clock.delay(20 * SECONDS)
        jax.monitoring.record_event_duration_secs(compile_cache.COMPILATION, 20 * SECONDS)
      return step(state, arrays)

    return recompiling, cost

  monkeypatch.setattr(run, "compile_step", compile_step)


PLANTED = {
  "input": (wait_for_data, ()),
  "checkpoint": (save_slowly, ("--config.checkpoint.every=4",)),
  "recompilation": (compile_again, ()),
  "core": (None, ("--config.model.design.core=chunked",)),
  "batch": (None, ("--config.batch_size=16",)),
  "config": (None, ("--config.model.remat=full",)),
}


@pytest.mark.runs
@pytest.mark.parametrize("kind", PLANTED)
def test_the_planted_deviation_is_the_only_reason(
  kind, plan_file, clock, one_device, compiled, tmp_path, capsys, monkeypatch
):
  plant, flags = PLANTED[kind]
  if plant:
    plant(clock, monkeypatch)
  kinds, output = train_to_plan(plan_file, tmp_path / "run", capsys, *flags)
  assert kinds == [kind], output
  comparison = json.loads((tmp_path / "run" / "plan_comparison.json").read_text())
  assert [deviation.partition(":")[0] for deviation in comparison["deviations"]] == [kind]
  assert f"<strong>{kind}</strong>" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.runs
def test_another_mesh_is_the_only_reason(plan_file, uncached, tmp_path, capsys):
  """Its program has collectives that the plan has not, which follow from the mesh."""
  planned = json.loads(plan_file.read_text()) | {"devices": 8, "mesh": {"data": 8}}
  path = tmp_path / "plan.json"
  path.write_text(json.dumps(planned))
  flags = ("--config.mesh.data=4", "--config.mesh.fsdp=2", "--config.total_steps=3")
  kinds, output = train_to_plan(path, tmp_path / "run", capsys, *flags)
  assert kinds == ["mesh"], output
  assert "plan: mesh: data=4 fsdp=2, planned data=8" in output


def written_plan(tmp_path, **changes):
  """Write a plan by hand; return its path."""
  recipe = recipes.load(RECIPE)
  fields = {
    "step": "train",
    "fits": True,
    "topology": "v5e:4x4",
    "device_kind": "TPU v5 lite",
    "slice_shape": "4x4x1",
    "devices": 16,
    "phase": None,
    "mesh": {"fsdp": 16},
    "batch_size": 8,
    "accumulation_steps": 1,
    "features": {"encoder_input_tokens": [32]},
    "cores": {"attention_core": "fused"},
    "config_values": promise.step_values(recipe),
    "versions": {"jax": "1"},
    "memory": {"total": 4e9},
    "seconds": {"step": 0.5},
    "mfu": 0.4,
    "compile_seconds": 10.0,
    "collectives": [
      collective("all-gather", 2e9, asynchronous=True),
      collective("reduce-scatter", 1e9, asynchronous=False),
    ],
  }
  path = tmp_path / "plan.json"
  path.write_text(json.dumps(fields | changes))
  return path


def collective(kind, ring_bytes, asynchronous):
  return {
    "kind": kind,
    "axes": "fsdp",
    "devices": 16,
    "asynchronous": asynchronous,
    "ring": False,
    "count": 1,
    "bytes": ring_bytes,
    "ring_bytes": ring_bytes,
    "where": "",
  }


def read(path):
  (read_plan,) = promise.read_promises(str(path), recipes.load(RECIPE))
  return read_plan


GATHER = collective("all-gather", 2e9, asynchronous=True)
SCATTER = collective("reduce-scatter", 1e9, asynchronous=False)


@pytest.mark.parametrize(
  "changes, text",
  [
    ({}, None),
    ({"memory": 4.3e9}, None),
    ({"memory": 5e9}, "memory: the program needs 5.000 GB a device, planned 4.000"),
    ({"versions": {"jax": "2"}}, "version: jax 2, planned 1"),
    (
      {"slice_shape": "8x2x1"},
      "topology: 16 devices (8x2x1), planned 16 devices (4x4x1)",
    ),
    (
      {"devices": 32, "slice_shape": "8x4x1", "mesh": {"fsdp": 32}, "memory": 9e9},
      "topology: 32 devices (8x4x1), planned 16 devices (4x4x1)",
    ),
    ({"mesh": {"data": 16}, "memory": 9e9}, "mesh: data=16, planned fsdp=16"),
    ({"batch_size": 16, "memory": 9e9}, "batch: 16 rows a step, planned 8"),
    ({"accumulation_steps": 2}, "batch: 2 parts, planned 1"),
    (
      {"features": {"encoder_input_tokens": [64]}},
      "batch: encoder_input_tokens has the shape [64], planned [32]",
    ),
    (
      {"cores": {"attention_core": "dense"}, "memory": 9e9},
      "core: attention core dense, planned attention core fused",
    ),
    (
      {"collectives": [GATHER | {"asynchronous": False}, SCATTER]},
      "collective: all-gather over fsdp keeps devices waiting for 2 GB a step, planned 0; the "
      "others overlap with computing",
    ),
    (
      {"collectives": [GATHER, SCATTER | {"ring_bytes": 3e9}]},
      "collective: reduce-scatter over fsdp sends 3 GB a step, planned 1",
    ),
    (
      {"collectives": [GATHER, SCATTER, SCATTER | {"kind": "all-to-all"}]},
      "collective: all-to-all over fsdp sends 1 GB a step, planned 0",
    ),
  ],
)
def test_a_program_that_is_not_the_plans_has_only_the_planted_reason(changes, text, tmp_path):
  planned = read(written_plan(tmp_path))
  program = dataclasses.replace(planned.program, **changes)
  deviations = promise.program_deviations(planned, program)
  assert [str(deviation) for deviation in deviations] == ([text] if text else [])


def test_a_compilation_is_timed():
  before = compile_cache.compile_seconds()
  jax.jit(lambda x: x * 3 + before).lower(1.0).compile()
  assert compile_cache.compile_seconds() > before


def totals(**fields):
  return StepTotals(**{"steps": 10, "seconds": 5.0} | fields)


@pytest.mark.parametrize(
  "window, kinds",
  [
    (totals(), []),
    (totals(seconds=5.4, wait_seconds=0.4), []),
    (totals(seconds=8.0, wait_seconds=3.0), ["input"]),
    # The devices compute while the host waits for data.
    (totals(seconds=8.0, wait_seconds=3.0, blocked_seconds=4.0), ["step"]),
    (totals(seconds=8.0, compile_seconds=3.0, compilations=1), ["recompilation"]),
    (totals(seconds=9.0, wait_seconds=1.0), ["input", "step"]),
  ],
)
def test_deviations_of_steps_have_the_causes_that_the_meter_shows(window, kinds, tmp_path):
  planned = read(written_plan(tmp_path))
  deviations = plan_watch.step_deviations(planned, window, is_other_program=False)
  assert [deviation.kind for deviation in deviations] == kinds
  explained = plan_watch.step_deviations(planned, window, is_other_program=True)
  assert [deviation.kind for deviation in explained] == [kind for kind in kinds if kind != "step"]


def test_saves_are_judged_by_the_promised_time_between_them(tmp_path):
  planned = read(written_plan(tmp_path))
  checkpoint = recipes.load(RECIPE, ("checkpoint.every=100", "checkpoint.minutes=15")).checkpoint
  saves = totals(saves=2, save_seconds=9.0)
  assert not plan_watch.save_deviations(planned, saves, checkpoint)
  checkpoint.every = 50
  (deviation,) = plan_watch.save_deviations(planned, saves, checkpoint)
  assert "4.5 s, 18 % of the promised 25 s between saves" in deviation.text
  assert not plan_watch.save_deviations(planned, totals(), checkpoint)


@pytest.mark.parametrize(
  "changes, words",
  [
    ({"step": "eval"}, "found no train step in the file"),
    ({"fits": False, "verdict": "does not fit: 20 of 17 GB"}, "does not fit: 20 of 17 GB"),
    ({"seconds": {}}, "seconds.step: found None"),
    ({"devices": "many"}, "devices: found 'many'"),
    ({"collectives": [{"kind": "all-gather"}]}, "collectives.axes: missing"),
  ],
)
def test_a_file_that_is_no_plan_of_a_train_step_is_refused(changes, words, tmp_path):
  with pytest.raises(UserError) as error:
    read(written_plan(tmp_path, **changes))
  assert words in str(error.value)
  assert str(error.value).startswith(f"--plan={tmp_path}/plan.json")
  assert len(str(error.value).splitlines()) == 1


def test_a_plan_without_seconds_names_local(tmp_path):
  path = written_plan(tmp_path)
  fields = json.loads(path.read_text())
  del fields["seconds"]
  path.write_text(json.dumps(fields))
  with pytest.raises(UserError, match="has no seconds; plan for a TPU, .* --topology=local"):
    read(path)


@pytest.mark.parametrize("content", ["", "[]", "3", '{"step": "train"', "\\xff"])
def test_a_file_of_something_else_is_refused(content, tmp_path):
  path = tmp_path / "plan.json"
  path.write_text(content)
  with pytest.raises(UserError, match="as python -m t5x_like.plan --json=FILE writes it"):
    read(path)


def test_a_plan_of_another_model_or_device_is_refused_before_the_run(tmp_path, capsys):
  path = written_plan(tmp_path)
  command = [f"--config={RECIPE}", f"--workdir={tmp_path}/run", f"--plan={path}"]
  assert train.main([*command, "--config.model.dropout=0.5"]) == 2
  error = capsys.readouterr().err
  assert "is a plan of another step: model.dropout is 0.5, planned 0.1" in error
  assert len(error.splitlines()) == 1
  assert train.main(command) == 2
  error = capsys.readouterr().err
  assert "is a plan for v5e:4x4 (TPU v5 lite), but this run has cpu" in error
  assert len(error.splitlines()) == 1
  assert not (tmp_path / "run").exists()


def test_values_are_the_same_in_a_file(tmp_path):
  """ViT's recipe has tuples, which a file has as lists."""
  recipe = recipes.load("configs/vit/base.py:huge")
  path = written_plan(tmp_path, config_values=promise.step_values(recipe))
  (planned,) = promise.read_promises(str(path), recipe)
  assert not promise.config_deviations(planned, recipe)


def test_keys_that_change_no_step_are_not_compared(tmp_path):
  path = written_plan(tmp_path)
  changes = ("seed=3", "total_steps=7", "eval_every=2", "schedule.warmup_steps=3", "log_every=5")
  (planned,) = promise.read_promises(str(path), recipes.load(RECIPE, changes))
  assert not promise.config_deviations(planned, recipes.load(RECIPE, changes))
  other_remat = recipes.load(RECIPE, ("model.remat=full", "rules.embed=None"))
  deviations = promise.config_deviations(planned, other_remat)
  assert [deviation.kind for deviation in deviations] == ["config", "config"]

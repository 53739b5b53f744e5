"""`plan` estimates memory, traffic and time of a step, and explains in one line why it cannot."""

import dataclasses
import itertools
import json
import os
import subprocess
import sys
import types

import jax
import pytest

from t5x_like import plan, recipes
from t5x_like.errors import UserError
from t5x_like.parallel.constrain import platform, use_platform
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from t5x_like.planning import child, compiling, hardware, minimum, search, steps, table
from t5x_like.training.build import build_parts
from tests import topics

pytestmark = pytest.mark.runs

NANO = "--config=tests/recipes/nano.py"
FIELDS = (
  "ring_gigabytes",
  "minimum_ring_gigabytes",
  "temporary_gigabytes",
  "argument_gigabytes",
  "total_gigabytes",
  "compile_seconds",
)


@pytest.fixture
def no_tensorflow(tmp_path, monkeypatch):
  """Give child processes a tensorflow that fails when it is imported."""
  for name in ("tensorflow", "tensorflow_datasets"):
    (tmp_path / f"{name}.py").write_text("raise AssertionError('a plan imports tensorflow')\n")
  monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_a_plan_for_cpus_agrees_with_arithmetic(no_tensorflow, tmp_path, capsys):
  file = tmp_path / "plan.json"
  flags = ("--topology=cpu:8", "--config.mesh.fsdp=4", "--config.mesh.data=2", f"--json={file}")
  assert plan.main([NANO, *flags]) == 0
  written = json.loads(file.read_text())
  assert written["fits"]
  for field in FIELDS:
    assert written[field] > 0, field
  assert written["mesh"] == {"data": 2, "fsdp": 4}
  assert written["rows"]["read"] == written["batch_size"]
  # Two float32 gathers and a reduce-scatter over 4, an all-reduce of the fourth over 2; biases and
  # gains are not split.
  minimum_gigabytes = 4 * written["parameters"] * (3 * 3 / 4 + 2 / 4 * 1 / 2) / 1e9
  assert written["minimum_ring_gigabytes"] == pytest.approx(minimum_gigabytes, rel=0.1)
  assert written["ring_gigabytes"] > 0.4 * minimum_gigabytes
  total_bytes = sum(row["ring_bytes"] for row in written["collectives"])
  assert total_bytes == pytest.approx(1e9 * written["ring_gigabytes"])
  for row in written["collectives"]:
    assert set(row["axes"].split("+")) <= {"data", "fsdp"}
  model_flops_a_device = written["model_flops"] / 8
  assert 0.9 * model_flops_a_device < written["hlo_flops"] < 2 * model_flops_a_device
  memory = written["memory"]
  assert memory["params"] == pytest.approx(4 * written["parameters"] / 4, rel=0.1)
  arguments = memory["params"] + memory["optimizer"] + memory["batch"]
  assert memory["arguments"] == pytest.approx(arguments, rel=0.1)
  printed = capsys.readouterr().out
  for words in ("all-reduce", "data=2 fsdp=4", "attention core: dense", "rows per host"):
    assert words in printed
  del written["collectives"]
  table_without_collectives = table.text(written)
  assert "temporaries" in table_without_collectives
  assert "all-reduce" not in table_without_collectives
  assert table_without_collectives.endswith(written["verdict"])


@pytest.mark.parametrize(
  "program, words",
  [
    (
      "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
      "crashed with SIGSEGV (exit code 139)",
    ),
    (
      "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
      "SIGKILL, as when memory runs out (exit code 137)",
    ),
    ("import sys; print('1/0\\nValueError: no'); sys.exit(3)", "failed (exit code 3)"),
    ("import time; time.sleep(60)", "had not finished after"),
  ],
)
def test_a_failing_compiler_is_reported_as_the_verdict(
  program, words, monkeypatch, capsys, tmp_path
):
  monkeypatch.setattr(child, "COMMAND", (sys.executable, "-c", program))
  monkeypatch.setattr(child, "PROGRESS_SECONDS", 0.4)
  file = tmp_path / "plan.json"
  flags = [NANO, "--topology=cpu:8", "--timeout_seconds=1.5", f"--json={file}"]
  assert plan.main(flags) == plan.EXIT_NO_ANSWER
  printed = capsys.readouterr()
  assert words in printed.out
  assert "Traceback" not in printed.out
  assert len(printed.out.splitlines()) == 2
  if "sleep" in program:
    assert "compiling for" in printed.err
  written = json.loads(file.read_text())
  assert words in written["verdict"]
  assert written["fits"] is None


@pytest.mark.parametrize(
  "flags, words",
  [
    (["--topology=v5x:4x4"], "did you mean"),
    (["--topology=v5e"], "expected one like"),
    (["--topology=v5e:4x4x4"], "found the shape '4x4x4', expected two sides of at most 16 chips"),
    (["--topology=v6e:32x16"], "two sides of at most 16"),
    (["--topology=cpu:8", "--slices=2"], "--slices=2"),
    (
      ["--topology=cpu:8", "--json=/no/such/directory/plan.json"],
      "no directory /no/such/directory",
    ),
    (["--topology=cpu:8", "--step=fly"], "--step"),
    (["--topology=cpu:8", "--timeout_seconds=nan"], "--timeout_seconds=nan: expected more than 0"),
    (["--topology=cpu:8", "--search=2", "--hlo=program.txt"], "--search compiles several programs"),
    (["--topology=cpu:8", "--config.nothing=1"], "nothing"),
    (["--topology=v5e:4x4"], "t5x-like[plan]"),
  ],
)
def test_a_bad_flag_is_refused_in_one_line(flags, words, monkeypatch, capsys):
  monkeypatch.delenv(hardware.LIBRARY, raising=False)
  monkeypatch.setattr(hardware.importlib.util, "find_spec", lambda name: None)
  assert plan.main([NANO, *flags]) == 2
  error = capsys.readouterr().err
  assert words in error
  assert len(error.splitlines()) == 1


def test_a_missing_compiler_library_is_refused(monkeypatch, tmp_path):
  monkeypatch.setenv(hardware.LIBRARY, str(tmp_path / "libtpu.so"))
  with pytest.raises(UserError, match="no such file"):
    hardware.library()


def chips(*sides):
  """Return stand-ins for the devices of a slice, by their coordinates."""
  devices = {}
  for coordinates in itertools.product(*map(range, sides)):
    devices[coordinates] = types.SimpleNamespace(coords=coordinates)
  return devices


def test_groups_on_one_chip_share_its_links():
  """A TPU7x chip is two devices: a group has both devices of each chip, or two groups one each."""
  topology = hardware.parse("tpu7x:4x4x4")
  one_device_a_chip = list(chips(4, 4, 4).values())
  assert hardware.links(one_device_a_chip * 2, topology) == 6
  assert hardware.links(one_device_a_chip, topology) == 3


@pytest.mark.parametrize(
  "name, axes, links",
  [
    ("v5e:16x16", "xy", 4),
    ("v5e:16x16", "x", 2),
    ("v5e:8x8", "xy", 2),
    ("v6e:8x16", "xy", 3),
    ("v6e:8x16", "x", 1),
    ("v5p:4x4x8", "xyz", 6),
    ("v5p:2x4x4", "xyz", 3),
    ("v4:4x4x4", "z", 2),
    ("v5p:16x16", "xy", 2),
    ("v5p:8x8x8", "half of x", 1),
    ("v5p:8x8x8", "every second of x", 1),
  ],
)
def test_links_close_to_rings_only_where_a_slice_has_them(name, axes, links):
  topology = hardware.parse(name)
  chip_at = chips(*(length for length, _ in topology.dimensions))
  if axes == "half of x":
    group = [chip_at[x, 0, 0] for x in (0, 1, 2, 3)]
  elif axes == "every second of x":
    group = [chip_at[x, 0, 0] for x in (0, 2, 4, 6)]
  else:
    group = []
    for coordinates, chip in chip_at.items():
      nonzero_axes = {"xyz"[axis] for axis, position in enumerate(coordinates) if position}
      if nonzero_axes <= set(axes):
        group.append(chip)
  assert hardware.links(group, topology) == links
  assert hardware.seconds(topology.chip.link, group, topology) == 1 / links
  assert hardware.seconds(topology.chip.link, group, topology, ring=True) == 1 / min(2, links)


@pytest.mark.parametrize(
  "compiler_error, words",
  [
    (
      "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 17.0G of 15.75G hbm. "
      "Exceeded by 1G",
      "17.0G of 15.75G",
    ),
    (
      "RESOURCE_EXHAUSTED: E1000: Ran out of memory on HBM, the total memory required for HLO "
      "temporaries (34.05G) exceeds available HBM (15.75G). HLO module: jit_step.",
      "34.05G of 15.75G",
    ),
    ("RESOURCE_EXHAUSTED: another way to say it", "another way"),
    ("INTERNAL: no", None),
  ],
)
def test_a_memory_shortage_is_read_from_the_compilers_error(compiler_error, words):
  shortage = compiling._memory_shortage(RuntimeError(compiler_error))
  if words is None:
    assert shortage is None
  else:
    assert words in shortage


def test_evaluation_and_decoding_steps_split_their_rows_over_the_mesh():
  """Their FLOPs follow from the training step's."""
  for recipe, flags in (
    (NANO.partition("=")[2], ()),
    ("configs/llama/8b.py:debug", ("task.length=1024",)),
  ):
    config, task = steps.resolve(recipes.load(recipe, ("mesh.fsdp=2", *flags)), "cpu", None)
    parts = build_parts(config)
    train = steps.make("train", config, parts, task)
    evaluate = steps.make("eval", config, parts, task)
    decode = steps.make("decode", config, parts, task)
    # This holds too where the attention core changes with the length (Llama of 1,024 tokens).
    assert train.model_flops == pytest.approx(3 * evaluate.model_flops)
    for step in (evaluate, decode):
      for feature in step.batch.values():
        assert feature.shape[0] == config.batch_size
        assert feature.sharding.shard_shape(feature.shape)[0] == config.batch_size // 8
    evaluate.lower()
    assert "stablehlo.while" in decode.lower().as_text()
    # A prompt and its continuation, or inputs and targets, are as long as in training; a prompt has
    # no logits.
    assert decode.model_flops == pytest.approx(evaluate.model_flops, rel=0.03)
    assert evaluate.batch.keys() - train.batch.keys() == {"example_index"}


@pytest.mark.parametrize("recipe, words", topics.cases("RECIPES_WITHOUT_DECODING_STEP").items())
def test_a_decoding_step_is_refused_where_there_is_none(recipe, words):
  config, task = steps.resolve(recipes.load(recipe, ()), "cpu", None)
  with pytest.raises(UserError, match=f"--step=decode: {words}"):
    steps._decoding(config, build_parts(config), task)


def test_a_phase_is_planned_by_name():
  config = recipes.load("configs/bert/base.py:debug")
  _, last_task = steps.resolve(config, "cpu", None)
  _, short_task = steps.resolve(config, "cpu", "short")
  assert last_task.features["encoder_input_tokens"].shape == (64,)
  assert short_task.features["encoder_input_tokens"].shape == (32,)
  with pytest.raises(UserError, match="did you mean 'short'"):
    steps.resolve(config, "cpu", "shrt")


def test_a_program_for_another_platform_is_traced_for_it():
  """On a TPU the defaults are bfloat16 and layers in a scan, and nothing is chosen for CPUs."""
  config, _ = steps.resolve(recipes.load("configs/t5/base.py"), "tpu", None)
  assert config.model.dtype == "bfloat16"
  assert config.model.layers == "scan"
  assert platform() == "cpu"
  with use_platform("tpu"):
    assert platform() == "tpu"


def test_candidates_are_ranked_by_their_bound_and_fit(monkeypatch):
  chip = hardware.Chip(2**26, 1e12, 1e9, 1e9, 0.5)
  monkeypatch.setitem(hardware.CHIPS, "v5e", chip)
  monkeypatch.setattr(hardware, "devices", lambda topology: jax.devices())
  monkeypatch.setattr(search.device_peak, "peak_flops", lambda device: (1e12, "made up"))
  request = dataclasses.asdict(child.Request(NANO.partition("=")[2], "v5e:2x4"))
  candidates = search.candidates(request)
  ranks = []
  for candidate in candidates:
    mesh = candidate["overrides"][0]
    sends_activations = "sequence" in mesh or "stage" in mesh
    ranks.append((float(f"{candidate['bound']:.2g}"), not sends_activations, candidate["rows"]))
  assert ranks == sorted(ranks, reverse=True)  # most rows among equal bounds
  assert all(candidate["memory"] <= chip.memory for candidate in candidates)
  meshes = {candidate["overrides"][0] for candidate in candidates}
  assert {'mesh={"data":8}', 'mesh={"fsdp":8}', 'mesh={"data":2,"fsdp":2,"tensor":2}'} <= meshes
  assert {'mesh={"fsdp":4,"sequence":2}', 'mesh={"data":2,"tensor":2,"stage":2}'} <= meshes
  for candidate in candidates[:3]:
    assert recipes.load(request["config"], candidate["overrides"]).batch_size >= 1
  monkeypatch.setitem(hardware.CHIPS, "v5e", dataclasses.replace(chip, memory=2**14))
  with pytest.raises(UserError, match="nothing fits"):
    search.candidates(request)


@pytest.mark.more
@pytest.mark.parametrize(
  "recipe, flags, mesh",
  [
    ("configs/vit/base.py:debug", (), '{"fsdp":8}'),
    (
      "configs/t5/base.py:debug",
      ("model.name=switch", "model.variant=switch-tiny-8"),
      '{"fsdp":4,"expert":2}',
    ),
  ],
)
def test_search_bounds_image_models_and_splits_experts(recipe, flags, mesh, monkeypatch):
  monkeypatch.setattr(hardware, "devices", lambda topology: jax.devices())
  monkeypatch.setattr(search.device_peak, "peak_flops", lambda device: (1e12, "made up"))
  request = child.Request(recipe, "v5e:2x4", overrides=flags)
  candidates = search.candidates(dataclasses.asdict(request))
  assert all(candidate["bound"] > 0 for candidate in candidates)
  assert f"mesh={mesh}" in {candidate["overrides"][0] for candidate in candidates}


def candidate(mesh, batch_size, bound, rows):
  return {
    "overrides": [mesh, f"batch_size={batch_size}"],
    "bound": bound,
    "memory": 0,
    "rows": rows,
  }


def test_search_plans_the_best_candidates_and_ranks_them_by_seconds(monkeypatch, capsys):
  data = 'mesh={"data":8}'
  fsdp = 'mesh={"fsdp":8}'
  tensor = 'mesh={"tensor":8}'
  candidates = []
  for rows in (2, 1):
    for mesh in (data, fsdp, tensor):
      candidates.append(candidate(mesh, 8 * rows, bound=rows, rows=rows))
  seconds = {data: 2.0, fsdp: 1.0}

  def answer(request, timeout_seconds, report_progress):
    if request.search:
      return {"candidates": candidates}
    assert "batch_size=16" in request.overrides
    assert "total_steps=5" in request.overrides
    (mesh,) = [override for override in request.overrides if override.startswith("mesh")]
    if mesh == tensor:
      raise UserError("refused")
    return {
      "fits": True,
      "verdict": "fits",
      "model_flops": 1e12,
      "devices": 8,
      "mfu": 0.5,
      "seconds": {"step": seconds[mesh]},
      "total_gigabytes": 1.0,
      "ring_gigabytes": 2.0,
    }

  monkeypatch.setattr(search.child, "plan", answer)
  flags = ("--topology=cpu:8", "--search=3", "--config.total_steps=5", "--config.batch_size=64")
  assert plan.main([NANO, *flags]) == 0
  printed = capsys.readouterr()
  assert printed.err.splitlines()[0] == "the search replaces these flags: batch_size=64"
  _, first, second, last = printed.out.splitlines()
  assert "'--config.mesh={\"fsdp\":8}'" in first
  assert data in second
  assert tensor in last
  assert "refused" in last


def test_search_retries_a_mesh_with_fewer_rows_if_it_does_not_fit_but_not_if_refused(monkeypatch):
  candidates = []
  for rows in (4, 2, 1):
    for mesh in ("mesh=a", "mesh=b", "mesh=c"):
      candidates.append(candidate(mesh, rows, bound=1.0, rows=rows))
  planned = []

  def answer(request, timeout_seconds, report_progress):
    if request.search:
      return {"candidates": candidates}
    planned.append(request.overrides[:2])
    if "mesh=c" in request.overrides:
      raise UserError("no")
    return {
      "fits": "mesh=b" in request.overrides or "batch_size=2" in request.overrides,
      "verdict": "",
      "model_flops": 1.0,
      "total_gigabytes": 1.0,
    }

  monkeypatch.setattr(search.child, "plan", answer)
  search.search(child.Request("recipe", "cpu:8"), 6, 1.0, lambda line: None)
  assert planned == [
    ("mesh=a", "batch_size=4"),
    ("mesh=a", "batch_size=2"),
    ("mesh=b", "batch_size=4"),
    ("mesh=c", "batch_size=4"),
  ]


def test_stored_activations_include_attention_logits_and_shrink_with_remat():
  residual_bytes = {}
  for length in (64, 128):
    flags = (f"task.inputs_length={length}", "model.remat=none", 'mesh={"data":1}')
    config, task = steps.resolve(recipes.load(NANO.partition("=")[2], flags), "cpu", None)
    residual_bytes[length] = search._residual_bytes(config, task, jax.devices()[:1], 2)
  heads = 4
  layers = 2
  rows = 2
  # The float32 attention weights of the encoder alone grow by the square of the length.
  growth = residual_bytes[128] - residual_bytes[64]
  assert growth > rows * layers * heads * (128**2 - 64**2) * 4
  bytes_by_remat = search._activation_bytes(config, task, jax.devices()[:1])
  assert 0 < bytes_by_remat["full"] < bytes_by_remat["minimal"] < bytes_by_remat["none"]


def test_programs_other_than_plan_do_not_load_an_installed_libtpu(tmp_path):
  (tmp_path / "libtpu").mkdir()
  (tmp_path / "libtpu" / "__init__.py").write_text("def get_library_path():\n  return __file__\n")
  program = (
    "from t5x_like.runtime import process\nprocess.prepare()\n"
    "import jax, libtpu\nprint(jax.config.jax_platforms, len(jax.devices()))"
  )
  environment = os.environ | {"PYTHONPATH": str(tmp_path)}
  environment.pop("JAX_PLATFORMS", None)
  process = subprocess.run(
    [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=600
  )
  assert process.stdout == "cpu 8\n", process
  assert not process.stderr, process


def test_arrays_in_the_hosts_memory_take_no_memory_of_devices():
  sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  on_host = sharding.with_memory_kind("pinned_host")
  on_device = sharding.with_memory_kind("device")
  arrays = {
    "mu": jax.ShapeDtypeStruct((4, 8), "float32", sharding=on_host),
    "kernel": jax.ShapeDtypeStruct((4, 8), "float32", sharding=on_device),
  }
  assert steps.shard_bytes(arrays) == 4 * 8 * 4


def test_frozen_parameters_send_no_gradient():
  rules = Rules.make(make_mesh({"fsdp": 4, "data": 2}, jax.devices()[:8]))
  parameter = types.SimpleNamespace(shape=(64, 32), axes=("embed", "mlp"))
  parameters = {"adapter": parameter, "kernel": parameter}

  def ring_bytes(parameters, trained):
    return minimum.ring_bytes(parameters, rules, 2, True, 1, trained)

  all_trained = ring_bytes(parameters, None)
  adapter_trained = ring_bytes(parameters, {"adapter"})
  none_trained = ring_bytes(parameters, ())
  size = 2 * 64 * 32 * 2  # two parameters, bfloat16
  gathers = 2 * size * 3 / 4  # forward and backward, over fsdp=4
  for traffic in (all_trained, adapter_trained, none_trained):
    assert traffic["gathers"] == gathers
  # A reduce-scatter over fsdp=4, then an all-reduce of the quarter over data=2.
  reductions = size * (3 / 4 + 2 / 4 * 1 / 2) / 2
  assert adapter_trained["reductions"] == reductions
  assert all_trained["reductions"] == 2 * reductions
  assert none_trained["reductions"] == 0
  # A reference model is gathered once, in its forward pass only.
  with_reference = ring_bytes(parameters | {"reference/kernel": parameter}, {"adapter"})
  assert with_reference["gathers"] == 1.25 * gathers
  assert with_reference["reductions"] == reductions


@pytest.mark.parametrize(
  "step, ring_gigabytes, warns",
  [("decode", 90.0, True), ("decode", 20.0, False), ("eval", 90.0, False)],
)
def test_the_verdict_warns_when_decoding_gathers_parameters_for_every_token(
  step, ring_gigabytes, warns
):
  figures = {
    "step": step,
    "fits": True,
    "total_gigabytes": 5.0,
    "memory": {"hbm": 16e9},
    "ring_gigabytes": ring_gigabytes,
    "minimum_ring_gigabytes": 15.0,
  }
  assert ("mesh.tensor" in compiling._verdict(figures)) == warns

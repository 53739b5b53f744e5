"""A real plan, and what is said of one that cannot be made."""

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
  """A tensorflow that cannot be imported, for child processes."""
  for name in ("tensorflow", "tensorflow_datasets"):
    (tmp_path / f"{name}.py").write_text("raise AssertionError('a plan imports tensorflow')\n")
  monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_a_plan_for_cpus(no_tensorflow, tmp_path, capsys):
  file = tmp_path / "plan.json"
  flags = ("--topology=cpu:8", "--config.mesh.fsdp=4", "--config.mesh.data=2", f"--json={file}")
  assert plan.main([NANO, *flags]) == 0
  found = json.loads(file.read_text())
  assert found["fits"] and all(found[field] > 0 for field in FIELDS)
  assert found["mesh"] == {"data": 2, "fsdp": 4} and found["rows"]["read"] == found["batch_size"]
  # Two float32 gathers and a reduce-scatter over 4, an all-reduce of the fourth over 2; biases and
  # gains are not split.
  least = 4 * found["parameters"] * (3 * 3 / 4 + 2 / 4 * 1 / 2) / 1e9
  assert found["minimum_ring_gigabytes"] == pytest.approx(least, rel=0.1)
  assert found["ring_gigabytes"] > 0.4 * least
  assert sum(row["ring_bytes"] for row in found["collectives"]) == pytest.approx(
    1e9 * found["ring_gigabytes"]
  )
  assert {axis for row in found["collectives"] for axis in row["axes"].split("+")} <= {
    "data",
    "fsdp",
  }
  model = found["model_flops"] / 8
  program = found["hlo_flops"]
  assert 0.9 * model < program < 2 * model
  memory = found["memory"]
  assert memory["params"] == pytest.approx(4 * found["parameters"] / 4, rel=0.1)
  assert memory["arguments"] == pytest.approx(
    memory["params"] + memory["optimizer"] + memory["batch"], rel=0.1
  )
  printed = capsys.readouterr().out
  assert all(
    words in printed
    for words in ("all-reduce", "data=2 fsdp=4", "attention core: dense", "rows per host")
  )
  unread = table.text({name: value for name, value in found.items() if name != "collectives"})
  assert (
    "temporaries" in unread and "all-reduce" not in unread and unread.endswith(found["verdict"])
  )


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
    ("import time; time.sleep(60)", "was not done after"),
  ],
)
def test_a_compiler_that_fails_is_a_finding(program, words, monkeypatch, capsys, tmp_path):
  monkeypatch.setattr(child, "COMMAND", (sys.executable, "-c", program))
  monkeypatch.setattr(child, "PROGRESS_SECONDS", 0.4)
  file = tmp_path / "plan.json"
  assert (
    plan.main([NANO, "--topology=cpu:8", "--timeout_seconds=1.5", f"--json={file}"])
    == plan.EXIT_NO_ANSWER
  )
  printed = capsys.readouterr()
  assert (
    words in printed.out and "Traceback" not in printed.out and len(printed.out.splitlines()) == 2
  )
  assert "compiling for" in printed.err or "sleep" not in program
  written = json.loads(file.read_text())
  assert words in written["verdict"] and written["fits"] is None


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
def test_what_cannot_be_planned_is_refused_in_one_line(flags, words, monkeypatch, capsys):
  monkeypatch.delenv(hardware.LIBRARY, raising=False)
  monkeypatch.setattr(hardware.importlib.util, "find_spec", lambda name: None)
  assert plan.main([NANO, *flags]) == 2
  error = capsys.readouterr().err
  assert words in error and len(error.splitlines()) == 1


def test_a_library_that_is_not_there(monkeypatch, tmp_path):
  monkeypatch.setenv(hardware.LIBRARY, str(tmp_path / "libtpu.so"))
  with pytest.raises(UserError, match="no such file"):
    hardware.library()


def chips(*lengths):
  """Return stand-ins for the devices of a slice, by place."""
  return {
    place: types.SimpleNamespace(coords=place) for place in itertools.product(*map(range, lengths))
  }


def test_groups_on_one_chip_share_its_links():
  """Of TPU7x, whose chips are two devices each: one group has both devices of each chip, or two
  groups have one."""
  topology = hardware.parse("tpu7x:4x4x4")
  placed = list(chips(4, 4, 4).values())
  assert (hardware.links(placed * 2, topology), hardware.links(placed, topology)) == (6, 3)


@pytest.mark.parametrize(
  "name, along, links",
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
def test_links_close_to_rings_only_where_a_slice_has_them(name, along, links):
  topology = hardware.parse(name)
  placed = chips(*(length for length, _ in topology.dimensions))
  if "of x" in along:
    group = [placed[i, 0, 0] for i in ((0, 2, 4, 6) if "second" in along else range(4))]
  else:
    group = [
      chip
      for place, chip in placed.items()
      if all(n == 0 or "xyz"[axis] in along for axis, n in enumerate(place))
    ]
  assert hardware.links(group, topology) == links
  assert hardware.seconds(topology.chip.link, group, topology) == 1 / links
  assert hardware.seconds(topology.chip.link, group, topology, ring=True) == 1 / min(2, links)


@pytest.mark.parametrize(
  "said, words",
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
def test_what_the_compiler_says_of_memory(said, words):
  found = compiling._memory_shortage(RuntimeError(said))
  assert found is None if words is None else words in found


def test_steps_are_those_of_evaluation_and_prediction():
  """What is lowered takes parameters and a batch of rows split over the mesh, and is compiled only
  when asked."""
  for recipe, more in (
    (NANO.partition("=")[2], ()),
    ("configs/llama/8b.py:debug", ("task.length=1024",)),
  ):
    config, task = steps.resolve(recipes.load(recipe, ("mesh.fsdp=2", *more)), "cpu", None)
    parts = build_parts(config)
    costs = {kind: steps.make(kind, config, parts, task) for kind in ("train", "eval", "decode")}
    # beyond SHORT logits too
    assert costs["train"].model_flops == pytest.approx(3 * costs["eval"].model_flops)
    for kind in ("eval", "decode"):
      batch = costs[kind].batch
      assert {x.shape[0] for x in batch.values()} == {config.batch_size}
      assert {x.sharding.shard_shape(x.shape)[0] for x in batch.values()} == {
        config.batch_size // 8
      }
      text = costs[kind].lower().as_text()
      assert ("stablehlo.while" in text) >= (kind == "decode")
    # A prompt and its continuation, or inputs and targets, are as long as in training; a prompt has
    # no logits.
    assert costs["decode"].model_flops == pytest.approx(costs["eval"].model_flops, rel=0.03)
    assert costs["eval"].batch.keys() - costs["train"].batch.keys() == {"example_index"}


@pytest.mark.parametrize(
  "recipe, words",
  [
    ("configs/finetune/preferences.py:debug", "task preferences has several rows of tokens"),
    pytest.param("configs/realm/base.py:debug", "realm is an encoder", marks=pytest.mark.more),
  ],
)
def test_steps_of_decoding_that_there_are_not(recipe, words):
  config, task = steps.resolve(recipes.load(recipe, ()), "cpu", None)
  with pytest.raises(UserError, match=f"--step=decode: {words}"):
    steps._decoding(config, build_parts(config), task)


def test_a_phase_is_planned_by_name():
  config = recipes.load("configs/bert/base.py:debug")
  whole, short = (steps.resolve(config, "cpu", phase)[1].features for phase in (None, "short"))
  assert whole["encoder_input_tokens"].shape == (64,) and short["encoder_input_tokens"].shape == (
    32,
  )
  with pytest.raises(UserError, match="did you mean 'short'"):
    steps.resolve(config, "cpu", "shrt")


def test_a_program_for_another_platform_is_traced_for_it(monkeypatch):
  """bfloat16, layers in a loop of one, and none of what is done for CPUs."""
  config, _ = steps.resolve(recipes.load("configs/t5/base.py"), "tpu", None)
  assert (config.model.dtype, config.model.layers) == ("bfloat16", "scan")
  assert platform() == "cpu"
  with use_platform("tpu"):
    assert platform() == "tpu"


def test_candidates_are_ranked_by_their_bound_and_fit(monkeypatch):
  chip = hardware.Chip(2**26, 1e12, 1e9, 1e9, 0.5)
  monkeypatch.setitem(hardware.CHIPS, "v5e", chip)
  monkeypatch.setattr(hardware, "devices", lambda topology: jax.devices())
  monkeypatch.setattr(search.device_peak, "peak_flops", lambda device: (1e12, "made up"))
  request = dataclasses.asdict(child.Request(NANO.partition("=")[2], "v5e:2x4"))
  found = search.candidates(request)
  ranks = []
  for candidate in found:
    mesh = candidate["overrides"][0]
    sends_activations = "sequence" in mesh or "stage" in mesh
    ranks.append((float(f"{candidate['bound']:.2g}"), not sends_activations, candidate["rows"]))
  assert ranks == sorted(ranks, reverse=True)  # most rows among equal bounds
  assert all(one["memory"] <= chip.memory for one in found)
  meshes = {one["overrides"][0] for one in found}
  assert {'mesh={"data":8}', 'mesh={"fsdp":8}', 'mesh={"data":2,"fsdp":2,"tensor":2}'} <= meshes
  assert {'mesh={"fsdp":4,"sequence":2}', 'mesh={"data":2,"tensor":2,"stage":2}'} <= meshes
  assert all(recipes.load(request["config"], one["overrides"]).batch_size >= 1 for one in found[:3])
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
def test_candidates_for_images_and_experts(recipe, flags, mesh, monkeypatch):
  """Images have a bound too, and experts of a variant their axis of the mesh."""
  monkeypatch.setattr(hardware, "devices", lambda topology: jax.devices())
  monkeypatch.setattr(search.device_peak, "peak_flops", lambda device: (1e12, "made up"))
  found = search.candidates(dataclasses.asdict(child.Request(recipe, "v5e:2x4", overrides=flags)))
  assert all(one["bound"] > 0 for one in found) and f"mesh={mesh}" in {
    one["overrides"][0] for one in found
  }


def test_search_plans_the_best_and_ranks_what_fits(monkeypatch, capsys):
  names = ['mesh={"data":8}', 'mesh={"fsdp":8}', 'mesh={"tensor":8}']
  listed = [
    {"overrides": [mesh, f"batch_size={8 * rows}"], "bound": rows, "memory": 0, "rows": rows}
    for rows in (2, 1)
    for mesh in names
  ]
  plans = {names[0]: (True, 2.0), names[1]: (True, 1.0), names[2]: (False, 0.5)}

  def answer(request, timeout_seconds, report_progress):
    if request.search:
      return {"candidates": listed}
    (mesh,) = [one for one in request.overrides if one.startswith("mesh")]
    if mesh == names[2]:
      raise UserError("told")
    assert "batch_size=16" in request.overrides and "total_steps=5" in request.overrides
    fits, seconds = plans[mesh]
    found = {"fits": fits, "verdict": "told", "model_flops": 1e12, "devices": 8, "mfu": 0.5}
    return found | {"seconds": {"step": seconds}, "total_gigabytes": 1.0, "ring_gigabytes": 2.0}

  monkeypatch.setattr(search.child, "plan", answer)
  flags = ("--topology=cpu:8", "--search=3", "--config.total_steps=5", "--config.batch_size=64")
  assert plan.main([NANO, *flags]) == 0
  printed = capsys.readouterr()
  assert printed.err.splitlines()[0] == "searched in place of what is given: batch_size=64"
  _, *rows = printed.out.splitlines()
  assert [names[number] in row for number, row in zip((1, 0, 2), rows)] == [
    True
  ] * 3 and "told" in rows[-1]
  assert "'--config.mesh={\"fsdp\":8}'" in rows[0]


def test_search_tries_fewer_rows_of_what_does_not_fit_but_not_of_what_is_refused(monkeypatch):
  sizes = [(f"mesh={mesh}", rows) for rows in (4, 2, 1) for mesh in ("a", "b", "c")]
  listed = [
    {"overrides": [mesh, f"batch_size={rows}"], "bound": 1.0, "memory": 0, "rows": rows}
    for mesh, rows in sizes
  ]
  asked = []

  def answer(request, timeout_seconds, report_progress):
    if request.search:
      return {"candidates": listed}
    asked.append(request.overrides[:2])
    if "mesh=c" in request.overrides:
      raise UserError("no")
    return {
      "fits": "mesh=b" in request.overrides or "batch_size=2" in request.overrides,
      "verdict": "",
    } | {
      "model_flops": 1.0,
      "total_gigabytes": 1.0,
    }

  monkeypatch.setattr(search.child, "plan", answer)
  search.search(child.Request("recipe", "cpu:8"), 6, 1.0, lambda line: None)
  assert asked == [
    (f"mesh={mesh}", f"batch_size={rows}")
    for mesh, rows in (("a", 4), ("a", 2), ("b", 4), ("c", 4))
  ]


def test_the_kept_activations_of_a_row_have_attention_logits_and_fall_with_remat():
  made = {}
  for length in (64, 128):
    flags = (f"task.inputs_length={length}", "model.remat=none", 'mesh={"data":1}')
    config, task = steps.resolve(recipes.load(NANO.partition("=")[2], flags), "cpu", None)
    made[length] = search._residual_bytes(config, task, jax.devices()[:1], 2)
  heads = 4
  layers = 2
  rows = 2
  # float32 weights of the encoder alone
  assert made[128] - made[64] > rows * layers * heads * (128**2 - 64**2) * 4
  kept = search._activation_bytes(config, task, jax.devices()[:1])
  assert 0 < kept["full"] < kept["minimal"] < kept["none"]


def test_an_installed_compiler_is_left_alone_by_other_programs(tmp_path):
  (tmp_path / "libtpu").mkdir()
  (tmp_path / "libtpu" / "__init__.py").write_text("def get_library_path():\n  return __file__\n")
  program = (
    "from t5x_like.runtime import process\nprocess.prepare()\n"
    "import jax, libtpu\nprint(jax.config.jax_platforms, len(jax.devices()))"
  )
  env = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"} | {
    "PYTHONPATH": str(tmp_path)
  }
  done = subprocess.run(
    [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=600
  )
  assert done.stdout == "cpu 8\n" and not done.stderr, done


def test_arrays_in_the_hosts_memory_take_none_of_the_devices():
  one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  there = jax.ShapeDtypeStruct((4, 8), "float32", sharding=one.with_memory_kind("pinned_host"))
  here = jax.ShapeDtypeStruct((4, 8), "float32", sharding=one.with_memory_kind("device"))
  assert steps.shard_bytes({"mu": there, "kernel": here}) == 4 * 8 * 4


def test_what_is_frozen_sends_no_gradient():
  rules = Rules.make(make_mesh({"fsdp": 4, "data": 2}, jax.devices()[:8]))
  named = {
    name: types.SimpleNamespace(shape=(64, 32), axes=("embed", "mlp"))
    for name in ("adapter", "kernel")
  }
  whole, one, none = (
    minimum.ring_bytes(named, rules, 2, True, 1, trained) for trained in (None, {"adapter"}, ())
  )
  assert whole["gathers"] == one["gathers"] == none["gathers"] == 2 * 2 * 64 * 32 * 2 * 3 / 4
  assert whole["reductions"] == 2 * one["reductions"] == 2 * 64 * 32 * 2 * (3 / 4 + 2 / 4 * 1 / 2)
  assert none["reductions"] == 0
  taught = minimum.ring_bytes(
    named | {"reference/kernel": named["kernel"]}, rules, 2, True, 1, {"adapter"}
  )
  assert taught["gathers"] == 1.25 * whole["gathers"] and taught["reductions"] == one["reductions"]


@pytest.mark.parametrize(
  "step, sent, said", [("decode", 90.0, True), ("decode", 20.0, False), ("eval", 90.0, False)]
)
def test_the_verdict_says_when_decoding_gathers_parameters_for_every_token(step, sent, said):
  told = {"step": step, "fits": True, "total_gigabytes": 5.0, "memory": {"hbm": 16e9}}
  told |= {"ring_gigabytes": sent, "minimum_ring_gigabytes": 15.0}
  assert ("mesh.tensor" in compiling._verdict(told)) == said

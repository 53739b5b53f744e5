"""Commands refuse bad input by one line on stderr and exit code 2, and leave saved files intact."""

import contextlib
import hashlib
import json
import pathlib
import re
import shutil
import socket
import subprocess
import sys

import pytest

import json_lines
from launch import local
from stores import TokenStoreWriter
from t5x_like import data, evaluate, predict, train
from t5x_like.checkpoints import manifest as checkpoint_manifest
from t5x_like.corpora import builtin
from t5x_like.training import workdir as workdirs
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary
from tests.runs import NANO, REPO, environment, steps
from tests.runs import train as command

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled")]
SMALL = (
  "--config.total_steps=4",
  "--config.eval_every=4",
  "--config.checkpoint.every=2",
  "--config.evals.loss={}",
)


def contents(folder) -> dict[str, str]:
  """Return a hash of every file, by relative path."""
  files = sorted(p for p in pathlib.Path(folder).rglob("*") if p.is_file())
  return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def only_error(code: int, err: str, expected: int = 2) -> str:
  """Return the only error line on stderr; progress and warnings may accompany it."""
  word = {2: "error: ", 4: "damage: "}[expected]
  lines = err.splitlines()
  errors = [line for line in lines if line.startswith(word)]
  progress = [line for line in lines if re.match(r"warning: |step \d", line)]
  assert code == expected, err
  assert len(errors) == 1, err
  assert len(errors) + len(progress) == len(lines), err
  return errors[0]


@pytest.fixture
def refused(capsys, tmp_path):
  """Call a command in this process, and check that its only error line holds all `parts`.

  It must not leave a workdir that it made.
  """

  def call(
    main,
    *flags: str,
    parts: tuple[str, ...],
    workdir=None,
    recipe: str | None = NANO,
    code: int = 2,
  ) -> None:
    workdir = pathlib.Path(workdir or tmp_path / "run")
    is_new = not workdir.exists()
    argv = [f"--workdir={workdir}"]
    if recipe:
      argv.append(f"--config={recipe}")
    capsys.readouterr()
    line = only_error(main([*argv, *flags]), capsys.readouterr().err, code)
    for part in parts:
      assert part in line
    assert not (is_new and workdir.exists())

  return call


FLAGS = {
  "--config.model.dropuot=0.1": (
    "config.model.dropuot",
    "did you mean 'dropout'",
    "variant, vocab_size",
  ),
  "--config.totl_steps=5": ("--config.totl_steps", "did you mean 'total_steps'"),
  "--config.learning_rate=0.1": ("--config.learning_rate", "did you mean 'schedule.learning_rate'"),
  "--config.modle.dropout=5": ("--config.modle.dropout", "did you mean 'model'"),
  "--config.task.inputs_lenght=5": ("config.task.inputs_lenght", "did you mean 'inputs_length'"),
  '--config.evals={"loss": {"max": 3}}': ("config.evals.loss.max", "max_examples"),
  "--config.rules.embd=data": ("rules.embd", "did you mean 'embed'"),
  "--config.mesh.dta=2": ("mesh.dta", "did you mean 'data'"),
  "--config.total_steps=abc": ("config.total_steps", "'abc'", "a whole number above 0"),
  "--config.total_steps=0": ("config.total_steps", "found 0", "a whole number above 0"),
  "--config.seed=None": ("config.seed", "None", "expected int"),
  "--config.model.dropout=1.5": ("config.model.dropout", "1.5", "less than 1"),
  "--config.model.dtype=float99": ("config.model.dtype", "'float99'", "'bfloat16'"),
  "--config.model=5": ("--config.model", "'5'", "--config.model.KEY=VALUE"),
  '--config.evals={"loss": 3}': ("config.evals.loss", "found 3"),
  "--config.rules.embed=dta": ("rules.embed", "did you mean 'data'"),
  "--config.mesh.data=two": ("mesh.data", "'two'", "whole number"),
  "--config.mesh.data=0": ("mesh", "'data': 0"),
  "--config.task.inputs_length=true": (
    "config.task.inputs_length",
    "True",
    "a whole number from 1",
  ),
  "--config.task.inputs_length=2": ("inputs_length", "found 2", "at least 3"),
  "--config.task.noise_density=2.0": ("noise_density", "found 2.0", "between 0 and 1"),
  "--config.model.name=t6": ("config.model.name", "'t6'", "t5"),
  "--config.model.variant=t5-smal": ("config.model.variant", "did you mean 't5-small'"),
  "--config.objective.name=mlm": (
    "config.objective",
    "'encoder_target_tokens'",
    "span_corruption",
    "decoder_target",
  ),
  "--config.batch_size=12": ("config.batch_size", "found 12", "multiple of 8", "data=8"),
  "--config.accumulation_steps=3": (
    "config.batch_size",
    "found 8",
    "multiple of 24",
    "3 accumulation steps",
  ),
  '--config.mesh={"tensor": 8}': ("kernel", "'kv_heads'", "4 kv_heads of width 8", "8 equal parts"),
  '--config.mesh={"stage": 4, "data": -1}': (
    "axis 'layers' holds 2 layers",
    "layers->stage",
    "4 equal parts",
  ),
  '--config.mesh={"stage": 2, "data": -1} --config.rules.layers=None': (
    "mesh.stage=2",
    "no rule",
    "rules.layers=stage",
  ),
  '--config.mesh={"data": 3}': ("mesh", "3 devices", "found 8"),
  '--config.mesh={"tensor": 3, "data": -1}': ("mesh", "multiple of 3 devices", "found 8"),
  "--config.model.vocab_size=100": ("config.model.vocab_size", "found 100", "384"),
  "--config.model.design.windows=[]": ("config.model.design.windows: found an empty list",),
  "--config.model.design.core=[]": ("config.model.design.core: found an empty list",),
  "--config.model.design.position=[]": ("config.model.design.position: found an empty list",),
  "--config.model.desgin.norm=layernorm": ("config.model.desgin", "did you mean 'design'"),
  "--config.model.design.positon=rope": (
    "config.model.design.positon",
    "did you mean 'position'",
    "norm_position",
  ),
  "--config.model.design.position=ropes": (
    "design.position",
    "found 'ropes'",
    "did you mean 'rope'",
  ),
  '--config.model.design.position={"name": "learned", "length": 16}': (
    "positions for 16 tokens",
    "length of 32",
  ),
  "--config.task.inputs_length=30000 --config.task.targets_length=None": (
    "30000",
    "1667 noise spans",
    "125 sentinels",
  ),
  "--foo=3": ("--foo=3", "--config.KEY=VALUE"),
  "foo": ("foo: unknown argument",),
  "--profile=3": ("--profile=3", "FIRST:LAST"),
}


@pytest.mark.parametrize(("flags", "parts"), FLAGS.items(), ids=FLAGS.keys())
def test_an_invalid_flag_is_refused_before_any_checkpoint(flags, parts, refused, tmp_path):
  words = re.split(r" (?=--)", flags)
  refused(train.main, *words, parts=parts)
  assert not (tmp_path / "run" / "checkpoints").exists()


ODD_WIDTH = """
from dataclasses import replace
from t5x_like.models import t5
from tests.recipes import nano

variant = t5.VARIANTS['nano']
t5.VARIANTS['odd'] = replace(variant, dims=replace(variant.dims, embed=36))

def get_config():
  config = nano.get_config()
  config.model.variant = 'odd'
  config.mesh = {'fsdp': 8}
  return config
"""


def test_an_embedding_that_does_not_divide_over_fsdp_is_refused(refused, tmp_path):
  recipe = tmp_path / "odd.py"
  recipe.write_text(ODD_WIDTH)
  parts = ("'embed' holds 36 embed", "embed->fsdp", "8 equal parts")
  refused(train.main, recipe=str(recipe), parts=parts)


RECIPES = {
  "from t5x_like.config import defaults\ndef get_config():\n  c = defaults()\n  c.totl_steps = "
  "3\n  return c\n": (
    "unknown key 'totl_steps'",
    "did you mean 'total_steps'",
  ),
  "def get_config():\n  return {}['model']\n": ("the recipe failed: KeyError", "model"),
  "def get_config(:\n": ("the recipe failed: SyntaxError",),
  "x = 3\n": ("the recipe failed: AttributeError", "get_config"),
  "def get_config():\n  return 3\n": ("get_config returns a int", "expected"),
  "def get_config():\n  pass\n": ("get_config returns a NoneType", "expected"),
  "def get_config():\n  return {'model': {}}\n": ("get_config returns a dict", "expected"),
}


@pytest.mark.parametrize(("text", "parts"), RECIPES.items(), ids=range(len(RECIPES)))
def test_a_file_that_is_no_recipe_is_refused(text, parts, refused, tmp_path):
  recipe = tmp_path / "recipe.py"
  recipe.write_text(text)
  refused(train.main, recipe=str(recipe), parts=(str(recipe), *parts))


def test_a_missing_recipe_is_refused(refused, capsys, tmp_path):
  refused(
    train.main,
    recipe="configs/t5/bse.py",
    parts=("configs/t5/bse.py", "did you mean 'configs/t5/base.py'"),
  )
  refused(
    train.main,
    recipe="configs/t5/base.py:debgu",
    parts=("'debgu'", "did you mean 'debug'", "large, xl, xxl"),
  )
  refused(train.main, recipe="LICENSE", parts=("LICENSE", "recipes are Python files"))
  assert "--workdir" in only_error(train.main([f"--config={NANO}"]), capsys.readouterr().err)
  assert "--config" in only_error(train.main([f"--workdir={tmp_path}"]), capsys.readouterr().err)


@pytest.fixture
def store(tmp_path):
  return pathlib.Path(shutil.copytree(builtin.prepare(), tmp_path / "store"))


def _flip(path):
  content = bytearray(path.read_bytes())
  content[1000] ^= 1
  path.write_bytes(content)


TOKENS = "train/tokens/000000000000"
DAMAGES = {  # damage, file that the error names, other parts of the error, exit code
  "missing": (
    lambda s: shutil.rmtree(s),
    "train",
    ("no token store", "no such directory", "tools.prepare_data"),
    2,
  ),
  "no manifest": (
    lambda s: (s / "train/manifest.json").unlink(),
    "train",
    ("without manifest.json",),
    2,
  ),
  "empty manifest": (
    lambda s: (s / "train/manifest.json").write_text(""),
    "train/manifest.json",
    (),
    2,
  ),
  "truncated": (
    lambda s: (s / TOKENS).write_bytes((s / TOKENS).read_bytes()[:-9]),
    TOKENS,
    ("expected", "truncated"),
    4,
  ),
  "empty": (lambda s: (s / TOKENS).write_bytes(b""), TOKENS, ("found 0 bytes", "expected"), 4),
  "lost": (lambda s: (s / TOKENS).unlink(), TOKENS, ("no such file",), 2),
  "corrupt": (lambda s: _flip(s / TOKENS), TOKENS, ("SHA-256", "expected", "corrupt"), 4),
  "validation": (
    lambda s: shutil.rmtree(s / "validation"),
    "validation",
    ("no such split; there are train",),
    2,
  ),
}


@pytest.mark.parametrize(("damage", "file", "parts", "code"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_store_is_refused(damage, file, parts, code, store, refused):
  damage(store)
  flag = f"--config.task.store={store}"
  refused(train.main, flag, parts=(str(store / file), *parts), code=code)


def write_store(path, vocabulary, text: str):
  for split in ("train", "validation"):
    with TokenStoreWriter(
      path / split, name="other", split=split, vocabulary=vocabulary, append_eos=False, source={}
    ) as writer:
      ids = vocabulary.encode_batch([text])[0]
      writer.add(ids, [len(ids)])
  return path


def test_a_store_shorter_than_a_window_is_refused(refused, tmp_path):
  store = write_store(tmp_path / "short", ByteVocabulary(), "0123456789")
  parts = (
    str(store / "train"),
    "found 10 tokens",
    "window of 34 tokens",
    "shorten the task's lengths",
  )
  refused(train.main, f"--config.task.store={store}", parts=parts)


@pytest.fixture
def other_vocabulary(tmp_path):
  """Return a store whose ids are of another vocabulary."""
  return write_store(
    tmp_path / "other", ByteVocabulary(extra_ids=100), "a document of some length " * 20
  )


@pytest.fixture
def untouched(trained):
  """Yield the finished run, and check that the test left it unchanged."""
  before = contents(trained)
  yield trained
  assert contents(trained) == before


@pytest.mark.more
def test_another_vocabulary_is_refused_by_every_command(
  untouched, other_vocabulary, refused, tmp_path
):
  store = f"--config.task.store={other_vocabulary}"
  keys = ("fingerprints.data", "fingerprints.vocabulary")
  refused(train.main, store, *SMALL, workdir=untouched, parts=(str(untouched), *keys))
  refused(
    evaluate.main, store, workdir=untouched, parts=(str(untouched), "fingerprints.vocabulary")
  )
  copy = shutil.copytree(untouched, tmp_path / "copy")
  shutil.rmtree(copy / "vocabulary")
  shutil.copytree(other_vocabulary / "train" / "vocabulary", copy / "vocabulary")
  lines = tmp_path / "lines.txt"
  lines.write_text("a <extra_id_0> b\n")
  flags = (f"--input={lines}", f"--output={tmp_path / 'out.jsonl'}")
  refused(predict.main, *flags, workdir=copy, parts=(str(copy), "fingerprints.vocabulary"))
  assert not (tmp_path / "out.jsonl").exists()


def test_a_workdir_of_another_config_is_refused(untouched, refused):
  flags = (
    "--config.seed=5",
    "--config.batch_size=16",
    "--config.model.dropout=0.2",
    "--config.optimizer.name=adamw",
  )
  keys = (
    "batch_size: 8 there, 16 here",
    "model.dropout: 0.1 there, 0.2 here",
    "seed: 0 there, 5 here",
    "optimizer.name",
    "config.phases",
    f"--config.init.workdir={untouched}",
  )
  refused(train.main, *SMALL, *flags, workdir=untouched, parts=(str(untouched), *keys))
  refused(
    evaluate.main,
    "--config.model.variant=t5-tiny",
    workdir=untouched,
    parts=("model.variant", "'nano' there"),
  )


def test_training_does_not_continue_on_data_of_the_first_edition(untouched, refused, tmp_path):
  """Evaluating and predicting continue, since they need only the model."""
  copy = shutil.copytree(untouched, tmp_path / "copy")
  saved = json.loads((copy / "config.json").read_text())
  assert saved["fingerprints"].pop("data_edition") == data.EDITION == 3
  parts = (
    "edition 1",
    "edition 3",
    "finish the run with the version that began it",
    "another --workdir",
  )
  flags = (*SMALL, f"--config.total_steps={2 * saved['total_steps']}")
  (copy / "config.json").write_text(json.dumps(saved))
  refused(train.main, *flags, workdir=copy, parts=(str(copy), *parts))
  assert evaluate.main([f"--workdir={copy}"]) == 0
  (copy / "config.json").unlink()  # then the checkpoint tells
  for file in (copy / "checkpoints").glob("*/manifest/metadata"):
    manifest = json.loads(file.read_text())
    del manifest["digest"], manifest["metadata"]["fingerprints"]["data_edition"]
    file.write_text(json.dumps(manifest | {"digest": checkpoint_manifest.digest(manifest)}))
  refused(train.main, *flags, workdir=copy, parts=(str(copy / "checkpoints"), *parts))


def test_a_workdir_that_cannot_be_written_is_refused(refused, tmp_path):
  file = tmp_path / "file"
  file.write_text("")
  refused(train.main, workdir=file, parts=(str(file), "Not a directory"))
  refused(train.main, workdir=file / "run", parts=(str(file), "Not a directory"))
  refused(train.main, workdir="/proc/run", parts=("/proc/run", "cannot be written"))


@pytest.mark.parametrize("platforms", ["cuda", "none_such"])
def test_devices_that_jax_lacks_are_refused(platforms, tmp_path):
  process = subprocess.run(
    command(tmp_path / "run"),
    cwd=REPO,
    env=environment() | {"JAX_PLATFORMS": platforms, "CUDA_VISIBLE_DEVICES": ""},
    capture_output=True,
    text=True,
  )
  assert process.returncode == 2
  assert process.stderr.splitlines()[-1].startswith(f"error: JAX_PLATFORMS={platforms}: ")
  assert "Traceback" not in process.stderr


def test_a_workdir_in_use_is_refused(untouched, refused, tmp_path):
  workdir = shutil.copytree(untouched, tmp_path / "run")
  with contextlib.closing(workdirs.lock_workdir(workdir)):
    refused(
      train.main, *SMALL, workdir=workdir, parts=(str(workdir), "another process is training in it")
    )
  assert train.main(command(workdir, *SMALL)[3:]) == 0


def test_evaluate_refuses_missing_runs_and_checkpoints(untouched, refused, tmp_path):
  missing = tmp_path / "nothing"
  refused(
    evaluate.main, workdir=missing, recipe=None, parts=(f"--workdir: found no directory {missing}",)
  )
  refused(evaluate.main, workdir=missing, parts=(f"--workdir: found no directory {missing}",))
  assert not missing.exists()
  refused(evaluate.main, "--step=3", workdir=untouched, parts=("no checkpoint of step 3", "[2, 4]"))
  refused(evaluate.main, "--step=x", workdir=untouched, parts=("--step", "'x'"))
  copy = shutil.copytree(untouched, tmp_path / "copy")
  shutil.rmtree(copy / "checkpoints")
  refused(evaluate.main, workdir=copy, parts=(str(copy / "checkpoints"), "no checkpoint yet"))


def test_a_loss_that_is_not_finite_ends_the_run_unsaved(capsys, tmp_path):
  """An update too large for float32 is detected in its own step, and never saved."""
  workdir = tmp_path / "run"
  flags = (
    "--config.schedule.learning_rate=1e30",
    "--config.checkpoint.every=1",
    "--config.total_steps=8",
  )
  assert train.main(command(workdir, *flags)[3:]) == 3
  (line,) = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
  assert "numeric error: train/" in line
  assert "at step" in line
  assert "--config.clip_norm" in line
  assert "--config.guard.name=skip" in line
  rows = json_lines.read(workdir / "metrics.jsonl")
  for step in steps(workdir) if (workdir / "checkpoints").exists() else ():
    assert rows[step - 1]["train/loss"] is not None
    assert rows[step - 1]["train/parameter_norm"] is not None


def test_a_port_in_use_is_refused(capsys):
  with socket.create_server(("", 0)) as server:
    flag = f"--port={server.getsockname()[1]}"
    code = local.main([flag, "--", "true"])
  assert flag in only_error(code, capsys.readouterr().err)


LIMITED = """
import resource, sys
from t5x_like.train import main
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.more
def test_a_full_disk_at_a_save_leaves_earlier_checkpoints(untouched, tmp_path):
  """A process whose files may not grow leaves its checkpoints intact, and the run continues."""
  workdir = shutil.copytree(untouched, tmp_path / "run")
  before = contents(workdir / "checkpoints")
  flags = (*SMALL[1:], "--config.total_steps=8")
  process = subprocess.run(
    [sys.executable, "-c", LIMITED, *command(workdir, *flags)[3:]],
    cwd=REPO,
    env=environment(8),  # a cache of programs could not grow either, of which jax warns
    capture_output=True,
    text=True,
  )
  line = only_error(process.returncode, process.stderr)
  assert str(workdir) in line, line
  assert "File too large" in line, line
  assert "free space" in line, line
  after = contents(workdir / "checkpoints")
  assert before.items() <= after.items()
  assert steps(workdir) == [2, 4]
  assert train.main(command(workdir, *flags)[3:]) == 0
  assert steps(workdir)[-1] == 8

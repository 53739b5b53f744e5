"""Every forgery of a finished run is found, and the line says at which step and in what."""

import json
import pathlib
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

import tests.recipes.nano  # noqa: F401 -- the variant of the run
from stores import TokenStoreWriter
from t5x_like import certify
from t5x_like.certificate import chain
from t5x_like.certificate.digests import digest_metrics, float_bits
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.checkpoints.manifest import flatten, nest
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary
from tests.certificate import chains

pytestmark = pytest.mark.usefixtures("one_device")
LAST = 4  # the step that the run ended at; 2 and 4 are saved, and 4 is evaluated


@pytest.fixture
def workdir(trained, tmp_path):
  """Return a copy of a finished run to be forged."""
  return pathlib.Path(shutil.copytree(trained, tmp_path / "run"))


def records_by_kind(records: list[dict], kind: str) -> dict[int, dict]:
  return {record["step"]: record for record in records if record["kind"] == kind}


def certify_run(workdir, *flags) -> int:
  return certify.main([f"--workdir={workdir}", *flags])


def assert_found(
  capsys, workdir, step: int, aspect: str, *words: str, flags=("--steps=0",)
) -> None:
  """Assert that a run's certificate does not hold, from a step on, and in what."""
  assert certify_run(workdir, *flags) == certify.EXIT_DOES_NOT_HOLD
  captured = capsys.readouterr()
  lines = [line for line in captured.err.splitlines() if "does not hold" in line]
  assert lines[-1].startswith(f"{workdir}: does not hold: step {step}: {aspect}: "), captured.err
  for word in words:
    assert word in lines[-1]
  assert "DOES NOT HOLD" in captured.out
  assert "FAILS: " in captured.out


def test_an_honest_run_holds(trained, tmp_path, capsys):
  """Every batch is made again, and every step is computed again with the same bits."""
  file = tmp_path / "outcome.json"
  assert certify_run(trained, "--steps=all", "--replay=all", f"--json={file}") == 0
  page = capsys.readouterr().out
  page = page[page.index("run  ") :]
  assert max(map(len, page.splitlines())) <= 80
  assert "4 of 4 batches made again" in page
  assert "the same bits; 2 saved states too" in " ".join(page.split())
  outcome = json.loads(file.read_text())
  assert outcome["holds"] is True
  assert [check["name"] for check in outcome["checks"]] == [
    "chain",
    "config",
    "metrics",
    "state",
    "data",
    "replay",
  ]
  last_line = (trained / chain.FILE).read_bytes().splitlines()[-1]
  assert outcome["head"] == chain.hash_line(last_line)
  (start,) = outcome["starts"]
  assert start["environment"]["jax"] == jax.__version__


def forge_line(workdir, name: str, value: float) -> None:
  """Replace a value in the last line of the metrics that has it."""
  path = workdir / "metrics.jsonl"
  rows = [json.loads(line) for line in path.read_text().splitlines()]
  row = [row for row in rows if name in row][-1]
  assert row[name] != value
  row[name] = value
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("pattern", ["train/loss", "train/accuracy", "eval/.*/loss"])
def test_a_forged_metric(workdir, pattern, capsys):
  rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  names = {name for row in rows for name in row if re.fullmatch(pattern, name)}
  forge_line(workdir, min(names), 0.125)
  assert_found(capsys, workdir, LAST, "metrics", "metrics.jsonl has")


def test_a_removed_line_of_metrics(workdir, capsys):
  path = workdir / "metrics.jsonl"
  lines = path.read_text().splitlines(keepends=True)
  path.write_text("".join(line for line in lines if '"step": 3' not in line))
  assert_found(capsys, workdir, 3, "metrics", "has no line of it")


def test_an_edited_record(workdir, capsys):
  path = workdir / chain.FILE
  lines = path.read_bytes().splitlines()
  number = next(i for i, line in enumerate(lines) if json.loads(line)["step"] == 2)
  record = json.loads(lines[number])
  lines[number] = json.dumps(record | {"loss": "3f800000"}).encode()
  path.write_bytes(b"\n".join(lines) + b"\n")
  next_step = json.loads(lines[number + 1])["step"]
  assert_found(capsys, workdir, next_step, "chain", "a record was edited, removed or inserted")


def test_a_removed_stretch_that_is_chained_anew(workdir, capsys):
  records = [record for record in chains.records_of(workdir) if record["step"] != 3]
  chains.rewrite(workdir, records)
  assert_found(capsys, workdir, 3, "chain", "a gap")


def test_a_truncated_chain(workdir, capsys):
  path = workdir / chain.FILE
  lines = path.read_bytes().splitlines(keepends=True)
  kept = [line for line in lines if json.loads(line)["step"] <= 3]
  path.write_bytes(b"".join(kept))
  assert_found(capsys, workdir, 4, "metrics", "the chain ends at step 3")
  # Metrics that are cut too cannot hide the checkpoint.
  metrics = workdir / "metrics.jsonl"
  rows = metrics.read_text().splitlines(keepends=True)
  metrics.write_text("".join(row for row in rows if json.loads(row)["step"] <= 3))
  assert_found(capsys, workdir, 4, "chain", "the chain was cut")


def test_a_duplicated_stretch(workdir, capsys):
  records = chains.records_of(workdir)
  twice = [record for record in records if record["step"] in (3, 4)]
  chains.rewrite(workdir, records + twice)
  assert_found(capsys, workdir, 3, "chain", "a fork")


def test_a_fork_behind_a_forged_start(workdir, capsys):
  records = chains.records_of(workdir)
  saved_state = records_by_kind(records, "save")[2]["state"]
  start = records[0] | {"step": 2, "state": saved_state}
  again = [record for record in records if record["step"] in (3, 4)]
  forged = [again[0] | {"loss": "3f800000"}, *again[1:]]
  chains.rewrite(workdir, [*records, start, *again])  # the same bits: as after a kill
  assert certify_run(workdir, "--steps=0") == 0
  chains.rewrite(workdir, [*records, start, *forged])
  assert_found(capsys, workdir, 3, "code", "a fork: it was made twice, with loss")


def test_records_of_steps_that_were_never_made(workdir, capsys):
  records = chains.records_of(workdir)
  last = records_by_kind(records, "step")[LAST]
  more = last | {"step": LAST + 1, "batch_index": LAST}
  chains.rewrite(workdir, [*records, more])
  assert_found(capsys, workdir, LAST + 1, "chain", "after the run's last one, 4")


def test_records_of_steps_that_an_unfinished_run_never_made(workdir, capsys):
  """The chain alone cannot tell; the metrics have no lines of them, and the batches are others."""
  records = chains.records_of(workdir)
  records[0]["total_steps"] = 100
  last = records_by_kind(records, "step")[LAST]
  more = [last | {"step": number, "batch_index": number - 1} for number in (5, 6)]
  chains.rewrite(workdir, [*records, *more])
  assert_found(capsys, workdir, 5, "metrics", "has no line of it")
  with open(workdir / "metrics.jsonl", "a") as file:
    for number in (5, 6):
      rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
      row = next(row for row in rows if row["step"] == LAST and "train/loss" in row)
      file.write(json.dumps(row | {"step": number}) + "\n")
  assert_found(capsys, workdir, 5, "data", "the run was given", flags=("--steps=all",))


def test_a_swapped_batch(workdir, capsys):
  records = chains.records_of(workdir)
  steps = records_by_kind(records, "step")
  steps[3]["batch"] = steps[2]["batch"]
  chains.rewrite(workdir, records)
  assert_found(
    capsys, workdir, 3, "data", "config, data and seed give the batch", flags=("--steps=all",)
  )


def test_another_store(workdir, tmp_path, capsys):
  with TokenStoreWriter(
    tmp_path / "store" / "train", name="other", split="train", vocabulary=ByteVocabulary(100)
  ) as writer:
    writer.add(np.full(9_000, 50), [9_000])
  flags = ("--steps=1", f"--config.task.store={tmp_path}/store")
  assert_found(capsys, workdir, 1, "data", "are not the run's", flags=flags)


@pytest.mark.parametrize(
  ("key", "value"), [("seed", 1), ("schedule", {"name": "rsqrt", "scale": 2.0})]
)
def test_a_changed_config(workdir, key, value, capsys):
  """With another seed, the batches would be those of another run."""
  path = workdir / "config.json"
  config = json.loads(path.read_text())
  path.write_text(json.dumps(config | {key: value}))
  assert_found(capsys, workdir, 0, "config", "config.json is not the config of the last start", key)


def test_a_chain_for_another_seed(workdir, capsys):
  """The forger changes the config, and the chain so that it agrees."""
  path = workdir / "config.json"
  config = json.loads(path.read_text()) | {"seed": 1}
  config.pop("signature", None)
  path.write_text(json.dumps(config))
  records = chains.records_of(workdir)
  records[0]["config"] = certify_digest(config)
  chains.rewrite(workdir, records)
  assert certify_run(workdir, "--steps=all") == certify.EXIT_DOES_NOT_HOLD
  error = capsys.readouterr().err
  assert "step 1: data: config, data and seed give" in error or "step 2: config" in error


def certify_digest(config: dict) -> str:
  from t5x_like.files.checked_json import digest

  return digest(config)


def test_the_chain_of_another_workdir(workdir, trained, capsys):
  """A run of the same command but for its length: a prefix of this one, and not this one."""
  records = chains.records_of(workdir)
  other = [record for record in records if record["step"] <= 2]
  other[0] = other[0] | {"config": "0" * 64, "total_steps": 2}
  chains.rewrite(workdir, other)
  assert_found(capsys, workdir, 0, "config", "is not the config of the last start")


def resave(workdir: pathlib.Path, step: int, change) -> None:
  """Replace a checkpoint by one of changed tensors, with a manifest that agrees."""
  sharding = SingleDeviceSharding(jax.devices()[0])

  def template(saved: dict) -> dict:
    abstract = {}
    for name, entry in saved.items():
      shape = tuple(entry["shape"])
      abstract[name] = jax.ShapeDtypeStruct(shape, jnp.dtype(entry["dtype"]), sharding=sharding)
    return nest(abstract)

  with Checkpoints(workdir / "checkpoints") as checkpoints:
    _, tree, metadata = checkpoints.restore(template, step)
  shutil.rmtree(workdir / "checkpoints" / str(step))
  with Checkpoints(workdir.with_name("forged")) as checkpoints:
    checkpoints.save(step, nest(change(flatten(tree))), metadata)
  shutil.move(workdir.with_name("forged") / str(step), workdir / "checkpoints" / str(step))


def test_a_checkpoint_of_another_run(workdir, capsys):
  def randomize(tensors: dict) -> dict:
    generator = np.random.default_rng(0)
    return {
      name: jnp.asarray(generator.standard_normal(x.shape), x.dtype)
      if name.startswith("params/")
      else x
      for name, x in tensors.items()
    }

  resave(workdir, LAST, randomize)
  assert_found(capsys, workdir, LAST, "state", "its checkpoint holds the state")


def test_a_checkpoint_with_one_changed_bit_and_a_manifest_that_agrees(workdir, capsys):
  def change_one_bit(tensors: dict) -> dict:
    name = next(name for name in tensors if name.startswith("params/"))
    bits = np.array(tensors[name]).view(np.uint32)
    bits.reshape(-1)[3] ^= 1
    return tensors | {name: jnp.asarray(bits.view(np.float32))}

  resave(workdir, 2, change_one_bit)
  assert_found(capsys, workdir, 2, "state", "its checkpoint holds the state")


def test_a_checkpoint_whose_files_are_changed(workdir, capsys):
  """The manifest is the run's, and a tensor is not."""
  folder = workdir / "checkpoints" / str(LAST) / "state"
  largest = max(folder.rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
  content = bytearray(largest.read_bytes())
  content[len(content) // 2] ^= 255
  largest.write_bytes(content)
  assert_found(capsys, workdir, LAST, "state", "damaged checkpoint")


def test_a_save_that_the_chain_does_not_have(workdir, capsys):
  records = chains.records_of(workdir)
  records = [r for r in records if not (r["kind"] == "save" and r["step"] == 2)]
  chains.rewrite(workdir, records)
  assert_found(capsys, workdir, 2, "state", "the chain has no save of it")


def test_a_forged_loss_that_chain_and_metrics_agree_on_is_found_by_replay(workdir, capsys):
  path = workdir / "metrics.jsonl"
  rows = [json.loads(line) for line in path.read_text().splitlines()]
  forged = next(row for row in rows if row["step"] == 3 and "train/loss" in row)
  forged["train/loss"] = float(np.float32(forged["train/loss"]) * np.float32(0.9))
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  records = chains.records_of(workdir)
  values = {name.removeprefix("train/"): x for name, x in forged.items() if name != "step"}
  step = records_by_kind(records, "step")[3]
  step |= {"loss": float_bits(values["loss"]), "metrics": digest_metrics(values)}
  chains.rewrite(workdir, records)
  assert certify_run(workdir, "--steps=all") == 0
  capsys.readouterr()
  flags = ("--steps=0", "--replay=all")
  assert_found(capsys, workdir, 3, "code", "is computed from the checkpoint", flags=flags)


def test_a_run_without_a_chain(workdir, capsys):
  (workdir / chain.FILE).unlink()
  assert certify_run(workdir) == 2
  (line,) = [line for line in capsys.readouterr().err.splitlines() if line]
  assert re.match(r"error: \S+certificate\.jsonl: not there: the run was made before", line)


def test_runs_are_compared(workdir, trained, tmp_path, capsys):
  file = tmp_path / "comparison.json"
  command = (f"--against={trained}", f"--json={file}")
  assert certify_run(workdir, *command) == 0
  assert json.loads(file.read_text())["last_equal_step"] == LAST
  records = chains.records_of(workdir)
  steps = records_by_kind(records, "step")
  saves = records_by_kind(records, "save")
  for record, change, step, aspect in (
    (saves[4], {"state": "0" * 64}, 4, "state"),
    (steps[3], {"loss": "3f800000"}, 3, "code"),
    (steps[2], {"batch": "0" * 64}, 2, "data"),
  ):
    record |= change
    chains.rewrite(workdir, records)
    assert certify_run(workdir, *command) == certify.EXIT_DOES_NOT_HOLD
    assert f"differs from {trained}: step {step}: {aspect}: " in capsys.readouterr().err
    outcome = json.loads(file.read_text())
    assert outcome["difference"]["step"] == step
    assert outcome["last_equal_step"] == step - 1
  assert certify_run(workdir, *command, "--replay=1") == 2

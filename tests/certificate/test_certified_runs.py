"""The certificate of a run that was continued, set back, changed or rolled back holds."""

import json
import pathlib
import shutil
from collections.abc import Iterator

import pytest

import tests.recipes.nano  # noqa: F401 -- the variant of the runs
from t5x_like import certify, train
from t5x_like.certificate import chain
from t5x_like.training import phases
from tests.certificate import chains
from tests.fine_tuning import fine_tuning
from tests.runs import NANO, fingerprints, run
from tests.runs import train as train_command

pytestmark = [
  pytest.mark.runs,
  pytest.mark.usefixtures("compiled", "one_device"),
]
FLAGS = (
  "--config.checkpoint.every=2",
  "--config.checkpoint.keep_last=9",
  "--config.eval_every=4",
  "--config.evals.loss={}",
)


def train_run(workdir, *flags, recipe: str = NANO) -> int:
  return train.main([f"--config={recipe}", f"--workdir={workdir}", *FLAGS, *flags])


def certify_run(workdir, *flags) -> dict:
  """Return the outcome of a certificate that holds."""
  file = pathlib.Path(f"{workdir}.json")
  assert certify.main([f"--workdir={workdir}", f"--json={file}", *flags]) == 0
  return json.loads(file.read_text())


def test_a_run_that_is_continued_changed_and_set_back(trained, tmp_path):
  workdir = shutil.copytree(trained, tmp_path / "run")
  assert train_run(workdir, "--config.total_steps=6", "--config.log_every=2") == 0
  assert train_run(workdir, "--config.total_steps=6", "--from_step=2") == 0
  outcome = certify_run(workdir, "--steps=all", "--replay=all")
  assert [start["step"] for start in outcome["starts"]] == [0, 4, 2]
  assert outcome["last_step"] == 6
  assert outcome["saved_states"].keys() == {"0", "2", "4", "6"}
  replay = outcome["checks"][-1]["summary"]
  assert "6 steps from 0, 2, 4: the same bits; 3 saved states too" in replay
  manifest = fingerprints(workdir, 6)
  assert manifest == fingerprints(shutil.copytree(workdir, tmp_path / "copy"), 6)


def test_a_chain_begins_where_a_run_from_before_certificates_is_continued(
  trained, tmp_path, capsys
):
  workdir = shutil.copytree(trained, tmp_path / "run")
  (workdir / chain.FILE).unlink()
  assert train_run(workdir, "--config.total_steps=6") == 0
  assert f"{chain.FILE} begins at step 4" in capsys.readouterr().out
  outcome = certify_run(workdir, "--steps=all", "--replay=all")
  assert outcome["first_step"] == 5
  assert outcome["last_step"] == 6
  assert "holds for steps 5 to 6" in capsys.readouterr().out
  # If a part of the chain is missing, the outcome says so.
  records = chains.records_of(workdir)
  chains.rewrite(workdir, [record for record in records if record["step"] < 5])
  assert train_run(workdir, "--config.total_steps=8") == 0
  assert (
    f"{chain.FILE} ends at step 4, and the run continues from step 6" in capsys.readouterr().out
  )
  assert certify.main([f"--workdir={workdir}"]) == certify.EXIT_DOES_NOT_HOLD
  assert "step 5: chain: a gap" in capsys.readouterr().err


def poison_batch(poisoned_index: int, monkeypatch) -> None:
  """Make the loss weights of a batch NaN."""
  iterate_batches = phases.iterate_batches

  def iterate_poisoned_batches(run_phases, first, rows=None) -> Iterator[dict]:
    for index, batch in enumerate(iterate_batches(run_phases, first, rows), start=first):
      if index == poisoned_index:
        batch = batch | {"decoder_loss_weights": batch["decoder_loss_weights"] * float("nan")}
      yield batch

  monkeypatch.setattr(phases, "iterate_batches", iterate_poisoned_batches)


def test_a_rollback(tmp_path, monkeypatch, capsys):
  workdir = tmp_path / "run"
  guard = '--config.guard={"name": "rollback", "steps": 2}'
  with monkeypatch.context() as patch:
    poison_batch(4, patch)
    assert train_run(workdir, "--config.total_steps=6", guard) == 0
  outcome = certify_run(workdir, "--steps=all", "--replay=all")
  assert [(r["from"], r["to"]) for r in outcome["rollbacks"]] == [(5, 2)]
  assert "rollback  from step 5 to 2: train/loss is nan" in capsys.readouterr().out
  steps = [record for record in chains.records_of(workdir) if record["kind"] == chain.STEP]
  assert [(s["step"], s["batch_index"]) for s in steps] == [
    *((n, n - 1) for n in range(1, 6)),
    *((n, n + 2) for n in range(3, 7)),
  ]


def test_an_update_skipped_for_poisoned_memory_is_listed(tmp_path, monkeypatch, capsys):
  workdir = tmp_path / "run"
  with monkeypatch.context() as patch:
    poison_batch(2, patch)
    assert train_run(workdir, "--config.total_steps=4", '--config.guard={"name": "skip"}') == 0
  outcome = certify_run(workdir, "--steps=all")
  assert outcome["skipped_updates"] == [3]
  output = capsys.readouterr().out
  assert "3 of 4 batches made again from the data; other batches in steps whose" in output
  assert "updates of 1 steps: 3" in output
  # without the fault, the step has other bits
  assert certify.main([f"--workdir={workdir}", "--replay=all"]) == certify.EXIT_DOES_NOT_HOLD
  error = capsys.readouterr().err
  assert "step 3: code: its update was left out (train/loss is nan)" in error
  assert "with loss nan and " in error


@pytest.mark.more
def test_an_update_skipped_for_its_loss_is_computed_again(tmp_path):
  workdir = tmp_path / "run"
  guard = '--config.guard={"name": "skip", "spike": 1.02, "window": 1}'
  assert train_run(workdir, "--config.total_steps=24", guard) == 0
  outcome = certify_run(workdir, "--steps=all", "--replay=all")
  assert outcome["skipped_updates"]
  assert "24 of 24 batches" in outcome["checks"][-2]["summary"]
  assert "the same bits" in outcome["checks"][-1]["summary"]


@pytest.mark.more
def test_a_run_in_an_object_store(tmp_path):
  address = "memory://certificates/run"
  for total in (3, 6):
    assert train_run(address, f"--config.total_steps={total}") == 0
  file = tmp_path / "outcome.json"
  flags = (f"--json={file}", "--steps=all", "--replay=2")
  assert certify.main([f"--workdir={address}", *flags]) == 0
  outcome = json.loads(file.read_text())
  assert [start["step"] for start in outcome["starts"]] == [0, 3]
  assert outcome["saved_states"].keys() == {"0", "2", "3", "4", "6"}


@pytest.mark.more
def test_batches_that_are_cut_to_buckets(tmp_path):
  workdir = tmp_path / "run"
  overrides = [f"--config.{override}" for override in fine_tuning("classification", tmp_path)]
  flags = (*overrides, "--config.task.buckets=4", "--config.total_steps=4", "--config.evals={}")
  assert train_run(workdir, *flags, recipe="configs/roberta/base.py:debug") == 0
  outcome = certify_run(workdir, "--steps=all", "--replay=2")
  assert outcome["holds"]


@pytest.mark.more
def test_the_rows_of_hosts_add_up_to_one_chain(tmp_path):
  """Two processes whose mesh repeats rows, and one process, record the same batches."""
  launcher = ["launch/local.py", "--processes=2", "--devices_per_process=2", "--grace_seconds=5"]
  commands = {
    "rows": [*launcher, "--"],
    "repeated": [*launcher, "--"],
    "alone": [],
  }
  meshes = {"rows": "data=4", "repeated": "tensor=4", "alone": "data=1"}
  batches = {}
  for name, prefix in commands.items():
    command = train_command(tmp_path / name, *FLAGS, "--config.total_steps=6")
    command = [*([command[0]] if prefix else []), *prefix, *command]
    devices = {"cache": tmp_path / "compiled", "devices": 1}
    code, output = run([*command, f"--config.mesh.{meshes[name]}"], **devices)
    assert code == 0, output
    records = chains.records_of(tmp_path / name)
    batches[name] = [record["batch"] for record in records if record["kind"] == chain.STEP]
    assert certify_run(tmp_path / name, "--steps=all", "--replay=all")["last_step"] == 6
  assert batches["rows"] == batches["repeated"] == batches["alone"]
  assert len(batches["alone"]) == 6

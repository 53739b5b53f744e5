"""Checkpoints of T5X become workdirs that go on training: same weights, same loss, same next
update."""

import json
import shutil

import jax
import numpy as np
import pytest
from flax import serialization
from safetensors.numpy import load_file

import t5x_reference as t5x
from t5x_like import train
from t5x_like.checkpoints import manifest
from t5x_like.data import loader
from t5x_like.interop import t5x as interop
from t5x_like.interop.t5x_files import Checkpoint
from t5x_like.report.writer import read_metrics
from t5x_like.runtime import process
from t5x_like.saved_model import open_saved_model
from t5x_like.training import imported_weights
from tools import convert_hf, convert_t5x

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("one_device")]

NANO = "tests/recipes/nano.py"
STEP = 1_200
# A store of bytes, so that the vocabulary fits the small table; no dropout, and a rate that the
# step decides.
FLAGS = (
  "--config.model.dropout=0.0",
  "--config.model.layers=scan",
  "--config.task.store={store}",
  f"--config.total_steps={STEP + 1}",
  "--config.eval_every=1",
  "--config.log_every=1",
  "--config.checkpoint.every=1",
  "--config.batch_size=4",
)


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
  from tools import prepare_data

  folder = tmp_path_factory.mktemp("corpus")
  text = " ".join(f"the {n} quick brown foxes jump over {n * n} lazy dogs" for n in range(2_000))
  (folder / "text.txt").write_text(
    "\n".join(text[i : i + 5_000] for i in range(0, len(text), 5_000))
  )
  argv = [f"--source=lines:{folder}/text.txt", "--vocabulary=bytes", f"--output={folder}/store"]
  assert prepare_data.main(argv) == 0
  return [flag.format(store=folder / "store") for flag in FLAGS]


def arguments(directory, workdir, flags, *extra) -> list[str]:
  """Return the flags of a conversion; `extra` may replace the unit of the losses."""
  return [
    f"--input={directory}",
    f"--output={workdir}",
    f"--config={NANO}",
    "--vocabulary=bytes",
    "--loss_normalizing_factor=NUM_REAL_TARGET_TOKENS",
    *flags,
    *extra,
  ]


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
  """Return a checkpoint of T5 1.1 with the moments of its optimizer; do not change it."""
  form = t5x.FORMS["t5-1.1"]
  params = t5x.tree(form)
  return t5x.write(tmp_path_factory.mktemp("sound") / "there", params, t5x.moments(form, params))


def batch_of(workdir, step: int) -> dict[str, np.ndarray]:
  """Return the batch that the run of the workdir takes at a step."""
  config = json.loads((workdir / "config.json").read_text())
  arguments = dict(config["task"])
  task = process.build_task("task", arguments.pop("name"), "train", arguments)
  batches = loader.train_batches(
    task, batch_size=config["batch_size"], seed=config["seed"], start_step=step
  )
  return {name: np.asarray(x) for name, x in next(batches).items()}


def in_hugging_face(form, params) -> dict[str, np.ndarray]:
  """Return the tensors of Hugging Face's converters for the same arrays, by T5's names there."""
  tensors = {"shared.weight": params["token_embedder/embedding"]}
  if not form.tied:
    tensors["lm_head.weight"] = params["decoder/logits_dense/kernel"].T
  attention = {
    "encoder": [("SelfAttention", "attention", "pre_attention_layer_norm")],
    "decoder": [
      ("SelfAttention", "self_attention", "pre_self_attention_layer_norm"),
      ("EncDecAttention", "encoder_decoder_attention", "pre_cross_attention_layer_norm"),
    ],
  }
  for side, layers in zip(("encoder", "decoder"), form.layers):
    tensors[f"{side}.final_layer_norm.weight"] = params[f"{side}/{side}_norm/scale"]
    for i in range(layers):
      p = t5x.layer(form, params, side, i)
      for number, (hf_name, layer, norm) in enumerate(attention[side]):
        prefix = f"{side}.block.{i}.layer.{number}"
        tensors[f"{prefix}.layer_norm.weight"] = p[f"{norm}/scale"]
        for letter, part in zip("qkvo", ("query", "key", "value", "out")):
          kernel = p[f"{layer}/{part}/kernel"]
          flat = kernel.reshape(-1, t5x.STREAM) if part == "out" else kernel.reshape(t5x.STREAM, -1)
          tensors[f"{prefix}.{hf_name}.{letter}.weight"] = flat.T
      prefix = f"{side}.block.{i}.layer.{len(attention[side])}"
      tensors[f"{prefix}.layer_norm.weight"] = p["pre_mlp_layer_norm/scale"]
      for part in ("wi_0", "wi_1", "wo") if form.gated else ("wi", "wo"):
        tensors[f"{prefix}.DenseReluDense.{part}.weight"] = p[f"mlp/{part}/kernel"].T
      if form.per_layer or i == 0:
        tables = p if form.per_layer else params
        prefix = "" if form.per_layer else f"{side}/"
        table = tables[f"{prefix}relpos_bias/rel_embedding"]
        tensors[f"{side}.block.{i}.layer.0.SelfAttention.relative_attention_bias.weight"] = table.T
  return tensors


MORE = {name: pytest.mark.more for name in t5x.FORMS if name != "umt5"}


@pytest.mark.parametrize(
  "name", [pytest.param(name, marks=MORE.get(name, [])) for name in t5x.FORMS]
)
def test_weights_loss_and_the_next_update_are_those_of_t5x(
  name, flags, tmp_path, compiled, one_device
):
  form = t5x.FORMS[name]
  params = t5x.tree(form)
  state = t5x.moments(form, params)
  directory = t5x.write(tmp_path / "checkpoint_1200", params, state, STEP)
  run = tmp_path / "run"
  assert convert_t5x.main(arguments(directory, run, flags)) == 0
  assert convert_hf.main([f"--input={run}", f"--output={tmp_path / 'hf'}"]) == 0
  exported = load_file(tmp_path / "hf/model.safetensors")
  expected = in_hugging_face(form, params)
  assert exported.keys() == expected.keys()
  assert all(np.array_equal(exported[key], expected[key]) for key in expected)

  batch = batch_of(run, STEP)
  grads = jax.jit(jax.grad(lambda p: t5x.loss(form, p, batch, 1e-4)))(params)
  assert train.main([f"--config={NANO}", f"--workdir={run}", *flags]) == 0
  assert read_metrics(run)[-1]["train/loss"] == pytest.approx(
    float(t5x.loss(form, params, batch)), abs=1e-4
  )

  after, _ = t5x.adafactor(form, params, state, grads, STEP, max(STEP, 1_000) ** -0.5)
  assert convert_hf.main([f"--input={run}", f"--output={tmp_path / 'after'}"]) == 0
  mine = load_file(tmp_path / "after/model.safetensors")
  updated = in_hugging_face(form, after)
  for key in updated:
    moved = np.abs(updated[key] - expected[key]).max()
    assert moved > 1e-5
    np.testing.assert_allclose(mine[key], updated[key], atol=2e-3 * moved, rtol=0, err_msg=key)


def orbax_state(params, state, step):
  """Return a train state as T5X hands it to Orbax."""
  return {
    "target": t5x.nest(params),
    "state": {
      "step": np.int32(step),
      "param_states": t5x.nest(
        {f"{path}/{kind}": x for path, kinds in state.items() for kind, x in kinds.items()}
      ),
    },
  }


@pytest.mark.parametrize("ocdbt", [True, False], ids=["ocdbt", "zarr"])
def test_checkpoints_saved_through_orbax_are_the_same(ocdbt, tmp_path, compiled):
  import orbax.checkpoint as ocp

  form = t5x.FORMS["scanned"]
  params = t5x.tree(form)
  state = t5x.moments(form, params)
  handler = ocp.PyTreeCheckpointHandler(use_ocdbt=ocdbt)
  with ocp.Checkpointer(handler) as checkpointer:
    checkpointer.save(
      tmp_path / "checkpoint_7" / "state",
      jax.tree.map(jax.numpy.asarray, orbax_state(params, state, 7)),
    )
  written = Checkpoint(str(t5x.write(tmp_path / "own", params, state, 7)))
  saved = Checkpoint(str(tmp_path))  # the newest of the checkpoints there
  assert saved.names == written.names
  assert all(np.array_equal(saved.read(name), written.read(name)) for name in written.names)
  assert (
    interop.read_variant(saved) == interop.read_variant(written) and interop.read_step(saved) == 7
  )


def test_a_bfloat16_copy_of_a_bucket_gives_only_the_weights(flags, tmp_path, compiled, one_device):
  form = t5x.FORMS["t5-1.0"]
  params = t5x.tree(form)
  directory = t5x.write(tmp_path / "there", params, None, None, save_dtype="bfloat16", remote=True)
  run = tmp_path / "run"
  flags = arguments(directory, run, flags, "--config.optimizer.name=adamw")
  assert convert_t5x.main(flags) == 0
  step, arrays, *_ = open_saved_model(str(run)).restore()
  table = params["token_embedder/embedding"].astype(jax.numpy.bfloat16)
  assert np.array_equal(arrays["embed/table"], np.float32(table))
  assert step == 0


def test_moments_of_summed_losses_get_the_unit_of_means(
  sound, flags, tmp_path, monkeypatch, one_device
):
  trees = []
  monkeypatch.setattr(
    imported_weights,
    "write_imported_workdir",
    lambda *arguments: trees.append(manifest.flatten(arguments[-1])),
  )
  for unit in ([], ["--loss_normalizing_factor=None"], ["--loss_normalizing_factor=12.0"]):
    flags_of_unit = arguments(sound, tmp_path / "run", flags, "--target_tokens=4", *unit)
    assert convert_t5x.main(flags_of_unit) == 0
  written, summed, divided = trees
  moments = [name for name in written if name.startswith("adafactor/v")]
  assert len(moments) > 60
  for name in moments:
    np.testing.assert_allclose(16 * np.asarray(summed[name]), written[name], rtol=1e-6)
    np.testing.assert_allclose(np.asarray(divided[name]), 9 * np.asarray(written[name]), rtol=1e-6)


def check_refusal(message, capsys, directory, output, flags, *extra):
  assert convert_t5x.main(arguments(directory, output, flags, *extra)) == 2
  lines = capsys.readouterr().err.splitlines()
  (line,) = [line for line in lines if line.startswith("error: ")]
  assert message in line
  assert not output.exists()


def descend(tree, *path):
  for key in path:
    tree = tree[key]
  return tree


KERNEL = ("target", "encoder", "layers_1", "mlp", "wo", "kernel")
KERNEL_FOLDER = ".".join(KERNEL)
TABLE = ("target", "token_embedder", "embedding")
FACTORS = ("state", "param_states", "token_embedder", "embedding")
INDEXES = [
  (KERNEL[:-2], {"wo": {}}, f"array '{'/'.join(KERNEL)}' is missing"),
  (KERNEL[:1], {"head": np.zeros(3, "f4")}, "array 'target/head' is unknown"),
  ((*KERNEL, "kvstore"), {"path": "../sound/x"}, f"{'/'.join(KERNEL)}: found '../sound/x'"),
  ((*KERNEL, "kvstore"), {"path": "/etc/passwd"}, "found '/etc/passwd'"),
  (KERNEL, {"driver": "n5"}, "found the driver 'n5'"),
  ((*KERNEL, "metadata"), {"shape": [128, 160]}, "shape [160, 128], expected [128, 160]"),
  ((*KERNEL, "metadata"), {"shape": [-1, 160]}, "found the shape [-1, 160]"),
  (FACTORS, {"v_row": np.ones(5, "f4")}, f"factors '{'/'.join(FACTORS)}' have shape [1, 5]"),
  (FACTORS, {"m": np.ones((384, 128), "f4")}, f"found momentum in '{'/'.join(FACTORS)}/m'"),
  (("state",), {"step": np.int32(-3)}, "state/step"),
]
FILES = [
  ("checkpoint", b"\xdf\xff\xff\xff\xff", "found no index of T5X"),
  ("checkpoint", b"\x81\xa1a" * 5_000, "found no index of T5X"),
  ("checkpoint", b'model_checkpoint_path: "model"', "found a checkpoint of TensorFlow"),
  (f"{KERNEL_FOLDER}/0.0", None, "cannot be read"),
  (f"{KERNEL_FOLDER}/0.0", b"\x1f\x8b\x08", "cannot be read"),
  (f"{KERNEL_FOLDER}/.zarray", b"{", "cannot be opened"),
]


@pytest.fixture
def damaged(sound, tmp_path):
  """Return a copy of the checkpoint that a test may damage."""
  return shutil.copytree(sound, tmp_path / "damaged")


def change_index(folder, path, change):
  tree = serialization.msgpack_restore((folder / "checkpoint").read_bytes())
  descend(tree["optimizer"], *path).update(change)
  (folder / "checkpoint").write_bytes(serialization.msgpack_serialize(tree))


@pytest.mark.parametrize(("path", "change", "message"), INDEXES)
def test_a_bad_index_is_refused(path, change, message, damaged, flags, tmp_path, capsys):
  change_index(damaged, path, change)
  check_refusal(message, capsys, damaged, tmp_path / "out", flags)


def test_an_absurd_shape_is_refused(damaged, flags, tmp_path, capsys):
  shape = {"shape": [2**39, 128]}
  change_index(damaged, (*TABLE, "metadata"), shape)
  file = damaged / ".".join(TABLE) / ".zarray"
  file.write_text(json.dumps(json.loads(file.read_text()) | shape))
  message = "claims shape [549755813888, 128]"
  check_refusal(message, capsys, damaged, tmp_path / "out", flags)


@pytest.mark.parametrize(("name", "content", "message"), FILES)
def test_a_bad_file_is_refused(name, content, message, damaged, flags, tmp_path, capsys):
  (damaged / name).unlink()
  if content is not None:
    (damaged / name).write_bytes(content)
  check_refusal(message, capsys, damaged, tmp_path / "out", flags)


@pytest.mark.parametrize(
  ("extra", "message"),
  [
    ("--input=nowhere", "found neither checkpoint nor _METADATA"),
    ("--config.optimizer.name=adamw", "config.optimizer: found 'adam'"),
    ("--loss_normalizing_factor=None", "--target_tokens=None"),
    ("--loss_normalizing_factor=MEAN", "--loss_normalizing_factor=MEAN"),
    ("--mlp_activations=relu", "found wi_0 and wi_1"),
  ],
)
def test_a_bad_flag_is_refused(extra, message, sound, flags, tmp_path, capsys):
  check_refusal(message, capsys, sound, tmp_path / "out", flags, extra)

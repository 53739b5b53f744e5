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

pytestmark = pytest.mark.runs

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


def converted(directory, workdir, flags, *extra) -> dict[str, np.ndarray]:
  argv = [
    f"--input={directory}",
    f"--output={workdir}",
    f"--config={NANO}",
    "--vocabulary=bytes",
    *flags,
    *extra,
  ]
  argv += (
    []
    if any("factor" in flag for flag in extra)
    else ["--loss_normalizing_factor=NUM_REAL_TARGET_TOKENS"]
  )
  assert convert_t5x.main(argv) == 0
  return open_saved_model(str(workdir)).restore()[1]


def batch_of(workdir, step: int) -> dict[str, np.ndarray]:
  """The batch that the run of the workdir takes at a step."""
  config = json.loads((workdir / "config.json").read_text())
  arguments = dict(config["task"])
  task = process.build_task("task", arguments.pop("name"), "train", arguments)
  batches = loader.train_batches(
    task, batch_size=config["batch_size"], seed=config["seed"], start_step=step
  )
  return {name: np.asarray(x) for name, x in next(batches).items()}


def in_hugging_face(form, params) -> dict[str, np.ndarray]:
  """The tensors that Hugging Face's converters make of the same arrays, by T5's names there."""
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
        table = (
          p["relpos_bias/rel_embedding"]
          if form.per_layer
          else params[f"{side}/relpos_bias/rel_embedding"]
        )
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
  converted(directory, run, flags)

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
  """A train state as T5X hands it to Orbax."""
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


def test_a_bfloat16_copy_of_a_bucket_gives_the_weights_alone(flags, tmp_path, compiled, one_device):
  form = t5x.FORMS["t5-1.0"]
  params = t5x.tree(form)
  directory = t5x.write(tmp_path / "there", params, None, None, save_dtype="bfloat16", remote=True)
  arrays = converted(directory, tmp_path / "run", flags, "--config.optimizer.name=adamw")
  table = params["token_embedder/embedding"].astype(jax.numpy.bfloat16)
  assert np.array_equal(arrays["embed/table"], np.float32(table))
  assert open_saved_model(str(tmp_path / "run")).restore()[0] == 0


def test_moments_of_summed_losses_get_the_unit_of_means(flags, tmp_path, monkeypatch, one_device):
  form = t5x.FORMS["t5-1.1"]
  trees = []
  params = t5x.tree(form)
  directory = t5x.write(tmp_path / "there", params, t5x.moments(form, params))
  monkeypatch.setattr(
    imported_weights,
    "write_imported_workdir",
    lambda *arguments: trees.append(manifest.flatten(arguments[-1])),
  )
  argv = [
    f"--input={directory}",
    f"--output={tmp_path / 'run'}",
    f"--config={NANO}",
    "--vocabulary=bytes",
    *flags,
  ]
  for extra in (
    ["NUM_REAL_TARGET_TOKENS"],
    ["None", "--target_tokens=4"],
    ["12.0", "--target_tokens=4"],
  ):
    assert convert_t5x.main([*argv, f"--loss_normalizing_factor={extra[0]}", *extra[1:]]) == 0
  written, summed, divided = trees
  moments = [name for name in written if name.startswith("adafactor/v")]
  assert len(moments) > 60
  for name in moments:
    np.testing.assert_allclose(16 * np.asarray(summed[name]), written[name], rtol=1e-6)
    np.testing.assert_allclose(np.asarray(divided[name]), 9 * np.asarray(written[name]), rtol=1e-6)


def refusal(capsys, flags, directory, output, *extra) -> str:
  capsys.readouterr()
  argv = [
    f"--input={directory}",
    f"--output={output}",
    f"--config={NANO}",
    "--vocabulary=bytes",
    *flags,
    *extra,
  ]
  argv += (
    []
    if any("factor" in flag for flag in extra)
    else ["--loss_normalizing_factor=NUM_REAL_TARGET_TOKENS"]
  )
  assert convert_t5x.main(argv) == 2
  (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
  assert not output.exists()
  return line


def test_hostile_and_damaged_checkpoints_are_refused_in_one_line(
  flags, tmp_path, capsys, one_device
):
  form = t5x.FORMS["t5-1.1"]
  params = t5x.tree(form)
  state = t5x.moments(form, params)
  sound = t5x.write(tmp_path / "sound", params, state)
  index = serialization.msgpack_restore((sound / "checkpoint").read_bytes())
  kernel = "target.encoder.layers_1.mlp.wo.kernel"

  def spec(tree, *path):
    for key in path:
      tree = tree[key]
    return tree

  def refused(name, change=lambda tree: None, files=lambda folder: None, extra=()):
    folder = tmp_path / name
    shutil.copytree(sound, folder)
    tree = serialization.msgpack_restore((sound / "checkpoint").read_bytes())
    change(tree["optimizer"])
    (folder / "checkpoint").write_bytes(serialization.msgpack_serialize(tree))
    files(folder)
    return refusal(capsys, flags, folder, tmp_path / "out", *extra)

  def at(tree):
    return spec(tree, "target", "encoder", "layers_1", "mlp", "wo", "kernel")

  assert index["version"] == 3
  gone = refused(
    "missing", lambda tree: spec(tree, "target", "encoder", "layers_1", "mlp").pop("wo")
  )
  assert "array 'target/encoder/layers_1/mlp/wo/kernel' is missing" in gone
  assert "array 'target/head' is unknown" in refused(
    "unknown", lambda t: t["target"].update(head=np.zeros(3, "f4"))
  )
  said = refused("outside", lambda tree: at(tree)["kvstore"].update(path="../sound/target.x"))
  assert "target/encoder/layers_1/mlp/wo/kernel: found '../sound/target.x', expected a name" in said
  said = refused("elsewhere", lambda tree: at(tree)["kvstore"].update(path="/etc/passwd"))
  assert "found '/etc/passwd', expected a name" in said
  said = refused("driver", lambda tree: at(tree).update(driver="n5"))
  assert "found the driver 'n5', expected 'zarr'" in said
  said = refused("stated", lambda tree: at(tree)["metadata"].update(shape=[128, 160]))
  assert f"array '{kernel}' has shape [160, 128], expected [128, 160] as the index states" in said
  said = refused("negative", lambda tree: at(tree)["metadata"].update(shape=[-1, 160]))
  assert "found the shape [-1, 160], expected positive sizes" in said
  said = refused(
    "moments",
    lambda t: spec(t, "state", "param_states", "token_embedder", "embedding").update(
      v_row=np.ones(5, "f4")
    ),
  )
  assert "the factors 'state/param_states/token_embedder/embedding' have shape [1, 5]" in said
  momentum = np.ones((384, 128), "f4")
  said = refused(
    "momentum",
    lambda t: spec(t, "state", "param_states", "token_embedder", "embedding").update(m=momentum),
  )
  assert "found momentum in 'state/param_states/token_embedder/embedding/m'" in said
  said = refused("step", lambda tree: tree["state"].update(step=np.int32(-3)))
  assert "state/step" in said and "expected a number of steps" in said

  def grow(tree):
    spec(tree, "target", "token_embedder", "embedding")["metadata"]["shape"] = [2**39, 128]

  def grown(folder):
    huge = folder / "target.token_embedder.embedding" / ".zarray"
    metadata = json.loads(huge.read_text())
    huge.write_text(json.dumps(metadata | {"shape": [2**39, 128]}))

  assert "claims shape [549755813888, 128]" in refused("absurd", grow, grown)
  assert "cannot be read" in refused(
    "chunk", files=lambda folder: (folder / kernel / "0.0").unlink()
  )
  assert "cannot be read" in refused(
    "torn", files=lambda folder: (folder / kernel / "0.0").write_bytes(b"\x1f\x8b\x08")
  )
  assert "cannot be opened" in refused(
    "zarray", files=lambda folder: (folder / kernel / ".zarray").write_text("{")
  )
  assert "found no index of T5X" in refused(
    "index", files=lambda f: (f / "checkpoint").write_bytes(b"\xdf\xff\xff\xff\xff")
  )
  deep = b"\x81\xa1a" * 5_000
  assert "found no index of T5X" in refused(
    "deep", files=lambda folder: (folder / "checkpoint").write_bytes(deep)
  )
  said = refused(
    "tensorflow", files=lambda f: (f / "checkpoint").write_bytes(b'model_checkpoint_path: "model"')
  )
  assert "found a checkpoint of TensorFlow" in said
  assert "found neither checkpoint nor _METADATA" in refusal(
    capsys, flags, tmp_path / "nowhere", tmp_path / "out"
  )
  said = refused("optimizer", extra=("--config.optimizer.name=adamw",))
  assert "config.optimizer: found 'adam'" in said and "--fresh" in said
  said = refused("unit", extra=("--loss_normalizing_factor=None",))
  assert "--target_tokens=None: expected the target tokens in a batch" in said
  said = refused("word", extra=("--loss_normalizing_factor=MEAN",))
  assert "--loss_normalizing_factor=MEAN: expected None, a number" in said
  said = refused("activation", extra=("--mlp_activations=relu",))
  assert "found wi_0 and wi_1 in feed-forward layers" in said

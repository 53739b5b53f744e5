"""Directories: several files, 16-bit tensors, sharded arrays, tokenizers, refusals, and nothing
overwritten."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.flax import load_file, save_file

import tiny
from t5x_like.errors import UserError
from t5x_like.interop import hf
from t5x_like.nn import params
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
  path = tmp_path_factory.mktemp("model") / "t5"
  hf.save(tiny.model(tiny.sizes("1.1")), str(path))
  (path / "spiece.model").write_bytes(b"a tokenizer")
  return path


def values(path):
  return params.arrays(hf.load(str(path)))


def same(a, b):
  return a.keys() == b.keys() and all(np.array_equal(a[n], b[n]) for n in a)


def test_several_files_with_an_index(directory, tmp_path, monkeypatch):
  monkeypatch.setattr(hf, "SHARD_BYTES", 4000)
  hf.save(hf.load(str(directory)), str(tmp_path / "many"))
  files = sorted(p.name for p in (tmp_path / "many").glob("*.safetensors"))
  assert len(files) > 3 and files[0] == f"model-00001-of-{len(files):05d}.safetensors"
  index = json.loads((tmp_path / "many" / hf.INDEX).read_text())
  assert set(index["weight_map"].values()) == set(files)
  assert index["metadata"]["total_size"] == sum(
    x.nbytes for x in load_file(directory / hf.WEIGHTS).values()
  )
  assert same(values(tmp_path / "many"), values(directory))
  assert (tmp_path / "many" / "spiece.model").read_bytes() == b"a tokenizer"
  (tmp_path / "many" / files[1]).unlink()
  with pytest.raises(UserError, match=files[1]):
    hf.load(str(tmp_path / "many"))


def test_one_file_counts_before_an_index(directory, tmp_path):
  for file in directory.iterdir():
    (tmp_path / file.name).write_bytes(file.read_bytes())
  (tmp_path / hf.INDEX).write_text(
    json.dumps({"weight_map": {"shared.weight": "gone.safetensors"}})
  )
  assert same(values(tmp_path), values(directory))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_tensors_come_back_as_they_were(directory, tmp_path, dtype):
  half = tmp_path / "half"
  hf.save(hf.load(str(directory)), str(half), dtype=dtype)
  before = load_file(half / hf.WEIGHTS)
  assert {x.dtype for x in before.values()} == {jnp.dtype(dtype)}
  model = hf.load(str(half))
  assert {p.dtype for p in params.named_params(model).values()} == {jnp.dtype("float32")}
  hf.save(model, str(tmp_path / "again"))
  assert same(load_file(tmp_path / "again" / hf.WEIGHTS), before)
  assert json.loads((tmp_path / "again" / "config.json").read_text())["dtype"] == dtype


def test_a_model_is_read_into_sharded_arrays_and_written_from_them(directory, tmp_path):
  rules = Rules.make(make_mesh({"data": 2, "fsdp": 2, "tensor": 2}))
  model = hf.load(str(directory), rules=rules)
  for name, holder in params.named_params(model).items():
    sharding = holder.get_value().sharding
    assert sharding.is_equivalent_to(rules.sharding(holder.axes), holder.ndim), name
  hf.save(model, str(tmp_path / "out"))
  assert same(load_file(tmp_path / "out" / hf.WEIGHTS), load_file(directory / hf.WEIGHTS))


def test_existing_files_are_not_overwritten(directory):
  before = {p.name: p.read_bytes() for p in directory.iterdir()}
  with pytest.raises(UserError, match="not empty"):
    hf.save(hf.load(str(directory)), str(directory))
  assert {p.name: p.read_bytes() for p in directory.iterdir()} == before


def test_a_tied_tensor_that_differs_is_refused(directory, tmp_path):
  tensors = load_file(directory / hf.WEIGHTS)
  save_file(
    tensors | {"encoder.embed_tokens.weight": tensors["shared.weight"]}, tmp_path / hf.WEIGHTS
  )
  (tmp_path / "config.json").write_text((directory / "config.json").read_text())
  assert same(values(tmp_path), values(directory))
  save_file(
    tensors | {"encoder.embed_tokens.weight": tensors["shared.weight"] + 1}, tmp_path / hf.WEIGHTS
  )
  with pytest.raises(UserError, match="'encoder.embed_tokens.weight' differs from 'shared.weight'"):
    hf.load(str(tmp_path))


def test_a_copy_of_a_tied_tensor_may_stand_alone(directory, tmp_path):
  tensors = load_file(directory / hf.WEIGHTS)
  save_file(
    {n.replace("shared", "decoder.embed_tokens"): x for n, x in tensors.items()},
    tmp_path / hf.WEIGHTS,
  )
  (tmp_path / "config.json").write_text((directory / "config.json").read_text())
  assert same(values(tmp_path), values(directory))


@pytest.mark.parametrize(
  "design, said",
  [
    ({"position": "rope"}, "position"),
    ({"norm_position": "post"}, "norm_position"),
    ({"qk_norm": True}, "qk_norm"),
    ({"core": "local"}, "core"),
    ({"core": {"encoder": "auto", "decoder": "local"}}, "core"),
    ({"embed_scale": True}, "embed_scale"),
    ({"embed_norm": True}, "embed_norm"),
    ({"logits_softcap": 5.0}, "logits_softcap"),
    ({"logits_bias": True}, "logits_bias"),
  ],
)
def test_a_design_that_no_file_can_say_is_refused(design, said, tmp_path):
  with pytest.raises(UserError, match=f"design.{said} is"):
    hf.save(tiny.abstract(tiny.sizes("1.1"), design=design), str(tmp_path / "out"))
  assert not (tmp_path / "out").exists()

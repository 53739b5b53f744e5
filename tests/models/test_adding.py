"""A new family, core, position or head is one file in its folder that `config.model` names."""

import importlib
import inspect
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import t5x_like.models
from refusals import refuses
from t5x_like import slots
from t5x_like.architectures import heads
from t5x_like.nn import cores, params, positions

CORE = '''
"""Attention whose weights are a power of the distance to visible keys."""

import jax.numpy as jnp

from t5x_like.nn.cores import Core
from t5x_like.slots import PositiveInt


class Toy(Core):
  refuses = ("causal", "bias", "softcap")

  def __init__(self, dims, *, power: PositiveInt = 1):
    self.groups = dims.heads // dims.kv_heads
    self.power = power

  def attend(self, q, k, v, mask, softmax):
    distance = 1.0 + jnp.abs(mask.k_pos[:, None] - mask.q_pos[:, :, None])
    weights = jnp.where(mask.k_valid[:, None], distance**-self.power, 0.0)
    weights = weights / weights.sum(-1, keepdims=True)
    return jnp.einsum("BTS,BSNH->BTNH", weights, jnp.repeat(v, self.groups, axis=2))


make = Toy
'''

POSITION = '''
"""A learned step in the direction of a learned vector, added to the token vectors."""

from t5x_like.nn import params
from t5x_like.nn.positions import Position


class Toy(Position):
  owner = "inputs"

  def __init__(self, rngs, width, init, *, step: float = 1.0):
    self.direction = params.param(rngs, init, (width,), ("embed",))
    self.step = step

  def embed(self, x_BTD, pos_BT):
    return x_BTD + self.step * pos_BT[..., None] * self.direction[...]


make = Toy
'''

HEAD = '''
"""The mean of the hidden states, in `parts` parts."""

import jax.numpy as jnp
from flax import nnx

from t5x_like.slots import PositiveInt


class Toy(nnx.Module):
  def __init__(self, *, parts: PositiveInt = 2):
    self.parts = parts

  def __call__(self, x_BTD, embed, valid_BT=None, key=None):
    return {"logits": jnp.stack(jnp.split(x_BTD.mean(1), self.parts, axis=-1), axis=1).astype(jnp.float32)}


make = Toy
'''

FAMILY = '''
"""An encoder of no published kind."""

from t5x_like.architectures.design import Design, Variant
from t5x_like.nn.dims import Dims
from t5x_like.architectures.encoder import Encoder

VARIANTS = {"small": Variant(Dims(embed=16, heads=4, kv_heads=2, head_dim=4, mlp=32, layers=2), Design(), 32)}


class Model(Encoder):
  VARIANTS = VARIANTS
'''

PACKAGES = {"core": (cores, CORE), "position": (positions, POSITION), "head": (heads, HEAD)}


@pytest.fixture
def toys(tmp_path, monkeypatch):
  """Add a file `toy.py` to each of the four packages, from a temporary folder."""
  for name, (package, source) in {**PACKAGES, "family": (t5x_like.models, FAMILY)}.items():
    folder = tmp_path / name
    folder.mkdir()
    (folder / "toy.py").write_text(source)
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    monkeypatch.delitem(sys.modules, f"{package.__name__}.toy", raising=False)
  importlib.invalidate_caches()
  yield
  for package in (cores, positions, heads, t5x_like.models):
    sys.modules.pop(f"{package.__name__}.toy", None)
    if hasattr(package, "toy"):
      delattr(package, "toy")


def make_model(**config):
  """Resolve `config.model` and build it as a run does."""
  config = {"name": "toy", "variant": "small", "layers": "loop", **config}
  return slots.make(
    "config.model", config, t5x_like.models, "Model", rngs=nnx.Rngs(params=jax.random.key(0))
  )


def run(model):
  tokens = np.random.default_rng(0).integers(2, 32, (2, 7)).astype(np.int32)
  return model({"encoder_input_tokens": jnp.asarray(tokens)})


def test_family_can_be_added_by_one_file(toys):
  assert "toy" in slots.names(t5x_like.models)
  assert run(make_model())["logits"].shape == (2, 7, 32)
  assert make_model(tokens={"pad": 3}).variant.tokens.pad == 3


def test_core_can_be_added_by_one_file(toys):
  model = make_model(design={"core": {"name": "toy", "power": 2}})
  attention = model.encoder.blocks.self_attention.layer
  assert attention.core.name == "toy"
  assert attention.core.power == 2
  squared = np.asarray(run(model)["logits"])
  linear = run(make_model(design={"core": "toy"}))["logits"]
  assert np.isfinite(squared).all()
  assert not np.allclose(squared, linear)
  encoder_model = make_model(design={"core": {"encoder": "toy"}})
  assert encoder_model.encoder.blocks.self_attention.layer.core.name == "toy"
  with refuses("attention core 'toy' does not support a position bias on the logits"):
    run(make_model(design={"core": "toy", "position": "alibi"}))


def test_position_can_be_added_by_one_file(toys):
  model = make_model(design={"position": {"name": "toy", "step": 0.5}})
  assert [n for n in params.named_params(model) if "position" in n] == ["inputs/position/direction"]
  assert not np.allclose(run(make_model())["logits"], run(model)["logits"])


def test_head_can_be_added_by_one_file(toys):
  assert run(make_model(head={"name": "toy", "parts": 4}))["logits"].shape == (2, 4, 4)


@pytest.mark.parametrize(
  "config, words",
  [
    ({"variant": "smal"}, ("variant: found 'smal'", "did you mean 'small'")),
    ({"haed": "none"}, ("haed: unknown key (did you mean 'head'?); it takes",)),
    (
      {"design": {"core": {"name": "toy", "power": 0}}},
      ("design.core.power: found 0", "expected a whole number above 0"),
    ),
    (
      {"design": {"core": {"name": "toy", "dims": 3}}},
      ("design.core.dims: unknown key; it takes power",),
    ),
    (
      {"design": {"core": {"encoder": {"name": "toy", "powr": 1}}}},
      ("design.core.encoder.powr: ", "did you mean 'power'"),
    ),
    (
      {"design": {"position": {"name": "toy", "stepp": 0.5}}},
      ("design.position.stepp: ", "did you mean 'step'"),
    ),
    (
      {"design": {"position": ["toy", "rope"]}},
      ("design.position: found 'toy' mixed with others",),
    ),
    (
      {"head": {"name": "toy", "part": 4}},
      ("head.part: unknown key (did you mean 'parts'?)",),
    ),
    ({"head": "tou"}, ("head: found 'tou', expected one of ", "did you mean 'toy'")),
  ],
  ids=str,
)
def test_unknown_names_and_arguments_of_parts_are_refused(config, words, toys):
  key, *other_words = words
  with refuses(f"config.model.{key}", *other_words):
    make_model(**config)


def test_renamed_attribute_of_a_position_is_refused_with_its_new_name(toys, monkeypatch):
  toy = importlib.import_module("t5x_like.nn.positions.toy")
  monkeypatch.setattr(toy.Toy, "place", "inputs", raising=False)
  with refuses("config.model.design.position: Toy declares 'place', which is now 'owner'"):
    make_model(design={"position": "toy"})


@pytest.mark.parametrize("package", [cores, positions, heads], ids=lambda package: package.__name__)
def test_every_part_is_found_by_its_file(package):
  for name in slots.names(package):
    assert callable(slots.find("here", name, package, "make"))


@pytest.mark.parametrize("name", slots.names(t5x_like.models))
def test_every_family_accepts_the_common_arguments(name):
  model = slots.find("config.model.name", name, t5x_like.models, "Model")
  values = {
    "variant": next(iter(model.VARIANTS)),
    "design": {"norm_epsilon": 1e-3},
    "remat": "dots",
  }
  has_tokens = "tokens" in inspect.signature(model).parameters  # all but encoders of images
  if has_tokens:
    values["tokens"] = {"pad": 3}
  filled = slots.fill("config.model", values, model, supplied=("rngs",))
  abstract = jax.eval_shape(
    lambda: model(nnx.Rngs(0), **filled | {"dtype": "float32", "layers": "loop"})
  )
  assert abstract.variant.design.norm_epsilon == 1e-3
  assert not has_tokens or abstract.variant.tokens.pad == 3

"""Cores refuse masks, positions, lengths and options that they do not support."""

import ast
import dataclasses
import pathlib

import core_cases as cases
import jax
import jax.numpy as jnp
import pytest

import t5x_like
from t5x_like import slots
from t5x_like.architectures.decoder import Decoder
from t5x_like.errors import UserError
from t5x_like.nn import cores
from t5x_like.nn.dims import Dropout
from t5x_like.nn.mask import Mask, positions
from t5x_like.nn.positions.alibi import Alibi
from t5x_like.nn.positions.shaw import ShawPosition
from t5x_like.parallel.constrain import use_platform
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from tests.nn.cores.core_models import batch, build_model

MASKS = {
  kind: cases.mask(kind) for kind in ("full", "causal", "prefix", "packed", "padded", "full_w5")
}
ALIGNED = dataclasses.replace(MASKS["causal"], k_valid=None, aligned=True)
WINDOW_ON_BOTH_SIDES = dataclasses.replace(ALIGNED, causal=False, window=4)
ALIBI = Alibi(cases.DIMS)
SHAW = ShawPosition(cases.rngs(), cases.DIMS)
DROPOUT = {"dropout": Dropout(0.5), "key": jax.random.key(0)}


@pytest.mark.parametrize(
  "spec, mask, options, message",
  [
    ("chunked", "full_w5", {"position": SHAW}, "positions that depend on the query"),
    ("local", "full_w5", {"position": SHAW}, "positions that depend on the query"),
    ("local", "full", {}, "attention without a window.*design.windows"),
    ("splash", "causal", {}, "causality or windows over explicit positions"),
    ("splash", "full", DROPOUT, "dropout of attention probabilities"),
    ("ring", "causal", DROPOUT, "dropout of attention probabilities"),
    ("cudnn", "packed", {}, "packed sequences"),
    ("cudnn", "padded", {}, "keys that are padding"),
  ],
)
def test_unsupported_masks_and_options_are_refused(spec, mask, options, message):
  with pytest.raises(UserError, match=f"core '{spec}' does not support {message}"):
    cases.make(spec)(*cases.qkv(), MASKS[mask], **options, scale=0.4)


@pytest.mark.parametrize(
  "platform, mask, dtype, message",
  [
    ("cpu", ALIGNED, "float32", "a CPU, it needs an NVIDIA GPU"),
    ("gpu", ALIGNED, "float32", "heads of width 8 in float32"),
    ("gpu", WINDOW_ON_BOTH_SIDES, "bfloat16", "a window on both sides"),
  ],
)
def test_cudnn_refuses_platforms_dtypes_and_windows(platform, mask, dtype, message):
  qkv = [x.astype(dtype) for x in cases.qkv()]
  with use_platform(platform):
    with pytest.raises(UserError, match=f"core 'cudnn' does not support {message}"):
      cases.make("cudnn")(*qkv, mask, scale=0.4)


def test_unequal_lengths_of_queries_and_keys_are_refused():
  core = cases.make({"name": "local", "window": 3})
  mask = Mask(positions(37), positions(20))
  with pytest.raises(
    UserError, match="core 'local' does not support attention from 37 queries to 20 keys"
  ):
    core(*cases.qkv(S=20), mask, scale=0.4)


def test_queries_that_are_split_over_devices_are_refused():
  """Each device would have all keys but only some of the queries."""
  q = jnp.ones((2, 32, 2, 16))
  mask = Mask(positions(32), positions(32))
  with Rules.make(make_mesh(dict(sequence=2), jax.devices()[:2])).activate():
    with pytest.raises(
      UserError, match="core 'short' does not support queries that 2 devices share"
    ):
      jax.eval_shape(lambda q: cases.make("short")(q, q, q, mask, scale=0.4), q)


def test_refusal_of_a_core_is_raised_by_the_model():
  with pytest.raises(UserError, match="core 'local' does not support attention without a window"):
    jax.eval_shape(build_model(Decoder, "local"), batch("decoder"))


@pytest.mark.parametrize(
  "spec, message",
  [
    (
      {"name": "chunked", "key_chunk": 0},
      "core.key_chunk: found 0 .*, expected a whole number above 0",
    ),
    (
      {"name": "local", "window": 2.5},
      "core.window: found 2.5 .*, expected a whole number above 0 and below .* or None",
    ),
    ({"name": "local", "windw": 3}, "core.windw: unknown key .did you mean 'window'"),
    ("splahs", "core: found 'splahs', expected one of auto, .*did you mean 'splash'"),
  ],
)
def test_bad_options_are_refused(spec, message):
  with pytest.raises(UserError, match=message) as error:
    cases.make(spec)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", slots.names(cores))
def test_every_declared_refusal_of_a_core_is_raised(name):
  """A misspelt refusal would never be raised."""
  core = cases.make(name)
  calls = {
    "causal": (MASKS["causal"], {}),
    "window": (MASKS["full_w5"], {}),
    "segments": (MASKS["packed"], {}),
    "padding": (MASKS["padded"], {}),
    "prefix": (MASKS["prefix"], {}),
    "bias": (MASKS["full"], {"bias": ALIBI}),
    "query_bias": (MASKS["full"], {"position": SHAW}),
    "softcap": (MASKS["full"], {"softcap": 2.0}),
    "dropout": (MASKS["full"], {"dropout": Dropout(0.5)}),
    "lengths": (MASKS["full"], {}),
  }
  assert set(core.refuses) <= set(calls)
  for feature in core.refuses:
    mask, options = calls[feature]
    with pytest.raises(UserError, match=f"core '{name}' does not support"):
      core(*cases.qkv(S=20 if feature == "lengths" else None), mask, **options, scale=0.4)


def test_options_of_softmax_are_parameters_in_one_module_only():
  package = pathlib.Path(t5x_like.__file__).parent
  modules_with_softmax_options = set()
  for path in [*package.glob("nn/cores/*.py"), *package.glob("contrib/*/cores/*.py")]:
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.arguments):
        names = {argument.arg for argument in (*node.args, *node.kwonlyargs)}
        if names & {"scale", "softcap"}:
          modules_with_softmax_options.add(path.stem)
  assert modules_with_softmax_options == {"__init__"}

"""Cores refuse masks, positions, lengths and options that they cannot honour."""

import ast
import pathlib

import core_cases as cases
import pytest

import t5x_like
from t5x_like import slots
from t5x_like.errors import UserError
from t5x_like.nn import cores
from t5x_like.nn.dims import Dropout
from t5x_like.nn.mask import Mask, positions
from t5x_like.nn.positions.alibi import Alibi
from t5x_like.nn.positions.shaw import ShawPosition

M = {kind: cases.mask(kind) for kind in ("full", "causal", "prefix", "packed", "full_w5")}


def test_exact_cores_refuse_masks_and_options():
  shaw = ShawPosition(cases.rngs(), cases.DIMS)
  for name in ("chunked", "local"):
    with pytest.raises(
      UserError, match=f"core '{name}' cannot do positions that depend on the query"
    ):
      cases.make(name)(*cases.qkv(), M["full_w5"], None, shaw, scale=0.4)
  with pytest.raises(
    UserError, match="core 'local' cannot do attention without a window.*design.windows"
  ):
    cases.make("local")(*cases.qkv(), M["full"], scale=0.4)


def test_another_length_of_keys_is_refused():
  core = cases.make({"name": "local", "window": 3})
  with pytest.raises(
    UserError, match="core 'local' cannot do attention from 37 queries to 20 keys"
  ):
    core(*cases.qkv(S=20), Mask(positions(37), positions(20)), scale=0.4)


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
def test_every_refusal_that_a_core_declares_is_checked_by_the_base(name):
  """A misspelt refusal would never be raised; here some call raises each of them."""
  core = cases.make(name)
  calls = {
    "causal": (M["causal"], {}),
    "window": (M["full_w5"], {}),
    "segments": (M["packed"], {}),
    "padding": (cases.mask("padded"), {}),
    "prefix": (M["prefix"], {}),
    "bias": (M["full"], {"bias": Alibi(cases.DIMS)}),
    "query_bias": (M["full"], {"position": ShawPosition(cases.rngs(), cases.DIMS)}),
    "softcap": (M["full"], {"softcap": 2.0}),
    "dropout": (M["full"], {"dropout": Dropout(0.5)}),
    "lengths": (M["full"], {}),
  }
  assert set(core.refuses) <= set(calls)
  for feature in core.refuses:
    mask, options = calls[feature]
    with pytest.raises(UserError, match=f"core '{name}' cannot do"):
      core(*cases.qkv(S=20 if feature == "lengths" else None), mask, **options, scale=0.4)


def test_the_signature_of_attention_is_in_one_place():
  package = pathlib.Path(t5x_like.__file__).parent
  files = [*package.glob("nn/cores/*.py"), *package.glob("contrib/*/cores/*.py")]
  functions = [
    (f.stem, n)
    for f in files
    for n in ast.walk(ast.parse(f.read_text()))
    if isinstance(n, ast.FunctionDef)
  ]
  arguments = [(stem, {a.arg for a in (*n.args.args, *n.args.kwonlyargs)}) for stem, n in functions]
  assert [stem for stem, names in arguments if names & {"scale", "softcap"}] == ["__init__"]

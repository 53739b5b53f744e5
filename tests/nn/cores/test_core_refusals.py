"""Cores refuse masks, positions, lengths and options that they cannot honour."""

import ast
import pathlib

import core_cases as cases
import jax
import pytest

from t5x_like import slots
from t5x_like.errors import UserError
from t5x_like.nn import cores
from t5x_like.nn.cores.bigbird import BigBird
from t5x_like.nn.cores.linformer import Linformer
from t5x_like.nn.cores.memory_compressed import MemoryCompressed
from t5x_like.nn.dims import Dropout
from t5x_like.nn.mask import Mask, positions
from t5x_like.nn.positions.alibi import Alibi
from t5x_like.nn.positions.shaw import ShawPosition

M = {kind: cases.mask(kind) for kind in ("full", "causal", "prefix", "packed", "full_w5")}
BIDIRECTIONAL = ("linformer", "bigbird")


@pytest.mark.parametrize("name", ["linformer", "bigbird", "memory_compressed"])
@pytest.mark.parametrize(
  "feature, message",
  [
    ("causal", "causal attention"),
    ("full_w5", "a sliding window"),
    ("packed", "packed sequences (segment ids)"),
    ("prefix", "a bidirectional prefix"),
    ("bias", "a position bias on the logits"),
    ("layer_bias", "a position bias on the logits"),
    ("shaw", "positions that depend on the query (Shaw)"),
    ("decoding", "decoding from a cache"),
  ],
)
def test_approximate_cores_refuse_masks_and_options(name, feature, message):
  causal = name == "memory_compressed" and feature == "prefix"
  core = cases.make(name, causal=causal)
  if feature == "prefix" and name in BIDIRECTIONAL:
    message = "causal attention"  # a prefix comes with causality, which is refused first
  bias = Alibi(cases.DIMS) if feature == "bias" else None
  position = {"layer_bias": Alibi(cases.DIMS), "shaw": ShawPosition(cases.rngs(), cases.DIMS)}.get(
    feature
  )
  with pytest.raises(UserError) as error:
    if feature == "decoding":
      core.for_decoding()
    else:
      core(*cases.qkv(), M.get(feature, M["full"]), bias, position, scale=0.4)
  assert f"attention core {name!r} cannot do {message}" in str(error.value)
  assert "core='dense'" in str(error.value)
  assert "\n" not in str(error.value)


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


@pytest.mark.parametrize("name", ["local", "bigbird"])
def test_other_lengths_of_keys_are_refused(name):
  core = cases.make({"name": "local", "window": 3} if name == "local" else name)
  with pytest.raises(
    UserError, match=f"core '{name}' cannot do attention from 37 queries to 20 keys"
  ):
    core(*cases.qkv(S=20), Mask(positions(37), positions(20)), scale=0.4)


def test_bad_lengths_are_refused():
  core = BigBird(block=4, random_blocks=2)
  for T in (1, 36):
    with pytest.raises(
      UserError, match=f"core 'bigbird': found a length of {T}, expected at least 37"
    ):
      core(*cases.qkv(T=T), Mask(positions(T), positions(T)), scale=0.4)
  jax.eval_shape(lambda: core(*cases.qkv(T=37), M["full"], scale=0.4))
  with pytest.raises(UserError, match="core 'linformer': found 37 keys, expected at most 36"):
    Linformer(cases.rngs(), cases.DIMS, k=4, length=36)(*cases.qkv(), M["full"], scale=0.4)


def test_memory_compressed_attention_refuses_the_other_kind_of_stack():
  core = MemoryCompressed(cases.rngs(), cases.DIMS, causal=True)
  with pytest.raises(
    UserError, match="cannot do bidirectional attention in a core made for a causal stack"
  ):
    core(*cases.qkv(), M["full"], scale=0.4)


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
    (
      {"name": "bigbird", "plan": "none"},
      "core.plan: found 'none' .*, expected 'random' or 'first'",
    ),
    (
      {"name": "bigbird", "random_blocks": -1},
      "core.random_blocks: found -1 .*, expected a whole number, at least 0",
    ),
    (
      {"name": "linformer", "share": "layers"},
      "core.share: found 'layers' .*, expected 'none' or 'headwise'",
    ),
    (
      {"name": "linformer", "start": "mean"},
      "core.start: found 'mean' .*, expected 'random' or 'pooling'",
    ),
    (
      {"name": "memory_compressed", "stride": True},
      "core.stride: found True .*, expected a whole number above 0",
    ),
    ({"name": "memory_compressed", "kernel": 3}, "core.kernel: unknown key; it takes stride"),
    ({"name": "local", "windw": 3}, "core.windw: unknown key .did you mean 'window'"),
    (
      "bigbrid",
      "core: found 'bigbrid', expected one of auto, bigbird, chunked.*did you mean 'bigbird'",
    ),
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
  files = sorted(pathlib.Path(cores.__file__).parent.glob("*.py"))
  functions = [
    (f.stem, n)
    for f in files
    for n in ast.walk(ast.parse(f.read_text()))
    if isinstance(n, ast.FunctionDef)
  ]
  arguments = [(stem, {a.arg for a in (*n.args.args, *n.args.kwonlyargs)}) for stem, n in functions]
  assert [stem for stem, names in arguments if names & {"scale", "softcap"}] == ["__init__"]

"""From a Hugging Face directory to continued pretraining in three commands, and back with the same
tokenizer."""

import dataclasses
import json
import pathlib

import jax
import numpy as np
import pytest
from flax import nnx

import published
from t5x_like import train, vocabularies
from t5x_like.architectures.design import Tokens
from t5x_like.interop import hf
from t5x_like.models import bart, gemma2, gpt, llama, roberta, t5
from t5x_like.nn import params
from t5x_like.nn.dims import Dims
from t5x_like.saved_model import open_saved_model
from t5x_like.store.tokens import TokenStore
from tools import convert_hf, prepare_data

pytestmark = pytest.mark.runs

DIMS = Dims(embed=32, heads=2, kv_heads=2, head_dim=16, mlp=128, layers=1)
LEARNED = {"name": "learned", "length": 64}
# kind -> (family, a variant like it, its table, what its design differs in, ids, recipe, other
# flags)
FAMILIES = {
  "gpt2": (
    gpt,
    "gpt2",
    360,
    {"position": LEARNED},
    Tokens(None, 0, 0),
    "gpt/gpt2_124m",
    ["task.length=32"],
  ),
  "roberta": (
    roberta,
    "roberta-base",
    384,
    {"position": LEARNED | {"offset": 2}},
    Tokens(1, 0, 2),
    "roberta/base",
    ["task.length=32"],
  ),
  "bart": (
    bart,
    "bart-base",
    360,
    {"position": LEARNED | {"offset": 2}},
    Tokens(1, 2, 2),
    "bart/base",
    ["task.length=32"],
  ),
  "llama": (llama, "llama2-7b", 360, {}, Tokens(None, 1, 2), "llama/8b", ["task.length=32"]),
  "gemma2": (
    gemma2,
    "tiny",
    420,
    {"attention_scale": 16**-0.5},
    Tokens(0, 2, 1),
    "gemma2/2b",
    ["task.length=32"],
  ),
  "t5": (
    t5,
    "t5-v1_1-small",
    256,
    {},
    Tokens(0, 0, 1),
    "t5/base",
    ["task.inputs_length=24", "task.targets_length=16"],
  ),
}
SHORT = {
  "total_steps": 2,
  "batch_size": 8,
  "eval_every": 2,
  "log_every": 1,
  "evals": {},
  "checkpoint": {"every": 2},
  "schedule.warmup_steps": 1,
  "peak_flops": 1e11,
  "model.remat": "none",
  "model.dropout": 0.0,
}
MARKS = {kind: pytest.mark.more for kind in ("roberta", "bart")}
MARKS |= {kind: pytest.mark.heavy for kind in ("llama", "gemma2", "t5")}


def directory(path: pathlib.Path, kind: str) -> pathlib.Path:
  """A Hugging Face directory of a small model with random weights and a tokenizer trained on the
  spot."""
  family, name, table, design, tokens, *_ = FAMILIES[kind]
  like = family.VARIANTS[name]
  design = dataclasses.replace(like.design, **design)
  dims = dataclasses.replace(DIMS, layers=len(design.windows))
  variant = dataclasses.replace(like, dims=dims, vocab_size=table, design=design, tokens=tokens)
  model = jax.jit(lambda key: family.Model(nnx.Rngs(params=key), variant=variant))(
    jax.random.key(0)
  )
  hf.save(model, str(path))
  return published.write(path, kind)


@pytest.mark.parametrize("kind", [pytest.param(k, marks=MARKS.get(k, [])) for k in FAMILIES])
def test_three_commands(kind, tmp_path, compiled):
  *_, recipe, extra = FAMILIES[kind]
  source = directory(tmp_path / kind, kind)
  workdir = tmp_path / "run"
  corpus = tmp_path / "corpus.jsonl"
  texts = [
    f"{line} {published.HOSTILE[i % len(published.HOSTILE)]}".strip()
    for i, line in enumerate(published.LINES)
  ]
  corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
  flags = [
    f"--config=configs/{recipe}.py",
    '--config.mesh={"data": -1}',
    *(f"--config.{override}" for override in extra),
  ]
  flags += [
    f"--config.{key}={value if isinstance(value, (int, str)) else json.dumps(value)}"
    for key, value in SHORT.items()
  ]

  assert convert_hf.main([f"--input={source}", f"--output={workdir}", *flags]) == 0
  ends = ["--append_eos"] if kind in ("gpt2", "llama", "gemma2") else []
  prepared = [
    f"--source=jsonl:{corpus}",
    f"--vocabulary={workdir}/vocabulary",
    f"--output={tmp_path / 'store'}",
  ]
  assert prepare_data.main([*prepared, "--workers=1", "--validation_fraction=0.1", *ends]) == 0
  store = TokenStore.open(tmp_path / "store" / "train")
  assert (
    train.main([*flags, f"--workdir={workdir}", f"--config.task.store={tmp_path / 'store'}"]) == 0
  )

  saved = json.loads((workdir / "config.json").read_text())
  assert saved["model"]["vocab_size"] == FAMILIES[kind][2] and saved["fingerprints"]["data"]
  model = open_saved_model(str(workdir)).config.model
  assert model.tokens.to_dict() == {}  # the ids of config.json and of the tokenizer are the same
  end = int(store.document_ends()[0])
  (tokens,) = store.windows([0], end)
  vocabulary = vocabularies.load(str(source))
  assert tokens.tolist() in [
    vocabulary.encode(text) + [vocabulary.eos_id] * len(ends) for text in texts
  ]

  assert convert_hf.main([f"--input={workdir}", f"--output={tmp_path / 'back'}"]) == 0
  for file in source.iterdir():
    if file.name not in ("config.json", "model.safetensors"):
      assert (tmp_path / "back" / file.name).read_bytes() == file.read_bytes()
  before, after = (params.arrays(hf.load(str(path))) for path in (source, tmp_path / "back"))
  assert before.keys() == after.keys() and any(
    not np.array_equal(before[n], after[n]) for n in before
  )
  exported, original = (
    json.loads((path / "config.json").read_text()) for path in (tmp_path / "back", source)
  )
  assert {key: exported[key] for key in original if key.endswith("token_id")} == {
    key: value for key, value in original.items() if key.endswith("token_id")
  }


def test_data_of_another_vocabulary_and_recipes_of_another_family_are_refused(tmp_path, capsys):
  source = directory(tmp_path / "gpt2", "gpt2")
  workdir = tmp_path / "run"
  flags = [
    "--config=configs/gpt/gpt2_124m.py",
    "--config.task.length=32",
    "--config.batch_size=8",
    "--config.evals={}",
  ]
  assert convert_hf.main([f"--input={source}", f"--output={workdir}", *flags]) == 0
  assert train.main([*flags, f"--workdir={workdir}", "--config.task.store=builtin"]) == 2
  assert f"prepare them with --vocabulary={workdir / 'vocabulary'}" in capsys.readouterr().err
  assert train.main(["--config=configs/t5/base.py:debug", f"--workdir={workdir}"]) == 2
  assert f"config.model.name: found 't5', but {workdir} holds 'gpt'" in capsys.readouterr().err

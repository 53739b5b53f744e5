"""Configs of decoder-only families: published ones mean our sizes, old spellings mean the new ones,
and what no part here computes, or no model type can say, is refused by name."""

import dataclasses
import json
import pathlib
import shutil
import stat

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

import t5x_like.models
import tiny
from interop.test_golden import write
from t5x_like import slots
from t5x_like.architectures.design import Design
from t5x_like.errors import UserError
from t5x_like.inference.likelihood import position_count
from t5x_like.interop import hf
from t5x_like.interop.config_fields import Fields
from t5x_like.models import command_r, falcon, gemma3, gpt, llama, mpt, neox, opt, palm, xglm
from t5x_like.nn import params
from t5x_like.nn.dims import Dims

# `config.json` of published models without the fields that have no effect, by family and size.
PUBLISHED = json.loads(pathlib.Path(__file__).with_name("published_decoders.json").read_text())


def read_variant(values: dict):
  """Return the variant that a config describes."""
  fields = Fields(values, "config.json")
  _, arguments = hf.find_model_type(values["model_type"], "config.json").read(fields)
  fields.refuse_unused()
  return arguments["variant"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_our_sizes(name):
  family, size = name.split(":")
  expected = slots.module(family, t5x_like.models).VARIANTS[size]
  published = read_variant(PUBLISHED[name])
  assert published.dims == expected.dims
  assert published.vocab_size == expected.vocab_size
  plain = dict(init_stddev=None, residual_init=False)  # a file does not say how its weights started
  assert dataclasses.replace(published.design, **plain) == dataclasses.replace(
    expected.design, **plain
  )


def abstract(family: str, variant):
  """A model of a family with only its variant."""
  model = object.__new__(slots.module(family, t5x_like.models).Model)
  vars(model).update(variant=variant, mtp_depth=0)
  return model


SPELLED = ("rope_theta", "rope_scaling", "rope_local_base_freq", "rotary_emb_base", "rotary_pct")
LLAMA = PUBLISHED["llama:llama3.1-8b"]
LLAMA3 = LLAMA["rope_scaling"]
WITHOUT = {key: value for key, value in LLAMA.items() if not key.startswith("rope")}
MISTRAL = PUBLISHED["llama:mistral-7b-v0.1"]
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 4096}
MSCALES = YARN | {"mscale": 0.7, "mscale_all_dim": 1.3}


@pytest.mark.parametrize(
  "old, new",
  [
    (
      LLAMA,
      WITHOUT | dict(rope_parameters=LLAMA3 | {"rope_theta": 500000.0}),
    ),
    (
      WITHOUT | dict(rope_theta=2e4, rope_scaling={"type": "linear", "factor": 4}),
      WITHOUT | dict(rope_parameters={"rope_type": "linear", "rope_theta": 2e4, "factor": 4.0}),
    ),
    ({k: v for k, v in MISTRAL.items() if k != "sliding_window"}, MISTRAL),
    (LLAMA | dict(pad_token_id=-1), LLAMA),
    (
      PUBLISHED["deepseek:v3"] | dict(rope_scaling=MSCALES | dict(attention_factor=None)),
      PUBLISHED["deepseek:v3"] | dict(rope_scaling=MSCALES),
    ),
    (
      PUBLISHED["neox:pythia-1b"],
      {k: v for k, v in PUBLISHED["neox:pythia-1b"].items() if "rotary" not in k}
      | dict(
        rope_parameters={"rope_type": "default", "rope_theta": 10000, "partial_rotary_factor": 0.25}
      ),
    ),
  ],
)
def test_old_and_new_spellings_are_the_same(old, new):
  assert read_variant(old) == read_variant(new)


POSITIONED = (
  "llama:llama3.1-8b mixtral:8x7b qwen:qwen3-8b qwen:qwen3-30b-a3b olmo:olmo3-7b gemma3:4b "
  "gpt_oss:20b deepseek:v3 neox:pythia-1b falcon:7b command_r:command-r"
)


@pytest.mark.parametrize("name", POSITIONED.split())
def test_written_positions_stand_in_the_fields_of_older_readers_too(name):
  family, size = name.split(":")
  variant = slots.module(family, t5x_like.models).VARIANTS[size]
  if family in ("qwen", "deepseek"):  # as their cards say for long contexts
    yarn = {"factor": 4.0, "original_length": 32768}
    design = dataclasses.replace(variant.design, position={**variant.design.position, "yarn": yarn})
    variant = dataclasses.replace(variant, design=design)
  values = hf.write_config(abstract(family, variant), None)[1]
  older = {key: value for key, value in values.items() if key != "rope_parameters"}
  assert (
    read_variant(older)
    == read_variant(values)
    == read_variant({k: v for k, v in values.items() if k not in SPELLED})
  )
  if "yarn" in str(variant.design.position):  # the factor before version 5
    scaling = older["rope_scaling"]
    assert (
      older["max_position_embeddings"]
      == scaling["factor"] * scaling["original_max_position_embeddings"]
    )


@pytest.mark.parametrize(
  "name, field, value",
  [
    ("gpt:gpt2-xl", "scale_attn_by_inverse_layer_idx", True),
    ("gpt:gpt2-xl", "add_cross_attention", True),
    ("gpt:gpt1", "afn", "tanh"),
    ("llama:llama3.1-8b", "rope_scaling", YARN | {"beta_middle": 2.0}),
    ("llama:llama3.1-8b", "rope_scaling", {"rope_type": "dynamic"}),
    (
      "llama:llama3.1-8b",
      "rope_scaling",
      {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]},
    ),
    (
      "llama:llama3.1-8b",
      "rope_scaling",
      LLAMA3 | {"attention_factor": 2.0},
    ),
    ("llama:llama3.1-8b", "partial_rotary_factor", 0.5),
    ("llama:llama3.1-8b", "hidden_act", "gelu_fastest"),
    ("llama:llama3.1-8b", "qk_layernorm", True),
    ("mixtral:8x7b", "num_experts_per_tok", 1),
    ("gpt_oss:20b", "swiglu_limit", 5.0),
    ("deepseek:v3", "quantization_config", {"quant_method": "fp8"}),
    ("deepseek:v3", "topk_method", "greedy"),
    ("gpt_oss:20b", "quantization_config", {"quant_method": "mxfp4"}),
    ("gemma2:27b", "layer_types", ["sliding_attention", "chunked_attention"] * 23),
    ("gemma2:27b", "use_bidirectional_attention", True),
    ("gemma3:1b", "attn_logit_softcapping", 30.0),
    (
      "gemma3:4b",
      "text_config",
      {"hidden_size": 8, "num_hidden_layers": 1, "final_logit_softcapping": 30.0},
    ),
    ("bloom:560m", "apply_residual_connection_post_layernorm", True),
    ("opt:350m", "enable_bias", False),
    ("opt:350m", "layer_norm_elementwise_affine", False),
    ("falcon:7b", "num_ln_in_parallel_attn", 2),
    ("command_r:command-r", "tie_word_embeddings", False),
    ("mpt:7b", "logit_scale", 0.5),
    ("mpt:7b", "attn_config", {"alibi": False}),
    ("mpt:7b", "attn_config", {"clip_qkv": 6.0}),
  ],
)
def test_unsupported_fields_are_refused_by_name(name, field, value):
  with pytest.raises(UserError) as error:
    read_variant(PUBLISHED[name] | {field: value})
  assert (field if field not in ("attn_config", "text_config") else [*value][-1]) in str(
    error.value
  )
  assert "\n" not in str(error.value)


def test_the_first_files_of_gpt2_lack_the_prefix_and_hold_masks(tmp_path):
  write("gpt2", tmp_path / "new")
  (tmp_path / "old").mkdir()
  (tmp_path / "old" / "config.json").write_text((tmp_path / "new" / "config.json").read_text())
  tensors = {
    n.removeprefix("transformer."): x for n, x in load_file(tmp_path / "new" / hf.WEIGHTS).items()
  }
  tensors |= {f"h.{layer}.attn.bias": np.ones((1, 1, 32, 32), np.float32) for layer in range(2)}
  save_file(tensors, tmp_path / "old" / hf.WEIGHTS)
  old, new = (params.arrays(hf.load(str(tmp_path / side))) for side in ("old", "new"))
  assert old.keys() == new.keys() and all(np.array_equal(old[n], new[n]) for n in new)


@pytest.mark.parametrize("name", ["qwen3", "falcon", "xglm"])
def test_files_of_a_body_alone_lack_its_prefix(name, tmp_path):
  write(name, tmp_path / "whole")
  shutil.copytree(tmp_path / "whole", tmp_path / "body")
  tensors = load_file(tmp_path / "whole" / hf.WEIGHTS)
  save_file({n.partition(".")[2]: x for n, x in tensors.items()}, tmp_path / "body" / hf.WEIGHTS)
  body, complete = (params.arrays(hf.load(str(tmp_path / side))) for side in ("body", "whole"))
  assert body.keys() == complete.keys() and all(
    np.array_equal(body[n], complete[n]) for n in complete
  )


@pytest.mark.parametrize(
  "name, tensor",
  [
    ("gpt2", "transformer.h.0.attn.c_attn.weight"),
    ("mpt", "transformer.blocks.1.attn.Wqkv.weight"),
    ("neox", "gpt_neox.layers.1.attention.query_key_value.weight"),
  ],
)
def test_a_fused_tensor_of_another_shape_is_refused_by_name(name, tensor, tmp_path):
  write(name, tmp_path / "model")
  tensors = load_file(tmp_path / "model" / hf.WEIGHTS)
  axis = int(np.argmax(tensors[tensor].shape))
  tensors[tensor] = np.delete(tensors[tensor], [0], axis=axis)
  save_file(tensors, tmp_path / "model" / hf.WEIGHTS)
  with pytest.raises(UserError, match=tensor):
    hf.load(str(tmp_path / "model"))


def small(family, name, **changes):
  variant = dataclasses.replace(
    family.VARIANTS[name], dims=Dims(16, 4, 4, 4, 64, 2), vocab_size=tiny.VOCAB
  )
  return family.Model(
    nnx.Rngs(params=0),
    variant=dataclasses.replace(variant, design=dataclasses.replace(variant.design, **changes)),
  )


@pytest.mark.parametrize(
  "family, name, changes",
  [
    (gpt, "gpt2", dict(position="alibi")),
    (gpt, "gpt2", dict(norm="rmsnorm")),
    (gpt, "gpt2", dict(core={"name": "local", "window": 4})),
    (llama, "tiny", dict(qk_norm=True)),
    (llama, "tiny", dict(position={"name": "rope", "interleaved": True})),
    (llama, "tiny", dict(windows=(4, None))),
    (llama, "tiny", dict(biases=("qkv",))),
    (mpt, "tiny", dict(biases=("out",))),
    (neox, "tiny", dict(softcap=20.0)),
    (gemma3, "tiny", dict(softcap=20.0)),
    (opt, "tiny", dict(position={"name": "learned", "length": 8})),
    (xglm, "tiny", dict(position={"name": "sinusoidal"})),
    (falcon, "tiny", dict(logits_bias=True)),
    (command_r, "tiny", dict(position={"name": "rope"})),
  ],
)
def test_a_design_no_type_can_say_is_refused_by_its_cell(family, name, changes, tmp_path):
  with pytest.raises(UserError, match=f"design.{next(iter(changes))}") as error:
    hf.save(small(family, name, **changes), str(tmp_path / "model"))
  assert "\n" not in str(error.value) and not (tmp_path / "model" / "config.json").exists()


def test_generation_finds_the_positions_behind_a_projection(tmp_path):
  write("opt-350m", tmp_path / "model")
  assert position_count(hf.load_abstract(str(tmp_path / "model")).inputs) == 32


def test_a_parameter_without_a_tensor_is_refused_by_name(tmp_path):
  variant = small(llama, "tiny").variant
  scoring = jax.eval_shape(
    lambda key: llama.Model(nnx.Rngs(params=key), variant=variant, scores=1), jax.random.key(0)
  )
  with pytest.raises(UserError, match="llama has no tensor for the parameter 'scores/out/bias'"):
    hf.save(scoring, str(tmp_path / "model"))


def test_saved_files_are_for_those_whom_the_umask_lets_read(tmp_path):
  hf.save(small(llama, "tiny"), str(tmp_path / "model"))
  modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "model").iterdir()}
  assert modes["model.safetensors"] == modes["config.json"]


def test_a_family_without_a_type_is_refused(tmp_path):
  with pytest.raises(UserError, match="no Hugging Face form"):
    hf.save(small(palm, "tiny"), str(tmp_path / "model"))


# Prefixes of tensors of the Hub and of transformers 5.
@pytest.mark.parametrize("form", ["language_model.model.", "model.language_model."])
def test_the_text_model_is_taken_from_one_that_sees_images(form, tmp_path):
  hf.save(small(gemma3, "tiny"), str(tmp_path / "text"))
  values = json.loads((tmp_path / "text" / "config.json").read_text())
  tensors = load_file(tmp_path / "text" / hf.WEIGHTS)
  both = {name.replace("model.", form, 1): x for name, x in tensors.items()}
  both |= {"vision_tower.vision_model.post_layernorm.bias": np.zeros(3, np.float32)}
  (tmp_path / "both").mkdir()
  save_file(both, tmp_path / "both" / hf.WEIGHTS)
  text = {key: value for key, value in values.items() if key not in ("architectures", "model_type")}
  around = {
    "model_type": "gemma3",
    "eos_token_id": [1, 106],
    "vision_config": {"hidden_size": 1152},
  }
  (tmp_path / "both" / "config.json").write_text(
    json.dumps(around | {"text_config": text, "image_token_index": 9})
  )
  text_model, expected = (hf.load(str(tmp_path / name)) for name in ("both", "text"))
  assert text_model.variant == expected.variant
  arrays = params.arrays(expected)
  assert all(np.array_equal(x, arrays[name]) for name, x in params.arrays(text_model).items())


def test_a_changed_design_is_another_config(tmp_path):
  """A Llama with a window is written as Mistral."""
  hf.save(small(llama, "tiny", windows=(4,)), str(tmp_path / "model"))
  values = json.loads((tmp_path / "model" / "config.json").read_text())
  assert values["model_type"] == "mistral"
  assert values["sliding_window"] == 4
  assert hf.load(str(tmp_path / "model")).variant.design == dataclasses.replace(
    llama.LLAMA2, windows=(4,), init_stddev=Design.init_stddev or 0.02
  )

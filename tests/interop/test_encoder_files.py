"""Files of encoders as they are found on the hub, and models that have no Hugging Face form."""

import dataclasses
import json

import numpy as np
import pytest
import test_golden
from safetensors.numpy import load_file

import tiny
from t5x_like import vocabularies
from t5x_like.errors import UserError
from t5x_like.inference.fill_mask import MaskFilling
from t5x_like.interop import hf
from t5x_like.models import (
  albert,
  bert,
  deberta,
  electra,
  modernbert,
  roberta,
  xlm,
  xlnet,
)
from t5x_like.nn import params
from tests.interop.encoder_files import rewrite, shrunk


def test_bert_as_on_the_hub(tmp_path):
  """Names of norms from TensorFlow, tied tensors and a buffer once more, both heads under the class
  of one."""
  test_golden.write("bert", tmp_path / "plain")
  test_golden.write("bert", tmp_path / "hub")

  def old(tensors):
    end = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    renamed = {
      name.replace(*next(((a, b) for a, b in end.items() if name.endswith(a)), ("", ""))): x
      for name, x in tensors.items()
    }
    return renamed | {
      "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"],
      "cls.predictions.decoder.bias": tensors["cls.predictions.bias"],
      "bert.embeddings.position_ids": np.arange(64)[None],
    }

  rewrite(
    tmp_path / "hub",
    old,
    architectures=["BertForMaskedLM"],
    position_embedding_type="absolute",
    pooler_type="first_token_transform",
  )
  plain, hub = (hf.load(str(tmp_path / name)) for name in ("plain", "hub"))
  assert hub.variant == plain.variant and hub.variant.head == "pretraining"
  for name, array in params.arrays(plain).items():
    assert np.array_equal(array, params.arrays(hub)[name])


def test_modernbert_as_on_the_hub(tmp_path):
  """Older configs say how often a layer sees all, and name two bases."""
  test_golden.write("modernbert", tmp_path / "plain")
  test_golden.write("modernbert", tmp_path / "hub")
  rewrite(
    tmp_path / "hub",
    layer_types=None,
    rope_parameters=None,
    global_attn_every_n_layers=3,
    global_rope_theta=160000.0,
    local_rope_theta=10000.0,
    reference_compile=True,
  )
  assert hf.load(str(tmp_path / "hub")).variant == hf.load(str(tmp_path / "plain")).variant


def test_without_a_class_the_tensors_say_which_head(tmp_path):
  for case, head in (
    ("bert", "pretraining"),
    ("bert-mlm", "mlm"),
    ("bert-spans", "spans"),
    ("bert-body", "pooled"),
    ("electra", "discriminator"),
    ("electra-generator", "mlm"),
  ):
    test_golden.write(case, tmp_path / case)
    rewrite(tmp_path / case, architectures=None)
    assert hf.load(str(tmp_path / case)).variant.head == head


@pytest.mark.parametrize("classes", [["BertModel"], None])
def test_a_body_alone_may_have_its_prefix(classes, tmp_path):
  """As MiniLM's and other files that were cut from a pretrained model."""
  test_golden.write("bert-body", tmp_path / "plain")
  test_golden.write("bert-body", tmp_path / "long")
  rewrite(
    tmp_path / "long",
    lambda tensors: {f"bert.{n}": x for n, x in tensors.items()},
    architectures=classes,
  )
  plain, long = (hf.load(str(tmp_path / name)) for name in ("plain", "long"))
  assert long.variant == plain.variant and long.variant.head == "pooled"
  for name, array in params.arrays(plain).items():
    assert np.array_equal(array, params.arrays(long)[name])


def test_an_xlnet_without_its_language_model_fills_nothing(tmp_path):
  test_golden.write("xlnet-tokens", tmp_path / "model")
  with pytest.raises(UserError, match="does not predict masked tokens"):
    MaskFilling(hf.load_abstract(str(tmp_path / "model")), vocabularies.load("bytes"), {})


def test_a_pooler_that_nobody_reads_goes_along(tmp_path):
  test_golden.write("roberta", tmp_path / "theirs")
  pooler = {"roberta.pooler.dense.weight": np.eye(16, dtype=np.float32)}
  rewrite(tmp_path / "theirs", lambda tensors: tensors | pooler)
  hf.save(hf.load(str(tmp_path / "theirs")), str(tmp_path / "back"))
  before, after = (load_file(tmp_path / side / "model.safetensors") for side in ("theirs", "back"))
  assert before.keys() == after.keys() and all(np.array_equal(before[n], after[n]) for n in before)


@pytest.mark.parametrize(
  "case, change, message",
  [
    (
      "bert",
      dict(position_embedding_type="relative_key"),
      "'position_embedding_type' is 'relative_key'",
    ),
    ("bert", dict(architectures=["BertLMHeadModel"]), "'architectures' is 'BertLMHeadModel'"),
    ("bart", dict(encoder_attention_heads=3), "'encoder_attention_heads' is 3"),
    ("bart-heads", dict(decoder_attention_heads=3), "'decoder_attention_heads' is 3"),
    ("bert", dict(tie_word_embeddings=False), "'tie_word_embeddings' is False"),
    ("gpt2", dict(n_head=3), "cannot share a width"),
    ("roberta", dict(hidden_act="relu"), "'hidden_act' is 'relu'"),
    ("electra", dict(summary_type="last"), "'summary_type' is 'last'"),
    ("albert", dict(num_hidden_groups=2), "albert_layer_groups.1.albert_layers.0"),
    ("albert-groups", dict(inner_group_num=10**6), "'inner_group_num' is 1000000"),
    ("albert-groups", dict(num_hidden_groups=0), "'num_hidden_groups' is 0"),
    ("albert", dict(embedding_size=20), "'embedding_size' is 20"),
    ("deberta-v3", dict(conv_kernel_size=3), "'conv_kernel_size' is 3"),
    ("deberta-v3", dict(share_att_key=False), "'share_att_key' is False"),
    ("deberta-v3", dict(norm_rel_ebd=None), "'norm_rel_ebd' is missing"),
    ("xlnet", dict(attn_type="uni"), "'attn_type' is 'uni'"),
    ("xlnet", dict(clamp_len=8), "'clamp_len' is 8"),
    ("xlm", dict(sinusoidal_embeddings=True), "'sinusoidal_embeddings' is True"),
    ("modernbert", dict(mlp_bias=True), "'mlp_bias' is True"),
    (
      "modernbert",
      dict(layer_types=["full_attention", "chunked_attention"]),
      "'layer_types' is 'chunked_attention'",
    ),
    (
      "modernbert",
      dict(rope_parameters={"full_attention": {"rope_type": "yarn"}}),
      "rope_parameters.full_attention",
    ),
  ],
  ids=lambda x: str(x) if isinstance(x, dict) else None,
)
def test_unsupported_designs_are_refused_by_name(case, change, message, tmp_path):
  test_golden.write(case, tmp_path / "theirs")
  rewrite(tmp_path / "theirs", **change)
  with pytest.raises(UserError, match=message):
    hf.load(str(tmp_path / "theirs"))


BERT = shrunk(bert.VARIANTS["bert-base-uncased"])
MODERN = shrunk(modernbert.VARIANTS["modernbert-base"])


@pytest.mark.parametrize(
  "family, variant, arguments, message",
  [
    (bert, BERT, dict(design={"norm_position": "pre"}), "design.norm_position is 'pre'"),
    (bert, BERT, dict(design={"activation": "geglu"}), "design.activation is 'geglu'"),
    (bert, BERT, dict(design={"position": "alibi"}), "design.position is 'alibi'"),
    (bert, BERT, dict(design={"position": {"name": "learned", "offset": 2}}), "design.position is"),
    (bert, BERT, dict(design={"core": "local"}), "design.core is 'local'"),
    (bert, BERT, dict(head="discriminator"), "head 'discriminator'"),
    (
      bert,
      BERT,
      dict(head={"name": "classification", "activation": "gelu"}),
      "head {'name': 'classification'",
    ),
    (bert, dataclasses.replace(BERT, types=0), {}, "types is 0"),
    (
      roberta,
      shrunk(roberta.VARIANTS["roberta-base"]),
      dict(design={"position": "learned"}),
      "design.position is",
    ),
    (modernbert, MODERN, dict(design={"windows": (None, 3, 4)}), "design.windows is"),
    (modernbert, MODERN, dict(design={"position": "none"}), "design.position is"),
    (modernbert, MODERN, dict(head="spans"), "head 'spans'"),
    (electra, shrunk(electra.VARIANTS["electra-small"]), {}, "no Hugging Face family matches"),
    (
      albert,
      dataclasses.replace(shrunk(albert.VARIANTS["albert-base"]), embed=None),
      {},
      "table of another width",
    ),
    (deberta, shrunk(deberta.VARIANTS["deberta-v3-base"]), {}, "design.attention_scale is"),
    (xlm, shrunk(xlm.VARIANTS["xlm-ende"]), {}, "dims.mlp is 32"),
    (xlnet, shrunk(xlnet.VARIANTS["xlnet-base"]), dict(head="pooled"), "head 'pooled'"),
  ],
  ids=lambda x: x if isinstance(x, str) else None,
)
def test_models_that_a_type_cannot_express_are_not_written(
  family, variant, arguments, message, tmp_path
):
  with pytest.raises(UserError, match=message):
    hf.save(tiny.abstract(variant, family=family, **arguments), str(tmp_path / "out"))


def test_electra_networks_are_written_each_by_itself(tmp_path):
  model = tiny.model(shrunk(electra.VARIANTS["electra-small"]), family=electra)
  for network, task in zip(
    model.networks(), ("ElectraForMaskedLM", "ElectraForPreTraining"), strict=True
  ):
    hf.save(network, str(tmp_path / task))
    again = hf.load(str(tmp_path / task))
    assert json.loads((tmp_path / task / "config.json").read_text())["architectures"] == [task]
    assert all(
      np.array_equal(x, params.arrays(again)[n]) for n, x in params.arrays(network).items()
    )

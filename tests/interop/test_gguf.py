"""GGUF files: what is written reads back, others' files are read, damaged ones end in one line."""

import json
import os
import struct

import numpy as np
import pytest

import published
from t5x_like import trust, vocabularies
from t5x_like.files import gguf_file
from t5x_like.interop import gguf_config, gguf_export, gguf_tensors, hf
from t5x_like.library import model as library
from t5x_like.nn import params
from t5x_like.vocabularies.kinds import _gguf_tokenizer as gguf_tokenizer
from tests.interop import test_golden
from tests.refusals import refuses
from tools import convert_hf

gguf = pytest.importorskip("gguf")

CASES = ("llama", "llama-3.1", "qwen2", "qwen3", "gemma2", "gemma3")
TOKENIZER = {"tokenizer.ggml.model": "none"}


def load_case(name: str, folder, **fields):
  """Load a model of tests/golden, with other fields of its config."""
  test_golden.write(name, folder)
  config = json.loads((folder / "config.json").read_text())
  if name.startswith("gemma"):  # llama.cpp knows no other scale of attention, and one pattern
    config["query_pre_attn_scalar"] = config["head_dim"]
    config |= {"layer_types": None, "sliding_window_pattern": 6} if name == "gemma3" else {}
  (folder / "config.json").write_text(json.dumps(config | fields))
  return hf.load(str(folder))


def write_llama(folder):
  """Write a small Llama with a byte-level tokenizer and a chat template; return the directory."""
  folder.mkdir()
  config = {
    "model_type": "llama",
    "vocab_size": 400,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 1,
  }
  (folder / "config.json").write_text(json.dumps(config))
  shapes = {"model.embed_tokens": (400, 64), "lm_head": (400, 64), "model.norm": (64,)}
  for layer in range(2):
    modules = {
      "self_attn.q_proj": (64, 64),
      "self_attn.k_proj": (32, 64),
      "self_attn.v_proj": (32, 64),
      "self_attn.o_proj": (64, 64),
      "mlp.gate_proj": (96, 64),
      "mlp.up_proj": (96, 64),
      "mlp.down_proj": (64, 96),
      "input_layernorm": (64,),
      "post_attention_layernorm": (64,),
    }
    for module, shape in modules.items():
      shapes[f"model.layers.{layer}.{module}"] = shape
  generator = np.random.default_rng(0)
  tensors = {}
  for module, shape in shapes.items():
    tensors[f"{module}.weight"] = generator.normal(size=shape, scale=0.1).astype(np.float32)
  test_golden.save_file(tensors, folder / "model.safetensors")
  tokenizer = published.byte_level(["<s>", "</s>", "<|user|>"])
  tokenizer.save(str(folder / "tokenizer.json"))
  template = "{% for message in messages %}<|user|>{{ message.content }}</s>{% endfor %}"
  names = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": template}
  names |= {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": True}
  (folder / "tokenizer_config.json").write_text(json.dumps(names))
  return folder


@pytest.fixture(scope="module")
def llama_file(tmp_path_factory):
  """Return a GGUF file of a small Llama, float16, and the directory that it was made from."""
  folder = tmp_path_factory.mktemp("gguf")
  directory = write_llama(folder / "hf")
  path = folder / "llama.gguf"
  library.load(str(directory)).save_gguf(str(path))
  return path, directory


@pytest.mark.parametrize("name", CASES)
def test_a_model_reads_back_rounded_to_float16(name, tmp_path):
  model = load_case(name, tmp_path / "hf")
  path = str(tmp_path / "model.gguf")
  gguf_export.save(model, path, TOKENIZER, length=64)
  read = hf.load(path)
  assert read.variant.dims == model.variant.dims
  assert read.variant.design == model.variant.design
  arrays = params.arrays(read)
  for key, array in params.arrays(model).items():
    values = np.asarray(array)
    # Norms and biases of a stack have one axis besides `layers`.
    is_matrix = key.endswith(("kernel", "table"))
    expected = values.astype(np.float16).astype(np.float32) if is_matrix else values
    np.testing.assert_allclose(np.asarray(arrays[key]), expected, rtol=1e-6, atol=1e-6)


def test_queries_and_keys_of_llama_are_in_the_order_of_llama_cpp(tmp_path):
  model = load_case("llama", tmp_path / "hf")
  path = str(tmp_path / "model.gguf")
  gguf_export.save(model, path, TOKENIZER, length=64)
  stored = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
  original = test_golden.load_file(tmp_path / "hf" / "model.safetensors")
  heads = {"q": model.variant.dims.heads, "k": model.variant.dims.kv_heads}
  for letter, count in heads.items():
    weights = original[f"model.layers.1.self_attn.{letter}_proj.weight"]
    head_dim = weights.shape[0] // count
    for head in range(count):
      rows = weights[head * head_dim : (head + 1) * head_dim]
      neighbours = np.empty_like(rows)
      neighbours[0::2] = rows[: head_dim // 2]
      neighbours[1::2] = rows[head_dim // 2 :]
      written = stored[f"blk.1.attn_{letter}.weight"][head * head_dim : (head + 1) * head_dim]
      np.testing.assert_array_equal(written, neighbours.astype(np.float16))


def test_scales_of_gemmas_norms_include_the_one(tmp_path):
  model = load_case("gemma2", tmp_path / "hf")
  path = str(tmp_path / "model.gguf")
  gguf_export.save(model, path, TOKENIZER, length=64)
  stored = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
  original = test_golden.load_file(tmp_path / "hf" / "model.safetensors")
  np.testing.assert_allclose(stored["output_norm.weight"], original["model.norm.weight"] + 1)


@pytest.mark.parametrize(
  "name, part",
  [
    ("llama-dynamic", "no such scaling"),
    ("llama-biases", "design.activation is 'geglu'"),
    ("llama-yarn", "design.position is"),
    ("gemma3-pattern", "design."),
    ("mistral", "windows"),
    ("gpt2", "expected a decoder of llama"),
  ],
)
def test_a_model_that_gguf_cannot_express_is_refused(name, part, tmp_path):
  model = load_case(name, tmp_path / "hf")
  with refuses("this model has no GGUF form", part):
    gguf_export.save(model, str(tmp_path / "model.gguf"), TOKENIZER, length=64)
  assert os.listdir(tmp_path) == ["hf"]


def test_ids_template_and_logits_are_those_of_the_directory(llama_file):
  path, directory = llama_file
  ours = library.load(str(path))
  original = library.load(str(directory))
  for text in [*published.HOSTILE, "a <|user|>b</s>"]:
    assert ours.vocabulary.encode(text) == original.vocabulary.encode(text), text
  assert ours.chat_template() == "published"
  assert ours.vocabulary.enclosing_ids() == ([0], [])
  assert ours.vocabulary.bos_id == 0
  assert ours.vocabulary.eos_id == 1
  batch = {"decoder_input_tokens": np.array([[0, *original.vocabulary.encode("the quick fox")]])}
  logits = [
    np.asarray(params.with_arrays(model.model, model.run.arrays)(batch)["logits"])
    for model in (ours, original)
  ]
  np.testing.assert_allclose(*logits, atol=0.05)  # weights of float16


def test_a_file_becomes_a_directory_and_a_file_again(llama_file, tmp_path, capsys):
  path, _ = llama_file
  directory = tmp_path / "hf"
  again = tmp_path / "again.gguf"
  assert convert_hf.main([f"--input={path}", f"--output={directory}"]) == 0
  assert convert_hf.main([f"--input={directory}", f"--output={again}"]) == 0
  first, second = gguf_file.GgufFile(str(path)), gguf_file.GgufFile(str(again))
  assert first.metadata == second.metadata
  assert first.tensors.keys() == second.tensors.keys()
  for name, info in first.tensors.items():
    # The directory has the dtype of the embeddings, float16, to which vectors are rounded.
    tolerance = 0.0 if len(info.shape) > 1 else 1e-3
    np.testing.assert_allclose(second.read(name), first.read(name), rtol=tolerance)
  assert convert_hf.main([f"--input={path}", f"--output={again}"]) == 2
  assert "exists" in capsys.readouterr().err


def test_q8_0_is_near_and_half_as_large(llama_file, tmp_path):
  path, directory = llama_file
  small = tmp_path / "small.gguf"
  library.load(str(directory)).save_gguf(str(small), "q8_0")
  file = gguf_file.GgufFile(str(small))
  full = gguf_file.GgufFile(str(path))
  types = {info.type_name for info in file.tensors.values()}
  assert types == {"F32", "Q8_0"}
  assert small.stat().st_size < 0.6 * path.stat().st_size
  for name in file.tensors:
    expected = full.read(name)
    assert np.abs(file.read(name) - expected).max() <= np.abs(expected).max() / 127


@pytest.mark.parametrize("dtype, output", [("q8_0", "hf"), ("bfloat16", "a.gguf")])
def test_a_dtype_of_the_other_format_is_refused(dtype, output, llama_file, tmp_path, capsys):
  flags = [f"--input={llama_file[0]}", f"--output={tmp_path}/{output}", f"--dtype={dtype}"]
  assert convert_hf.main(flags) == 2
  assert f"--dtype={dtype}: found the output" in capsys.readouterr().err


def write_tensors(path, tensors, metadata=()):
  """Write a file by the package of llama.cpp."""
  writer = gguf.GGUFWriter(path, "llama")
  for key, value in dict(metadata).items():
    writer.add_string(key, value)
  for name, (blocks, tensor_type) in tensors.items():
    writer.add_tensor(name, blocks, raw_dtype=tensor_type)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()


def test_every_type_of_block_has_the_numbers_of_the_package(tmp_path):
  generator = np.random.default_rng(0)
  tensors = {}
  for name in gguf_file.TENSOR_TYPES:
    tensor_type = gguf.GGMLQuantizationType[name]
    block, size = gguf.GGML_QUANT_SIZES[tensor_type]
    blocks = generator.integers(0, 60, (3, 512 // block * size), np.uint8)  # finite in any type
    tensors[name] = (blocks, tensor_type)
  write_tensors(tmp_path / "types.gguf", tensors)
  file = gguf_file.GgufFile(str(tmp_path / "types.gguf"))
  for name, (blocks, tensor_type) in tensors.items():
    values = file.read(name)
    assert values.shape == (3, 512)
    np.testing.assert_array_equal(values, gguf.dequantize(blocks, tensor_type))


def test_a_type_that_is_not_read_is_named(tmp_path):
  blocks = np.zeros((2, 66), np.uint8)
  path = tmp_path / "a.gguf"
  write_tensors(path, {"a": (blocks, gguf.GGMLQuantizationType.IQ2_XXS)})
  with refuses(str(path), "tensor 'a' is of type IQ2_XXS", "llama-quantize"):
    gguf_file.GgufFile(str(path))


def test_every_truncated_file_is_refused(llama_file, tmp_path):
  content = llama_file[0].read_bytes()
  path = tmp_path / "cut.gguf"
  lengths = [0, 3, 4, 8, 16, 24, 30, *range(100, len(content), len(content) // 60)]
  for length in lengths:
    path.write_bytes(content[:length])
    with refuses(str(path)):
      gguf_file.GgufFile(str(path))


def test_a_file_with_changed_bytes_is_read_or_refused(llama_file, tmp_path):
  content = bytearray(llama_file[0].read_bytes())
  header = gguf_file.GgufFile(str(llama_file[0]))
  end = min(info.start for info in header.tensors.values())
  generator = np.random.default_rng(0)
  path = tmp_path / "changed.gguf"
  refusals = 0
  for _ in range(150):
    changed = bytearray(content)
    for place in generator.integers(0, end, 3):
      changed[place] = generator.choice([0, 1, 255, 128, int(generator.integers(256))])
    path.write_bytes(changed)
    trust.begin_command(())
    try:
      hf.load_abstract(str(path))
      vocabularies.load(str(path))
    except gguf_file.UserError as error:
      assert "\n" not in str(error)
      refusals += 1
  assert refusals


def rewrite(source, path, **changes):
  """Copy a file with other values of its metadata; None leaves out a key."""
  file = gguf_file.GgufFile(str(source))
  metadata = {**file.metadata, **{key.replace("__", "."): changes[key] for key in changes}}
  writer = gguf.GGUFWriter(path, metadata["general.architecture"])
  kept = {key: value for key, value in metadata.items() if value is not None}
  gguf_export._add_metadata(writer, kept)
  for name in file.tensors:
    writer.add_tensor(name, file.read(name))
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return path


@pytest.mark.parametrize(
  "changes, part",
  [
    ({"general__architecture": "rwkv7"}, "general.architecture is 'rwkv7', expected one of llama"),
    ({"general__type": "adapter"}, "general.type is 'adapter'"),
    ({"split__count": 3}, "llama-gguf-split --merge"),
    ({"llama__expert_count": 8}, "llama.expert_count is 8"),
    ({"llama__block_count": 10**9}, "no more than the"),
    ({"llama__embedding_length": 10**9}, "no more than the"),
    ({"llama__attention__head_count": [4, 2]}, "llama.attention.head_count is"),
    ({"llama__rope__dimension_count": 2}, "llama.rope.dimension_count is 2"),
    ({"llama__rope__scaling__type": "su"}, "llama.rope.scaling.type is 'su'"),
    ({"tokenizer__ggml__model": "bert"}, "tokenizer.ggml.model is 'bert'"),
    ({"tokenizer__ggml__pre": "default"}, "tokenizer.ggml.pre is 'default', expected one of"),
    ({"tokenizer__ggml__pre": None}, "tokenizer.ggml.pre is None"),
    ({"tokenizer__ggml__bos_token_id": 10**6}, "tokenizer.ggml.bos_token_id is 1000000"),
    ({"tokenizer__ggml__token_type": [1, 2]}, "tokenizer.ggml.token_type has 2 values"),
    (
      {"tokenizer__ggml__tokens": ["a", "a"], "tokenizer__ggml__token_type": [1, 1]},
      "tokenizer.ggml.tokens has the piece 'a' at 0",
    ),
    ({"tokenizer__ggml__add_bos_token": "yes"}, "tokenizer.ggml.add_bos_token is 'yes'"),
  ],
  ids=str,
)
def test_metadata_of_no_model_here_are_refused(changes, part, llama_file, tmp_path):
  path = str(rewrite(llama_file[0], tmp_path / "other.gguf", **changes))
  with refuses(str(path), part):
    hf.load_abstract(path)
    vocabularies.load(path)


def test_missing_and_unknown_tensors_are_named_as_in_the_file(llama_file, tmp_path):
  file = gguf_file.GgufFile(str(llama_file[0]))
  for left_out, added, part in (
    ("blk.1.ffn_up.weight", None, "tensor 'blk.1.ffn_up.weight' is missing"),
    (None, "blk.0.ssm_a", "tensor 'blk.0.ssm_a' is unknown"),
  ):
    path = tmp_path / f"{left_out}.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    gguf_export._add_metadata(writer, file.metadata)
    for name in file.tensors:
      if name != left_out:
        writer.add_tensor(name, file.read(name))
    if added:
      writer.add_tensor(added, np.zeros((2, 2), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with refuses(str(path), part):
      hf.load(str(path))


def test_counts_and_lengths_are_bounded_by_the_file(tmp_path):
  path = tmp_path / "bomb.gguf"
  key = struct.pack("<Q", 1) + b"a"
  for body, part in (
    (struct.pack("<QQ", 2**60, 0), "tensors in"),
    (struct.pack("<QQ", 0, 2**60), "keys in"),
    (struct.pack("<QQ", 0, 1) + struct.pack("<Q", 2**62), "expected at least"),
    (struct.pack("<QQ", 0, 1) + key + struct.pack("<IIQ", 9, 8, 2**60), "strings for the key"),
    (struct.pack("<QQ", 0, 1) + key + struct.pack("<IIQ", 9, 10, 2**60), "expected at least"),
    (struct.pack("<QQ", 0, 1) + key + struct.pack("<IIQ", 9, 9, 1), "a list of type 9"),
    (
      struct.pack("<QQ", 1, 0) + key + struct.pack("<IQQIQ", 2, 2**40, 2**40, 0, 0),
      "tensor 'a' has shape",
    ),
  ):
    path.write_bytes(b"GGUF" + struct.pack("<I", 3) + body + bytes(64))
    with refuses(str(path), part):
      gguf_file.GgufFile(str(path))


def test_a_pipe_and_a_missing_package_end_in_one_line(tmp_path, monkeypatch):
  os.mkfifo(tmp_path / "pipe.gguf")
  with refuses("found a pipe, expected a file"):
    gguf_file.open_gguf(str(tmp_path / "pipe.gguf"))
  with refuses("--workdir: found no file absent.gguf"):
    library.open_model("absent.gguf", None, (), None, 1)
  monkeypatch.setitem(__import__("sys").modules, "gguf", None)
  (tmp_path / "a.gguf").write_bytes(b"GGUF")
  with refuses("a.gguf: a GGUF file needs the package gguf; run pip install 't5x-like[gguf]'"):
    gguf_file.open_gguf(str(tmp_path / "a.gguf"))


WORDS = {
  "smollm": "don't 1234  x\n\n\tdef f(x): return 'é'—日本",
  "llama-bpe": "DON'T 12345 x\r\n\r\n  y",
  "qwen2": "we'LL 12345 e\u0301 x\n y",
  "gpt-2": "don't 12345  x\n\n y",
}


@pytest.mark.parametrize("name", gguf_tokenizer._WORDS)
def test_words_have_the_same_name_and_ids_after_writing(name, llama_file, tmp_path):
  path = rewrite(llama_file[0], tmp_path / "words.gguf", tokenizer__ggml__pre=name)
  vocabulary = vocabularies.load(str(path))
  metadata = gguf_tokenizer.write_tokenizer(
    vocabulary.model, vocabulary, vocabulary.enclosing_ids(), 400
  )
  assert metadata["tokenizer.ggml.pre"] == name
  assert vocabulary.decode(vocabulary.encode(WORDS[name])) == WORDS[name] or name == "qwen2"


def test_sentence_pieces_have_the_ids_of_the_sentencepiece_library(llama_file, tmp_path):
  import sentencepiece

  model = published.sentence_piece(
    vocab_size=400,
    model_type="bpe",
    byte_fallback=True,
    normalization_rule_name="identity",
    remove_extra_whitespaces=False,
    hard_vocab_limit=False,
  )
  processor = sentencepiece.SentencePieceProcessor(model_proto=model)
  size = processor.get_piece_size()
  types = []
  for i in range(size):
    kinds = (
      (processor.is_unknown(i), 2),
      (processor.is_control(i), 3),
      (processor.is_byte(i), 6),
    )
    types.append(next((kind for holds, kind in kinds if holds), 1))
  changes = {
    "model": "llama",
    "pre": "default",
    "tokens": [processor.id_to_piece(i) for i in range(size)],
    "scores": [processor.get_score(i) for i in range(size)],
    "token_type": types,
    "merges": None,
    "unknown_token_id": processor.unk_id(),
    "bos_token_id": processor.bos_id(),
    "eos_token_id": processor.eos_id(),
  }
  changes = {f"tokenizer__ggml__{key}": value for key, value in changes.items()}
  path = rewrite(llama_file[0], tmp_path / "pieces.gguf", **changes)
  vocabulary = vocabularies.load(str(path))
  for text in ("the quick  fox", "naïve 世界 seven?", " a", "x\ny"):
    assert vocabulary.encode(text) == processor.encode(text), text
  again = gguf_tokenizer.write_tokenizer(
    vocabulary.model, vocabulary, vocabulary.enclosing_ids(), size
  )
  metadata = {**gguf_file.GgufFile(str(path)).metadata, **again}
  tokenizer, _ = gguf_tokenizer.read_tokenizer(metadata, "again")
  assert tokenizer["model"] == json.loads(vocabulary.model)["model"]


def test_layouts_are_inverse_for_every_architecture():
  values = np.arange(8 * 4, dtype=np.float32).reshape(8, 4)
  for architecture in gguf_config.ARCHITECTURES.values():
    for name in ("model.layers.3.self_attn.q_proj.weight", "model.norm.weight"):
      stored = gguf_tensors.to_file_layout(name, values, architecture, (2, 1))
      again = gguf_tensors.from_file_layout(name, stored, architecture, (2, 1))
      np.testing.assert_array_equal(again, values)
      assert gguf_tensors.hf_name(gguf_tensors.gguf_name(name, architecture), architecture) == name

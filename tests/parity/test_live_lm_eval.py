"""lm_eval gets the same answers from our adapter and from its Hugging Face backend."""

import json

import pytest

import published
from parity import cases, reference
from tools import lm_eval as adapter

pytestmark = pytest.mark.parity
harness = pytest.importorskip("lm_eval")

TABLE = 384
LENGTH = 48
LONG = " ".join(published.WORDS[:18] * 3)
GPT2 = dict(
  vocab_size=TABLE,
  n_embd=16,
  n_layer=2,
  n_head=4,
  n_positions=LENGTH,
  bos_token_id=0,
  eos_token_id=0,
)
LLAMA = cases.decoders.LLAMA | dict(
  vocab_size=TABLE,
  max_position_embeddings=LENGTH,
  bos_token_id=0,
  eos_token_id=1,
  pad_token_id=None,
)
FAMILIES = {  # the model, its special pieces, and how its tokenizer encloses a text
  "gpt2": (cases.Case("GPT2LMHeadModel", "GPT2Config", GPT2, "decoder"), ["<|endoftext|>"], None),
  "llama": (
    cases.Case("LlamaForCausalLM", "LlamaConfig", LLAMA, "decoder"),
    ["<s>", "</s>"],
    "<s> $A",
  ),
  # Of T5 1.0: the backend ties the output of every T5 to its embeddings.
  "t5": (
    cases.Case(
      "T5ForConditionalGeneration", "T5Config", cases.T5 | dict(vocab_size=TABLE), "encoder_decoder"
    ),
    ["<pad>", "</s>", "<unk>"],
    "$A </s>",
  ),
}
DOCUMENTS = {
  "choose": [
    {
      "question": "the quick brown",
      "options": ["fox jumps", "dog", "seven wizards with jugs"],
      "answer": 0,
    },
    {"question": "a lazy ", "options": ["dog", "box"], "answer": 1},
    {"question": LONG, "options": ["fox", "of liquid quartz"], "answer": 1},
  ],
  "finish": [
    {"text": "seven wizards box with", "last": "jugs"},
    {"text": LONG, "last": "quartz naïve"},
    {"text": "", "last": "the fox"},
  ],
  "read": [{"text": line} for line in (*published.LINES[:2], LONG, "fox")],
  "write": [
    {"text": text} for text in ("the quick", "seven wizards box with jugs of", LONG, "naïve 世")
  ],
}
TASKS = {
  "choose": """
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{options}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
  "finish": """
output_type: loglikelihood
doc_to_text: "{{text}}"
doc_to_target: " {{last}}"
metric_list: [{metric: perplexity}, {metric: acc}]
""",
  "read": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]
""",
  "write": """
output_type: generate_until
doc_to_text: "{{text}}"
doc_to_target: "fox"
generation_kwargs: {until: ["d", " the"], max_gen_toks: 20, do_sample: false}
metric_list: [{metric: exact_match}]
""",
}


def write_model(name, directory):
  """Write a Hugging Face directory with a random model and a tokenizer trained here."""
  import transformers
  from tokenizers import processors

  case, special, template = FAMILIES[name]
  reference.make(case, directory)
  tokenizer = published.byte_level(special)
  if template is not None:
    ids = [(piece, tokenizer.token_to_id(piece)) for piece in special]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=ids)
  special_tokens = {
    "gpt2": {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"},
    "llama": {"bos_token": "<s>", "eos_token": "</s>"},
    "t5": {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"},
  }[name]
  fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special_tokens)
  fast.save_pretrained(str(directory))
  return str(directory)


def write_tasks(folder):
  """Write the tasks and their documents; return lm_eval's manager of them."""
  from lm_eval.tasks import TaskManager

  for name, description in TASKS.items():
    rows = folder / f"{name}.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in DOCUMENTS[name]))
    data = f'{{data_files: {{validation: "{rows}"}}, cache_dir: "{folder}/cache"}}'
    head = f"task: {name}\ndataset_path: json\ndataset_kwargs: {data}\nvalidation_split: validation"
    (folder / f"{name}.yaml").write_text(head + description)
  return TaskManager(include_path=str(folder), include_defaults=False)


def evaluate(backend, manager):
  """Return (a backend's flat list of answers by task, its scores by task)."""
  evaluation = harness.simple_evaluate(
    model=backend, tasks=list(TASKS), task_manager=manager, bootstrap_iters=0, log_samples=True
  )
  answers = {}
  for task, samples in evaluation["samples"].items():
    samples = sorted(samples, key=lambda sample: sample["doc_id"])
    answers[task] = flatten([sample["resps"] for sample in samples])
  return answers, evaluation["results"]


def flatten(values):
  """Return the leaves of nested lists and tuples in order."""
  if not isinstance(values, list | tuple):
    return [values]
  leaves = []
  for value in values:
    leaves += flatten(value)
  return leaves


@pytest.mark.parametrize("name", FAMILIES)
def test_likelihoods_and_generations_are_those_of_its_hugging_face_backend(name, tmp_path):
  from lm_eval.models.huggingface import HFLM

  path = write_model(name, tmp_path / "model")
  manager = write_tasks(tmp_path)
  answers, scores = evaluate(adapter.Model(path, batch_size=4), manager)
  backend = HFLM(pretrained=path, device="cpu", dtype="float32", batch_size=1)
  hf_answers, hf_scores = evaluate(backend, manager)
  for task in TASKS:
    assert len(answers[task]) >= len(DOCUMENTS[task])
    for answer, hf_answer in zip(answers[task], hf_answers[task], strict=True):
      if isinstance(hf_answer, float):
        assert answer == pytest.approx(hf_answer, abs=1e-3), task
      else:
        assert answer == hf_answer, task
    for metric, value in hf_scores[task].items():
      if isinstance(value, float):
        assert scores[task][metric] == pytest.approx(value, rel=1e-3), (task, metric)
  assert any(answers["write"])

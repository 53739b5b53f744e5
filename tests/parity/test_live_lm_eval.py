"""EleutherAI's lm_eval through our adapter and through its own Hugging Face backend, answer by
answer."""

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


def model(name, directory):
  """A Hugging Face directory with a random model and a tokenizer trained here."""
  import transformers
  from tokenizers import processors

  case, special, template = FAMILIES[name]
  reference.make(case, directory)
  tokenizer = published.byte_level(special)
  if template is not None:
    ids = [(piece, tokenizer.token_to_id(piece)) for piece in special]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=ids)
  named = (
    {"bos_token": special[0]}
    if name != "t5"
    else {"pad_token": special[0], "unk_token": special[2]}
  )
  named["eos_token"] = special[0 if name == "gpt2" else 1]
  transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(
    str(directory)
  )
  return str(directory)


def tasks(folder):
  from lm_eval.tasks import TaskManager

  for name, described in TASKS.items():
    rows = folder / f"{name}.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in DOCUMENTS[name]))
    data = f'{{data_files: {{validation: "{rows}"}}, cache_dir: "{folder}/cache"}}'
    head = f"task: {name}\ndataset_path: json\ndataset_kwargs: {data}\nvalidation_split: validation"
    (folder / f"{name}.yaml").write_text(head + described)
  return TaskManager(include_path=str(folder), include_defaults=False)


def answers(driven, manager):
  """What a backend says to each request, by task, and the scores made of it."""
  found = harness.simple_evaluate(
    model=driven, tasks=list(TASKS), task_manager=manager, bootstrap_iters=0, log_samples=True
  )
  said = {
    name: [one["resps"] for one in sorted(rows, key=lambda one: one["doc_id"])]
    for name, rows in found["samples"].items()
  }
  return said, found["results"]


def flat(values):
  return (
    [one for value in values for one in flat(value)]
    if isinstance(values, list | tuple)
    else [values]
  )


@pytest.mark.parametrize("name", FAMILIES)
def test_likelihoods_and_generations_are_those_of_its_hugging_face_backend(name, tmp_path):
  from lm_eval.models.huggingface import HFLM

  path = model(name, tmp_path / "model")
  manager = tasks(tmp_path)
  ours, our_scores = answers(adapter.Model(path, batch_size=4), manager)
  backend = HFLM(pretrained=path, device="cpu", dtype="float32", batch_size=1)
  theirs, their_scores = answers(backend, manager)
  for task in TASKS:
    got = flat(ours[task])
    expected = flat(theirs[task])
    assert len(got) == len(expected) >= len(DOCUMENTS[task])
    assert got == [
      pytest.approx(one, abs=1e-3) if isinstance(one, float) else one for one in expected
    ], task
    for metric, value in their_scores[task].items():
      if isinstance(value, float):
        assert our_scores[task][metric] == pytest.approx(value, rel=1e-3), (task, metric)
  assert any(flat(ours["write"]))

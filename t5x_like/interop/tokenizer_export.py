"""Write tokenizer files by which `transformers` adds the special pieces of training to a text."""

import json
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

from t5x_like import vocabularies
from t5x_like.data.supervised.chat import ASSISTANT, EOS, Message, find_template
from t5x_like.data.supervised.published_template import (
  FILE,
  PUBLISHED,
  PublishedChat,
  build_chat,
  find_template_text,
)
from t5x_like.vocabularies import CONFIG, TOKENIZER, Vocabulary, opening_ids, special_id, start_id

GENERATION_CONFIG = "generation_config.json"


def tokenizer_files(vocabulary: Vocabulary, features: Mapping[str, Any]) -> dict[str, bytes]:
  """Return the files of a vocabulary by name.

  A `tokenizer.json` made here gets the post-processor of the model: CLS and SEP around an encoder's
  text, the start token before a decoder's, EOS after an encoder-decoder's text and after a caption.
  So does a SentencePiece model, as a `tokenizer.json`. Published tokenizers keep their own.

  Args:
    features: by name, of the model's training.
  Raises:
    UserError: an encoder's vocabulary has neither CLS and SEP nor sentinels for them, or the
      vocabulary has no form in which `transformers` would give the ids of training.
  """
  files = vocabulary.export_files()
  if CONFIG not in files or vocabulary.enclosing_ids() is not None:
    return files
  import tokenizers

  before, after = _training_ids(vocabulary, features)
  if TOKENIZER not in files:
    if not before:
      return files
    files = _convert_sentence_piece(files)
  first = vocabulary.pieces_of(before)
  last = vocabulary.pieces_of(after)
  tokenizer = tokenizers.Tokenizer.from_str(files[TOKENIZER].decode())
  tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
    single=[*first, "$A", *last],
    pair=[*first, "$A", *last, "$B:1", *(f"{piece}:1" for piece in last)],
    special_tokens=list(zip([*first, *last], [*before, *after])),
  )
  content = json.loads(files[TOKENIZER])
  content["post_processor"] = json.loads(tokenizer.to_str())["post_processor"]
  text = json.dumps(content, ensure_ascii=False, indent=1) + "\n"
  return files | {TOKENIZER: text.encode()}


def _training_ids(
  vocabulary: Vocabulary, features: Mapping[str, Any]
) -> tuple[list[int], list[int]]:
  """Return the ids before and after a text in training."""
  if "text_input_tokens" in features:  # captions
    before = [] if vocabulary.bos_id is None else [vocabulary.bos_id]
    return before, [vocabulary.eos_id]
  if "decoder_target_tokens" not in features:
    return [special_id(vocabulary, "cls")], [special_id(vocabulary, "sep")]
  if "encoder_input_tokens" in features:
    return opening_ids(vocabulary), [vocabulary.eos_id]
  return [start_id(vocabulary)], []


def _convert_sentence_piece(files: dict[str, bytes]) -> dict[str, bytes]:
  """Convert the files of a SentencePiece model to a `tokenizer.json`."""
  with tempfile.TemporaryDirectory() as directory:
    for name, content in files.items():
      (pathlib.Path(directory) / name).write_bytes(content)
    model = vocabularies.load(directory).model
  config = json.loads(files[CONFIG]) | {"tokenizer_class": "PreTrainedTokenizerFast"}
  del config["extra_ids"]
  return {TOKENIZER: model, CONFIG: (json.dumps(config, indent=2, sort_keys=True) + "\n").encode()}


def chat_files(vocabulary: Vocabulary, template: str | dict[str, Any]) -> dict[str, bytes]:
  """Return the files by which `transformers` converses like a decoder here.

  They are its generation config, if answers end with other tokens than EOS, and, if pieces mark the
  turns of a conversation, a chat template.

  Args:
    template: see `published_template.build_chat`.
  """
  chat = build_chat(template, vocabulary)
  files = _generation_config(vocabulary, chat)
  if template == PUBLISHED:
    text = _add_start_token(find_template_text(vocabulary), vocabulary, chat)
    return files | {FILE: text.encode()}
  form = find_template(template)
  # without pieces, a text has other ids within a conversation than by itself
  if form.pieces == (EOS,):
    return files
  start, eos = vocabulary.pieces_of([start_id(vocabulary), vocabulary.eos_id])
  before = {role: turn[0].replace(EOS, eos) for role, turn in form.turns.items()}
  after = {role: turn[1].replace(EOS, eos) for role, turn in form.turns.items()}
  content = "message['content']"
  if form.content_prefix:
    content = f"{json.dumps(form.content_prefix)} + {content}"
  if form.stripped:
    content = f"{content} | trim"
  jinja = (
    f"{{%- set before = {json.dumps(before)} %}}{{%- set after = {json.dumps(after)} %}}{{%- set "
    f"start = {json.dumps(start)} %}}{{%- if not messages or not before.get(messages[0]['role'], "
    "'').startswith(start) %}{{- start }}{%- endif %}{%- for message in messages %}{%- if "
    "message['role'] not in before %}{{- raise_exception('no turn of ' + message['role']) }}{%- "
    f"endif %}}{{{{- before[message['role']] + ({content}) + after[message['role']] }}}}{{%- "
    f"endfor %}}{{%- if add_generation_prompt %}}{{{{- before['{ASSISTANT}'] }}}}{{%- endif %}}"
  )
  return files | {FILE: jinja.encode()}


def _generation_config(vocabulary: Vocabulary, chat: Any) -> dict[str, bytes]:
  """Return the file that names the ids which end an answer; none if EOS alone does."""
  settings = json.loads(vocabulary.export_files().get(GENERATION_CONFIG, b"{}"))
  ends = settings.get("eos_token_id") or []
  if not isinstance(ends, list):
    ends = [ends]
  ends = {*ends, vocabulary.eos_id, chat.end}
  if len(ends) == 1:
    return {}
  settings["eos_token_id"] = sorted(ends)
  return {GENERATION_CONFIG: (json.dumps(settings, indent=2) + "\n").encode()}


def _add_start_token(text: str, vocabulary: Vocabulary, chat: PublishedChat) -> str:
  """Return a published template that writes the start token of training."""
  start = start_id(vocabulary)
  if chat.prompt_with_start([Message("user", "a")])[:1] == [start]:  # it does so by itself
    return text
  (piece,) = vocabulary.pieces_of([start])
  return f"{{{{- {json.dumps(piece)} }}}}{text}"

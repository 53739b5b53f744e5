"""The tokenizer files of an export: `transformers` puts around a text what stands around it in
training here."""

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

GENERATION = "generation_config.json"


def tokenizer_files(vocabulary: Vocabulary, features: Mapping[str, Any]) -> dict[str, bytes]:
  """Return the files of a vocabulary by name.

  A `tokenizer.json` made here gets the post-processor of the model: CLS and SEP around an encoder's
  text, the start token before a decoder's, EOS behind an encoder-decoder's and a caption. So does a
  SentencePiece model, as a `tokenizer.json`. Published tokenizers keep their own.

  Args:
    features: by name, of the model's training.
  Raises:
    UserError: an encoder's vocabulary has neither CLS and SEP nor sentinels for them, or the
      vocabulary has no form in which `transformers` would give the ids of training.
  """
  found = vocabulary.export_files()
  if CONFIG not in found or vocabulary.enclosing_ids() is not None:
    return found
  import tokenizers

  if "text_input_tokens" in features:  # captions
    before = [] if vocabulary.bos_id is None else [vocabulary.bos_id]
    after = [vocabulary.eos_id]
  elif "decoder_target_tokens" not in features:
    before = [special_id(vocabulary, "cls")]
    after = [special_id(vocabulary, "sep")]
  elif "encoder_input_tokens" in features:
    before = opening_ids(vocabulary)
    after = [vocabulary.eos_id]
  else:
    before = [start_id(vocabulary)]
    after = []
  if TOKENIZER not in found:
    if not before:
      return found
    found = _converted(found)
  first, last = (vocabulary.pieces_of(ids) for ids in (before, after))
  tokenizer = tokenizers.Tokenizer.from_str(found[TOKENIZER].decode())
  tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
    single=[*first, "$A", *last],
    pair=[*first, "$A", *last, "$B:1", *(f"{piece}:1" for piece in last)],
    special_tokens=list(zip([*first, *last], [*before, *after])),
  )
  described = json.loads(found[TOKENIZER]) | {
    "post_processor": json.loads(tokenizer.to_str())["post_processor"]
  }
  text = json.dumps(described, ensure_ascii=False, indent=1) + "\n"
  return found | {TOKENIZER: text.encode()}


def _converted(found: dict[str, bytes]) -> dict[str, bytes]:
  """Convert the files of a SentencePiece model to a `tokenizer.json`."""
  with tempfile.TemporaryDirectory() as aside:
    for name, data in found.items():
      (pathlib.Path(aside) / name).write_bytes(data)
    model = vocabularies.load(aside).model
  config = json.loads(found[CONFIG]) | {"tokenizer_class": "PreTrainedTokenizerFast"}
  del config["extra_ids"]
  return {TOKENIZER: model, CONFIG: (json.dumps(config, indent=2, sort_keys=True) + "\n").encode()}


def chat_files(vocabulary: Vocabulary, template: str | dict[str, Any]) -> dict[str, bytes]:
  """Return the files that tell how a decoder converses: where its answers end and, if pieces mark
  its turns, how.

  Args:
    template: see `published_template.chat_of`.
  """
  chat = build_chat(template, vocabulary)
  own = json.loads(vocabulary.export_files().get(GENERATION, b"{}"))
  ends = own.get("eos_token_id") or []
  ends = {*(ends if isinstance(ends, list) else [ends]), vocabulary.eos_id, chat.end}
  told = own | {"eos_token_id": sorted(ends)}
  found = {GENERATION: (json.dumps(told, indent=2) + "\n").encode()} if len(ends) > 1 else {}
  if template == PUBLISHED:
    return found | {FILE: _begun(find_template_text(vocabulary), vocabulary, chat).encode()}
  form = find_template(template)
  # without pieces, a text has other ids within a conversation than by itself
  if form.pieces == (EOS,):
    return found
  start, eos = vocabulary.pieces_of([start_id(vocabulary), vocabulary.eos_id])
  before, after = (
    {role: turn[side].replace(EOS, eos) for role, turn in form.turns.items()} for side in (0, 1)
  )
  content = (
    (f"{json.dumps(form.lead)} + " if form.lead else "")
    + "message['content']"
    + " | trim" * form.stripped
  )
  jinja = (
    f"{{%- set before = {json.dumps(before)} %}}{{%- set after = {json.dumps(after)} %}}{{%- set "
    f"start = {json.dumps(start)} %}}{{%- if not messages or not before.get(messages[0]['role'], "
    "'').startswith(start) %}{{- start }}{%- endif %}{%- for message in messages %}{%- if "
    "message['role'] not in before %}{{- raise_exception('no turn of ' + message['role']) }}{%- "
    f"endif %}}{{{{- before[message['role']] + ({content}) + after[message['role']] }}}}{{%- "
    f"endfor %}}{{%- if add_generation_prompt %}}{{{{- before['{ASSISTANT}'] }}}}{{%- endif %}}"
  )
  return found | {FILE: jinja.encode()}


def _begun(text: str, vocabulary: Vocabulary, chat: PublishedChat) -> str:
  """Return a published template that writes the start token of training, if it does not write it by
  itself."""
  start = start_id(vocabulary)
  if chat.prompt_with_start([Message("user", "a")])[:1] == [start]:
    return text
  (piece,) = vocabulary.pieces_of([start])
  return f"{{{{- {json.dumps(piece)} }}}}{text}"

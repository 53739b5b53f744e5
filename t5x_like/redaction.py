"""Replace secrets by `***` in text that is printed or written where others read it.

A secret is recognised by the name of its variable, flag or key (`PGPASS`, `--api_key`, `"token"`),
by its position in an address (`https://user:password@host`), or by its own form (`hf_…`, `ghp_…`, a
JSON web token). The rule errs on the side of hiding too much.
"""

import re
from typing import Any

MASK = "***"

_LAST_PARTS = (
  "token|secret|pass|passwd|password|passphrase|passcode|pwd|credential|credentials|apikey"
  "|accesskey|secretkey|privatekey|auth|cookie|dsn|netrc"
)
_WHOLE_PARTS = "key|keys|pat|pw|sas|sig|signature|secrets|authorization|bearer|jwt|cred|creds"
# `TOKENIZERS_PARALLELISM` and `max_tokens` are no secrets; `HFTOKEN` and `GITHUB_PAT2` are.
_SECRET_PART = re.compile(rf"(?i)(?:\w*(?:{_LAST_PARTS})|{_WHOLE_PARTS})\d*")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_QUOTED = r"""'[^']*'|"(?:\\.|[^"\\])*"|\\"(?:(?!\\").)*\\"|\\."""  # \"…\": of a script in JSON
# A shell joins adjacent quoted and plain pieces to one word.
_SHELL_VALUE = rf"""(?:{_QUOTED}|[^\s'"\\])+"""
_ASSIGNMENT = re.compile(rf"([A-Za-z_][\w.-]*)=({_SHELL_VALUE})")
_FLAG = re.compile(rf"(?<![\w-])(--?[A-Za-z][\w.-]*)([ \t]+)(?!-)({_SHELL_VALUE})")
_ENTRY = re.compile(rf"""(["'])([A-Za-z_][\w.-]*)\1(\s*:\s*)({_QUOTED}|[^\s,{{}}\[\]]+)""")
_HEADER = re.compile(
  r"(?i)\b((?:authorization|cookie)\s*:\s*(?:bearer|basic|token)?\s*)[^\s'\",;]+"
)
_SCHEME = re.compile(r"(?i)\b((?:bearer|basic)\s+)[\w+/=.~-]{16,}")
_USER = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)(?:[^\s/?#<>:]*:[^\s<>]*|[^\s/?#<>]*)@")
_USER_IN_WORD = re.compile(r"(?is)\b([a-z][a-z0-9+.-]*://)(?:[^/?#]*|.*:.*)@")
# For addresses in a saved config, which must stay usable: `hf://model@revision` and
# `gs://bucket/a:b@c` name no user.
_STRICT_USER = re.compile(
  r"(?i)\b((?:https?|ftps?)://(?=[^/?#\s]*@)|[a-z][a-z0-9+.-]*://(?=[^/?#\s@]*:))[^/?#\s]*@"
)
_QUERY = re.compile(r"(?<=[?&])([A-Za-z_][\w.-]*)=([^&#\s]+)")
_KNOWN_TOKENS = re.compile(
  r"\b(?:hf_[A-Za-z0-9]{16,}|gh[opsur]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}"
  r"|sk-[\w-]{16,}|xox[abpr]-[\w-]{8,}|A[KS]IA[A-Z0-9]{16}|AIza[\w-]{30,}|ya29\.[\w.-]{16,}"
  r"|eyJ[\w-]+\.eyJ[\w-]+\.[\w-]*)"
)


def is_secret_name(name: str) -> bool:
  """Return whether a variable, flag or key of this name holds a secret."""
  parts = re.split(r"[^A-Za-z0-9]+", _CAMEL.sub("_", name))
  return any(_SECRET_PART.fullmatch(part) for part in parts)


def redact(text: str) -> str:
  """Return a command, script, message, JSON or address with its secrets replaced by `***`."""
  text = _USER.sub(rf"\1{MASK}@", text)
  text = _KNOWN_TOKENS.sub(MASK, text)
  text = _HEADER.sub(rf"\1{MASK}", text)
  text = _SCHEME.sub(rf"\1{MASK}", text)
  text = _ENTRY.sub(_redact_entry, text)
  text = _FLAG.sub(_redact_flag, text)
  return _ASSIGNMENT.sub(_redact_assignment, text)


def redact_word(word: str) -> str:
  """Return one argument or value, spaces and quotes included, with its secrets replaced."""
  name, equals, value = word.partition("=")
  if equals and is_secret_name(name) and re.fullmatch(r"[\w.-]+", name):
    return f"{name}={MASK}"
  return redact(_USER_IN_WORD.sub(rf"\1{MASK}@", word))


def redact_tree(value: Any, name: str = "") -> Any:
  """Return nested dicts and lists with their secrets replaced, by key and as `redact_word`."""
  if isinstance(value, dict):
    return {key: redact_tree(item, str(key)) for key, item in value.items()}
  if isinstance(value, list | tuple):
    return [redact_tree(item, name) for item in value]
  if not isinstance(value, str):
    return value
  if value and is_secret_name(name):
    return MASK
  return redact_word(value)


def redact_config(config: dict[str, Any]) -> dict[str, Any]:
  """Return a run's config to save or show, without secrets in addresses and in `trackers`.

  The values of all other keys are kept, as the run is opened with them again.
  """
  redacted = _redact_addresses(config)
  if "trackers" in config:
    redacted["trackers"] = redact_tree(config["trackers"])
  return redacted


def _redact_addresses(value: Any) -> Any:
  if isinstance(value, dict):
    return {key: _redact_addresses(item) for key, item in value.items()}
  if isinstance(value, list | tuple):
    return type(value)(_redact_addresses(item) for item in value)
  if isinstance(value, str):
    value = _STRICT_USER.sub(rf"\1{MASK}@", value)
    return _QUERY.sub(_redact_assignment, value)
  return value


def _redact_assignment(match: re.Match) -> str:
  name, value = match.groups()
  if is_secret_name(name):
    return f"{name}={MASK}"
  return f"{name}={_ASSIGNMENT.sub(_redact_assignment, value)}"


def _redact_flag(match: re.Match) -> str:
  flag, space, value = match.groups()
  if is_secret_name(flag):
    return f"{flag}{space}{MASK}"
  return match[0]


def _redact_entry(match: re.Match) -> str:
  quote, name, colon, _ = match.groups()
  if is_secret_name(name):
    return f'{quote}{name}{quote}{colon}"{MASK}"'
  return match[0]

"""A program that renders untrusted chat templates.

`published_template.Renderer` starts it, limits it and ends it. The first line of its input is a
JSON object with `template` and `variables`, every further line one with `messages` and
`add_generation_prompt`. It answers each line with `{"text": …, "answers": [[begin, end], …]}`,
where `answers` are the characters inside `{% generation %}` blocks, or with `{"error": …}`. The
template runs in jinja2's immutable sandbox with the helpers of `transformers`,
without a loader: it opens no file and imports nothing.
"""

import contextlib
import datetime
import json
import secrets
import sys

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

MAX_OUTPUT = 2**20  # characters
_MAX_MEMORY = 2**30  # bytes


class _Generation(jinja2.ext.Extension):
  """Encloses the text of `{% generation %}` blocks in random marks, which no content can have."""

  tags = {"generation"}
  mark = f"\0{secrets.token_hex(16)}\0"

  def parse(self, parser):
    line = next(parser.stream).lineno
    body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
    return jinja2.nodes.CallBlock(self.call_method("_enclose"), [], [], body).set_lineno(line)

  def _enclose(self, caller) -> str:
    return f"{self.mark}{caller()}{self.mark}"


def _to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
  """Return a value as JSON; the filter `tojson` of `transformers`."""
  return json.dumps(
    value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
  )


def _raise(message) -> None:
  raise jinja2.TemplateError(str(message))


def _now(format: str) -> str:
  return datetime.datetime.now().strftime(format)


def compile_template(text: str) -> jinja2.Template:
  """Compile a template; raise as jinja2 does."""
  environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
  )
  environment.filters["tojson"] = _to_json
  environment.globals["raise_exception"] = _raise
  environment.globals["strftime_now"] = _now
  return environment.from_string(text)


def render(template: jinja2.Template, values: dict) -> dict:
  """Return the text of a conversation and the positions of its answers; raise as jinja2 does."""
  chunks = []
  size = 0
  for chunk in template.generate(tools=None, documents=None, **values):
    size += len(chunk)
    if size > MAX_OUTPUT:
      raise jinja2.TemplateError(f"it writes more than {MAX_OUTPUT} characters")
    chunks.append(chunk)
  parts = "".join(chunks).split(_Generation.mark)
  text = ""
  answers = []
  for number, part in enumerate(parts):
    if number % 2:
      answers.append([len(text), len(text) + len(part)])
    text += part
  return {"text": text, "answers": answers}


def main() -> None:
  """Limit this process, then answer the requests."""
  with contextlib.suppress(ImportError, OSError, ValueError):
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
  template = None
  variables = {}
  for line in sys.stdin:
    request = json.loads(line)
    try:
      if template is None:
        template = compile_template(request["template"])
        variables = request["variables"]
        answer = {}
      else:
        answer = render(template, variables | request)
    except MemoryError:
      answer = {"error": "it needs too much memory"}
    except Exception as error:  # a template may raise any class
      answer = {"error": f"{error}"[:300] or type(error).__name__}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
  main()

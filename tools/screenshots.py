"""Take the pictures of the documentation from real runs.

  make quickstart 2>&1 | tee quickstart.log
  python -m tools.screenshots --log=quickstart.log --report=runs/quickstart \\
      --compare runs/quickstart runs/other --chat=MODEL --message='What is the capital of Italy?'

Each flag makes its pictures: `terminal.svg`, `report.png` and `report_phone.png`, `comparison.png`,
`chat.png` and `chat_phone.png`. All but the first need Playwright (pip install playwright) and
Chromium (apt-get install chromium).
"""

import argparse
import contextlib
import html
import io
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from PIL import Image

from t5x_like.errors import UserError, handle_errors
from t5x_like.report import comparison, page

_RESULTS = "=== done"  # begins the results in the quickstart's log
_COLUMNS = 80
_DESKTOP = {"viewport": {"width": 1280, "height": 960}}
_WINDOW = {"viewport": {"width": 900, "height": 600}}
_PHONE = {
  "viewport": {"width": 390, "height": 844},
  "is_mobile": True,
  "has_touch": True,
}
_COLOURS = 128  # size of a picture's palette
_ANSWER_SECONDS = 300  # limit for an answer, with compiling
_CHARACTER_WIDTH = 8.43  # pixels, for the terminal's font at 14 px
_LINE_HEIGHT = 19
_MARGIN = 18
_TERMINAL_STYLE = """
  rect { fill: #f6f7f9; stroke: #d5dbe3; }
  text {
    fill: #1b2430; white-space: pre;
    font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  }
  @media (prefers-color-scheme: dark) {
    rect { fill: #10141a; stroke: #2f3a48; }
    text { fill: #e5eaf1; }
  }
"""


@handle_errors
def main(argv: list[str] | None = None) -> None:
  parser = argparse.ArgumentParser(
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    prog="python -m tools.screenshots",
  )
  parser.add_argument("--log", type=pathlib.Path, metavar="FILE", help="output of the quickstart")
  parser.add_argument("--report", metavar="RUN", help="a workdir")
  parser.add_argument("--compare", nargs="+", metavar="RUN", help="workdirs")
  parser.add_argument("--chat", metavar="DIR", help="a workdir or a published model")
  parser.add_argument(
    "--message",
    action="append",
    default=[],
    metavar="TEXT",
    help="message to send in the chat; repeatable",
  )
  parser.add_argument(
    "--output",
    type=pathlib.Path,
    default=pathlib.Path("docs/figures"),
    metavar="DIR",
    help="directory of the pictures (default: %(default)s)",
  )
  parser.add_argument(
    "--browser", default=shutil.which("chromium"), metavar="FILE", help="Chromium's program"
  )
  args = parser.parse_args(argv)
  if args.chat and not args.message:
    raise UserError("--message: missing; --chat needs at least one")
  args.output.mkdir(parents=True, exist_ok=True)
  if args.log:
    lines = read_results(args.log)
    (args.output / "terminal.svg").write_text(draw_terminal(lines))
  if not (args.report or args.compare or args.chat):
    return
  with _open_browser(args.browser) as browser:
    if args.report:
      url = page.write_report(args.report).absolute().as_uri()
      _photograph(browser, url, args.output / "report.png", _DESKTOP)
      _photograph(browser, url, args.output / "report_phone.png", _PHONE)
    if args.compare:
      with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "comparison.html"
        comparison.write(args.compare, str(file))
        _photograph(browser, file.as_uri(), args.output / "comparison.png", _DESKTOP)
    if args.chat:
      with _serve_chat(args.chat) as url:
        for name, device in (("chat", _WINDOW), ("chat_phone", _PHONE)):
          _photograph(browser, url, args.output / f"{name}.png", device, args.message)


def read_results(log: pathlib.Path) -> list[str]:
  """Return the lines of the quickstart's results from its log.

  Raises:
    UserError: the log cannot be read or has no results.
  """
  try:
    lines = log.read_text(errors="replace").splitlines()
  except OSError as error:
    raise UserError(f"--log={log}: cannot be read: {error.strerror}") from None
  starts = [number for number, line in enumerate(lines) if line.startswith(_RESULTS)]
  if not starts:
    raise UserError(
      f"--log={log}: found no line that begins with {_RESULTS!r}; give the output of a finished "
      "make quickstart"
    )
  return "\n".join(lines[starts[-1] :]).rstrip().splitlines()


def draw_terminal(lines: list[str]) -> str:
  """Return an SVG of a terminal of 80 columns with these lines, in light and dark colours.

  Raises:
    UserError: a line is longer than the terminal is wide.
  """
  texts = []
  for number, line in enumerate(lines, start=1):
    if len(line) > _COLUMNS:
      raise UserError(f"line {number}: found {len(line)} characters, expected at most {_COLUMNS}")
    if line:
      y = _MARGIN + _LINE_HEIGHT * number - 5
      texts.append(f'<text x="{_MARGIN}" y="{y}" xml:space="preserve">{html.escape(line)}</text>')
  width = round(_COLUMNS * _CHARACTER_WIDTH) + 2 * _MARGIN
  height = _LINE_HEIGHT * len(lines) + 2 * _MARGIN
  size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
  frame = f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>'
  content = "\n".join([f"<style>{_TERMINAL_STYLE}</style>", frame, *texts])
  return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n{content}\n</svg>\n'


@contextlib.contextmanager
def _open_browser(program: str | None) -> Iterator[Any]:
  """Open a headless browser of Playwright."""
  try:
    from playwright.sync_api import sync_playwright
  except ImportError:
    raise UserError("pictures of pages need Playwright: pip install playwright") from None
  if program is None:
    raise UserError("--browser: found no chromium on the path; name its program")
  with sync_playwright() as playwright:
    # Root, as in a container, can start Chromium only without its sandbox. The pages are our own.
    browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
    yield browser
    browser.close()


def _photograph(
  browser: Any, url: str, file: pathlib.Path, device: dict[str, Any], messages: list[str] = []
) -> None:
  """Write the first screen of a page as a PNG, after messages that are sent in a chat.

  Raises:
    UserError: the page is wider than the device.
  """
  with contextlib.closing(browser.new_context(**device)) as context:
    tab = context.new_page()
    tab.goto(url)
    for number, message in enumerate(messages):
      tab.fill("#text", message)
      tab.click("#send")
      tab.locator(".actions").nth(number).wait_for(timeout=1000 * _ANSWER_SECONDS)
    width = tab.evaluate("document.documentElement.scrollWidth")
    if width > device["viewport"]["width"]:
      raise UserError(
        f"{file.name}: the page is {width} px wide, expected at most {device['viewport']['width']}"
      )
    content = tab.screenshot()
  with Image.open(io.BytesIO(content)) as image:
    palette = image.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
  palette.save(file, optimize=True)
  print(f"{file}: {file.stat().st_size / 1000:,.0f} kB", flush=True)


@contextlib.contextmanager
def _serve_chat(model: str) -> Iterator[str]:
  """Serve the chat page of a model and yield its address."""
  command = [sys.executable, "-m", "t5x_like.chat", f"--workdir={model}", "--web=0"]
  command.append("--temperature=0")
  process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
  try:
    for line in process.stdout:
      address = re.search(r"http://localhost:\d+", line)
      if address:
        yield address[0]
        return
    raise UserError(f"--chat={model}: the chat ended with exit code {process.wait()}")
  finally:
    process.kill()
    process.wait()


if __name__ == "__main__":
  sys.exit(main())

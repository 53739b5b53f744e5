"""Run a command or tool of the project by its name.

t5x-like train --config=configs/t5/base.py --workdir=runs/base

`t5x-like NAME …` runs `python -m t5x_like.NAME …`, or `python -m tools.NAME …` for a tool.
`t5x-like` without arguments lists the names.
"""

import importlib.util
import pathlib
import runpy
import sys

from t5x_like import errors

COMMANDS = ("train", "evaluate", "predict", "chat", "plan", "certify")


def tools() -> dict[str, str]:
  """Return the tools as {name: module}; a wheel has them in `t5x_like.tools`."""
  package = "t5x_like.tools" if importlib.util.find_spec("t5x_like.tools") else "tools"
  spec = importlib.util.find_spec(package)
  names = set()
  for folder in spec.submodule_search_locations:
    for path in pathlib.Path(folder).glob("[!_]*"):
      if path.suffix == ".py" or (path / "__main__.py").is_file():
        names.add(path.stem)
  return {name: f"{package}.{name}" for name in sorted(names)}


def main(argv: list[str] | None = None) -> None:
  """Run the program that the first argument names; exit with code 2 for an unknown name."""
  words = sys.argv[1:] if argv is None else argv
  programs = {name: f"t5x_like.{name}" for name in COMMANDS} | tools()
  if not words or words[0] in ("-h", "--help"):
    print(__doc__)
    print("programs: " + ", ".join(COMMANDS))
    print("tools:    " + ", ".join(name for name in programs if name not in COMMANDS))
    print("\nt5x-like NAME --help describes a program.")
    sys.exit(0)
  if words[0] not in programs:
    near = errors.did_you_mean(words[0], programs)
    print(f"error: {words[0]}: no such program{near}; run t5x-like to list them", file=sys.stderr)
    sys.exit(errors.EXIT_USER_ERROR)
  module = programs[words[0]]
  sys.argv = [f"t5x-like {words[0]}", *words[1:]]
  runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
  main()

"""Check that every installed package has the version that constraints name.

  python launch/pins.py constraints.txt launch/constraints.txt

launch/Dockerfile runs it after the installation, so that the same files give the same image. It
needs the package `packaging` only.
"""

import argparse
import importlib.metadata
import pathlib
import sys
from collections.abc import Iterable

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

_PROJECT = "t5x-like"


def read_pins(lines: Iterable[str]) -> dict[str, str]:
  """Return the pinned version of each package that the constraints pin for this Python.

  Raises:
    ValueError: a line is not a requirement with a single version, such as `numpy==2.4.6`.
  """
  pins = {}
  for line in lines:
    text = line.partition("#")[0].strip()
    if not text:
      continue
    try:
      requirement = Requirement(text)
    except InvalidRequirement:
      raise ValueError(f"{text}: expected a package and its version, NAME==VERSION") from None
    specifiers = list(requirement.specifier)
    if len(specifiers) != 1 or specifiers[0].operator != "==":
      raise ValueError(f"{text}: expected a single version, NAME==VERSION")
    if requirement.marker is None or requirement.marker.evaluate():
      pins[canonicalize_name(requirement.name)] = specifiers[0].version
  return pins


def find_deviations(installed: Iterable[tuple[str, str]], pins: dict[str, str]) -> list[str]:
  """Return a line for each installed package (name, version) that differs from its pin."""
  deviations = []
  for name, version in sorted(installed):
    pinned = pins.get(canonicalize_name(name))
    if canonicalize_name(name) != _PROJECT and version != pinned:
      deviations.append(f"{name}: found {version}, expected {pinned or 'a pin'}")
  return deviations


def main() -> int:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("files", nargs="+", type=pathlib.Path, help="files of constraints")
  args = parser.parse_args()
  lines = []
  try:
    for file in args.files:
      lines += file.read_text().splitlines()
    pins = read_pins(lines)
  except (OSError, ValueError) as error:
    print(f"error: {error}", file=sys.stderr)
    return 2
  packages = []
  for distribution in importlib.metadata.distributions():
    packages.append((distribution.metadata["Name"], distribution.version))
  deviations = find_deviations(packages, pins)
  for deviation in deviations:
    print(f"error: {deviation}; pin it in {args.files[-1]}", file=sys.stderr)
  return 2 if deviations else 0


if __name__ == "__main__":
  sys.exit(main())

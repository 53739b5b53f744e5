"""launch/Dockerfile copies files that exist, installs pinned packages and does not run as root."""

import pathlib
import re

import pytest

from launch import pins

REPO = pathlib.Path(__file__).resolve().parents[2]


def read_instructions() -> list[tuple[str, str]]:
  """Return (instruction, arguments) of the Dockerfile, continued lines joined."""
  text = (REPO / "launch" / "Dockerfile").read_text().replace("\\\n", " ")
  lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
  return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines]


def copied_paths(arguments: str) -> list[str]:
  """Return the sources of a COPY from the build context."""
  if arguments.startswith("--from="):
    return []
  return arguments.split()[:-1]


def test_the_image_has_what_the_launcher_runs_and_the_context_admits_it():
  copied = set()
  for instruction, arguments in read_instructions():
    if instruction == "COPY":
      copied |= set(copied_paths(arguments))
  assert copied >= {"t5x_like", "configs", "launch", "tools", "requirements.txt", "constraints.txt"}
  assert all((REPO / path).exists() for path in copied)
  ignored = (REPO / ".dockerignore").read_text().splitlines()
  admitted = {line.removeprefix("!") for line in ignored if line.startswith("!")}
  assert "*" in ignored
  assert {path.partition("/")[0] for path in copied} == admitted


def test_the_base_is_one_release_of_python_and_the_user_is_not_root():
  instructions = read_instructions()
  bases = [arguments for instruction, arguments in instructions if instruction == "FROM"]
  assert all(base.split()[0] == "$BASE" for base in bases)
  (base,) = [value for name, value in instructions if name == "ARG" and value.startswith("BASE=")]
  assert re.fullmatch(r"BASE=python:3\.12\.\d+-slim-[a-z]+", base)
  (user,) = [arguments for instruction, arguments in instructions if instruction == "USER"]
  assert user.isdecimal()
  assert int(user) > 0
  last_instructions = [instruction for instruction, _ in instructions[-2:]]
  assert last_instructions == ["USER", "CMD"]


def test_a_change_of_the_source_leaves_the_packages_in_the_cache():
  instructions = read_instructions()
  installs = [index for index, (_, text) in enumerate(instructions) if "pip install" in text]
  copies = [index for index, (_, text) in enumerate(instructions) if text == "t5x_like t5x_like"]
  stages = [index for index, (instruction, _) in enumerate(instructions) if instruction == "FROM"]
  assert max(installs) < stages[-1] < min(copies)
  build_tools = ("apt-get", "gcc", "git ")
  assert not any(tool in text for _, text in instructions for tool in build_tools)


def test_every_installation_is_bound_by_constraints_and_checked():
  instructions = read_instructions()
  texts = [text for _, text in instructions]
  (variables,) = [text for text in texts if text.startswith("PIP_CONSTRAINT=")]
  files = re.search('PIP_CONSTRAINT="([^"]*)"', variables)[1].split()
  assert [file.removeprefix("/build/") for file in files] == [
    "constraints.txt",
    "launch/constraints.txt",
  ]
  first_install = min(index for index, text in enumerate(texts) if "pip install" in text)
  assert texts.index(variables) < first_install
  (check,) = [text for text in texts if "launch/pins.py" in text and "pip install" in text]
  assert check.index("pip install") < check.index("launch/pins.py")
  lines = []
  for file in files:
    lines += (REPO / file.removeprefix("/build/")).read_text().splitlines()
  pinned = pins.read_pins(lines)
  assert set(pinned) >= {"jax", "libtpu", "jax-cuda12-plugin", "nvidia-cudnn-cu12", "setuptools"}
  # No package has two pins.
  names = [re.split("[=;]", line)[0] for line in lines if "==" in line and ";" not in line]
  assert len(names) == len(set(names))


def test_a_package_without_its_pin_is_named():
  lines = [
    "# comment",
    "NumPy==2.4.6",
    'jax==0.10.2; python_version < "3.0"',
    'jax==0.12.0; python_version >= "3.0"',
  ]
  pinned = pins.read_pins(lines)
  assert pinned == {"numpy": "2.4.6", "jax": "0.12.0"}
  installed = [("numpy", "2.4.5"), ("jax", "0.12.0"), ("t5x_like", "0.2.0"), ("extra", "1")]
  assert pins.find_deviations(installed, pinned) == [
    "extra: found 1, expected a pin",
    "numpy: found 2.4.5, expected 2.4.6",
  ]


@pytest.mark.parametrize("line", ["numpy", "numpy>=2", "numpy==2,<3", "-r file"])
def test_a_constraint_without_one_version_is_refused(line):
  with pytest.raises(ValueError, match="NAME==VERSION"):
    pins.read_pins([line])

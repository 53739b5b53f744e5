"""Places recipes and tools inside `t5x_like` in the wheel, so that an installation adds one
top-level name."""

from setuptools import find_namespace_packages, find_packages, setup

INSIDE = ("configs", "tools")
inner = [
  name for folder in INSIDE for name in find_namespace_packages(include=[folder, f"{folder}.*"])
]

setup(
  packages=find_packages(include=["t5x_like*"]) + [f"t5x_like.{name}" for name in inner],
  package_dir={f"t5x_like.{folder}": folder for folder in INSIDE},
)

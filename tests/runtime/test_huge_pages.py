"""A process restarts itself once with huge pages and loses nothing of its start."""

import json
import os
import subprocess
import sys

from t5x_like.runtime import huge_pages


def test_tunables_are_extended_once():
  assert huge_pages.with_huge_pages({"A": "b"}) == {
    "A": "b",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
  }
  extended = huge_pages.with_huge_pages({"GLIBC_TUNABLES": "glibc.malloc.check=1"})
  assert extended == {"GLIBC_TUNABLES": "glibc.malloc.check=1:glibc.malloc.hugetlb=1"}
  assert huge_pages.with_huge_pages(extended) is None
  assert huge_pages.with_huge_pages({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}) is None


def test_a_restarted_module_keeps_its_process_id_arguments_and_input(tmp_path):
  """`python -m` comes back once, with its flags and standard input."""
  (tmp_path / "program.py").write_text(
    "import json, os, sys\n"
    "from t5x_like.runtime import huge_pages\n"
    "huge_pages._can_request = lambda: True\n"
    "print('start', os.getpid(), flush=True)\n"
    "huge_pages.use_huge_pages()\n"
    "print(json.dumps([os.getpid(), sys.argv[1:], sys.flags.dev_mode, sys.stdin.read(), "
    "os.environ['GLIBC_TUNABLES'],\n"
    "                  'jax' in sys.modules]))\n"
  )
  environment = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"}
  environment["PYTHONPATH"] = os.pathsep.join((str(tmp_path), os.getcwd()))
  command = [sys.executable, "-X", "dev", "-m", "program", "--a=b c", "--", "*"]
  out = subprocess.run(
    command, env=environment, input="typed", capture_output=True, text=True, timeout=600, check=True
  ).stdout.splitlines()
  assert len(out) == 3, "started twice, in the same process"
  assert out[0] == out[1], "started twice, in the same process"
  pid = int(out[0].split()[1])
  assert json.loads(out[2]) == [
    pid,
    ["--a=b c", "--", "*"],
    True,
    "typed",
    "glibc.malloc.hugetlb=1",
    False,
  ]

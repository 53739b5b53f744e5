"""`gcloud compute tpus …` for tests: hosts are folders of this machine, in which what is sent by
ssh really runs.

The folder FAKE_CLOUD holds `plan.json` (what goes wrong, and when), `state.json` and `calls.jsonl`.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

CLOUD = pathlib.Path(os.environ["FAKE_CLOUD"])


def fail(code, text):
  print(f"ERROR: (gcloud.compute.tpus) {text}", file=sys.stderr)
  sys.exit(code)


def flag(words, name):
  return next((word.partition("=")[2] for word in words if word.startswith(f"--{name}=")), None)


def queued_resources(action, name, words, state, plan):
  held = state["queued"].get(name)
  if action == "create":
    if plan["create_errors"]:
      fail(1, plan["create_errors"].pop(0))
    if held:
      fail(1, "ALREADY_EXISTS: it is there")
    state["queued"][name] = {"states": list(plan["states"].pop(0))}
    return ""
  if not held:
    fail(1, f"NOT_FOUND: {name} was not found")
  if action == "delete":
    if plan["delete_errors"]:
      fail(1, plan["delete_errors"].pop(0))
    del state["queued"][name]
    for host in CLOUD.glob("host-*"):  # a new slice has new hosts
      for pid in host.glob("jobs/*/pid"):
        with contextlib.suppress(ProcessLookupError):
          os.killpg(int(pid.read_text()), signal.SIGKILL)
      shutil.rmtree(host)
    return ""
  if plan["describe_errors"]:
    fail(1, plan["describe_errors"].pop(0))
  now = held["states"].pop(0) if len(held["states"]) > 1 else held["states"][0]
  reason = {"failedData": {"error": plan["reason"]}} if plan["reason"] else {}
  return json.dumps({"state": {"state": now} | reason})


def host(words, node):
  path = CLOUD / f"host-{node}-{flag(words, 'worker')}"
  path.mkdir(exist_ok=True)
  return path


def ssh(node, words, plan):
  hangs = plan["hangs"].get(flag(words, "worker"), 0)
  if hangs:
    plan["hangs"][flag(words, "worker")] = hangs - 1
    return lambda: subprocess.run(["sleep", "600"])
  left = plan["unreachable"].get(flag(words, "worker"), 0)
  if left:
    plan["unreachable"][flag(words, "worker")] = left - 1
    return lambda: fail(255, "ssh: connect to host: Connection timed out")
  home = host(words, node)
  environment = {"HOME": str(home), "PATH": os.environ["PATH"], "FAKE_CLOUD": str(CLOUD)}
  command = ["bash", "-c", f"cd; {flag(words, 'command')}"]
  return lambda: sys.exit(subprocess.run(command, env=environment).returncode)


def scp(words):
  *files, target = [word for word in words if not word.startswith("--")]
  node, _, folder = target.partition(":")
  home = host(words, node)
  (home / folder).mkdir(parents=True, exist_ok=True)
  for file in files:
    shutil.copy(file, home / folder)
  programs = home / folder / "venv" / "bin"
  programs.mkdir(parents=True, exist_ok=True)
  (programs / "python").write_text(
    '#!/bin/bash\n[ "$2" = launch.preflight ] && exit 0\n[ "$2" = pip ] && exec echo "$@" > '
    f"{home}/installed\n"
    f'exec {sys.executable} -S "$@"\n'
  )
  (programs / "python").chmod(0o755)


def main(words):
  with (CLOUD / "lock").open("w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    state, plan = (json.loads((CLOUD / name).read_text()) for name in ("state.json", "plan.json"))
    with (CLOUD / "calls.jsonl").open("a") as calls:
      calls.write(json.dumps(words) + "\n")
    assert words[:2] == ["compute", "tpus"], words
    assert "--project=p" in words, words
    assert "--zone=z" in words, words
    kind, action, name, *rest = words[2:]
    then = None
    try:
      if kind == "queued-resources":
        print(queued_resources(action, name, rest, state, plan))
      elif action == "describe":
        print(json.dumps({"networkEndpoints": [{}] * plan["hosts"], "createTime": plan["created"]}))
      elif action == "ssh":
        then = ssh(name, rest, plan)
      elif action == "scp":
        scp([name, *rest])
    finally:
      (CLOUD / "state.json").write_text(json.dumps(state))
      (CLOUD / "plan.json").write_text(json.dumps(plan))
  if then:
    then()


if __name__ == "__main__":
  main(sys.argv[1:])

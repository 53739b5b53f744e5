"""Stand in for `gcloud compute tpus …`: hosts are folders here, in which ssh's commands run.

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


def flag(arguments, name):
  return next(
    (argument.partition("=")[2] for argument in arguments if argument.startswith(f"--{name}=")),
    None,
  )


def queued_resources(action, name, arguments, state, plan):
  resource = state["queued"].get(name)
  if action == "create":
    if plan["create_errors"]:
      fail(1, plan["create_errors"].pop(0))
    if resource:
      fail(1, "ALREADY_EXISTS: it is there")
    states = plan["states"]
    if isinstance(states, dict):  # of each slice's own resource, by its number
      states = states[name.rpartition("-")[2]]
    state["queued"][name] = {"states": list(states.pop(0))}
    return ""
  if not resource:
    fail(1, f"NOT_FOUND: {name} was not found")
  if action == "delete":
    if plan["delete_errors"]:
      fail(1, plan["delete_errors"].pop(0))
    del state["queued"][name]
    for host in CLOUD.glob(f"host-{name}*"):  # a new slice has new hosts
      for pid in host.glob("jobs/*/pid"):
        with contextlib.suppress(ProcessLookupError):
          os.killpg(int(pid.read_text()), signal.SIGKILL)
      shutil.rmtree(host)
    return ""
  if plan["describe_errors"]:
    fail(1, plan["describe_errors"].pop(0))
  now = resource["states"].pop(0) if len(resource["states"]) > 1 else resource["states"][0]
  reason = {"failedData": {"error": plan["reason"]}} if plan["reason"] else {}
  return json.dumps({"state": {"state": now} | reason})


def host(arguments, node):
  path = CLOUD / f"host-{node}-{flag(arguments, 'worker')}"
  path.mkdir(exist_ok=True)
  return path


def ssh(node, arguments, plan):
  hangs = plan["hangs"].get(flag(arguments, "worker"), 0)
  if hangs:
    plan["hangs"][flag(arguments, "worker")] = hangs - 1
    return lambda: subprocess.run(["sleep", "600"])
  failures_left = plan["unreachable"].get(flag(arguments, "worker"), 0)
  if failures_left:
    plan["unreachable"][flag(arguments, "worker")] = failures_left - 1
    return lambda: fail(255, "ssh: connect to host: Connection timed out")
  home = host(arguments, node)
  environment = {"HOME": str(home), "PATH": os.environ["PATH"], "FAKE_CLOUD": str(CLOUD)}
  command = ["bash", "-c", f"cd; {flag(arguments, 'command')}"]
  return lambda: sys.exit(subprocess.run(command, env=environment).returncode)


def scp(arguments):
  *files, target = [argument for argument in arguments if not argument.startswith("--")]
  node, _, folder = target.partition(":")
  home = host(arguments, node)
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


def main(arguments):
  with (CLOUD / "lock").open("w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    state = json.loads((CLOUD / "state.json").read_text())
    plan = json.loads((CLOUD / "plan.json").read_text())
    with (CLOUD / "calls.jsonl").open("a") as calls:
      calls.write(json.dumps(arguments) + "\n")
    assert arguments[:2] == ["compute", "tpus"], arguments
    assert "--project=p" in arguments, arguments
    assert "--zone=z" in arguments, arguments
    kind, action, name, *remaining = arguments[2:]
    then = None
    try:
      if kind == "queued-resources":
        print(queued_resources(action, name, remaining, state, plan))
      elif action == "describe":
        print(json.dumps({"networkEndpoints": [{}] * plan["hosts"], "createTime": plan["created"]}))
      elif action == "ssh":
        then = ssh(name, remaining, plan)
      elif action == "scp":
        scp([name, *remaining])
    finally:
      (CLOUD / "state.json").write_text(json.dumps(state))
      (CLOUD / "plan.json").write_text(json.dumps(plan))
  if then:
    then()


if __name__ == "__main__":
  main(sys.argv[1:])

"""Trains on GKE as a JobSet: one TPU slice or several, or nodes with GPUs.

  python launch/gke.py start --image=IMAGE --accelerator=tpu-v5-lite-podslice --topology=4x4 -- \\
    python -m t5x_like.train --config=configs/t5/base.py --workdir=gs://bucket/t5_base

With GPUs: --accelerator=nvidia-h100-80gb --nodes=2 --gpus_per_node=8.

`start` applies the manifest with kubectl, in the cluster and namespace that it is set to; --dry_run
prints it. The image is built by launch/Dockerfile. Pods that are evicted or preempted, and failures
that another start may mend, restart the JobSet up to `--restarts` times; other exit codes end it
(docs/reference/exit-codes.md). A finished or failed JobSet is replaced by the same command, which
goes on. Secrets come from a Kubernetes secret (--secret), never from the command line. `status`,
`logs` and `stop` take the same flags.

Only the JobSet is created. Its pods end with it, `--max_hours` after a start at the latest, and the
finished JobSet is removed after a week. Nodes are billed as long as they exist: those of a node
pool with autoscaling go by themselves, others remain.
"""

import argparse
import json
import math
import pathlib
import posixpath
import sys

if __package__ in (None, ""):
  sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from launch import commands
from launch.commands import Job, Shell, last_line, log, parse_answer
from t5x_like.errors import EXITS_NOT_RESTARTED, TransientError, UserError, handle_errors
from t5x_like.redaction import redact_tree

_KIND = "jobsets.jobset.x-k8s.io"
_UNKNOWN = "unknown"
_IN_IMAGE = ("t5x_like", "configs", "launch", "tools")  # by launch/Dockerfile
_WEEK_SECONDS = 7 * 24 * 3600
_STOP_SECONDS = 600.0  # beside the grace period
# Disks and memory of a node below which a job may have a directory; all else of a node is the
# system's.
_HOST_FOLDERS = ("/dev/shm", "/mnt/disks", "/tmp", "/var/tmp")
_ONE_SLICE_A_POOL = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}


def manifest(job: Job, args) -> dict:
  """Return the JobSet (jobset.x-k8s.io/v1alpha2): a job for each slice, a pod for each of its
  hosts."""
  hosts, devices, selector = _gpus(args) if _is_gpu(args) else _tpus(args)
  command = (
    f"{commands.job_key_line()}; {commands.preflight_line(job)} && "
    f"exec {commands.quote(*job.command)}"
  )
  if _is_gpu(args):  # jax finds the hosts of a TPU slice by itself
    command = f'export JAX_PROCESS_ID="$JOB_COMPLETION_INDEX"; {command}'
    first = {
      "JAX_COORDINATOR_ADDRESS": f"{job.name}-slice-0-0.{job.name}:8476",
      "JAX_NUM_PROCESSES": str(hosts),
    }
  environment = job.environment | (first if _is_gpu(args) else {})
  container = {
    "name": "train",
    "image": args.image,
    # exec: the command gets the pod's TERM, and saves.
    "command": ["bash", "-c", _literal(command)],
    "env": [
      {"name": name, "value": _literal(value)} for name, value in sorted(environment.items())
    ],
    "resources": {"requests": devices, "limits": devices},
    "ports": [{"containerPort": port, "protocol": "TCP"} for port in (8471, 8476, 8080)],
  }
  if args.secret:
    container["envFrom"] = [{"secretRef": {"name": args.secret}}]
  pod = {
    "restartPolicy": "Never",
    "hostNetwork": True,
    "dnsPolicy": "ClusterFirstWithHostNet",
    "terminationGracePeriodSeconds": args.grace_seconds,
    "nodeSelector": selector | ({"cloud.google.com/gke-spot": "true"} if args.spot else {}),
    "containers": [container],
  }
  if args.host_directory:
    pod["volumes"] = [
      {"name": "host", "hostPath": {"path": args.host_directory, "type": "DirectoryOrCreate"}}
    ]
    container["volumeMounts"] = [{"name": "host", "mountPath": args.host_directory}]
    pod["initContainers"] = [_opening(container, args.host_directory)]
  if args.service_account:
    pod["serviceAccountName"] = args.service_account
  slice_ = {
    "parallelism": hosts,
    "completions": hosts,
    "completionMode": "Indexed",
    "backoffLimit": 0,
    "activeDeadlineSeconds": math.ceil(3600 * args.max_hours),
    "podFailurePolicy": {
      "rules": [
        {
          "action": "FailJob",
          "onExitCodes": {
            "containerName": "train",
            "operator": "In",
            "values": sorted(EXITS_NOT_RESTARTED),
          },
        }
      ]
    },
    "template": {"metadata": {"labels": {"app": job.name}}, "spec": pod},
  }
  return {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": job.name} | ({} if _is_gpu(args) else {"annotations": _ONE_SLICE_A_POOL}),
    "spec": {
      "ttlSecondsAfterFinished": _WEEK_SECONDS,
      "failurePolicy": {
        "maxRestarts": args.restarts,
        "rules": [
          {
            "name": "useless",
            "action": "FailJobSet",
            "onJobFailureReasons": ["PodFailurePolicy", "DeadlineExceeded"],
          },
          {"name": "again", "action": "RestartJobSet"},
        ],
      },
      "replicatedJobs": [
        {
          "name": "slice",
          "replicas": 1 if _is_gpu(args) else args.slices,
          "template": {"spec": slice_},
        }
      ],
    },
  }


def _opening(container: dict, directory: str) -> dict:
  """Return a container that lets the image's user write to a directory of the node, which
  Kubernetes makes root's."""
  return {
    "name": "open",
    "image": container["image"],
    "command": ["chmod", "1777", directory],
    "securityContext": {"runAsUser": 0},
    "volumeMounts": container["volumeMounts"],
  }


def _is_gpu(args) -> bool:
  return args.accelerator.startswith("nvidia")


def _tpus(args) -> tuple[int, dict, dict]:
  """Return hosts, devices of each and labels of the nodes for a TPU slice."""
  chips = math.prod(int(n) for n in args.topology.split("x"))
  labels = {"gke-tpu-accelerator": args.accelerator, "gke-tpu-topology": args.topology}
  devices = {"google.com/tpu": min(args.chips_per_host, chips)}
  return max(1, chips // args.chips_per_host), devices, _labels(labels)


def _gpus(args) -> tuple[int, dict, dict]:
  """Return the same for nodes with GPUs, one process each."""
  return (
    args.nodes,
    {"nvidia.com/gpu": args.gpus_per_node},
    _labels({"gke-accelerator": args.accelerator}),
  )


def _labels(labels: dict[str, str]) -> dict[str, str]:
  return {f"cloud.google.com/{name}": value for name, value in labels.items()}


def _literal(text: str) -> str:
  """Escape `$(NAME)`, which Kubernetes would replace by a variable before any shell sees the
  quotes."""
  return text.replace("$", "$$")


def state(name: str, shell: Shell) -> tuple[str | None, str]:
  """Return Completed, Failed or Running, and the reason; None if there is no such JobSet; unknown
  in a dry run."""
  done = shell.run(
    ["kubectl", "get", _KIND, name, "--ignore-not-found", "--output=json"], asks=True
  )
  if shell.dry_run:
    return _UNKNOWN, ""
  if done.returncode:
    raise _failure("get", done.stderr)
  if not done.stdout.strip():
    return None, ""
  status = parse_answer(done, dict, "kubectl get").get("status") or {}
  for condition in status.get("conditions") or []:
    if condition.get("status") == "True" and condition.get("type") in ("Completed", "Failed"):
      return condition["type"], last_line(str(condition.get("message", "")))
  return "Running", ""


def start(job: Job, args, shell: Shell) -> int:
  now, reason = state(job.name, shell)
  if now == "Running":
    log(f"{job.name} is running already; see: status, logs")
    return 0
  if now not in (None, _UNKNOWN):
    log(f"{job.name} is replaced; before: {now.lower()}: {reason}")
    stop(job.name, args, shell)  # a JobSet that has ended is not started again by applying it
  jobset = manifest(job, args)
  if shell.dry_run:
    print(json.dumps(redact_tree(jobset), indent=2))
  done = shell.run(["kubectl", "apply", "--filename=-"], text=json.dumps(jobset, indent=2))
  if done.returncode:
    raise _failure("apply", done.stderr)
  if shell.dry_run:
    log(f"{job.name}: nothing was run")
    return 0
  size = (
    f"{args.nodes} nodes of {args.gpus_per_node} GPUs"
    if _is_gpu(args)
    else (f"{args.slices} x {args.topology}")
  )
  log(
    f"{job.name}: {size} asked for; it ends {args.max_hours:g} hours after a start at the "
    "latest (--max_hours)"
  )
  log(
    "nodes of a pool without autoscaling are billed after its end too, until the pool is "
    "resized or deleted"
  )
  return 0


def stop(name: str, args, shell: Shell) -> None:
  seconds = args.grace_seconds + _STOP_SECONDS
  done = shell.run(
    ["kubectl", "delete", _KIND, name, "--ignore-not-found", "--wait=true"], seconds=seconds
  )
  if done.returncode:
    raise _failure("delete", done.stderr)


def check_host_directory(path: str) -> None:
  """Refuse a directory of the nodes that is not a job's own, since every user is let write to it.

  Raises:
    UserError: it does not lie below a disk or the memory of a node.
  """
  parent = posixpath.dirname(path)
  is_below = any(parent == folder or parent.startswith(f"{folder}/") for folder in _HOST_FOLDERS)
  if posixpath.normpath(path) != path or not is_below:
    raise UserError(
      f"--host_directory={path}: expected a directory of the job's own below "
      f"{', '.join(_HOST_FOLDERS)}, such as /dev/shm/t5x_like; every user of the node may write "
      "to it"
    )


def _failure(action: str, text: str) -> Exception:
  message = last_line(text)
  low = text.lower()
  if "the server doesn't have a resource type" in low or "no matches for kind" in low:
    return UserError(
      f"kubectl {action}: {message}; install JobSet in the cluster (jobset.sigs.k8s.io)"
    )
  if any(phrase in low for phrase in ("forbidden", "unauthorized", "invalid", "quota")):
    return UserError(
      f"kubectl {action}: {message}; see the flags, and which cluster kubectl config "
      "current-context names"
    )
  return TransientError(f"kubectl {action}: {message}")


def _positive(text: str) -> int:
  if not text.isdecimal() or not int(text):
    raise argparse.ArgumentTypeError(f"found {text!r}, expected a number above 0")
  return int(text)


@handle_errors
def main(argv: list[str] | None = None) -> int:
  parser = commands.make_parser(__doc__, ("start", "status", "logs", "stop"))
  parser.add_argument("--image", default="", help="of launch/Dockerfile, in a registry")
  parser.add_argument(
    "--accelerator",
    default="tpu-v5-lite-podslice",
    help="of the nodes, such as nvidia-h100-80gb (default: %(default)s)",
  )
  parser.add_argument("--topology", default="4x4", help="of a TPU slice (default: %(default)s)")
  parser.add_argument("--nodes", type=_positive, default=1, help="with GPUs (default: 1)")
  parser.add_argument("--gpus_per_node", type=_positive, default=8, help="(default: 8)")
  parser.add_argument("--chips_per_host", type=_positive, default=4, help="(default: 4)")
  parser.add_argument("--slices", type=_positive, default=1, help="how many (default: 1)")
  parser.add_argument("--spot", action="store_true", help="on spot nodes")
  parser.add_argument(
    "--restarts", type=int, default=10, help="after failures and evictions (default: 10)"
  )
  parser.add_argument(
    "--grace_seconds", type=int, default=120, help="for a save before a pod ends (default: 120)"
  )
  parser.add_argument(
    "--secret", default="", help="a Kubernetes secret whose keys become variables"
  )
  parser.add_argument(
    "--host_directory", default="", help="of each node, for config.checkpoint.emergency.directory"
  )
  parser.add_argument("--service_account", default="", help="that may write to the bucket")
  parser.add_argument(
    "--max_hours",
    type=commands.parse_hours,
    default=168.0,
    help="of one start, without its restarts (default: 168)",
  )
  args = commands.parse(parser, argv)
  job = commands.read_job(args)
  shell = Shell(args.dry_run)
  commands.check_remote(job, "the cluster")
  commands.refuse_secrets(job)
  if args.host_directory:
    check_host_directory(args.host_directory)
  if args.action == "start":
    commands.check_train_command(args, folders=_IN_IMAGE)
    if not args.image:
      raise UserError(
        "--image is missing: docker build -f launch/Dockerfile -t IMAGE . && docker push IMAGE"
      )
    if _is_gpu(args) and args.slices > 1:
      raise UserError(f"--slices={args.slices}: GPUs have none; give --nodes={args.slices}")
    if not all(n.isdecimal() and int(n) for n in args.topology.split("x")):
      raise UserError(f"--topology={args.topology}: expected a shape such as 4x4 or 2x2x4")
    return start(job, args, shell)
  if args.action == "stop":
    stop(job.name, args, shell)
    log(f"{job.name} is deleted; nodes of a pool without autoscaling remain, and are billed")
    return 0
  if args.action == "logs":
    pods = f"--selector=jobset.sigs.k8s.io/jobset-name={job.name}"
    return shell.stream(
      ["kubectl", "logs", pods, "--prefix", "--tail=200", "--max-log-requests=512"]
    )
  now, reason = state(job.name, shell)
  print(f"{job.name}: {(now or 'no such JobSet').lower()}{f': {reason}' if reason else ''}")
  return 0


if __name__ == "__main__":
  sys.exit(main())

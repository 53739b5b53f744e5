"""Start a SLURM cluster of one node on this machine, without root's services."""

import contextlib
import getpass
import os
import pathlib
import shutil
import socket
import subprocess
import time

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
SlurmdParameters=config_overrides
SlurmctldPort={controller}
SlurmdPort={daemon}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
KillWait=30
MinJobAge=300
SchedulerParameters=sched_interval=1,batch_sched_delay=0
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> list[str]:
  return [program for program in PROGRAMS if shutil.which(program, path=PATH) is None]


@contextlib.contextmanager
def cluster(folder: pathlib.Path):
  """Yield the environment in which SLURM's commands reach the cluster."""
  (folder / "state").mkdir()
  (folder / "spool").mkdir()
  host = socket.gethostname().partition(".")[0]
  ports = {name: _free_port() for name in ("controller", "daemon")}
  config = folder / "slurm.conf"
  config.write_text(CONFIG.format(host=host, user=getpass.getuser(), folder=folder, **ports))
  environment = {**os.environ, "SLURM_CONF": str(config), "PATH": PATH}
  daemons = []
  for program, options in (("slurmctld", ["-c"]), ("slurmd", ["-N", host])):
    command = [program, "-D", "-f", str(config), *options]
    out = (folder / f"{program}.out").open("wb")
    daemons.append(subprocess.Popen(command, env=environment, stdout=out, stderr=out))
  try:
    deadline = time.monotonic() + 300
    while (
      "idle"
      not in subprocess.run(
        ["sinfo", "--noheader", "--format=%t"], env=environment, capture_output=True, text=True
      ).stdout
    ):
      assert time.monotonic() < deadline, [
        path.read_text()[-2000:] for path in folder.glob("*.log")
      ]
      time.sleep(0.2)
    yield environment
  finally:
    for daemon in daemons:
      daemon.terminate()
    for daemon in daemons:
      with contextlib.suppress(subprocess.TimeoutExpired):
        daemon.wait(10)
      daemon.kill()


def _free_port() -> int:
  with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    return probe.getsockname()[1]

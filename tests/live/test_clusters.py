"""The files of `examples/clusters` for Slurm and Kubernetes, run on hosts of a lab as the cluster would run them."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from p2p.netlab.lab import NetworkLab
from tests.live.labs import NewLab, program
from tests.live.swarm import ROOT, Process
from tests.live.test_lab_swarm import TRAIN

FOLDER: Final = ROOT / "examples" / "clusters"
COMMANDS: Final = {
    "scontrol": 'echo "$3" | tr , "\\n"',  # show hostnames LIST
    "squeue": "echo host0,host1",
    "srun": 'printf "%s\\n" "$@"',
    "shoal": f'exec {sys.executable} -m p2p.cli "$@"',
}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script that sums until the file `stop` exists beside it."""
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment with a home folder and the commands of a cluster."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in COMMANDS.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o700)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SHOAL_", "SLURM_"))}
    return {**clean, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}


def start(lab: NetworkLab, host: int, environ: Mapping[str, str], *command: str) -> Process:
    return program(lab, host, "env", *(f"{name}={environ[name]}" for name in ("PATH", "PYTHONPATH")), *command)


def submit(environ: Mapping[str, str], job: int, nodes: str, *arguments: str, **settings: str) -> list[str]:
    """Submit a job; returns the commands of each task."""
    given = {"SLURM_JOB_ID": str(job), "SLURM_JOB_NODELIST": nodes, "SLURM_CPUS_PER_TASK": "1", **settings}
    batch = [str(FOLDER / "slurm.sh"), *arguments]
    words = subprocess.run(batch, env={**environ, **given}, check=True, stdout=subprocess.PIPE, text=True).stdout
    options, shoal, command = words.partition("\nshoal\n")
    assert shoal and {"--no-kill", "--kill-on-bad-exit=0", "--wait=0"} <= set(options.split("\n"))
    return ["shoal", *command.splitlines()]


@pytest.mark.light
@pytest.mark.long
def test_nodes_of_a_slurm_job_train_together_and_those_of_another_join_them(
    new_lab: NewLab, script: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    lab, stop = new_lab(3), tmp_path / "stop"
    first = submit(environ, 41, "host0,host1", str(script), str(stop))
    assert (tmp_path / ".shoal.key").stat().st_mode & 0o777 == 0o600
    runs = [start(lab, host, environ, *first) for host in range(2)]
    for run in runs:
        run.expect_line(r"\[0\] members 2")
    second = submit(environ, 42, "host2", str(script), str(stop), JOIN="41")
    runs.append(start(lab, 2, environ, *second))
    for run in runs:
        run.expect_line(r"\[0\] members 3")
    stop.touch()
    for run in runs:
        assert run.end() == 0, run.report()


def pod(environ: Mapping[str, str], container: Mapping[str, Any], key: Path, *arguments: str) -> list[str]:
    """A pod's command, with this test's replacements of the GPU, the volumes and the image's script."""
    given = {each["name"]: each["value"] for each in container["env"]}
    assert Path(given["SHOAL_KEY"]).is_relative_to(container["volumeMounts"][0]["mountPath"])
    return [
        "env",
        *(f"{name}={value}" for name, value in (given | {"SHOAL_KEY": str(key)}).items()),
        *container["command"],
        *arguments,
    ]


@pytest.mark.light
@pytest.mark.long
def test_a_pod_that_is_lost_is_replaced_under_its_name_and_one_that_is_deleted_is_no_completed_one(
    new_lab: NewLab, script: Path, environ: dict[str, str], tmp_path: Path, key: Path
) -> None:
    service, job = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text())
    name, template = job["metadata"]["name"], job["spec"]["template"]["spec"]
    assert service["spec"]["selector"] == {"job-name": name} and template["subdomain"] == service["metadata"]["name"]
    assert {each["name"] for each in template["volumes"]} == {
        each["name"] for each in template["containers"][0]["volumeMounts"]
    }
    lab, stop = new_lab(4), tmp_path / "stop"
    command = pod(environ, template["containers"][0], key, str(script), str(stop))

    def name_pods(*hosts: int) -> None:
        """Let the name of pod i refer to host `hosts[i]`."""
        names = "".join(
            f"10.77.0.{host + 1} {name}-{number}.{template['subdomain']}\\n" for number, host in enumerate(hosts)
        )
        for host in hosts:
            assert program(lab, host, "sh", "-c", f"printf '127.0.0.1 localhost\\n{names}' > /etc/hosts").end() == 0

    name_pods(0, 1, 2)
    runs = [start(lab, host, environ, *command) for host in range(3)]
    for run in runs:
        run.expect_line(r"\[0\] members 3")
    lab.crash(1)
    runs.pop(1).end()
    for run in runs:
        run.expect_line(r"\[0\] members 2", after="[0] members 3")
    name_pods(0, 3, 2)
    deleted = start(lab, 3, environ, *command)
    deleted.expect_line(r"\[0\] members 3")
    assert program(lab, 3, "kill", "-TERM", str(deleted.pid)).end() == 0  # only to the first process of the pod
    assert deleted.end() == 143, deleted.report()
    stop.touch()
    for run in runs:
        assert run.end() == 0, run.report()

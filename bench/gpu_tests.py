"""Runs the tests that need a GPU, on a machine with torch for CUDA, but without a network or the project's environment.

    make gpu-wheels     # here: collects missing packages in .whl
    make test-gpu       # there

The tests run once as they are, and once more under torch's stream sanitizer. Writes gpu-tests.json and gpu-tests.log
into $OUT, or bench/results. Exits with 2 if there is no GPU.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from p2p.benchmark.results.machine import commit, machine
from p2p.staging import cuda_devices

LIVE = "devices", "device_observers", "frozen", "registered"
PLACES = ("tests/collectives", "tests/p2p", *(f"tests/live/test_{name}.py" for name in LIVE))
COMMAND = (sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "--timeout", "600", *PLACES)
RUNS = {"plain": {}, "sanitized": {"TORCH_CUDA_SANITIZER": "1"}}


def main() -> int:
    """Run the tests; returns the worst exit code."""
    found, why = cuda_devices()
    if not found:
        print(f"make test-gpu: no GPU: {why}", file=sys.stderr)
        return 2
    out = Path(os.environ.get("OUT", "bench/results"))
    out.mkdir(parents=True, exist_ok=True)
    codes, path = {}, os.pathsep.join(each for each in sys.path if each)
    with (out / "gpu-tests.log").open("w") as log:
        for name, added in RUNS.items():
            log.write(f"== {name}\n")
            log.flush()
            environ = {**os.environ, **added, "PYTHONPATH": path}
            codes[name] = subprocess.run(
                COMMAND, stdout=log, stderr=subprocess.STDOUT, env=environ, check=False
            ).returncode
    report = {
        "commit": commit(),
        "machine": machine(),
        "devices": [each.device.numerics for each in found],
        "codes": codes,
    }
    (out / "gpu-tests.json").write_text(json.dumps(report, indent=1) + "\n")
    print((out / "gpu-tests.log").read_text())
    return worst(codes.values())


def worst(codes: Iterable[int]) -> int:
    """The worst exit code; 0: all passed. A process that a signal has ended has a negative code."""
    return max(map(abs, codes))


if __name__ == "__main__":
    sys.exit(main())

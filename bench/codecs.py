"""How fast are the codecs, and how many bytes are their payloads? One core, 64 MB of float32.

    python -m bench.codecs [--mib 64] [--repeats 7] [--json FILE]

Encoding is from a vector into a payload, decoding adds a payload with a weight to a vector; 1 MB is 1e6 bytes of
float32. *kept* is the share of the vector's energy that a payload contains, for numbers that are a normal times a
squared uniform. Exits with 1 if encoding and decoding together are slower than 500 MB/s with any codec.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from collectives import CODECS, Codec
from p2p.benchmark.results.machine import commit, machine

LEAST_MB_PER_S: Final = 500.0
BLOCK: Final = 4096


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print a table, and return the exit code."""
    options = parse(words)
    described = machine()
    rng = np.random.default_rng(0)
    count = options.mib << 18
    values = (rng.standard_normal(count, np.float32) * rng.random(count, np.float32) ** 2).astype(np.float32)
    rows = [measure(codec, values, options.repeats) for codec in CODECS.values()]
    shown = Table("codec", "bytes per 4096", "encode MB/s", "decode MB/s", "both MB/s", "check MB/s", "kept")
    for row in rows:
        speeds = (f"{row[f'{name}_mb_per_s']:,.0f}" for name in ("encode", "decode", "both", "check"))
        shown.add_row(row["codec"], f"{row['bytes_per_4096']:,}", *speeds, f"{row['kept']:.3f}")
    Console().print(shown)
    if options.json is not None:
        config = {"mib": options.mib, "repeats": options.repeats}
        everything = {"version": 1, "commit": commit(), "machine": described, "config": config, "codecs": rows}
        options.json.write_text(json.dumps(everything, indent=1) + "\n")
    return 0 if min(row["both_mb_per_s"] for row in rows) >= LEAST_MB_PER_S else 1


def measure(codec: Codec, values: NDArray[np.float32], repeats: int) -> dict[str, Any]:
    """The best times of `repeats`, after the decoded values have been checked."""
    payload, out = codec.encode(values), np.zeros_like(values)
    codec.add(payload, 1.0, out)
    assert codec.check(payload) is None
    kept = 1 - float(np.square(values - out, dtype=np.float64).sum() / np.square(values, dtype=np.float64).sum())
    encode_s, decode_s, check_s = (
        best_s(what, repeats)
        for what in (lambda: codec.encode(values), lambda: codec.add(payload, 0.25, out), lambda: codec.check(payload))
    )
    size_mb = values.nbytes / 1e6
    return {
        "codec": codec.name,
        "bytes_per_4096": codec.num_bytes(BLOCK),
        "encode_mb_per_s": size_mb / encode_s,
        "decode_mb_per_s": size_mb / decode_s,
        "both_mb_per_s": size_mb / (encode_s + decode_s),
        "check_mb_per_s": size_mb / check_s,
        "kept": kept,
    }


def best_s(what: Callable[[], object], repeats: int) -> float:
    times_s = []
    for _ in range(repeats):
        began_s = time.perf_counter()
        what()
        times_s.append(time.perf_counter() - began_s)
    return min(times_s)


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=64, help="of float32, in 2^20 bytes")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path, help="also write the results here")
    options = parser.parse_args(words)
    for name in ("mib", "repeats"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1, is {getattr(options, name)}")
    return options


if __name__ == "__main__":
    sys.exit(main())

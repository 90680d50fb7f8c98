"""`shoal bench`: verifies results, then says how long they took, beside somebody else's."""

from .all_reduce import bench_all_reduce
from .drawing import draw_all_reduce
from .plan import Plan, parse_size, sizes_between, split_names

__all__ = ["Plan", "bench_all_reduce", "draw_all_reduce", "parse_size", "sizes_between", "split_names"]

"""Collective operations as data, and state machines that execute them. Knows ranks, chunks and bytes; does no I/O."""

from collectives.algorithms import ALGORITHMS, Medium, all_reduce_schedule, choose_algorithm
from collectives.codec import CODECS, Codec, codec_of
from collectives.direct import direct_all_reduce
from collectives.elements import BFLOAT16, Array, as_bits, is_half, type_name
from collectives.matching import ScheduleError
from collectives.message_run import Buffer, MessageRun, MissingSegment, Outgoing
from collectives.one_shot import one_shot_all_gather, one_shot_all_reduce
from collectives.partition import split_by_weight
from collectives.reduction import OPS, Reduction, check_reduction
from collectives.registration import register_algorithm
from collectives.ring import ring_all_reduce
from collectives.schedule import Kind, Schedule, Transfer, TransferList, even_chunks
from collectives.tree import tree_all_reduce
from collectives.verification import verify, verify_all_gather
from collectives.widening import Reducer, reducer, scale

__all__ = [
    "ALGORITHMS",
    "BFLOAT16",
    "CODECS",
    "OPS",
    "Array",
    "Buffer",
    "Codec",
    "Kind",
    "Medium",
    "MessageRun",
    "MissingSegment",
    "Outgoing",
    "Reducer",
    "Reduction",
    "Schedule",
    "ScheduleError",
    "Transfer",
    "TransferList",
    "all_reduce_schedule",
    "as_bits",
    "check_reduction",
    "choose_algorithm",
    "codec_of",
    "direct_all_reduce",
    "even_chunks",
    "is_half",
    "one_shot_all_gather",
    "one_shot_all_reduce",
    "reducer",
    "register_algorithm",
    "ring_all_reduce",
    "scale",
    "split_by_weight",
    "tree_all_reduce",
    "type_name",
    "verify",
    "verify_all_gather",
]

"""Ranks for tests: processes that are forked from one server, which has imported torch once."""

import gc
import multiprocessing.connection
import os
import traceback
from contextlib import suppress

from forked_programs import server_context
from torch.distributed import TCPStore
from waiting import LIMIT_SECONDS

HOST = "127.0.0.1"


def run_ranks(function, size, *arguments):
    """Return what *function* returns with *arguments* on each of *size* ranks.

    Raises `AssertionError` with the traceback of the first rank that fails; the others are then killed.
    """
    context = server_context()
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)  # as a launcher, so no port is guessed
    pipes = [context.Pipe() for _ in range(size)]
    processes = [
        context.Process(target=_run, args=(function, arguments, rank, size, store.port, pipes[rank][1]))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    try:
        return _collect(processes, {receiver: rank for rank, (receiver, _) in enumerate(pipes)})
    finally:
        for process in processes:
            process.kill()
            process.join()


def _collect(processes, waiting):
    results = {}
    while waiting:
        ready = multiprocessing.connection.wait(waiting, LIMIT_SECONDS)
        assert ready, f"ranks {sorted(waiting.values())} did not end"
        for receiver in ready:
            rank = waiting.pop(receiver)
            result, error = receiver.recv()
            assert error is None, f"rank {rank}:\n{error}"
            results[rank] = result
    return [results[rank] for rank in range(len(processes))]


def _run(function, arguments, rank, size, port, sender):
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ |= {name: str(number) for name, number in numbers.items()}
    os.environ |= {"MASTER_ADDR": HOST, "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    gc.freeze()  # a collection would touch, and so copy, the memory that this process shares with the server
    try:
        sender.send((function(*arguments), None))
    except BaseException:  # noqa: BLE001  the parent reports it
        sender.send((None, traceback.format_exc()))
    with suppress(EOFError):
        sender.recv()  # waits until the parent kills this process: others may still use its connections

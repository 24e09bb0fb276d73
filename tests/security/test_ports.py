"""The ports that commands open listen on loopback, and a cluster of ours accepts no other client."""

import sys

import psutil
import pytest
from torch.distributed import TCPStore

from pipeline.comparison.watch import build_server
from pipeline.engine.rank_launcher import open_local_store, run_ranks
from pipeline.sweep.executors import build_executor
from stages.contracts.events import Interrupter

LOOPBACK = {"127.0.0.1"}


def listening(*processes):
    """Return the addresses and ports on which *processes*, by default this one, listen."""
    connections = [each for one in processes or [psutil.Process()] for each in one.net_connections("inet")]
    return {(each.laddr.ip, each.laddr.port) for each in connections if each.status == psutil.CONN_LISTEN}


def test_store_of_local_ranks_listens_on_loopback():
    before = listening()
    store = open_local_store()
    client = TCPStore("127.0.0.1", store.port, is_master=False)

    client.set("key", "value")

    assert store.get("key") == b"value"
    assert listening() - before == {("127.0.0.1", store.port)}


def test_store_of_torch_listens_on_all_interfaces():
    """Torchrun opens such a store, whatever the address in ``--master-addr``."""
    before = listening()
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    assert {("::", store.port), ("0.0.0.0", store.port)} & (listening() - before)  # noqa: S104


def run_two_ranks(folder, program):
    """Run *program* on two ranks, in which ``write`` writes a text to the file of the rank; return both."""
    start = f"import os; write = open({str(folder)!r} + '/' + os.environ['RANK'], 'w').write\n"
    run_ranks([sys.executable, "-c", start + program], ["cpu", "cpu"], folder / "logs", Interrupter())
    return {(folder / str(rank)).read_text() for rank in range(2)}


def test_local_ranks_use_the_loopback_interface(tmp_path):
    program = "write(os.environ['GLOO_SOCKET_IFNAME'] + ' ' + os.environ['NCCL_SOCKET_IFNAME'])"

    assert run_two_ranks(tmp_path, program) == {"lo lo"}


@pytest.mark.long
def test_local_ranks_exchange_tensors_on_loopback(tmp_path):
    program = """if True:
        import psutil, torch
        torch.distributed.init_process_group("gloo")
        torch.distributed.all_reduce(torch.tensor(1.0))
        found = psutil.Process().net_connections("inet")
        write(" ".join({each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN}))
        torch.distributed.barrier()
    """

    assert run_two_ranks(tmp_path, program) == LOOPBACK


def test_page_that_follows_runs_listens_on_loopback():
    with build_server(None, 0) as server:
        assert server.server_address[0] in LOOPBACK


@pytest.mark.long
def test_workers_of_dask_need_a_certificate():
    security = build_executor("dask", 2)._local()["security"]

    assert security.require_encryption
    assert security.get_connection_args("client")["ssl_context"] is not None


@pytest.mark.long
def test_scheduler_of_dask_refuses_a_client_without_its_certificate():
    distributed = pytest.importorskip("distributed")
    before = listening()
    with build_executor("dask", 1).start():
        address = distributed.default_client().scheduler.address
        for options in ({}, {"security": distributed.Security.temporary()}):
            with pytest.raises((OSError, TypeError)):
                distributed.Client(address, timeout=5, **options)
        assert {ip for ip, _ in listening(*psutil.Process().children()) | listening() - before} <= LOOPBACK
